"""Whose signals are: those of a command are vitkit's to handle, those of somebody's program are not."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_ours: ContextVar[bool] = ContextVar("signals", default=True)


def signals_are_ours() -> bool:
    """Whether SIGTERM, Ctrl-C, and a scheduler's SIGUSR1 and SIGUSR2 may be handled here: a run then
    saves itself before it ends. In a call from a program they are the calling program's."""
    return _ours.get()


@contextmanager
def leaving_signals(ours: bool = False) -> Iterator[None]:
    """A block in which signals are left to the calling program; with `ours`, in which they are
    handled here after all: `with leaving_signals(ours=True): vitkit.train(...)` under a scheduler."""
    before = _ours.set(ours)
    try:
        yield
    finally:
        _ours.reset(before)
