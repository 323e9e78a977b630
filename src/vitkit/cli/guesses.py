"""Corrections of command lines: names from other tools, arguments in another order, and common first
attempts.

If the meaning is certain, the words are replaced, with a message on standard error. Otherwise WrongWords
names the correct command.
"""

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

import vitkit.cli.other_tools as other_tools
from vitkit.cli.table import Command, WrongWords
from vitkit.cli.translation import leading, print_correction, slots_of, translated
from vitkit.system.console.text import as_word
from vitkit.system.functions.words import (
    ARCHIVES,
    DATA,
    IMAGE_FILES,
    MODEL,
    is_images,
    is_model,
    kind_of,
)

RENAMED = {
    "batch": {"--parts": "--into"},
    "watch": {"--watch": ""},
    "sort": {"--sort-into": "--into", "--sort-by": "--by"},
}
"""Former options of `predict`, by the commands that replaced them."""
OF_A_RUN = ("--workdir", "--device", "--patience")
"""Options of `train` that `plan` does not need."""


# The command


def other_command(name: str, words: list[str]) -> list[str] | None:
    """The words of the command that an unknown name certainly means; None if it is not certain. Raises
    WrongWords, with advice, for a name of something that vitkit does not do."""
    answer = other_tools.COMMAND_ANSWERS.get(other_tools.SAME_COMMAND.get(name, name))
    if answer is not None:
        raise WrongWords(_with_words(answer, list(leading(words))))
    if name in other_tools.COMMANDS:
        meant = other_tools.COMMANDS[name]
        print_correction(name, f"vitkit {meant}")
        return [*meant.split(), *words]
    first, _, second = name.partition(" ")
    if first == "data" and is_images(second):
        print_correction(f"data {as_word(second)}", f"vitkit data stats {as_word(second)}")
        return ["data", "stats", second, *words]
    return None


def _with_words(answer: str, named: list[str]) -> str:
    """An answer with the words after the name filled in: {MODEL} is the word that is a model,
    {DATA} the other words. A placeholder without words stays; the only placeholder of an answer
    takes any words."""
    slots = set(re.findall(r"{(.*?)}", answer))
    models = [word for word in named if is_model(word)][:1]
    if not models and len(named) > 1 and not is_images(named[0]):
        models = named[:1]  # perhaps a misspelt name
    others = [word for word in named if word not in models]
    filled = {"MODEL": models, "DATA": others, "RUN": named}
    if len(slots) == 1:
        (only,) = slots
        filled[only] = filled[only] or named
    return re.sub(r"{(.*?)}", lambda slot: shlex.join(filled[slot[1]]) or slot[1], answer)


def own_command(name: str, words: list[str]) -> tuple[str, list[str]]:
    """The command that replaced an option of `predict`, and its words: predict MODEL IMAGE...
    --sort-into DIR becomes sort MODEL IMAGE... --into DIR. Other words are unchanged."""
    if name == "train":
        name, words = _finetune_for_train(words)
    if "--dry-run" in words:
        return _dry_run(name, words)
    if name != "predict":
        return name, words
    options = {word.partition("=")[0] for word in words}
    own = {"--parts": "batch", "--watch": "watch", "--sort-into": "sort"}
    option = next((option for option in own if option in options), None)
    if option is None:
        return name, words
    command = own[option]
    renamed = RENAMED[command]
    others = []
    for word in words:
        first, equals, value = word.partition("=")
        if first in renamed:
            word = f"{renamed[first]}{equals}{value}"
        if word:  # "" for an option that became the command itself
            others.append(word)
    print_correction(f"predict {option}", f"vitkit {command}")
    return command, others


def _dry_run(name: str, words: list[str]) -> tuple[str, list[str]]:
    """The command that replaces --dry-run, if it takes the same words: plan for train, and a review
    without --yes. Otherwise the words are unchanged, and a message follows later."""
    others = [word for word in words if word != "--dry-run"]
    if name == "train" and any(leading(others)):
        print_correction("train --dry-run", "vitkit plan")
        return "plan", _without(others, OF_A_RUN)
    if name == "data review" and "--yes" not in words:
        print_correction("--dry-run", "data review without --yes")
        return name, others
    return name, words


def _without(words: list[str], options: Sequence[str]) -> list[str]:
    """The words without these options and their values."""
    others = []
    waiting = iter(words)
    for word in waiting:
        option, equals, _ = word.partition("=")
        if option not in options:
            others.append(word)
        elif not equals:
            next(waiting, None)
    return others


def _finetune_for_train(words: list[str]) -> tuple[str, list[str]]:
    """train --data photos/, as in other tools, becomes finetune photos/; with a recipe it stays train."""
    if not words or any(leading(words)):
        return "train", words
    option, equals, value = words[0].partition("=")
    others = words[1:]
    if not equals and others:
        value, *others = others
    if other_tools.SETTINGS.get(option.lstrip("-")) != other_tools.SETTINGS[
        "data"
    ] or not is_images(value):
        return "train", words
    data = as_word(value)
    print_correction(f"train {option} {data}", f"vitkit finetune {data}")
    return "finetune", [value, *others]


def not_a_command(name: str) -> str:
    """The message for a first word that is a file or a folder; "" if it is neither."""
    path = Path(name)
    if not kind_of(name):
        return ""
    name = as_word(name)
    if is_model(str(path)):
        return (
            f"{name} is a model, and what to do with it comes first: vitkit predict {name} "
            f"IMAGE..., vitkit evaluate {name} DATA, or vitkit show {name}"
        )
    if path.suffix.lower() in IMAGE_FILES:
        return (
            f"{name} is an image, and what to do with it comes first: vitkit predict "
            f"{own_run() or 'MODEL'} {name}"
        )
    if path.suffix == ".py":
        return f"{name} is Python, and what to do with it comes first: vitkit train {name}:FUNCTION"
    return (
        f"{name} is data, and what to do with it comes first: vitkit finetune {name} makes a "
        f"classifier of it, vitkit data stats {name} says what it holds"
    )


# The arguments


def meant(command: Command, words: list[str]) -> list[str]:
    """The words after a command's name, translated to its own options and order.

    Raises WrongWords if a word has no counterpart, or is missing.
    """
    refuse_two_numbers(words)
    if command.name == "export":
        words = _export_words(words)
    words, placed = translated(command, words)
    words = _with_arguments_in_place(command, words, placed)
    words = _names_first(command, words)
    words = _in_order(command, words)
    if command.name == "doctor":
        words = _doctor_words(words)
    _check_words(command, words)
    return words


# The order


def _required(command: Command) -> list[str]:
    """The positional arguments that are not optional."""
    return [slot for slot in slots_of(command) if f"[{slot}" not in command.words]


def _with_arguments_in_place(
    command: Command, words: list[str], placed: dict[str, str]
) -> list[str]:
    """The words with positional arguments that were given as options moved to their positions."""
    if not placed:
        return words
    named = list(leading(words))
    rest = words[len(named) :]
    free = [slot for slot in slots_of(command) if slot not in placed]
    missing = len(free) - len(named)
    first = []
    for slot in slots_of(command):
        if slot in placed:
            first.append(placed[slot])
        elif slot not in _required(command) and missing > 0:
            missing -= 1
        elif named:
            first.append(named.pop(0))
    return [*first, *named, *rest]


def _names_first(command: Command, words: list[str]) -> list[str]:
    """The words with models and images moved before the options: `vitkit finetune --minutes 1
    photos/`. For commands whose settings depend on these arguments."""
    if command.load_defaults() is None or not words or not words[0].startswith("-"):
        return words
    from vitkit.system.functions.parameters import options

    settings = options(command.load_function())
    flags = {f"--{option.name}" for option in settings if isinstance(option.value, bool)}
    names = []
    rest = []
    for before, word in zip(["", *words], words, strict=False):
        is_value = before.startswith("-") and "=" not in before and before not in flags
        if not is_value and (is_images(word) or is_model(word)):
            names.append(word)
        else:
            rest.append(word)
    return [*names, *rest]


def _in_order(command: Command, words: list[str]) -> list[str]:
    """The words with MODEL before DATA, if they are certainly in the other order."""
    named = list(leading(words))
    slots = slots_of(command)
    if len(named) < 2 or slots[:1] != ["MODEL"] or slots[1:2] not in (["DATA"], ["IMAGE"]):
        return words
    data, model = named[:2]
    if not is_images(data) or not is_model(model):
        return words
    print_correction(
        shlex.join([data, model]), f"vitkit {command.name} {shlex.join([model, data])}"
    )
    return [model, data, *words[2:]]


def _doctor_words(words: list[str]) -> list[str]:
    """The words of `vitkit doctor`, with the matching option before each positional argument."""
    named = list(leading(words))
    others = []
    for word in named:
        option = "--data"
        if is_model(word):
            option = "--run" if (Path(word) / "metrics.jsonl").exists() else "--model"
        print_correction(as_word(word), f"{option} {as_word(word)}")
        others += [option, word]
    return [*others, *words[len(named) :]]


EXPORTED = {"onnx": ".onnx", "openvino": ".xml", "torch": ".pt2", "torchscript": ".pt2"}
"""File suffixes of the export formats."""


def _export_words(words: list[str]) -> list[str]:
    """The words of `vitkit export`, with the output named after the model if only its format is given
    (--format onnx, or onnx as the second word), or with -o before a file's name."""
    model, *rest = words or [""]
    if any(word.partition("=")[0] in ("-o", "--output") for word in words):
        return words
    text = " ".join(rest)
    match = re.match(r"(--format[ =]|--to[ =])?(\w+)(?= |$)", text)
    if match and match[1] and match[2] not in EXPORTED:
        raise WrongWords(
            f"vitkit export writes {', '.join(EXPORTED)} and page, and not {match[2]}; many tools read ONNX: "
            f"vitkit export {as_word(model)} -o {as_word(Path(model).name + '.onnx')}"
        )
    if match and match[2] in EXPORTED:
        file = f"{Path(model).name}{EXPORTED[match[2]]}"
        typed = match[0]
    elif rest and Path(rest[0]).suffix in EXPORTED.values():
        file = typed = rest[0]
    else:
        return words
    print_correction(typed, f"-o {as_word(file)}")
    return [model, "-o", file, *rest[len(typed.split()) :]]


def _check_words(command: Command, words: list[str]) -> None:
    """Raises WrongWords if an argument is certainly missing, is one too many, or is an archive."""
    named = list(leading(words))
    required = _required(command)
    usage = f"vitkit {command.name} {command.words}"
    for word in named:
        suffix = Path(word).suffix.lower()
        is_archive = suffix in ARCHIVES and not word.endswith((".csv.gz", ".tsv.gz"))
        if is_archive and Path(word).is_file():
            raise WrongWords(
                f"{word} is an archive; unpack it, and give the folder that comes out of it"
            )

    # An image or a folder of images in place of a model
    example = own_run() or "google/vit-base-patch16-224"
    if required[:1] == ["MODEL"] and named and is_images(named[0]) and not is_model(named[0]):
        model = next(filter(is_model, named), example)
        others = [word for word in named if word != model]
        if len(slots_of(command)) == 1:  # it takes nothing but a model
            others = []
        others += words[len(named) :]
        raise WrongWords(
            f"{as_word(named[0])} is not a model, and MODEL comes first: vitkit {command.name} "
            f"{shlex.join([model, *others])}"
        )

    # Too many arguments
    words_taken = command.words.partition(" -")[0]
    if len(named) > len(slots_of(command)) and "..." not in words_taken:
        if command.name in other_tools.TOO_MANY_WORDS:
            model, name, rest = map(as_word, named[:3])
            answer = other_tools.TOO_MANY_WORDS[command.name]
            raise WrongWords(answer.format(model=model, name=name, rest=rest))
        raise WrongWords(f"{as_word(named[len(slots_of(command))])} is one word too many: {usage}")

    # Too few arguments, and no options, whose values might be arguments
    if len(named) == len(words) < len(required) and command.name not in ("train", "plan"):
        missing = required[len(named)]
        sentence = f"{missing} is missing: {usage}"
        if missing == "MODEL":
            sentence += f", such as vitkit {command.name} {shlex.join([*named, example])}"
        if missing in ("MODEL", "DATA"):
            text = {"MODEL": MODEL, "DATA": DATA}[missing]
            sentence += f"; {missing} is {text[0].lower()}{text[1:].rstrip('.')}"
        raise WrongWords(sentence)


# Examples for messages


def own_run() -> str:
    """The newest run with a finished model, in `runs/` or in the current folder; "" if there is
    none."""
    finished = []
    for path in (*Path("runs").glob("*/model/config.json"), *Path().glob("*/model/config.json")):
        finished.append((path.stat().st_mtime, str(path.parents[1])))
    if not finished:
        return ""
    return max(finished)[1]


def refuse_two_numbers(words: list[str]) -> None:
    """Raises WrongWords for a shard given as two words: "--shard 0 4", a former syntax of `vitkit
    suite`."""
    for option, first, second in zip(words, words[1:], words[2:], strict=False):
        if option == "--shard" and first.isdigit() and second.isdigit():
            raise WrongWords(
                f"--shard {first} {second} are two words, and it is one, which counts from 1: "
                f"--shard 1/{second} to {second}/{second}"
            )
