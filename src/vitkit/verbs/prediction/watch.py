"""A folder that is watched: what is there and what arrives is classified."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from vitkit.prediction import arrivals
from vitkit.system.console.messages import say
from vitkit.system.errors import BadSettings
from vitkit.verbs.arguments import check_folder, check_rows, name_of, word_of
from vitkit.verbs.definition import verb
from vitkit.verbs.prediction.common import (
    Answering,
    answers_to_names,
    batch_for,
    check_answering,
    runtime_of,
)
from vitkit.verbs.prediction.output import Predictions, Taking
from vitkit.verbs.prediction.sort import sorter_for


@dataclass(frozen=True)
class Watch(Answering):
    """Classify the images in a folder, and those that arrive there, until Ctrl-C or SIGTERM."""

    images: Annotated[Positional[tuple[str, ...]], arg(metavar="DIR", help="The folder.")]
    to: Path | None = None
    """Write a row for each image into this file, instead of printing it: .csv, .jsonl or
    .parquet."""
    sort_into: Path | None = None
    """Sort the photographs into this folder, which gets a folder for each class."""
    sort_by: Literal["link", "copy"] = "link"
    """How photographs get there: as hard links, or as copies."""
    sure: float = 0.5
    """Lowest probability that counts as an answer when photographs are sorted."""
    json: bool = False
    """Print one line of JSON per image."""
    limit: int = 0
    """Stop after this many images; 0 never stops."""


@verb
def watch(settings: Watch) -> Predictions:
    """Classify the images in a folder, and those that arrive there, until it is ended: a command
    by Ctrl-C or SIGTERM, a program's call by Ctrl-C. Raises ValueError if it is not a folder."""
    check_answering(settings)
    names = [image for image in settings.images if isinstance(image, str)]
    if names != [*settings.images]:
        raise BadSettings("this waits for what arrives in one folder; got images in memory")
    if len(names) > 1 or not Path(names[0]).is_dir():
        raise BadSettings(f"this waits for what arrives in one folder; got {' '.join(names)}")
    if settings.sort_into is not None:
        check_folder("`sort_into`", settings.sort_into, settings.images)
    check_rows(settings.to, settings.json)

    runtime = runtime_of(settings)
    sorter = None
    written_to = []
    if settings.sort_into is not None:
        model = name_of(settings.model)
        sorter = sorter_for(runtime, model, settings.sort_into, settings.sure, settings.sort_by)
        written_to.append(settings.sort_into)
    (folder,) = names
    say(f"watching {folder}: what is there and what arrives; Ctrl-C ends")
    names = arrivals(folder, batch_for(runtime), written_to)
    batches = answers_to_names(settings, runtime, names, settings.limit, written_to)
    taking = Taking(runtime, None, settings.top, to=settings.to, sorter=sorter, json=settings.json)
    with taking, suppress(KeyboardInterrupt):
        taking.take_all(batches)
    notes = taking.conclude(word_of(settings.model))
    return Predictions.of(
        taking, settings.to or settings.sort_into, notes, settings.ok_if_unreadable
    )
