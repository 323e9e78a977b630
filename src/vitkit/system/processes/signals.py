"""Whether vitkit handles signals: it does so in a command, but not in a calling program."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_ours: ContextVar[bool] = ContextVar("signals", default=True)


def signals_are_ours() -> bool:
    """Whether SIGTERM, Ctrl-C, and a scheduler's SIGUSR1 and SIGUSR2 may be handled here, so that a run saves
    itself before it ends. In a call from a program they belong to that program."""
    return _ours.get()


@contextmanager
def leaving_signals(ours: bool = False) -> Iterator[None]:
    """A context in which the calling program handles signals; with `ours`, one in which vitkit does: `with
    leaving_signals(ours=True): vitkit.train(...)` under a scheduler."""
    before = _ours.set(ours)
    try:
        yield
    finally:
        _ours.reset(before)
