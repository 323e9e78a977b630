"""Work that one rank does for all, in no order that they have to agree on: whoever is first claims it,
and the others take what it gives. So it also goes well where some of the ranks do not need it.

It goes through the store by which ranks have met. Alone, a process has nobody to share with.
"""

import math
import time
from contextlib import suppress

from vitkit.system.processes.watchdog import watchdog

FAILED = -1  # in place of the number of pieces
PIECE = 1 << 20  # bytes of a value; the store takes no more than 8 MB at once
FIRST_LOOK = 0.02  # seconds before the second look for a result; then twice as long each time,
LAST_LOOK = 1.0  # up to this


def ranks_sharing() -> int:
    """The number of processes that may share work."""
    if watchdog.store is None:
        return 1
    return watchdog.world_size


def claim(key: str) -> bool:
    """Whether this process is the first to claim a piece of work, or nobody can be asked. It has to
    `give` the result then."""
    store = watchdog.store
    if store is None:
        return True
    try:
        return store.add(f"claimed/{key}", 1) == 1
    except RuntimeError:  # the store is gone with the process that held it
        return True


def give(key: str, data: bytes | None) -> None:
    """Hand the result of claimed work to the others; None if it failed."""
    count = FAILED
    store = watchdog.common_store
    with suppress(RuntimeError):  # the others notice that the store is gone, too
        if data is not None:
            count = math.ceil(len(data) / PIECE)
            for number in range(count):
                piece = data[number * PIECE : (number + 1) * PIECE]
                # Bytes too, which the stub does not say
                store.set(f"given/{key}/{number}", piece)  # type: ignore[arg-type]
        store.set(f"given/{key}", str(count))


def take(key: str, since: float) -> bytes | None:
    """The result of work that another process has claimed, once it is there. None if it failed, if
    nobody can be asked, or if nothing came for as long as ranks wait for each other.

    since: when this process began to wait, or something came last (time.monotonic). A rank that hangs
    may have claimed much, and is waited for once.
    """
    store = watchdog.store
    if store is None:
        return None
    deadline = since + watchdog.patience
    pause = FIRST_LOOK
    try:
        while not store.check([f"given/{key}"]):
            if time.monotonic() > deadline:
                return None
            time.sleep(pause)
            pause = min(2 * pause, LAST_LOOK)
        count = int(store.get(f"given/{key}"))
        if count == FAILED:
            return None
        pieces = [store.get(f"given/{key}/{number}") for number in range(count)]
    except RuntimeError:
        return None
    return b"".join(pieces)
