"""Sources whose targets are masks, from images with masks, and back."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from vitkit.data.masks.legend import Legend
from vitkit.data.masks.pairs import Masked, masked
from vitkit.data.masks.targets import Masks
from vitkit.data.sources.source import Source
from vitkit.data.sources.splits import Splits
from vitkit.data.sources.targets import NO_TARGET


def with_masks(pairs: Masked) -> Source:
    """The images as a source whose targets are their masks."""
    masks = Masks(pairs.store, pairs.rows, pairs.legend)
    return replace(pairs.images, targets=masks, labels=pairs.labels, target_kind="mask")


def without_targets(source: Source) -> Source:
    """The images of a source, without what is to be predicted of them."""
    targets = np.full(len(source), NO_TARGET, np.int64)
    return replace(source, targets=targets, labels=(), target_kind="none")


def masked_of(source: Source) -> Masked:
    """The images and masks of a source whose targets are masks."""
    masks = source.targets
    assert isinstance(masks, Masks)
    return Masked(without_targets(source), masks.store, masks.rows, masks.legend)


def masked_splits(
    splits: Splits,
    where: str,
    masks: str,
    legend: Path | Legend | None = None,
    ignore: int | None = None,
) -> Splits:
    """The parts of a data set, which were opened without targets, with their masks as targets: see `masked`."""
    parts, notes = masked(splits.sources, where, masks, legend, ignore)
    sources = {name: with_masks(part) for name, part in parts.items()}
    first = next(iter(sources.values()))
    return replace(
        splits,
        train=sources.get("train"),
        val=sources.get("val"),
        test=sources.get("test"),
        labels=first.labels,
        target_kind="mask",
        notes=(*(note for note in splits.notes if "labelled" not in note), *notes),
    )
