"""What a run will need: memory of each GPU, floating-point operations, time and energy.

Nothing is run. memory.py counts the parts of a learner; this file says, in formulas, how much of
them lies on each GPU. A float32 number has 4 bytes.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

from vitkit.training.planning.cost import operations
from vitkit.training.planning.memory import Count
from vitkit.training.recipe import Recipe

GIB = 2**30
# CUDA's context, the workspaces of its libraries, and gaps between blocks of memory
RESERVE = 2.0 * GIB
# exaFLOPs (Table 6) and TPUv3-core-days (Table 2) of the paper's runs that have both: L/16 and H/14
# on JFT for 14 epochs, 27 and 20 TFLOPS a core
ON_TPU = ((1567, 680), (4262, 2500))


@dataclass(frozen=True)
class Machine:
    """Some GPUs of one kind."""

    gpus: int = 1
    """How many there are; each has a process of the run."""
    memory: float = 80.0
    """Memory of one GPU in GiB."""
    tflops: float = 989.0
    """Peak of one GPU in 10^12 floating-point operations a second: an H100 has 989 in bfloat16 and
    67 in float32, an A100 312 and 19.5."""
    mfu: float = 0.4
    """Model FLOPs utilisation: the share of the peak that training reaches."""
    watts: float = 700.0
    """Power of one GPU and its share of the host, under load."""

    def __post_init__(self):
        for name in ("gpus", "memory", "tflops", "mfu", "watts"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be above 0")
        if self.mfu > 1:
            raise ValueError(
                f"mfu is {self.mfu}; it is a share of the best that is possible, at most 1"
            )


class Memory(NamedTuple):
    """Bytes on each GPU at the moment when most are needed."""

    weights: float
    """This rank's share of the parameters, in float32."""
    gradients: float
    """Its share of their gradients, in float32."""
    optimizer: float
    """Its share of Adam's two moments, or SGD's one."""
    average: float
    """Its share of the Polyak average."""
    gathered: float
    """Weights in the precision of the matrix products. Several GPUs (FSDP2) gather those of two
    blocks and of what is beside the blocks, with the gradient of one; a single GPU in bfloat16 has
    a copy of all of them."""
    activations: float
    """What a micro-batch keeps for its backward pass, and two gradients of its widest tensor."""
    reserve: float = RESERVE
    """What CUDA itself needs."""

    @property
    def total(self) -> float:
        """Bytes in all."""
        return sum(self)


def memory(recipe: Recipe, gpus: int, counted: Count) -> Memory:
    """The memory that a resolved recipe needs on each of `gpus`, from what memory.count says of its
    learner."""
    # Shards of float32 numbers: parameters, and what is only there for those that are trained
    weights = 4 * counted.parameters / gpus
    trained = 4 * counted.trained / gpus
    moments = 2 if recipe.optim.name == "adam" else 1

    # Weights in the precision of the matrix products
    width = 2 if recipe.precision == "bfloat16" else 4  # bytes of a number
    if gpus > 1:
        gradient = (width + 4) * max(counted.block, counted.rest)  # and its float32 copy
        gathered = width * (2 * counted.block + counted.rest) + gradient
    elif recipe.precision == "bfloat16":
        gathered = width * counted.parameters
    else:
        gathered = 0

    # A micro-batch
    images = min(recipe.micro_batch, recipe.batch // gpus)
    of_image = counted.image_recomputed if recipe.recompute else counted.image
    return Memory(
        weights=weights,
        gradients=trained,
        optimizer=moments * trained,
        average=trained if recipe.average else 0,
        gathered=gathered,
        activations=images * (of_image + 2 * counted.widest),
    )


class Spent(NamedTuple):
    """What a whole run takes."""

    exaflops: float
    """Operations of the model, counted as in Table 6."""
    hours: float
    """Wall-clock time, with all GPUs at work."""
    images_per_second: float
    """Speed of all GPUs together."""
    kwh: float
    """Energy of all GPUs together."""

    @property
    def tpu_core_days(self) -> tuple[float, float]:
        """What it takes in the unit of Table 2, TPUv3 cores times days: at the highest and at the
        lowest speed of the paper's own runs."""
        days = [self.exaflops * core_days / exaflops for exaflops, core_days in ON_TPU]
        return min(days), max(days)


def spent(recipe: Recipe, machine: Machine) -> Spent:
    """Operations, time and energy of a resolved recipe."""
    images = recipe.length.n * recipe.batch
    exaflops = operations(recipe, images)

    # Time. A forward pass is a third of a step, and recomputing adds another one
    speed = machine.gpus * machine.tflops * machine.mfu * 1e12
    if recipe.recompute:
        speed *= 3 / 4
    seconds = exaflops * 1e18 / speed
    hours = seconds / 3600

    # Energy
    kilowatts = machine.gpus * machine.watts / 1000
    return Spent(exaflops, hours, images / seconds, hours * kilowatts)


def advice(recipe: Recipe, machine: Machine, counted: Count) -> str:
    """A sentence that says whether a resolved recipe fits into the GPUs' memory, and if not what to
    change, the cheapest first: the micro-batch, recomputing, more GPUs."""

    def fits(changed: Recipe, gpus: int) -> bool:
        return memory(changed, gpus, counted).total <= machine.memory * GIB

    def largest_micro_batch(changed: Recipe) -> int:
        """The largest power of two that fits; 0 if none does."""
        for images in (2**i for i in range(19, -1, -1)):
            candidate = replace(changed, micro_batch=images)
            if images <= changed.batch // machine.gpus and fits(candidate, machine.gpus):
                return images
        return 0

    images = min(recipe.micro_batch, recipe.batch // machine.gpus)
    largest = largest_micro_batch(recipe)
    if fits(recipe, machine.gpus):
        if largest > images:
            return f"It fits. Micro-batches of {largest} would, too."
        return "It fits."

    # A smaller micro-batch
    changes = []
    if largest:
        changes.append(f"--micro-batch {largest}")

    # Recomputing
    largest_recomputed = largest_micro_batch(replace(recipe, recompute=True))
    if not recipe.recompute and largest_recomputed:
        changes.append(f"--recompute with --micro-batch {min(largest_recomputed, images)}")

    # More GPUs, which must share the batch equally
    for gpus in (machine.gpus * 2**i for i in range(1, 12)):
        if recipe.batch % gpus == 0 and fits(recipe, gpus):
            changes.append(f"--gpus {gpus}")
            break
    if not changes:
        return "It does not fit. Nothing short of a smaller model helps."
    return f"It does not fit. Change one: {'; '.join(changes)}."
