"""The settings of `vitkit train` and `vitkit plan`, which depend on the recipe that the first word
names, and those of `vitkit finetune [MODEL] DATA`.

Some options decide which other settings exist, so they are read before tyro parses all words: --model (a
ResNet has other settings than a Vision Transformer) and --evals (each evaluator has its own). --length is
read first too, because the default warm-up depends on it.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from vitkit.cli.parsing import read_some
from vitkit.cli.spelling import as_options
from vitkit.cli.table import Defaults, WordsMissing
from vitkit.recipes import RECIPES, Recipe, listing
from vitkit.system.console.text import as_word, fill
from vitkit.system.errors import BadSettings, VitkitError
from vitkit.system.functions.parameters import READ
from vitkit.system.functions.words import kind_of
from vitkit.system.scripts import functions_of
from vitkit.system.span import Span
from vitkit.training import recipe_on_images

HELP = ("-h", "--help")
READ_FIRST = {"data": READ, "length": READ}
APPLIED = {"data": "", "model": "", "evaluators": (), "length": None}
"""Arguments that the recipe already contains, from the first words and a few options."""


def train(words: list[str]) -> Defaults:
    """Defaults of all settings of a run, from the recipe and the images that the first words name."""
    recipe, count = first_recipe("train", words)
    return Defaults({"recipe": recipe} | READ_FIRST, count, APPLIED)


def plan(words: list[str]) -> Defaults:
    """Defaults of all settings of a plan: those of a run, and the hardware."""
    recipe, count = first_recipe("plan", words, "--gpus N --memory GIB --examples N")
    return Defaults({"recipe": recipe} | READ_FIRST, count, APPLIED)


def finetune(words: list[str]) -> Defaults:
    """Defaults of all settings of a run, from the model, the data and the preset.

    The words are parsed twice:

    1. Here, for what decides the recipe: MODEL, DATA, --preset, --data.columns and overrides of MODEL.
    2. By the command line, for all settings, with the recipe's values as defaults.

    If there is no MODEL or DATA, --help is answered in the first pass.
    """
    # Imported here because `train` and `plan` do not need the quick preset's modules
    from vitkit.finetuning import beginning
    from vitkit.finetuning import finetune as function
    from vitkit.training import regularisation
    from vitkit.weights import hints_of

    names = []  # MODEL and DATA, or DATA alone
    for word in words[:2]:
        if word.startswith("-"):
            break
        names.append(word)
    without_recipe = {"recipe": READ}
    help_only = {"recipe": READ, "length": READ}
    if not names:
        read_some(function, "vitkit finetune", words, help_only)  # exits
    asks_for_help = any(word in HELP for word in words)
    named = [*names, ""][:2]  # without the "", tyro would take the value of an option for DATA
    rest = [word for word in words[len(names) :] if word not in HELP]
    first = read_some(function, "vitkit finetune", [*named, *rest], without_recipe)
    if first["masks"]:  # without a recipe, whose settings are those of images with classes
        read = {"model": first["model"], "data": first["data"]}
        return Defaults(without_recipe | dict.fromkeys(read, READ), len(names), read)
    values = [first[name] for name in ("weight_decays", "dropouts", "label_smoothings")]
    chooses = first["select"] or first["rates"] or regularisation(first["regularise"], *values)
    try:
        begun = beginning(
            first["model"],
            first["data"],
            preset=first["preset"],
            like=first["like"],
            minutes=first["minutes"],
            is_protocol=bool(chooses or first["seeds"] > 1),
            evaluators=first["evaluators"],
            length=first["length"],
            workdir=first["workdir"],
            device=first["device"],
            columns=first["columns"],
            hints=hints_of(first),
            given=given_options(words),
        )
    except (VitkitError, OSError) as error:
        if not asks_for_help:
            raise
        print(
            f"Without the settings of a run, which follow from MODEL and DATA, because {as_options(str(error))}\n"
        )
        read_some(function, "vitkit finetune", ["--help"], help_only)  # exits
        raise
    settings = first | {"recipe": begun.recipe}
    in_recipe = ("model", "data", "columns", "length", "data__exclude")
    settings |= dict.fromkeys(in_recipe, READ)
    read = {"model": begun.model, "data": begun.data, "preset": begun.preset}
    return Defaults(settings, len(names), read)


def first_recipe(command: str, words: list[str], options: str = "") -> tuple[Recipe, int]:
    """The recipe that the first word names, with the images of the second word unless that is an
    option, the model of --model and the evaluators of --evals; and the number of words read.
    options: the command's own options, for its usage.

    Raises WordsMissing, with a list of recipes, if the first word is not a name; VitkitError for an
    unknown recipe.
    """
    if not words or words[0].startswith("-"):
        usage = f"usage: vitkit {command} RECIPE [DATA] {options} [--model NAME] [--setting value]"
        raise WordsMissing(
            f"{fill(' '.join(usage.split()))}\n\n"
            f"Recipes (or file.py:function):\n{listing()}\n\n"
            f"{fill(f'vitkit {command} RECIPE --help says more.')}"
        )

    # Options that decide which settings exist
    name = _recipe_word(command, words)
    images = ""
    count = 1
    if len(words) > 1 and not words[1].startswith("-"):
        images = words[1]
        count = 2
    model = ""
    if models := option_words("--model", words):
        model = models[0]
    evaluators = option_words("--evals", words)
    length = asked_length(words)
    given = given_options(words)
    return recipe_on_images(name, images, model, evaluators, length, given), count


def _recipe_word(command: str, words: list[str]) -> str:
    """The name of the recipe: the first word, or for the user's file with a single function
    FILE:FUNCTION. Raises VitkitError, with the correct command, for images in place of a recipe."""
    first = words[0]
    path = Path(first)
    if first in RECIPES:
        return first

    # A file of recipes, without the name of a function
    if path.suffix == ".py" and kind_of(first) == "file":
        names = functions_of(path)
        if len(names) == 1:
            print(f"took {first} for {first}:{names[0]}, its only function", file=sys.stderr)
            return f"{first}:{names[0]}"
        choices = " or ".join(f"{first}:{name}" for name in names) or "a function that returns one"
        raise BadSettings(f"{first} is a file, and a recipe is a function of it: say {choices}")

    # Images in place of a recipe
    if kind_of(first):
        images = as_word(first)
        others = [word for word in words[1:2] if word in RECIPES]
        if others:
            raise BadSettings(
                f"the recipe comes before the images: vitkit {command} {others[0]} {images}"
            )
        raise BadSettings(
            f"{first} are images, and no recipe: vitkit finetune {images} trains published weights "
            f"on them, which few images suffice for; vitkit {command} scratch {images} begins "
            "without any"
        )
    return first


def asked_length(words: Sequence[str]) -> Span | None:
    """The value of --length; None if it is missing or not a duration, which tyro rejects later."""
    length = option_words("--length", words)
    if not length:
        return None
    try:
        return Span.parse(length[0])
    except VitkitError:
        return None


def given_options(words: Sequence[str]) -> frozenset[str]:
    """The names of the given options."""
    names = (word[2:].partition("=")[0] for word in words if word.startswith("--"))
    return frozenset(name.replace(".no-", ".").replace("-", "_") for name in names)


def option_words(option: str, words: Sequence[str]) -> list[str] | None:
    """The values of an option: the words up to the next option, or the word in "--option=word". If the
    option is given twice, the last one counts. None if it is not given."""
    values = None
    in_option = False
    for word in words:
        if word == option:
            values = []
            in_option = True
        elif word.startswith(f"{option}="):
            values = [word.partition("=")[2]]
            in_option = True
        elif word.startswith("--"):
            in_option = False
        elif in_option:
            values.append(word)
    return values
