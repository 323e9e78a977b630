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

    Classes meet by name. Only numbers of which none is a name of the model's are positions
    (`by_position`). Raises ValueError, naming them, for classes that the model does not have.
    """
    if by_position(data, model):
        return torch.arange(len(data))

    # ImageNet's folders have WordNet's names ("n01440764"), and published models plain ones
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


def by_position(data: Sequence[str], model: Sequence[str]) -> bool:
    """Whether the data's classes are the model's first ones: the data has no names but "0", "1",
    ..., as a table of integers has, and no class of the model is called so.

    A model that was trained on folders "0" to "11" has them in the order of text (0, 1, 10, 11, 2,
    ...), so there a name is no position.
    """
    are_numbers = list(data) == [str(i) for i in range(len(data))]
    return are_numbers and len(data) <= len(model) and not set(data) & set(model)


def note(data: Sequence[str], model: Sequence[str]) -> str:
    """A sentence for the user if the classes meet by their numbers, which may be wrong; else
    empty."""
    if not data or not by_position(data, model):
        return ""
    return (
        f"the images' classes have no names, only the numbers 0 to {len(data) - 1}; they are taken "
        f"for the model's classes in its own order ({_first(model)})"
    )


def _first(names: Sequence[str]) -> str:
    """The first five names, as text."""
    dots = ", ..." if len(names) > 5 else ""
    return ", ".join(names[:5]) + dots


@cache
def imagenet_wordnet() -> tuple[str, ...]:
    """The WordNet names of ImageNet-1k's 1,000 classes in ascending order, which is the order of
    the classes of every published model."""
    return tuple((Path(__file__).parent / "imagenet_wordnet.txt").read_text().split())
