"""What a real training step of vitkit spends its time on: `benchmarks/step.py --profile`.

This is no benchmark of its own: step.py imports it.

    python benchmarks/step.py --profile --data PHOTOGRAPHS --output FILE

Runs `vitkit.training` in a temporary directory, images from its workers included, and times the parts
of every step:

- waiting: for the next batch;
- forward and backward: the model and its loss;
- clipping: the norm of the gradient, and scaling it;
- optimiser: AdamW;
- average: the Polyak average of the weights;
- rest: everything else, from the learning rate to the log.

`digits` is that recipe, a model so small that what surrounds the arithmetic counts. Other names are
models of the zoo, trained at 224 pixels on --data. Prints and writes the median of each part over
the steps, in milliseconds, and its share of the step.
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import wraps
from pathlib import Path
from pkgutil import resolve_name
from statistics import median
from unittest import mock

import record
import torch
from rich.console import Console
from side_by_side import wait_for_gpu

from vitkit.models import vit
from vitkit.recipes import Recipe, digits
from vitkit.recipes.small import scratch
from vitkit.system.span import Span
from vitkit.training import run_recipe

PACKAGES = ("vitkit", "torch", "torchvision")
PARTS = {
    "forward": "vitkit.objectives.supervised.SupervisedLearner.forward",
    "backward": "torch.Tensor.backward",
    "clipping": "vitkit.training.step.clip_gradient",
    "optimiser": "vitkit.training.step.update",  # and what follows it, of which the average is told
    "average": "vitkit.training.state.state.State.update_average",
}
"""The function that does each part."""
WARM_UP = 3  # steps that do not count


class Clock:
    """The seconds of each part, step by step."""

    def __init__(self, device: str):
        self.device = device
        self.steps: list[dict[str, float]] = []
        self.began: list[float] = []

    def now(self) -> float:
        wait_for_gpu(self.device)
        return time.perf_counter()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Instead of the log's: a step begins with its batch."""
        self.began.append(self.now())
        self.steps.append(dict.fromkeys(["waiting", *PARTS], 0.0))
        yield
        self.steps[-1]["waiting"] = self.now() - self.began[-1]

    def timed(self, part: str, function: Callable) -> Callable:
        """The function, timed as this part of the step."""

        @wraps(function)
        def run(*arguments, **options):
            began = self.now()
            result = function(*arguments, **options)
            self.steps[-1][part] += self.now() - began
            return result

        return run

    def milliseconds(self) -> dict[str, float]:
        """The median of the whole step and of each part. The last step does not count either: it
        has no end."""
        rows = []
        for step, begin, end in zip(self.steps, self.began, self.began[1:], strict=False):
            row = {"step": end - begin, **step}
            row["optimiser"] -= row["average"]
            row["rest"] = row["step"] - sum(row[part] for part in step)
            rows.append(row)
        counted = rows[WARM_UP:]
        return {name: round(1e3 * median(row[name] for row in counted), 3) for name in rows[0]}


def profile() -> None:
    """The command line of `step.py --profile`."""
    parser = record.parser(__doc__)
    parser.add_argument("--profile", action="store_true", help="this, instead of a comparison")
    parser.add_argument("--models", nargs="+", default=["digits", "Ti/16", "S/16"])
    parser.add_argument("--batch", type=int, default=32, help="of all models but digits")
    parser.add_argument("--data", help="photographs, as vitkit train takes them")
    parser.add_argument("--steps", type=int, default=20, help="of digits twenty times as many")
    parser.add_argument("--precision", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--output", type=Path, help="a JSON file for the results")
    options = parser.parse_args()
    result = {
        **record.about("what a training step spends its time on", PACKAGES, options.device),
        "threads": torch.get_num_threads(),
        "load_at_start_and_end": [record.load(), record.load()],
        "results": [],
    }
    for name in options.models:
        recipe = recipe_of(name, options.data, options.batch, options.steps)
        recipe = replace(recipe, precision=options.precision)
        times = measure(recipe, options.device)
        shares = {part: round(value / times["step"], 4) for part, value in times.items()}
        row = {"model": name, "batch": recipe.batch, "precision": recipe.precision}
        row |= {"milliseconds": times, "share": shares}
        result["results"].append(row)
        result["load_at_start_and_end"][1] = record.load()
        record.write(result, options.output)
        show(row)


def recipe_of(name: str, data: str | None, batch: int, steps: int) -> Recipe:
    """The recipe `digits`, or that of training a model of the zoo on photographs."""
    if name == "digits":
        recipe = digits()
        optim = replace(recipe.optim, warmup=Span(0, "steps"))
        return replace(recipe, optim=optim, length=Span(20 * steps, "steps"))
    recipe = scratch()
    return replace(
        recipe,
        model=vit(name, classes=0),
        data=replace(recipe.data, source=data or "", parts="given", check=False),
        optim=replace(recipe.optim, warmup=Span(0, "steps")),
        length=Span(steps, "steps"),
        batch=batch,
        micro_batch=batch,
        average=0.9999,
    )


def measure(recipe: Recipe, device: str) -> dict[str, float]:
    """Train, and return the milliseconds of each part of a step."""
    clock = Clock(device)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as patches:
        patches.enter_context(mock.patch("vitkit.training.record.log.Meter.waiting", clock.waiting))
        for part, name in PARTS.items():
            function = clock.timed(part, resolve_name(name))
            patches.enter_context(mock.patch(name, function))
        run_recipe(recipe, Path(folder) / "run", device, Console(quiet=True))
    return clock.milliseconds()


def show(row: dict) -> None:
    """Print a row on two lines."""
    times = row["milliseconds"]
    print(
        f"{row['model']}, batch {row['batch']}, {row['precision']}: {times['step']:.1f} ms a step"
    )
    parts = [name for name in times if name != "step"]
    print(
        "  " + ", ".join(f"{part} {100 * row['share'][part]:.1f} %" for part in parts), flush=True
    )
