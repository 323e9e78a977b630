"""Statistics of attention by head and depth, averaged over images: the distance between a patch and what it
attends to (Fig. 7 right, Fig. 11, App. D.7), and over how many tokens a head spreads its attention.

"This 'attention distance' is analogous to receptive field size in CNNs" (Section 4.5).

Legend: B batch, H heads, L layers of attention, N patches, T tokens, (h, w) the grid of patches.
"""

from dataclasses import dataclass
from functools import partial
from math import log
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from vitkit.inspection.figures.passes import (
    POOLING,
    Images,
    attention_by_layer,
    check_transformer,
    is_of_columns,
    layer_names,
    same_grid,
    small_batches,
)
from vitkit.inspection.plots import LIGHT, Theme, dots_by_depth, of_images, panels, themed
from vitkit.models import Grid, ViTConfig
from vitkit.weights import Classifier

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# Distance


@dataclass(frozen=True, eq=False)
class AttentionDistance:
    """The attention distance of the heads, averaged over queries and images."""

    plain: Tensor
    """Pixels, float64 (L, H). Attention of a patch to the tokens before the patches, which have no
    place, counts with a distance of 0."""
    renormalised: Tensor
    """Pixels, float64 (L, H). The mean over patches only, whose weights are divided by their sum."""
    prefix_share: Tensor
    """From 0 to 1, float64 (L, H): share of the patches' attention to the tokens before the patches (class
    token, registers)."""
    layers: tuple[str, ...]
    """Name of each of the L layers."""
    uniform: tuple[float, ...]
    """Pixels, for each of the L layers: the mean distance for equal attention to all patches within reach,
    which in an axial layer are those of the row or column."""
    images: int
    """Number of images."""


@torch.no_grad()
def attention_distance(classifier: Classifier, images: Images) -> AttentionDistance:
    """The mean attention distance of every head of every layer.

    images: prepared, uint8 (B, 3, H, W), or any number of batches of them. Any size that the model
        supports, equal for all.

    The distance of a patch q is the sum over patches k of the weight of k for q, times the distance of
    their centres, in pixels of the prepared image. The mean is over all patches q and all images. The
    paper does not say how the class token is treated. Here it is not a query, and as a key it is treated
    in two ways (`plain`, `renormalised`).

    In a hybrid, a patch is the region of the image under it: the patch size times the ResNet's stride. An
    axial layer attends along rows or columns. A MAP head's query has no place, so its layer is left out.

    Raises VitkitError for a model without attention among patches, if there are no images, and for images
    of several sizes.
    """
    model = check_transformer(classifier)
    config = model.config
    layers = tuple(name for name in layer_names(config) if name != POOLING)
    sums = torch.zeros(3, len(layers), config.heads, dtype=torch.float64)
    count = 0
    grid: Grid | None = None

    def see(grid: Grid, layer: int, weights: Tensor) -> None:
        distances = _distances(layer, config, grid).to(weights.device)
        sums[:, layer] += _measure(weights, distances, config.prefix)

    for batch in small_batches(classifier, images):
        grid = same_grid(grid, model.grid(batch))
        with attention_by_layer(model, partial(see, grid)):
            classifier.features(batch)
        count += len(batch) * grid[0] * grid[1]  # number of queries
    assert grid is not None  # because there is a batch
    means = sums / count
    uniform = tuple(float(_distances(i, config, grid).mean()) for i in range(len(layers)))
    images_seen = count // (grid[0] * grid[1])
    return AttentionDistance(means[0], means[1], means[2], layers, uniform, images_seen)


def _measure(weights: Tensor, distances: Tensor, prefix: int) -> Tensor:
    """Sums over images and queries of the statistics in AttentionDistance, by head: (B, H, T, T) ->
    float64 (3, H) on the CPU."""
    among_patches = weights[:, :, prefix:, prefix:].float()  # (B, H, N, N)
    plain = (among_patches * distances).sum(-1)  # (B, H, N)
    given = among_patches.sum(-1)  # (B, H, N), attention to patches
    # If all weights underflow to zero in float32, the distance is 0
    renormalised = plain / given.clamp(min=torch.finfo(torch.float32).tiny)
    of_queries = torch.stack([plain, renormalised, 1 - given])  # (3, B, H, N)
    return of_queries.cpu().double().sum((1, 3))


def patch_distances(grid: Grid, stride: Grid) -> Tensor:
    """The distance between the centres of every two patches, in pixels: float32 (N, N). stride: distance of
    neighbours, down and across."""
    rows, columns = torch.meshgrid(torch.arange(grid[0]), torch.arange(grid[1]), indexing="ij")
    centres = torch.stack([rows.flatten(), columns.flatten()], 1) * torch.tensor(stride).double()
    differences = centres[:, None] - centres  # (N, N, 2)
    return differences.square().sum(-1).sqrt().float()


def _distances(layer: int, config: ViTConfig, grid: Grid) -> Tensor:
    """The distances within the sequences of a layer: of the whole grid, a row or a column."""
    stride = config.tiling.stride
    if config.mixer != "axial":
        return patch_distances(grid, stride)
    if is_of_columns(layer, config):
        return patch_distances((grid[0], 1), stride)
    return patch_distances((1, grid[1]), stride)


def draw_distance(distance: AttentionDistance, theme: Theme = LIGHT) -> "Figure":
    """Fig. 7 (right) and Fig. 11: a dot for each head, by depth, and their mean. If there are tokens before the
    patches, their share is counted as 0, left out, and drawn in a panel of its own."""
    has_prefix = bool(distance.prefix_share.max() > 1e-6)
    ways = {"": distance.plain}
    if has_prefix:
        ways = {
            "tokens before the patches count as 0": distance.plain,
            "among the patches alone": distance.renormalised,
        }
    widths = [3.7]
    if has_prefix:
        widths = 3 * [3.1]  # a row of a page
    figure, cells = panels(*widths, height=3)
    positions = np.arange(len(distance.layers))
    highest = 1.05 * max(*distance.uniform, *(float(values.max()) for values in ways.values()))
    for axes, (title, values) in zip(cells, ways.items(), strict=False):
        dots_by_depth(axes, values, distance.layers, theme)
        axes.plot(
            positions, distance.uniform, "--", color=theme.faint, label="equal for all patches"
        )
        axes.set_title(title, fontsize=9)
        axes.set(ylabel="mean attention distance (pixels)", ylim=(0, highest))
        axes.legend(fontsize=8, loc="lower right")
    if has_prefix:
        dots_by_depth(cells[-1], 100 * distance.prefix_share, distance.layers, theme)
        cells[-1].set_title("what patches give to these tokens", fontsize=9)
        cells[-1].set(ylabel="share of the attention (%)", ylim=(0, 100))
    figure.suptitle(f"Mean attention distance, {of_images(distance.images)}", fontsize=11)
    return themed(figure, theme)


# Entropy


@dataclass(frozen=True, eq=False)
class AttentionEntropy:
    """The attention entropy of the heads, averaged over queries and images."""

    nats: Tensor
    """float64 (L, H), from 0 (all attention on one token) to `highest` (equal attention to all). e to this
    power is an effective number of tokens."""
    layers: tuple[str, ...]
    """Name of each of the L layers; a MAP head's is last."""
    highest: tuple[float, ...]
    """For each of the L layers the entropy of uniform attention, the logarithm of the number of keys."""
    images: int
    """Number of images."""


@torch.no_grad()
def attention_entropy(classifier: Classifier, images: Images) -> AttentionEntropy:
    """The mean entropy of the attention of every head of every layer, -sum_k a_k ln(a_k).

    images: prepared, uint8 (B, 3, H, W), or batches of them. The mean is over all images and all tokens
        as queries, including the class token. A MAP head has one query.

    A head with low entropy in all images attends to one place. If the entropy of all heads falls towards 0
    during training, the training is about to diverge (Zhai et al. 2023).

    Raises VitkitError for a model without attention among patches, if there are no images, and for images
    of several sizes.
    """
    model = check_transformer(classifier)
    config = model.config
    layers = layer_names(config)
    sums = torch.zeros(len(layers), config.heads, dtype=torch.float64)
    queries = torch.zeros(len(layers), 1, dtype=torch.float64)
    highest = [0.0] * len(layers)
    grid: Grid | None = None
    count = 0

    def see(layer: int, weights: Tensor) -> None:
        entropies = torch.special.entr(weights.float()).sum(-1)  # (B, H, T)
        sums[layer] += entropies.cpu().double().sum((0, 2))
        queries[layer] += entropies[:, 0].numel()
        highest[layer] = log(weights.shape[-1])

    for batch in small_batches(classifier, images):
        grid = same_grid(grid, model.grid(batch))
        with attention_by_layer(model, see) as record:
            classifier.features(batch)
        if config.pool == "map":
            see(len(layers) - 1, record.attention[-1])  # (B, H, 1, N)
        count += len(batch)
    return AttentionEntropy(sums / queries, layers, tuple(highest), count)


def draw_entropy(entropy: AttentionEntropy, theme: Theme = LIGHT) -> "Figure":
    """Draw a dot for each head, by depth, their mean, and the entropy of uniform attention."""
    figure, (axes,) = panels(3.7, height=3.2)
    dots_by_depth(axes, entropy.nats, entropy.layers, theme)
    positions = np.arange(len(entropy.layers))
    axes.plot(positions, entropy.highest, "--", color=theme.faint, label="equal for all tokens")
    axes.set(ylabel="entropy of the attention (nats)", ylim=(0, 1.08 * max(entropy.highest)))
    figure.suptitle(f"Attention entropy, {of_images(entropy.images)}", fontsize=11)
    axes.legend(fontsize=8, loc="lower right")
    return themed(figure, theme)
