"""Types of arguments that are converted: what a caller may give, and what the function's body gets.

A type checker of a caller's code reads the first form, which is wider. At run time arguments are read as
the second one, and mypy checks vitkit's own code by it (`always_true` in pyproject.toml).
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
"""Whether the types below are the second form for a type checker; True where mypy reads vitkit's own code."""


class Messages(TypedDict, total=False):
    """Where the messages of a call go."""

    quiet: bool
    """Log no messages, and show no progress bars."""
    progress: Listener | None
    """Function that receives each message (str) and each step of a progress bar (Progress), instead of
    the log and the terminal."""


class Default(NamedTuple):
    """The default of a key of a TypedDict: `top: Annotated[int, Default(5)]`."""

    value: Any


class Fields(NamedTuple):
    """The classes whose fields an argument stands for: a Recipe in the place of its name, or what
    `**settings` may be."""

    classes: tuple[type, ...]


def with_defaults(group: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """The values of all keys of a TypedDict that have a default, the given ones and the others."""
    values = {}
    for name, annotation in get_type_hints(group, include_extras=True).items():
        for mark in getattr(annotation, "__metadata__", ()):
            if isinstance(mark, Default):
                values[name] = given.get(name, mark.value)
    return values


if TYPE_CHECKING and not CONVERTED:
    import torch

    PathLike = str | Path
    """A path. The body gets a Path."""
    DataLike = str | Path
    """Images: a path, an address or a name (`DATA` in docs/data.md). The body gets a str."""
    Several: TypeAlias = T | Sequence[T]
    """One value or several. The body gets a tuple."""
    SeveralPaths = str | Path | Sequence[str | Path]
    DeviceLike = str | torch.device
    """A device. The body gets a str, such as "cuda:1"."""
    SpanLike = str | int | Span
    """A duration, such as "10epochs", or a number of steps. The body gets a Span."""
else:
    PathLike = Path
    DataLike = Annotated[str, "DATA"]
    SeveralPaths = tuple[Path, ...]
    DeviceLike = str
    SpanLike = Span
    Several = tuple[T, ...]
