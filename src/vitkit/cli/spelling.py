"""Spelling of settings in messages for the command line: `heads=12` becomes --heads 12.

Messages of vitkit name settings and arguments in backquotes, spelt as in Python. Only the command
line knows that they are options.
"""

import re
from ast import literal_eval
from pathlib import Path
from typing import Any

from vitkit.system.console.text import as_word
from vitkit.system.functions.parameters import ALIASES, NAMES
from vitkit.system.functions.steps import Placeholder, changed_fields, is_settings

SETTING = re.compile(r"`([a-z_]\w*(?:\.\w+)*)(?:=([^`]+))?`")
"""Matches a setting in a message, with its value if it has one."""
FUNCTION = re.compile(r"`vitkit\.(\w+)`")
"""Matches a public function in a message."""
COMMAND_OF = {
    "stats": "data stats",
    "pack": "data pack",
    "review": "data review",
    "list_models": "models",
}
"""Commands whose names differ from their functions'."""
PLACES = {
    "images": "IMAGE...",
    "data": "DATA",
    "model": "MODEL",
    "recipe": "RECIPE",
    "directory": "DIR",
    "file": "FILE",
}
"""Placeholder arguments, as in usage messages."""


def as_options(message: str) -> str:
    """A message with settings spelt as options: `on_bad_image='skip'` becomes --on-bad-image skip,
    `image=(384, 384)` --image 384 384, `compile=False` --no-compile, and `vitkit.stats` vitkit data
    stats."""
    message = FUNCTION.sub(_command, message)
    return SETTING.sub(_option, message)


def _command(match: re.Match) -> str:
    return f"vitkit {COMMAND_OF.get(match[1], match[1])}"


def as_command(name: str, args: tuple, settings: dict[str, Any]) -> str:
    """A function call as a command: ("stats", ("photos/",), {"json": True}) becomes "vitkit data stats
    photos/ --json", and the setting data__source becomes --data.source."""
    words = ["vitkit", COMMAND_OF.get(name, name)]
    for each in args:
        if isinstance(each, Placeholder):
            words.append(PLACES.get(each, each.upper()))
        elif isinstance(each, str | Path):
            words.append(as_word(each))
        else:  # a model object in memory
            words.append("MODEL")
    for setting, value in settings.items():
        option = f"--{_name(setting.replace('__', '.'))}"
        if setting in ALIASES:
            (option,) = ALIASES[setting]
        if isinstance(value, Placeholder):
            words += [option, PLACES.get(value, value.upper())]
        elif value is True:
            words.append(option)
        elif is_settings(value):
            for field, inner in changed_fields(value).items():
                words += [f"{option}.{field.replace('_', '-')}", as_word(str(inner))]
        else:
            several = value if isinstance(value, tuple | list) else [value]
            words += [option, *(as_word(str(each)) for each in several)]
    return " ".join(words)


def _name(setting: str) -> str:
    """The name of a setting's option without its dashes: "split-seed", "data.columns.label"."""
    first, dot, rest = setting.partition(".")
    return f"{NAMES.get(first, first)}{dot}{rest}".replace("_", "-")


def _option(match: re.Match) -> str:
    setting, value = match.groups()
    name = _name(setting)
    if value in (None, "True"):
        return f"--{name}"
    if value == "False":
        part, dot, last = name.rpartition(".")
        return f"--{part}{dot}no-{last}"
    return f"--{name} {_words(value)}"


def _words(value: str) -> str:
    """A Python value as words of a command; a placeholder such as DATA is unchanged."""
    try:
        read = literal_eval(value)
    except (ValueError, SyntaxError):
        return value.strip("()").replace(", ", " ")
    if isinstance(read, tuple | list):
        return " ".join(as_word(str(each)) for each in read)
    return as_word(str(read))
