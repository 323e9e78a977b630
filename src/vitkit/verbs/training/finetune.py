"""Published weights, trained further on one's own images."""

from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import arg

from vitkit.data import Columns
from vitkit.evaluation import EvaluatorName
from vitkit.quick import RUN
from vitkit.recipes import PRESETS, SIDES, SWEEP, TABLE_4, Like, choose_pretrained, vtab_task
from vitkit.recipes import finetune as recipe_of
from vitkit.studies import transfer
from vitkit.system.console.messages import is_first, say
from vitkit.system.console.text import as_word, printable
from vitkit.system.errors import BadSettings
from vitkit.system.machine import pick_device
from vitkit.system.processes.ranks import on_rank_0, process_group
from vitkit.system.processes.watchdog import PATIENCE
from vitkit.system.span import Span
from vitkit.system.storage.files import nearest
from vitkit.training import Recipe, default_run_dir, tidied
from vitkit.training import report as report_of_run
from vitkit.verbs.arguments import Data, DataColumns, Device, Model, ModelHints, name_on_disk
from vitkit.verbs.definition import alone, verb_that_begins
from vitkit.verbs.files.export import keep
from vitkit.verbs.files.faster import faster_of_run
from vitkit.verbs.training.quick import Finetuned, earlier_model, finetune_quick
from vitkit.verbs.training.train import (
    Regularise,
    say_regularisation,
    with_augmentation_as_given,
    with_evals,
    with_length,
)
from vitkit.verbs.words import is_model, kind_of
from vitkit.weights import Hints, load


@dataclass(frozen=True)
class Options:
    """The options of `vitkit finetune` itself."""

    model: Model = ""
    data: Data = ""
    preset: Literal[PRESETS] = "quick"
    """quick: computes a head in closed form in seconds, fine-tunes for --minutes, and keeps the
    better of the two models. none: ten epochs. The others are rows of the paper's Table 4, and
    BiT's rule."""
    like: Like = "paper"
    """Training images for a row of Table 4. paper: BiT's preprocessing, a random crop of a square
    with random mirroring; code: the Inception crop of the released code."""
    minutes: float = 2.0
    """With --preset quick: total time. The first model is always made, and fine-tuning gets the
    rest of the time."""
    portable: bool = False
    """With --preset quick: the head reads only the class token of the last block, so that
    Transformers and timm can open the model too. This may cost accuracy; the command prints how
    much."""
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
    """Directory of the run. Default: one in runs/, named after the images."""
    device: Device = "auto"
    fast: bool = False
    """At the end, search for a faster model that loses at most half a percentage point, like vitkit
    faster."""
    patience: float = PATIENCE
    """Seconds without progress after which a run of several processes (torchrun) ends and says
    which one is missing."""
    hints: ModelHints = field(default_factory=Hints)


@dataclass(frozen=True)
class FirstPass(Options):
    """Make a classifier of your own images from published weights: `vitkit finetune photos/`, with a
    folder of photographs for every class. MODEL may be left out. With --preset, train as the paper
    does. The same command continues a run that was interrupted. `vitkit finetune MODEL DATA --help`
    lists every setting of the run, with the values that follow from MODEL, DATA and --preset."""

    columns: DataColumns = field(default_factory=Columns)


@dataclass(frozen=True)
class Finetune(Options):
    """Make a classifier of your own images from published weights; with --preset, fine-tune as in
    the paper. The same command continues a run that was interrupted."""

    recipe: Annotated[Recipe, arg(name="")] = field(kw_only=True)


@dataclass(frozen=True)
class ModelAndImages(FirstPass):
    """The words that determine the other settings of a run. MODEL may be left out: then the
    first word is DATA."""

    length: Span | None = None
    """Length of the run, instead of the preset's."""


def begin_finetune(first: ModelAndImages, given: frozenset[str]) -> Finetune:
    """All settings of a run, from the model, the images and the preset. Raises ValueError without
    images."""
    # MODEL and DATA; a single word is DATA
    model = name_on_disk(first.model, "finetune")
    data = tidied(first.data or model)
    if not data:
        raise BadSettings("the images are missing: vitkit finetune [MODEL] DATA")
    if tidied(model) in ("", data):
        model = _model_for(data, first)
    first = replace(first, model=model, data=data)

    # The preset
    preset = first.preset
    chooses = first.select or first.rates or first.regularising.values()
    if preset == "quick" and (chooses or first.seeds > 1):
        preset = "none"
        say("`select`, `rates`, `regularise` and `seeds` are a protocol's: took `preset='none'`")

    # The recipe
    recipe = recipe_of(first.model, first.data, preset, first.hints, first.columns, like=first.like)
    _say_side(recipe, first)
    _say_task(recipe, first, given)
    evaluators = first.evaluators or None
    recipe = with_length(with_evals(recipe, evaluators), first.length, given)
    recipe = with_augmentation_as_given(recipe, given)
    own = {each.name: getattr(first, each.name) for each in fields(Options)}
    return Finetune(**own | {"preset": preset}, recipe=recipe)


def _model_for(data: str, options: Options) -> str:
    """Choose pretrained weights when none are given: those that a run for the same images began with,
    else chosen now. Says which, and why."""
    if is_model(data):
        raise BadSettings(
            f"{data} is a model, and the photographs are missing: vitkit finetune {as_word(data)} DATA"
        )
    near = nearest(data)
    if near and not kind_of(data):  # before weights are looked for, which takes longer
        raise BadSettings(f"there is no folder, file or data set {data!r}{near}")
    earlier = earlier_model(data, options.workdir, options.minutes)
    if earlier:
        return earlier
    choice = choose_pretrained(options.minutes, pick_device(options.device))
    say(printable(f"beginning with {choice.why}"))
    return choice.model


def _say_side(recipe: Recipe, options: Options) -> None:
    """Say that a preset's image size is another, because the model's patch does not divide it."""
    side = max(recipe.model.image)
    if options.preset in ("quick", "none") or options.hints.image or side in SIDES:
        return
    say(
        f"{side} x {side} pixels: the model's patches do not divide the {options.preset} preset's own "
        "size"
    )


def _say_task(recipe: Recipe, options: Options, given: frozenset[str]) -> None:
    """Say what the vtab preset knows of the labels, which decides what training images go through,
    unless the words do."""
    decided = any(name.startswith("data.augmentation.") for name in given)
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
        say(
            f"{options.data} is not a task of VTAB by its name, so the model is asked whether cropped and "
            "mirrored images keep their class (`data.augmentation.auto=False` does not ask)"
        )
    elif left_out:
        say(f"{task} is a task of VTAB: not {' and not '.join(left_out)}")


@verb_that_begins(begin_finetune)
@alone
def finetune(settings: Finetune) -> Finetuned:
    """Make a classifier of one's own images from published weights: quickly, a head in closed form in
    seconds and then a better model in minutes; or by a protocol, with a preset of the paper's.

    Raises ValueError if no classifier can be made of the images, Interrupted after a stop.
    """
    if settings.fast and settings.preset != "quick":
        raise BadSettings(
            "`fast` goes with `preset='quick'`; vitkit faster RUN takes any other run"
        )
    if settings.preset == "quick":
        made = finetune_quick(settings)
        track = settings.recipe.track
        if track and not (made.run_dir / RUN).exists():
            say(f"nothing was fine-tuned, so `track={track!r}` has nothing to show")
    else:
        made = _by_protocol(settings)
    if is_first():
        keep(made.run_dir)
    if settings.fast and is_first():
        return _with_faster(made)
    return made


def _with_faster(made: Finetuned) -> Finetuned:
    """The same with a faster model of the run, or a sentence why there is none: the run has ended well."""
    try:
        typed = (made.settings.recipe.data.source,)
        return replace(made, fast=faster_of_run(made.run_dir, typed))
    except KeyboardInterrupt:  # what the run found is still to be said
        say(
            f"interrupted, so no faster model is written; vitkit faster {as_word(made.run_dir)} goes on"
        )
    except Exception as error:  # the exporters' errors have no common class
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        say(f"no faster model: {reason}")
    return made


def _by_protocol(settings: Finetune) -> Finetuned:
    """Fine-tune with each learning rate and seed, and write the report."""
    run_dir = settings.workdir or default_run_dir(settings.data, settings.recipe.name)
    page = run_dir / "report.html"
    values = settings.regularising.values()
    with process_group(settings.device, settings.patience):
        say_regularisation(settings.recipe, values)
        rates = _rates(settings)
        outcome = transfer(settings.recipe, run_dir, rates, settings.seeds, settings.device, values)
        if on_rank_0():
            page = report_of_run(run_dir, typed=(settings.recipe.data.source,))
        classifier = load(run_dir, quiet=True)
    return Finetuned(settings, classifier, run_dir, page, None, outcome)


def _rates(settings: Finetune) -> tuple[float, ...]:
    """The learning rates to choose from; empty for the recipe's own."""
    if settings.rates or not settings.select:
        return settings.rates
    if settings.preset in TABLE_4:
        return TABLE_4[settings.preset].rates
    return SWEEP
