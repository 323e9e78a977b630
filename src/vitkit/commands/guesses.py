"""What is meant by words that are not vitkit's own: of other tools, in the other order, or of the
first guess.

Where that is certain, the words are taken for it, and the standard error says so. Else WrongWords
names the right ones.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from vitkit.commands import DATA, MODEL, Command, WrongWords, foreign
from vitkit.system.text import as_word, printable

IMAGES = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".heic", ".avif"}
TABLES = {".csv", ".tsv", ".jsonl", ".parquet", ".tar"}
WEIGHTS = {".safetensors", ".npz", ".pth", ".pt", ".bin", ".ckpt"}
ARCHIVES = {".zip", ".rar", ".7z", ".tgz", ".gz", ".bz2", ".xz"}
MODEL_FILES = (
    "config.json", "recipe.json", "model", "model.safetensors", "pytorch_model.bin",
)  # fmt: skip
YES = {"true", "1", "yes"}
NO = {"false", "0", "no"}


# Which command


def other_command(name: str, words: list[str]) -> list[str] | None:
    """The words of the command that an unknown name must mean; None if it is none for certain."""
    if name in foreign.COMMANDS:
        meant = foreign.COMMANDS[name]
        _tell(name, f"vitkit {meant}")
        return [*meant.split(), *words]
    first, _, second = name.partition(" ")
    if first == "data" and is_images(second):
        _tell(name, f"vitkit data stats {second}")
        return ["data", "stats", second, *words]
    return None


def not_a_command(name: str) -> str:
    """What to say of a first word that is a file or a folder; "" if it is none."""
    path = Path(name)
    if not kind_of(name):
        return ""
    name = as_word(name)
    if is_model(str(path)):
        return (
            f"{name} is a model, and what to do with it comes first: vitkit predict {name} "
            f"IMAGE..., vitkit evaluate {name} DATA, or vitkit show {name}"
        )
    if path.suffix.lower() in IMAGES:
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


# What its words are


def meant(command: Command, words: list[str]) -> list[str]:
    """The words that follow a command's name, in its own options and order.

    Raises WrongWords for what has no counterpart, and if a word is missing.
    """
    words, placed = _translated(command, words)
    words = _placed(command, words, placed)
    words = _in_order(command, words)
    if command.name == "doctor":
        words = _examined(words)
    _check_words(command, words)
    return words


def _translated(command: Command, words: list[str]) -> tuple[list[str], dict[str, str]]:
    """The words with their options as vitkit calls them, and those that belong without an option,
    by name: {"DATA": "photos"}."""
    others = []
    placed = {}
    own: set[str] | None = None
    waiting = list(words)
    while waiting:
        word = waiting.pop(0)
        name, value = _option(word)
        if name == "device":
            others += _device(word, value, waiting)
            continue
        if name not in foreign.SETTINGS and name not in foreign.ANSWERS:
            others.append(word)
            continue

        # An option of the command's own, as it is
        if own is None:
            own = _own_options(command)
        if name in own:
            if not word.startswith("-"):  # epochs=5, as ultralytics has it
                word = f"--{word}"
            others.append(word)
            continue

        # One that it has by another name, one that nothing has, or the parser's to refuse
        template = _template(command, name, own)
        if name in foreign.ANSWERS:
            _refuse(command, name, value or next(iter(waiting), ""))
        if template is None:
            others.append(word)
            continue
        values = _values(template, value, waiting)
        if values is None and name in ("gpu", "gpu-id"):
            template = "--device cuda"
            values = []
        if values is None:
            raise WrongWords(f"{word} needs a value, as in {_example(template)}")
        if name in ("gpu", "gpu-id") and values and not values[0].isdigit():  # cuda:0
            template = "--device {}"
        typed = [word, *values]
        if "{" not in template:
            typed = [word]
            if values and values[0].lower() in NO:
                continue
        text = _filled(template, values)
        if template.startswith("--"):
            others += text
        else:
            placed[text[0]] = text[1]
        if typed != text:
            _tell(" ".join(typed) if not value else word, " ".join(text))
    return others, placed


def _option(word: str) -> tuple[str, str]:
    """The name of an option in any way of writing it, and the value that is written with it:
    ("batch-size", "") of --batch_size, ("epochs", "5") of --epochs=5 and of epochs=5. ("", "") for
    another word."""
    name, equals, value = word.partition("=")
    is_option = name.startswith("-") and not name.lstrip("-")[:1].isdigit()
    if not is_option and not (equals and name.isidentifier() and not kind_of(word)):
        return "", ""
    name = name.lstrip("-").replace("_", "-")
    return foreign.SAME_ANSWER.get(name, name), value


def _device(word: str, value: str, waiting: list[str]) -> list[str]:
    """--device with its value, a GPU's number as PyTorch names it."""
    given = value or next(iter(waiting), "")
    if not given.isdigit():
        return [word]
    if not value:
        waiting.pop(0)
    _tell(f"--device {given}", f"--device cuda:{given}")
    return ["--device", f"cuda:{given}"]


def _own_options(command: Command) -> set[str]:
    """The names of a command's options, with a dot at the end of those that stand for others."""
    from vitkit.commands.options import options

    names = set()
    for option in options(command.load_settings()):
        if option.is_open:
            names.add(f"{option.name}.")
        elif not option.is_word:
            names |= {option.name, *option.aliases}
    return names


def _template(command: Command, name: str, own: set[str]) -> str | None:
    """The first of vitkit's words for a foreign name that the command has; None if it has none."""
    slots = _slots(command)
    for template in foreign.SETTINGS.get(name, ()):
        first = template.split()[0]
        if not first.startswith("--"):
            if first in slots:
                return template
            continue
        options = [word[2:] for word in template.split() if word.startswith("--")]
        if all(option in own or _has_owner(option, own) for option in options):
            return template
    return None


def _has_owner(option: str, own: set[str]) -> bool:
    """Whether an option such as model.image belongs to settings that follow from a value."""
    owner, dot, _ = option.partition(".")
    return bool(dot) and f"{owner}." in own


def _refuse(command: Command, name: str, value: str) -> None:
    """Raises WrongWords for an option that has no counterpart."""
    answer = foreign.ANSWERS[name]
    raise WrongWords(answer.replace("{words}", f"{command.name} ...").replace("{}", value or "N"))


def _values(template: str, value: str, waiting: list[str]) -> list[str] | None:
    """The values of a foreign option, taken from the words that follow it; None if they are
    missing."""
    if "{" not in template:  # a switch, which some tools write with true or false
        if value:
            return [value]
        if waiting and waiting[0].lower() in (YES | NO):
            return [waiting.pop(0)]
        return []
    values = [value] if value else []
    if not values and waiting and not waiting[0].startswith("--"):
        values.append(waiting.pop(0))
    if "{size}" in template and values and waiting and waiting[0].isdigit():
        values.append(waiting.pop(0))
    return values or None


def _filled(template: str, values: list[str]) -> list[str]:
    """A template's words with the values put in."""
    size = values
    if len(size) == 1 and "--image" not in template.split():
        size = size * 2
    words = []
    for word in template.split():
        if word == "{size}":
            words += size
        elif "{}" in word:
            words.append(word.replace("{}", " ".join(values)))
        else:
            words.append(word)
    return words


def _example(template: str) -> str:
    """A template with a number where its values go."""
    return template.replace("{size}", "224 224").replace("{}", "1")


# In which order


def _slots(command: Command) -> list[str]:
    """The words that a command takes without an option, by name: ["MODEL", "DATA"]."""
    slots = []
    for word in command.words.split():
        if word.startswith(("-", "[-")):
            break
        slots.append(word.strip("[]."))
    return slots


def _required(command: Command) -> list[str]:
    """Those that it cannot do without."""
    return [slot for slot in _slots(command) if f"[{slot}" not in command.words]


def _placed(command: Command, words: list[str], placed: dict[str, str]) -> list[str]:
    """The words with what was given by a foreign option in its place among the first ones."""
    if not placed:
        return words
    leading = list(_leading(words))
    rest = words[len(leading) :]
    free = [slot for slot in _slots(command) if slot not in placed]
    missing = len(free) - len(leading)
    first = []
    for slot in _slots(command):
        if slot in placed:
            first.append(placed[slot])
        elif slot not in _required(command) and missing > 0:
            missing -= 1
        elif leading:
            first.append(leading.pop(0))
    return [*first, *leading, *rest]


def _in_order(command: Command, words: list[str]) -> list[str]:
    """The words with MODEL before DATA, if they were given the other way round for certain."""
    leading = list(_leading(words))
    slots = _slots(command)
    if len(leading) < 2 or slots[:1] != ["MODEL"] or slots[1:2] not in (["DATA"], ["IMAGE"]):
        return words
    data, model = leading[:2]
    if not is_images(data) or not is_model(model):
        return words
    _tell(f"{data} {model}", f"vitkit {command.name} {model} {data}")
    return [model, data, *words[2:]]


def _examined(words: list[str]) -> list[str]:
    """The words of `vitkit doctor`, with the options that those without one belong to."""
    leading = list(_leading(words))
    others = []
    for word in leading:
        option = "--data"
        if is_model(word):
            option = "--run" if (Path(word) / "metrics.jsonl").exists() else "--model"
        _tell(word, f"{option} {word}")
        others += [option, word]
    return [*others, *words[len(leading) :]]


def _check_words(command: Command, words: list[str]) -> None:
    """Raises WrongWords if one of a command's words is certain to be missing, or to be an archive."""
    leading = list(_leading(words))
    required = _required(command)
    usage = f"vitkit {command.name} {command.words}"
    for word in leading:
        suffix = Path(word).suffix.lower()
        if (
            suffix in ARCHIVES
            and Path(word).is_file()
            and not word.endswith((".csv.gz", ".tsv.gz"))
        ):
            raise WrongWords(
                f"{word} is an archive; unpack it, and give the folder that comes out of it"
            )

    # An image or a folder of them where a model belongs
    if required[:1] == ["MODEL"] and leading and is_images(leading[0]) and not is_model(leading[0]):
        example = own_run() or "google/vit-base-patch16-224"
        raise WrongWords(
            f"{leading[0]} is no model, and MODEL comes first: vitkit {command.name} {example} "
            f"{' '.join(leading)}"
        )

    # Too many words
    if len(leading) > len(_slots(command)) and "..." not in command.words:
        raise WrongWords(f"{leading[len(_slots(command))]} is one word too many: {usage}")

    # Too few words, and no options among which one might be
    if len(leading) == len(words) < len(required) and command.name not in ("train", "plan"):
        missing = required[len(leading)]
        sentence = f"{missing} is missing: {usage}"
        if missing in ("MODEL", "DATA"):
            text = {"MODEL": MODEL, "DATA": DATA}[missing]
            sentence += f"; {missing} is {text[0].lower()}{text[1:].rstrip('.')}"
        raise WrongWords(sentence)


def _leading(words: Sequence[str]) -> Iterator[str]:
    """The words before the first option."""
    for word in words:
        if word.startswith("-"):
            return
        yield word


# What a word is


def kind_of(word: str) -> str:
    """ "folder" or "file" if there is one of this name; else ""."""
    try:
        if word and Path(word).is_dir():
            return "folder"
        if word and Path(word).exists():
            return "file"
    except OSError:  # a name that is too long, or a folder that nobody may look into
        pass
    return ""


def is_model(word: str) -> bool:
    """Whether a word is a run, a model directory or a file of weights that is there, or has the
    form of a published model's name."""
    path = Path(word)
    kind = kind_of(word)
    if kind == "folder":
        return any((path / name).exists() for name in MODEL_FILES)
    if kind == "file":
        return path.suffix.lower() in WEIGHTS
    if ":" in word or path.suffix.lower() in IMAGES | TABLES | ARCHIVES:
        return False
    owner, _, name = word.partition("/")
    return bool(owner and name) and not kind_of(owner)


def is_images(word: str) -> bool:
    """Whether a word is a folder, an image or a data set that is there, or has the form of a data
    set's name."""
    kind = kind_of(word)
    if kind == "folder":
        return not is_model(word)
    if kind == "file":
        return Path(word).suffix.lower() in IMAGES | TABLES | ARCHIVES
    return word == "digits" or word.startswith("hf:")


def own_run() -> str:
    """The newest run with a finished model, in the usual place; "" if there is none."""
    finished = []
    for path in Path("runs").glob("*/model/config.json"):
        finished.append((path.stat().st_mtime, str(path.parents[1])))
    if not finished:
        return ""
    return max(finished)[1]


def _tell(typed: str, taken: str) -> None:
    """Say what was taken for what."""
    print(printable(f"took {typed} for {taken}"), file=sys.stderr)
