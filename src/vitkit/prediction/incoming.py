"""Names of images that come while others are classified: through a pipe, or as files in a folder.

Both yield lists of names, and an empty one whenever nothing came for a moment: who waits for more
can meanwhile do something else.
"""

import os
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from queue import Empty, Queue

from vitkit.data import find_images
from vitkit.system.console.text import printable

MOMENT = 0.05  # seconds to wait for another name
POLL = 0.5  # seconds between two looks at a folder
REST = 5  # times as long as a look takes, at least, before the next
EMPTY = 5  # seconds after which an empty file is one that stays empty


def names_from(file: int, batch: int) -> Iterator[list[str]]:
    """The lines that come from an open file, by its descriptor, in lists of at most `batch`, as soon
    as they come. Empty lines are left out."""
    lines: Queue[str | None] = Queue(maxsize=100 * batch)  # a million names may wait elsewhere
    threading.Thread(target=_read_lines, args=(file, lines), daemon=True).start()
    ended = False
    while not ended:
        names = []
        until = time.monotonic() + MOMENT
        while len(names) < batch and not ended:
            try:
                name = lines.get(timeout=max(0.001, until - time.monotonic()))
            except Empty:
                break
            ended = name is None
            if name:
                names.append(name)
        yield names


def _read_lines(file: int, lines: "Queue[str | None]") -> None:
    """Put every line into the queue, and None at the end. Without Python's buffers: their lock would
    be held for ever by a thread that waits here when the program ends."""
    rest = b""
    while data := os.read(file, 1 << 16):
        *whole, rest = (rest + data).split(b"\n")
        for line in whole:
            lines.put(os.fsdecode(line.rstrip(b"\r")))
    lines.put(os.fsdecode(rest))
    lines.put(None)


def arrivals(folder: str, batch: int, leave_out: Sequence[Path] = ()) -> Iterator[list[str]]:
    """The images below a folder, those that are there and those that arrive, in lists of at most
    `batch`, without end. What lies in a folder of `leave_out` is left out.

    A file comes when its size and time are the same at two looks, so not while it is written; and
    again when they have changed since. Raises ValueError if the folder cannot be read.
    """
    settled: dict[str, tuple[int, int]] = {}  # by name, the size and time of what came
    seen: dict[str, tuple[int, int]] = {}  # at the last look
    folders = [left_out.resolve() for left_out in leave_out]
    next_look = 0.0
    while True:
        if time.monotonic() < next_look:
            time.sleep(MOMENT)
            yield []
            continue

        # Look
        begun = time.monotonic()
        states = _states(folder, folders)
        ready = []
        for name, state in states.items():
            if seen.get(name) == state != settled.get(name) and not _may_grow(state):
                ready.append(name)
                settled[name] = state
        seen = states
        settled = {name: state for name, state in settled.items() if name in states}
        took = time.monotonic() - begun
        next_look = time.monotonic() + max(POLL, REST * took)

        # Hand over
        for start in range(0, len(ready), batch):
            yield ready[start : start + batch]


def _states(folder: str, leave_out: Sequence[Path]) -> dict[str, tuple[int, int]]:
    """The size and time of every image below a folder, by its name."""
    states = {}
    for name in _images(folder):
        path = Path(folder, name)
        try:
            state = path.stat()
            parent = path.parent.resolve()
        except OSError:
            continue  # it has gone since
        if not any(parent.is_relative_to(left_out) for left_out in leave_out):
            states[str(path)] = (state.st_size, state.st_mtime_ns)
    return states


def _images(folder: str) -> list[str]:
    """The images below a folder. Raises ValueError if it cannot be read, but not for one inside it
    that goes while it is looked at: the next look will tell."""
    try:
        names, _ = find_images(folder)
    except (ValueError, OSError):
        if not Path(folder).is_dir():
            raise ValueError(f"{printable(folder)} is no folder any more") from None
        return []
    return names


def _may_grow(state: tuple[int, int]) -> bool:
    """Whether a file is empty because its writer has not begun."""
    size, changed = state
    return size == 0 and time.time() - changed / 1e9 < EMPTY
