"""Figure 13 (Appendix D.6): axial attention, by operations and by speed."""

from dataclasses import dataclass, replace
from pathlib import Path

from matplotlib.figure import Figure

from vitkit.evaluation import Metric
from vitkit.models import (
    Backbone,
    ModelConfig,
    ResNetConfig,
    ViTConfig,
    create,
    exaflops,
    for_inference,
)
from vitkit.studies.base import check_square_patches, for_steps, measured_by
from vitkit.studies.cell import Cell
from vitkit.studies.drawing import axis_title, legend, line, logarithmic, panels
from vitkit.studies.fastest import RATE, images_per_second
from vitkit.studies.outcomes import Ask, Results, Table, cell_text, noise
from vitkit.studies.study import Study
from vitkit.system.processes.ranks import process_group

BATCH = 64  # of the images whose time is taken
UNITS = (1, 1, 1)
PAPER = {  # what Figure 13 shows; it has no table
    "Axial-ViT": "better than ViT at either patch size, at more operations",
    "ViT": "the fastest",
    "Axial-ResNet": "good by operations, very slow",
    "ResNet": "the baseline",
}


@dataclass(frozen=True)
class Speed:
    """Images per second of a model's forward pass, on random images."""

    model: ModelConfig
    """The model."""

    def measure(self, device: str) -> list[Metric]:
        """The speed of the best of some passes."""
        with process_group(device) as own_device:
            model = for_inference(create(self.model, own_device, 0))
            return [Metric("images/s", images_per_second(model, BATCH, own_device), RATE)]


def cells(ask: Ask, steps: int, study_dir: Path) -> list[Cell]:
    """A run of every model with every seed, and the speed of each."""
    grid = []
    recipe = for_steps(measured_by(ask.recipe, ask.fewshot), steps)
    for name, model in models(ask.recipe.model).items():
        grid.append(Cell(f"{name.replace(' ', '-')}/speed", Speed(model), {"speed of": name}))
    for seed in range(ask.seeds):
        for name, model in models(ask.recipe.model).items():
            spent = exaflops(model, recipe.length.n * recipe.batch)
            settings = {"model": name, "exaflops": spent, "seed": seed}
            changed = replace(recipe, model=model, seed=seed)
            grid.append(Cell(f"{name.replace(' ', '-')}/seed-{seed}", changed, settings))
    return grid


def models(base: ViTConfig) -> dict[str, ModelConfig]:
    """The recipe's model at its own and at twice its patch size, the same with axial attention, and
    two ResNets. An axial block is two of the others, as in the paper."""
    found: dict[str, ModelConfig] = {}
    for patch in (base.patch, 2 * base.patch):
        if any(side % patch for side in base.image):
            continue
        vit = replace(base, patch=patch)
        found[f"ViT/{patch}"] = vit
        found[f"Axial-ViT/{patch}"] = replace(vit, mixer="axial", pool="gap")
    for name, mixer in (("ResNet", "conv"), ("Axial-ResNet", "axial")):
        found[name] = ResNetConfig(Backbone(units=UNITS, mixer=mixer), image=base.image, classes=0)
    return found


def check(ask: Ask) -> None:
    """Raises ValueError for a model that cannot be axial."""
    model = ask.recipe.model
    if not isinstance(model, ViTConfig):
        raise ValueError("axial varies a Vision Transformer; give a --recipe of one")
    check_square_patches(model)
    replace(model, mixer="axial", pool="gap")


def _speeds(results: Results) -> dict[str, float]:
    """Images per second by model."""
    return {name: metrics[0].value for (name,), metrics in results.group("speed of").items()}


def table(results: Results) -> Table:
    """Accuracy, operations and speed of every model."""
    speeds = _speeds(results)
    groups = results.group("model", "exaflops")
    rows = []
    for (name, spent), metrics in groups.items():
        kind = name.partition("/")[0]
        speed = f"{speeds[name]:,.0f}" if name in speeds else "–"
        rows.append((name, cell_text(metrics), f"{spent:.3g}", speed, PAPER[kind]))
    columns = ("model", "here, %", "exaFLOPs", "images/s", "Figure 13")
    return Table("Figure 13: axial attention", columns, rows, noise(list(groups.values()))[:1])


def draw(results: Results) -> Figure:
    """Both panels of Figure 13."""
    figure, (left, right) = panels(("by operations", "by speed of inference"))
    speeds = _speeds(results)
    groups = results.group("model", "exaflops")
    for number, ((name, spent), metrics) in enumerate(groups.items()):
        line(left, {spent: metrics}, name, number)
        if name in speeds:
            line(right, {speeds[name]: metrics}, name, number)
    for axes, title in ((left, "exaFLOPs of training"), (right, "images per second")):
        logarithmic(axes)
        axes.set_xlabel(title)
        axes.set_ylabel(axis_title(next(iter(groups.values()), [])))
    legend(left)
    return figure


STUDY = Study(
    name="axial",
    summary="axial attention: accuracy by operations and by speed (Figure 13)",
    measures=(
        "The recipe's Vision Transformer at its own and at twice its patch size, and a ResNet, each with and "
        "without axial attention; accuracy against the operations of training, and against the images per "
        "second of inference."
    ),
    found=(
        "Figure 13: Axial-ViT-B/32 and B/16 are better than their counterparts at more operations, since each "
        "block is two; AxialResNet50 looks well by operations and is very slow by the clock."
    ),
    limits=(
        "Axial blocks have twice the layers, so part of a gain is depth; and with an 8 x 8 grid there is little "
        "that axial attention saves. Speeds are of this machine, whatever else it does meanwhile."
    ),
    cells=cells,
    table=table,
    draw=draw,
    check=check,
)
