"""Functions of one's own, by "file.py:function": recipes and data sets."""

import runpy
from collections.abc import Callable
from pathlib import Path


def function_in(where: str) -> Callable | None:
    """The function that "file.py:function" names; the file is run to get it. Returns None for a name of another form.

    Raises ValueError if there is no such file, or no such function in it.
    """
    file, colon, name = where.rpartition(":")
    if not colon or not file.endswith(".py"):
        return None
    if not Path(file).is_file():
        raise ValueError(f"no file {file!r} to take {name!r} from")
    function = runpy.run_path(file).get(name)
    if not callable(function):
        raise ValueError(f"{file!r} has no function {name!r}")
    return function
