"""What to do next, in a message: a call of a function in a program, a command in a terminal.

    f"next: {step('predict', model, IMAGES, top=3)}"

is `next: vitkit.predict('runs/a', images, top=3)`, and in a terminal `next: vitkit predict runs/a IMAGE...
--top 3`, because the command line sets how calls are written.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any


class Placeholder(str):
    """An argument that a user has to fill in, by its name in Python."""

    __slots__ = ()


IMAGES = Placeholder("images")
DATA = Placeholder("data")
MODEL = Placeholder("model")
RECIPE = Placeholder("recipe")
DIRECTORY = Placeholder("directory")
FILE = Placeholder("file")

Spelling = Callable[[str, tuple, dict[str, Any]], str]


def as_call(name: str, args: tuple, settings: dict[str, Any]) -> str:
    """A call of a public function as Python code."""
    written = [_code(each) for each in args]
    written += [f"{setting}={_code(value)}" for setting, value in settings.items()]
    return f"vitkit.{name}({', '.join(written)})"


_spelling: ContextVar[Spelling] = ContextVar("step", default=as_call)


def step(name: str, *args: Any, **settings: Any) -> str:
    """A call of a public function as the user of this program writes it. An object that has no short
    form, such as a model in memory, is a placeholder."""
    return _spelling.get()(name, args, settings)


@contextmanager
def steps_as(spelling: Spelling) -> Iterator[None]:
    """A block in which `step` writes calls another way."""
    before = _spelling.set(spelling)
    try:
        yield
    finally:
        _spelling.reset(before)


def _code(value: Any) -> str:
    """An argument as Python code."""
    if isinstance(value, Placeholder):
        return str(value)
    if isinstance(value, Path):
        return repr(str(value))
    if isinstance(value, str | int | float | tuple | list | None):
        return repr(value)
    return str(MODEL)
