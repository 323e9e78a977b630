"""A user's own functions (recipes and data sets), named on the command line as
"file.py:function".

vitkit runs a function only if a person typed its name. Such a name in a file (a run's recipe.json, a suite)
may be from a stranger, whose code must not run on this machine.
"""

import ast
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from vitkit.system.errors import BadSettings


def names_function(where: str) -> bool:
    """Whether a name has the form "file.py:function". Opens no file."""
    file, colon, _ = where.rpartition(":")
    return bool(colon) and file.endswith(".py")


def function_in(where: str, *, typed: bool) -> Callable | None:
    """The function with the name "file.py:function". Runs the file.

    typed: whether a person typed this name in the current command or call.

    Returns None for a name of another form. Raises VitkitError if the file or its function does not exist,
    and for a name that no person typed.
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
    needed = _required_parameters(function)
    if needed:
        raise BadSettings(f"{where} is called without arguments, and it needs {', '.join(needed)}")
    return function


def _required_parameters(function: Callable) -> list[str]:
    """The parameters of a function without a default."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (ValueError, TypeError):  # a function in another language has no signature
        return []
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [
        each.name for each in parameters if each.default is each.empty and each.kind not in variadic
    ]


def functions_of(path: Path) -> list[str]:
    """The public functions of a file, in its order; does not run the file. Raises VitkitError for a file that
    is not Python."""
    try:
        nodes = ast.parse(path.read_bytes()).body
    except SyntaxError as error:
        raise BadSettings(f"{path} is not Python: {error}") from error
    functions = [node.name for node in nodes if isinstance(node, ast.FunctionDef)]
    return [name for name in functions if not name.startswith("_")]


def _run(path: Path) -> ModuleType:
    """Run a file and return it as a module. Raises BadSettings if it is not Python, or if an import fails."""
    # recipe.json names a class of the user by its module, so the module has the file's name
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
