"""Public names of a room that are imported when they are first used.

So `import vitkit` takes no time, and what reads an image does not wait for what trains a model. No
public name may be that of a file of its room: Python would put the file in its place.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazily(
    room: str, files: Mapping[str, str], *imported: str
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """The `__all__`, `__getattr__` and `__dir__` of a room: by file, "vitkit.ROOM.FILE", the public
    names that it defines, with spaces between them; `imported` are those that are already
    imported."""
    file_of = {name: file for file, names in files.items() for name in names.split()}

    def read(name: str) -> Any:
        if name not in file_of:
            raise AttributeError(f"module {room!r} has no attribute {name!r}")
        return getattr(import_module(f"{room}.{file_of[name]}"), name)

    public = sorted([*file_of, *imported])

    def listed() -> list[str]:
        return public

    return public, read, listed
