"""Types of arguments that are converted, with a form for callers and a form for the function's body.

A type checker of a caller's code reads the first form, which is wider. At run time arguments are read as
the second one, and mypy checks vitkit's own code with it (`always_true` in pyproject.toml).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    NamedTuple,
    TypeAlias,
    TypeVar,
    get_type_hints,
)

from typing_extensions import TypedDict

from vitkit.system.console.messages import Listener
from vitkit.system.span import Span

T = TypeVar("T")
CONVERTED: Literal[False] = False
"""Whether a type checker reads the types below in the second form; True for vitkit's own code."""


class Messages(TypedDict, total=False):
    """Destination of the messages of a call."""

    quiet: bool
    """Log no messages, and show no progress bars."""
    progress: Listener | None
    """Function that receives each message (str) and each step of a progress bar (Progress), instead of
    the log and the terminal."""


class Default(NamedTuple):
    """The default of a key of a TypedDict: `top: Annotated[int, Default(5)]`."""

    value: Any


class Fields(NamedTuple):
    """The classes whose fields an argument represents: a Recipe instead of its name, or possible keys of
    `**settings`."""

    classes: tuple[type, ...]


def with_defaults(group: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """The values of all keys of a TypedDict that have a default, from `given` or the default."""
    values = {}
    for name, annotation in get_type_hints(group, include_extras=True).items():
        for mark in getattr(annotation, "__metadata__", ()):
            if isinstance(mark, Default):
                values[name] = given.get(name, mark.value)
    return values


if TYPE_CHECKING and not CONVERTED:
    import torch

    PathLike = str | Path
    """A path. In the function it is a Path."""
    DataLike = str | Path
    """Images: a path, an address or a name (`DATA` in docs/data.md). In the function it is a str."""
    Several: TypeAlias = T | Sequence[T]
    """One value or several. In the function it is a tuple."""
    SeveralPaths = str | Path | Sequence[str | Path]
    DeviceLike = str | torch.device
    """A device. In the function it is a str, such as "cuda:1"."""
    SpanLike = str | int | Span
    """A duration, such as "10epochs", or a number of steps. In the function it is a Span."""
else:
    PathLike = Path
    DataLike = Annotated[str, "DATA"]
    SeveralPaths = tuple[Path, ...]
    DeviceLike = str
    SpanLike = Span
    Several = tuple[T, ...]
