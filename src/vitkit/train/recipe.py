"""A Recipe is everything that decides a run, as one frozen value; resolve() returns the one that
runs, and is saved."""

from dataclasses import dataclass, field, fields, replace
from typing import Literal, NamedTuple

from vitkit.data import Augmentation, Columns, Preprocessing, Target
from vitkit.evaluate import Eval
from vitkit.models import ModelConfig
from vitkit.objectives.objective import Objective
from vitkit.objectives.supervised import Supervised
from vitkit.system.machine import Precision
from vitkit.system.span import Span
from vitkit.train.optim import Optim
from vitkit.train.tune import Tune


@dataclass(frozen=True)
class Data:
    """Which images, and how they reach the model."""

    source: str = ""
    """Folder of images, CSV or JSONL manifest, parquet files, tar shards, their address, hf:NAME,
    or digits (docs/data.md)."""
    columns: Columns = field(default_factory=Columns)
    """Which columns of a table hold the image and its label; found by their names unless told."""
    exclude: str = ""
    """File that lists training images to leave out, as `vitkit data stats SOURCE --exclude FILE`
    writes it."""
    preprocessing: Preprocessing = field(default_factory=Preprocessing)
    """What every image goes through in evaluation and prediction; saved with the model."""
    augmentation: Augmentation = field(default_factory=Augmentation)
    """What training images go through instead."""
    on_bad_image: Literal["fail", "skip"] = "fail"
    """What a broken image does to the run: stop it before it starts, or be left out and listed."""
    check: bool = True
    """Decode every image once before the run. Without, a broken one stops the run when its turn
    comes: for millions of images that are known to be sound, as packed ones are."""
    parts: Literal["given", "select", "final"] = "given"
    """What trains and what measures. given: the parts as the data set has them. select, to choose
    settings without a look at the test part: the val part measures, or `hold_out` of the training
    images where there is none beside a test part. final, the run after that: all but the test part
    trains."""
    hold_out: float = 0.1
    """Share of every class that measures in a run with parts "select"."""
    split_seed: int = 0
    """Chooses the images of a part that had to be made; apart from `seed`, so that several seeds
    share one test part."""
    keep_decoded: float = 1.0
    """Gigabytes that the training images may take, decoded once and kept in memory; larger sets are
    decoded as they come."""
    workers: int = -1
    """Processes that decode images; 0 is none besides the main one, -1 follows the CPU quota."""


@dataclass(frozen=True)
class Recipe:
    """One training run. Spans are "500 steps", "10 epochs" or "1e6 images"."""

    model: ModelConfig
    """The network; `classes` 0 is filled in from the data."""
    data: Data
    """The images."""
    name: str = "unnamed"
    """What the run is called; its directory is runs/NAME unless told."""
    init: str = ""
    """Weights to begin with, in any format: a run, a model directory, a file, or a published
    model's name. Empty is none."""
    optim: Optim = field(default_factory=Optim)
    """Optimiser and learning-rate schedule."""
    objective: Objective = field(default_factory=Supervised)
    """What is minimised."""
    tune: Tune = field(default_factory=Tune)
    """Which of the model's parameters are trained."""
    length: Span = Span(10, "epochs")
    """How long the run is."""
    batch: int = 512
    """Examples an update sees, whatever the micro-batch."""
    micro_batch: int = 0
    """Examples a forward pass sees; 0 is the whole batch. Smaller ones accumulate to the same
    gradient in less memory."""
    average: float = 0.0
    """Factor of the weights' Polyak average (0.9999 in Section 4.1), which is then what is
    evaluated and saved; 0 is off."""
    precision: Precision = "float32"
    """Arithmetic of the matrix products; weights and loss stay float32."""
    compile: bool = False
    """Run the model through torch.compile."""
    recompute: bool = False
    """Activation checkpointing: recompute blocks in the backward pass, for less memory."""
    seed: int = 0
    """Decides initial weights, order, augmentation and dropout."""
    evals: tuple[Eval, ...] = ()
    """What measures the run, when and on which images; unless told what the objective is usually
    measured by, on held-out images. Runs are compared by the first."""
    evaluate_every: Span = Span(1, "epochs")
    """Time between evaluations of those `evals` that do not say their own; one always ends the
    run."""
    save_every: Span = Span(1, "epochs")
    """Time between checkpoints."""
    keep: int = 2
    """Checkpoints that stay on disk; two, so that a damaged last one has one before it."""
    log_every: int = 50
    """Steps between lines of the log."""
    tensorboard: bool = False
    """Write TensorBoard events beside metrics.jsonl (extra `track`)."""


class Facts(NamedTuple):
    """What a recipe must know of its data."""

    examples: int
    """Images to train on."""
    labels: tuple[str, ...]
    """Names of the classes, if the targets are classes."""
    target: Target = "class"
    """What a target is."""


def resolve(recipe: Recipe, facts: Facts) -> Recipe:
    """The recipe with every span in steps and every open setting filled in. Raises ValueError for
    what cannot run."""
    _check_data(recipe, facts)
    _check_numbers(recipe)

    # The head
    outputs = recipe.objective.head(facts.target, len(facts.labels))
    if recipe.model.classes not in (0, outputs):
        raise ValueError(
            f"the model has {recipe.model.classes} classes, the data {outputs}; leave "
            "model.classes at 0"
        )
    if outputs and getattr(recipe.model, "pool", "") == "none":
        raise ValueError(
            'the model\'s pool is "none", so it has an answer for every patch; a label needs one: '
            "use another pool"
        )

    # Spans in steps
    resolved = _in_steps(recipe, recipe.batch, facts.examples)
    optim = _in_steps(recipe.optim, recipe.batch, facts.examples)
    if resolved.length.n < 1:
        raise ValueError(
            f"a length of {recipe.length} is not one step of {recipe.batch} images; choose a "
            "longer one"
        )
    if optim.schedule != "constant" and optim.warmup.n >= resolved.length.n:
        raise ValueError(
            f"a warm-up of {recipe.optim.warmup} leaves nothing of the run's {resolved.length}; "
            "choose a shorter one"
        )

    return replace(
        resolved,
        model=replace(recipe.model, classes=outputs),
        optim=optim,
        objective=_in_steps(recipe.objective, recipe.batch, facts.examples),
        evals=_resolve_evals(recipe, facts),
        micro_batch=min(recipe.micro_batch or recipe.batch, recipe.batch),
    )


def output_names(recipe: Recipe, facts: Facts) -> tuple[str, ...]:
    """What the outputs of a resolved recipe's model are called: the classes, or "value" for a
    number."""
    outputs = recipe.model.classes
    if outputs == len(facts.labels):
        return facts.labels
    if outputs == 1 and facts.target == "number":
        return ("value",)
    return tuple(map(str, range(outputs)))


def _check_data(recipe: Recipe, facts: Facts) -> None:
    """Raises ValueError where the model and the images do not fit together."""
    if facts.examples < 1:
        raise ValueError(f"{recipe.data.source!r} has no training images")
    if recipe.model.channels != 3:
        raise ValueError(
            f"the model's images have {recipe.model.channels} channels, the data's 3: "
            "--model.channels 3"
        )
    if recipe.model.image != tuple(recipe.data.preprocessing.size):
        model_size = " ".join(map(str, recipe.model.image))
        data_size = " ".join(map(str, recipe.data.preprocessing.size))
        raise ValueError(
            f"the model's images are {model_size} but the data's are {data_size} (height width); "
            "set both: "
            f"--model.image {data_size} --data.preprocessing.size {data_size}"
        )


def _check_numbers(recipe: Recipe) -> None:
    """Raises ValueError for a number out of its range."""
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
    for name in ("keep", "log_every"):
        if getattr(recipe, name) < 1:
            raise ValueError(f"{name} is {getattr(recipe, name)}; it must be at least 1")


def _in_steps(node, batch: int, examples: int):
    """The same settings, those that are spans in steps."""
    spans = {}
    for setting in fields(node):
        value = getattr(node, setting.name)
        if isinstance(value, Span):
            spans[setting.name] = Span(value.steps(batch, examples))
    return replace(node, **spans)


def _resolve_evals(recipe: Recipe, facts: Facts) -> tuple[Eval, ...]:
    """The evaluators of a run, each with its span. Raises ValueError for two of one name, or one
    without anything to judge by."""
    evals = recipe.evals
    if not evals:
        evals = tuple(map(Eval, recipe.objective.evaluators(facts.target)))
    titles = [each.title for each in evals]
    for title in titles:
        if titles.count(title) > 1:
            raise ValueError(
                f"two of the recipe's evals are called {title}, and so would be their metrics; "
                "leave one, "
                f"or give them data of different names"
            )
    for each in evals:
        if not each.data and not each.evaluator.judges(facts.target):
            raise ValueError(
                f"{each.title} cannot measure on {recipe.data.source!r}, whose targets are of the "
                "kind "
                f"{facts.target!r}; leave it out of the evals, or give it other data"
            )
    spans = [each.every or recipe.evaluate_every for each in evals]
    steps = [Span(span.steps(recipe.batch, facts.examples)) for span in spans]
    return tuple(replace(each, every=span) for each, span in zip(evals, steps, strict=True))
