"""The options of other tools as vitkit calls them, by the table in other_tools.py."""

import re
import shlex
import sys
from collections.abc import Iterator, Sequence

import vitkit.cli.other_tools as other_tools
from vitkit.cli.table import Command, WrongWords
from vitkit.system.console.text import printable
from vitkit.system.functions.words import kind_of

YES = {"true", "1", "yes"}
NO = {"false", "0", "no"}
DATA_SIZE = "data.preprocessing.size"


def translated(command: Command, words: list[str]) -> tuple[list[str], dict[str, str]]:
    """The words with their options as vitkit calls them, and those that belong without an option,
    by name: {"DATA": "photos"}. Raises WrongWords for an option that has no counterpart."""
    others = []
    placed: dict[str, str] = {}
    own: set[str] | None = None
    is_value = False  # whether a word without dashes may belong to an option: --add images=photos/
    waiting = list(words)
    while waiting:
        word = waiting.pop(0)
        is_value = is_value or word.startswith("-")
        name, value = _option(word)
        if is_value and not word.startswith("-"):
            name, value = "", ""
        if name == "device":
            others += _device(word, value, waiting)
            continue
        if name in other_tools.WORDS and "DATA" in slots_of(command):
            (form,) = other_tools.WORDS[name]
            text = _filled(form, _values(word, form, value, waiting))
            _place(placed, text[0], text[1])
            tell(f"--{name} {text[1]}", " ".join(text))
            continue
        name = _name_in(command, name)
        if name not in other_tools.SETTINGS and name not in other_tools.ANSWERS:
            others.append(word)
            continue

        # An option of the command's own, as it is
        if own is None:
            own = _own_options(command)
        typed_name = word.partition("=")[0].lstrip("-").replace("_", "-")
        if name in own or typed_name in own:
            if not word.startswith("-"):  # epochs=5, as ultralytics has it
                word = f"--{word}"
            others.append(word)
            continue

        # One that nothing has, or only other commands, which is the parser's to refuse
        template = _template(command, name, own)
        if template is None and name in other_tools.ANSWERS:
            _refuse(command, name, value or next(iter(waiting), ""), words)
        if template is None:
            others.append(word)
            continue
        if name == "model.image" and any(_option(word)[0] == DATA_SIZE for word in words):
            template = "--model.image {size}"  # the data's is given too

        # One that it has by another name
        following = list(waiting)
        values = _values(word, template, value, waiting)
        if values and "{" not in template and values[0].lower() in NO:  # --fp16 False
            continue
        text = _filled(template, values)
        if template.startswith("--"):
            others += text
        else:
            _place(placed, text[0], text[1])
        typed = [word, *following[: len(following) - len(waiting)]]
        square = [*typed, typed[-1]]  # of an option of vitkit's own, and one number of its two
        if text not in (typed, square):
            tell(shlex.join(typed), shlex.join(text))
    return others, placed


def _name_in(command: Command, name: str) -> str:
    """The name of a foreign setting in the tables: after the command's, if it is one of its own."""
    own = f"{command.name} {name}"
    if own in other_tools.SETTINGS or own in other_tools.ANSWERS:
        return own
    return name


def _option(word: str) -> tuple[str, str]:
    """The name of an option in any way of writing it, and the value that is written with it:
    ("batch-size", "") of --batch_size, ("epochs", "5") of --epochs=5 and of epochs=5. ("", "") for
    another word."""
    name, equals, value = word.partition("=")
    is_negative_number = name.lstrip("-")[:1].isdigit()
    has_dashes = name.startswith("-") and not is_negative_number
    is_assignment = equals and name.isidentifier() and not kind_of(word)
    if not has_dashes and not is_assignment:
        return "", ""
    name = name.lstrip("-").replace("_", "-")
    name = other_tools.JOINED.get(name, name)
    return other_tools.SAME_ANSWER.get(name, name), value


def _device(word: str, value: str, waiting: list[str]) -> list[str]:
    """--device with its value, a GPU's number as PyTorch names it."""
    given = value or next(iter(waiting), "")
    if not given.isdigit():
        return [word]
    if not value:
        waiting.pop(0)
    tell(f"--device {given}", f"--device cuda:{given}")
    return ["--device", f"cuda:{given}"]


def _own_options(command: Command) -> set[str]:
    """The names of a command's options, with a dot at the end of those that stand for others."""
    from vitkit.system.functions.parameters import options

    names = set()
    for option in options(command.load_function()):
        if option.is_open:
            names.add(f"{option.name}.")
        elif not option.is_word:
            names |= {option.name, *option.aliases}
    return names


def _template(command: Command, name: str, own: set[str]) -> str | None:
    """The first of vitkit's words for a foreign name that the command has; None if it has none.

    own: the names of the command's options, as `_own_options` gives them.
    """
    slots = slots_of(command)
    for template in other_tools.SETTINGS.get(name, ()):
        first = template.split()[0]
        if not first.startswith("--"):
            if first in slots:
                return template
            continue
        options = [word[2:] for word in template.split() if word.startswith("--")]
        if all(option in own or _has_owner(option, own) for option in options):
            return template
    return None


def _place(placed: dict[str, str], slot: str, value: str) -> None:
    """Take a value as DATA, say. Raises WrongWords if another one is that already."""
    if placed.get(slot, value) != value:
        raise WrongWords(f"{placed[slot]} and {value} are both {slot}; give one of them")
    placed[slot] = value


def _has_owner(option: str, own: set[str]) -> bool:
    """Whether an option such as model.image belongs to settings that follow from a value."""
    owner, dot, _ = option.partition(".")
    return bool(dot) and f"{owner}." in own


def _refuse(command: Command, name: str, value: str, words: list[str]) -> None:
    """Raises WrongWords for an option that has no counterpart."""
    answer = other_tools.ANSWERS[name].replace("{words}", f"{command.name} ...")
    answer = answer.replace("{leading}", shlex.join(leading(words)))
    raise WrongWords(answer.replace("{}", value or "N"))


def _values(word: str, template: str, value: str, waiting: list[str]) -> list[str]:
    """The values of a foreign option: the one that is written with it, or those that are taken from
    the words that follow it. Raises WrongWords if they are missing."""
    if "{size}" in template:
        return _sizes(word, template, value, waiting)
    if value:
        return [value]
    following = waiting[0] if waiting else ""
    if "{" not in template:  # a switch, which some tools write with true or false
        if following.lower() in YES | NO:
            return [waiting.pop(0)]
        return []
    if "{gpu}" in template and not following.removeprefix("cuda").lstrip(":").isdigit():
        return []
    if not following or following.startswith("--"):
        raise WrongWords(f"{word} needs a value, as in {_example(template, word)}")
    return [waiting.pop(0)]


def _sizes(word: str, template: str, value: str, waiting: list[str]) -> list[str]:
    """The numbers of a size, one or two: 224, 224 224, 224x224. Raises WrongWords for anything else."""
    following = waiting[0] if waiting else ""
    if not value and (not following or following.startswith("--")):
        raise WrongWords(f"{word} needs a value, as in {_example(template, word)}")
    given = value or waiting.pop(0)
    values = re.split("[x,]", given)
    if len(values) == 1 and waiting and waiting[0].isdigit():
        values.append(waiting.pop(0))
    if not all(number.isdigit() for number in values) or len(values) > 2:
        raise WrongWords(
            f"{word.partition('=')[0]} is {given!r}; it takes a whole number, or two: height and width"
        )
    return values


def _filled(template: str, values: list[str]) -> list[str]:
    """A template's words with the values put in."""
    size = values
    if len(size) == 1 and "--image" not in template.split():  # which takes one for a square
        size = size * 2
    words = []
    for word in template.split():
        if word == "{size}":
            words += size
        elif word == "{gpu}":
            words.append(_gpu(values))
        else:
            words.append(re.sub(r"{.*}", lambda _: " ".join(values), word))
    return words


def _gpu(values: list[str]) -> str:
    """A GPU as PyTorch names it: cuda:0 for 0."""
    if not values:
        return "cuda"
    if values[0].isdigit():
        return f"cuda:{values[0]}"
    return values[0]


def _example(template: str, typed: str) -> str:
    """The first option of a template with an example where its values go; of a word without an option, what
    was typed with the word's name: --data DATA."""
    option, _, values = template.split(" --")[0].partition(" ")
    if not option.startswith("--"):
        return f"{typed} {option}"
    value = other_tools.EXAMPLES.get(option, "1")
    first = f"{option} {values}".replace("{size}", "224").replace("{}", value)
    return re.sub(r"{(.+)}", r"\1", first)


def slots_of(command: Command) -> list[str]:
    """The words that a command takes without an option, by name: ["MODEL", "DATA"]."""
    slots = []
    for word in command.words.split():
        if word.startswith(("-", "[-")):
            break
        slots.append(word.strip("[]."))
    return slots


def leading(words: Sequence[str]) -> Iterator[str]:
    """The words before the first option."""
    for word in words:
        if word.startswith("-"):
            return
        yield word


def tell(typed: str, taken: str) -> None:
    """Print how typed words were understood."""
    print(printable(f"took {typed} for {taken}"), file=sys.stderr)
