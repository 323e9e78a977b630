"""Mean attention distance by head and depth (Fig. 7 right, Fig. 11, App. D.7): how far apart, in
pixels of the image, a patch and what it attends to are.

"This 'attention distance' is analogous to receptive field size in CNNs" (Section 4.5).

Legend: B batch, H heads, L layers of attention, N patches, T tokens, (h, w) the grid of patches.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from vitkit.inspection.figures.batches import Images, small_batches
from vitkit.inspection.figures.layers import (
    POOLING,
    attention_by_layer,
    check_transformer,
    is_of_columns,
    layer_names,
)
from vitkit.models import Grid, ViTConfig
from vitkit.weights import Classifier


@dataclass(frozen=True, eq=False)
class AttentionDistance:
    """How far the heads look, averaged over queries and images."""

    plain: Tensor
    """Pixels, float64 (L, H). What a patch gives to the tokens before the patches, which are
    nowhere, counts as a distance of 0."""
    renormalised: Tensor
    """Pixels, float64 (L, H). The mean over the patches that are attended to alone: their weights
    divided by their sum."""
    prefix_share: Tensor
    """From 0 to 1, float64 (L, H): how much of its attention a patch gives to the tokens before the
    patches (class token, registers)."""
    layers: tuple[str, ...]
    """A name for each of the L layers."""
    uniform: tuple[float, ...]
    """Pixels, for each of the L layers: the mean distance if every patch attended alike to all
    patches that it can attend to, which in an axial layer are those of its row or column."""
    images: int
    """How many there were."""


@torch.no_grad()
def attention_distance(classifier: Classifier, images: Images) -> AttentionDistance:
    """The mean attention distance of every head of every layer.

    images: prepared, uint8 (B, 3, H, W), or batches of them; the mean is a running one, so there
    may be any number. The size of the images may be any that the model takes; all have one size.

    For a patch q, its distance is the sum over patches k of the weight that q gives to k times the
    distance of their centres, in pixels of the image that the model gets. The mean is over all
    patches q and all images. The paper does not say what the class token does to it: it is no
    query here, and as a key it is treated in both ways (`plain`, `renormalised`).

    Of a hybrid, a patch is what lies under it in the image: the patch size times the ResNet's
    stride. An axial layer looks along rows, or columns. A MAP head's query is nowhere, so its
    layer is left out.

    Raises ValueError for a model without attention among patches, if there are no images, and for
    images of several sizes.
    """
    config = check_transformer(classifier)
    layers = tuple(name for name in layer_names(config) if name != POOLING)
    sums = torch.zeros(3, len(layers), config.heads, dtype=torch.float64)
    count = 0
    grid = None

    def see(layer: int, weights: Tensor) -> None:
        distances = _distances(layer, config, grid).to(weights.device)
        sums[:, layer] += _measure(weights, distances, config.prefix)

    for batch in small_batches(classifier, images):
        grid = same_grid(grid, classifier.model.grid(batch))
        with attention_by_layer(classifier.model, see):
            classifier.features(batch)
        count += len(batch) * grid[0] * grid[1]  # queries
    means = sums / count
    uniform = tuple(float(_distances(i, config, grid).mean()) for i in range(len(layers)))
    images_seen = count // (grid[0] * grid[1])
    return AttentionDistance(means[0], means[1], means[2], layers, uniform, images_seen)


def same_grid(before: Grid | None, grid: Grid) -> Grid:
    """The grid of these images. Raises ValueError if those before them had another."""
    if before not in (None, grid):
        raise ValueError(
            f"images of {grid[0]} x {grid[1]} patches come after images of {before[0]} x "
            f"{before[1]}; a mean over images needs one size: prepare all with one Preprocessing"
        )
    return grid


def _measure(weights: Tensor, distances: Tensor, prefix: int) -> Tensor:
    """The sums over images and queries of what AttentionDistance has, by head: (B, H, T, T) ->
    float64 (3, H) on the CPU."""
    among_patches = weights[:, :, prefix:, prefix:].float()  # (B, H, N, N)
    plain = (among_patches * distances).sum(-1)  # (B, H, N)
    given = among_patches.sum(-1)  # (B, H, N), what patches get
    # Weights so small that they are zero in float32 have no direction: the distance is 0
    renormalised = plain / given.clamp(min=torch.finfo(torch.float32).tiny)
    of_queries = torch.stack([plain, renormalised, 1 - given])  # (3, B, H, N)
    return of_queries.cpu().double().sum((1, 3))


def patch_distances(grid: Grid, stride: Grid) -> Tensor:
    """The distance between the centres of every two patches, in pixels: float32 (N, N). `stride` is
    that of neighbours, down and across."""
    rows, columns = torch.meshgrid(torch.arange(grid[0]), torch.arange(grid[1]), indexing="ij")
    centres = torch.stack([rows.flatten(), columns.flatten()], 1) * torch.tensor(stride).double()
    differences = centres[:, None] - centres  # (N, N, 2)
    return differences.square().sum(-1).sqrt().float()


def _distances(layer: int, config: ViTConfig, grid: Grid) -> Tensor:
    """The distances within the sequences of a layer: those of the grid, a row or a column."""
    stride = config.tiling.stride
    if config.mixer != "axial":
        return patch_distances(grid, stride)
    if is_of_columns(layer, config):
        return patch_distances((grid[0], 1), stride)
    return patch_distances((1, grid[1]), stride)
