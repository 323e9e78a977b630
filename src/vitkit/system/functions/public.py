"""The decorator of a function that is also a command.

    @public
    def evaluate(model: ModelLike, data: str, *, batch: int = 64, **overrides: Unpack[Overrides]) -> Evaluation:

The function remains a plain function with its own signature and docstring. The decorator adds common
behaviour: arguments are converted to their types, messages go to a listener, and the calling program's
signal handlers and random number generators do not change.
"""

import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import numpy

from vitkit.system.console.messages import (
    Listener,
    current_callback,
    current_listener,
    followed_by,
    heard_by,
    say,
    to_nobody,
)
from vitkit.system.errors import WrongArgument
from vitkit.system.functions.call import read_arguments, takes_a_recipe
from vitkit.system.functions.values import read_flag
from vitkit.system.processes.signals import leaving_signals
from vitkit.system.storage.addresses import without_credentials

P = ParamSpec("P")
R = TypeVar("R")


def public(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function of the public interface.

    Raises WrongArgument for an argument that does not exist or has another type.
    """

    @wraps(function)
    def called(
        *args: Any, quiet: bool = False, progress: Listener | None = None, **values: Any
    ) -> R:
        if progress is not None and not callable(progress):
            raise WrongArgument(
                f"progress is {progress!r}; it is a function that receives messages"
            )
        quiet = read_flag("quiet", quiet)
        listener = progress or (to_nobody if quiet else current_listener())
        callback = current_callback()
        if takes_a_recipe(function) and callable(values.get("track")):
            callback = values.pop("track")  # the program itself gets the numbers
        with (
            heard_by(listener),
            followed_by(callback),
            leaving_signals(),
            keeping_random_numbers(),
            _without_credentials(),
        ):
            given, named = read_arguments(function, args, values)
            return function(*given, **named)

    return called  # type: ignore[return-value]  # it also accepts the keys of `Messages`


_one_at_a_time = threading.RLock()


def alone(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function so that only one thread of the program runs it at a time: training uses random
    number generators of the whole process, and PyTorch traces one model at a time."""

    @wraps(function)
    def waiting(*args: P.args, **kwargs: P.kwargs) -> R:
        if not _one_at_a_time.acquire(blocking=False):
            say("another thread of this program trains or exports: waiting for it to end")
            _one_at_a_time.acquire()
        try:
            return function(*args, **kwargs)
        finally:
            _one_at_a_time.release()

    return waiting


@contextmanager
def keeping_random_numbers() -> Iterator[None]:
    """A context that does not affect the program's random number generators."""
    of_python = random.getstate()
    of_numpy = numpy.random.get_state()
    of_torch = None
    if "torch" in sys.modules:  # otherwise its state does not matter yet
        of_torch = sys.modules["torch"].get_rng_state()
    try:
        yield
    finally:
        random.setstate(of_python)
        numpy.random.set_state(of_numpy)
        if of_torch is not None:
            sys.modules["torch"].set_rng_state(of_torch)


@contextmanager
def _without_credentials() -> Iterator[None]:
    """A context whose exceptions contain no passwords, because programs may log them."""
    try:
        yield
    except (ValueError, OSError, TypeError) as error:
        if error.args and isinstance(error.args[0], str):
            error.args = (without_credentials(error.args[0]), *error.args[1:])
        raise
