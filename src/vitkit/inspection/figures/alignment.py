"""Centred kernel alignment (CKA): how much alike the layers of a model, or of two models, see
images, whatever numbers they write it in (Kornblith et al. 2019).

Legend: n images of a batch, L blocks, p numbers of an image's state (tokens times width).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from vitkit.inspection.figures.passes import Images, block_by_block, in_float32
from vitkit.inspection.plots import LIGHT, Theme, draw_numbers, name_layers, panels, themed
from vitkit.models.states import Recording
from vitkit.system.errors import BadSettings
from vitkit.weights import Classifier

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BATCH = 32  # images whose similarities to each other are computed at a time
FEWEST = 4  # the unbiased estimate has n - 3 in a denominator


@dataclass(frozen=True, eq=False)
class Alignment:
    """The similarity of layers."""

    values: Tensor
    """float64 (L + 1, L' + 1): 1 is the same but for a rotation and a scale, 0 nothing in common. As
    it is an estimate, it may be a little above 1 or below 0."""
    first: tuple[str, ...]
    """Names of the layers down the side: "embedding", "block 1", ..."""
    second: tuple[str, ...]
    """Names of the layers across: the same model's, or the other's."""
    images: int
    """How many there were."""
    of_itself: bool
    """Whether both are the same model's."""


def alignment(
    classifier: Classifier,
    images: Images,
    other: Classifier | None = None,
    other_images: Images | None = None,
) -> Alignment:
    """Linear CKA between every two layers of a model, or between those of two.

    images: prepared, uint8 (B, 3, H, W), cut into batches of about 32; or batches of at least four
    images each. other: another model of any sort, which gets the same photographs, prepared for it,
    as `other_images`; None compares the model with itself.

    An image's state in a layer is all of its tokens' (or its whole feature map), side by side. With
    K the products of every two images' states in one layer, and K' in the other, it is

        CKA = sum of HSIC(K, K') / sqrt(sum of HSIC(K, K) · sum of HSIC(K', K'))

    summed over batches, with the unbiased HSIC of Song et al. (2012), so that small batches give
    what large ones do (Nguyen et al. 2021; Raghu et al. 2021 compare ViTs and ResNets so). Memory:
    one block's states of one batch.

    Raises VitkitError for fewer than four images, and if the two models' batches are not of the same
    photographs.
    """
    if (other is None) != (other_images is None):
        raise BadSettings("other and other_images go together: a model, and images prepared for it")
    between = within = within_other = torch.zeros((), dtype=torch.float64)
    count = 0
    batches: Iterator[tuple[Tensor, Tensor]]
    if other_images is None:
        batches = ((batch, batch) for batch in _batches(images))
    else:
        batches = _pairs(images, other_images)
    for batch, other_batch in batches:
        kernels = _kernels(classifier, batch)  # (L + 1, n, n)
        other_kernels = kernels
        if other is not None:
            other_kernels = _kernels(other, other_batch)
        between = between + hsic(kernels[:, None], other_kernels)  # (L + 1, L' + 1)
        within = within + hsic(kernels, kernels)  # (L + 1,)
        within_other = within_other + hsic(other_kernels, other_kernels)  # (L' + 1,)
        count += len(batch)
    if not count:
        raise BadSettings("there are no images to look at")
    values = between / (within[:, None] * within_other).clamp(min=1e-300).sqrt()
    names = _names(classifier)
    return Alignment(values, names, _names(other or classifier), count, other is None)


def hsic(first: Tensor, second: Tensor) -> Tensor:
    """The unbiased estimate of the Hilbert-Schmidt independence criterion, of two kernels each:
    (..., n, n) twice -> (...).

    With the diagonals set to 0 (Song et al. 2012, Eq. 5):
    (tr(K K') + (1ᵀK1)(1ᵀK'1) / ((n - 1)(n - 2)) - 2 / (n - 2) · 1ᵀK K'1) / (n (n - 3)).
    """
    n = first.shape[-1]
    off_diagonal = 1 - torch.eye(n, dtype=first.dtype, device=first.device)
    first = first * off_diagonal
    second = second * off_diagonal
    trace = (first * second).sum((-2, -1))  # as both are symmetric
    sums = first.sum((-2, -1)) * second.sum((-2, -1))
    rows = (first.sum(-1) * second.sum(-1)).sum(-1)
    return (trace + sums / ((n - 1) * (n - 2)) - 2 / (n - 2) * rows) / (n * (n - 3))


@torch.no_grad()
def _kernels(classifier: Classifier, images: Tensor) -> Tensor:
    """The products of every two images' states, in each layer: float64 (L + 1, n, n) on the CPU."""
    kernels = []

    def kernel(state: Tensor) -> Tensor:
        rows = state.flatten(1).float()  # (n, p)
        # The mean image's state means nothing; without it the products lose no digits to it
        rows = rows - rows.mean(0)
        with in_float32(rows):
            return (rows @ rows.T).double().cpu()

    def see(block: int, record: Recording) -> None:
        if block == 0:
            assert record.embedding is not None  # the first block got it
            kernels.append(kernel(record.embedding))
        kernels.append(kernel(record.states[0]))  # of this block alone

    with block_by_block(classifier.model, see, attention=False):
        classifier.features(images)
    return torch.stack(kernels)


def _batches(images: Images) -> Iterator[Tensor]:
    """Batches of FEWEST images at least. Raises VitkitError."""
    batches: Iterable[Tensor] = images
    if isinstance(images, Tensor):
        # Parts that differ by one image at most, so that the last is not too small
        batches = images.tensor_split(-(-len(images) // BATCH) or 1)
    for batch in batches:
        if len(batch) < FEWEST:
            raise BadSettings(
                f"there are {len(batch)} images (of a batch); how much alike layers are is "
                f"estimated from at least {FEWEST}: give more"
            )
        yield batch


def _pairs(images: Images, other_images: Images) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of the same photographs for two models. Raises VitkitError."""
    none = torch.empty(0)
    for batch, other_batch in zip_longest(_batches(images), _batches(other_images), fillvalue=none):
        if len(batch) != len(other_batch):
            raise BadSettings(
                f"a batch has {len(batch)} images for one model and {len(other_batch)} for the "
                "other; both get the same photographs in the same order"
            )
        yield batch, other_batch


def _names(classifier: Classifier) -> tuple[str, ...]:
    """Names of the layers, for people, who count from one."""
    blocks = (f"block {i + 1}" for i in range(len(classifier.model.blocks)))
    return ("embedding", *blocks)


def draw_alignment(alignment: Alignment, theme: Theme = LIGHT) -> "Figure":
    """How much alike every two layers are: a map of CKA, the first model's layers upwards."""
    figure, (axes,) = panels(3.7, height=3.3)
    image = draw_numbers(axes, alignment.values.numpy(), (0, 1), theme)
    axes.invert_yaxis()
    name_layers(axes, list(map(str, range(len(alignment.second)))))
    step = -(-len(alignment.first) // 12)
    axes.set_yticks(np.arange(0, len(alignment.first), step))
    across = "block (0: embedding)"
    if not alignment.of_itself:
        across = "block of the other model (0: embedding)"
    axes.set(xlabel=across, ylabel="block (0: embedding)")
    figure.suptitle(f"Alignment of layers, {alignment.images:,} images", fontsize=11)
    figure.colorbar(image, label="CKA", shrink=0.8)
    return themed(figure, theme)
