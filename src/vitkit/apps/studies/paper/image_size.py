"""Image sizes: accuracy at other sizes than that of pre-training, with different ways of resampling
position embeddings (Section 3.2), and the speed of inference (Figure 12, Appendix D.5)."""

import os
from dataclasses import dataclass, replace
from pathlib import Path

from matplotlib.figure import Figure

from vitkit.apps.studies.base import for_steps, measured_by
from vitkit.apps.studies.drawing import MARKERS, legend, line, panels, titles
from vitkit.apps.studies.protocol import Ask, PaperTable, Results, Study
from vitkit.apps.studies.throughput import GIB, MOST, Fastest
from vitkit.apps.studies.uncertainty import best_and_worst, cell_text
from vitkit.data import Splits, eval_batches, splits_at
from vitkit.evaluation import Accuracy, Metric, Part, Subject
from vitkit.models import RESAMPLE, ViTConfig, named
from vitkit.recipes import Recipe, finetune
from vitkit.system.errors import BadSettings
from vitkit.system.machine import autocast, pick_precision
from vitkit.system.processes.ranks import process_group
from vitkit.training import Cell
from vitkit.training.grids.grid import Passes
from vitkit.training.grids.rows import Setting
from vitkit.weights import adopt, load, preprocessing_for

# Accuracy

SEVENTHS = (3, 5, 7, 9)  # sizes in sevenths of the model's own: 96, 160, 224 and 288 pixels for 224
OWN = "own"  # the method at the model's own size, where nothing is resampled
BATCH = 32
TRAINED = "fine-tuned at this size"
TESTED = "fine-tuned at its own size, tested at this"


@dataclass(frozen=True)
class AtSize:
    """Measures a run's model on the test part at another image size."""

    run_dir: str
    """The run."""
    data: str
    """The images."""
    side: int
    """Height and width of the images in pixels."""
    method: str
    """Method of resampling position embeddings."""

    def measure(self, device: str) -> list[Metric]:
        """Returns top1 and the other metrics. Raises VitkitError if the run has no model."""
        with process_group(device) as own_device:
            classifier = load(self.run_dir, quiet=True)
            size = (self.side, self.side)
            if size != tuple(classifier.model.config.image):
                classifier, _ = adopt(classifier, image=size, method=self.method)
            classifier = classifier.to(own_device)
            splits = splits_at(self.data, typed=True)
            source = splits.test or splits.val
            assert source is not None  # the run was evaluated on it
            batches = eval_batches(source, classifier.preprocessing, BATCH, 0)
            precision = pick_precision("auto", own_device).precision
            with autocast(own_device, precision):
                metrics = list(Accuracy().measure(Subject(classifier), Part(source, batches)))
        return metrics

    def passes(self, before: Recipe) -> Passes:
        """One pass over every image of the test part."""
        splits = splits_at(self.data, typed=True)
        source = splits.test or splits.val
        assert source is not None  # the run is evaluated on it
        return Passes(_resized(before, self.side, self.method), len(source))


def _resolution_base(ask: Ask, splits: Splits) -> Recipe:
    """Fine-tuning of the published weights at their own image size."""
    return finetune(ask.model, ask.data)


def _resolution_cells(ask: Ask, steps: int, study_dir: Path) -> list[Cell]:
    """For every seed: fine-tuning at every size with every method, and tests at every size with
    every method of the model that was fine-tuned at its own size."""
    grid = []
    recipe = for_steps(measured_by(ask.varied, ""), steps)
    own = recipe.model.image[0]
    for seed in range(ask.seeds):
        first = f"trained/{own}/seed-{seed}"
        settings: dict[str, Setting] = {"how": TRAINED, "side": own, "resample": OWN, "seed": seed}
        grid.append(Cell(first, replace(recipe, seed=seed), settings))
        for side in _sides(ask):
            if side == own:
                continue
            for method in RESAMPLE:
                settings = {"how": TRAINED, "side": side, "resample": method, "seed": seed}
                changed = replace(_resized(recipe, side, method), seed=seed)
                grid.append(Cell(f"trained/{side}-{method}/seed-{seed}", changed, settings))
                measurement = AtSize(str(study_dir / first), ask.data, side, method)
                name = f"tested/{side}-{method}/seed-{seed}"
                grid.append(Cell(name, measurement, settings | {"how": TESTED}, after=first))
    return grid


def _sides(ask: Ask) -> list[int]:
    """The sides in pixels, including the model's own."""
    own = ask.varied.model.image[0]
    chosen = ask.sizes or [own * share // 7 for share in SEVENTHS]
    fitting = ask.varied.model.fitting
    return sorted({own, *(fitting((side, side))[0] for side in chosen)})


def _resized(recipe: Recipe, side: int, method: str) -> Recipe:
    """The fine-tuning recipe at another image size."""
    size = (side, side)
    preprocessing = preprocessing_for(recipe.data.preprocessing, size)
    data = replace(recipe.data, preprocessing=preprocessing)
    return replace(recipe, model=recipe.model.resized(size, method), data=data)


def _resolution_check(ask: Ask) -> None:
    """Raises VitkitError for a model without position embeddings."""
    if not isinstance(ask.varied.model, ViTConfig):
        raise BadSettings(f"{ask.model} is no Vision Transformer, and has no positions to resample")


def _resolution_table(results: Results) -> PaperTable:
    """Accuracy by size and method."""
    groups = results.group("how", "side", "resample")
    rows = []
    for how in (TRAINED, TESTED):
        for side in _sides(results.ask):
            own = groups.get((TRAINED, side, OWN))
            texts = [cell_text(own or groups.get((how, side, method), [])) for method in RESAMPLE]
            rows.append((how, str(side), *texts))
    notes = best_and_worst(results.by_seed("how", "side", "resample"))
    notes.append(
        "the official repository, for ViT-B/16 from ImageNet-21k on ImageNet: 81.2 % fine-tuned at 224, "
        "84.5 % at 384"
    )
    columns = ("how", "side", *RESAMPLE)
    return PaperTable("Section 3.2: image sizes, accuracy in percent", columns, rows, notes)


def _resolution_draw(results: Results) -> Figure:
    """Accuracy against image size: fine-tuned at each size, and only tested at it."""
    groups = results.group("how", "side", "resample")
    figure, both = panels((TRAINED, TESTED))
    for axes, how in zip(both, (TRAINED, TESTED), strict=True):
        for number, method in enumerate(RESAMPLE):
            points = {}
            for side in _sides(results.ask):
                own = groups.get((TRAINED, side, OWN))
                points[side] = own or groups.get((how, side, method), [])
            line(axes, points, method, number)
        titles(axes, "side of the images in pixels", groups)
    return figure


RESOLUTION: Study = Study(
    name="resolution",
    summary="fine-tuning and inference at other image sizes, resampling of positions (3.2)",
    measures=(
        "Published weights, fine-tuned at their own image size and at others, with positions "
        "resampled as in Google's code, timm, Hugging Face, torchvision and SigLIP 2; and the "
        "model that was fine-tuned at its own size, tested at the other sizes without further "
        "training."
    ),
    found=(
        "Section 3.2: fine-tuning at a higher resolution than that of pre-training helps, so "
        "Tables 2 and 5 use 384 to 518 pixels; positions are interpolated in two dimensions. The "
        "paper does not compare ways to resample."
    ),
    limits=(
        "Small images are enlarged for larger sizes, which adds tokens but no detail, so accuracy "
        "grows little beyond the images' own size. The ways to resample differ mostly without "
        "fine-tuning; a few hundred steps of fine-tuning remove the difference."
    ),
    cells=_resolution_cells,
    table=_resolution_table,
    draw=_resolution_draw,
    needs=("data", "model"),
    takes=("sizes", "seeds"),
    check=_resolution_check,
    base=_resolution_base,
)


# Speed

MODELS = ("Ti/16", "S/16", "B/16")
SIDES = (64, 128, 224, 384, 512)  # as in the paper
LARGEST = "largest batch"


def _speed_cells(ask: Ask, steps: int, study_dir: Path) -> list[Cell]:
    """A measurement of every model at every size."""
    grid = []
    for name in ask.models or MODELS:
        for side in ask.sizes or SIDES:
            folder = f"{name.replace('/', '-')}/{side}"
            measurement = Fastest(name, side, ask.memory)
            grid.append(Cell(folder, measurement, {"model": name, "side": side}))
    return grid


def _speed_check(ask: Ask) -> None:
    """Raises VitkitError for an unknown model, for sizes that its patches do not divide, and for
    more memory than the machine has, where the system would kill other processes."""
    for name in ask.models or MODELS:
        config = named(name)
        for side in ask.sizes or SIDES:
            config.resized((side, side))
    if not ask.memory > 0:
        raise BadSettings(f"`memory` is {ask.memory}; it is a number of GiB above 0")
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / GIB
    if ask.memory > machine:
        raise BadSettings(f"`memory` is {ask.memory:g} GiB, and this machine has {machine:.0f}")


def _speed_table(results: Results) -> PaperTable:
    """Speed and largest batch by model and size."""
    rates = results.group("model", "side")
    batches = _largest(results)
    models = list(dict.fromkeys(model for model, _ in rates))
    sides = sorted({side for _, side in rates})
    rows = []
    for model in models:
        texts = []
        for side in sides:
            text = "–"
            if (model, side) in rates:
                batch = f"{batches[model, side]:,.0f}"
                if batches[model, side] >= MOST:
                    batch += " or more"
                text = f"{rates[model, side][0].value:,.1f} ({batch})"
            texts.append(text)
        rows.append((model, *texts))
    notes = [
        "images per second at the best batch, and in brackets the largest batch that fits",
        "the paper has no table of Figure 12: it was measured on a core of a TPUv3",
    ]
    columns = ("model", *(f"{side} pixels" for side in sides))
    return PaperTable("Figure 12: speed of inference", columns, rows, notes)


def _largest(results: Results) -> dict[tuple, float]:
    """The largest batch size by model and image size."""
    found = {}
    for row in results.rows:
        if row.metric is not None and row.metric.name == LARGEST:
            found[row.settings["model"], row.settings["side"]] = row.metric.value
    return found


def _speed_draw(results: Results) -> Figure:
    """Both panels of Figure 12, with logarithmic axes."""
    rates = results.group("model", "side")
    batches = _largest(results)
    figure, (left, right) = panels(("peak inference speed", "largest batch that fits"))
    for number, model in enumerate(dict.fromkeys(model for model, _ in rates)):
        points = sorted((side, m[0].value) for (name, side), m in rates.items() if name == model)
        sizes = sorted((side, value) for (name, side), value in batches.items() if name == model)
        for axes, values in ((left, points), (right, sizes)):
            marker = MARKERS[number % len(MARKERS)]
            axes.plot(*zip(*values, strict=True), label=model, marker=marker, markersize=5)
    sides = sorted({side for _, side in rates})
    for axes, title in ((left, "images per second"), (right, "images")):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(sides, [str(side) for side in sides])
        axes.set_xlabel("side of the images in pixels")
        axes.set_ylabel(title)
    legend(left)
    return figure


SPEED: Study = Study(
    name="speed",
    summary="images per second and the largest batch against the image size (Figure 12)",
    measures=(
        "Inference of each model at each image size: the highest number of images per second over "
        "all batch sizes, and the largest batch that fits into memory, found by doubling and "
        "halving. A batch may take `memory` GiB on a CPU, or all memory of a GPU. The images are "
        "random, and the precision is the one that suits the device."
    ),
    found=(
        "Figure 12, on one core of a TPUv3: the cost grows with the fourth power of the side, "
        "which begins to show only for the largest models at the largest sizes; Vision "
        "Transformers are about as fast as ResNets, and fit larger batches."
    ),
    limits=(
        "The study needs a machine that does nothing else: other work halves the numbers, and "
        "unevenly. A CPU is fastest with small batches, unlike a TPU or a GPU. Nothing is trained; "
        "training costs about three times as much."
    ),
    cells=_speed_cells,
    table=_speed_table,
    draw=_speed_draw,
    needs=(),
    takes=("models", "sizes", "memory"),
    check=_speed_check,
)
