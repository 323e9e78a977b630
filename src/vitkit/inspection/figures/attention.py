"""The raw attention of one layer, from where the model's head reads or from one patch.

Legend: B batch, H heads, N patches, T tokens (N, and the prefix before them: the class token and
registers), (h, w) the grid of patches.
"""

import torch
from torch import Tensor

from vitkit.inspection.figures.layers import (
    POOLING,
    among_all,
    attention_by_layer,
    check_has_attention,
    layer_names,
    map_of,
    of_heads,
    reading,
)
from vitkit.models import Grid
from vitkit.weights import Classifier


@torch.no_grad()
def raw_attention(
    classifier: Classifier,
    images: Tensor,
    layer: int,
    head: int | None = None,
    query: tuple[int, int] | None = None,
) -> Tensor:
    """Raw attention of one layer: how much one token looks at each patch.

    Prepared images, uint8 (B, 3, H, W) -> float32 (B, h, w) on the CPU. A map sums to one together
    with the token's look at the tokens before the patches.

    layer: which of `layer_names`, from 0. head: from 0, or None for the mean of all. query: the
    patch that looks, (row, column) from 0, or None for what the head reads: in the paper's models
    the class token.

    Raises ValueError for a layer, head or patch that is not there, and as `rollout` does.
    """
    config = check_has_attention(classifier)
    grid = classifier.model.grid(images)
    names = layer_names(config)
    _check_layer(layer, names)
    _check_head(head, config.heads)
    check_patch("query", query, grid)
    if query is not None and names[layer] == POOLING:
        raise ValueError(
            "query is a patch, and in the pooling a learned query looks at the patches; give None"
        )
    wanted = []

    def keep(number: int, weights: Tensor) -> None:
        if number == layer:
            wanted.append(among_all(of_heads(weights, head), layer, config, grid))

    with attention_by_layer(classifier.model, keep) as record:
        classifier.features(images)

    # The learned query of a MAP head looks at patches only
    if names[layer] == POOLING:
        return of_heads(record.attention[-1], head)[:, 0].unflatten(1, grid).cpu()

    # Of the tokens, the one that looks
    tokens = config.prefix + grid[0] * grid[1]
    shares = reading(config, tokens, record.attention)
    if query is not None:
        shares = torch.zeros(1, tokens)
        shares[0, config.prefix + query[0] * grid[1] + query[1]] = 1
    return map_of(shares, wanted[0], config, grid)


# What a caller can get wrong


def _check_layer(layer: int, names: tuple[str, ...]) -> None:
    if not 0 <= layer < len(names):
        raise ValueError(
            f"layer is {layer}; the model's {len(names)} layers of attention are numbered 0 to "
            f"{len(names) - 1}"
        )


def _check_head(head: int | None, heads: int) -> None:
    if head is not None and not 0 <= head < heads:
        raise ValueError(
            f"head is {head}; the model's {heads} heads are numbered 0 to {heads - 1}, and None is "
            "the mean of all"
        )


def check_patch(name: str, patch: tuple[int, int] | None, grid: Grid) -> None:
    """Raise ValueError for a patch, the argument called `name`, that is not on the grid."""
    if patch is None:
        return
    row, column = patch
    if not (0 <= row < grid[0] and 0 <= column < grid[1]):
        raise ValueError(
            f"{name} is the patch {row}, {column}; rows are numbered 0 to {grid[0] - 1}, columns 0 "
            f"to {grid[1] - 1}"
        )
