"""The next step, in a message: a call of a function in a program, a command in a terminal.

    f"next: {step('predict', model, IMAGES, top=3)}"

is `next: vitkit.predict('runs/a', images, top=3)`, and in a terminal `next: vitkit predict runs/a IMAGE...
--top 3`, because the command line sets how calls are written.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import MISSING, fields, is_dataclass
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
    """A call of a public function in the form for this program's user. An object without a short form, such as
    a model in memory, becomes a placeholder; a setting that is None, False or empty, or a dataclass of defaults,
    is left out."""
    given = {}
    for setting, value in settings.items():
        is_left_out = value is None or value is False or value == "" or value == ()
        is_default = is_settings(value) and not changed_fields(value)
        if not is_left_out and not is_default:
            given[setting] = value
    return _spelling.get()(name, args, given)


def in_a_program() -> bool:
    """Whether calls are written as Python code, not as commands."""
    return _spelling.get() is as_call


@contextmanager
def steps_as(spelling: Spelling) -> Iterator[None]:
    """A context in which `step` writes calls in another form."""
    before = _spelling.set(spelling)
    try:
        yield
    finally:
        _spelling.reset(before)


def is_settings(value: Any) -> bool:
    """Whether a value is a dataclass of settings with defaults, such as Columns."""
    if not is_dataclass(value) or isinstance(value, type):
        return False
    return all(
        field.default is not MISSING or field.default_factory is not MISSING
        for field in fields(value)
    )


def changed_fields(value: Any) -> dict[str, Any]:
    """The fields of a dataclass whose values differ from the defaults."""
    defaults = type(value)()
    changed = {}
    for field in fields(value):
        own = getattr(value, field.name)
        if own != getattr(defaults, field.name):
            changed[field.name] = own
    return changed


def _code(value: Any) -> str:
    """An argument as Python code."""
    if isinstance(value, Placeholder):
        return str(value)
    if isinstance(value, Path):
        return repr(str(value))
    if isinstance(value, str | int | float | tuple | list | None):
        return repr(value)
    if is_settings(value):
        package = ".".join(type(value).__module__.split(".")[:2])
        inner = ", ".join(f"{name}={_code(each)}" for name, each in changed_fields(value).items())
        return f"{package}.{type(value).__name__}({inner})"
    return str(MODEL)
