"""The same class may have another number in another data set: classes meet by name."""

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch
from torch import Tensor


def align(data: Sequence[str], model: Sequence[str]) -> Tensor:
    """Which of the model's classes each of the data's is: int64 (classes of the data,).

    Data whose classes are mere numbers keeps them: they are the model's own. ImageNet's folders, or
    some of them, are named by WordNet ("n01440764"): they meet a model of ImageNet-1k's 1,000
    classes by their rank. Raises ValueError, naming them, for classes that the model does not have.
    """
    if list(data) == [str(i) for i in range(len(data))] and len(data) <= len(model):
        return torch.arange(len(data))
    if (
        len(model) == 1000
        and model[0].startswith("tench")
        and all(re.fullmatch(r"n\d{8}", name) for name in data)
    ):
        model = imagenet_wordnet()
    place = {name: i for i, name in enumerate(model)}
    if missing := [name for name in data if name not in place]:
        raise ValueError(
            f"the data has {len(missing)} of {len(data)} classes that the model does not know "
            f"({', '.join(missing[:5])}{', ...' if len(missing) > 5 else ''}); the model knows "
            f"{', '.join(model[:5])}{', ...' if len(model) > 5 else ''}"
        )
    return torch.tensor([place[name] for name in data])


@cache
def imagenet_wordnet() -> tuple[str, ...]:
    """The WordNet numbers of ImageNet-1k's classes, in the order that every published model has:
    theirs."""
    return tuple((Path(__file__).parent / "imagenet_wordnet.txt").read_text().split())
