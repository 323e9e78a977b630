"""What a run will need, by formula: memory of each GPU, floating-point operations, time and energy. Nothing is run.

The formulas are a page long so that they can be read: P parameters, R ranks (GPUs), 4 bytes for a float32 number.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

from vitkit.models import cost, exaflops
from vitkit.models.memory import activations
from vitkit.objectives.masked import MaskedPatches
from vitkit.objectives.supervised import Supervised
from vitkit.train.recipe import Recipe
from vitkit.train.tune import Tune

GIB = 2**30
RESERVE = (
    2.0 * GIB
)  # CUDA's context, workspaces of its libraries, and gaps between pieces of memory


@dataclass(frozen=True)
class Machine:
    """GPUs, all alike."""

    gpus: int = 1
    """How many there are: processes of the run."""
    memory: float = 80.0
    """Memory of one in GiB."""
    tflops: float = 989.0
    """What one can do at best, in 10^12 floating-point operations a second: an H100 has 989 in bfloat16 and 67 in
    float32, an A100 312 and 19.5."""
    mfu: float = 0.4
    """Model FLOPs utilisation: the share of that which training reaches."""
    watts: float = 700.0
    """Power of one with its share of the host, under load."""

    def __post_init__(self):
        for name in ("gpus", "memory", "tflops", "mfu", "watts"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be above 0")
        if self.mfu > 1:
            raise ValueError(
                f"mfu is {self.mfu}; it is a share of the best that is possible, at most 1"
            )


class Memory(NamedTuple):
    """Bytes on each GPU when most is needed."""

    weights: float
    """float32, of which each rank has a share."""
    gradients: float
    """The same."""
    optimizer: float
    """Adam's two moments, or SGD's one."""
    average: float
    """The Polyak average."""
    gathered: float
    """Weights in the precision of the products: of two blocks and what is beside them, with the gradient of one (FSDP2); or
    all of them, where one process casts its own."""
    activations: float
    """What a micro-batch keeps for its backward pass, and the gradients that pass through its widest layer."""
    reserve: float = RESERVE
    """For CUDA itself."""

    @property
    def total(self) -> float:
        """All of it."""
        return sum(self)


def memory(recipe: Recipe, gpus: int) -> Memory:
    """Memory of a resolved recipe on each of so many GPUs.

    Raises ValueError for what no formula is here for: some models, objectives that show a model something else than whole
    images, and training a part of a model.
    """
    if not isinstance(recipe.objective, Supervised | MaskedPatches) or recipe.tune != Tune():
        what = (
            type(recipe.objective).__name__
            if recipe.tune == Tune()
            else "a run that trains a part of the model"
        )
        raise ValueError(
            f"there is no formula here for {what}; start it, and look at what it takes"
        )
    config, low = recipe.model, 2 if recipe.precision == "bfloat16" else 4
    kept = activations(config, recipe.precision, recipe.recompute)
    parameters = cost(config).parameters
    share = 4 * parameters / gpus
    block = (parameters - cost(replace(config, depth=1)).parameters) / max(config.depth - 1, 1)
    rest = parameters - config.depth * block
    if gpus > 1:
        reduced = (low + 4) * max(block, rest)  # a gradient, and its float32 copy
        gathered = low * (2 * block + rest) + reduced
    else:
        gathered = low * parameters if low < 4 else 0
    rows, tokens = min(recipe.micro_batch, recipe.batch // gpus), cost(config).tokens
    passing = (
        2 * low * tokens * config.mlp
    )  # at the MLP: the gradient after the GELU, and before it
    return Memory(
        weights=share,
        gradients=share,
        optimizer=share * (2 if recipe.optim.name == "adam" else 1),
        average=share if recipe.average else 0,
        gathered=gathered,
        activations=rows * (kept + passing),
    )


class Spent(NamedTuple):
    """What a whole run takes."""

    exaflops: float
    """Of the model, as Table 6 counts."""
    hours: float
    """On all GPUs together; recomputing adds a third."""
    images_per_second: float
    """Of all GPUs."""
    kwh: float
    """Energy."""


def spent(recipe: Recipe, machine: Machine) -> Spent:
    """Operations, time and energy of a resolved recipe."""
    images = recipe.length.n * recipe.batch
    operations = exaflops(recipe.model, images)
    speed = machine.gpus * machine.tflops * machine.mfu * 1e12 * (3 / 4 if recipe.recompute else 1)
    seconds = operations * 1e18 / speed
    return Spent(
        operations,
        seconds / 3600,
        images / seconds,
        seconds / 3600 * machine.gpus * machine.watts / 1000,
    )


def advice(recipe: Recipe, machine: Machine) -> str:
    """Whether it fits, and what to change where it does not, the cheapest first: the micro-batch, recomputing, more GPUs."""
    room, rows = machine.memory * GIB, min(recipe.micro_batch, recipe.batch // machine.gpus)

    def largest(changed: Recipe, gpus: int) -> int:
        """Images of the largest power-of-two micro-batch that fits; 0 where not one does."""
        fits = [n for n in (2**i for i in range(20)) if n <= changed.batch // gpus]
        fits = [n for n in fits if memory(replace(changed, micro_batch=n), gpus).total <= room]
        return max(fits, default=0)

    if memory(recipe, machine.gpus).total <= room:
        most = largest(recipe, machine.gpus)
        return "It fits." + (f" Micro-batches of {most} would, too." if most > rows else "")
    found = []
    if most := largest(recipe, machine.gpus):
        found.append(f"--micro-batch {most}")
    recomputed = replace(recipe, recompute=True)
    if not recipe.recompute and (most := largest(recomputed, machine.gpus)):
        found.append(f"--recompute with --micro-batch {min(most, rows)}")
    for gpus in (machine.gpus * 2**i for i in range(1, 12)):
        if recipe.batch % gpus == 0 and memory(recipe, gpus).total <= room:
            found.append(f"--gpus {gpus}")
            break
    return f"It does not fit. {'Change one: ' + '; '.join(found) if found else 'Nothing short of a smaller model helps'}."
