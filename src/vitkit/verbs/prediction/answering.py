"""The images that are named or come, and their answers."""

import sys
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from vitkit.runtimes import takes_pictures
from vitkit.system.console.text import printable
from vitkit.verbs.prediction.settings import INPUT, Answering

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from vitkit.prediction import Answered, Item, Pictures
    from vitkit.runtimes import Runtime


def images_of(
    settings: Answering,
    labels: Sequence[str],
    written_to: Sequence[Path] = (),
    files_only: bool = False,
) -> "Pictures | Sequence[Item] | None":
    """The images that are given; None if their names come through the standard input.

    written_to: folders whose images are none to answer, because they are written there. Raises
    ValueError with `files_only` for what is no file of this machine.
    """
    from vitkit.prediction import pictures, spread

    images = settings.images
    if all(isinstance(image, str) for image in images):
        if tuple(images) == (INPUT,):
            return None
        found = pictures(images, labels, written_to)
        if files_only and not found.are_files():
            raise ValueError(
                "photographs that are files of this machine are filed; among "
                f"{printable(' '.join(images))} are others"
            )
        return spread(found, settings.limit)
    if files_only:
        raise ValueError("photographs that are files of this machine are filed, and these are none")
    from vitkit.prediction import as_items  # of arrays and tensors, so it imports PyTorch

    if len(images) == 1:  # of a program: an array, say, or an iterator
        (images,) = images
    return spread(list(as_items(images, labels)), settings.limit)


def answers_of(
    settings: Answering,
    runtime: "Runtime",
    items: "Sequence[Item] | None",
    names: "Iterable[list[str]] | None" = None,
    written_to: Sequence[Path] = (),
) -> "Iterator[Answered]":
    """The answers to the images, in batches; without items to those whose names come, by default
    through the standard input."""
    from vitkit.prediction import answers, from_sequence, from_stream, names_from

    batch = batch_for(runtime)
    if items is not None:
        batches = from_sequence(items, runtime.preprocessing, batch, settings.workers)
    else:
        if names is None:
            names = names_from(sys.stdin.fileno(), batch)
        coming = _items_of(names, batch, settings.limit, written_to)
        batches = from_stream(coming, runtime.preprocessing, settings.workers)
    return answers(runtime, batches, settings.top)


def batch_for(runtime: "Runtime") -> int:
    """Images that are computed together."""
    from vitkit.prediction import BATCH

    if takes_pictures(runtime):
        return 1
    return BATCH


def _items_of(
    names: "Iterable[list[str]]", batch: int, limit: int, written_to: Sequence[Path]
) -> "Iterator[list[Item]]":
    """The images of names that come, in lists, some of them empty; the name of a folder is that of
    many."""
    from vitkit.prediction import items_of

    count = 0
    for some in names:
        items = chain.from_iterable(items_of(name, written_to) for name in some)
        chunk = []
        for item in items:
            chunk.append(item)
            count += 1
            if len(chunk) == batch or count == limit:
                yield chunk
                chunk = []
            if count == limit:
                return
        yield chunk
