"""`vitkit train`: a run by a recipe."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import arg

from vitkit.commands import Defaults
from vitkit.commands.recipe import first_recipe
from vitkit.evaluate import EvaluatorName
from vitkit.system.ranks import on_rank_0, process_group
from vitkit.system.watchdog import PATIENCE
from vitkit.train import Recipe
from vitkit.train import train as run


@dataclass
class Train:
    """Train a model by a recipe, or continue the run that is in the directory."""

    recipe: Annotated[Recipe, arg(name="")]
    model_name: Annotated[str, arg(name="model")] = ""
    """Another model than the recipe's, by its name, such as S/16, R26+S/32 or BiT-R50x1; `vitkit
    models` lists them."""
    evaluators: Annotated[tuple[EvaluatorName, ...], arg(name="evals")] = ()
    """What measures the run, instead of what the recipe says; each then has settings, such as
    --evals.0.every and --evals.0.data."""
    workdir: Path | None = None
    """Directory of the run; runs/NAME unless told. Run the same command again to continue it."""
    device: str = "auto"
    """cpu, cuda, cuda:1 or mps; auto takes the best there is."""
    patience: float = PATIENCE
    """Seconds without progress after which a run of several processes (torchrun) ends and says
    which one is missing."""


def defaults(words: list[str]) -> Defaults:
    """Every setting of a run, from the recipe that the first word names."""
    return Defaults(Train(first_recipe("train", words)), words=1)


def train(command: Train) -> int:
    """`vitkit train`."""
    from vitkit.train.report import report

    run_dir = command.workdir or Path("runs") / command.recipe.name
    with process_group(command.device, command.patience):
        classifier = run(command.recipe, run_dir, command.device)
        if on_rank_0():
            page = report(run_dir)
            print(f"wrote {run_dir / 'model'} and {page}")
            if classifier.labels:
                print(f"next: vitkit evaluate {run_dir} DATA, or vitkit predict {run_dir} IMAGE...")
            else:
                print(f"next: vitkit finetune {run_dir} DATA, which gives it a head")
    return 0
