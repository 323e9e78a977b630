"""The effect of pre-training: models and pre-training sets, transferred to other data (Tables 2 and 5,
Section 4.2), and self-supervised pre-training by masked patch prediction (Section 4.6)."""

from dataclasses import replace
from pathlib import Path

from matplotlib.figure import Figure

from vitkit.apps.studies.base import (
    for_steps,
    measured_by,
    on_a_share,
    on_other_images,
    resnet_like,
)
from vitkit.apps.studies.drawing import axis_title, beside_the_paper, dots, panels
from vitkit.apps.studies.protocol import Ask, PaperTable, Results, Study
from vitkit.apps.studies.targets import check_names, data_name, fine_tuning
from vitkit.apps.studies.uncertainty import best_and_worst, cell_text
from vitkit.evaluation import Metric
from vitkit.models import ViTConfig
from vitkit.objectives import MaskedPatches
from vitkit.recipes import Recipe, finetune
from vitkit.system.errors import BadSettings
from vitkit.training import Cell
from vitkit.training.grids.rows import Setting

# Transfer

NONE = "none"
SHARES = {
    "a tenth": 0.1,
    "all": 1.0,
}  # of the pre-training images; the paper has sets of three sizes
MODELS = ("ViT", "ResNet")
PUBLISHED = "published"
TABLE_5 = {  # Table 5, ViT-L/16: CIFAR-100 and Pets, by pre-training set
    "ImageNet, 1.3M": (86.35, 93.64),
    "ImageNet-21k, 14M": (93.44, 94.73),
    "JFT, 303M": (94.04, 97.11),
}


def _transfer_cells(ask: Ask, steps: int, study_dir: Path) -> list[Cell]:
    """Each model from scratch, and pre-trained on every pre-training set; from each of these, runs
    on every target with every seed. Also from a published model, if one is given."""
    grid = []
    base = for_steps(replace(ask.varied, evals=()), steps)
    for name, recipe in dict(zip(MODELS, (base, resnet_like(base)), strict=True)).items():
        grid += _targets(ask, recipe, {"model": name, "pre-training": NONE}, steps, study_dir)
        for images, pretrained in _pre_trainings(ask, recipe).items():
            first = f"{name}/{images.replace(' ', '-')}/pre-trained"
            grid.append(Cell(first, pretrained, {"pre-trained": name, "images": images}))
            settings = {"model": name, "pre-training": images}
            grid += _targets(ask, recipe, settings, steps, study_dir, first)
    if ask.model:
        for target in ask.targets:
            recipe = for_steps(finetune(ask.model, target), max(steps // 2, 1))
            settings = {"model": PUBLISHED, "pre-training": PUBLISHED, "target": data_name(target)}
            for seed in range(ask.seeds):
                folder = f"{PUBLISHED}/{data_name(target)}/seed-{seed}"
                grid.append(Cell(folder, replace(recipe, seed=seed), settings | {"seed": seed}))
    return grid


def _pre_trainings(ask: Ask, recipe: Recipe) -> dict[str, Recipe]:
    """The pre-training runs of a model, by the name of the pre-training set: the given data sets, or
    parts of the only one."""
    if not ask.pretrain:
        return {name: on_a_share(recipe, share, 0) for name, share in SHARES.items()}
    recipes = {}
    for source in (ask.data, *ask.pretrain):
        recipes[data_name(source)] = recipe
        if source != ask.data:
            recipes[data_name(source)] = on_other_images(recipe, source)
    return recipes


def _targets(
    ask: Ask,
    recipe: Recipe,
    settings: dict[str, str],
    steps: int,
    study_dir: Path,
    first: str = "",
) -> list[Cell]:
    """The runs on every target, from the model of the cell `first`, or from scratch for ""."""
    grid = []
    pretrained = study_dir / first if first else None
    for target in ask.targets:
        tuned = fine_tuning(recipe, target, steps, pretrained)
        for seed in range(ask.seeds):
            pre_training = settings["pre-training"].replace(" ", "-")  # "a tenth"
            name = data_name(target)
            folder = f"{settings['model']}/{pre_training}/{name}/seed-{seed}"
            own: dict[str, Setting] = {**settings, "target": name, "seed": seed}
            grid.append(Cell(folder, replace(tuned, seed=seed), own, after=first))
    return grid


def _transfer_check(ask: Ask) -> None:
    """Raises VitkitError for a model that is not a Vision Transformer, and for targets or
    pre-training sets with the same name."""
    if not isinstance(ask.varied.model, ViTConfig):
        raise BadSettings("transfer compares Vision Transformers; choose a `recipe` that has one")
    check_names(ask.targets, "targets")
    if ask.pretrain:
        sources = (ask.data, *ask.pretrain)
        check_names(sources, "sets to pre-train on")
        for source in sources:
            if data_name(source) == NONE:
                raise BadSettings(
                    f"{source} cannot be a row of its own: {NONE!r} is what the table calls training from "
                    "scratch; rename it"
                )


def _transfer_table(results: Results) -> PaperTable:
    """Accuracy by model, pre-training and target: mean and standard deviation of the seeds."""
    groups = results.group("model", "pre-training", "target")
    targets = [data_name(target) for target in results.ask.targets]
    rows = []
    for model, pre_training in dict.fromkeys((m, p) for m, p, _ in groups):
        texts = [cell_text(groups.get((model, pre_training, target), [])) for target in targets]
        rows.append((model, pre_training, *texts))
    notes = []
    for target in targets:
        runs = results.by_seed("model", "pre-training", target=target)
        notes += [f"{target}: {note}" for note in best_and_worst(runs, families=len(targets))]
    for name, (cifar, pets) in TABLE_5.items():
        notes.append(f"the paper, ViT-L/16 from {name}: CIFAR-100 {cifar:.2f} %, Pets {pets:.2f} %")
    return PaperTable(
        "Table 5: transfer, in percent", ("model", "pre-training", *targets), rows, notes
    )


def _transfer_draw(results: Results) -> Figure:
    """Accuracy on each target, in one panel each."""
    groups = results.group("model", "pre-training", "target")
    targets = [data_name(target) for target in results.ask.targets]
    figure, several = panels(targets)
    rows = list(dict.fromkeys((model, pre_training) for model, pre_training, _ in groups))
    for axes, target in zip(several, targets, strict=True):
        names = [f"{model}, {pre_training}" for model, pre_training in rows]
        dots(axes, names, [groups.get((*row, target), []) for row in rows])
        axes.set_xlabel(axis_title(groups))
    return figure


TRANSFER: Study = Study(
    name="transfer",
    summary="models and pre-training sets, transferred to other data (Tables 2 and 5)",
    measures=(
        "A Vision Transformer and a ResNet, pre-trained on `data` and on each of `pretrain`, or "
        "without `pretrain` on a tenth and on all images of `data`, then fine-tuned on each of "
        "`targets`; the same models from scratch; and the published weights of `model`, if you "
        "give them. The table shows mean and standard deviation of the fine-tuning runs, as in "
        "Table 2."
    ),
    found=(
        "Table 5 and Figure 3: the larger the pre-training set, the better; large models need the "
        "larger sets, and with ImageNet alone ViT-L is no better than ViT-B. Table 2: the best "
        "Vision Transformers beat the best ResNets, with a quarter of the compute or less."
    ),
    limits=(
        "There is one pre-trained model of each kind, as in the paper, so the deviation is that of "
        "fine-tuning only. A small pre-training set helps small targets, and says nothing about "
        "sets a thousand times larger."
    ),
    cells=_transfer_cells,
    table=_transfer_table,
    draw=_transfer_draw,
    needs=("data", "targets"),
    takes=("recipe", "pretrain", "model", "seeds"),
    check=_transfer_check,
)


# Self-supervision

LABELLED = 0.1  # share of the training images whose labels are used
SCRATCH = "from scratch"
MASKED = "masked patch prediction first"
SUPERVISED = "supervised pre-training first"
SECTION_4_6 = {SCRATCH: 77.9, MASKED: 79.9, SUPERVISED: 83.9}  # ViT-B/16, ImageNet


def _masked_cells(ask: Ask, steps: int, study_dir: Path) -> list[Cell]:
    """For every seed: pre-training on all images without and with their labels, and fine-tuning
    with a tenth of the labels, from each of these and from scratch."""
    grid = []
    base = for_steps(replace(ask.varied, evals=()), steps)
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
            settings: dict[str, Setting] = {"begins": begins, "seed": seed}
            grid.append(Cell(f"{name}/fine-tuned/seed-{seed}", then, settings, after=first))
    return grid


def _fine_tuning(ask: Ask, steps: int, seed: int) -> Recipe:
    """Training with a tenth of the labels, half as long as the pre-training."""
    recipe = for_steps(measured_by(ask.varied, ask.fewshot), max(steps // 2, 1))
    return replace(on_a_share(recipe, LABELLED, seed), seed=seed)


def _masked_check(ask: Ask) -> None:
    """Raises VitkitError for a model that does not support masked patches."""
    if not isinstance(ask.varied.model, ViTConfig) or ask.varied.model.mixer == "axial":
        raise BadSettings("self-supervision masks patches of a plain Vision Transformer's `recipe`")


def _by_initialisation(results: Results) -> dict[str, list[Metric]]:
    """The results by initialisation; only those of finished runs."""
    groups = results.group("begins")
    return {begins: groups.get((begins,), []) for begins in SECTION_4_6}


def _masked_table(results: Results) -> PaperTable:
    """Accuracy by initialisation."""
    groups = _by_initialisation(results)
    rows = []
    for begins, theirs in SECTION_4_6.items():
        rows.append((begins, cell_text(groups[begins]), f"{theirs:.1f}"))
    columns = ("begins", "here, %", "paper, %")
    title = "Section 4.6: self-supervision, ViT-B/16 on ImageNet in the paper"
    return PaperTable(title, columns, rows, best_and_worst(results.by_seed("begins")))


def _masked_draw(results: Results) -> Figure:
    """Accuracy by initialisation as dots, beside the paper's."""
    subtitles = ("here: a tenth of the labels", "the paper: ViT-B/16, ImageNet")
    return beside_the_paper(subtitles, _by_initialisation(results), list(SECTION_4_6.values()))


SELF_SUPERVISION: Study = Study(
    name="self-supervision",
    summary="masked patch prediction, compared with scratch and supervised pre-training (4.6)",
    measures=(
        "Fine-tuning with a tenth of the labels, drawn again for every seed: from scratch, after "
        "masked patch prediction on all images without labels, and after supervised training on "
        "all labels, which is an upper bound. Fine-tuning is half as long as pre-training."
    ),
    found=(
        "Section 4.6: ViT-B/16 with masked patch prediction on JFT reaches 79.9 % on ImageNet, two "
        "points above training from scratch and four below supervised pre-training; after 100,000 "
        "steps, more pre-training gains little."
    ),
    limits=(
        "The paper pre-trains for up to a million steps. In some hundred steps, the masked model "
        "learns little more than colours, and may gain nothing."
    ),
    cells=_masked_cells,
    table=_masked_table,
    draw=_masked_draw,
    check=_masked_check,
)
