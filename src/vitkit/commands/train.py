"""`vitkit train`: a run by a recipe."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

from tyro.conf import arg

from vitkit.commands import Defaults
from vitkit.commands.recipe import first_recipe
from vitkit.commands.transfer_output import Regularise, print_transfer, say_regularisation
from vitkit.evaluation import EvaluatorName
from vitkit.studies import transfer
from vitkit.system.console.text import as_word
from vitkit.system.processes.ranks import on_rank_0, process_group
from vitkit.system.processes.watchdog import PATIENCE
from vitkit.training import Recipe, default_run_dir, tidied
from vitkit.training import train as run
from vitkit.verbs import Device
from vitkit.weights import Classifier, load


@dataclass
class Train:
    """Train a model by a recipe, or continue the run that is in the directory."""

    recipe: Annotated[Recipe, arg(name="")]
    model_name: Annotated[str, arg(name="model")] = ""
    """Name of a model to train instead of the recipe's, such as S/16, R26+S/32 or BiT-R50x1; `vitkit
    models` lists them."""
    evaluators: Annotated[tuple[EvaluatorName, ...], arg(name="evals")] = ()
    """Evaluators that measure the run, instead of the recipe's. Each then has settings, such as
    --evals.0.every and --evals.0.data."""
    regularising: Annotated[Regularise, arg(name="")] = field(default_factory=Regularise)
    workdir: Path | None = None
    """Directory of the run. Default: in runs/, named after the images and the recipe. Run the same
    command again to continue a run."""
    device: Device = "auto"
    patience: float = PATIENCE
    """Seconds without progress after which a run of several processes (torchrun) ends and says
    which one is missing."""


def defaults(words: list[str]) -> Defaults:
    """Every setting of a run, from the recipe and the images that the first words name."""
    recipe, count = first_recipe("train", words)
    return Defaults(Train(recipe), count)


def train(command: Train) -> int:
    """Train, write the report, and print what to do next."""
    from vitkit.training import report

    images = tidied(command.recipe.data.source)
    recipe = replace(command.recipe, data=replace(command.recipe.data, source=images))
    workdir = command.workdir or default_run_dir(images, recipe.name)
    with process_group(command.device, command.patience):
        classifier = _run(command, recipe, workdir)
        if on_rank_0():
            page = report(workdir)
            print(f"wrote {workdir / 'model'} and {page}")
            word = as_word(workdir)
            if classifier.labels:
                print(
                    f"next: vitkit evaluate {word} {as_word(images)}, or vitkit predict {word} "
                    "IMAGE..."
                )
            else:
                print(f"next: vitkit finetune {word} DATA, which gives it a head")
    return 0


def _run(command: Train, recipe: Recipe, workdir: Path) -> Classifier:
    """Train; of several regularisations with the one that is best on held-out images."""
    values = command.regularising.values()
    if not values:
        return run(recipe, workdir, command.device)
    if on_rank_0():
        say_regularisation(recipe, values)
    outcome = transfer(recipe, workdir, (), 1, command.device, values)
    if on_rank_0():
        print_transfer(outcome)
    return load(workdir, quiet=True)
