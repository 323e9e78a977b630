"""From good images alone to a model that tells them from others, and says where others differ: the first
blocks of a published model, and a memory bank of the patches of good images (`memory_bank.py`).

Nothing is trained: one pass over the images, then distances between their patches.

Legend: I images, N patches of each, D numbers of a patch, L blocks that are read, M patches in memory.
"""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitkit.data import (
    Batch,
    Columns,
    Source,
    check_images,
    grouped_columns,
    grouped_to_measure,
    one_per_cpu,
    parts_at,
    subset,
    without,
)
from vitkit.evaluation import Metric, Part, Subject, batches_of, collect
from vitkit.evaluation.evaluator import concatenated
from vitkit.evaluation.metrics.defects import (
    GOOD,
    LEFT_OUT,
    MEMORY_BANK,
    Defects,
    LocatedDefects,
    about_memory,
    detection,
    good_or_not,
    left_out_record,
    without_good_class,
)
from vitkit.evaluation.regions import regions_for
from vitkit.finetuning.memory_bank import (
    Threshold,
    fit_threshold,
    left_out_scores,
    memory_bank,
    with_copies,
)
from vitkit.models import VisionTransformer, ViTConfig
from vitkit.models.head import MemoryPool
from vitkit.recipes import Data, Recipe, Say
from vitkit.system.console.text import counted, some
from vitkit.system.errors import BadData, BadSettings, BadWeights, Unsupported
from vitkit.system.machine import Precision, autocast
from vitkit.system.processes.ranks import from_rank_0
from vitkit.weights import Classifier, fitted_to, load_for, preprocessing_for, rebuilt

UNLIKE = "unlike"  # name of the class of all other images, if these have several names or none
TURNED = 100  # largest number of good images that are turned: more of them show every position themselves
LEAST = 2  # good images, of which one can be compared with another
# Shares of the published model's blocks: that are kept, and the last of these, that are compared. Later blocks
# say what an image shows, not how it looks (benchmarks/defects.py)
DEPTH = 1 / 2
READ = 5 / 12
LARGER = (
    2  # times the published model's image size, up to which images are read at their own resolution
)
MEASURED = 32  # largest number of images whose sizes are read
MOST = 2**28  # numbers of all patches that are kept in memory, in float16: 512 MiB


class GoodImages(NamedTuple):
    """The readable images of a data set, with two classes: the good ones, and all others."""

    good: Source
    """Good images to learn from; with the groups of a column that the settings name."""
    others: Source | None
    """Other images of the part to learn from: nothing is fitted to them."""
    test: Source | None
    """Images of a part to measure on."""
    test_name: str
    labels: tuple[str, str]
    """The name of the good images, and that of the others."""
    notes: tuple[str, ...]
    """Sentences about decisions and findings."""


@dataclass(frozen=True)
class GoodModel:
    """A model of good images, and what was measured of it."""

    classifier: Classifier
    threshold: Threshold
    images: GoodImages
    used: int
    """Number of good images whose patches were compared."""
    figures: tuple[Metric, ...]
    """Of the good images, each by a model without it, and of the others beside them; empty without others.
    Without the share of false alarms, as the threshold was chosen by the scores of these good images."""
    test: tuple[Metric, ...]
    """Of the part to measure on; empty without one."""


def only_class(data: str, columns: Columns) -> str:
    """The name of the only class that a data set has images to learn from; of a folder of images without
    folders in it, its own. "" if there are several classes, or targets of another kind."""
    sources = parts_at(data, columns, typed=True).sources
    learn = sources.get("train") or next(iter(sources.values()))
    if learn.target_kind == "none" and _is_folder(data, columns):
        return Path(data).resolve().name
    if learn.target_kind != "class":
        return ""
    present = np.unique(learn.target_array)
    if len(present) != 1:
        return ""
    return learn.labels[present[0]]


def _is_folder(data: str, columns: Columns) -> bool:
    return columns.target == "auto" and Path(data).is_dir()


def open_good_images(data: Data, normal: str) -> GoodImages:
    """Open a data set whose class `normal` has the good images. Raises VitkitError if it has too few."""
    columns = grouped_columns(data.columns, data.groups)
    sources = parts_at(data.source, columns, typed=True).sources
    learn = sources.get("train") or next(iter(sources.values()))
    is_folder = learn.target_kind == "none" and _is_folder(data.source, data.columns)
    if is_folder and normal == only_class(data.source, data.columns):
        targets = np.full(len(learn), GOOD, np.int64)
        learn = replace(learn, targets=targets, labels=(normal,), target_kind="class")
    if learn.target_kind != "class":
        raise BadData(
            f"{data.source} has targets of the kind {learn.target_kind!r}, and `normal={normal!r}` names a "
            "class: put the good images into a folder of that name"
        )
    if normal not in learn.labels:
        raise BadSettings(
            f"`normal` is {normal!r}, and the classes of {data.source} are {some(list(learn.labels))}"
        )
    others = [label for label in learn.labels if label != normal]
    other = UNLIKE if normal != UNLIKE else "other"
    if len(others) == 1:
        other = others[0]
    labels = (normal, other)

    # The parts, without unreadable images
    notes: list[str] = []
    learn = good_or_not(learn, labels)
    if data.exclude:
        rest = without(learn, data.exclude)
        notes.append(f"{len(learn) - len(rest):,} images that {data.exclude} lists are left out")
        learn = rest
    learn = _intact(learn, notes)
    is_good = learn.target_array == GOOD
    good = subset(learn, np.flatnonzero(is_good))
    if len(good) < LEAST:
        raise BadData(
            f"{data.source} has {counted(len(good), 'image')} of {normal} to learn from that can be read; "
            f"at least {LEAST} are needed, to compare one with another, and 19 for a threshold that 5 % of "
            "good images exceed"
        )
    if good.groups is None and data.groups == "auto":
        good = _in_bursts(good, notes)
    elif good.groups is not None and len(np.unique(good.groups)) < LEAST:
        raise BadData(
            f"all {len(good):,} images of {normal} are of one group; at least {LEAST} groups are needed, to "
            "compare one with another"
        )
    bad = subset(learn, np.flatnonzero(~is_good))
    test_name = "test"
    if "test" not in sources:
        test_name = "val"
    test = sources.get(test_name)
    if test is not None:
        notes += without_good_class(test, labels)
        test = _intact(good_or_not(test, labels), notes)
    return GoodImages(good, bad if len(bad) else None, test, test_name, labels, tuple(notes))


def _in_bursts(good: Source, notes: list[str]) -> Source:
    """The good images with the bursts that they are of: a shot that is left out would be in memory by the next
    one, and its score too low. A sentence is added to the notes."""
    grouped, sentences = from_rank_0(lambda: grouped_to_measure(good, "they are left out together"))
    if grouped.groups is not None and len(np.unique(grouped.groups)) < LEAST:
        notes.append(
            f"all {len(good):,} good images look like shots of one burst, and each counts as an independent one: if "
            "they show a single part, the threshold is too low"
        )
        return good
    notes += sentences
    return grouped


def _intact(source: Source, notes: list[str]) -> Source:
    """The images that can be decoded; a sentence about each other image is added to the notes."""
    broken = from_rank_0(lambda: dict(check_images(source, one_per_cpu())))
    notes += [f"left out: {sentence}" for sentence in broken.values()]
    return subset(source, [i for i in range(len(source)) if i not in broken])


def at_own_resolution(recipe: Recipe, good: Source) -> Recipe:
    """The recipe for larger images, up to LARGER times its own size, if the good images are as large: small
    defects need pixels. Images of which a side is no multiple of the patch are read a little smaller."""
    config = recipe.model
    if not isinstance(config, ViTConfig) or not config.position_kind.any_grid:
        return recipe
    looked_at = np.linspace(0, len(good) - 1, min(len(good), MEASURED)).astype(int).tolist()
    shorter = int(np.median([min(good.picture(i).size) for i in looked_at]))
    side = min(LARGER * max(config.image), shorter)
    if side <= max(config.image):
        return recipe
    size = config.fitting((side, side))
    preprocessing = preprocessing_for(recipe.data.preprocessing, size)
    data = replace(recipe.data, preprocessing=preprocessing)
    return replace(recipe, model=config.resized(size), data=data)


def good_model(
    recipe: Recipe,
    images: GoodImages,
    device: torch.device,
    precision: Precision,
    say: Say,
    masks: str = "",
) -> GoodModel:
    """The model of good images, from the weights and for the image size of a recipe. Raises VitkitError for
    a model that is no Vision Transformer.

    masks: where images to measure on are defective, as `vitkit.evaluate` takes it.
    """
    trunk = trunk_for(recipe, device)
    good, note = _few_enough(images.good, trunk)
    if note:
        say(note)
    groups = good.groups
    if groups is None:
        groups = np.arange(len(good))

    # The patches of all good images, and the scores of each by a memory bank without it
    patches = patches_of(trunk, good, precision)
    _check_finite(patches)
    groups, copies = with_copies(patches, groups)
    if copies:
        say(f"{counted(copies, 'good image')} are copies of others, and left out with these")
    if len(np.unique(groups)) < LEAST:
        raise BadData(
            f"all {len(good):,} good images are linked by copies and groups, as if of one part; at least {LEAST} that "
            "are not are needed, to compare one with another"
        )
    memory = memory_bank(patches)
    scores = left_out_scores(patches, groups, memory)
    height, width = recipe.data.preprocessing.size
    if len(good) <= TURNED and height == width:
        views = [patches, *(patches_of(trunk, good, precision, turns) for turns in (1, 2, 3))]
        turned = torch.cat(views, 1)  # (I, 4 N, D)
        if turns_help(patches, turned, groups, scores):
            say(
                "each good image is remembered in four positions, turned by quarters: the images that are left "
                "out resemble those more"
            )
            memory = memory_bank(turned)
            scores = left_out_scores(patches, groups, memory)
    threshold = fit_threshold(scores, groups)
    classifier = with_memory(trunk, memory.patches, threshold, images.labels)
    excess = (scores - threshold.value) / threshold.scale
    left_out = from_rank_0(lambda: left_out_record(good, excess))
    classifier = replace(classifier, origin=_origin(recipe, left_out, threshold))

    # Other images
    figures: list[Metric] = []
    test: list[Metric] = []
    if images.others is not None:
        both = np.concatenate([scores, scores_of(classifier, images.others, precision)])
        is_bad = np.arange(len(both)) >= len(scores)
        together = None
        if good.groups is not None and images.others.groups is not None:
            together = np.concatenate([good.groups, images.others.groups])
        figures = detection(both - threshold.value, is_bad, together, ~is_bad)
    if images.test is not None:
        test = _measured(classifier, images.test, recipe.data.source, masks, precision, say)
    return GoodModel(classifier, threshold, images, len(good), tuple(figures), tuple(test))


def _check_finite(patches: Tensor) -> None:
    """Raises BadWeights for patches, (I, N, D), that are not finite."""
    broken = int((~patches.isfinite()).any(2).any(1).sum())
    if broken:
        raise BadWeights(
            f"the model gives NaN or infinity for {counted(broken, 'good image')}, so nothing can be compared; its "
            "weights may be damaged"
        )


def _measured(
    classifier: Classifier, test: Source, data: str, masks: str, precision: Precision, say: Say
) -> list[Metric]:
    """The figures of the images to test on; with AUPRO if it is known where these are defective."""
    regions, notes = from_rank_0(lambda: regions_for(classifier, test, data, masks))
    for sentence in notes:
        say(sentence)
    evaluator: Defects | LocatedDefects = Defects()
    if regions is not None:
        evaluator = LocatedDefects(regions)
    part = Part(test, batches_of(classifier, test, "testing"))
    with autocast(classifier.device, precision):
        metrics = list(evaluator.measure(Subject(classifier), part))
    for sentence in about_memory(metrics):
        say(sentence)
    return metrics


def turns_help(patches: Tensor, turned: Tensor, groups: np.ndarray, scores: np.ndarray) -> bool:
    """Whether good images that are left out are nearer to a memory bank of images turned by quarters than to
    one of the images as they are, which has as many patches: by more than a standard error.

    Args:
        patches: The patches of the good images, (I, N, D).
        turned: Those of the images in four positions, (I, 4 N, D).
        groups: Group numbers, (I,).
        scores: The anomaly scores of the images by a memory bank of `patches`, (I,).
    """
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randperm(turned.shape[1], generator=generator)[: patches.shape[1]]  # (N,)
    gains = scores - left_out_scores(patches, groups, memory_bank(turned[:, drawn]))
    return bool(gains.sum() > np.sqrt(np.square(gains).sum()))


def trunk_for(recipe: Recipe, device: torch.device) -> Classifier:
    """The blocks of the published model that are read, with a memory bank of one patch."""
    published, _ = load_for(recipe.init, recipe.model)
    fitted, _ = fitted_to(published, recipe.model, ())
    config = fitted.model.config
    if not isinstance(config, ViTConfig) or config.mixer != "full":
        raise Unsupported(
            f"{recipe.init} is a {config.title}, and good images are remembered by the patches of a plain "
            "Vision Transformer or a hybrid; choose such a model, or add a class of other images"
        )
    depth = math.ceil(DEPTH * config.depth)
    blocks = min(math.ceil(READ * config.depth), depth)
    config = replace(
        config.headless(),
        depth=depth,
        pool="memory",
        memory=1,
        read_blocks=blocks,
        class_token=config.has_class_token,
        norm="tokens",
    )
    weights = dict(fitted.model.state_dict())
    weights["norm.weight"] = torch.ones_like(weights["norm.weight"])
    if "norm.bias" in weights:
        weights["norm.bias"] = torch.zeros_like(weights["norm.bias"])
    weights["pool.memory"] = torch.zeros(1, blocks * config.width)
    model = rebuilt(fitted.model, config, weights)
    return replace(
        fitted,
        model=model.to(device).eval(),
        preprocessing=recipe.data.preprocessing,
        labels=(),
        unknown=None,
    )


def _few_enough(good: Source, trunk: Classifier) -> tuple[Source, str]:
    """At most as many images, chosen evenly, as the patches of fit into memory; and a sentence if that is
    not all."""
    config = trunk.model.config
    assert isinstance(config, ViTConfig)
    numbers = config.grid[0] * config.grid[1] * config.read_blocks * config.width
    most = max(MOST // numbers, LEAST)
    if len(good) <= most:
        return good, ""
    chosen = np.arange(most) * len(good) // most
    return subset(good, chosen), (
        f"{most:,} of the {len(good):,} good images are compared, chosen evenly: patches of more do not fit "
        "into memory"
    )


def patches_of(
    classifier: Classifier, source: Source, precision: Precision, turns: int = 0
) -> Tensor:
    """What is compared of the patches of images: float16 (I, N, D), each of length 1. turns: by how many
    quarters the images, which are squares then, are turned."""
    model = classifier.model
    assert isinstance(model, VisionTransformer)
    pool = model.pool
    assert isinstance(pool, MemoryPool)

    def read(batch: Batch) -> tuple[Tensor, ...]:
        with autocast(classifier.device, precision):
            images = torch.rot90(batch.images, turns, (2, 3))
            states = model.patch_states(classifier.preprocessing.normalise(images))
        return pool.directions(states).half(), batch.indices

    batches = batches_of(classifier, source, "reading patches")
    patches, indices = concatenated(collect(model, batches, read, classifier.device))
    if (indices.diff() > 0).all():  # as without other processes, which spares a copy
        return patches
    return patches[indices.argsort()]


def scores_of(classifier: Classifier, source: Source, precision: Precision) -> np.ndarray:
    """The anomaly score of images: float64 (I,)."""

    def read(batch: Batch) -> tuple[Tensor, ...]:
        with autocast(classifier.device, precision):
            return classifier.features(batch.images)[:, 0], batch.indices

    batches = batches_of(classifier, source, "comparing other images")
    rows = collect(classifier.model, batches, read, classifier.device)
    scores, indices = concatenated(rows)
    return scores[indices.argsort()].double().numpy()


def with_memory(
    trunk: Classifier, memory: Tensor, threshold: Threshold, labels: tuple[str, str]
) -> Classifier:
    """The classifier with a memory bank, (M, D), and a head whose logits are equal on the threshold."""
    config = trunk.model.config
    assert isinstance(config, ViTConfig)
    config = replace(config, memory=len(memory), classes=2)
    weights = dict(trunk.model.state_dict())
    weights["pool.memory"] = memory.to(trunk.device)
    slope = 1 / threshold.scale
    weights["head.weight"] = torch.tensor([[0.0], [slope]], device=trunk.device)
    bias = [0.0, -threshold.value * slope]
    weights["head.bias"] = torch.tensor(bias, device=trunk.device)
    model = rebuilt(trunk.model, config, weights)
    return replace(trunk, model=model.eval(), labels=labels)


def _origin(recipe: Recipe, left_out: dict[str, float], threshold: Threshold) -> dict:
    """The provenance of the model. left_out: as `left_out_record` gives it."""
    return {
        "recipe": recipe.name,
        "init": recipe.init,
        "head": MEMORY_BANK,
        "data": recipe.data.source,
        LEFT_OUT: left_out,
        "metrics": {"expected_false_alarms": f"{100 * threshold.rejected:.1f} %"},
    }
