"""The same class may have another number in another data set: classes meet by name."""

from collections.abc import Sequence

import torch
from torch import Tensor


def align(data: Sequence[str], model: Sequence[str]) -> Tensor:
    """Which of the model's classes each of the data's is: int64 (classes of the data,).

    Data whose classes are mere numbers keeps them: they are the model's own. Raises ValueError, naming them, for classes
    that the model does not have.
    """
    if list(data) == [str(i) for i in range(len(data))] and len(data) <= len(model):
        return torch.arange(len(data))
    place = {name: i for i, name in enumerate(model)}
    if missing := [name for name in data if name not in place]:
        raise ValueError(
            f"the data has {len(missing)} of {len(data)} classes that the model does not know "
            f"({', '.join(missing[:5])}{', ...' if len(missing) > 5 else ''}); the model knows "
            f"{', '.join(model[:5])}{', ...' if len(model) > 5 else ''}"
        )
    return torch.tensor([place[name] for name in data])
