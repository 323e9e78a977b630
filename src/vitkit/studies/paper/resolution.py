"""Section 3.2: other image sizes than those of pre-training, in fine-tuning and in inference, with
every way to resample position embeddings."""

from dataclasses import dataclass, replace
from pathlib import Path

from matplotlib.figure import Figure

from vitkit.data import Splits, eval_batches, open_splits
from vitkit.evaluation import Accuracy, Metric, Part, Subject
from vitkit.models import RESAMPLE, ViTConfig
from vitkit.recipes import finetune
from vitkit.studies.base import for_steps, measured_by
from vitkit.studies.cell import Cell, Passes
from vitkit.studies.drawing import axis_title, legend, line, panels
from vitkit.studies.outcomes import Ask, Results, Table, cell_text, noise
from vitkit.studies.study import Study
from vitkit.system.machine import autocast, pick_precision
from vitkit.system.processes.ranks import process_group
from vitkit.training import Recipe
from vitkit.weights import adopt, load, preprocessing_for

SIDES = (3, 5, 7, 9)  # of the model's own side, in sevenths: 96, 160, 224 and 288 pixels
OWN = "own"  # the method of a model that is not resampled
BATCH = 32
TRAINED = "fine-tuned at this size"
TESTED = "fine-tuned at its own size, tested at this"


@dataclass(frozen=True)
class AtSize:
    """The accuracy of a finished run's model on the test part at another image size. Equal values
    measure the same."""

    run_dir: str
    """The run."""
    data: str
    """The images."""
    side: int
    """Height and width in pixels."""
    method: str
    """How positions are resampled."""

    def measure(self, device: str) -> list[Metric]:
        """top1 and more. Raises ValueError if the run has no model."""
        with process_group(device) as own_device:
            classifier = load(self.run_dir, quiet=True)
            size = (self.side, self.side)
            if size != tuple(classifier.model.config.image):
                classifier, _ = adopt(classifier, image=size, method=self.method)
            classifier = classifier.to(own_device)
            splits = open_splits(self.data)
            source = splits.test or splits.val
            batches = eval_batches(source, classifier.preprocessing, BATCH, 0)
            precision = pick_precision("auto", own_device).precision
            with autocast(own_device, precision):
                metrics = list(Accuracy().measure(Subject(classifier), Part(source, batches)))
        return metrics

    def passes(self, before: Recipe) -> Passes:
        """One of every image of the test part."""
        splits = open_splits(self.data)
        source = splits.test or splits.val
        return Passes(resized(before, self.side, self.method), len(source))


def base(ask: Ask, splits: Splits) -> Recipe:
    """Fine-tuning of the published weights, at their own size."""
    return finetune(ask.model, ask.data)


def cells(ask: Ask, steps: int, study_dir: Path) -> list[Cell]:
    """With every seed: fine-tuning at every size with every method, and the model that was fine-tuned
    at its own size, tested at every size with every method."""
    grid = []
    recipe = for_steps(measured_by(ask.recipe, ""), steps)
    own = recipe.model.image[0]
    for seed in range(ask.seeds):
        first = f"trained/{own}/seed-{seed}"
        settings = {"how": TRAINED, "side": own, "resample": OWN, "seed": seed}
        grid.append(Cell(first, replace(recipe, seed=seed), settings))
        for side in sides(ask):
            if side == own:
                continue
            for method in RESAMPLE:
                settings = {"how": TRAINED, "side": side, "resample": method, "seed": seed}
                changed = replace(resized(recipe, side, method), seed=seed)
                grid.append(Cell(f"trained/{side}-{method}/seed-{seed}", changed, settings))
                measurement = AtSize(str(study_dir / first), ask.data, side, method)
                name = f"tested/{side}-{method}/seed-{seed}"
                grid.append(Cell(name, measurement, settings | {"how": TESTED}, after=first))
    return grid


def sides(ask: Ask) -> list[int]:
    """The sides in pixels, the model's own among them."""
    own = ask.recipe.model.image[0]
    chosen = ask.sizes or [own * share // 7 for share in SIDES]
    fitting = ask.recipe.model.fitting
    return sorted({own, *(fitting((side, side))[0] for side in chosen)})


def resized(recipe: Recipe, side: int, method: str) -> Recipe:
    """The same fine-tuning at another size."""
    size = (side, side)
    preprocessing = preprocessing_for(recipe.data.preprocessing, size)
    data = replace(recipe.data, preprocessing=preprocessing)
    return replace(recipe, model=recipe.model.resized(size, method), data=data)


def check(ask: Ask) -> None:
    """Raises ValueError for a model without positions to resample."""
    if not isinstance(ask.recipe.model, ViTConfig):
        raise ValueError(f"{ask.model} is no Vision Transformer, and has no positions to resample")


def table(results: Results) -> Table:
    """Accuracy by size and method."""
    groups = results.group("how", "side", "resample")
    rows = []
    for how in (TRAINED, TESTED):
        for side in sides(results.ask):
            own = groups.get((TRAINED, side, OWN))
            texts = [cell_text(own or groups.get((how, side, method), [])) for method in RESAMPLE]
            rows.append((how, str(side), *texts))
    notes = noise(list(groups.values()))[:1]
    notes.append(
        "the official repository, for ViT-B/16 from ImageNet-21k on ImageNet: 81.2 % fine-tuned at 224, "
        "84.5 % at 384"
    )
    columns = ("how", "side", *RESAMPLE)
    return Table("Section 3.2: image sizes, accuracy in percent", columns, rows, notes)


def draw(results: Results) -> Figure:
    """Accuracy against size: fine-tuned there, and only tested there."""
    groups = results.group("how", "side", "resample")
    figure, both = panels((TRAINED, TESTED))
    for axes, how in zip(both, (TRAINED, TESTED), strict=True):
        for number, method in enumerate(RESAMPLE):
            points = {}
            for side in sides(results.ask):
                own = groups.get((TRAINED, side, OWN))
                points[side] = own or groups.get((how, side, method), [])
            line(axes, points, method, number)
        axes.set_xlabel("side of the images in pixels")
        axes.set_ylabel(axis_title(next(iter(groups.values()), [])))
        legend(axes)
    return figure


STUDY = Study(
    name="resolution",
    summary="fine-tuning and inference at other image sizes, every resampling of positions (3.2)",
    measures=(
        "Published weights, fine-tuned at their own image size and at others, with positions resampled as "
        "Google, timm, Hugging Face and torchvision do; and the model that was fine-tuned at its own size, "
        "only tested at the others."
    ),
    found=(
        "Section 3.2: fine-tuning at a higher resolution than that of pre-training helps, so Tables 2 and 5 "
        "are at 384 to 518 pixels; positions are interpolated in two dimensions. The paper does not compare "
        "ways to do that."
    ),
    limits=(
        "Small images are enlarged for larger sizes, which adds tokens and no detail: then accuracy grows "
        "little beyond the images' own size. The methods differ mostly where a model is not fine-tuned; a "
        "few hundred steps of fine-tuning level them."
    ),
    cells=cells,
    table=table,
    draw=draw,
    needs=("data", "model"),
    takes=("sizes", "seeds"),
    check=check,
    base=base,
)
