"""Table 8 (Appendix D.4): which position embedding, and where it enters."""

from dataclasses import replace
from pathlib import Path

from matplotlib.figure import Figure

from vitkit.models import ViTConfig
from vitkit.studies.base import for_steps, measured_by, with_shape
from vitkit.studies.cell import Cell
from vitkit.studies.drawing import axis_title, dots, panels, printed
from vitkit.studies.outcomes import Ask, Results, Table, cell_text, noise
from vitkit.studies.study import Study

KINDS = {"none": "none", "1-D": "learned", "2-D": "learned2d", "relative": "relative"}
PLACES = {"at stem": "stem", "every layer": "every", "every layer, shared": "shared"}
PAPER = {  # ViT-B/16, 5-shot on ImageNet
    ("none", "at stem"): 0.61382,
    ("1-D", "at stem"): 0.64206,
    ("1-D", "every layer"): 0.63964,
    ("1-D", "every layer, shared"): 0.64292,
    ("2-D", "at stem"): 0.64001,
    ("2-D", "every layer"): 0.64046,
    ("2-D", "every layer, shared"): 0.64022,
    ("relative", "at stem"): 0.64032,  # it acts within attention, whatever its column is called
}


def cells(ask: Ask, steps: int, study_dir: Path) -> list[Cell]:
    """A run of every encoding at every place that it can enter, with every seed."""
    grid = []
    recipe = for_steps(measured_by(ask.recipe, ask.fewshot), steps)
    for seed in range(ask.seeds):
        for kind, place in PAPER:
            inject = PLACES[place]
            if kind == "relative":
                inject = None
            changed = with_shape(recipe, positions=KINDS[kind], inject=inject)
            name = f"{kind}-{PLACES[place]}/seed-{seed}"
            settings = {"encoding": kind, "place": place, "seed": seed}
            grid.append(Cell(name, replace(changed, seed=seed), settings))
    return grid


def check(ask: Ask) -> None:
    """Raises ValueError for a model without position embeddings."""
    if not isinstance(ask.recipe.model, ViTConfig):
        raise ValueError("positions are a Vision Transformer's; give a --recipe of one")


def table(results: Results) -> Table:
    """Table 8, with the paper's own values below."""
    groups = results.group("encoding", "place")
    here = {key: cell_text(metrics) for key, metrics in groups.items()}
    theirs = {key: f"{100 * value:.1f}" for key, value in PAPER.items()}
    rows = []
    for name, values in (("", here), ("the paper: ", theirs)):
        for kind in KINDS:
            texts = [values.get((kind, place), "–") for place in PLACES]
            rows.append((f"{name}{kind}", *texts))
    notes = noise(list(groups.values()))
    return Table("Table 8: position embeddings, in percent", ("encoding", *PLACES), rows, notes)


def draw(results: Results) -> Figure:
    """The same as dots: measured here, and the paper's."""
    groups = results.group("encoding", "place")
    figure, (here, theirs) = panels(("here", "the paper: ViT-B/16, 5-shot on ImageNet"))
    names = [f"{kind}, {place}" for kind, place in PAPER]
    dots(here, names, [groups.get(key, []) for key in PAPER])
    here.set_xlabel(axis_title(next(iter(groups.values()), [])))
    printed(theirs, [""] * len(names), [100 * value for value in PAPER.values()])
    return figure


STUDY = Study(
    name="positions",
    summary="which position embedding, and where it enters (Table 8)",
    measures=(
        "Eight models that differ by their position embeddings alone: none, 1-D, 2-D and relative, "
        "entering at the stem, at every layer with tables of its own, or at every layer with one table."
    ),
    found=(
        "Table 8 (ViT-B/16, JFT, 5-shot on ImageNet): without positions 61.4 %, with any of them 64.0 to "
        "64.3 %: that there are positions matters, which and where does not."
    ),
    limits=(
        "A short run shows the gap between none and any, which is the large one. The others lie within "
        "0.3 points in the paper: to tell those apart takes hundreds of seeds, or the paper's compute. "
        "Early in training the kinds also differ by how fast they are learned, which longer runs level."
    ),
    cells=cells,
    table=table,
    draw=draw,
    check=check,
)
