"""Translation of other tools' options to vitkit's, by the tables in other_tools.py."""

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
    """The words with their options translated to vitkit's, and the positional arguments that were
    given as options, by name: {"DATA": "photos"}. Raises WrongWords for an option without a
    counterpart."""
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
            print_correction(f"--{name} {text[1]}", " ".join(text))
            continue
        name = _name_in(command, name)
        if name not in other_tools.SETTINGS and name not in other_tools.ANSWERS:
            others.append(word)
            continue

        # One of the command's own options: unchanged
        if own is None:
            own = _own_options(command)
        typed_name = word.partition("=")[0].lstrip("-").replace("_", "-")
        if name in own or typed_name in own:
            if not word.startswith("-"):  # epochs=5, the syntax of ultralytics
                word = f"--{word}"
            others.append(word)
            continue

        # An unknown option, or one of other commands only: the parser reports it
        template = _template(command, name, own)
        if template is None and name in other_tools.ANSWERS:
            _refuse(command, name, value or next(iter(waiting), ""), words)
        if template is None:
            others.append(word)
            continue
        if name == "model.image" and any(_option(word)[0] == DATA_SIZE for word in words):
            template = "--model.image {size}"  # the data's image size is also given

        # An option that has another name in vitkit
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
        square = [*typed, typed[-1]]  # one of vitkit's own options, with one number for its two
        if text not in (typed, square):
            print_correction(shlex.join(typed), shlex.join(text))
    return others, placed


def _name_in(command: Command, name: str) -> str:
    """The key of another tool's option in the tables: with the command's name if it has an entry of
    its own."""
    own = f"{command.name} {name}"
    if own in other_tools.SETTINGS or own in other_tools.ANSWERS:
        return own
    return name


def _option(word: str) -> tuple[str, str]:
    """The name of an option in any spelling, and the value that is attached to it: ("batch-size",
    "") for --batch_size, ("epochs", "5") for --epochs=5 and for epochs=5. ("", "") for a word that
    is no option."""
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
    """--device with its value, where a GPU's number becomes PyTorch's name."""
    given = value or next(iter(waiting), "")
    if not given.isdigit():
        return [word]
    if not value:
        waiting.pop(0)
    print_correction(f"--device {given}", f"--device cuda:{given}")
    return ["--device", f"cuda:{given}"]


def _own_options(command: Command) -> set[str]:
    """The names of a command's options. Prefixes of nested settings end with a dot."""
    from vitkit.system.functions.parameters import options

    names = set()
    for option in options(command.load_function()):
        if option.is_open:
            names.add(f"{option.name}.")
        elif not option.is_word:
            names |= {option.name, *option.aliases}
    return names


def _template(command: Command, name: str, own: set[str]) -> str | None:
    """The first of vitkit's counterparts of another tool's option that the command has; None if
    there is none.

    own: names of the command's options, as returned by `_own_options`.
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
    """Use a value as a positional argument such as DATA. Raises WrongWords if that is already given."""
    if placed.get(slot, value) != value:
        raise WrongWords(f"{placed[slot]} and {value} are both {slot}; give one of them")
    placed[slot] = value


def _has_owner(option: str, own: set[str]) -> bool:
    """Whether an option such as model.image belongs to nested settings that depend on a value."""
    owner, dot, _ = option.partition(".")
    return bool(dot) and f"{owner}." in own


def _refuse(command: Command, name: str, value: str, words: list[str]) -> None:
    """Raises WrongWords, with advice, for an option without a counterpart."""
    answer = other_tools.ANSWERS[name].replace("{words}", f"{command.name} ...")
    answer = answer.replace("{leading}", shlex.join(leading(words)))
    raise WrongWords(answer.replace("{}", value or "N"))


def _values(word: str, template: str, value: str, waiting: list[str]) -> list[str]:
    """The values of another tool's option: the attached one, or those taken from the following words.
    Raises WrongWords if they are missing."""
    if "{size}" in template:
        return _sizes(word, template, value, waiting)
    if value:
        return [value]
    following = waiting[0] if waiting else ""
    if "{" not in template:  # a switch, which some tools write with a value of true or false
        if following.lower() in YES | NO:
            return [waiting.pop(0)]
        return []
    if "{gpu}" in template and not following.removeprefix("cuda").lstrip(":").isdigit():
        return []
    if not following or following.startswith("--"):
        raise WrongWords(f"{word} needs a value, as in {_example(template, word)}")
    return [waiting.pop(0)]


def _sizes(word: str, template: str, value: str, waiting: list[str]) -> list[str]:
    """The numbers of a size, one or two: 224, 224 224, 224x224. Raises WrongWords for other values."""
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
    """The words of a template with the values filled in."""
    size = values
    if (
        len(size) == 1 and "--image" not in template.split()
    ):  # --image takes one number for a square
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
    """A GPU by PyTorch's name: cuda:0 for 0."""
    if not values:
        return "cuda"
    if values[0].isdigit():
        return f"cuda:{values[0]}"
    return values[0]


def _example(template: str, typed: str) -> str:
    """An example of the first option of a template with its value. For a positional argument, the
    option as typed with the argument's name: --data DATA."""
    option, _, values = template.split(" --")[0].partition(" ")
    if not option.startswith("--"):
        return f"{typed} {option}"
    value = other_tools.EXAMPLES.get(option, "1")
    first = f"{option} {values}".replace("{size}", "224").replace("{}", value)
    return re.sub(r"{(.+)}", r"\1", first)


def slots_of(command: Command) -> list[str]:
    """The names of a command's positional arguments: ["MODEL", "DATA"]."""
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


def print_correction(typed: str, taken: str) -> None:
    """Print how typed words were understood."""
    print(printable(f"took {typed} for {taken}"), file=sys.stderr)
