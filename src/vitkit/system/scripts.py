"""Functions of one's own, by "file.py:function": recipes and data sets."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType


def function_in(where: str) -> Callable | None:
    """The function that "file.py:function" names; the file is run to get it. Returns None for a name of another form.

    Raises ValueError if there is no such file, or no such function in it.
    """
    file, colon, name = where.rpartition(":")
    if not colon or not file.endswith(".py"):
        return None
    if not Path(file).is_file():
        raise ValueError(f"no file {file!r} to take {name!r} from")
    function = getattr(_run(Path(file)), name, None)
    if not callable(function):
        raise ValueError(f"{file!r} has no function {name!r}")
    return function


def _run(path: Path) -> ModuleType:
    """The module of a file, which is run. It has the file's name, by which recipe.json knows its classes."""
    module = ModuleType(path.name)
    module.__file__ = str(path.resolve())
    sys.modules[module.__name__] = module  # where help texts and types of its classes are looked up
    code = compile(path.read_bytes(), module.__file__, "exec")
    exec(code, module.__dict__)
    return module
