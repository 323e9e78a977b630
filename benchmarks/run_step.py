"""A step as a run takes it: what it gains by waiting for nothing, and its memory beside `plan`'s.

    python benchmarks/run_step.py --device cuda --output FILE

The steps are those of `vitkit train` (gradient, clipping, Adam, average) on the same random images,
from page-locked memory. Two runs take turns: `later` looks at losses two steps later, and the device
decides whether a step is skipped; `at once` waits in every step for what it gave. Both must have the
same weights to the bit at the end.

Prints and writes for each model the speed of `later` over that of `at once`, of medians, with its 95 %
interval; the share of a plain product's rate, which is measured, that it reaches; and the most memory that
PyTorch had allocated in a few steps of one run, beside what `vitkit plan` says without what it puts aside
for CUDA. On a CPU nobody counts that.
"""

import argparse
from dataclasses import replace

import record
import torch
from side_by_side import Run, about, add_row, add_row_arguments, ratio_of, rounds, summary

from vitkit.data import Augmentation, Batch, Preprocessing
from vitkit.models import create, named
from vitkit.recipes import Data, Facts, Optim, Recipe, resolve
from vitkit.system.span import Span
from vitkit.training import operations
from vitkit.training.footprint import count
from vitkit.training.outcomes import Outcomes
from vitkit.training.planning import GIB, memory
from vitkit.training.state.state import State
from vitkit.training.step import advance, gradient, set_rates

STEPS = 5  # in which the peak of memory is looked for
LATER = 2  # steps


def main() -> None:
    options = arguments()
    result = {**about(options.device, __doc__), "results": []}
    for name in options.models:
        recipe = recipe_of(name, options)
        batch = batch_of(recipe, options.device)
        row = {"model": name, "batch": options.batch, "micro_batch": recipe.micro_batch}
        row["gib"] = peak(recipe, batch, options.device)

        # In turns
        states = {
            "later": state_of(recipe, options.device),
            "at once": state_of(recipe, options.device),
        }
        lags = {"later": LATER, "at once": 0}
        steps = {name: step(recipe, states[name], batch, lags[name]) for name in states}
        times, calls = rounds(steps, options.device, options.seconds_per_row)
        weights = [list(state.parameters.values()) for state in states.values()]
        row["same_bits"] = all(map(torch.equal, *weights))
        row |= {"calls_a_turn": calls, **summary(times, options.batch)}

        if "bfloat16_matmul_flop_per_second" in result:
            speed = row["images_per_second"]["later"] * 1e18 * operations(recipe, 1)
            row["share_of_product"] = round(speed / result["bfloat16_matmul_flop_per_second"], 3)
        add_row(result, row, options.output)
        print(
            f"{name}: {ratio_of(row)}, same bits {row['same_bits']}, of a product {row.get('share_of_product')}, GiB {row['gib']}"
        )


def arguments() -> argparse.Namespace:
    parser = record.parser(__doc__)
    parser.add_argument("--models", nargs="+", default=["Ti/16", "S/16", "B/16", "L/16"])
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--micro-batch", type=int, default=64)
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default="bfloat16")
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    add_row_arguments(parser)
    return parser.parse_args()


def recipe_of(name: str, options: argparse.Namespace) -> Recipe:
    """A model, trained as the paper pre-trains, with an average."""
    recipe = Recipe(
        model=replace(named(name), classes=0),
        data=Data("random", augmentation=Augmentation(), preprocessing=Preprocessing()),
        optim=Optim(weight_decay=0.1, warmup=Span(10)),
        length=Span(10_000),
        batch=options.batch,
        micro_batch=options.micro_batch,
        average=0.9999,
        precision=options.precision,
        compile=options.compiled,
    )
    return resolve(recipe, Facts(options.batch, tuple(map(str, range(1000)))))


def batch_of(recipe: Recipe, device: str) -> Batch:
    """Random images and classes, where the loader would put them."""
    height, width = recipe.model.image
    shape = (recipe.batch, 3, height, width)
    images = torch.randint(0, 256, shape, dtype=torch.uint8)
    targets = torch.arange(recipe.batch) % 1000
    if device.startswith("cuda"):
        images = images.pin_memory()
        targets = targets.pin_memory()
    return Batch(
        images, targets, torch.ones(recipe.batch, dtype=torch.bool), torch.arange(recipe.batch)
    )


def state_of(recipe: Recipe, device: str) -> State:
    """The state of a run that begins."""
    model = create(recipe.model, device, recipe.seed)
    learner = recipe.objective.learner(model, recipe.data.preprocessing).to(device).train()
    if recipe.compile:
        learner.model.compile()
    weights = {name: p.detach().clone() for name, p in learner.named_parameters()}
    return State(learner, recipe.optim.build(learner), weights)


def step(recipe: Recipe, state: State, batch: Batch, lag: int) -> Run:
    """A step of a run that looks at what steps gave so many steps later."""
    outcomes = Outcomes(lag)

    def run() -> None:
        set_rates(recipe, state, state.step)
        outcome = gradient(recipe, state, batch)
        state.step += 1
        outcomes.add(state.step, batch, outcome)
        advance(recipe, state, outcome, state.step, synchronous=not lag)
        for _ in outcomes.arrived(lag):
            pass

    return run


def peak(recipe: Recipe, batch: Batch, device: str) -> dict[str, float | None]:
    """The most memory of some steps in GiB, as it was and as it was planned."""
    planned = memory(recipe, 1, count(recipe))
    sizes = {"planned": round((planned.total - planned.reserve) / GIB, 2), "peak": None}
    if device.startswith("cuda"):
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        run = step(recipe, state_of(recipe, device), batch, LATER)
        for _ in range(STEPS):
            run()
        torch.cuda.synchronize(device)
        sizes["peak"] = round((torch.cuda.max_memory_allocated(device) - before) / GIB, 2)
    return sizes


if __name__ == "__main__":
    main()
