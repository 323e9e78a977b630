"""What no study can run on: images without classes, recipes that have no accuracy, and broken images.
Each would fail run by run, so it is refused before anything starts."""

import numpy as np

from vitkit.data import Splits, check_images, open_splits
from vitkit.objectives import Supervised
from vitkit.studies.base import five_shot
from vitkit.studies.outcomes import Ask
from vitkit.system.console.text import as_word, counted
from vitkit.training import open_others

CHECKED = 100_000  # images of a part: to look at more before a study takes minutes


def refuse_without_accuracy(ask: Ask, splits: Splits) -> None:
    """Raises ValueError for images and objectives whose runs have no accuracy to be compared by: they
    would fail when they have ended."""
    refuse_without_classes(ask.data, splits)
    if not isinstance(ask.recipe.objective, Supervised):
        objective = type(ask.recipe.objective).__name__
        raise ValueError(
            f"a study compares by accuracy, and a --recipe that learns by {objective} names no classes; "
            "give one with labels"
        )


def refuse_without_classes(source: str, splits: Splits) -> None:
    """Raises ValueError for images that nothing can be learned from, or that have no accuracy."""
    if splits.train is None or not len(splits.train):
        raise ValueError(f"{source} has no images to learn from, only others to measure on")
    if splits.target_kind != "class":
        raise ValueError(
            f"a study compares by accuracy, and the images of {source} do not have one class each"
        )
    if len(np.unique(splits.train.targets)) < 2:
        raise ValueError(f"all images of {source} to learn from are of one class; give two or more")


def refuse_without_parts(fewshot: str) -> None:
    """Raises ValueError for images that few-shot accuracy cannot be measured on."""
    try:
        open_others((five_shot(fewshot),))
    except ValueError as error:
        raise ValueError(
            f"--fewshot learns from the train part of {fewshot} and measures on its test part: {error}"
        ) from None


def refuse_broken(source: str, workers: int) -> None:
    """Raises ValueError for images that cannot be decoded: every run would end at them, for none
    looks at all images first. Of very many only the runs do."""
    splits = open_splits(source)
    for name in ("train", "val", "test"):
        part = getattr(splits, name)
        if part is None or len(part) > CHECKED:
            continue
        broken = check_images(part, workers)
        if broken:
            raise ValueError(
                f"{counted(len(broken), 'image')} to {name} on cannot be used, and every run would end "
                f"there: {broken[0][1]}; remove what `vitkit doctor --data {as_word(source)}` lists"
            )
