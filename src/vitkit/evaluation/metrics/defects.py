"""How well a model of good images tells them from others.

Legend: N images.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from vitkit.data import Batch, Source, TargetKind, subset
from vitkit.evaluation.evaluator import Part, Subject, collect, concatenated
from vitkit.evaluation.metrics.metric import (
    COUNT,
    MISFIT,
    SHARE,
    Metric,
    group_count,
    interval_of,
    resampled,
    share_interval,
)
from vitkit.evaluation.metrics.overlap import Regions, overlap
from vitkit.evaluation.probes.teaching import digest_of
from vitkit.inspection import logits_and_patch_logits
from vitkit.models import ViTConfig
from vitkit.runtimes.exported import inverted
from vitkit.runtimes.pytorch import file_with_map
from vitkit.system.console.text import counted, some
from vitkit.system.errors import BadData, BadImage, BadSettings, BadWeights
from vitkit.system.processes.ranks import from_rank_0
from vitkit.weights import Classifier

MEMORY_BANK = "memory bank"  # what the origin of such a model calls its head
LEFT_OUT = "left_out"  # where that origin has what `left_out_record` gives
LARGEST_OF_FILE = 16.6  # logit of the largest float32 below 1: that of a file's probability at most
IN_MEMORY = "in_memory"  # the metric that counts images that the model remembers
GOOD = 0  # the class of good images in a model of them, and in sources that `good_or_not` gives


def knows_good_images(classifier: Classifier) -> bool:
    """Whether a classifier, or the one that an exported file was made from, compares images with a memory
    bank of good ones."""
    config = getattr(classifier.model, "config", None)
    if isinstance(config, ViTConfig):
        return config.pooling.compares_patches
    return classifier.origin.get("head") == MEMORY_BANK and len(classifier.labels) == 2


def good_or_not(source: Source, labels: Sequence[str]) -> Source:
    """Images of several classes as images of two, those of a model of good images: `labels`. All classes
    but the first of these are the second.

    Raises VitkitError for images whose targets are no classes.
    """
    if source.target_kind != "class":
        raise BadData(
            f"the model tells {labels[GOOD]!r} from other images, and these have targets of the kind "
            f"{source.target_kind!r}: put them into a folder for each class, one of them {labels[GOOD]}"
        )
    is_good = np.array([label == labels[GOOD] for label in source.labels])
    targets = np.where(is_good[source.target_array], GOOD, 1 - GOOD).astype(np.int64)
    return replace(source, targets=targets, labels=tuple(labels))


def without_good_class(source: Source, labels: Sequence[str]) -> Iterator[str]:
    """Yields a sentence if none of the classes of images is the good one of a model with these labels."""
    if source.target_kind == "class" and labels[GOOD] not in source.labels:
        yield (
            f"none of the classes is named {labels[GOOD]} ({some(list(source.labels))}), so all "
            f"{counted(len(source), 'image')} count as unlike the good ones: if a folder has good images, name it "
            f"{labels[GOOD]}"
        )


def left_out_record(source: Source, excess: np.ndarray) -> dict[str, float]:
    """What the origin of a model keeps of the good images that it remembers, as LEFT_OUT: for the digest of each, by
    how much its score by a memory bank without it is above the threshold, in logits. excess: (N,). Raises BadImage,
    OSError."""
    record = {}
    for i, value in enumerate(excess.tolist()):
        record[digest_of(source.store.read(int(source.rows[i])))] = round(value, 6)
    return record


def left_out_excess(source: Source, classifier: Classifier) -> np.ndarray:
    """By how much the scores of images that a model remembers are above its threshold, in logits, if they are left
    out of memory: float64 (N,). NaN for images that it does not remember.

    Images are recognised by the content of their files, whatever their names and whichever other images there are.
    """
    record = classifier.origin.get(LEFT_OUT, {})
    temperature = classifier.origin.get("temperature", 1.0)

    def read() -> np.ndarray:
        found = np.full(len(source), np.nan)
        for i, row in enumerate(source.rows.tolist()):
            try:
                digest = digest_of(source.store.read(row))
            except (BadImage, OSError):  # the model remembers images that can be read
                continue
            found[i] = record.get(digest, np.nan) / temperature
        return found

    if not record:
        return np.full(len(source), np.nan)
    return from_rank_0(read)


def unremembered(source: Source, classifier: Classifier) -> tuple[Source, str]:
    """The images without those that a model of good images remembers, and a note about these, to be appended to a
    title. Raises BadData if no image is left."""
    is_new = np.isnan(left_out_excess(source, classifier))
    if is_new.all():
        return source, ""
    count = int((~is_new).sum())
    if not is_new.any():
        raise BadData(
            f"the model remembers {counted(count, 'image')}, all that there are, so they measure nothing; measure it "
            "on other images"
        )
    return subset(source, np.flatnonzero(is_new)), f", without {count:,} that the model remembers"


def about_memory(metrics: Iterable[Metric]) -> Iterator[str]:
    """Yields a sentence if a model remembers some of the images by which it was measured."""
    for metric in metrics:
        if metric.name == IN_MEMORY:
            yield (
                f"the model remembers {counted(int(metric.value), 'image')} of these: they count with their scores by a "
                "memory bank without them, as `vitkit finetune` found them. The threshold was chosen by these, so the "
                "shares on either side of it, and the area of the map, are those of the other images"
            )


@dataclass(frozen=True)
class Defects:
    """Figures of a model of good images, whose first class is theirs."""

    figures: ClassVar = ("auroc", "false_alarms", "missed")
    """What it may measure, so that a wrong `best` of a run is noticed before the run."""

    def judges(self, target_kind: TargetKind) -> bool:
        """Whether an image has one class."""
        return target_kind == "class"

    def measure(self, subject: Subject, part: Part) -> Iterator[Metric]:
        """Yields the metrics of `detection`; of images that the model remembers, by their scores without them.
        Raises VitkitError for a model that has not two classes, and if there is no image."""
        yield from _measured(subject.classifier, part, None)


@dataclass(frozen=True, eq=False)
class LocatedDefects:
    """Figures of a model of good images, on images of which it is known where they are defective."""

    regions: Regions
    """Where the images of the part are defective."""

    def judges(self, target_kind: TargetKind) -> bool:
        """Whether an image has one class."""
        return target_kind == "class"

    def measure(self, subject: Subject, part: Part) -> Iterator[Metric]:
        """Yields the metrics of `detection`, and `overlap`'s. Raises VitkitError as `Defects` does."""
        yield from _measured(subject.classifier, part, self.regions)


def _measured(classifier: Classifier, part: Part, regions: Regions | None) -> list[Metric]:
    """The figures of a model of good images; with `overlap`'s if it is known where images are defective."""
    if len(classifier.labels) != 2:
        raise BadSettings(
            f"the model has {len(classifier.labels)} classes, and `evals='defects'` measures a model "
            "of good images, which has two"
        )
    source = good_or_not(part.source, classifier.labels)

    def read(batch: Batch) -> tuple[Tensor, ...]:
        if regions is None:
            logits = classifier.logits(batch.images).float()  # (B, 2)
            return logits[:, 1 - GOOD] - logits[:, GOOD], batch.indices
        logits, maps = _logits_and_excess(classifier, batch.images)
        return logits[:, 1 - GOOD] - logits[:, GOOD], batch.indices, maps

    rows = collect(classifier.model, part.batches, read, classifier.device)
    excess, indices, *maps = concatenated(rows)
    rows_of = indices.numpy()
    is_bad = source.target_array[rows_of] != GOOD
    groups = None
    if source.groups is not None:
        groups = source.groups[rows_of]

    # An image in memory is at no distance from it. Its score without it is known, its map is not
    left_out = left_out_excess(source, classifier)[rows_of]
    in_memory = ~np.isnan(left_out)
    scores = np.where(in_memory, left_out, excess.double().numpy())
    figures = detection(scores, is_bad, groups, in_memory)
    if regions is not None:
        known = regions.of(rows_of)
        known = [None if is_own else each for is_own, each in zip(in_memory, known, strict=True)]
        figures.insert(1, overlap(maps[0].numpy(), known, groups))
    if in_memory.any():
        figures.append(Metric(IN_MEMORY, int(in_memory.sum()), COUNT))
    return figures


def _logits_and_excess(classifier: Classifier, images: Tensor) -> tuple[Tensor, Tensor]:
    """The logits of prepared images, uint8 (B, 3, H, W) -> float32 (B, 2); and by how much the distance of each
    patch is above the threshold, in logits, (B, h, w). A file gives probabilities of patches, which are 1 from a
    logit of LARGEST_OF_FILE on."""
    file = file_with_map(classifier)
    if file is not None:
        logits, shares = file.logits_and_anomaly_map(images.cpu().numpy())
        excess = inverted(shares, "sigmoid").clip(max=LARGEST_OF_FILE)
        return torch.from_numpy(logits), torch.from_numpy(excess)
    of_images, of_patches = logits_and_patch_logits(classifier, images)
    return of_images, of_patches[..., 1 - GOOD] - of_patches[..., GOOD]


def detection(
    excess: np.ndarray,
    is_bad: np.ndarray,
    groups: np.ndarray | None = None,
    in_memory: np.ndarray | None = None,
) -> list[Metric]:
    """auroc, the area under the ROC curve; false_alarms, the share of good images that are called
    different; missed, the share of the others that are called good; and the number of both.

    excess: by how much each image's score is above the threshold, (N,). is_bad: bool (N,). groups:
    images with the same number, (N,), are not independent. in_memory: images that the model remembers,
    bool (N,), by whose scores the threshold was chosen, so that the shares are those of the others. Without images of
    one kind, the figures that need them are left out. Raises BadData if there is no image, and BadWeights for scores that are not
    finite.
    """
    if not len(excess):
        raise BadData("there is no image to evaluate on")
    broken = int((~np.isfinite(excess)).sum())
    if broken:
        raise BadWeights(
            f"the model gives NaN or infinity for {counted(broken, 'image')}, so they are neither good nor "
            "unlike; its weights may be damaged"
        )
    is_new = np.ones(len(excess), bool)
    if in_memory is not None:
        is_new = ~in_memory
    metrics = []
    if is_bad.any() and not is_bad.all():

        def figures(rows: np.ndarray) -> np.ndarray:
            return np.array([auroc(excess[rows], is_bad[rows])])

        draws = resampled(figures, len(excess), groups=groups)[:, 0]
        draws = draws[np.isfinite(draws)]  # of few images of a kind, some draws have none
        interval = None
        if len(draws):
            interval = interval_of(draws, group_count(len(excess), groups), SHARE)
        metrics.append(Metric("auroc", auroc(excess, is_bad), SHARE, interval))
    for name, of_kind, is_wrong in (
        ("false_alarms", ~is_bad & is_new, excess > 0),
        ("missed", is_bad & is_new, excess <= 0),
    ):
        if of_kind.any():
            wrong = is_wrong[of_kind]
            own = None if groups is None else groups[of_kind]
            metrics.append(Metric(name, float(wrong.mean()), MISFIT, share_interval(wrong, own)))
    metrics.append(Metric("good", int((~is_bad).sum()), COUNT))
    metrics.append(Metric("different", int(is_bad.sum()), COUNT))
    return metrics


def auroc(scores: np.ndarray, is_bad: np.ndarray) -> float:
    """The area under the ROC curve: how often a bad image, drawn at random, has a higher score than a good
    one; ties count half. scores (N,), is_bad bool (N,). NaN without images of both kinds."""
    from scipy.stats import rankdata

    bad = int(is_bad.sum())
    good = len(is_bad) - bad
    if not bad or not good:
        return np.nan
    ranks = rankdata(scores)  # the mean rank of ties
    return float((ranks[is_bad].sum() - bad * (bad + 1) / 2) / (bad * good))
