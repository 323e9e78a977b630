"""Photographs filed in folders of their classes."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from vitkit.verbs.arguments import word_of
from vitkit.verbs.definition import verb
from vitkit.verbs.outputs import check_folder, check_rows
from vitkit.verbs.prediction.answering import answers_of, images_of
from vitkit.verbs.prediction.outcome import Predictions
from vitkit.verbs.prediction.runtime import runtime_of
from vitkit.verbs.prediction.settings import Answering, check_answering
from vitkit.verbs.prediction.taking import Taking

if TYPE_CHECKING:
    from vitkit.prediction import Sorter
    from vitkit.runtimes import Runtime


@dataclass(frozen=True)
class Sort(Answering):
    """File photographs in folders of their classes. The originals stay where they are, and nothing is
    replaced."""

    into: Path = Path("sorted")
    """Folder to file them in, each in the folder of its class."""
    by: Literal["link", "copy"] = "link"
    """How they are filed: as hard links, which take no space and are the same files (copies, where
    no link can be made), or as copies."""
    sure: float = 0.5
    """Probability from which on an answer counts; photographs with less go to the folder "unsure"."""
    to: Path | None = None
    """Write a row for each photograph into this file too: .csv, .jsonl or .parquet."""
    json: bool = False
    """Print one line of JSON per photograph."""


@verb
def sort(settings: Sort) -> Predictions:
    """File photographs in folders of their classes, as links or copies. The originals stay where they
    are, and nothing is replaced.

    Raises ValueError for what is no file of this machine, and for a model that names no classes.
    """
    check_answering(settings, "sort")
    check_folder("--into", settings.into, settings.images)
    check_rows(settings.to, settings.json)

    runtime = runtime_of(settings)
    sorter = sorter_for(runtime, word_of(settings.model), settings.into, settings.sure, settings.by)
    items = images_of(settings, runtime.labels, [settings.into], files_only=True)
    batches = answers_of(settings, runtime, items, written_to=[settings.into])
    total = None if items is None else len(items)
    taking = Taking(runtime, total, settings.top, to=settings.to, sorter=sorter, json=settings.json)
    with taking:
        taking.take_all(batches)
    notes = taking.conclude(word_of(settings.model))
    return Predictions.of(taking, settings.into, notes)


def sorter_for(
    runtime: "Runtime", model: str, into: Path, sure: float, by: Literal["link", "copy"]
) -> "Sorter":
    """Files the photographs. Raises ValueError for a model whose outputs are no classes."""
    from vitkit.prediction import Sorter

    if runtime.activation == "none":
        raise ValueError(f"{model} answers with numbers, not with classes, so there are no folders")
    return Sorter(into, runtime.labels, sure, by)
