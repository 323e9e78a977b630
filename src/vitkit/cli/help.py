"""Help in two levels: --help shows the common settings, --help-all shows all of them.

Commands with few settings are not in the table and have one level.
"""

from typing import Any

from vitkit.cli.parsing import purpose_of
from vitkit.cli.spelling import as_options
from vitkit.cli.table import Command
from vitkit.system.console.text import fill, paragraphs, titled, two_columns
from vitkit.system.functions.parameters import MISSING, Option, Owner, options
from vitkit.system.span import Span

RUN = ("workdir DIR", "device NAME", "data.workers N", "seed N")
EVERYDAY: dict[str, dict[str, tuple[str, ...]]] = {
    "train": {
        "what is trained": ("data.source DATA", "model NAME", "init WEIGHTS"),
        "for how long, and how": (
            "length DURATION", "batch N", "optim.lr RATE", "precision NAME", "evaluate-every DURATION",
            "regularise",
        ),
        "where": RUN,
    },
    "finetune": {
        "instead of a class for each image": ("masks MASKS", "normal CLASS"),
        "how": (
            "minutes N", "preset NAME", "length DURATION", "batch N", "optim.lr RATE", "select",
            "image SIDE", "precision NAME",
        ),
        "where": RUN[:3],
    },
    "plan": {
        "the machine": ("gpus N", "memory GIB", "tflops N"),
        "the run": ("data.source DATA", "examples N", "classes N", "model NAME", "length DURATION",
                    "batch N", "micro-batch N", "recompute", "shard-group N",
                    "precision NAME"),
    },
    "evaluate": {
        "what": ("split PART", "against MODEL", "evals NAME...", "corruptions common", "masks MASKS"),
        "what is written": ("report FILE...", "calibrate DIR", "json"),
        "how": ("on-bad-image skip", "batch N", "image SIDE", "precision NAME", "device NAME"),
    },
    "probe": {
        "what": ("to DIR", "method NAME", "k N", "json"),
        "how": ("as NAME", "on-bad-image skip", "image SIDE", "precision NAME", "device NAME"),
    },
    "suite": {
        "what": ("data DIR", "from-hub", "protocol NAME", "tasks NAME...", "against MODEL..."),
        "how": (
            "rates RATE...",
            "steps N",
            "seeds N",
            "workdir DIR",
            "precision NAME",
            "device NAME",
            "json",
        ),
    },
    "fewshot": {
        "what": ("shots N...", "seeds N", "form NAME", "json"),
        "how": ("as NAME", "on-bad-image skip", "image SIDE", "precision NAME", "device NAME"),
    },
    "features": {
        "what": ("output FILE", "split PART"),
        "how": ("as NAME", "on-bad-image skip", "image SIDE", "precision NAME", "device NAME"),
    },
    "inspect": {
        "what is drawn": ("figures NAME...", "class NAME", "layer N", "patch ROW COLUMN", "against MODEL"),
        "of which images": ("limit N", "shown N"),
        "what is written": ("output DIR", "format svg", "theme dark", "arrays"),
        "how": ("image SIDE", "device NAME"),
    },
    "predict": {
        "what is shown, and written": (
            "top N", "to FILE", "attention DIR", "sheet FILE.png", "json",
        ),
        "of which images": ("limit N",),
        "how": ("runtime NAME", "precision NAME", "device NAME", "workers N"),
    },
    "segment": {
        "what is written": ("to DIR", "smallest N"),
        "of which images": ("limit N",),
        "how": ("tokens N", "runtime NAME", "precision NAME", "device NAME"),
    },
    "sort": {
        "where, and how": ("into DIR", "by copy", "sure PROBABILITY"),
        "what is written beside": ("to FILE", "json"),
        "how it is computed": ("runtime NAME", "precision NAME", "device NAME", "workers N"),
    },
    "watch": {
        "what is written": ("to FILE", "sort-into DIR", "sure PROBABILITY", "json"),
        "how": ("limit N", "runtime NAME", "precision NAME", "device NAME"),
    },
    "batch": {
        "what is written": ("into DIR", "top N"),
        "how": ("shard I/N", "runtime NAME", "precision NAME", "device NAME", "workers N"),
    },
    "data review": {
        "what": ("output FILE", "exclude FILE", "json"),
        "what was chosen on the page": ("apply FILE", "yes", "undo"),
        "how": ("device NAME", "image SIDE"),
    },
}  # fmt: skip
"""The common settings by command and title, each with a placeholder for its value."""


def has_two_levels(command: Command) -> bool:
    """Whether --help omits some settings of this command, which --help-all shows."""
    return command.name in EVERYDAY


def short_help(command: Command, program: str, settings: Owner, default: Any = None) -> str:
    """The help with the common settings, and their values if `default` has them. program: the words typed
    before the options, such as "vitkit train digits"."""
    every = list(options(settings, default))
    named = {option.name: option for option in every if not option.is_word}
    shows_values = default is not None or not command.defaults

    # The command's purpose, and the positional arguments that are not yet typed
    typed = len(program.split()) - len(command.name.split()) - 1
    every_word = command.words.split(" -")[0].split()
    required = [word for word in every_word if not word.startswith("[")]
    words = every_word[typed:]
    if typed >= len(required):
        # An optional argument may come first and be omitted: then the required ones are already typed
        words = [word for word in words if word.startswith("[")]
    usage = " ".join(["usage:", program, *words, "[--setting value]"])
    lines = [fill(usage), "", fill(as_options(paragraphs(purpose_of(settings)).split("\n\n")[0]))]
    described = [
        (
            option.metavar or option.name.upper(),
            (as_options(option.help) if option.of_function else option.help),
        )
        for option in every
        if option.is_word
    ]
    if described and words:
        lines += ["", *two_columns(described[-len(words) :])]

    # The settings by title
    groups = {}
    for title, entries in EVERYDAY[command.name].items():
        rows = []
        for entry in entries:
            option = named.get(entry.split()[0])
            if option:
                rows.append((f"--{entry}", _first_sentence(option, shows_values)))
        groups[title] = rows
    lines += titled(groups)
    lines += ["", fill(f"--help-all instead of --help lists all {len(named)} settings.")]
    return "\n".join(lines)


def _first_sentence(option: Option, shows_value: bool) -> str:
    """The first sentence of a setting's help, and its value."""
    text = (as_options(option.help) if option.of_function else option.help).split("\n\n")[0]
    sentence = text.partition(". ")[0].rstrip(".")
    value = _text(option.value)
    if shows_value and value:
        return f"{sentence} ({value})"
    return sentence


def _text(value: Any) -> str:
    """A value as typed on the command line; "" if there is none."""
    if value in (MISSING, None, "", ()) or isinstance(value, bool):
        return ""
    if isinstance(value, Span):
        return str(value).replace(" ", "").lower()
    if isinstance(value, tuple):
        return " ".join(map(_text, value))
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)
