"""Whether two runs of the same steps have the same bits, and what it costs to be sure of it.

    python benchmarks/same_bits.py --device cuda --output FILE

Two runs begin alike and take the steps of `vitkit train` (gradient, clipping, Adam, average) on the
same images: first as they are, then with `--deterministic`.

Prints and writes for each model, precision and way how many of its weights differ at the end, and the
milliseconds of a step in both runs. These are not interleaved: run_step.py compares speeds.
"""

import argparse
from argparse import Namespace
from itertools import product
from pathlib import Path

import record
import run_step
import torch
from side_by_side import seconds

from vitkit.system.machine import deterministic, pick_device

PACKAGES = ("vitkit", "torch")


def main() -> None:
    options = arguments()
    pick_device(options.device)  # and how it computes, as for a run
    result = {**record.about(__doc__, PACKAGES, options.device), "results": []}
    for name, precision, wanted in product(options.models, options.precisions, (False, True)):
        with deterministic(wanted):
            row = {"model": name, "batch": options.batch, "micro_batch": options.micro_batch}
            row |= {"precision": precision, "deterministic": wanted}
            row |= two_runs(name, precision, options)
        result["results"].append(row)
        record.write(result, options.output)
        print(row)


def arguments() -> argparse.Namespace:
    parser = record.parser(__doc__)
    parser.add_argument("--models", nargs="+", default=["S/16", "B/16", "B/32"])
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--micro-batch", type=int, default=256)
    parser.add_argument("--precisions", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument(
        "--steps", type=int, default=4, help="that are timed, after one that is not"
    )
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument("--output", type=Path, help="file for the results, JSON")
    return parser.parse_args()


def two_runs(name: str, precision: str, options: Namespace) -> dict[str, object]:
    """How many weights of two runs differ, of how many, and the milliseconds of a step of each."""
    settings = Namespace(**vars(options), precision=precision, compiled=False)
    recipe = run_step.recipe_of(name, settings)
    batch = run_step.batch_of(recipe, options.device)
    states = []
    milliseconds = []
    for _ in range(2):
        state = run_step.state_of(recipe, options.device)
        states.append(state)
        step = run_step.step(recipe, state, batch, lag=0)
        step()  # which warms up
        milliseconds.append(round(1000 * seconds(step, options.steps, options.device), 1))
    one, other = (state.parameters for state in states)
    differing = sum(not torch.equal(one[name], other[name]) for name in one)
    return {"differing": differing, "weights": len(one), "milliseconds": milliseconds}


if __name__ == "__main__":
    main()
