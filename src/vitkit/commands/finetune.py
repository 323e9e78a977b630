"""`vitkit finetune [MODEL] DATA`: the settings of a run."""

from vitkit.commands import Defaults
from vitkit.commands.parsing import read_some
from vitkit.commands.recipe import given_options
from vitkit.verbs import FirstPass, ModelAndImages, begin_finetune

HELP = ("-h", "--help")


def defaults(words: list[str]) -> Defaults:
    """Every setting of a run, from the model, the data and the preset.

    The words are read twice:

    1. Here, for what decides the recipe: MODEL, DATA, --preset, --data.columns and what is said of MODEL.
    2. By the command line, for all settings, which begin as the recipe has them.

    If the words do not begin with DATA, --help is answered in the first pass.
    """
    names = _names(words)
    if not names:
        read_some(FirstPass, "vitkit finetune", words)  # leaves
    asks_for_help = any(word in HELP for word in words)
    named = [*names, ""][:2]  # without it, tyro would take the value of an option for DATA
    rest = [word for word in words[len(names) :] if word not in HELP]
    first = read_some(ModelAndImages, "vitkit finetune", [*named, *rest])
    try:
        settings = begin_finetune(first, given_options(words))
    except (ValueError, OSError) as error:
        if not asks_for_help:
            raise
        print(f"Without the settings of a run, which follow from MODEL and DATA, because {error}\n")
        read_some(FirstPass, "vitkit finetune", ["--help"])  # leaves
        raise
    return Defaults(settings, words=len(names))


def _names(words: list[str]) -> list[str]:
    """The words before the first option, two at most: MODEL and DATA, or DATA alone."""
    names = []
    for word in words[:2]:
        if word.startswith("-"):
            break
        names.append(word)
    return names
