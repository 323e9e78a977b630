"""The most likely classes of images: as a table, as rows of a file, or drawn."""

from dataclasses import dataclass
from pathlib import Path

from vitkit.verbs.arguments import check_folder, check_rows, check_sheet, word_of
from vitkit.verbs.definition import verb
from vitkit.verbs.prediction.common import (
    Answering,
    check_answering,
    images_of,
    runtime_of,
)
from vitkit.verbs.prediction.output import Predictions, take_answers


@dataclass(frozen=True)
class Predict(Answering):
    """Print the most likely classes of images, with their probabilities."""

    to: Path | None = None
    """Write a row for each image into this file, instead of printing it: .csv, .jsonl or
    .parquet."""
    attention: Path | None = None
    """Draw into this folder, for each image, what the model looked at."""
    sheet: Path | None = None
    """Draw images and predictions into this PNG file."""
    limit: int = 0
    """Largest number of images, chosen evenly from all. If the names come from the standard input,
    the first ones are used. 0 is all."""
    json: bool = False
    """Print one line of JSON per image."""


@verb
def predict(settings: Predict) -> Predictions:
    """Name the most likely classes of images: files, folders, patterns, data sets; in a program also
    bytes, Pillow images, arrays and tensors. A broken image has an `error`, and the others are answered
    all the same.

    Raises ValueError if something is not an image, or if the model has no head.
    """
    # What cannot be done is refused before the model is loaded
    check_answering(settings)
    if settings.sheet:
        check_sheet(settings.sheet)
    check_rows(settings.to, settings.json)
    if settings.attention is not None:
        check_folder("`attention`", settings.attention, settings.images)

    # The model, the images, and their answers as they come
    runtime = runtime_of(settings, looking=settings.attention is not None)
    written_to = [settings.attention] if settings.attention else []
    items = images_of(settings, runtime.labels, settings.limit, written_to)
    taking = take_answers(settings, runtime, items, written_to)
    notes = taking.conclude(word_of(settings.model))
    return Predictions.of(
        taking,
        settings.to or settings.attention or settings.sheet,
        notes,
        settings.ok_if_unreadable,
    )
