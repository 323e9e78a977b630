"""Centred kernel alignment (CKA): similarity of the representations of images in layers of one or two
models, independent of rotations (Kornblith et al. 2019).

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

BATCH = 32  # images whose similarities to each other are computed together
FEWEST = 4  # fewest images, as the unbiased estimate divides by n - 3


@dataclass(frozen=True, eq=False)
class Alignment:
    """The similarity of layers."""

    values: Tensor
    """float64 (L + 1, L' + 1): 1 for layers that are equal up to rotation and scale, 0 for unrelated ones.
    An estimate may be slightly above 1 or below 0."""
    first: tuple[str, ...]
    """Names of the layers of the rows: "embedding", "block 1", ..."""
    second: tuple[str, ...]
    """Names of the layers of the columns: of the same model, or of the other."""
    images: int
    """Number of images."""
    of_itself: bool
    """Whether a model is compared with itself."""


def alignment(
    classifier: Classifier,
    images: Images,
    other: Classifier | None = None,
    other_images: Images | None = None,
) -> Alignment:
    """Linear CKA between every two layers of a model, or between those of two.

    images: prepared, uint8 (B, 3, H, W), cut into batches of about 32; or batches of at least four
        images each.
    other: another model of any kind, with `other_images`, the same photographs prepared for it; None
        compares the model with itself.

    The state of an image in a layer is the concatenation of all of its tokens, or its whole feature map.
    With K the inner products of the states of every two images in one layer, and K' in the other,

        CKA = sum of HSIC(K, K') / sqrt(sum of HSIC(K, K) · sum of HSIC(K', K'))

    where sums are over batches. The unbiased HSIC of Song et al. (2012) makes the result independent of
    the batch size (Nguyen et al. 2021; Raghu et al. 2021 compare ViTs and ResNets so). Memory: one
    block's states of one batch.

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
    """The unbiased estimate of the Hilbert-Schmidt independence criterion of two kernels:
    (..., n, n) twice -> (...).

    With the diagonals set to 0 (Song et al. 2012, Eq. 5):
    (tr(K K') + (1ᵀK1)(1ᵀK'1) / ((n - 1)(n - 2)) - 2 / (n - 2) · 1ᵀK K'1) / (n (n - 3)).
    """
    n = first.shape[-1]
    off_diagonal = 1 - torch.eye(n, dtype=first.dtype, device=first.device)
    first = first * off_diagonal
    second = second * off_diagonal
    trace = (first * second).sum((-2, -1))  # both are symmetric
    sums = first.sum((-2, -1)) * second.sum((-2, -1))
    rows = (first.sum(-1) * second.sum(-1)).sum(-1)
    return (trace + sums / ((n - 1) * (n - 2)) - 2 / (n - 2) * rows) / (n * (n - 3))


@torch.no_grad()
def _kernels(classifier: Classifier, images: Tensor) -> Tensor:
    """Inner products of the states of every two images, in each layer: float64 (L + 1, n, n) on the CPU."""
    kernels = []

    def kernel(state: Tensor) -> Tensor:
        rows = state.flatten(1).float()  # (n, p)
        # Subtract the mean state, which would cost precision in the products
        rows = rows - rows.mean(0)
        with in_float32(rows):
            return (rows @ rows.T).double().cpu()

    def see(block: int, record: Recording) -> None:
        if block == 0:
            assert record.embedding is not None  # recorded before the first block
            kernels.append(kernel(record.embedding))
        kernels.append(kernel(record.states[0]))  # the state of this block only

    with block_by_block(classifier.model, see, attention=False):
        classifier.features(images)
    return torch.stack(kernels)


def _batches(images: Images) -> Iterator[Tensor]:
    """Batches of at least FEWEST images. Raises VitkitError."""
    batches: Iterable[Tensor] = images
    if isinstance(images, Tensor):
        # Parts whose lengths differ by at most one, so that the last is not too small
        batches = images.tensor_split(-(-len(images) // BATCH) or 1)
    for batch in batches:
        if len(batch) < FEWEST:
            raise BadSettings(
                f"there are {len(batch)} images (of a batch); the similarity of layers is "
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
    """Names of the layers, counted from one."""
    blocks = (f"block {i + 1}" for i in range(len(classifier.model.blocks)))
    return ("embedding", *blocks)


def draw_alignment(alignment: Alignment, theme: Theme = LIGHT) -> "Figure":
    """Draw the similarity of every two layers: a map of CKA, with the first model's layers upwards."""
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
