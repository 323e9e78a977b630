"""`vitkit sort`: images sorted into one folder per predicted class."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Unpack

from vitkit.prediction.functions.common import Answering, images_of, request, runtime_of
from vitkit.prediction.functions.output import Predictions, Taking, take_answers
from vitkit.prediction.given import ImageLike
from vitkit.prediction.rows import check_rows
from vitkit.prediction.sorting import Sorter
from vitkit.runtimes import Runtime
from vitkit.system.errors import BadSettings
from vitkit.system.functions.arguments import check_folder, check_limit, check_sheet, name_of
from vitkit.system.functions.public import public
from vitkit.system.functions.types import PathLike
from vitkit.weights import ModelLike


@public
def sort(
    model: ModelLike,
    *photographs: ImageLike,
    into: PathLike = Path("sorted"),
    by: Literal["link", "copy"] = "link",
    sure: float = 0.5,
    to: PathLike | None = None,
    attention: PathLike | None = None,
    sheet: PathLike | None = None,
    json: bool = False,
    limit: int = 0,
    **answering: Unpack[Answering],
) -> Predictions:
    """Sort photographs into a folder for each class. The originals stay where they are, and nothing
    is replaced.

    Args:
        model: A run, a model directory, a file of weights (vitkit's, Hugging Face's, timm's,
            torchvision's or Google's), the name of a published model, or a file of `vitkit.export`
            (.onnx or .xml).
        photographs: Photographs on this machine: files, folders, patterns ('**/*.jpg'); - reads names
            from the standard input, one per line.
        into: Folder that gets a folder for each class.
        by: How photographs get there: as hard links, which take no space and are the same files (or
            copies, if links are impossible), or as copies.
        sure: Lowest probability that counts as an answer. Photographs below it go to the folder
            "unsure", and those that are unlike everything that the model has learned from go to
            "unknown".
        to: Also write a row for each photograph into this file: .csv, .jsonl or .parquet.
        attention: Draw into this folder, for each photograph, what the model looked at.
        sheet: Draw photographs and predictions into this PNG file.
        json: Print one line of JSON per photograph.
        limit: Largest number of photographs, chosen evenly from all. If the names come from the
            standard input, the first ones are used. 0 is all.
        **answering: How images are answered: `Answering`.

    Raises:
        BadSettings: If a photograph is not a file of this machine, or if the model names no classes.
    """
    asked = request(model, photographs, answering)
    check_limit(limit)
    check_folder("`into`", into, asked.images)
    if sheet:
        check_sheet(sheet)
    check_rows(to, json)
    written_to = [into]
    if attention is not None:
        check_folder("`attention`", attention, asked.images)
        written_to.append(attention)
    items = images_of(asked, (), limit, written_to, files_only=True)

    runtime = runtime_of(asked, looking=attention is not None)
    sorter = sorter_for(runtime, name_of(model), into, sure, by)
    total = None if items is None else len(items)
    taking = Taking(
        runtime,
        total,
        asked.top,
        to=to,
        attention=attention,
        sheet=sheet,
        sorter=sorter,
        json=json,
    )
    take_answers(asked, items, taking, limit, written_to)
    notes = taking.conclude(model)
    return Predictions.of(taking, into, notes, asked.ok_if_unreadable)


def sorter_for(
    runtime: Runtime, model: str, into: Path, sure: float, by: Literal["link", "copy"]
) -> Sorter:
    """The sorter for the photographs. Raises BadSettings if the model's outputs are not classes."""
    if runtime.activation == "none":
        raise BadSettings(
            f"{model} answers with numbers, not with classes, so there are no folders"
        )
    return Sorter(into, runtime.labels, sure, by)
