"""Which of a model's classes are the data's. A class may have another number in another data set,
so classes are compared by their names."""

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch
from torch import Tensor


def align(data: Sequence[str], model: Sequence[str]) -> Tensor:
    """The number that each of the data's classes has in the model: int64 (classes of the data,).

    Raises ValueError, naming them, for classes that the model does not have.
    """
    # Classes "0", "1", ... are the model's own numbers
    are_numbers = list(data) == [str(i) for i in range(len(data))]
    if are_numbers and len(data) <= len(model):
        return torch.arange(len(data))

    # ImageNet's folders have WordNet's names ("n01440764"), and published models plain ones
    is_imagenet = len(model) == 1000 and model[0].startswith("tench")
    if is_imagenet and all(re.fullmatch(r"n\d{8}", name) for name in data):
        model = imagenet_wordnet()

    # By name
    number = {name: i for i, name in enumerate(model)}
    unknown = [name for name in data if name not in number]
    if unknown:
        raise ValueError(
            f"the data has {len(unknown)} of {len(data)} classes that the model does not know "
            f"({_first(unknown)}); the model knows {_first(model)}"
        )
    return torch.tensor([number[name] for name in data])


def _first(names: Sequence[str]) -> str:
    """The first five names, as text."""
    dots = ", ..." if len(names) > 5 else ""
    return ", ".join(names[:5]) + dots


@cache
def imagenet_wordnet() -> tuple[str, ...]:
    """The WordNet names of ImageNet-1k's 1,000 classes in ascending order, which is the order of
    the classes of every published model."""
    return tuple((Path(__file__).parent / "imagenet_wordnet.txt").read_text().split())
