"""The likeliest classes of images: as a table, as rows of a file, or drawn."""

from dataclasses import dataclass
from pathlib import Path

from vitkit.verbs.arguments import word_of
from vitkit.verbs.definition import verb
from vitkit.verbs.outputs import check_folder, check_rows, check_sheet
from vitkit.verbs.prediction.answering import answers_of, images_of
from vitkit.verbs.prediction.outcome import Predictions
from vitkit.verbs.prediction.runtime import runtime_of
from vitkit.verbs.prediction.settings import Answering, check_answering
from vitkit.verbs.prediction.taking import Taking


@dataclass(frozen=True)
class Predict(Answering):
    """Print the likeliest classes of images, with their probabilities."""

    to: Path | None = None
    """Write a row for each image into this file, instead of printing it: .csv, .jsonl or
    .parquet."""
    attention: Path | None = None
    """Draw into this folder, for each image, what the model looked at."""
    sheet: Path | None = None
    """Draw images and predictions into this PNG file."""
    json: bool = False
    """Print one line of JSON per image."""


@verb
def predict(settings: Predict) -> Predictions:
    """Name the likeliest classes of images: files, folders, patterns, data sets; in a program also
    bytes, Pillow images, arrays and tensors. An image that is broken has an `error`, and the others are
    answered all the same.

    Raises ValueError for what is no image, and for a model without a head.
    """
    # What cannot be done is refused before the model is loaded
    check_answering(settings, "predict")
    if settings.sheet:
        check_sheet(settings.sheet)
    check_rows(settings.to, settings.json)
    if settings.attention is not None:
        check_folder("--attention", settings.attention, settings.images)

    # The model, the images, and their answers as they come
    runtime = runtime_of(settings, looking=settings.attention is not None)
    written_to = [settings.attention] if settings.attention else []
    items = images_of(settings, runtime.labels, written_to)
    batches = answers_of(settings, runtime, items, written_to=written_to)
    taking = Taking(
        runtime,
        None if items is None else len(items),
        settings.top,
        to=settings.to,
        attention=settings.attention,
        sheet=settings.sheet,
        json=settings.json,
    )
    with taking:
        taking.take_all(batches)
    notes = taking.conclude(word_of(settings.model))
    return Predictions.of(taking, settings.to or settings.attention or settings.sheet, notes)
