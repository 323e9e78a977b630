"""The settings of a run, as one frozen value, the Recipe.

A recipe leaves some settings open (the number of classes, spans in epochs). `resolve` fills them in from the data
and returns a new Recipe, which runs and is saved.
"""

import math
from dataclasses import dataclass, field, fields, replace
from importlib.util import find_spec
from pathlib import PurePath
from typing import Annotated, Literal, NamedTuple

from tyro.conf import arg

from vitkit.data import Augmentation, Columns, Preprocessing, TargetKind
from vitkit.evaluation import Eval
from vitkit.models import ModelConfig, ViTConfig
from vitkit.objectives import Objective, Supervised
from vitkit.recipes.optim import Optim, Tune
from vitkit.recipes.trackers import check_tracker
from vitkit.system.errors import BadSettings, Unsupported
from vitkit.system.machine import Precision, PrecisionChoice
from vitkit.system.processes.ranks import world
from vitkit.system.span import Span
from vitkit.system.storage.addresses import shown_address
from vitkit.system.values import check_settings

# Seeds of dropout are `seed` times a million plus an offset (step.py), and PyTorch's seeds have 64 bits
MAX_SEED = 10**12


@dataclass(frozen=True)
class Data:
    """The images, and how they are prepared for the model."""

    # Source
    source: str = ""
    """Folder of images, CSV or JSONL manifest, parquet files, tar shards, their address, hf:NAME,
    or digits (docs/data.md)."""
    columns: Columns = field(default_factory=Columns)
    """Which columns of a table hold the image and its label. By default they are found by
    their names."""
    groups: Annotated[Literal["auto", "none"] | str, arg(aliases=["--groups"])] = "auto"
    """Which images belong together, and stay on the same side of every split that vitkit makes.
    auto: images with the same value in --data.columns.group; without this column, photographs of
    one burst, which vitkit detects. none: no images. Otherwise the name of a column."""
    masks: str = ""
    """Masks of the images, if the model learns a class for every pixel: a folder of files with the
    images' names, a COCO file (.json), or the column that holds them (docs/masks.md)."""
    legend: str = ""
    """File that says which value or colour of a mask is which class. Default: the classes in the
    metadata of parquet files, or numbers."""
    ignore: int | None = None
    """Value of a mask whose pixels do not count. 255 is one unless a class has it."""
    exclude: str = ""
    """File that lists training images to leave out, as `vitkit data stats SOURCE --exclude FILE`
    writes it."""

    # Preparation
    preprocessing: Preprocessing = field(default_factory=Preprocessing)
    """How every image is prepared in evaluation and prediction; saved with the model."""
    augmentation: Augmentation = field(default_factory=Augmentation)
    """How training images are prepared instead."""

    # Broken images
    on_bad_image: Literal["fail", "skip"] = "fail"
    """What to do with a broken image: refuse to start the run, or leave the image out and list
    it."""
    check: bool = True
    """Decode every image once before the run. Without this check, a broken image stops the run when
    its turn comes. Switch it off for millions of images that are known to be sound, such as packed
    ones."""

    # Parts for training and evaluation
    parts: Literal["given", "select", "final", "three"] = "given"
    """Which images are for training and which for evaluation. given: the parts of the data set.
    select: evaluate on the val part, or on `hold_out` of the training images if there is a test
    part but no val part; for choosing settings without using the test part. final: train on
    everything except the test part; for the run after that choice. three: like select, and also
    evaluate on the test part; for `best` weights that are not chosen on the test part."""
    hold_out: float = 0.1
    """Share of the training images of every class that parts "select" and "three" hold out for
    evaluation."""
    split_seed: int = 0
    """Seed that draws the images of a part that the data set lacks. It is independent of `seed`, so
    that runs with several seeds share one test part."""
    subset: float = 1.0
    """Share of the training images to train on, or their number if it is above 1 (Section 4.3). A
    larger subset contains every smaller one. The images for evaluation stay the same."""
    subset_by_class: bool = False
    """Draw the same share of every class for the subset, instead of drawing from all images."""
    subset_seed: int = 0
    """Seed that draws the subset."""

    # The machine: these do not change the result, except for the order of large remote data
    keep_decoded: float = 1.0
    """Gigabytes of memory for decoded training images; a larger data set is decoded again in every
    epoch."""
    workers: int = -1
    """Processes that decode images; 0 decodes in the main process, -1 follows the CPU quota. For
    more than 2 GB at an address, the order of the images depends on the number of processes at the
    beginning of the run."""

    def __post_init__(self):
        for name in ("source", "masks", "legend"):
            value = getattr(self, name)
            if isinstance(value, PurePath):
                object.__setattr__(self, name, str(value))
        check_settings(self)
        if not self.masks and (self.legend or self.ignore is not None):
            raise BadSettings(
                "`data.legend` and `data.ignore` are about masks: set `data.masks` too"
            )


@dataclass(frozen=True)
class Recipe:
    """One training run. Spans are "500 steps", "10 epochs" or "1e6 images"."""

    # Model and data
    model: ModelConfig
    """The network; `classes` 0 is replaced by the number of classes of the data."""
    data: Data
    """The images."""
    name: str = "unnamed"
    """Name of the run, which follows the name of the images in the default name of its
    directory."""
    init: str = ""
    """Weights to begin with, in any format: a run, a model directory, a file, or the name of a
    published model. Empty: initial weights."""
    init_head: bool = False
    """Begin with the head of `init` too, whose classes must be those of the images; otherwise the
    head is new."""

    # Optimisation
    optim: Optim = field(default_factory=Optim)
    """Optimiser and learning-rate schedule."""
    objective: Objective = field(default_factory=Supervised)
    """The objective that is minimised."""
    tune: Tune = field(default_factory=Tune)
    """Which of the model's parameters are trained."""

    # Length and batch size
    length: Span = Span(10, "epochs")
    """Length of the run."""
    batch: int = 512
    """Examples in an update, whatever the micro-batch."""
    micro_batch: int = 0
    """Examples in a forward pass; 0 is the whole batch. Smaller micro-batches add up to the same
    gradient and need less memory."""

    # Averaging of the weights, and computation of a step
    average: float = 0.0
    """Factor of the Polyak average of the weights (0.9999 in Section 4.1); 0 is off. If it is on,
    the average is evaluated and saved instead of the trained weights."""
    precision: PrecisionChoice = "float32"
    """Arithmetic of the matrix products; weights and loss stay float32. auto is bfloat16 where the
    CPU or GPU has instructions for it."""
    residual: Literal["float32", "bfloat16"] = "float32"
    """Arithmetic of the residual stream, the states between the layers (Equations 1 to 3), with precision
    bfloat16. bfloat16 is faster on a GPU, and with `recompute` needs less memory, but a model learned a little
    less from the same steps (docs/scaling.md). LayerNorms are computed in float32 in any case. In evaluation and
    prediction after the run the stream is float32."""
    compile: bool = False
    """Run the model through torch.compile."""
    recompute: bool = False
    """Activation checkpointing: recompute blocks in the backward pass, for less memory."""
    deterministic: bool = False
    """On a GPU, compute the same bits in every run, which takes longer: its attention adds up gradients
    in an order that varies. On a CPU it is always so."""
    shard_group: int = 0
    """Number of processes that share one copy of weights, gradients and optimiser, such as the 8 of
    a machine; 0 is all. Smaller groups exchange less data between machines and need more memory."""

    # Randomness
    seed: int = 0
    """Seed of the initial weights, order, augmentation and dropout."""

    # Evaluation, checkpoints and logs
    evals: tuple[Eval, ...] = ()
    """Evaluators that measure the run, when, and on which images. Default: the usual evaluator of
    the objective, on held-out images. Runs are compared by the first evaluator."""
    evaluate_every: Span = Span(1, "epochs")
    """Time between evaluations, for `evals` without their own. There is always an evaluation at the
    end of the run."""
    best: str = ""
    """Metric, such as val/top1, that chooses the weights: those at its best evaluation become the
    model (Section 4.3 reports the best validation accuracy). Among equal evaluations, the first
    counts. Empty: the last weights."""
    early_stop: int = 0
    """End the run after this many evaluations in a row without improvement in any metric of the
    first evaluator (accuracy or loss), or with `best` in that metric; 0 is never."""
    save_every: Span = Span(1, "epochs")
    """Time between checkpoints."""
    keep: int = 2
    """Number of checkpoints of `save_every` that stay on the disk; with two, a run survives damage
    to one. The checkpoint of an interruption is kept in addition, until the next is written."""
    log_every: int = 50
    """Number of steps between lines of the log."""
    track: str = ""
    """Trackers that also record the run (extra `track`): tensorboard, with events in the directory
    of the run; wandb or mlflow, which stay on this machine if there is no account; or a directory
    for TensorBoard's events. Each gets the numbers of metrics.jsonl, the settings, and pictures of
    mistakes."""

    def __post_init__(self):
        check_settings(self)

    @property
    def training_preprocessing(self) -> Preprocessing:
        """How training images are prepared: as in evaluation, but for a model that reads images with their own
        proportions at one size, that of the augmentation or else the model's."""
        preprocessing = self.data.preprocessing
        if not preprocessing.is_native:
            return preprocessing
        size = self.data.augmentation.size or self.model.image
        return replace(preprocessing, rule="square", resize=0, size=size)

    @property
    def arithmetic(self) -> Precision:
        """The precision. Raises BadSettings if it is still "auto"."""
        if self.precision == "auto":
            raise BadSettings("precision is 'auto'; give float32 or bfloat16")
        return self.precision


class Facts(NamedTuple):
    """The facts about the data that `resolve` needs."""

    examples: int
    """Number of images to train on."""
    labels: tuple[str, ...]
    """Names of the classes, if the targets are classes."""
    target_kind: TargetKind = "class"
    """Kind of the images' targets: one class, several classes, a number, or none."""


def resolve(recipe: Recipe, facts: Facts) -> Recipe:
    """The recipe with every span in steps and every open setting filled in, ready to run.

    If the length is in epochs, a batch is limited to the images of an epoch.

    Raises VitkitError if the recipe cannot run. A resolved recipe resolves to itself.
    """
    check_numbers(recipe)
    _check_images(recipe, facts)
    if recipe.length.unit == "epochs" and recipe.batch > facts.examples:
        recipe = replace(recipe, batch=_batch_of_all(facts.examples))

    def in_steps(node):
        """A copy of a recipe, or of a part of one, with its spans in steps; nested parts are unchanged."""
        spans = _spans(node)
        return replace(
            node, **{name: Span(spans[name].steps(recipe.batch, facts.examples)) for name in spans}
        )

    # Convert spans to steps
    resolved = in_steps(recipe)
    optim = in_steps(recipe.optim)
    if resolved.length.n < 1:
        raise BadSettings(
            f"a length of {recipe.length} is not one step of {recipe.batch} images; choose a "
            "longer one"
        )
    if optim.schedule != "constant" and optim.warmup.n >= resolved.length.n:
        exact = [
            span.exact_steps(recipe.batch, facts.examples)
            for span in (recipe.optim.warmup, recipe.length)
        ]
        if exact[0] >= exact[1]:
            raise BadSettings(
                f"a warm-up of {recipe.optim.warmup} leaves nothing of the run's {resolved.length}; "
                "choose a shorter one (`optim.warmup`)"
            )
        # Rounding to whole steps made the warm-up as long as a very short run
        optim = replace(optim, warmup=Span(resolved.length.n - 1))

    # The evaluators are the objective's if the recipe has none; each gets a span, and needs a title of its own
    evals = recipe.evals or tuple(map(Eval, recipe.objective.evaluators(facts.target_kind)))
    titles = [each.title for each in evals]
    resolved_evals = []
    for each in evals:
        if titles.count(each.title) > 1:
            raise BadSettings(
                f"two of the recipe's evals have the name {each.title}, and so would their "
                "metrics; leave one out, or give one a name (`evals.0.name`)"
            )
        if not each.data and not each.evaluator.judges(facts.target_kind):
            raise BadSettings(
                f"{each.title} cannot measure on {shown_address(recipe.data.source)!r}, whose targets are of the "
                f"kind {facts.target_kind!r}; leave it out of the evals, or give it other data"
            )
        every = each.every or recipe.evaluate_every
        resolved_evals.append(in_steps(replace(each, every=every)))

    # Fill in the settings that depend on the data and on other settings
    return replace(
        resolved,
        model=replace(recipe.model, classes=_outputs(recipe, facts)),
        optim=optim,
        objective=in_steps(recipe.objective),
        evals=tuple(resolved_evals),
        micro_batch=min(recipe.micro_batch or recipe.batch, recipe.batch),
    )


def _batch_of_all(examples: int) -> int:
    """The largest batch without repeated images: an even number for each process, because some objectives mix
    pairs of images."""
    pairs = 2 * world().world_size
    return max(examples // pairs * pairs, world().world_size)


def _outputs(recipe: Recipe, facts: Facts) -> int:
    """The number of outputs of the model's head. Raises VitkitError if the model has a different number, or an
    output for each patch."""
    outputs = recipe.objective.head(facts.target_kind, len(facts.labels))
    if recipe.model.classes and not outputs:
        raise BadSettings(
            f"the model has {recipe.model.classes} classes, but the objective learns without "
            "classes; leave model.classes at 0"
        )
    if recipe.model.classes not in (0, outputs):
        raise BadSettings(
            f"the model has {recipe.model.classes} classes, the data {outputs}; leave "
            "model.classes at 0"
        )
    if outputs == 1 and facts.target_kind == "class":
        raise BadSettings(
            f"all images of {shown_address(recipe.data.source)!r} are of one class, {facts.labels[0]!r}, so there "
            "is nothing to distinguish: add a folder with images of another class"
        )
    pool = getattr(recipe.model, "pool", "")
    has_masks = facts.target_kind == "mask"
    if has_masks and outputs and pool != "patches":
        raise BadSettings(
            f'the images have masks, and the model has one output for an image (its pool is "{pool}"): use '
            "`model.pool='patches'`, which has one for every patch"
        )
    if outputs and pool in ("none", "patches") and not has_masks:
        raise BadSettings(
            f'the model\'s pool is "{pool}", so it has an output for every patch, and a label needs one for the '
            "image: use another pool, or give the images masks (`data.masks`)"
        )
    return outputs


def output_names(recipe: Recipe, facts: Facts) -> tuple[str, ...]:
    """The names of the outputs of a resolved recipe's model: the classes, "value" for a number, else the
    indices of the outputs."""
    outputs = recipe.model.classes
    if outputs == len(facts.labels):
        return facts.labels
    if outputs == 1 and facts.target_kind == "number":
        return ("value",)
    return tuple(map(str, range(outputs)))


def _check_images(recipe: Recipe, facts: Facts) -> None:
    """Raises VitkitError if there are no images, or if they do not fit the model."""
    if facts.examples < 1:
        raise BadSettings(
            f"{shown_address(recipe.data.source)!r} has no training images, or none that can be decoded"
        )
    channels = recipe.data.preprocessing.channels
    if recipe.model.channels != channels:
        raise BadSettings(
            f"the model's images have {recipe.model.channels} channels, the data's "
            f"{channels}: `model.channels={channels}`"
        )
    is_native = recipe.data.preprocessing.is_native
    if is_native and facts.target_kind != "mask":
        raise BadSettings(
            "training needs images of one size, and these keep their own proportions (`crop='native'`): "
            "train with `crop='centre'`; finetune with `preset='quick'` fits a head on whole images"
        )
    if is_native:
        _check_crop(recipe)
        return
    if recipe.data.augmentation.size is not None:
        raise BadSettings(
            "`data.augmentation.size` is for a model that reads images with their own proportions; this one has "
            "one size, `model.image`: leave it out"
        )
    if recipe.model.image != tuple(recipe.data.preprocessing.size):
        model_size = tuple(recipe.model.image)
        data_size = tuple(recipe.data.preprocessing.size)
        raise BadSettings(
            f"the model's images are {model_size} but the data's are {data_size} (height, width); "
            f"set both to one size: `model.image={model_size}` and `data.preprocessing.size={model_size}`, "
            f"or `model.image={data_size}` and `data.preprocessing.size={data_size}`"
        )


def _check_crop(recipe: Recipe) -> None:
    """Raises VitkitError if a model that reads images with their own proportions cannot be trained on the crops of
    the augmentation."""
    augmentation = recipe.data.augmentation
    if augmentation.crop not in ("inception", "scale_crop"):
        raise BadSettings(
            f"`data.augmentation.crop` is {augmentation.crop!r}, which changes the proportions of images that the "
            "model reads with their own: use 'scale_crop' or 'inception'"
        )
    size = recipe.training_preprocessing.size
    fitting = getattr(recipe.model, "fitting", None)
    if fitting is not None and fitting(size) != size:
        height, width = fitting(size)
        raise BadSettings(
            f"training images of {size[0]} x {size[1]} pixels are not whole patches: "
            f"`data.augmentation.size=({height}, {width})`"
        )


def check_packages(recipe: Recipe) -> None:
    """Raises VitkitError if the run needs a package that is not installed."""
    if recipe.tune.lora and find_spec("peft") is None:
        raise Unsupported("tune.lora needs peft: pip install 'vitkit[lora]'")
    check_tracker(recipe.track)


def check_numbers(recipe: Recipe) -> None:
    """Raises VitkitError for a setting outside of its range, as far as that does not depend on the data."""
    if recipe.batch < 1 or recipe.micro_batch < 0:
        raise BadSettings(
            f"`batch` is {recipe.batch} and `micro_batch` {recipe.micro_batch}; a batch has at least "
            "one example"
        )
    if recipe.residual == "bfloat16" and recipe.precision == "float32":
        raise BadSettings(
            "`residual` is bfloat16, which needs precision bfloat16, and `precision` is float32; change one"
        )
    if recipe.residual == "bfloat16" and not isinstance(recipe.model, ViTConfig):
        raise BadSettings(
            f"`residual` is for the residual stream of a Vision Transformer, and {recipe.model.title} has none; "
            "leave it out"
        )
    if not 0 <= recipe.average < 1:
        raise BadSettings(
            f"`average` is {recipe.average}; it is a factor from 0 (off) up to, not including, 1"
        )
    if not 0 < recipe.data.hold_out < 1:
        raise BadSettings(
            f"`data.hold_out` is {recipe.data.hold_out}; it is a share of the training images between 0 "
            "and 1"
        )
    if not recipe.data.subset > 0:
        raise BadSettings(
            f"`data.subset` is {recipe.data.subset:g}; it is a share of the training images, above 0 and up "
            "to 1, or a number of them"
        )
    for name in ("split_seed", "subset_seed", "keep_decoded"):
        value = getattr(recipe.data, name)
        if value < 0:
            raise BadSettings(f"`data.{name}` is {value}; it must be 0 or more")
    if recipe.data.workers < -1:
        raise BadSettings(
            f"`data.workers` is {recipe.data.workers}; it is a number of processes, or -1 to follow the CPU "
            "quota"
        )
    if not 0 <= recipe.seed < MAX_SEED:
        raise BadSettings(f"`seed` is {recipe.seed}; it must be from 0 to {MAX_SEED - 1:,}")
    if recipe.early_stop < 0:
        raise BadSettings(
            f"`early_stop` is {recipe.early_stop}; it is a number of evaluations, or 0 for never"
        )
    if recipe.shard_group < 0:
        raise BadSettings(
            f"`shard_group` is {recipe.shard_group}; it is a number of processes, or 0 for all"
        )
    for name in ("keep", "log_every"):
        if getattr(recipe, name) < 1:
            raise BadSettings(f"{name} is {getattr(recipe, name)}; it must be at least 1")

    # Images that are mixed in pairs
    objective = recipe.objective
    if isinstance(objective, Supervised) and (objective.mixup or objective.cutmix):
        micro_batch = recipe.micro_batch or recipe.batch
        if recipe.batch % 2 or (micro_batch < recipe.batch and micro_batch % 2):
            raise BadSettings(
                f"mixup and cutmix mix images in pairs, and a batch of {recipe.batch} in "
                f"micro-batches of {micro_batch} has odd ones; make the batch and the micro-batch "
                "even (`batch`, `micro_batch`)"
            )

    # Durations
    spans = _spans(recipe) | _spans(recipe.optim, "optim.")
    spans |= _spans(recipe.objective, "objective.")
    for number, scheduled in enumerate(recipe.evals):
        spans |= _spans(scheduled, f"evals.{number}.")
    for name, span in spans.items():
        if not 0 <= span.n < math.inf:
            raise BadSettings(f"`{name}` is {span.n:g} {span.unit}; a duration is 0 or more")


def _spans(node, prefix: str = "") -> dict[str, Span]:
    """The spans among the settings of a recipe, or of a part of one, by name."""
    values = {setting.name: getattr(node, setting.name) for setting in fields(node)}
    return {prefix + name: value for name, value in values.items() if isinstance(value, Span)}
