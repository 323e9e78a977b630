"""What a run will need: memory of each GPU, floating-point operations, time and energy. Nothing is run.

The parts of a learner are counted (memory.py); how they lie on GPUs is a page of formulas, to be read. A float32 number has 4
bytes.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

from vitkit.models import exaflops
from vitkit.objectives.supervised import Supervised
from vitkit.train.memory import Count, relative_flops
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


def memory(recipe: Recipe, gpus: int, counted: Count) -> Memory:
    """Memory of a resolved recipe on each of so many GPUs, from what `count` says of its learner."""
    low = 2 if recipe.precision == "bfloat16" else 4  # bytes of what a matrix product reads

    # Weights in the products' precision
    if gpus > 1:
        reduced = (low + 4) * max(counted.block, counted.rest)  # a gradient, and its float32 copy
        gathered = low * (2 * counted.block + counted.rest) + reduced
    else:
        gathered = low * counted.parameters if low < 4 else 0

    # What a micro-batch keeps, and two gradients of its widest tensor on their way back
    images = min(recipe.micro_batch, recipe.batch // gpus)
    kept = counted.image_recomputed if recipe.recompute else counted.image
    moments = 2 if recipe.optim.name == "adam" else 1
    trained = 4 * counted.trained / gpus
    return Memory(
        weights=4 * counted.parameters / gpus,
        gradients=trained,
        optimizer=moments * trained,
        average=trained if recipe.average else 0,
        gathered=gathered,
        activations=images * (kept + 2 * counted.widest),
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
    if not isinstance(recipe.objective, Supervised) or recipe.tune != Tune():
        operations *= relative_flops(recipe)
    speed = machine.gpus * machine.tflops * machine.mfu * 1e12
    if recipe.recompute:
        speed *= 3 / 4
    seconds = operations * 1e18 / speed
    hours = seconds / 3600
    return Spent(operations, hours, images / seconds, hours * machine.gpus * machine.watts / 1000)


def advice(recipe: Recipe, machine: Machine, counted: Count) -> str:
    """Whether it fits, and what to change where it does not, the cheapest first: the micro-batch, recomputing, more GPUs."""

    def fits(changed: Recipe, gpus: int) -> bool:
        return memory(changed, gpus, counted).total <= machine.memory * GIB

    def largest(changed: Recipe) -> int:
        """Images of the largest power-of-two micro-batch that fits; 0 if not one does."""
        for images in (2**i for i in range(19, -1, -1)):
            micro = replace(changed, micro_batch=images)
            if images <= changed.batch // machine.gpus and fits(micro, machine.gpus):
                return images
        return 0

    # It fits
    images = min(recipe.micro_batch, recipe.batch // machine.gpus)
    most = largest(recipe)
    if fits(recipe, machine.gpus):
        return f"It fits. Micro-batches of {most} would, too." if most > images else "It fits."

    # It does not
    changes = []
    if most:
        changes.append(f"--micro-batch {most}")
    most_recomputed = largest(replace(recipe, recompute=True))
    if not recipe.recompute and most_recomputed:
        changes.append(f"--recompute with --micro-batch {min(most_recomputed, images)}")
    more = [machine.gpus * 2**i for i in range(1, 12)]
    enough = [gpus for gpus in more if recipe.batch % gpus == 0 and fits(recipe, gpus)]
    if enough:
        changes.append(f"--gpus {enough[0]}")
    if not changes:
        return "It does not fit. Nothing short of a smaller model helps."
    return f"It does not fit. Change one: {'; '.join(changes)}."
