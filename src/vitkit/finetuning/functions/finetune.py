"""`vitkit finetune`: fine-tuning of published weights on the user's images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from vitkit.data import Columns
from vitkit.evaluation import EvaluatorName
from vitkit.finetuning.fine_tuning import RUN
from vitkit.finetuning.functions.masks import MINUTES, check_alone, finetune_masks
from vitkit.finetuning.functions.result import (
    Finetuned,
    earlier_model,
    finetune_good,
    finetune_quick,
)
from vitkit.finetuning.good_images import only_class
from vitkit.recipes import TABLE_4, Recipe, choose_pretrained
from vitkit.recipes import finetune as recipe_of
from vitkit.recipes.finetuning import Like, Preset
from vitkit.recipes.table_4 import SIDES, SWEEP, vtab_task
from vitkit.system.console.messages import is_first, say
from vitkit.system.console.text import printable
from vitkit.system.errors import BadData, BadSettings, VitkitError
from vitkit.system.functions.arguments import name_on_disk
from vitkit.system.functions.override import override_all
from vitkit.system.functions.public import alone, public
from vitkit.system.functions.steps import DATA, MODEL, step
from vitkit.system.functions.types import DataLike, DeviceLike, Fields, PathLike, Several, SpanLike
from vitkit.system.functions.words import is_model, kind_of
from vitkit.system.machine import pick_device
from vitkit.system.processes.ranks import on_rank_0, process_group
from vitkit.system.processes.watchdog import PATIENCE
from vitkit.system.span import Span
from vitkit.system.storage.files import nearest
from vitkit.training import (
    counting_as_typed,
    default_run_dir,
    dotted,
    keep,
    regularisation,
    say_regularisation,
    tidied,
    transfer,
    with_augmentation_as_given,
    with_evals,
    with_length,
)
from vitkit.training import report as report_of_run
from vitkit.training.run import check_apart
from vitkit.weights import Hints, ModelLike, Overrides, hints_of, load

KEYS = Overrides.__annotations__
"""Settings of the model's file; all other settings belong to the recipe."""

# Settings of a recipe that a model of good images has
OF_GOOD_IMAGES = (
    "precision", "init", "data.source", "data.columns", "data.groups", "data.exclude", "data.preprocessing",
)  # fmt: skip

if TYPE_CHECKING:
    OwnRecipe = Recipe
    RunSettings = Any
else:
    OwnRecipe = Annotated[Any, Fields((Recipe,))]
    RunSettings = Annotated[Any, Fields((Overrides,))]


@dataclass(frozen=True)
class Beginning:
    """Resolved inputs of a run: the model, the images, the preset and the resulting recipe."""

    model: str
    data: str
    preset: Preset
    recipe: Recipe


def beginning(
    model: str,
    data: str,
    *,
    preset: Preset,
    like: Like,
    minutes: float,
    is_protocol: bool,
    evaluators: Sequence[str] | None,
    length: Span | None,
    workdir: Path | None,
    device: str,
    columns: Columns,
    hints: Hints,
    given: frozenset[str],
) -> Beginning:
    """The model, the images, the preset and the recipe of a run.

    Args:
        is_protocol: Whether learning rates, regularisation or seeds are asked for, which the quick preset
            does not have.
        given: The names of all settings that the caller gives, such as "optim.lr".

    Raises BadSettings without images.
    """
    # MODEL and DATA; a single one is DATA
    data = tidied(data or model)
    if not data:
        raise BadSettings(f"the images are missing: {step('finetune', DATA)}")
    if tidied(model) in ("", data):
        model = _model_for(data, workdir, minutes, device, columns)

    # The preset
    if preset == "quick" and is_protocol:
        preset = "none"
        say("`select`, `rates`, `regularise` and `seeds` are a protocol's: took `preset='none'`")

    # The recipe
    on_gpu = pick_device(device).type == "cuda"
    recipe = recipe_of(model, data, preset, hints, columns, like=like, on_gpu=on_gpu)
    _log_image_size(recipe, preset, hints)
    _log_vtab_task(recipe, data, preset, like, given)
    recipe = with_length(with_evals(recipe, evaluators or None), length, given)
    return Beginning(model, data, preset, with_augmentation_as_given(recipe, given))


def _good_class(data: str, columns: Columns) -> str:
    """The class of the good images of a data set that has images of one class to learn from; "" if it has not, or
    cannot be read."""
    try:
        return only_class(data, columns)
    except (VitkitError, OSError):
        return ""


def _model_for(
    data: str,
    workdir: Path | None,
    minutes: float,
    device: str,
    columns: Columns,
) -> str:
    """Choose pre-trained weights when none are given: the initial weights of an earlier run on the same
    images, or else new ones. Logs the choice and its reason."""
    if is_model(data):
        raise BadSettings(
            f"{data} is a model, and the photographs are missing: {step('finetune', data, DATA)}"
        )
    near = nearest(data)
    if near and not kind_of(data):  # checked before the slower choice of weights
        raise BadSettings(f"there is no folder, file or data set {data!r}{near}")
    earlier = earlier_model(data, workdir, minutes)
    if earlier:
        return earlier
    following = step("finetune", MODEL, data, columns=columns)
    choice = choose_pretrained(minutes, pick_device(device), following)
    say(printable(f"beginning with {choice.why}"))
    return choice.model


def _log_image_size(recipe: Recipe, preset: Preset, hints: Hints) -> None:
    """Log that the image size differs from the preset's, which the patch size does not divide."""
    side = max(recipe.model.image)
    if preset in ("quick", "none") or hints.image or side in SIDES:
        return
    say(f"{side} x {side} pixels: the model's patches do not divide the {preset} preset's own size")


def _log_vtab_task(
    recipe: Recipe, data: str, preset: Preset, like: str, given: frozenset[str]
) -> None:
    """Log what the vtab preset knows about the labels, which decides the augmentation of training images,
    unless the caller has set it."""
    decided = any(name.startswith("data.augmentation.") for name in given)
    if preset != "vtab" or like != "paper" or decided:
        return
    task = vtab_task(data)
    augmentation = recipe.data.augmentation
    left_out = []
    if not augmentation.flip:
        left_out.append("mirrored")
    if augmentation.crop == "none":
        left_out.append("cropped")
    if task is None:
        say(
            f"{data} is not a task of VTAB by its name, so the model is asked whether cropped and "
            "mirrored images keep their class (`data.augmentation.auto=False` does not ask)"
        )
    elif left_out:
        say(f"{task} is a task of VTAB: not {' and not '.join(left_out)}")


@public
@alone
def finetune(
    model: ModelLike,
    data: DataLike = "",
    *,
    preset: Preset = "quick",
    like: Like = "paper",
    minutes: float = MINUTES,
    portable: bool = False,
    normal: str = "",
    select: bool = False,
    rates: Several[float] = (),
    regularise: bool = False,
    weight_decays: Several[float] = (),
    dropouts: Several[float] = (),
    label_smoothings: Several[float] = (),
    seeds: int = 1,
    evaluators: Several[EvaluatorName] = (),
    length: SpanLike | None = None,
    workdir: PathLike | None = None,
    device: DeviceLike = "auto",
    fast: bool = False,
    patience: float = PATIENCE,
    columns: Columns = Columns(),
    masks: DataLike = "",
    legend: PathLike | None = None,
    ignore: int | None = None,
    data__exclude: PathLike | None = None,
    recipe: OwnRecipe | None = None,
    **settings: RunSettings,
) -> Finetuned:
    """Make a classifier of your own images from published weights: `vitkit finetune photos/`, with a
    folder of photographs for every class. Of one folder of good images it makes a model that says which
    images are unlike them, and where. MODEL may be left out. With `preset`, train as the paper does. The
    same command continues a run that was interrupted. `vitkit finetune MODEL DATA --help` lists every
    setting of the run, with the values that follow from MODEL, DATA and `preset`.

    Args:
        model: A run, a model directory, a file of weights (vitkit's, Hugging Face's, timm's,
            torchvision's or Google's), or the name of a published model. May be left out: then the first
            argument is the images, and published weights are chosen.
        data: A folder, a manifest, parquet files, tar shards, an address (https://, s3://, gs://),
            hf:NAME on the Hugging Face hub, file.py:function, or digits.
        preset: quick: computes a head in closed form in seconds, fine-tunes for `minutes`, and keeps the
            better of the two models. none: ten epochs. The others are rows of the paper's Table 4, and
            BiT's rule.
        like: Training images for a row of Table 4. paper: BiT's preprocessing, a random crop of a square
            with random mirroring; code: the Inception crop of the released code.
        minutes: With `preset='quick'`: total time. The first model is always made, and fine-tuning gets
            the rest of the time. With `masks`, a quarter of it may go to trying more patches, and 0 makes the
            first model alone.
        portable: With `preset='quick'`: the head reads only the class token of the last block, so that
            Transformers and timm can open the model too. This may cost accuracy; the command prints how
            much.
        normal: With `preset='quick'`: the class of good images. The model compares images with these, and
            tells all others from them; images of other classes only measure it. Default: the class of
            a data set that has only one.
        select: Choose the learning rate first, on held-out training images, then train on everything but
            the test part.
        rates: Learning rates to choose from. Default: the preset's, or 0.001, 0.003, 0.01 and 0.03.
        regularise: First choose weight decay, dropout and label smoothing on held-out training images, as
            the paper does on its smaller data sets. Every combination of the following values is tried,
            and the recipe's own values.
        weight_decays: Weight decays to choose from. Default, with `regularise`: 0.03, 0.1 and 0.3.
        dropouts: Rates of dropout to choose from. Default, with `regularise`: 0 and 0.1.
        label_smoothings: Label smoothings to choose from. Default, with `regularise`: 0 and 0.1.
        seeds: Number of final runs, one per seed; their mean and standard deviation are printed.
        evaluators: Evaluators that measure the runs, instead of accuracy. Each then has settings, such
            as `evals.0.every` and `evals.0.data`.
        length: How long the run is, such as 10epochs, instead of the preset's length.
        workdir: Directory of the run. Default: one in runs/, named after the images.
        device: cpu, cuda, cuda:1 or mps; auto chooses the best one.
        fast: At the end, search for a faster model that loses at most half a percentage point, like
            `vitkit.faster`.
        patience: Seconds without progress after which a run of several processes (torchrun) ends and
            says which one is missing.
        columns: Columns of a table that hold the image and its label. Default: found by their usual
            names.
        masks: Masks of the images: a folder of files with the images' names, a COCO file (.json), or the column
            of DATA that holds them. The model then classifies every pixel (docs/masks.md), and `vitkit.segment`
            uses it. With `normal`, where images of the test part are defective
            (`vitkit.evaluate` explains it); default then: the folder ground_truth in DATA.
        legend: Text or JSON file that says which value or colour of a mask is which class, such as the lines
            "road, 0" or "64, 0, 128, car". Default: the classes in the metadata of parquet files, or numbers.
        ignore: Value of a mask whose pixels do not count. 255 is one unless a class has it.
        data__exclude: File that lists training images to leave out, each line a name. `vitkit.stats` and
            `vitkit.review` write such files.
        recipe: The recipe of the run, instead of the one that follows from `model`, `data` and `preset`.
        **settings: Overrides of what the file of `model` says (`vitkit.weights.Overrides`: image=384), and
            any setting of the recipe, with two underscores before the field of a part: batch=256,
            optim__lr=0.1. Also quiet=True, which logs nothing, and progress=FUNCTION, which receives all
            messages.

    Raises:
        BadSettings: If settings do not go together.
        BadData: If no classifier can be made of the images.
        Interrupted: If the run was asked to stop, and has saved itself.
    """
    images = data or model
    if isinstance(images, str):
        check_apart(workdir, images)
    if masks and not normal:
        given = {
            "preset": preset != "quick", "like": like != "paper", "portable": portable, "select": select,
            "rates": rates, "regularise": regularise, "weight_decays": weight_decays, "dropouts": dropouts,
            "label_smoothings": label_smoothings, "seeds": seeds != 1, "evaluators": evaluators,
            "length": length, "fast": fast, "recipe": recipe is not None,
        }  # fmt: skip
        others = [name for name, is_given in given.items() if is_given]
        others += [name for name in settings if name not in KEYS]
        check_alone(others)
        try:
            return finetune_masks(
                name_on_disk(model, "finetune"),
                data,
                masks=masks,
                legend=legend,
                ignore=ignore,
                minutes=minutes,
                workdir=workdir,
                device=device,
                columns=columns,
                hints=hints_of(settings),
                patience=patience,
                exclude=str(data__exclude or ""),
                choose=_model_for,
            )
        except BadData as error:
            name = _good_class(data or str(model), columns)
            if not name or data__exclude is not None:  # it may be about the list
                raise
            raise BadData(
                f"{error}; if the images to learn from are good ones, and masks say where others are defective, give "
                f"`normal={name!r}`"
            ) from None
    if legend is not None or ignore is not None:
        raise BadSettings(
            "`legend` and `ignore` are about masks with classes: give these with `masks`, and without `normal`"
        )
    if data__exclude is not None:
        settings |= {"data__exclude": data__exclude}
    values = regularisation(regularise, weight_decays, dropouts, label_smoothings)
    of_model = {name: settings[name] for name in settings if name in KEYS}
    of_recipe = {name: settings[name] for name in settings if name not in KEYS}
    hints = hints_of(of_model)
    model_is_given = bool(data) or recipe is not None
    if recipe is None:
        begun = beginning(
            name_on_disk(model, "finetune"),
            data,
            preset=preset,
            like=like,
            minutes=minutes,
            is_protocol=bool(select or rates or values or seeds > 1),
            evaluators=evaluators,
            length=length,
            workdir=workdir,
            device=device,
            columns=columns,
            hints=hints,
            given=dotted(settings),
        )
        data, preset, recipe = begun.data, begun.preset, begun.recipe
    data = data or recipe.data.source
    recipe = override_all("finetune", recipe, of_recipe)
    if fast and preset != "quick":
        raise BadSettings(
            f"`fast` goes with `preset='quick'`; {step('faster', MODEL)} takes any other run"
        )

    if normal and preset != "quick":
        raise BadSettings(
            f"`normal={normal!r}` goes with `preset='quick'`, not with `preset={preset!r}`"
        )
    good = ""
    if preset == "quick":
        good = normal or only_class(recipe.data.source, recipe.data.columns)
    if good and (fast or portable):
        raise BadSettings(
            f"`fast` and `portable` are for classifiers, and a model of good images ({good}) has no head that "
            "could be simpler; leave them out"
        )

    if good:
        if not normal:
            say(
                printable(
                    f"all images to learn from are of one kind, {good}: the model learns what these look like, and "
                    "finds others that are unlike them. A classifier needs a folder for each class, such as cats/ "
                    "and dogs/"
                )
            )
        unused = [name for name in sorted(dotted(of_recipe)) if not name.startswith(OF_GOOD_IMAGES)]
        given = {
            "length": length is not None, "evaluators": evaluators,
            "minutes": minutes != MINUTES and model_is_given,
        }  # fmt: skip
        unused += [name for name, is_given in given.items() if is_given]
        if unused:
            say(
                f"a model of good images is not trained, so `{'`, `'.join(unused)}` changes nothing in it"
            )
        made = finetune_good(
            recipe, data, workdir, good, hints, device, patience, masks, dotted(of_recipe)
        )
    elif preset == "quick":
        made = finetune_quick(recipe, data, workdir, minutes, portable, hints, device, patience)
        track = recipe.track
        if track and not (made.run_dir / RUN).exists():
            say(f"nothing was fine-tuned, so `track={track!r}` has nothing to show")
    else:
        run_dir = workdir or default_run_dir(data, recipe.name)
        if select and not rates:
            rates = SWEEP
            if preset in TABLE_4:
                rates = TABLE_4[preset].rates
        with process_group(device, patience):
            say_regularisation(recipe, values)
            outcome = transfer(recipe, run_dir, rates, seeds, device, values)
            page = run_dir / "report.html"
            if on_rank_0():
                page = report_of_run(run_dir, typed=(recipe.data.source,))
            classifier = load(run_dir, quiet=True)
        made = Finetuned(data, workdir, classifier, run_dir, page, None, outcome)
    if is_first():
        keep(made.run_dir)
    if fast and is_first():
        return _with_faster(made, recipe.data.source)
    return made


def _with_faster(made: Finetuned, source: str) -> Finetuned:
    """The result with a faster model of the run, or a log message about why there is none. Never raises:
    the run itself has succeeded."""
    import vitkit  # an application, which the core does not import

    try:
        with counting_as_typed(source):
            return replace(made, fast=vitkit.faster(str(made.run_dir)))
    except KeyboardInterrupt:  # the result of the run must still be printed
        say(f"interrupted, so no faster model is written; {step('faster', made.run_dir)} goes on")
    except Exception as error:  # the exporters' errors have no common class
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        say(f"no faster model: {reason}")
    return made
