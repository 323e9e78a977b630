"""The resources that a run will need: memory of each GPU, floating-point operations, time and energy.

footprint.py counts the memory and operations of a learner without running it, and the formulas of this file
give the share of each GPU. A float32 number has 4 bytes. The time of a step on this machine is measured.
"""

import math
import time
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import nn

from vitkit.models import Model, ViTConfig, exaflops
from vitkit.objectives import Supervised
from vitkit.recipes import Recipe, Tune
from vitkit.system.errors import BadSettings
from vitkit.system.machine import autocast
from vitkit.training.optim import apply_tuning

if TYPE_CHECKING:
    from vitkit.training.footprint import Count

GIB = 2**30
# CUDA's context, the workspaces of its libraries, and gaps between blocks of memory
RESERVE = 2.0 * GIB
# exaFLOPs (Table 6) and TPUv3-core-days (Table 2) of the paper's runs that have both: L/16 and H/14
# on JFT for 14 epochs, 27 and 20 TFLOPS a core
ON_TPU = ((1567, 680), (4262, 2500))
LOADING = 1.08  # factor of a step's time with the loader running beside it
FEWEST = 2  # smallest number of timed steps, after one to warm up
MOST = 5  # largest number of timed steps
LONG = 3.0  # seconds after which no further step is timed


@dataclass(frozen=True)
class Machine:
    """Some GPUs of one kind."""

    gpus: int = 1
    """Number of GPUs; each runs one process."""
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
            if not 0 < getattr(self, name) < math.inf:
                raise BadSettings(f"{name} is {getattr(self, name)}; it must be a number above 0")
        if self.mfu > 1:
            raise BadSettings(f"mfu is {self.mfu}; it is a share of the peak, at most 1")


class PeakMemory(NamedTuple):
    """Peak memory of each GPU, in bytes."""

    weights: float
    """This rank's share of the parameters, in float32."""
    gradients: float
    """This rank's share of the gradients, in float32."""
    optimizer: float
    """This rank's share of Adam's two moments, or SGD's one."""
    average: float
    """This rank's share of the Polyak average."""
    gathered: float
    """Weights in the precision of the matrix products. Several GPUs (FSDP2) gather the weights of two blocks
    and of the parameters outside of blocks, with the gradient of one block, and with all gradients in float32
    if micro-batches are accumulated; a single GPU in bfloat16 has a copy of all weights."""
    activations: float
    """Tensors that a micro-batch saves for its backward pass, and two gradients of the largest one."""
    reserve: float = RESERVE
    """Memory that CUDA itself needs."""

    @property
    def total(self) -> float:
        """The sum of all, in bytes."""
        return sum(self)


def memory(recipe: Recipe, gpus: int, counted: "Count") -> PeakMemory:
    """The memory that a resolved recipe needs on each of `gpus`, from the `count` of its learner."""
    # Shards of float32 numbers: of all parameters, and of the trained ones' gradients and moments
    sharers = min(recipe.shard_group or gpus, gpus)
    weights = 4 * counted.parameters / sharers
    trained = 4 * counted.trained / sharers
    moments = 2 if recipe.optim.name == "adam" else 1

    images = min(recipe.micro_batch, recipe.batch // gpus)

    # Weights in the precision of the matrix products
    width = 2 if recipe.precision == "bfloat16" else 4  # bytes of a number
    if gpus > 1:
        gradient = (width + 4) * max(counted.block, counted.rest)  # and its float32 copy
        gathered = width * (2 * counted.block + counted.rest) + gradient
        if images < recipe.batch // gpus:  # unsharded gradients are accumulated over micro-batches
            gathered += 4 * counted.trained
    elif recipe.precision == "bfloat16":
        gathered = width * counted.parameters
    else:
        gathered = 0

    # Activations of a micro-batch
    of_image = counted.image_recomputed if recipe.recompute else counted.image
    return PeakMemory(
        weights=weights,
        gradients=trained,
        optimizer=moments * trained,
        average=trained * bool(recipe.average),
        gathered=gathered,
        activations=images * (of_image + 2 * counted.widest),
    )


def operations(recipe: Recipe, images: float) -> float:
    """Operations of a resolved recipe's model for `images` images, in units of 10^18, counted as in
    Table 6.

    Plain supervised training has a formula; others are counted relative to it, which takes a second.
    Raises VitkitError for an objective whose forward pass depends on the values of tensors.
    """
    plain = exaflops(recipe.model, images)
    if isinstance(recipe.objective, Supervised) and recipe.tune == Tune():
        return plain
    from vitkit.training.footprint import relative_flops

    return plain * relative_flops(recipe)


class Spent(NamedTuple):
    """Cost of a whole run."""

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
        """The cost in the unit of Table 2, TPUv3 cores times days: at the highest and at the lowest
        speed of the paper's own runs."""
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


def advice(recipe: Recipe, machine: Machine, counted: "Count") -> str:
    """A sentence about whether a resolved recipe fits into the GPUs' memory, and if not what to change, the
    cheapest first: the micro-batch, recomputing, more GPUs; and one about what would make it faster."""
    sentence = _on_memory(recipe, machine, counted)
    if (
        recipe.precision == "bfloat16"
        and recipe.residual == "float32"
        and isinstance(recipe.model, ViTConfig)
    ):
        sentence += (
            " `residual=bfloat16` makes steps faster (on an H200, 1.06 times in supervised training of L/16 and "
            "B/16), but a model learned a little less from the same steps (docs/scaling.md)."
        )
    return sentence


def _on_memory(recipe: Recipe, machine: Machine, counted: "Count") -> str:
    """A sentence about whether a resolved recipe fits into the GPUs' memory, and if not what to change."""

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
        changes.append(f"`micro_batch={largest}`")

    # Recomputing
    largest_recomputed = largest_micro_batch(replace(recipe, recompute=True))
    if not recipe.recompute and largest_recomputed:
        changes.append(f"`recompute` with `micro_batch={min(largest_recomputed, images)}`")

    # More GPUs, which must share the batch equally
    for gpus in (machine.gpus * 2**i for i in range(1, 12)):
        if recipe.batch % gpus == 0 and fits(recipe, gpus):
            changes.append(f"`gpus={gpus}`")
            break
    if not changes:
        return "It does not fit. Only a smaller model would."
    return f"It does not fit. Change one: {'; '.join(changes)}."


# The time of a step on this machine


def seconds_of_a_step(
    model: Model, recipe: Recipe, device: torch.device, quick_enough: float = math.inf
) -> float:
    """The time of a training step on noise in seconds, including the effect of the loader; the model does
    not change. It is the time of the fastest of several steps, which other work on the machine affects least.

    quick_enough: a time in seconds. Until a step is as fast, more steps are timed, for up to three times
        LONG.
    """
    micro_batch = min(recipe.micro_batch or recipe.batch, recipe.batch)
    copy = deepcopy(model).to(device).train()
    apply_tuning(copy, recipe.tune)
    weights = [weight for weight in copy.parameters() if weight.requires_grad]
    optimizer = torch.optim.SGD(weights, lr=0.0, momentum=0.9)
    height, width = recipe.training_preprocessing.size
    images = torch.rand(micro_batch, recipe.model.channels, height, width, device=device)
    start = time.perf_counter()
    times: list[float] = []  # the first step warms up
    while not _is_timed(times[1:], time.perf_counter() - start, quick_enough / LOADING):
        began = time.perf_counter()
        with autocast(device, recipe.arithmetic):
            loss = copy(images).float().square().mean()
        loss.backward()
        loss.item()  # waits for a GPU
        computed = time.perf_counter()
        nn.utils.clip_grad_norm_(weights, 1.0).item()
        optimizer.step()
        optimizer.zero_grad()
        ended = time.perf_counter()
        times.append((computed - began) * recipe.batch / micro_batch + ended - computed)
    return min(times[1:]) * LOADING


def _is_timed(times: list[float], spent: float, quick_enough: float) -> bool:
    """Whether enough steps have been timed. spent: seconds since the first one began."""
    if len(times) < FEWEST:
        return False
    if min(times) > quick_enough:
        return spent > 3 * LONG
    return len(times) >= MOST or spent > LONG
