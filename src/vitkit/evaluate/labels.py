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
    are_numbers = list(data) == [str(i) for i in range(len(data))]
    if are_numbers and len(data) <= len(model):
        return torch.arange(len(data))

    is_imagenet = len(model) == 1000 and model[0].startswith("tench")
    if is_imagenet and all(re.fullmatch(r"n\d{8}", name) for name in data):
        model = imagenet_wordnet()

    number = {name: i for i, name in enumerate(model)}
    unknown = [name for name in data if name not in number]
    if unknown:
        raise ValueError(
            f"the data has {len(unknown)} of {len(data)} classes that the model does not know "
            f"({_first(unknown)}); the model knows {_first(model)}"
        )
    return torch.tensor([number[name] for name in data])


def _first(names: Sequence[str]) -> str:
    """The first five of some names."""
    dots = ", ..." if len(names) > 5 else ""
    return ", ".join(names[:5]) + dots


@cache
def imagenet_wordnet() -> tuple[str, ...]:
    """The WordNet numbers of ImageNet-1k's classes, in the order that every published model has:
    theirs."""
    return tuple((Path(__file__).parent / "imagenet_wordnet.txt").read_text().split())
