"""`vitkit predict`: the most likely classes of images, as a table, rows of a file, or pictures."""

from __future__ import annotations

from typing import Unpack

from vitkit.prediction.functions.common import Answering, images_of, request, runtime_of
from vitkit.prediction.functions.output import Predictions, Taking, take_answers
from vitkit.prediction.given import ImageLike
from vitkit.prediction.regions import check_regions
from vitkit.prediction.rows import check_rows
from vitkit.system.functions.arguments import check_folder, check_limit, check_sheet
from vitkit.system.functions.public import public
from vitkit.system.functions.types import PathLike
from vitkit.weights import ModelLike


@public
def predict(
    model: ModelLike,
    *images: ImageLike,
    to: PathLike | None = None,
    attention: PathLike | None = None,
    regions: PathLike | None = None,
    sheet: PathLike | None = None,
    limit: int = 0,
    json: bool = False,
    **answering: Unpack[Answering],
) -> Predictions:
    """Print the most likely classes of images, with their probabilities.

    A broken image has an `error`, and the others are answered all the same.

    Args:
        model: A run, a model directory, a file of weights (vitkit's, Hugging Face's, timm's,
            torchvision's or Google's), the name of a published model, or a file of `vitkit.export`
            (.onnx or .xml).
        images: Image files, folders of images, patterns ('**/*.jpg'), web addresses, data sets (their
            test part), or digits; - reads names from the standard input, one per line. In a program
            also bytes, Pillow images, arrays and tensors.
        to: Write a row for each image into this file, instead of printing it: .csv, .jsonl or
            .parquet.
        attention: Draw into this folder, for each image, what the model looked at; for a model of good
            images, where the image is unlike them.
        regions: For a model of good images: write the regions that are unlike them into this file, .csv,
            or .json in COCO's format. Boxes are in pixels of the image.
        sheet: Draw images and predictions into this PNG file.
        limit: Largest number of images, chosen evenly from all. If the names come from the standard
            input, the first ones are used. 0 is all.
        json: Print one line of JSON per image.
        **answering: How images are answered: `Answering`.

    Raises:
        BadSettings: If settings do not go together, or something that was given is not an image.
        BadWeights: If the model cannot be read.
    """
    # What cannot be done is refused before the model is loaded
    asked = request(model, images, answering)
    check_limit(limit)
    if sheet:
        check_sheet(sheet)
    check_rows(to, json)
    if attention is not None:
        check_folder("`attention`", attention, images)
    if regions is not None:
        check_regions(regions)

    # The model, the images, and their answers as they come
    looking = attention is not None or regions is not None
    runtime = runtime_of(asked, looking=looking)
    written_to = [attention] if attention else []
    items = images_of(asked, runtime.labels, limit, written_to)
    total = None if items is None else len(items)
    taking = Taking(
        runtime,
        total,
        asked.top,
        to=to,
        attention=attention,
        regions=regions,
        sheet=sheet,
        json=json,
    )
    take_answers(asked, items, taking, limit, written_to)
    notes = taking.conclude(model)
    return Predictions.of(
        taking, to or attention or regions or sheet, notes, asked.ok_if_unreadable
    )
