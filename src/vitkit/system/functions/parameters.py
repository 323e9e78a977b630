"""The parameters of a function, or the fields of a dataclass, for the command line and the reference: names,
types, defaults and texts, all from the signature and the docstring.
"""

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from types import GenericAlias
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

from typing_extensions import get_original_bases, is_typeddict

from vitkit.system.console.text import paragraphs
from vitkit.system.functions.types import Default, Fields, Messages
from vitkit.system.values import bare

MISSING = dataclasses.MISSING
NAMES = {
    "named": "as",
    "class_name": "class",
    "purpose": "for",
    "evaluators": "evals",
    "columns": "data.columns",
    "data__exclude": "data.exclude",
    "named_model": "model",
}
"""Names of options that differ from their parameters; the first ones are keywords of Python."""
ALIASES = {"output": ("-o",), "verbose": ("-v",)}
"""Short names of options, by parameter."""
READ = object()
"""Marks an argument that has been read already, so that it is not an option."""
Owner = type | Callable[..., Any]
"""A function, a dataclass, or a TypedDict."""


class Parameter(NamedTuple):
    """A parameter of a function, or a field of a dataclass."""

    name: str
    annotation: Any
    """The type of the parameter, with the annotations for the command line."""
    default: Any
    """The default; MISSING if there is none."""
    help: str
    """The description in the docstring, each paragraph on one line."""
    is_positional: bool = False
    """Whether the parameter can be positional; the command line reads it from a word without a name."""
    is_variadic: bool = False
    """Whether the parameter accepts any number of positional values."""


class Option(NamedTuple):
    """A setting that has a name on the command line."""

    name: str
    """The name without its dashes, such as "optim.lr"; the field for a word without a name, such as
    MODEL."""
    value: Any
    """The default of the setting; MISSING if there is none."""
    help: str
    """The description of the setting, each paragraph on one line."""
    aliases: tuple[str, ...] = ()
    """Other names of the option, without their dashes."""
    is_word: bool = False
    """Whether the value is written without a name, as MODEL and DATA are."""
    is_open: bool = False
    """Whether the option represents settings that depend on its value, such as those of a model."""
    kind: Any = None
    """The type of the value."""
    metavar: str = ""
    """The name of the value in usage messages; empty for the name in capitals."""
    argument: str = ""
    """The name of the argument in a function call, such as "optim__lr"."""
    of_function: bool = False
    """Whether the option is a parameter of the function, not a field of a part."""


def parameters(owner: Owner, defaults: Any = None) -> Iterator[Parameter]:
    """Yield every parameter, in order; for `**overrides: Unpack[Overrides]` the fields of Overrides.

    Args:
        owner: A function, a dataclass or a TypedDict.
        defaults: Other defaults: an instance of the dataclass, or a mapping for a function, in which
            READ marks parameters to leave out.
    """
    if dataclasses.is_dataclass(owner):
        yield from _fields(owner, defaults)
    elif isinstance(owner, type) and is_typeddict(owner):
        yield from _keys(owner)
    else:
        yield from _function_parameters(owner, defaults or {})


def _function_parameters(function: Callable, defaults: Mapping[str, Any]) -> Iterator[Parameter]:
    """The parameters of a function."""
    types = types_of(function)
    texts = docstrings(function)
    for name, each in inspect.signature(function).parameters.items():
        if each.kind is inspect.Parameter.VAR_KEYWORD:
            for group in groups_of(types[name]):
                yield from _keys(group)
            continue
        if defaults.get(name) is READ:
            continue
        annotation: Any = types[name]
        is_variadic = each.kind is inspect.Parameter.VAR_POSITIONAL
        default = defaults.get(name, each.default)
        if default is inspect.Parameter.empty:
            default = MISSING
        if is_variadic:
            annotation = GenericAlias(tuple, (annotation, ...))
            default = ()
        is_positional = each.kind is not inspect.Parameter.KEYWORD_ONLY
        if dataclasses.is_dataclass(default):  # for example a recipe instead of its name
            is_positional = False
        kinds = fields_of(annotation)  # for a recipe, whose settings are options
        if is_positional or dataclasses.is_dataclass(default) or not kinds:
            text = texts.get(name, "")
            yield Parameter(name, annotation, default, text, is_positional, is_variadic)
        if not dataclasses.is_dataclass(default):
            for kind in kinds:
                yield Parameter(name, kind, MISSING, "")


def _keys(group: Owner) -> Iterator[Parameter]:
    """The keys of a TypedDict, all of them optional, except those of Messages, which are only for
    programs."""
    types = get_type_hints(group, include_extras=True)
    texts = docstrings(group)
    for name, annotation in types.items():
        if name in Messages.__annotations__:
            continue
        default = None
        if type(None) not in get_args(bare(annotation)):
            default = ()
        for each in getattr(annotation, "__metadata__", ()):
            if isinstance(each, Default):
                default = each.value
        yield Parameter(name, annotation, default, texts.get(name, ""))


def _fields(owner: type, defaults: Any) -> Iterator[Parameter]:
    """The fields of a dataclass."""
    types = types_of(owner)
    texts = docstrings(owner)
    for field in dataclasses.fields(owner):
        default = default_of(field, defaults)
        yield Parameter(field.name, types[field.name], default, texts.get(field.name, ""))


def options(
    owner: Owner, defaults: Any = None, prefix: str = "", part: str = ""
) -> Iterator[Option]:
    """Yield every option of a function or a dataclass, including those of its parts. `prefix` and `part` are
    the beginnings of the names of options and of arguments."""
    for each in parameters(owner, defaults):
        kind: Any = bare(each.annotation)
        name = each.name.replace("_", "-")
        aliases = _aliases_of(each.annotation)
        if not isinstance(owner, type):
            name = function_option(each)
            aliases = ALIASES.get(each.name, ())
        if dataclasses.is_dataclass(each.default):
            kind = type(each.default)
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            inner = None if each.default is MISSING else each.default
            if name:
                yield from options(kind, inner, f"{prefix}{name}.", f"{part}{each.name}__")
            else:  # its settings are listed with the others
                yield from options(kind, inner, prefix, part)
            continue
        yield Option(
            f"{prefix}{name}",
            each.default,
            each.help,
            aliases=tuple(name.lstrip("-") for name in aliases),
            is_word=each.is_positional,
            is_open=_has_settings(kind),
            kind=kind,
            metavar=metavar_of(each) or "",
            argument=f"{part}{each.name}",
            of_function=not isinstance(owner, type),
        )


def groups_of(annotation: Any) -> tuple[type, ...]:
    """The TypedDicts of `**name: Unpack[Overrides]`, or of an annotation with Fields."""
    return tuple(filter(is_typeddict, (*get_args(annotation), *fields_of(annotation))))


def fields_of(annotation: Any) -> tuple[type, ...]:
    """The classes that Fields names in an annotation."""
    for inner in (annotation, *get_args(annotation)):  # also for an optional type
        for each in getattr(inner, "__metadata__", ()):
            if isinstance(each, Fields):
                return each.classes
    return ()


def function_option(parameter: Parameter) -> str:
    """The option's name for a function's parameter; "" for a value whose fields are options themselves, such
    as a recipe."""
    is_part = dataclasses.is_dataclass(parameter.default) or dataclasses.is_dataclass(
        parameter.annotation
    )
    if is_part and parameter.name not in NAMES:
        return ""
    return NAMES.get(parameter.name, parameter.name.replace("_", "-"))


def metavar_of(parameter: Parameter) -> str | None:
    """The name of the value in usage messages, such as MODEL; None if its type does not define one. For a
    value without a name it is the name of the parameter."""
    if parameter.is_variadic:
        return f"{parameter.name.removesuffix('s').upper()}..."
    metavar = None
    kind = parameter.annotation
    is_tuple = get_origin(kind) is tuple
    for inner in (kind, *get_args(kind)):  # also for tuples and optional types
        for each in getattr(inner, "__metadata__", ()):
            if isinstance(each, str):
                metavar = f"{each}..." if is_tuple else each
    if metavar is None and parameter.is_positional:
        return parameter.name.upper()
    return metavar


def default_of(field: dataclasses.Field, owner: Any) -> Any:
    """The default of a field: its value in the dataclass `owner`, if that is an instance, or the field's
    own; MISSING if there is none."""
    if dataclasses.is_dataclass(owner):
        return getattr(owner, field.name)
    if field.default is not MISSING:
        return field.default
    if field.default_factory is not MISSING:
        return field.default_factory()
    return MISSING


def types_of(owner: Owner) -> dict[str, Any]:
    """The types of the parameters, by name, with the annotations for the command line."""
    return get_type_hints(inspect.unwrap(owner), include_extras=True)


@cache
def docstrings(owner: Owner) -> dict[str, str]:
    """The texts of the parameters, by name, including those of a class's bases."""
    import docstring_parser

    texts = {}
    if not isinstance(owner, type):
        for each in docstring_parser.parse(inspect.getdoc(owner) or "").params:
            texts[each.arg_name.lstrip("*")] = paragraphs(each.description or "")
        return texts
    assert isinstance(owner, type)
    bases: list[Any]
    if is_typeddict(owner):
        bases = [base for base in (*get_original_bases(owner), owner) if is_typeddict(base)]
    else:
        bases = [base for base in reversed(owner.__mro__) if dataclasses.is_dataclass(base)]
    for base in bases:
        if is_typeddict(base) and base is not owner:
            texts |= docstrings(base)
            continue
        for field in docstring_parser.parse_from_object(base).params:
            texts[field.arg_name] = paragraphs(field.description or "")
    return texts


def _aliases_of(annotation: Any) -> tuple[str, ...]:
    """The short names from tyro's `arg` in the annotation of a field."""
    for each in getattr(annotation, "__metadata__", ()):
        aliases = getattr(each, "aliases", None)
        if aliases:
            return tuple(aliases)
    return ()


def _has_settings(kind: Any) -> bool:
    """Whether a value of this type is a part with its own settings, or several: a union or a tuple of
    dataclasses, or a protocol."""
    if getattr(kind, "_is_protocol", False):
        return True
    return any(dataclasses.is_dataclass(each) or _has_settings(each) for each in get_args(kind))
