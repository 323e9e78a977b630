"""What a run's model answers to its held-out images, and what is inside it, as sections of the
run's report.

The answers are those of the run's last evaluation, so they cost nothing. What the model looked at
costs a forward pass for each photograph: unless someone asks for it, it is computed only for small
models.
"""

import math
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vitkit.data import (
    Columns,
    Picture,
    Source,
    Splits,
    eval_batches,
    fingerprint,
    merge_parts,
    of_one_size,
    open_image,
    prepared_for_people,
    refuse_recorded,
    subset,
)
from vitkit.evaluation import Answers, Kept, Part, answers, class_scores, read_answers, weakest
from vitkit.evaluation.metrics.classification import confusion_matrix, most_confused
from vitkit.evaluation.reports.page import MISTAKES, Look, confusion_section, mistakes_section
from vitkit.evaluation.reports.report import Report, mistakes
from vitkit.inspection import (
    Markup,
    check_has_attention,
    logits_and_rollout,
    model_sections,
    over_image,
    paragraph,
    photograph_and_map,
    section,
)
from vitkit.recipes import Data
from vitkit.system.console.text import as_word, printable
from vitkit.system.errors import BadRun, VitkitError
from vitkit.system.storage.addresses import as_typed, is_masked, shown_address
from vitkit.training.data import divide, open_to_divide
from vitkit.training.evaluation import ANSWERS
from vitkit.training.record.history import Recorded
from vitkit.training.state.checkpoints import MODEL
from vitkit.weights import Classifier, load

QUICK = 80e-9  # exaFLOPs that a report may take without being asked for: about a second of a laptop
OF_TRAINING = 1 / 3  # of the operations of a step are its forward pass
LEAST = 192  # pixels of a side of a photograph, about
HELD_OUT = "held out"  # what a quick run calls the part that it chooses by
DISTANCES = 16  # images over which the attention distance is averaged
BATCH = 32
REMEDY = "if you trust it, give that name as `data`"


def weakest_class(run: Recorded) -> str | None:
    """A sentence about the class that fared worst in a run's last evaluation; None if every answer was
    right, or they were not kept."""
    given = _kept_answers(run)
    if given is None or not given.finite.all():
        return None
    return weakest(class_scores(given))


def _kept_answers(run: Recorded) -> Answers | None:
    """The answers that a run has kept, if they are those of its last step."""
    kept = read_answers(run.run_dir / ANSWERS)
    if kept is None or kept.step != run.steps():
        return None
    return kept.answers


def answer_sections(run: Recorded, inside: bool, folder: Path) -> Iterator[Markup]:
    """Which classes are confused, the most confident mistakes, and with `inside` the figures of the
    model; a sentence in place of what cannot be shown.

    inside: whether the model may be run, however long that takes. folder: of the page, from which the
    names of photographs lead to their files.
    """
    # The images that measured it
    kept = read_answers(run.run_dir / ANSWERS)
    name = list(run.data["counts"])[-1]  # the test part, if there is one
    if kept is not None:
        name = kept.part
    source = None
    problem = ""
    if kept is not None or inside:
        try:
            source = open_part(run, name)
            if kept is not None:
                check_answered(kept, source)
        except (VitkitError, OSError, KeyError) as error:
            problem = f"The images of {name} cannot be opened again: {error}."

    # The finished model, if it may be run: it is quick enough for the mistakes of a page, or asked
    # for
    of_an_image = run.begun.get("exaflops_of_an_image")
    if not isinstance(of_an_image, float):
        of_an_image = math.inf
    is_quick = MISTAKES * of_an_image * OF_TRAINING <= QUICK
    is_there = (run.run_dir / MODEL).is_dir()
    classifier = None
    if is_there and (inside or (kept is not None and is_quick)):
        classifier = load(run.run_dir, quiet=True)

    # Its answers: those of the last evaluation, or computed now
    given = _kept_answers(run)
    if (
        given is None
        and inside
        and name != "train"
        and source is not None
        and classifier is not None
    ):
        answering = classifier.for_inference()
        if source.target_kind == "class" and answering.labels:
            batches = eval_batches(source, answering.preprocessing, BATCH, 0)
            given = answers(answering, Part(source, batches))
    if given is not None and given.finite.all():
        found = _report(given, source)
        sentence = weakest(found.classes)
        if sentence and _kept_answers(run) is None:  # else it stands on top of the page
            yield paragraph(printable(sentence))
        yield confusion_section(found)
        title = "Most confident mistakes"
        if source is None:
            yield section(title, paragraph(problem))
        elif found.mistakes:
            try:
                yield mistakes_section(found, source.a_few(), _look(classifier), folder)
            except (VitkitError, OSError) as error:
                yield section(title, paragraph(f"An image cannot be read: {error}."))

    # Inside the model, on a few held-out images; or how to get what is not on this page
    if inside and classifier is not None:
        images: Tensor | None = None
        if source is not None and len(source):
            count = min(DISTANCES, len(source))
            some = subset(source, [i * len(source) // count for i in range(count)])
            pictures = [open_image(some[i][0], some.name(i)) for i in range(count)]
            ready = [classifier.preprocessing(picture) for picture in pictures]
            alike = of_one_size([image.shape for image in ready])
            images = torch.stack([ready[number] for number in alike]).to(classifier.device)
        yield from model_sections(classifier, images)
    elif not is_there:
        yield paragraph("The run has no finished model yet, so there is nothing inside to show.")
    else:
        more = "its filters, its positions and how far its heads look"
        if classifier is None:
            more = f"what the model looked at, {more}"
        yield paragraph(f"vitkit report {as_word(run.run_dir)} adds {more}.", "faint")


def open_part(run: Recorded, name: str) -> Source:
    """A part of a run's own data, "test" for example, without its broken images: the examples in
    the order in which the run had them.

    Raises VitkitError for images that are not there any more, or are others now, and for a part that
    belongs to an evaluator; OSError.
    """
    if name not in run.data["counts"]:
        raise BadRun(f"the images of {name} are not the run's own")
    return _part_of(run, name, *_opened(run))


def open_learned(run: Recorded) -> Source:
    """All images that a quick run has learned from in the end: those to learn from, and behind them those
    that it had held out to choose by. Raises as `open_part` does."""
    opened = _opened(run)
    train = _part_of(run, "train", *opened)
    if HELD_OUT not in run.data["counts"]:
        return train
    return merge_parts(train, _part_of(run, HELD_OUT, *opened))


def _opened(run: Recorded) -> tuple[Data, Splits]:
    """A run's data, opened again. Raises VitkitError for a name of code, or of another machine, that
    was not typed: the run may be a stranger's."""
    settings = run.recipe["data"]
    source = settings["source"]
    place = run.data.get("place", source)
    typed = source in run.typed
    if not typed:
        for name, file in ((source, "recipe.json"), (place, "data.json")):
            refuse_recorded(name, str(run.run_dir / file), REMEDY)
    if not typed and not Path(source).exists() and Path(place).exists():
        source = place
    source = as_typed(source)
    if is_masked(source):
        raise BadRun(
            f"the images are at {source}, whose user, password or signature was not written down; the "
            "command that began the run, given once more, opens them"
        )
    try:
        columns = Columns(**settings["columns"])
    except TypeError as error:
        raise BadRun(f"the columns in what the run wrote down are damaged: {error}") from None
    data = Data(
        source=source,
        columns=columns,
        parts=settings["parts"],
        hold_out=settings["hold_out"],
        split_seed=settings["split_seed"],
        groups=run.data.get("groups", "none"),
    )
    return data, open_to_divide(data, typed=typed)


def _part_of(run: Recorded, name: str, data: Data, splits: Splits) -> Source:
    """A part of opened data, as the run had it."""
    # A quick run tests on a part that it does not divide
    parts = [getattr(splits, name, None)]
    with suppress(ValueError):  # nothing can be held out
        divided = "val" if name == HELD_OUT else name
        parts.insert(0, divide(splits, data).get(divided))
    digest = run.data["fingerprint"][name]
    part = next((each for each in parts if each is not None and fingerprint(each) == digest), None)
    if part is None:
        raise BadRun(f"{shown_address(data.source)!r} has changed since the run")

    # Without those that the run left out
    skipped = run.data["skipped"].get(name, [])
    try:
        broken = np.array([index for index, _ in skipped], np.int64)
    except (TypeError, ValueError, OverflowError):
        raise BadRun("the images that the run skipped are damaged in what it wrote down") from None
    return subset(part, np.setdiff1d(np.arange(len(part)), broken))


def check_answered(kept: Kept, source: Source) -> None:
    """Raises VitkitError if a run's answers are of images that are not there."""
    indices = kept.answers.indices
    if len(indices) and not 0 <= indices.min() <= indices.max() < len(source):
        raise BadRun(
            f"the run's answers are of other images than the {len(source):,} of {kept.part}: {ANSWERS} is "
            "damaged"
        )


def _report(given: Answers, source: Source | None) -> Report:
    """What the sections show of answers; without the images there are no mistakes to be shown."""
    wrong = tuple(mistakes(given, source)) if source is not None else ()
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
        model = check_has_attention(classifier)
    except VitkitError:
        return None

    def look(picture: Picture) -> np.ndarray:
        images = classifier.batch([picture])
        _, maps = logits_and_rollout(classifier, images)
        pixels = prepared_for_people(images)[0].permute(1, 2, 0).cpu().numpy()  # (h, w, 3)
        laid = over_image(maps, model.config.tiling)
        return photograph_and_map(pixels, laid[0].numpy(), LEAST)

    return look
