"""A user's own functions (recipes and data sets), named on the command line as
"file.py:function".

Only a name that a person typed is run. Such a name in a file (a run's recipe.json, a suite) may be a
stranger's, who would run code on this machine by it.
"""

import ast
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from vitkit.system.errors import BadSettings


def names_function(where: str) -> bool:
    """Whether a name has the form "file.py:function". Nothing is opened."""
    file, colon, _ = where.rpartition(":")
    return bool(colon) and file.endswith(".py")


def function_in(where: str, *, typed: bool) -> Callable | None:
    """The function that "file.py:function" names. The file is run to get it.

    typed: whether a person typed this name in the command or call that is running.

    Returns None for a name of another form. Raises VitkitError if there is no such file, or no such
    function in it, and for a name that no person typed.
    """
    if not names_function(where):
        return None
    if not typed:
        raise BadSettings(
            f"{where} is a function in Python whose name stands in a file and was not typed. "
            "vitkit runs no code that a file names; if you trust it, type the name yourself as DATA"
        )
    file, _, name = where.rpartition(":")
    if not Path(file).is_file():
        raise BadSettings(f"no file {file!r} to take {name!r} from")
    function = getattr(_run(Path(file)), name, None)
    if not callable(function):
        raise BadSettings(f"{file!r} has no function {name!r}")
    needed = _needed(function)
    if needed:
        raise BadSettings(f"{where} is called without arguments, and it needs {', '.join(needed)}")
    return function


def _needed(function: Callable) -> list[str]:
    """The parameters of a function that have no default."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (ValueError, TypeError):  # one that is not written in Python does not say
        return []
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [
        each.name for each in parameters if each.default is each.empty and each.kind not in variadic
    ]


def functions_of(path: Path) -> list[str]:
    """The functions that a file defines and does not keep to itself, in its order; the file is not
    run. Raises VitkitError for a file that is not Python."""
    try:
        nodes = ast.parse(path.read_bytes()).body
    except SyntaxError as error:
        raise BadSettings(f"{path} is not Python: {error}") from error
    functions = [node.name for node in nodes if isinstance(node, ast.FunctionDef)]
    return [name for name in functions if not name.startswith("_")]


def _run(path: Path) -> ModuleType:
    """Run a file; returns it as a module. Raises BadSettings if it is not Python, or imports what does
    not exist."""
    # recipe.json names a class of the user's by its module, so that has the file's name
    module = ModuleType(path.name)
    module.__file__ = str(path.resolve())
    # typing and inspect look up the types and help texts of a class in its registered module
    sys.modules[module.__name__] = module
    try:
        code = compile(path.read_bytes(), module.__file__, "exec")
    except SyntaxError as error:
        raise BadSettings(f"{path}, line {error.lineno}, is not Python: {error.msg}") from error
    try:
        exec(code, module.__dict__)
    except ImportError as error:
        where = ""
        if (error.name or "").startswith("vitkit."):
            where = "; docs/python.md says in which package each of vitkit's names is"
        raise BadSettings(f"{path} imports what does not exist: {error}{where}") from error
    return module
