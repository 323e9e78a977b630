"""Parsing of a command's settings from its words with tyro, after checks that give better messages.

tyro makes options and help from any dataclass. It is extended by rules for Span values, for
optional values, and for docstrings, whose line breaks come from the source and must not appear in
the help.
"""

import dataclasses
import inspect
import io
import re
import string
from collections.abc import Iterable, Mapping, Sequence
from contextlib import redirect_stderr
from difflib import get_close_matches
from functools import partial
from itertools import takewhile
from textwrap import indent
from types import GenericAlias, NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import tyro
from tyro.constructors import (
    ConstructorRegistry,
    PrimitiveConstructorSpec,
    PrimitiveTypeInfo,
    StructConstructorSpec,
    StructFieldSpec,
    StructTypeInfo,
)

from vitkit.cli.spelling import as_options
from vitkit.cli.table import NEAR, WrongWords
from vitkit.system.console.text import fill, paragraphs
from vitkit.system.errors import VitkitError
from vitkit.system.functions.parameters import (
    ALIASES,
    MISSING,
    Option,
    Owner,
    Parameter,
    function_option,
    metavar_of,
    options,
    parameters,
)
from vitkit.system.span import Span
from vitkit.system.values import WORDS, alternatives, bare, choices_of

SIZES = ("--image", "--stride")  # options that take one or two numbers


def read_settings(settings: Owner, program: str, words: list[str], default: Any = None) -> Any:
    """The settings of a command, parsed from its words. For --help, prints the help and exits."""
    return _read(settings, program, words, default, all_words=True)


def read_some(
    function: Any, program: str, words: list[str], defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments of a function, parsed from words that may contain unknown options, which are
    ignored. Raises WrongWords for a value that does not fit."""
    _check_values(options(function, defaults), words)
    known, _ = _read(function, program, words, defaults, all_words=False)
    return known


def _read(settings: Owner, program: str, words: list[str], default: Any, all_words: bool) -> Any:
    """The parsed settings; unless all_words, a pair of the settings and the unknown words."""
    registry = ConstructorRegistry()
    registry.primitive_rule(_optional)
    registry.primitive_rule(_span)
    registry.struct_rule(partial(_struct, function=settings, defaults=default))
    complaint = io.StringIO()
    is_class = isinstance(settings, type)
    try:
        with registry, redirect_stderr(complaint):
            return tyro.cli(  # type: ignore[call-overload]  # they want a literal `return_unknown_args`
                settings,
                prog=program,
                description=indent(
                    fill(as_options(paragraphs(purpose_of(settings))), margin=2), "  "
                ),
                args=_sizes_last(words),
                default=tyro.MISSING_NONPROP if default is None or not is_class else default,
                # tyro would make a subcommand of an optional setting such as a hybrid's stem
                config=(tyro.conf.AvoidSubcommands,),
                return_unknown_args=not all_words,
            )
    except SystemExit as end:
        if end.code in (0, None):  # after --help
            raise
        raise WrongWords(_sentence(complaint.getvalue(), program)) from None


def _sentence(complaint: str, program: str) -> str:
    """tyro's error message, which it prints in a frame, as one sentence."""
    lines = []
    for line in complaint.splitlines():
        line = line.strip(f"{string.whitespace}│|")
        if line.startswith("For full helptext"):
            break
        if line and set(line) - set("╭╮╰╯─-+"):
            lines.append(line)
    title, *rest = lines or ["these words cannot be read"]
    text = (" ".join(rest) or title).partition(" Argument helptext:")[0]
    if no_value := re.search(r"Missing value for argument '(--[\w.-]+)'", text):
        return f"{no_value[1]} needs a value; {program} --help says more"
    if inner := re.match(r"Error parsing ([\w.-]+): (.*)", text):
        return f"{_of_part(inner[1], inner[2])}; {program} --help says more"
    match = re.search(r"(--[\w.-]+ ?[A-Z]*) ?(.*)", text)
    if match and "issing" in text:
        what = match[2].removesuffix("(required)").strip(" .")
        return f"{match[1].strip()} is missing: {what[:1].lower()}{what[1:]}; {program} --help says more"
    unknown = text.partition("Unrecognized options: ")[2]
    if unknown:
        return f"{unknown} is one word too many; {program} --help says more"
    return f"{text}; {program} --help says more"


def _of_part(part: str, complaint: str) -> str:
    """The message of a nested dataclass, with its settings as options: "lr is 0" of recipe.optim becomes
    "--optim.lr is 0"."""
    options = part.removeprefix("recipe.").replace("_", "-")
    match = re.match(r"`?([a-z_]+(?:\.[a-z_]+)*)`? is ", complaint)
    if match is None or part == "recipe":
        return complaint
    last = match[1].replace("_", "-").rpartition(".")[2]
    return f"--{options}.{last} is {complaint[match.end() :]}"


def _sizes_last(words: list[str]) -> list[str]:
    """The words with the options of SIZES and their numbers moved to the end. Otherwise tyro would
    take an image's name after them for another number."""
    rest = []
    sizes = []
    in_size = False
    for word in words:
        in_size = word in SIZES or (in_size and word.isdigit())
        if in_size:
            sizes.append(word)
        else:
            rest.append(word)
    return rest + sizes


def _span(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec | None:
    """Parse a Span from one word, as in --length 10epochs, or from "none" if it is optional."""
    if info.type not in (Span, Span | None):
        return None
    optional = info.type is not Span

    def parse(words: list[str]) -> Span | None:
        if optional and words == ["none"]:
            return None
        return Span.parse(words[0])

    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="DURATION",
        instance_from_str=parse,
        is_instance=lambda value: isinstance(value, Span) or (optional and value is None),
        str_from_instance=lambda span: [str(span).replace(" ", "").lower()],
    )


def _optional(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec | None:
    """Parse an optional setting like a required one, with "none" for None."""
    kinds = get_args(info.type)
    if info.type_origin not in (Union, UnionType) or NoneType not in kinds or Span in kinds:
        return None
    others = [kind for kind in kinds if kind is not NoneType]
    one_of: Any = Union[tuple(others)]  # noqa: UP007 of a tuple
    inner = PrimitiveTypeInfo.make(one_of, info.markers)
    spec = ConstructorRegistry.get_primitive_spec(inner)
    if not isinstance(spec, PrimitiveConstructorSpec):
        return None

    def parse(words: list[str]) -> Any:
        if [word.lower() for word in words] == ["none"]:
            return None
        return spec.instance_from_str(words)

    def text(value: Any) -> list[str]:
        if value is None:
            return ["none"]
        return spec.str_from_instance(value)

    choices = spec.choices
    if choices is not None:
        choices = (*choices, "none", "None")
    nargs = spec.nargs
    if isinstance(nargs, int) and nargs != 1:
        nargs = (1, nargs)
    return dataclasses.replace(
        spec,
        nargs=nargs,
        choices=choices,
        instance_from_str=parse,
        is_instance=lambda value: value is None or spec.is_instance(value),
        str_from_instance=text,
    )


def purpose_of(settings: Any) -> str:
    """The docstring of a function or a dataclass, without its sections (Args, Returns, Raises)."""
    text = inspect.getdoc(settings) or ""
    return re.split(r"\n(?=(?:Args|Returns|Raises|Yields|Examples):\n)", text)[0].strip()


def _struct(info: StructTypeInfo, function: Any, defaults: Any) -> StructConstructorSpec | None:
    """A dataclass, or the function of a command, as tyro's structure, with the parameters' texts as
    help, one line per paragraph. A function yields a dict of its arguments."""
    is_function = info.type is function and not isinstance(function, type)
    if not is_function and not dataclasses.is_dataclass(info.type):
        return None
    if is_function:
        each_of = parameters(function, defaults)
        instantiate = dict
    else:
        each_of = parameters(info.type, info.default)
        instantiate = info.type
    specs = [_field_of(each, is_function) for each in each_of]
    return StructConstructorSpec(instantiate=instantiate, fields=tuple(specs))


def _field_of(parameter: Parameter, of_function: bool) -> StructFieldSpec:
    """A parameter as a field of tyro's structure."""
    kind = parameter.annotation
    help_text = parameter.help or None
    if help_text is None and dataclasses.is_dataclass(bare(kind)):
        help_text = paragraphs(bare(kind).__doc__)
    if help_text is not None:
        if of_function:  # nested fields have other names on the command line
            help_text = as_options(help_text)
        help_text = re.sub(
            r"\bNone\b(?! of)", "none", help_text
        )  # the spelling on the command line
    default = parameter.default
    if default is MISSING:
        default = tyro.MISSING_NONPROP
    marks: dict[str, Any] = {"help_behavior_hint": partial(_default_text, help_text)}
    metavar = metavar_of(parameter)
    if of_function:
        kind = _command_line_type(parameter)
        marks["name"] = function_option(parameter)
        marks["aliases"] = ALIASES.get(parameter.name)
        marks["metavar"] = metavar
    is_optional = default is not tyro.MISSING_NONPROP and not parameter.is_variadic
    if parameter.is_positional and metavar and is_optional:
        marks["metavar"] = f"[{metavar}]"
    typed: Any = Annotated[kind, tyro.conf.arg(**marks)]
    if of_function and parameter.is_positional:
        typed = tyro.conf.Positional[typed]  # type: ignore[misc]  # which is a value here
    return StructFieldSpec(name=parameter.name, type=typed, default=default, helptext=help_text)


def _command_line_type(parameter: Parameter) -> Any:
    """The type of a function's parameter on the command line, where the name of an object, such as
    a model, replaces the object."""
    if dataclasses.is_dataclass(parameter.default):
        return type(parameter.default)
    return _with_names(parameter.annotation)


def _with_names(kind: Any) -> Any:
    """A type in which str replaces objects, also inside sequences."""
    kind = bare(kind)
    if kind is Any:
        return str
    if get_origin(kind) is tuple:
        of_each = tuple(each if each is Ellipsis else _with_names(each) for each in get_args(kind))
        return GenericAlias(tuple, of_each)
    return kind


def _default_text(help_text: str | None, default: str) -> str:
    """The text that help appends for a default; "" for an empty default, or if the help text has it."""
    if default in ("", "''", "none") or "Default:" in (help_text or ""):
        return ""
    return f"(default: {default})"


# Checks before tyro: unknown options, and invalid values


def check_options(settings: Owner, default: Any, words: Sequence[str], program: str) -> None:
    """Raises WrongWords, with the nearest name, for an unknown option, and for a value that is not
    a number where the option takes one, or not among its choices."""
    listed = list(options(settings, default))
    _check_values(listed, words)
    names = {"help"}
    owners = set()
    for option in listed:
        if option.is_open:
            owners.add(option.name)
        elif not option.is_word:
            names |= {option.name, *option.aliases}
    for word in words:
        if not word.startswith("--") or len(word) == 2:
            continue
        name = word[2:].partition("=")[0].replace("_", "-")
        positive = name.removeprefix("no-").replace(".no-", ".")
        if positive in names or name in names or any(name.startswith(f"{o}.") for o in owners):
            continue
        sentence = f"{program} has no --{name}"
        near = get_close_matches(name, names, 1, NEAR) or _ending(name, names)
        if near:
            sentence += f"; did you mean {' or '.join(f'--{each}' for each in near)}?"
            raise WrongWords(f"{sentence} --help-all lists all")
        raise WrongWords(f"{sentence}; --help-all lists what it has")


def _check_values(listed: Iterable[Option], words: Sequence[str]) -> None:
    """Raises WrongWords for a listed option without a value, and for a value that does not fit its type."""
    kinds: dict[str, Any] = {}
    for option in listed:
        if not option.is_open and not option.is_word:
            kinds |= dict.fromkeys((option.name, *option.aliases), option.kind)
    for place, word in enumerate(words):
        name, has_value, after = word[2:].partition("=")
        name = name.replace("_", "-")
        if not word.startswith("--") or name not in kinds:
            continue
        kind = kinds[name]
        following = words[place + 1 :]
        if has_value:
            values = [after]
        elif _needs_value(kind, next(iter(following), None)):
            raise WrongWords(f"--{name} needs a value")
        else:
            values = list(takewhile(lambda value: not value.startswith("--"), following))
        for value in values[: _most_values(name, kind)]:
            _check_value(name, kind, value)
        _check_pair(name, kind, following[:2])


def _most_values(name: str, kind: Any) -> int | None:
    """The number of following words that are values of an option; None for all. Of a size only the first one
    surely is."""
    if get_origin(kind) is not tuple or f"--{name}" in SIZES:
        return 1
    if get_args(kind)[-1] is Ellipsis:
        return None
    return len(get_args(kind))


def _check_value(name: str, kind: Any, value: str) -> None:
    """Raises WrongWords if the value of an option does not fit its type: a number, a duration, or one of
    several choices."""
    kinds = set(alternatives(kind))
    if NoneType in kinds and value.lower() == "none":
        return
    kinds -= {NoneType}
    choices = choices_of(kind)
    if choices and all(get_origin(each) is Literal for each in kinds):
        if value not in choices:
            sentence = f"--{name} is {value!r}; it is one of {', '.join(choices)}"
            near = get_close_matches(value, choices, 1, NEAR)
            if near:
                sentence += f"; did you mean {near[0]}?"
            raise WrongWords(sentence)
        return
    if len(kinds) > 1:
        return
    (only,) = kinds
    if only is Span:
        try:
            Span.parse(value)
        except VitkitError:
            raise WrongWords(
                f"--{name} is {value!r}; it takes a duration, such as 500steps, 10epochs or 1e6images"
            ) from None
    if only in (int, float):
        try:
            only(value)
        except ValueError:
            raise WrongWords(f"--{name} is {value!r}; it takes {WORDS[only]}") from None


def _needs_value(kind: Any, following: str | None) -> bool:
    """Whether an option's value is missing: it is the last word, or another option follows."""
    if kind is bool or get_origin(kind) is tuple or kind is Any:
        return False
    return following is None or following.startswith("--")


def _check_pair(name: str, kind: Any, values: Sequence[str]) -> None:
    """Raises WrongWords if an option of two whole numbers, such as a size, does not have two."""
    if get_origin(kind) is not tuple or get_args(kind) != (int, int):
        return
    first, second = [*values, ""][:2]
    if not first.isdigit():
        raise WrongWords(f"--{name} is {first!r}; it takes two whole numbers, as in --{name} 32 32")
    if not second.isdigit():
        raise WrongWords(f"--{name} takes two whole numbers: --{name} {first} {first}")


def _ending(name: str, names: Iterable[str]) -> list[str]:
    """Up to two longer names that end in a name, such as "model.width" for "width"."""
    return sorted(each for each in names if each.endswith(f".{name}"))[:2]
