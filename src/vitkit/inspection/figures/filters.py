"""Principal components of the first filters (Fig. 7 left): what the model's first layer sees in the
pixels.

Legend: D filters, C channels of the image, (h, w) the pixels of a filter.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vitkit.models import Conv, standardised
from vitkit.weights import Classifier


@dataclass(frozen=True, eq=False)
class Filters:
    """Principal components of the filters of a model's first layer."""

    components: Tensor
    """float32 (count, C, h, w), each of length 1, the strongest first. As a component's sign means
    nothing, its largest number is positive."""
    values: Tensor
    """float32, all singular values, the largest first; a value's square by the sum of all squares
    is the share of the filters' variance that its component explains."""

    @property
    def shares(self) -> Tensor:
        """The share of the variance that each component explains, all of them: they sum to 1."""
        squares = self.values.double().square()
        return squares / squares.sum().clamp(min=torch.finfo(torch.float64).tiny)


@torch.no_grad()
def filter_components(classifier: Classifier, count: int = 28, centred: bool = True) -> Filters:
    """The first principal components of the embedding filters, E of Eq. 1, as Fig. 7 (left) has 28.

    The filters, one for each of the D numbers of an embedding, are the rows of a matrix of C·h·w
    columns, whose singular value decomposition this is. centred: whether the mean filter is
    subtracted first, as principal components have it; the paper does not say.

    Of a hybrid or a ResNet they are the filters of the first convolution, which sees the pixels (as
    it computes, standardised); a hybrid's own embedding sees a feature map, and has no picture.

    Raises ValueError for a count that there is not.
    """
    filters = first_filters(classifier.model)  # (D, C, h, w)
    rows = filters.flatten(1).cpu().double()  # (D, C·h·w)
    most = min(rows.shape)
    if not 1 <= count <= most:
        raise ValueError(
            f"count is {count}; {rows.shape[0]} filters of {rows.shape[1]} numbers have 1 to {most} "
            "principal components"
        )
    if centred:
        rows = rows - rows.mean(0)
    _, values, components = torch.linalg.svd(rows, full_matrices=False)
    components = with_positive_peak(components[:count])
    return Filters(components.unflatten(1, filters.shape[1:]).float(), values.float())


def first_filters(model: nn.Module) -> Tensor:
    """The kernels that a model's first layer multiplies pixels with: (D, C, h, w)."""
    layer = model
    if hasattr(model, "stem"):
        layer = model.stem
    if hasattr(layer, "root"):  # a ResNet, or a hybrid's
        layer = layer.root.conv
    elif hasattr(layer, "project"):
        layer = layer.project
    else:  # LeNet
        layer = model.blocks[0].conv
    if isinstance(layer, Conv) and layer.how != "none":
        return standardised(layer.weight, layer.how, layer.eps)
    return layer.weight


def with_positive_peak(rows: Tensor) -> Tensor:
    """The same vectors, (n, p), each with the sign that makes its largest number positive."""
    peaks = rows.gather(1, rows.abs().argmax(1, keepdim=True))  # (n, 1)
    return torch.where(peaks < 0, -rows, rows)
