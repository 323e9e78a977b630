"""Words that a command does not have, and values that its options do not take."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from vitkit.commands import WrongWords
from vitkit.verbs import options


def check_options(settings: type, default: Any, words: Sequence[str], program: str) -> None:
    """Raises WrongWords, with the nearest name, for an option that a command does not have, and for a
    value that is no number or none of the choices."""
    names = {"help"}
    kinds = {}
    owners = set()
    for option in options(settings, default):
        if option.is_open:
            owners.add(option.name)
        elif not option.is_word:
            own_names = {option.name, *option.aliases}
            names |= own_names
            kinds |= dict.fromkeys(own_names, option.kind)
    for word, following in zip(words, [*words[1:], None], strict=False):
        if not word.startswith("--") or len(word) == 2:
            continue
        name, has_value, value = word[2:].partition("=")
        name = name.replace("_", "-")
        if not has_value:
            value = following
        if value is not None:
            _check_value(name, kinds.get(name), value)
        positive = name.removeprefix("no-").replace(".no-", ".")
        if positive in names or name in names or any(name.startswith(f"{o}.") for o in owners):
            continue
        sentence = f"{program} has no --{name}"
        near = get_close_matches(name, names, 1) or _ending(name, names)
        if near:
            sentence += f"; did you mean {' or '.join(f'--{each}' for each in near)}?"
            raise WrongWords(f"{sentence} --help-all lists all")
        raise WrongWords(f"{sentence}; --help-all lists what it has")


def _check_value(name: str, kind: Any, value: str) -> None:
    """Raises WrongWords for the value of an option that is no number where its type is one, or none of
    the choices that its type has."""
    kinds = {kind}
    if get_origin(kind) in (Union, UnionType):  # such as a number, or none
        kinds = set(get_args(kind)) - {NoneType}
    if get_origin(kind) is Literal:
        choices = [str(choice) for choice in get_args(kind)]
        if value not in choices:
            raise WrongWords(f"--{name} is {value!r}; it is one of {', '.join(choices)}")
    elif kinds in ({int}, {float}) and value != "None":
        (number,) = kinds
        try:
            number(value)
        except ValueError:
            what = {int: "a whole number", float: "a number"}[number]
            raise WrongWords(f"--{name} is {value!r}; it takes {what}") from None


def _ending(name: str, names: Iterable[str]) -> list[str]:
    """The longer names that end in a name, up to two, such as "model.width" for "width"."""
    return sorted(each for each in names if each.endswith(f".{name}"))[:2]
