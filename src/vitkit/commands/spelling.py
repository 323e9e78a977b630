"""Settings in messages, as the command line spells them: `heads=12` becomes --heads 12.

A message of vitkit names settings and arguments in backquotes, as they are in Python. The command line alone
knows that they are options.
"""

import re
from ast import literal_eval

from vitkit.system.console.text import as_word

SETTING = re.compile(r"`([a-z_]\w*(?:\.\w+)*)(?:=([^`]+))?`")
"""A setting in a message, and its value if it has one."""
OPTIONS = {"named": "as", "class_name": "class", "purpose": "for"}
"""Options that are words of Python, so that the settings have other names."""


def as_options(message: str) -> str:
    """A message about settings as one about options: `on_bad_image='skip'` becomes --on-bad-image skip,
    `image=(384, 384)` --image 384 384, and `compile=False` --no-compile."""
    return SETTING.sub(_option, message)


def _option(match: re.Match) -> str:
    setting, value = match.groups()
    name = OPTIONS.get(setting, setting).replace("_", "-")
    if value in (None, "True"):
        return f"--{name}"
    if value == "False":
        part, dot, last = name.rpartition(".")
        return f"--{part}{dot}no-{last}"
    return f"--{name} {_words(value)}"


def _words(value: str) -> str:
    """A value in Python as words of a command; what is no value, such as DATA, as it is."""
    try:
        read = literal_eval(value)
    except (ValueError, SyntaxError):
        return value.strip("()").replace(", ", " ")
    if isinstance(read, tuple | list):
        return " ".join(as_word(str(each)) for each in read)
    return as_word(str(read))
