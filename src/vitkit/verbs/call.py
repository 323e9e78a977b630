"""The arguments of a call, as the settings of a verb: positions, names, types and choices."""

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from vitkit.system.functions.values import read_value
from vitkit.verbs.made_model import unwrapped
from vitkit.verbs.settings import MISSING, bare, default_of, is_word, mark, options

IN_PYTHON = {
    "model": "str | Path | Classifier | MadeModel",
    "one": "str | Path | Classifier | MadeModel",
    "two": "str | Path | Classifier | MadeModel",
    "images": "str | Path | bytes | Image | ndarray | Tensor | Iterable",
}
"""What words such as MODEL may be besides names."""

Begin = Callable[[Any, frozenset[str]], Any]
"""(what decides the other defaults, the names of all settings that were given) -> all settings"""


def parameters(kind: type) -> Iterator[inspect.Parameter]:
    """The arguments of a verb with these settings; those of a part without a name stand beside the
    others."""
    words = {field.name for field in _words(kind)}
    types = get_type_hints(kind)
    unnamed = _unnamed_parts(kind)
    for field in dataclasses.fields(kind):
        default = default_of(field, None)
        if field.name in unnamed and default is not MISSING:
            yield from parameters(types[field.name])
            continue
        how = inspect.Parameter.KEYWORD_ONLY
        if field.name in words:
            how = inspect.Parameter.POSITIONAL_OR_KEYWORD
        if default is MISSING:
            default = inspect.Parameter.empty
        annotation = IN_PYTHON.get(field.name, types[field.name])
        yield inspect.Parameter(field.name, how, default=default, annotation=annotation)


def settings_from(
    kind: type,
    name: str,
    words: Sequence[Any],
    values: dict[str, Any],
    begin: "Begin | None" = None,
) -> Any:
    """The settings of a verb from the arguments of a call.

    The settings of a part without a name of its own (Hints) stand beside the others; those of a part
    with a name follow it after two underscores, as in optim__lr. Raises TypeError, with the nearest
    name, for an argument that does not exist.
    """
    first = get_type_hints(begin)["first"] if begin else kind
    given = _with_words(first, name, words, values)

    # What decides the other defaults
    own = {field.name for field in dataclasses.fields(first)}
    parts = {}
    for argument in list(given):
        if argument not in own and not (begin and _is_of(first, argument)):
            parts[argument] = given.pop(argument)
    settings = _made(first, name, given)
    if begin:
        settings = begin(settings, frozenset(_dotted(each) for each in (*given, *parts)))

    # The others
    for argument, value in parts.items():
        try:
            settings = _changed(settings, _dotted(argument), value)
        except KeyError:
            raise TypeError(_no_such_argument(name, argument, kind, own)) from None
    return settings


def _no_such_argument(name: str, argument: str, kind: type, own: set[str]) -> str:
    """A sentence that a verb has no such argument, with the nearest one that it has."""
    called = {}
    for option in options(kind):
        called[option.argument] = option.argument
        called[option.name.replace(".", "__").replace("-", "_")] = option.argument
    called |= {each: each for each in own}
    near = get_close_matches(argument, called, 1)
    question = f"; did you mean {called[near[0]]}?" if near else ""
    return f"vitkit.{name} has no setting {argument!r}{question}"


def _with_words(
    kind: type, name: str, words: Sequence[Any], values: dict[str, Any]
) -> dict[str, Any]:
    """The values, with those that were given by position: for what was not given by name. Raises
    TypeError for too many."""
    given = dict(values)
    positional = [field.name for field in _words(kind) if field.name not in given]
    variadic = positional and _is_variadic(kind, positional[-1])
    if variadic and len(words) >= len(positional):
        last = len(positional) - 1
        words = [*words[:last], _joined(words[last:])]
    if len(words) > len(positional):
        raise TypeError(
            f"vitkit.{name} takes {' and '.join(positional) or 'nothing'} by position; the other "
            "settings by name"
        )
    given |= dict(zip(positional, words, strict=False))
    return {name: unwrapped(value) for name, value in given.items()}


def _made(kind: type, name: str, given: dict[str, Any]) -> Any:
    """Settings of these values, and the defaults of the others. Raises TypeError if one is missing."""
    types = get_type_hints(kind)
    extras = get_type_hints(kind, include_extras=True)
    words = {each for each in types if is_word(extras[each])}
    own = {}
    parts = {}
    for argument, value in given.items():
        if argument in words and value is None:
            raise TypeError(f"vitkit.{name} needs {argument}, which is None")
        if argument in words:
            own[argument] = _as_word(argument, types[argument], value)
        elif argument in types:
            own[argument] = read_value(argument, types[argument], value)
        else:
            parts[argument] = value
    missing = [
        field.name
        for field in dataclasses.fields(kind)
        if field.name not in own and default_of(field, None) is MISSING
    ]
    if missing:
        raise TypeError(f"vitkit.{name} needs {' and '.join(missing)}")
    settings = kind(**own)
    for argument, value in parts.items():
        settings = _changed(settings, _dotted(argument), value)
    return settings


def _dotted(argument: str) -> str:
    """optim__lr -> optim.lr"""
    return argument.replace("__", ".")


def _is_of(kind: type, argument: str) -> bool:
    """Whether an argument is a setting of this class, or of a part of it without a name."""
    head, _, rest = argument.partition("__")
    types = get_type_hints(kind)
    if head in types and (not rest or dataclasses.is_dataclass(types[head])):
        return True
    return any(_is_of(types[part], head) for part in _unnamed_parts(kind))


def _changed(settings: Any, name: str, value: Any, part: str = "") -> Any:
    """Settings with another value of one of them, such as "workdir" or "optim.lr". Raises KeyError
    for a name that does not exist. `part` is what the arguments of a part begin with."""
    head, _, rest = name.partition(".")
    kind = type(settings)
    types = get_type_hints(kind)
    if head not in types or (rest and not dataclasses.is_dataclass(getattr(settings, head))):
        for unnamed in _unnamed_parts(kind):
            if _is_of(types[unnamed], head):
                change = {unnamed: _changed(getattr(settings, unnamed), name, value, part)}
                return dataclasses.replace(settings, **change)
        raise KeyError(name)
    if not rest:
        return dataclasses.replace(
            settings, **{head: read_value(f"{part}{head}", types[head], value)}
        )
    inner = getattr(settings, head)
    if not dataclasses.is_dataclass(inner):
        raise KeyError(name)
    return dataclasses.replace(settings, **{head: _changed(inner, rest, value, f"{part}{head}__")})


def _as_word(name: str, annotation: Any, value: Any) -> Any:
    """A word such as MODEL or IMAGE, which may be an object of the program too; a path as others."""
    if Path in {annotation, *get_args(annotation)}:
        return read_value(name, annotation, value)
    if isinstance(value, list):
        return tuple(value)
    if get_origin(annotation) is tuple and not isinstance(value, tuple):
        return (value,)
    if isinstance(value, Path):
        return str(value)
    return value


def _joined(words: Sequence[Any]) -> tuple:
    """Words of which there may be any number, whether given one by one or as one list."""
    if len(words) == 1 and isinstance(words[0], list | tuple):
        return tuple(words[0])
    return tuple(words)


def _words(kind: type) -> Iterator[dataclasses.Field]:
    """The fields that may be given by position: words, and what has no default."""
    types = get_type_hints(kind, include_extras=True)
    for field in dataclasses.fields(kind):
        if is_word(types[field.name]) or default_of(field, None) is MISSING:
            yield field


def _is_variadic(kind: type, name: str) -> bool:
    """Whether a field takes any number of words."""
    annotation = bare(get_type_hints(kind, include_extras=True)[name])
    return getattr(annotation, "__origin__", None) is tuple


def _unnamed_parts(kind: type) -> list[str]:
    """The fields that are parts whose settings stand beside the others, as on the command line."""
    types = get_type_hints(kind, include_extras=True)
    names = []
    for field in dataclasses.fields(kind):
        annotation = types[field.name]
        if mark(annotation, "name") == "" and dataclasses.is_dataclass(bare(annotation)):
            names.append(field.name)
    return names
