"""What a run's model answers to its held-out images, and what is inside it, as sections of the run's
report.

The answers are those of the run's last evaluation, so they cost nothing. What the model looked at
costs a forward pass for each photograph: unless someone asks for it, it is computed only for models
so small that nobody waits.
"""

from collections.abc import Iterator

import numpy as np
import torch

from vitkit.data import (
    Columns,
    Picture,
    Source,
    eval_batches,
    fingerprint,
    open_image,
    open_splits,
    prepared_for_people,
    subset,
)
from vitkit.evaluation import (
    MISTAKES,
    Answers,
    Look,
    Part,
    Report,
    answers,
    class_scores,
    confusion_matrix,
    confusion_section,
    mistakes,
    mistakes_section,
    most_confused,
    read_answers,
)
from vitkit.inspection import (
    Block,
    beside,
    check_has_attention,
    logits_and_rollout,
    model_sections,
    over_image,
    paragraph,
    section,
)
from vitkit.system.console.text import as_word
from vitkit.training.data import divide
from vitkit.training.evaluation import ANSWERS
from vitkit.training.recipe import Data
from vitkit.training.record.history import Recorded
from vitkit.training.state.checkpoints import MODEL
from vitkit.weights import Classifier, load

QUICK = 80e-9  # exaFLOPs that a report may take without being asked for: about a second of a laptop
OF_TRAINING = 1 / 3  # of the operations of a step are its forward pass
LEAST = 192  # pixels of a side of a photograph, about
DISTANCES = 16  # images over which the attention distance is averaged
BATCH = 32


def answer_sections(run: Recorded, inside: bool) -> Iterator[Block]:
    """Which classes are confused, the most confident mistakes, and with `inside` the figures of the
    model; a sentence in place of what cannot be shown.

    inside: whether the model may be run, however long that takes.
    """
    # The images that measured it, and the finished model if it may be run
    kept = read_answers(run.run_dir / ANSWERS)
    name = list(run.data["counts"])[
        -1
    ]  # the test part, if there is one; "train" if nothing is held out
    if kept is not None:
        name = kept.part
    source = None
    problem = ""
    if kept is not None or inside:
        try:
            source = open_part(run, name)
        except (ValueError, OSError, KeyError) as error:
            problem = f"The images of {name} cannot be opened again: {error}."
    classifier = None
    may_run = inside or (kept is not None and _is_quick(run))
    if may_run and (run.run_dir / MODEL).is_dir():
        classifier = load(run.run_dir, quiet=True)

    # The answers
    given = None
    if kept is not None and kept.step == run.steps():
        given = kept.answers
    elif inside and name != "train" and source is not None and classifier is not None:
        given = _answers(classifier, source)
    if given is not None and given.finite.all():
        yield from _of_answers(_report(given, source), source, problem, _look(classifier))

    # Inside the model
    if inside and classifier is not None:
        yield from model_sections(classifier, _some_images(classifier, source))
    else:
        yield _what_else(run, classifier is not None)


def open_part(run: Recorded, name: str) -> Source:
    """A part of a run's own data, "test" for example, without its broken images: the examples in the
    order in which the run had them.

    Raises ValueError for images that are not there any more, or are others now, and for a part that
    belongs to an evaluator; OSError.
    """
    settings = run.recipe["data"]
    if name not in run.data["counts"]:
        raise ValueError(f"the images of {name} are not the run's own")
    data = Data(
        source=settings["source"],
        columns=Columns(**settings["columns"]),
        parts=settings["parts"],
        hold_out=settings["hold_out"],
        split_seed=settings["split_seed"],
    )
    splits = open_splits(data.source, data.columns, data.split_seed)
    part = divide(splits, data)[name]
    if fingerprint(part) != run.data["fingerprint"][name]:
        raise ValueError(f"{data.source!r} has changed since the run")

    # Without those that the run left out
    broken = [index for index, _ in run.data["skipped"].get(name, [])]
    return subset(part, np.setdiff1d(np.arange(len(part)), broken))


def _of_answers(
    found: Report, source: Source | None, problem: str, look: Look | None
) -> Iterator[Block]:
    """Which classes are confused, and the mistakes; `problem` if there are no images of these, or
    another sentence if one of them cannot be read any more."""
    yield confusion_section(found)
    title = "Most confident mistakes"
    if source is None:
        yield section(title, paragraph(problem))
    elif found.mistakes:
        try:
            yield mistakes_section(found, source, look)
        except (ValueError, OSError) as error:
            yield section(title, paragraph(f"An image cannot be read: {error}."))


def _is_quick(run: Recorded) -> bool:
    """Whether the model answers as many images as there are mistakes on a page within QUICK."""
    of_an_image = run.begun.get("exaflops_of_an_image")
    if not isinstance(of_an_image, float):
        return False
    return MISTAKES * of_an_image * OF_TRAINING <= QUICK


def _answers(classifier: Classifier, source: Source) -> Answers | None:
    """The model's answers, computed now; None if its images have not one class each."""
    if source.target_kind != "class" or not classifier.labels:
        return None
    ready = classifier.for_inference()
    batches = eval_batches(source, ready.preprocessing, BATCH, 0)
    return answers(ready, Part(source, batches))


def _report(given: Answers, source: Source | None) -> Report:
    """What the sections show of answers; without the images there are no mistakes to be shown."""
    wrong = ()
    if source is not None:
        wrong = tuple(mistakes(given, source))
    return Report(
        model="",
        images="",
        facts={},
        metrics=(),
        notes=given.notes,
        classes=tuple(class_scores(given)),
        confused=tuple(most_confused(given)),
        confusion=confusion_matrix(given),
        mistakes=wrong,
    )


def _look(classifier: Classifier | None) -> Look | None:
    """Draws a photograph beside what the model looked at; None if no model is at hand, or if it has
    no attention."""
    if classifier is None:
        return None
    try:
        check_has_attention(classifier)
    except ValueError:
        return None

    def look(picture: Picture) -> np.ndarray:
        images = classifier.batch([picture])
        _, maps = logits_and_rollout(classifier, images)
        pixels = prepared_for_people(images)[0].permute(1, 2, 0).cpu().numpy()  # (h, w, 3)
        laid = over_image(maps, classifier.model.config.tiling)
        return beside(pixels, laid[0].numpy(), LEAST)

    return look


def _some_images(classifier: Classifier, source: Source | None) -> torch.Tensor | None:
    """A few held-out images, evenly spread, prepared: uint8 (B, 3, H, W); None if there are none."""
    if source is None or not len(source):
        return None
    count = min(DISTANCES, len(source))
    some = subset(source, [i * len(source) // count for i in range(count)])
    pictures = [open_image(some[i][0], some.name(i)) for i in range(count)]
    return classifier.batch(pictures)


def _what_else(run: Recorded, looked: bool) -> Block:
    """How to get what is not on this page. looked: whether it shows what the model looked at."""
    if not (run.run_dir / MODEL).is_dir():
        return paragraph("The run has no finished model yet, so there is nothing inside to show.")
    more = "its filters, its positions and how far its heads look"
    if not looked:
        more = f"what the model looked at, {more}"
    return paragraph(f"vitkit report {as_word(run.run_dir)} adds {more}.", "faint")
