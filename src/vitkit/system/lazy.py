"""Public names of a room that are imported when they are first used.

So `import vitkit` takes no time, and what reads an image does not wait for what trains a model. No
public name may be that of a file of its room: Python would put the file in its place.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazily(room: str, file_of: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a room: from a public name to what the file has, "vitkit.ROOM.FILE", that
    defines it."""

    def read(name: str) -> Any:
        if name not in file_of:
            raise AttributeError(f"module {room!r} has no attribute {name!r}")
        return getattr(import_module(f"{room}.{file_of[name]}"), name)

    return read
