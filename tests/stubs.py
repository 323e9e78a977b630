"""What a type checker and an editor know of the doors: `__init__.pyi` beside each `__init__.py`.

    cd tests && python -m stubs

writes them; test_typing.py holds them to the code. A door imports a name when it is first used, which no
type checker can follow, and a verb has the arguments of its settings, which it cannot see either.
"""

import inspect
import sys
import typing
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import vitkit
from vitkit.data import Columns
from vitkit.system.functions.results import Rows
from vitkit.system.span import Span
from vitkit.verbs import Verb, options

ROOT = Path(vitkit.__file__).parent
HEAD = '"""Written by `cd tests && python -m stubs`: for type checkers and editors."""\n\n'

MODEL = "str | Path | Classifier"
IMAGES = "str | Path | bytes | Image | np.ndarray | Tensor | Iterable[Any]"
VERB_IMPORTS = """\
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
import pandas
import torch
from PIL.Image import Image
from torch import Tensor

from vitkit.data import Columns
from vitkit.system.console.messages import Progress
from vitkit.system.span import Span
from vitkit.weights import Classifier
"""


def stubs() -> dict[Path, str]:
    """Every stub, by its path."""
    written = {ROOT / "__init__.pyi": _package()}
    for room in vitkit._ROOMS:
        written[ROOT / room / "__init__.pyi"] = _room(room)
    return written


def _package() -> str:
    """The package: its public names from their rooms, and the rooms themselves."""
    lines = [f"from vitkit import {room} as {room}" for room in vitkit._ROOMS]
    for name, room in vitkit._ROOM_OF.items():
        lines.append(f"from {room} import {name} as {name}")
    return HEAD + "\n".join(sorted(lines)) + "\n\n__version__: str\n"


def _room(room: str) -> str:
    """A door: each public name from the file that has it; a verb as the function that it is."""
    door = getattr(vitkit, room)
    file_of = {name: file for file, names in door._FILES.items() for name in names.split()}
    imports = set()
    verbs = []
    results = set()
    for name in door.__all__:
        value = getattr(door, name)
        if isinstance(value, Verb):
            verbs.append(value)
            results |= set(_classes(inspect.signature(value).return_annotation))
            continue
        if _is_table(value):
            results.add(value)
        elif name in file_of:
            imports.add(_import(f"vitkit.{room}.{file_of[name]}", name))
        else:  # an error of system/
            imports.add(_import(value.__module__, name))
    text = "\n".join(sorted(imports)) + "\n"
    if verbs:
        text = VERB_IMPORTS + text
    tables = sorted((_result(each) for each in results), key=str)
    return HEAD + "\n\n".join([text, *tables, *map(_function, verbs)])


def _import(module: str, name: str) -> str:
    return f"from {module} import {name} as {name}"


def _classes(annotation: Any) -> tuple[type, ...]:
    """The classes of a verb's result: one, or those of a union."""
    return get_args(annotation) or (annotation,)


def _is_table(value: Any) -> bool:
    """Whether `result` has made a table of a class, which no type checker sees."""
    if not isinstance(value, type) or issubclass(value, Rows):
        return False
    return hasattr(value, "to_frame")


# Verbs


def _result(kind: type) -> str:
    """What a verb returns, with the `to_frame` that `result` gives to a table."""
    name = kind.__name__
    if not _is_table(kind):
        return _import(kind.__module__, name) + "\n"
    return (
        f"from {kind.__module__} import {name} as _{name}\n\n"
        f"class {name}(_{name}):\n    def to_frame(self) -> pandas.DataFrame: ...\n"
    )


def _function(verb: Verb) -> str:
    """A verb as a function: words by position, all other settings by name.

    Images, of which there may be any number, are given one by one or as one list by its name: two
    forms of the same function.
    """
    parameters = list(inspect.signature(verb).parameters.values())
    words = [each for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
    others = [_by_name(each) for each in parameters if each.kind is each.KEYWORD_ONLY]
    others += _settings_of_parts(verb)
    by_position = [_word(each) for each in words]
    if not _any_number(verb, words):
        lines = by_position + (["*"] * bool(others)) + others
        return _definition(verb, lines)
    several = f"*{words[-1].name}: {_annotation(words[-1], one=True)}"
    by_list = [*by_position[:-1], "*", _word(words[-1]), *others]
    forms = [_definition(verb, [*by_position[:-1], several, *others]), _definition(verb, by_list)]
    return "\n".join("@overload\n" + form for form in forms)


def _definition(verb: Verb, lines: list[str]) -> str:
    """def NAME(...) -> RESULT, a parameter a line, with what help says first."""
    returned = " | ".join(
        each.__name__ for each in _classes(inspect.signature(verb).return_annotation)
    )
    indented = "".join(f"    {line},\n" for line in lines)
    indented = indented.replace("**settings: Any,", "**settings: Any")
    text = "\n    ".join(inspect.getdoc(verb.run).splitlines()).replace("\n    \n", "\n\n")
    return f'def {verb.__name__}(\n{indented}) -> {returned}:\n    """{text}"""\n'


def _any_number(verb: Verb, words: list[inspect.Parameter]) -> bool:
    """Whether the last word stands for any number of them."""
    if not words:
        return False
    annotation = typing.get_type_hints(verb.first).get(words[-1].name)
    return get_origin(annotation) is tuple


def _settings_of_parts(verb: Verb) -> list[str]:
    """The settings of parts with a name, as columns__label; those of a recipe are any."""
    if verb.begin is not None:
        return ["**settings: Any"]
    lines = []
    for option in options(verb.settings):
        if "__" in option.argument:
            lines.append(f"{option.argument}: {_type(option.kind)} = ...")
    return lines


def _word(parameter: inspect.Parameter) -> str:
    default = ""
    if parameter.default is not parameter.empty:
        default = " = ..."
    return f"{parameter.name}: {_annotation(parameter)}{default}"


def _by_name(parameter: inspect.Parameter) -> str:
    """A setting with its default, where that is a plain value."""
    default = "..."
    if isinstance(parameter.default, bool | int | float | str | NoneType):
        default = repr(parameter.default)
    if parameter.default is parameter.empty:
        return f"{parameter.name}: {_annotation(parameter)}"
    return f"{parameter.name}: {_annotation(parameter)} = {default}"


def _annotation(parameter: inspect.Parameter, one: bool = False) -> str:
    """The type of an argument; with `one`, of one among several."""
    annotation = parameter.annotation
    name = parameter.name
    if name == "quiet":
        return "bool"
    if name == "progress":
        return "Callable[[str | Progress], Any] | None"
    if isinstance(annotation, str):  # a word that may be an object of the program
        return {"images": IMAGES}.get(name, MODEL)
    if name == "device":
        return "str | torch.device"
    if one:
        return _type(get_args(annotation)[0])
    if parameter.kind is parameter.POSITIONAL_OR_KEYWORD and annotation is str:
        return "str | Path"
    return _type(annotation)


def _type(annotation: Any) -> str:
    """A type as a call may give it: a string for a path or a span, a list for a tuple, or one value
    where there may be several."""
    origin = get_origin(annotation)
    inner = get_args(annotation)
    if origin in (Union, UnionType):
        kinds = " | ".join(map(_type, inner)).split(" | ")
        return " | ".join(dict.fromkeys(kinds))
    if origin is Literal:
        return f"Literal[{', '.join(map(repr, inner))}]"
    if origin is tuple and inner[-1] is Ellipsis:
        each = _type(inner[0])
        return f"{each} | Sequence[{each}]"
    if origin is tuple:
        return f"tuple[{', '.join(map(_type, inner))}]"
    if annotation is NoneType:
        return "None"
    if annotation is Path:
        return "str | Path"
    if annotation is Span:
        return "str | Span"
    if annotation in (bool, int, float, str, Columns):
        return annotation.__name__
    return "Any"


if __name__ == "__main__":
    for path, text in stubs().items():
        path.write_text(text)
    sys.stdout.write(f"wrote {len(stubs())} stubs\n")
