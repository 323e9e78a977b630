"""`vitkit predict`: the images that are named or come, and their answers."""

import sys
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from vitkit.runtimes import takes_pictures
from vitkit.system.console.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vitkit.commands.predict import Predict
    from vitkit.prediction import Answered, Item, Pictures
    from vitkit.runtimes import Runtime


def written_to(command: "Predict") -> list[Path]:
    """The folders whose images are no images to classify: the command writes them."""
    return [folder for folder in (command.sort_into, command.attention) if folder is not None]


def items_of(command: "Predict", labels: Sequence[str]) -> "Pictures | list[Item]":
    """The images that the command names."""
    from vitkit.prediction import pictures, spread

    items = pictures(command.images, labels, written_to(command))
    if command.sort_into is not None and not items.are_files():
        raise ValueError(
            f"--sort-into files photographs that are files of this machine; among "
            f"{printable(' '.join(command.images))} are others"
        )
    return spread(items, command.limit)


def answers_of(
    command: "Predict", runtime: "Runtime", items: "Pictures | list[Item] | None"
) -> "Iterator[Answered]":
    """The answers to the images, in batches; to those that come while it runs, if there are no
    items."""
    from vitkit.prediction import BATCH, answers, from_sequence, from_stream

    batch = BATCH
    if takes_pictures(runtime):
        batch = 1
    if items is not None:
        batches = from_sequence(items, runtime.preprocessing, batch, command.workers)
    else:
        batches = from_stream(_coming(command, batch), runtime.preprocessing, command.workers)
    return answers(runtime, batches, command.top)


def _coming(command: "Predict", batch: int) -> "Iterator[list[Item]]":
    """The images whose names come while they are classified, in lists, some of them empty."""
    from vitkit.prediction import arrivals, items_of, names_from

    # Their names
    leave_out = written_to(command)
    if command.watch:
        (folder,) = command.images
        print(
            f"watching {printable(folder)}: what is there and what arrives; Ctrl-C ends",
            file=sys.stderr,
        )
        names = arrivals(folder, batch, leave_out)
    else:
        names = names_from(sys.stdin.fileno(), batch)

    # Their items; the name of a folder is that of many
    count = 0
    for some in names:
        items = chain.from_iterable(items_of(name, leave_out) for name in some)
        chunk = []
        for item in items:
            chunk.append(item)
            count += 1
            if len(chunk) == batch or count == command.limit:
                yield chunk
                chunk = []
            if count == command.limit:
                return
        yield chunk
