"""`vitkit finetune`: published weights, trained further on your own images."""

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import arg

from vitkit.commands import Defaults
from vitkit.commands.finetune_quick import earlier_model, finetune_quick
from vitkit.commands.guesses import is_model
from vitkit.commands.parsing import read_some
from vitkit.commands.recipe import with_augmentation_as_given, with_evals, with_length
from vitkit.commands.transfer_output import Regularise, print_transfer, say_regularisation
from vitkit.data import Columns
from vitkit.evaluation import EvaluatorName
from vitkit.recipes import PRESETS, SIDES, SWEEP, TABLE_4, Like, choose_pretrained, vtab_task
from vitkit.recipes import finetune as paper
from vitkit.studies import transfer
from vitkit.system.console.text import as_word, printable
from vitkit.system.machine import pick_device
from vitkit.system.processes.ranks import on_rank_0, process_group
from vitkit.system.processes.watchdog import PATIENCE
from vitkit.training import Recipe, default_run_dir
from vitkit.verbs import Data, DataColumns, Device, Model, ModelHints
from vitkit.weights import Hints

HELP = ("-h", "--help")


@dataclass
class Options:
    """The options of `vitkit finetune` itself."""

    model: Model
    data: Data
    preset: Literal[PRESETS] = "quick"
    """quick: a head in closed form in seconds, then fine-tuning for --minutes, and the better of the
    two. none: ten epochs. The others are rows of the paper's Table 4, and BiT's rule."""
    like: Like = "paper"
    """What a row of Table 4 feeds in training. paper: BiT's preprocessing, a random crop of a square,
    mirrored or not; code: the Inception crop of the released code."""
    minutes: float = 2.0
    """With --preset quick: the time for all of it. The first model is made in any case; the
    fine-tuning gets what is left."""
    select: bool = False
    """Choose the learning rate first, on held-out training images, then train on everything but the
    test part."""
    rates: tuple[float, ...] = ()
    """Learning rates to choose from. Default: the preset's, or 0.001, 0.003, 0.01 and 0.03."""
    regularising: Annotated[Regularise, arg(name="")] = field(default_factory=Regularise)
    seeds: int = 1
    """Number of final runs, one per seed; their mean and standard deviation are printed."""
    evaluators: Annotated[tuple[EvaluatorName, ...], arg(name="evals")] = ()
    """Evaluators that measure the runs, instead of accuracy. Each then has settings, such as
    --evals.0.every and --evals.0.data."""
    workdir: Path | None = None
    """Directory of the run. Default: one in runs/, called after the images."""
    device: Device = "auto"
    patience: float = PATIENCE
    """Seconds without progress after which a run of several processes (torchrun) ends and says
    which one is missing."""
    hints: ModelHints = field(default_factory=Hints)


@dataclass
class FirstPass(Options):
    """Make a classifier of your own images from published weights: `vitkit finetune photos/`, with a
    folder of photographs for every class. MODEL may be left out. With --preset, train as the paper
    does. The same command continues a run that was interrupted. `vitkit finetune MODEL DATA --help`
    lists every setting of the run, with the values that follow from MODEL, DATA and --preset."""

    columns: DataColumns = field(default_factory=Columns)


@dataclass
class Finetune(Options):
    """Make a classifier of your own images from published weights; with --preset, as the paper
    does. The same command continues a run that was interrupted."""

    recipe: Annotated[Recipe, arg(name="")] = field(kw_only=True)


def defaults(words: list[str]) -> Defaults:
    """Every setting of a run, from the model, the data and the preset.

    The words are read twice:

    1. Here, for what decides the recipe: MODEL, DATA, --preset, --data.columns and what is said of MODEL.
    2. By the command line, for all settings, which begin as the recipe has them.

    MODEL may be left out: then it is chosen. If the words do not begin with DATA, --help is answered
    in the first pass.
    """
    names = _names(words)
    asks_for_help = any(word in HELP for word in words)

    # MODEL and DATA
    rest = words[len(names) :]
    named = names
    if len(names) == 1:
        named = [_model_for(names[0], rest), names[0]]

    # What decides the recipe; --help is for the second pass, which knows all settings
    if names:
        rest = [word for word in rest if word not in HELP]
    first = read_some(FirstPass, "vitkit finetune", [*named, *rest])
    preset = first.preset
    chooses = first.select or first.rates or first.regularising.values()
    if preset == "quick" and (chooses or first.seeds > 1):
        preset = "none"
        print(
            "--select, --rates, --regularise and --seeds are a protocol's: took --preset none",
            file=sys.stderr,
        )
    try:
        recipe = paper(first.model, first.data, preset, first.hints, first.columns, like=first.like)
    except (ValueError, OSError) as error:
        if not asks_for_help:
            raise
        print(f"Without the settings of a run, which follow from MODEL and DATA, because {error}\n")
        read_some(FirstPass, "vitkit finetune", ["--help"])  # leaves
        raise
    _say_side(recipe, first)
    _say_task(recipe, first, words)
    recipe = with_length(with_evals(recipe, words), words)
    recipe = with_augmentation_as_given(recipe, words)
    settings = Finetune(
        first.model,
        first.data,
        preset,
        like=first.like,
        minutes=first.minutes,
        hints=first.hints,
        recipe=recipe,
    )
    return Defaults(settings, words=len(names))


def _say_side(recipe: Recipe, options: Options) -> None:
    """Say that a preset's image size is another, because the model's patch does not divide it."""
    side = max(recipe.model.image)
    if options.preset in ("quick", "none") or options.hints.image or side in SIDES:
        return
    print(
        f"{side} x {side} pixels: the model's patches do not divide the {options.preset} preset's own "
        "size",
        file=sys.stderr,
    )


def _say_task(recipe: Recipe, options: Options, words: list[str]) -> None:
    """Say what the vtab preset knows of the labels, which decides what training images go through,
    unless the words do."""
    decided = any(word.startswith("--data.augmentation.") for word in words)
    if options.preset != "vtab" or options.like != "paper" or decided:
        return
    task = vtab_task(options.data)
    augmentation = recipe.data.augmentation
    left_out = []
    if not augmentation.flip:
        left_out.append("mirrored")
    if augmentation.crop == "none":
        left_out.append("cropped")
    if task is None:
        print(
            f"{options.data} is no task of VTAB by its name, so the model is asked whether cropped and "
            "mirrored images keep their class (--data.augmentation.no-auto does not ask)",
            file=sys.stderr,
        )
    elif left_out:
        print(f"{task} is a task of VTAB: not {' and not '.join(left_out)}", file=sys.stderr)


def _names(words: list[str]) -> list[str]:
    """The words before the first option, two at most: MODEL and DATA, or DATA alone."""
    names = []
    for word in words[:2]:
        if word.startswith("-"):
            break
        names.append(word)
    return names


def _model_for(data: str, rest: list[str]) -> str:
    """The weights to begin with, if nobody says: those that a run for the same images began with,
    else chosen now. Says which, and why."""
    if is_model(data):
        raise ValueError(
            f"{data} is a model, and the photographs are missing: vitkit finetune {as_word(data)} DATA"
        )
    first = read_some(FirstPass, "vitkit finetune", ["", data, *_without_help(rest)])
    earlier = earlier_model(data, first.workdir, first.minutes)
    if earlier:
        return earlier
    choice = choose_pretrained(first.minutes, pick_device(first.device))
    print(printable(f"beginning with {choice.why}"), file=sys.stderr)
    return choice.model


def _without_help(words: list[str]) -> list[str]:
    return [word for word in words if word not in HELP]


def finetune(command: Finetune) -> int:
    """Make a classifier of images: quickly, or by a protocol."""
    if command.preset == "quick":
        return finetune_quick(command)
    return _by_protocol(command)


def _by_protocol(command: Finetune) -> int:
    """Fine-tune, print what each learning rate and seed reached, and write the report."""
    from vitkit.training import report

    run_dir = command.workdir or default_run_dir(command.data, command.recipe.name)
    values = command.regularising.values()
    with process_group(command.device, command.patience):
        if on_rank_0():
            say_regularisation(command.recipe, values)
        outcome = transfer(
            command.recipe, run_dir, _rates(command), command.seeds, command.device, values
        )
        if on_rank_0():
            print_transfer(outcome)
            page = report(run_dir)
            print(f"wrote {run_dir / 'model'}, {run_dir / 'transfer.json'} and {page}")
            print(
                f"next: vitkit predict {as_word(run_dir)} IMAGE..., or vitkit evaluate {as_word(run_dir)} DATA"
            )
    return 0


def _rates(command: Finetune) -> tuple[float, ...]:
    """The learning rates to choose from; empty for the recipe's own."""
    if command.rates or not command.select:
        return command.rates
    if command.preset in TABLE_4:
        return TABLE_4[command.preset].rates
    return SWEEP
