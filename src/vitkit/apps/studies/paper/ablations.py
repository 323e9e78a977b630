"""Ablations of the paper's appendix: position embeddings (Table 8, D.4), pooling (Figure 9, D.3), and the
optimiser of ResNets (Table 7, D.1)."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from vitkit.apps.studies.base import (
    for_steps,
    measured_by,
    resnet_like,
    with_every_seed,
    with_shape,
)
from vitkit.apps.studies.drawing import beside_the_paper, line, panels, titles
from vitkit.apps.studies.protocol import Ask, PaperTable, Results, Study
from vitkit.apps.studies.uncertainty import best_and_worst, cell_text
from vitkit.models import Backbone, ViTConfig
from vitkit.system.errors import BadSettings
from vitkit.training import Cell
from vitkit.training.grids.rows import Setting

# Position embeddings: kind and place

ENCODINGS = {"none": "none", "1-D": "learned", "2-D": "learned2d", "relative": "relative"}
PLACES = {"at stem": "stem", "every layer": "every", "every layer, shared": "shared"}
TABLE_8 = {  # ViT-B/16, 5-shot on ImageNet
    ("none", "at stem"): 0.61382,
    ("1-D", "at stem"): 0.64206,
    ("1-D", "every layer"): 0.63964,
    ("1-D", "every layer, shared"): 0.64292,
    ("2-D", "at stem"): 0.64001,
    ("2-D", "every layer"): 0.64046,
    ("2-D", "every layer, shared"): 0.64022,
    ("relative", "at stem"): 0.64032,  # acts within attention, although the column is "at stem"
}


def _positions_cells(ask: Ask, steps: int, study_dir: Path) -> list[Cell]:
    """The runs of every kind of position embedding at every possible place, with every seed."""
    recipe = for_steps(measured_by(ask.varied, ask.fewshot), steps)
    runs = []
    for kind, place in TABLE_8:
        inject = None if kind == "relative" else PLACES[place]
        changed = with_shape(recipe, positions=ENCODINGS[kind], inject=inject)
        runs.append(Cell(f"{kind}-{PLACES[place]}", changed, {"encoding": kind, "place": place}))
    return with_every_seed(runs, ask.seeds)


def _positions_check(ask: Ask) -> None:
    """Raises VitkitError for a model without position embeddings."""
    if not isinstance(ask.varied.model, ViTConfig):
        raise BadSettings("positions are a Vision Transformer's; give a `recipe` of one")


def _positions_table(results: Results) -> PaperTable:
    """Table 8, with the paper's own values below."""
    groups = results.group("encoding", "place")
    here = {key: cell_text(metrics) for key, metrics in groups.items()}
    theirs = {key: f"{100 * value:.1f}" for key, value in TABLE_8.items()}
    rows = []
    for name, values in (("", here), ("the paper: ", theirs)):
        for kind in ENCODINGS:
            texts = [values.get((kind, place), "–") for place in PLACES]
            rows.append((f"{name}{kind}", *texts))
    columns = ("encoding", *PLACES)
    notes = best_and_worst(results.by_seed("encoding", "place"))
    return PaperTable("Table 8: position embeddings, in percent", columns, rows, notes)


def _positions_draw(results: Results) -> Figure:
    """Accuracy by position embedding as dots: measured here, and the paper's."""
    groups = results.group("encoding", "place")
    here = {f"{kind}, {place}": groups.get((kind, place), []) for kind, place in TABLE_8}
    theirs = [100 * value for value in TABLE_8.values()]
    return beside_the_paper(("here", "the paper: ViT-B/16, 5-shot on ImageNet"), here, theirs)


POSITIONS: Study = Study(
    name="positions",
    summary="kinds of position embeddings, and where they enter the model (Table 8)",
    measures=(
        "Eight models that differ only in their position embeddings: none, 1-D, 2-D and relative, "
        "entering at the stem, at every layer with its own tables, or at every layer with one "
        "shared table."
    ),
    found=(
        "Table 8 (ViT-B/16, JFT, 5-shot on ImageNet): 61.4 % without positions, 64.0 to 64.3 % "
        "with any of them. So it matters that there are positions, but not which kind or where "
        "they enter."
    ),
    limits=(
        "A short run can show the large gap between none and any. The others are within 0.3 points "
        "in the paper: to distinguish those takes hundreds of seeds, or the paper's compute. Early "
        "in training, the kinds also differ in how fast they are learned, which evens out in "
        "longer runs."
    ),
    cells=_positions_cells,
    table=_positions_table,
    draw=_positions_draw,
    check=_positions_check,
)


# Pooling: the class token, or the mean of the patches

EVALUATIONS = 7  # as many as the paper's epochs
LOWER = 3 / 8  # ratio of the paper's learning rates, 3e-4 and 8e-4
POOLINGS = {  # the model's pooling, and the factor of the recipe's learning rate
    "class token": ("token", 1.0),
    "mean of the patches": ("gap", 1.0),
    "mean of the patches, lower rate": ("gap", LOWER),
    "class token, lower rate": (
        "token",
        LOWER,
    ),  # not in the paper: the counterpart for the class token
}
FIGURE_9 = {  # findings of Figure 9, which has no table
    "class token": "works (8e-4)",
    "mean of the patches": "well below the token (8e-4)",
    "mean of the patches, lower rate": "as good as the token (3e-4)",
    "class token, lower rate": "not tried",
}


def _pooling_cells(ask: Ask, steps: int, study_dir: Path) -> list[Cell]:
    """The runs of both poolings at both learning rates with every seed, evaluated seven times."""
    recipe = for_steps(measured_by(ask.varied, ask.fewshot), steps, EVALUATIONS)
    runs = []
    for kind, (pool, share) in POOLINGS.items():
        rate = recipe.optim.lr * share
        changed = replace(with_shape(recipe, pool=pool), optim=replace(recipe.optim, lr=rate))
        runs.append(Cell(f"{pool}-lr-{rate:g}", changed, {"pooling": kind, "lr": rate}))
    return with_every_seed(runs, ask.seeds)


def _pooling_check(ask: Ask) -> None:
    """Raises VitkitError for a model without a class token."""
    model = ask.varied.model
    if not isinstance(model, ViTConfig) or model.mixer == "axial":
        raise BadSettings("pooling compares a class token, which this `recipe`'s model cannot have")


def _pooling_table(results: Results) -> PaperTable:
    """The final accuracy by pooling and learning rate."""
    groups = results.group("pooling", "lr")
    rows = []
    for (kind, rate), metrics in groups.items():
        rows.append((kind, f"{rate:g}", cell_text(metrics), FIGURE_9[kind]))
    columns = ("the head reads", "learning rate", "here, %", "Figure 9")
    notes = best_and_worst(results.by_seed("pooling"))
    return PaperTable("Figure 9: class token and mean pooling", columns, rows, notes)


def _pooling_draw(results: Results) -> Figure:
    """The curves of Figure 9."""
    figure, (axes,) = panels(("class token and mean of the patches",))
    groups = results.group("pooling", "lr")
    for number, (kind, rate) in enumerate(groups):
        line(axes, results.curve(pooling=kind), f"{kind}, {rate:g}", number)
    titles(axes, "steps", groups)
    return figure


POOLING: Study = Study(
    name="pooling",
    summary="class token or mean of the patches, at two learning rates (Figure 9)",
    measures=(
        "The class token and the mean of the patches as input of the head, each at the recipe's "
        "learning rate and at 3/8 of it, measured seven times during training."
    ),
    found=(
        "Figure 9: the mean of the patches seemed to be worse than the class token, but is as good "
        "with a learning rate of 3e-4 instead of 8e-4: each needs its own learning rate."
    ),
    limits=(
        "The best learning rate depends on the length of the run: with a small budget higher rates "
        "win, because they learn faster, and the paper's finding may not appear. Two rates are not "
        "a search; for a search, use `rates` of finetune, or recipes of your own."
    ),
    cells=_pooling_cells,
    table=_pooling_table,
    draw=_pooling_draw,
    check=_pooling_check,
)


# The optimiser of ResNets: Adam or SGD

RESNETS = {
    "small ResNet": Backbone(units=(1, 1, 1), width=0.5),
    "large ResNet": Backbone(units=(2, 2, 2), width=1.0),
}
THEIRS = dict(
    zip(RESNETS, ("R50x1", "R152x2"), strict=True)
)  # the paper's model that each corresponds to
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "Adam": {"name": "adam"},
    "SGD": {"name": "sgd", "weight_decay": 1e-4},
}
SGD_RATE = 0.03 / 256  # BiT's learning rate per image of a batch
TABLE_7 = {  # average of five transfers in percent: ImageNet, CIFAR-10, CIFAR-100, Pets, Flowers
    ("small ResNet", "Adam"): 89.33,
    ("small ResNet", "SGD"): 88.79,
    ("large ResNet", "Adam"): 94.01,
    ("large ResNet", "SGD"): 93.72,
}


def _optimizer_cells(ask: Ask, steps: int, study_dir: Path) -> list[Cell]:
    """The runs of both ResNets with both optimisers and every seed: Adam with the recipe's
    settings, SGD with BiT's learning rate and weight decay."""
    recipe = for_steps(measured_by(ask.varied, ask.fewshot), steps)
    runs = []
    for model, backbone in RESNETS.items():
        for name, changes in OPTIMIZERS.items():
            optim = replace(recipe.optim, **changes)
            if name == "SGD":
                optim = replace(optim, lr=SGD_RATE * recipe.batch)
            changed = replace(resnet_like(recipe, backbone), optim=optim)
            settings: dict[str, Setting] = {"model": model, "optimizer": name}
            runs.append(Cell(f"{model.replace(' ', '-')}-{name}", changed, settings))
    return with_every_seed(runs, ask.seeds)


def _optimizer_table(results: Results) -> PaperTable:
    """Table 7: accuracy here, and the paper's average."""
    groups = results.group("model", "optimizer")
    rows = []
    for key, value in TABLE_7.items():
        own = cell_text(groups.get(key, []))
        rows.append((*key, own, f"{THEIRS[key[0]]}: {value:.2f}"))
    columns = ("model", "optimizer", "here, %", "paper, average of five transfers, %")
    notes = best_and_worst(results.by_seed("model", "optimizer"))
    return PaperTable("Table 7: Adam and SGD", columns, rows, notes)


def _optimizer_draw(results: Results) -> Figure:
    """Accuracy by model and optimiser as dots, beside the paper's."""
    groups = results.group("model", "optimizer")
    here = {f"{model}, {name}": groups.get((model, name), []) for model, name in TABLE_7}
    names = [f"{THEIRS[model]}, {name}" for model, name in TABLE_7]
    subtitles = ("here", "the paper: average of five transfers")
    return beside_the_paper(subtitles, here, list(TABLE_7.values()), names)


OPTIMIZER: Study = Study(
    name="optimizer",
    summary="Adam or SGD for ResNets (Table 7)",
    measures=(
        "A small and a large ResNet, each trained with Adam, and with SGD at BiT's learning rate "
        "and weight decay."
    ),
    found=(
        "Table 7, after seven epochs of JFT: Adam is a little better on average (89.3 and 88.8 % "
        "for R50x1, 94.0 and 93.7 % for R152x2), so the paper compares with ResNets that were "
        "trained with Adam."
    ),
    limits=(
        "There is one learning rate for each optimiser: in a short run the better suited rate "
        "wins, which says little about the optimiser. Recipes of your own can change it. The "
        "paper's differences are half a point, on five transfer tasks."
    ),
    cells=_optimizer_cells,
    table=_optimizer_table,
    draw=_optimizer_draw,
)
