"""Section 4.6: masked patch prediction before fine-tuning, beside training from scratch and beside
supervised pre-training."""

from dataclasses import replace
from pathlib import Path

from matplotlib.figure import Figure

from vitkit.models import ViTConfig
from vitkit.objectives import MaskedPatches
from vitkit.studies.base import for_steps, measured_by, on_a_share
from vitkit.studies.cell import Cell
from vitkit.studies.drawing import axis_title, dots, panels, printed
from vitkit.studies.outcomes import Ask, Results, Table, cell_text, noise
from vitkit.studies.study import Study
from vitkit.training import Recipe

SHARE = 0.1  # of the training images: those whose labels are used
SCRATCH = "from scratch"
MASKED = "masked patch prediction first"
SUPERVISED = "supervised pre-training first"
PAPER = {SCRATCH: 77.9, MASKED: 79.9, SUPERVISED: 83.9}  # ViT-B/16, ImageNet


def cells(ask: Ask, steps: int, study_dir: Path) -> list[Cell]:
    """With every seed: pre-training on all images without their labels and with them, and fine-tuning
    on a tenth of the labels from each and from scratch."""
    grid = []
    base = for_steps(replace(ask.recipe, evals=()), steps)
    for seed in range(ask.seeds):
        tuned = _fine_tuning(ask, steps, seed)
        grid.append(Cell(f"scratch/seed-{seed}", tuned, {"begins": SCRATCH, "seed": seed}))
        starts = {
            MASKED: ("masked", replace(base, objective=MaskedPatches(), precision="float32")),
            SUPERVISED: ("supervised", base),
        }
        for begins, (name, recipe) in starts.items():
            first = f"{name}/pre-trained/seed-{seed}"
            grid.append(
                Cell(first, replace(recipe, seed=seed), {"pre-training": name, "seed": seed})
            )
            then = replace(tuned, init=str(study_dir / first))
            settings = {"begins": begins, "seed": seed}
            grid.append(Cell(f"{name}/fine-tuned/seed-{seed}", then, settings, after=first))
    return grid


def _fine_tuning(ask: Ask, steps: int, seed: int) -> Recipe:
    """Training with a tenth of the labels; half as long as the pre-training."""
    recipe = for_steps(measured_by(ask.recipe, ask.fewshot), max(steps // 2, 1))
    return replace(on_a_share(recipe, SHARE, seed), seed=seed)


def check(ask: Ask) -> None:
    """Raises ValueError for a model whose patches cannot be masked."""
    if not isinstance(ask.recipe.model, ViTConfig) or ask.recipe.model.mixer == "axial":
        raise ValueError("self-supervision masks patches of a plain Vision Transformer's --recipe")


def table(results: Results) -> Table:
    """Accuracy by where fine-tuning begins."""
    groups = {begins: metrics for (begins,), metrics in results.group("begins").items()}
    rows = [(name, cell_text(groups.get(name, [])), f"{PAPER[name]:.1f}") for name in PAPER]
    notes = noise(list(groups.values()))
    columns = ("begins", "here, %", "paper, %")
    return Table(
        "Section 4.6: self-supervision, ViT-B/16 on ImageNet in the paper", columns, rows, notes
    )


def draw(results: Results) -> Figure:
    """The same as dots."""
    groups = {begins: metrics for (begins,), metrics in results.group("begins").items()}
    figure, (here, theirs) = panels(
        ("here: a tenth of the labels", "the paper: ViT-B/16, ImageNet")
    )
    dots(here, list(PAPER), [groups.get(name, []) for name in PAPER])
    here.set_xlabel(axis_title(next(iter(groups.values()), [])))
    printed(theirs, [""] * len(PAPER), list(PAPER.values()))
    return figure


STUDY = Study(
    name="self-supervision",
    summary="masked patch prediction, beside scratch and supervised pre-training (4.6)",
    measures=(
        "Fine-tuning with a tenth of the labels, drawn anew for every seed: from scratch, after masked patch "
        "prediction on all images without labels, and after supervised training on all labels, which is an "
        "upper bound. Fine-tuning is half as long as pre-training."
    ),
    found=(
        "Section 4.6: ViT-B/16 with masked patch prediction on JFT reaches 79.9 % on ImageNet, two points above "
        "training from scratch, four below supervised pre-training; from 100,000 steps on it gains little."
    ),
    limits=(
        "The paper pre-trains for up to a million steps. In some hundred steps the masked model learns colours "
        "and little more, and what it gains may be nothing."
    ),
    cells=cells,
    table=table,
    draw=draw,
    check=check,
)
