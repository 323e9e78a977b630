"""Work that one rank does for all, without an agreed order: the first rank to claim a piece does it, and the
others get its result. So it also works if some ranks do not need a piece.

Ranks exchange results in the store through which they connected. A single process does all work itself.
"""

import math
import time
from contextlib import suppress

from vitkit.system.processes.watchdog import watchdog

FAILED = -1  # instead of the number of pieces
PIECE = 1 << 20  # bytes of a value; the store accepts at most 8 MB at once
FIRST_LOOK = 0.02  # seconds before the second look for a result; each pause is twice as long,
LAST_LOOK = 1.0  # up to this


def ranks_sharing() -> int:
    """The number of processes that may share work."""
    if watchdog.store is None:
        return 1
    return watchdog.world_size


def claim(key: str) -> bool:
    """Claim a piece of work: whether this process is the first to do so, or has no other ranks. It must
    `give` the result then."""
    store = watchdog.store
    if store is None:
        return True
    try:
        return store.add(f"claimed/{key}", 1) == 1
    except RuntimeError:  # the process with the store has ended
        return True


def give(key: str, data: bytes | None) -> None:
    """Give the result of claimed work to the others; None if it failed."""
    count = FAILED
    store = watchdog.common_store
    with suppress(RuntimeError):  # the others notice a missing store too
        if data is not None:
            count = math.ceil(len(data) / PIECE)
            for number in range(count):
                piece = data[number * PIECE : (number + 1) * PIECE]
                # Bytes are allowed, although the stub does not have them
                store.set(f"given/{key}/{number}", piece)  # type: ignore[arg-type]
        store.set(f"given/{key}", str(count))


def take(key: str, since: float) -> bytes | None:
    """Wait for the result of work that another process has claimed. None if it failed, if there are no other
    ranks, or if nothing came for as long as ranks wait for each other.

    since: when this process began to wait, or got its last result (time.monotonic). A rank that hangs may
        have claimed several pieces, but is waited for only once.
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
