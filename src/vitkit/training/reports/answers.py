"""Sections of a run's report about the answers of its model to held-out images, and about the inside of the
model.

The answers are those of the run's last evaluation, so they need no computation. The attention of the model needs
a forward pass for each photograph: without a request, it is computed only for small models.
"""

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
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

QUICK = 80e-9  # exaFLOPs that a report may take without a request: about a second on a laptop
OF_TRAINING = 1 / 3  # the forward pass's share of the operations of a training step
LEAST = 192  # approximate side of a photograph in pixels
HELD_OUT = "held out"  # name of the validation part of a quick run
DISTANCES = 16  # number of images over which the attention distance is averaged
BATCH = 32
REMEDY = "if you trust it, give that name as `data`"


def weakest_class(run: Recorded) -> str | None:
    """A sentence about the weakest class in a run's last evaluation; None if every answer was right, or the
    answers were not kept."""
    given = _kept_answers(run)
    if given is None or not given.finite.all():
        return None
    return weakest(class_scores(given))


def _kept_answers(run: Recorded) -> Answers | None:
    """The answers that a run has kept, if they are those of its last step; else None."""
    kept = read_answers(run.run_dir / ANSWERS)
    if kept is None or kept.step != run.steps():
        return None
    return kept.answers


def answer_sections(run: Recorded, inside: bool, folder: Path) -> Iterator[Markup]:
    """Yields sections: the confusion of classes, the most confident mistakes, and with `inside` figures of the
    model; a sentence replaces what cannot be shown.

    inside: whether to run the model, however long that takes.
    folder: the folder of the page, to which links to the images' files are relative.
    """
    # The images of the last evaluation
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

    # Load the finished model, if that is requested, or if it is fast enough for the mistakes of a page
    of_an_image = run.begun.get("exaflops_of_an_image")
    if not isinstance(of_an_image, float):
        of_an_image = math.inf
    is_quick = MISTAKES * of_an_image * OF_TRAINING <= QUICK
    is_there = (run.run_dir / MODEL).is_dir()
    classifier = None
    if is_there and (inside or (kept is not None and is_quick)):
        classifier = load(run.run_dir, quiet=True)

    # The answers of the last evaluation, or with `inside` new ones
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
        if sentence and _kept_answers(run) is None:  # otherwise it is at the top of the page
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

    # The inside of the model, on a few held-out images; or how to get these figures
    if inside and classifier is not None:
        images: Tensor | None = None
        if source is not None and len(source):
            count = min(DISTANCES, len(source))
            some = subset(source, [i * len(source) // count for i in range(count)])
            pictures = [open_image(some[i][0], some.name(i)) for i in range(count)]
            ready = [classifier.preprocessing(picture) for picture in pictures]
            of_same_size = of_one_size([image.shape for image in ready])
            images = torch.stack([ready[number] for number in of_same_size]).to(classifier.device)
        yield from model_sections(classifier, images)
    elif not is_there:
        yield paragraph("The run has no finished model yet, so there is nothing inside to show.")
    else:
        more = "its filters, its position embeddings and the attention distance of its heads"
        if classifier is None:
            more = f"what the model attends to, {more}"
        yield paragraph(f"vitkit report {as_word(run.run_dir)} adds {more}.", "faint")


def open_part(run: Recorded, name: str) -> Source:
    """Open a part of a run's own data, such as "test", without its broken images: the examples in the order
    in which the run had them.

    Raises VitkitError if the images are missing or have changed, and for a part that belongs to an
    evaluator; OSError.
    """
    if name not in run.data["counts"]:
        raise BadRun(f"the images of {name} are not the run's own")
    return _part_of(run, name, *_opened(run))


def open_learned(run: Recorded) -> Source:
    """Open all images that the final model of a quick run has learned from: the training part, then the
    validation part. Raises the errors of `open_part`."""
    opened = _opened(run)
    train = _part_of(run, "train", *opened)
    if HELD_OUT not in run.data["counts"]:
        return train
    return merge_parts(train, _part_of(run, HELD_OUT, *opened))


def _opened(run: Recorded) -> tuple[Data, Splits]:
    """Open a run's data. Raises VitkitError for a data set that is code or on another machine, unless the user
    has typed its name: the run may be from a stranger."""
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
            f"the images are at {source}, whose user, password or signature was not recorded; run the "
            "command that began the run again, which opens them"
        )
    try:
        columns = Columns(**settings["columns"])
    except TypeError as error:
        raise BadRun(f"the columns in the run's recipe.json are damaged: {error}") from None
    if settings.get("masks"):  # the images are opened without them
        columns = replace(columns, target="none", label=None)
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
    """A part of opened data, without the images that the run left out."""
    # The test part of a quick run is one of the data set's own
    parts = [getattr(splits, name, None)]
    with suppress(ValueError):  # nothing can be held out
        divided = "val" if name == HELD_OUT else name
        parts.insert(0, divide(splits, data).get(divided))
    digest = run.data["fingerprint"][name]
    part = next((each for each in parts if each is not None and fingerprint(each) == digest), None)
    if part is None:
        raise BadRun(f"{shown_address(data.source)!r} has changed since the run")

    # Leave out the images that the run left out
    skipped = run.data["skipped"].get(name, [])
    try:
        broken = np.array([index for index, _ in skipped], np.int64)
    except (TypeError, ValueError, OverflowError):
        raise BadRun("`skipped` in the run's data.json is damaged") from None
    return subset(part, np.setdiff1d(np.arange(len(part)), broken))


def check_answered(kept: Kept, source: Source) -> None:
    """Raises VitkitError if a run's answers have indices beyond the images."""
    indices = kept.answers.indices
    if len(indices) and not 0 <= indices.min() <= indices.max() < len(source):
        raise BadRun(
            f"the run's answers do not belong to the {len(source):,} images of {kept.part}: {ANSWERS} is "
            "damaged"
        )


def _report(given: Answers, source: Source | None) -> Report:
    """A report with the parts that the sections show; without mistakes if the images are missing."""
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
    """A function that draws a photograph beside the model's attention; None without a model, or for a model
    without attention."""
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
