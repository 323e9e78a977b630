"""Table 7 (Appendix D.1): Adam or SGD for pre-training ResNets."""

from dataclasses import replace
from pathlib import Path

from matplotlib.figure import Figure

from vitkit.models import Backbone
from vitkit.studies.base import for_steps, measured_by, resnet_like
from vitkit.studies.cell import Cell
from vitkit.studies.drawing import axis_title, dots, panels, printed
from vitkit.studies.outcomes import Ask, Results, Table, cell_text, noise
from vitkit.studies.study import Study
from vitkit.training import Optim

MODELS = {
    "small ResNet": Backbone(units=(1, 1, 1), width=0.5),
    "large ResNet": Backbone(units=(2, 2, 2), width=1.0),
}
THEIRS = dict(zip(MODELS, ("R50x1", "R152x2"), strict=True))  # which of the paper's each stands for
OPTIMIZERS = {"Adam": {"name": "adam"}, "SGD": {"name": "sgd", "weight_decay": 1e-4}}
SGD_RATE = 0.03 / 256  # BiT's rate for each image of a batch
PAPER = {  # the average of five transfers in percent: ImageNet, CIFAR-10, CIFAR-100, Pets, Flowers
    ("small ResNet", "Adam"): 89.33,
    ("small ResNet", "SGD"): 88.79,
    ("large ResNet", "Adam"): 94.01,
    ("large ResNet", "SGD"): 93.72,
}


def cells(ask: Ask, steps: int, study_dir: Path) -> list[Cell]:
    """A run of both ResNets with both optimisers and every seed: Adam as the recipe has it, SGD with
    BiT's rate and weight decay."""
    grid = []
    recipe = for_steps(measured_by(ask.recipe, ask.fewshot), steps)
    for seed in range(ask.seeds):
        for model, backbone in MODELS.items():
            for name in OPTIMIZERS:
                changed = resnet_like(recipe, backbone)
                changed = replace(
                    changed, optim=_optim(recipe.optim, name, recipe.batch), seed=seed
                )
                folder = f"{model.replace(' ', '-')}-{name}/seed-{seed}"
                grid.append(
                    Cell(folder, changed, {"model": model, "optimizer": name, "seed": seed})
                )
    return grid


def _optim(optim: Optim, name: str, batch: int) -> Optim:
    """The recipe's optimiser, or SGD."""
    changed = replace(optim, **OPTIMIZERS[name])
    if name == "SGD":
        changed = replace(changed, lr=SGD_RATE * batch)
    return changed


def table(results: Results) -> Table:
    """Table 7: accuracy here, and the paper's average."""
    groups = results.group("model", "optimizer")
    rows = []
    for key, value in PAPER.items():
        own = cell_text(groups.get(key, []))
        rows.append((*key, own, f"{THEIRS[key[0]]}: {value:.2f}"))
    columns = ("model", "optimizer", "here, %", "paper, average of five transfers, %")
    return Table("Table 7: Adam and SGD", columns, rows, noise(list(groups.values()))[:1])


def draw(results: Results) -> Figure:
    """The same as dots."""
    groups = results.group("model", "optimizer")
    figure, (here, theirs) = panels(("here", "the paper: average of five transfers"))
    dots(here, [f"{model}, {name}" for model, name in PAPER], [groups.get(k, []) for k in PAPER])
    here.set_xlabel(axis_title(next(iter(groups.values()), [])))
    names = [f"{THEIRS[model]}, {name}" for model, name in PAPER]
    printed(theirs, names, list(PAPER.values()))
    return figure


STUDY = Study(
    name="optimizer",
    summary="Adam or SGD for ResNets (Table 7)",
    measures="A small and a large ResNet, trained with Adam, and with SGD by BiT's rate and weight decay.",
    found=(
        "Table 7, after seven epochs of JFT: Adam is a little better on average (89.3 and 88.8 % for R50x1, "
        "94.0 and 93.7 % for R152x2), so the paper compares with ResNets that were trained with Adam."
    ),
    limits=(
        "One rate each: in a short run the better suited rate wins, which is no verdict on an optimiser. "
        "Recipes of your own can change it. The paper's differences are half a point, on five transfers."
    ),
    cells=cells,
    table=table,
    draw=draw,
)
