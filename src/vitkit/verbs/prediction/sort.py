"""Photographs filed in folders of their classes."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from vitkit.prediction import Sorter
from vitkit.runtimes import Runtime
from vitkit.system.errors import BadSettings
from vitkit.verbs.arguments import check_folder, check_rows, check_sheet, name_of, word_of
from vitkit.verbs.definition import verb
from vitkit.verbs.prediction.common import (
    Answering,
    check_answering,
    images_of,
    runtime_of,
)
from vitkit.verbs.prediction.output import Predictions, take_answers


@dataclass(frozen=True)
class Sort(Answering):
    """Sort photographs into a folder for each class. The originals stay where they are, and nothing
    is replaced."""

    images: Annotated[
        Positional[tuple[str, ...]],
        arg(
            metavar="PHOTOGRAPH...",
            help="Photographs on this machine: files, folders, patterns ('**/*.jpg'); - reads names from "
            "the standard input, one per line.",
        ),
    ]
    into: Path = Path("sorted")
    """Folder that gets a folder for each class."""
    by: Literal["link", "copy"] = "link"
    """How photographs get there: as hard links, which take no space and are the same files (or
    copies, if links are impossible), or as copies."""
    sure: float = 0.5
    """Lowest probability that counts as an answer. Photographs below it go to the folder "unsure",
    and those that are unlike everything that the model has learned from go to "unknown"."""
    to: Path | None = None
    """Also write a row for each photograph into this file: .csv, .jsonl or .parquet."""
    attention: Path | None = None
    """Draw into this folder, for each photograph, what the model looked at."""
    sheet: Path | None = None
    """Draw photographs and predictions into this PNG file."""
    json: bool = False
    """Print one line of JSON per photograph."""
    limit: int = 0
    """Largest number of photographs, chosen evenly from all. If the names come from the standard
    input, the first ones are used. 0 is all."""


@verb
def sort(settings: Sort) -> Predictions:
    """Sort photographs into a folder for each class, as links or copies. The originals stay
    where they are, and nothing is replaced.

    Raises ValueError if a photograph is not a file of this machine, or if the model names no classes.
    """
    check_answering(settings)
    check_folder("`into`", settings.into, settings.images)
    if settings.sheet:
        check_sheet(settings.sheet)
    check_rows(settings.to, settings.json)
    written_to = [settings.into]
    if settings.attention is not None:
        check_folder("`attention`", settings.attention, settings.images)
        written_to.append(settings.attention)
    items = images_of(settings, (), settings.limit, written_to, files_only=True)

    runtime = runtime_of(settings, looking=settings.attention is not None)
    sorter = sorter_for(runtime, name_of(settings.model), settings.into, settings.sure, settings.by)
    taking = take_answers(settings, runtime, items, written_to, sorter)
    notes = taking.conclude(word_of(settings.model))
    return Predictions.of(taking, settings.into, notes, settings.ok_if_unreadable)


def sorter_for(
    runtime: Runtime, model: str, into: Path, sure: float, by: Literal["link", "copy"]
) -> Sorter:
    """The sorter for the photographs. Raises ValueError if the model's outputs are not classes."""
    if runtime.activation == "none":
        raise BadSettings(
            f"{model} answers with numbers, not with classes, so there are no folders"
        )
    return Sorter(into, runtime.labels, sure, by)
