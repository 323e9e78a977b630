"""What may make a training step faster on a GPU: each change beside the step as it is.

    python benchmarks/step_variants.py --device cuda --models B/16 --batch 256 --output FILE

The steps are those of run_step.py. All variants take turns in one process, from the same weights and images. One
whose first loss or norm of the gradient is another one than that of the step as it is, by more than bfloat16's
rounding, stops the script; float8, which computes with fewer digits, is only reported.

Prints and writes for each variant its speed over that of the step as it is, of medians, with the 95 % interval,
and the differences of loss and norm. Without --compiled, variants that change what the compiler does are left
out; float8 is left out where torchao is missing.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec

import numpy as np
import record
import run_step
import torch
import torch.nn.functional as F
from side_by_side import DRAWS, about, add_row, add_row_arguments, rounds
from torch import Tensor, nn

from vitkit.models import create
from vitkit.models.attention import Attention
from vitkit.recipes import Recipe
from vitkit.training.optim import set_residual
from vitkit.training.state.state import State
from vitkit.training.step import gradient

CLOSE = 0.02  # of the loss and of the norm of the gradient
AS_IT_IS = "as it is"


@dataclass(frozen=True)
class Variant:
    """A change of the step."""

    settings: dict = field(default_factory=dict)
    """Settings of the recipe."""
    change: Callable[[nn.Module], object] | None = None
    """A change of the model's modules."""
    options: dict = field(default_factory=dict)
    """Options of torch.compile."""
    exact: bool = True
    """Whether loss and gradient must stay close."""


# Changes of the model


def separate_projections(model: nn.Module) -> None:
    """Project to q, k and v by three products, whose results lie as the attention kernel reads them."""
    for module in model.modules():
        if isinstance(module, Attention):
            module.project = partial(_projected, module)


def _projected(attention: Attention, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Eq. 5: (B, T, D) -> three times (B, H, T, D_h)."""
    layer = attention.qkv
    biases: tuple = (None, None, None)
    if layer.bias is not None:
        biases = layer.bias.chunk(3)
    q, k, v = [
        F.linear(z, weight, bias).unflatten(-1, (attention.heads, -1)).transpose(1, 2)
        for weight, bias in zip(layer.weight.chunk(3), biases, strict=True)
    ]
    return *attention.normed(q, k), v


def patches_by_product(model: nn.Module) -> None:
    """Embed patches, which do not overlap, by a product in place of a convolution."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d) and module.stride == module.kernel_size:
            module.forward = partial(_embedded, module)


def _embedded(layer: nn.Conv2d, images: Tensor) -> Tensor:
    """(B, C, H, W) -> (B, D, h, w)."""
    height, width = layer.kernel_size
    patches = images.unflatten(2, (-1, height)).unflatten(4, (-1, width))  # (B, C, h, p, w, p)
    rows = patches.permute(0, 2, 4, 1, 3, 5).flatten(3)  # (B, h, w, C·p·p)
    return F.linear(rows, layer.weight.flatten(1), layer.bias).permute(0, 3, 1, 2)


def in_float8(model: nn.Module) -> None:
    """Compute the products of the blocks in float8, with one scale for each tensor."""
    from torchao.float8 import convert_to_float8_training

    convert_to_float8_training(model.blocks)


VARIANTS = {
    AS_IT_IS: Variant(),
    "bfloat16 stream": Variant(settings={"residual": "bfloat16"}),
    "separate q, k, v": Variant(change=separate_projections),
    "patches by product": Variant(change=patches_by_product),
    "combined kernels": Variant(options={"combo_kernels": True}),
    "tuned products": Variant(options={"max_autotune": True, "coordinate_descent_tuning": True}),
    "CUDA graphs": Variant(options={"triton.cudagraphs": True}),
    "float8": Variant(change=in_float8, exact=False),
}


# Measuring


def main() -> None:
    options = arguments()
    result = {**about(options.device, __doc__), "results": []}
    for name in options.models:
        plain = run_step.recipe_of(name, options)
        batch = run_step.batch_of(plain, options.device)
        row = {"model": name, "batch": options.batch, "micro_batch": plain.micro_batch}

        # The first gradient of each variant, before anything is timed
        steps = {}
        firsts = {}
        for variant in chosen(options):
            recipe = replace(plain, **VARIANTS[variant].settings)
            state = state_of(VARIANTS[variant], recipe, options.device)
            outcome = gradient(recipe, state, batch)
            firsts[variant] = (outcome.loss.item(), outcome.norm.item())
            state.optimizer.zero_grad()
            steps[variant] = run_step.step(recipe, state, batch, run_step.LATER)
        row["differences"] = differences(firsts)

        # In turns
        times, row["calls_a_turn"] = rounds(steps, options.device, options.seconds_per_row)
        row["milliseconds"] = {
            variant: round(1e3 * float(np.median(values)), 3) for variant, values in times.items()
        }
        row["speed"] = speeds(times)
        row["rounds"] = len(times[AS_IT_IS])
        add_row(result, row, options.output)
        print(table(row))


def arguments() -> argparse.Namespace:
    parser = record.parser(__doc__)
    parser.add_argument("--models", nargs="+", default=["B/16"])
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--micro-batch", type=int, default=256)
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=list(VARIANTS))
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    add_row_arguments(parser)
    return parser.parse_args(namespace=argparse.Namespace(precision="bfloat16"))


def chosen(options: argparse.Namespace) -> list[str]:
    """The variants that can be measured here, of those that are asked for; first the step as it is."""
    names = [AS_IT_IS]
    for name in options.variants:
        needs_compiler = VARIANTS[name].options and not options.compiled
        needs_torchao = VARIANTS[name].change is in_float8 and not find_spec("torchao")
        if needs_compiler or needs_torchao:
            print(f"{name}: left out")
        elif name != AS_IT_IS:
            names.append(name)
    return names


def state_of(variant: Variant, recipe: Recipe, device: str) -> State:
    """The state of a run that begins, with the variant's step."""
    model = create(recipe.model, device, recipe.seed)
    # With a head of zeros, the first gradient of everything below it would be zero
    torch.manual_seed(recipe.seed)
    nn.init.normal_(model.head.weight, std=0.1)
    if variant.change is not None:
        variant.change(model)
    learner = recipe.objective.learner(model, recipe.data.preprocessing).to(device).train()
    set_residual(learner, recipe)
    if recipe.compile:
        learner.model.compile(dynamic=False, options=variant.options or None)
    weights = {name: p.detach().clone() for name, p in learner.named_parameters()}
    return State(learner, recipe.optim.build(learner), weights)


def differences(firsts: dict[str, tuple[float, float]]) -> dict[str, list[float]]:
    """How far each variant's loss and norm are from those of the step as it is, as shares of them."""
    expected = np.array(firsts[AS_IT_IS])
    found = {}
    for variant, values in firsts.items():
        found[variant] = (np.abs(np.array(values) / expected - 1)).round(6).tolist()
        if VARIANTS[variant].exact and max(found[variant]) > CLOSE:
            raise SystemExit(f"{variant} computes something else: {firsts}")
    return found


def speeds(times: dict[str, list[float]]) -> dict[str, list[float]]:
    """The speed of each variant over that of the step as it is, with the 95 % interval of a bootstrap."""
    count = len(times[AS_IT_IS])
    drawn = np.random.default_rng(0).integers(count, size=(DRAWS, count))
    medians = {variant: np.median(np.array(values)[drawn], -1) for variant, values in times.items()}
    found = {}
    for variant, values in times.items():
        ratio = np.median(times[AS_IT_IS]) / np.median(values)
        low, high = np.quantile(medians[AS_IT_IS] / medians[variant], (0.025, 0.975))
        found[variant] = [round(float(value), 3) for value in (ratio, low, high)]
    return found


def table(row: dict) -> str:
    """The variants of a model, in Markdown."""
    lines = [
        f"| {row['model']}, batch {row['batch']} | images/s | times as it is (95 %) |",
        "|---|---|---|",
    ]
    for variant, (ratio, low, high) in row["speed"].items():
        images = 1e3 * row["batch"] / row["milliseconds"][variant]
        lines.append(f"| {variant} | {images:.0f} | {ratio:.3f} ({low:.3f} to {high:.3f}) |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
