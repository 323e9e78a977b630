"""`vitkit watch`: classify the existing and the new images of a folder."""

from __future__ import annotations

from contextlib import suppress
from typing import Literal, Unpack

from vitkit.prediction import (
    Answering,
    Predictions,
    Taking,
    answers_to_names,
    arrivals,
    batch_for,
    request,
    runtime_of,
    sorter_for,
)
from vitkit.prediction.rows import check_rows
from vitkit.system.console.messages import say
from vitkit.system.errors import BadSettings
from vitkit.system.functions.arguments import check_folder, check_limit, name_of
from vitkit.system.functions.public import public
from vitkit.system.functions.types import PathLike
from vitkit.weights import ModelLike


@public
def watch(
    model: ModelLike,
    folder: PathLike,
    *,
    to: PathLike | None = None,
    sort_into: PathLike | None = None,
    sort_by: Literal["link", "copy"] = "link",
    sure: float = 0.5,
    json: bool = False,
    limit: int = 0,
    **answering: Unpack[Answering],
) -> Predictions:
    """Classify the images in a folder, and those that arrive there, until Ctrl-C or SIGTERM.

    A program ends it with Ctrl-C, or with `limit`.

    Args:
        model: A run, a model directory, a file of weights (vitkit's, Hugging Face's, timm's,
            torchvision's or Google's), the name of a published model, or a file of `vitkit.export`
            (.onnx or .xml).
        folder: The folder.
        to: Write a row for each image into this file, instead of printing it: .csv, .jsonl or
            .parquet.
        sort_into: Sort the photographs into this folder, which gets a folder for each class.
        sort_by: How photographs get there: as hard links, or as copies.
        sure: Lowest probability that counts as an answer when photographs are sorted.
        json: Print one line of JSON per image.
        limit: Stop after this many images; 0 never stops.
        **answering: How images are answered: `Answering`.

    Raises:
        BadSettings: If `folder` is no folder, or settings do not go together.
    """
    asked = request(model, (str(folder),), answering)
    check_limit(limit)
    if not folder.is_dir():
        raise BadSettings(f"`folder` is {folder}, which is not a folder; watch one folder")
    if sort_into is not None:
        check_folder("`sort_into`", sort_into, asked.images)
    check_rows(to, json)

    runtime = runtime_of(asked)
    sorter = None
    written_to = []
    if sort_into is not None:
        sorter = sorter_for(runtime, name_of(model), sort_into, sure, sort_by)
        written_to.append(sort_into)
    say(f"watching {folder}: what is there and what arrives; Ctrl-C ends")
    names = arrivals(str(folder), batch_for(runtime), written_to)
    batches = answers_to_names(asked, runtime, names, limit, written_to)
    taking = Taking(runtime, None, asked.top, to=to, sorter=sorter, json=json)
    with taking, suppress(KeyboardInterrupt):
        taking.take_all(batches)
    notes = taking.conclude(model)
    return Predictions.of(taking, to or sort_into, notes, asked.ok_if_unreadable)
