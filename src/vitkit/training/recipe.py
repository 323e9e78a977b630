"""A Recipe is everything that decides a run, as one frozen value.

A recipe leaves some settings open (the number of classes, spans in epochs). `resolve` fills them in
from the data and returns another Recipe: that one runs, and is saved.
"""

import math
from dataclasses import dataclass, field, fields, replace
from importlib.util import find_spec
from typing import Annotated, Literal, NamedTuple

from tyro.conf import arg

from vitkit.data import Augmentation, Columns, Preprocessing, TargetKind
from vitkit.evaluation import Eval
from vitkit.models import ModelConfig
from vitkit.objectives import Objective, Supervised
from vitkit.system.machine import PrecisionChoice
from vitkit.system.span import Span
from vitkit.training.optim import Optim, Tune
from vitkit.training.record.trackers import check_tracker

# Seeds of dropout are `seed` times a million and more, and PyTorch's have 64 bits (step.py)
MAX_SEED = 10**12


@dataclass(frozen=True)
class Data:
    """Which images, and how they reach the model."""

    # Where they are
    source: str = ""
    """Folder of images, CSV or JSONL manifest, parquet files, tar shards, their address, hf:NAME,
    or digits (docs/data.md)."""
    columns: Columns = field(default_factory=Columns)
    """Which columns of a table hold the image and its label. By default they are found by
    their names."""
    groups: Annotated[Literal["auto", "none"] | str, arg(aliases=["--groups"])] = "auto"
    """Which images belong together, and stay on one side of every split that is made. auto: those with
    the same value in --data.columns.group, else photographs of one burst, which are looked for; none;
    or the name of the column."""
    exclude: str = ""
    """File that lists training images to leave out, as `vitkit data stats SOURCE --exclude FILE`
    writes it."""

    # What they go through
    preprocessing: Preprocessing = field(default_factory=Preprocessing)
    """What every image goes through in evaluation and prediction; saved with the model."""
    augmentation: Augmentation = field(default_factory=Augmentation)
    """What training images go through instead."""

    # What is done about broken ones
    on_bad_image: Literal["fail", "skip"] = "fail"
    """What happens to a broken image: it stops the run before it starts, or is left out and
    listed."""
    check: bool = True
    """Decode every image once before the run. If it is off, a broken image stops the run when its
    turn comes; turn it off for millions of images that are known to be sound, as packed ones
    are."""

    # Which train and which measure
    parts: Literal["given", "select", "final", "three"] = "given"
    """Which images train and which measure. given: the parts as the data set has them. select: the
    val part measures, or `hold_out` of the training images if there is none beside a test part; for
    choosing settings without a look at the test part. final: all but the test part trains; for the
    run after that. three: as select, and the test part measures too; for `best` weights that the
    test part does not choose."""
    hold_out: float = 0.1
    """Share of every class's training images that parts "select" and "three" measure on."""
    split_seed: int = 0
    """Draws the images of a part that the data set does not have. It is not `seed`, so that runs of
    several seeds share one test part."""
    subset: float = 1.0
    """Share of the training images that train, or their number if it is above 1 (Section 4.3);
    those of a smaller subset are among those of a larger one. What measures stays whole."""
    subset_by_class: bool = False
    """Whether every class has its share of the subset; by default chance decides."""
    subset_seed: int = 0
    """Draws the subset."""

    # The machine: these change no result, but for the order of large data that lies elsewhere
    keep_decoded: float = 1.0
    """Gigabytes of memory that the decoded training images may take; a larger set is decoded anew
    in every epoch."""
    workers: int = -1
    """Processes that decode images; 0 is none besides the main one, -1 follows the CPU quota. The order
    of more than 2 GB at an address depends on how many a run begins with."""


@dataclass(frozen=True)
class Recipe:
    """One training run. Spans are "500 steps", "10 epochs" or "1e6 images"."""

    # What is trained, on what, beginning where
    model: ModelConfig
    """The network; `classes` 0 is filled in from the data."""
    data: Data
    """The images."""
    name: str = "unnamed"
    """What the run is called, after the name of its images, if it is given no directory."""
    init: str = ""
    """Weights to begin with, in any format: a run, a model directory, a file, or a published
    model's name. Empty is none."""

    # How
    optim: Optim = field(default_factory=Optim)
    """Optimiser and learning-rate schedule."""
    objective: Objective = field(default_factory=Supervised)
    """What is minimised."""
    tune: Tune = field(default_factory=Tune)
    """Which of the model's parameters are trained."""

    # How long, and in which portions
    length: Span = Span(10, "epochs")
    """How long the run is."""
    batch: int = 512
    """Examples an update sees, whatever the micro-batch."""
    micro_batch: int = 0
    """Examples a forward pass sees; 0 is the whole batch. Smaller ones add up to the same gradient
    in less memory."""

    # Which weights are saved, and how a step is computed
    average: float = 0.0
    """Factor of the weights' Polyak average (0.9999 in Section 4.1); 0 is off. If it is on, the
    average is what is evaluated and saved."""
    precision: PrecisionChoice = "float32"
    """Arithmetic of the matrix products; weights and loss stay float32. auto is bfloat16 where the
    CPU or GPU has instructions for it."""
    compile: bool = False
    """Run the model through torch.compile."""
    recompute: bool = False
    """Activation checkpointing: recompute blocks in the backward pass, for less memory."""
    shard_group: int = 0
    """Processes that share one copy of weights, gradients and optimiser, such as the 8 of a machine;
    0 is all. Smaller groups exchange less between machines and need more memory."""

    # Randomness
    seed: int = 0
    """Decides initial weights, order, augmentation and dropout."""

    # What is measured, saved and written down on the way
    evals: tuple[Eval, ...] = ()
    """What measures the run, when, and on which images; by default what the objective is usually
    measured by, on held-out images. Runs are compared by the first."""
    evaluate_every: Span = Span(1, "epochs")
    """Time between evaluations of those `evals` that do not say their own; one always ends the
    run."""
    best: str = ""
    """Metric, such as val/top1, at whose best evaluation the weights become the model (Section 4.3
    reports the best validation accuracy); of equal ones the first counts. Empty takes the last
    weights."""
    early_stop: int = 0
    """Evaluations in a row in which no metric of the first evaluator gains, neither accuracy nor
    loss, or with `best` in which that metric does not, after which the run ends; 0 is never."""
    save_every: Span = Span(1, "epochs")
    """Time between checkpoints."""
    keep: int = 2
    """Checkpoints of `save_every` that stay on the disk: two, so that there is one before a damaged
    one. An interruption's is kept beside them until the next is written."""
    log_every: int = 50
    """Steps between lines of the log."""
    track: str = ""
    """Where else the run is written (extra `track`): tensorboard, for events in its directory; wandb or
    mlflow, which stay on this machine where there is no account; or a directory, for TensorBoard's
    events there. Each gets the numbers of metrics.jsonl, the settings, and pictures of mistakes."""


class Facts(NamedTuple):
    """What `resolve` needs to know about the data."""

    examples: int
    """Images to train on."""
    labels: tuple[str, ...]
    """Names of the classes, if the targets are classes."""
    target_kind: TargetKind = "class"
    """What an image's target is: a class, several, a number, or none."""


def resolve(recipe: Recipe, facts: Facts) -> Recipe:
    """The recipe with every span in steps and every open setting filled in: the one that runs.

    Raises ValueError if the recipe cannot run. A resolved recipe resolves to itself.
    """
    check_numbers(recipe)
    _check_images(recipe, facts)

    def in_steps(node):
        """The same recipe, or part of one, with its own spans in steps; its parts stay as they
        are."""
        spans = _spans(node)
        return replace(
            node, **{name: Span(spans[name].steps(recipe.batch, facts.examples)) for name in spans}
        )

    # Spans become steps
    resolved = in_steps(recipe)
    optim = in_steps(recipe.optim)
    if resolved.length.n < 1:
        raise ValueError(
            f"a length of {recipe.length} is not one step of {recipe.batch} images; choose a "
            "longer one"
        )
    if optim.schedule != "constant" and optim.warmup.n >= resolved.length.n:
        raise ValueError(
            f"a warm-up of {recipe.optim.warmup} leaves nothing of the run's {resolved.length}; "
            "choose a shorter one (--optim.warmup)"
        )

    # Evaluators are the objective's if the recipe names none; each has a span and a name of its own
    evals = recipe.evals or tuple(map(Eval, recipe.objective.evaluators(facts.target_kind)))
    titles = [each.title for each in evals]
    resolved_evals = []
    for each in evals:
        if titles.count(each.title) > 1:
            raise ValueError(
                f"two of the recipe's evals are called {each.title}, and so would be their "
                "metrics; leave one, or give one a name (--evals.0.name)"
            )
        if not each.data and not each.evaluator.judges(facts.target_kind):
            raise ValueError(
                f"{each.title} cannot measure on {recipe.data.source!r}, whose targets are of the "
                f"kind {facts.target_kind!r}; leave it out of the evals, or give it other data"
            )
        every = each.every or recipe.evaluate_every
        resolved_evals.append(in_steps(replace(each, every=every)))

    # The rest follows from the data and from the other settings
    return replace(
        resolved,
        model=replace(recipe.model, classes=_outputs(recipe, facts)),
        optim=optim,
        objective=in_steps(recipe.objective),
        evals=tuple(resolved_evals),
        micro_batch=min(recipe.micro_batch or recipe.batch, recipe.batch),
    )


def _outputs(recipe: Recipe, facts: Facts) -> int:
    """How many outputs the model's head has. Raises ValueError if the model has other ones, or an
    answer for each patch."""
    outputs = recipe.objective.head(facts.target_kind, len(facts.labels))
    if recipe.model.classes and not outputs:
        raise ValueError(
            f"the model has {recipe.model.classes} classes, but the objective learns without "
            "classes; leave model.classes at 0"
        )
    if recipe.model.classes not in (0, outputs):
        raise ValueError(
            f"the model has {recipe.model.classes} classes, the data {outputs}; leave "
            "model.classes at 0"
        )
    if outputs == 1 and facts.target_kind == "class":
        raise ValueError(
            f"all images of {recipe.data.source!r} are of one class, {facts.labels[0]!r}, so there "
            "is nothing to tell apart: add a folder of other images"
        )
    if outputs and getattr(recipe.model, "pool", "") == "none":
        raise ValueError(
            'the model\'s pool is "none", so it has an answer for every patch; a label needs one: '
            "use another pool"
        )
    return outputs


def output_names(recipe: Recipe, facts: Facts) -> tuple[str, ...]:
    """What the outputs of a resolved recipe's model are called: by the classes, "value" for a
    number, else by their numbers."""
    outputs = recipe.model.classes
    if outputs == len(facts.labels):
        return facts.labels
    if outputs == 1 and facts.target_kind == "number":
        return ("value",)
    return tuple(map(str, range(outputs)))


def _check_images(recipe: Recipe, facts: Facts) -> None:
    """Raises ValueError if there are no images, or if they do not fit the model."""
    if facts.examples < 1:
        raise ValueError(
            f"{recipe.data.source!r} has no training images, or none that can be decoded"
        )
    channels = recipe.data.preprocessing.channels
    if recipe.model.channels != channels:
        raise ValueError(
            f"the model's images have {recipe.model.channels} channels, the data's "
            f"{channels}: --model.channels {channels}"
        )
    if recipe.data.preprocessing.is_native:
        raise ValueError(
            "training reads images of one size, and these keep their own proportions (--crop native): "
            "train with --crop centre; vitkit finetune --preset quick solves for a head on whole images"
        )
    if recipe.model.image != tuple(recipe.data.preprocessing.size):
        model_size = " ".join(map(str, recipe.model.image))
        data_size = " ".join(map(str, recipe.data.preprocessing.size))
        raise ValueError(
            f"the model's images are {model_size} but the data's are {data_size} (height width); "
            f"set both to one size: --model.image {model_size} --data.preprocessing.size {model_size}, "
            f"or --model.image {data_size} --data.preprocessing.size {data_size}"
        )


def check_packages(recipe: Recipe) -> None:
    """Raises ValueError if the run needs a package that is not installed."""
    if recipe.tune.lora and find_spec("peft") is None:
        raise ValueError("tune.lora needs peft: pip install 'vitkit[lora]'")
    check_tracker(recipe.track)


def check_numbers(recipe: Recipe) -> None:
    """Raises ValueError for a number outside of its range, whatever the data."""
    if recipe.batch < 1 or recipe.micro_batch < 0:
        raise ValueError(
            f"batch is {recipe.batch} and micro_batch {recipe.micro_batch}; a batch has at least "
            "one example"
        )
    if not 0 <= recipe.average < 1:
        raise ValueError(
            f"average is {recipe.average}; it is a factor from 0 (off) up to, not including, 1"
        )
    if not 0 < recipe.data.hold_out < 1:
        raise ValueError(
            f"hold_out is {recipe.data.hold_out}; it is a share of the training images between 0 "
            "and 1"
        )
    if not 0 <= recipe.seed < MAX_SEED:
        raise ValueError(f"seed is {recipe.seed}; it must be from 0 to {MAX_SEED - 1:,}")
    if recipe.early_stop < 0:
        raise ValueError(
            f"early_stop is {recipe.early_stop}; it is a number of evaluations, or 0 for never"
        )
    if recipe.shard_group < 0:
        raise ValueError(
            f"shard_group is {recipe.shard_group}; it is a number of processes, or 0 for all"
        )
    for name in ("keep", "log_every"):
        if getattr(recipe, name) < 1:
            raise ValueError(f"{name} is {getattr(recipe, name)}; it must be at least 1")

    # Images that are mixed in pairs
    objective = recipe.objective
    if isinstance(objective, Supervised) and (objective.mixup or objective.cutmix):
        micro_batch = recipe.micro_batch or recipe.batch
        if recipe.batch % 2 or (micro_batch < recipe.batch and micro_batch % 2):
            raise ValueError(
                f"mixup and cutmix mix images in pairs, and a batch of {recipe.batch} in "
                f"micro-batches of {micro_batch} has odd ones; make the batch and the micro-batch "
                "even (--batch, --micro-batch)"
            )

    # Durations
    spans = _spans(recipe) | _spans(recipe.optim, "optim.")
    spans |= _spans(recipe.objective, "objective.")
    for number, scheduled in enumerate(recipe.evals):
        spans |= _spans(scheduled, f"evals.{number}.")
    for name, span in spans.items():
        if not 0 <= span.n < math.inf:
            raise ValueError(f"{name} is {span.n:g} {span.unit}; a duration is 0 or more")


def _spans(node, prefix: str = "") -> dict[str, Span]:
    """The spans among the settings of a recipe, or of a part of one, by name."""
    values = {setting.name: getattr(node, setting.name) for setting in fields(node)}
    return {prefix + name: value for name, value in values.items() if isinstance(value, Span)}
