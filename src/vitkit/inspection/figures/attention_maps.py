"""Maps of attention: Attention Rollout through all layers (Fig. 6 and 14, App. D.8), and the raw attention
of one.

The head reads the class token in the paper; see `reading` for other poolings. `darkened` in photographs.py
draws the maps over a photograph.

Legend: B batch, K classes, H heads, N patches, T tokens (N, and the prefix before them: the class token
and registers), (h, w) the grid of patches.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from vitkit.inspection.figures.passes import (
    POOLING,
    among_all_tokens,
    attention_by_layer,
    check_has_attention,
    check_number,
    check_patch,
    check_transformer,
    in_float32,
    layer_names,
    map_of,
    of_heads,
    reading,
)
from vitkit.models import Grid, VisionTransformer, ViTConfig
from vitkit.models.states import Recording
from vitkit.system.errors import BadSettings
from vitkit.weights import Classifier


def rollout(classifier: Classifier, images: Tensor) -> Tensor:
    """Attention Rollout: how much each patch contributes to the tokens that the head reads, through all
    layers.

    Prepared images, uint8 (B, 3, H, W) -> float32 (B, h, w) on the CPU.

    With A_l the attention of layer l, averaged over its heads, the map is the head's row of

        Â_L ... Â_2 Â_1,   Â_l = (A_l + I), each row divided by its sum

    (Abnar and Zuidema 2020; the identity is the residual connection). The row sums to one over all tokens.
    Contributions of the tokens before the patches are left out, so a map sums to less.

    Raises VitkitError for a model without attention among patches, and for one with an output for each
    token.
    """
    _, weights = logits_and_rollout(classifier, images)
    return weights


def logits_and_rollout(classifier: Classifier, images: Tensor) -> tuple[Tensor, Tensor]:
    """Classifier.logits, float32 (B, K) on the model's device, and `rollout`, both from one pass.

    Keeps one layer's attention in memory at a time. Raises VitkitError like `rollout`.
    """
    model = check_has_attention(classifier)
    logits, product, shares = rolled(classifier, images)
    return logits, map_of(shares, product, model.config, model.grid(images))


class Rolled(NamedTuple):
    """The rolled-out attention of one pass through all layers; all on the model's device."""

    logits: Tensor
    """Classifier.logits: float32 (B, K), or (B, T, K) for a model with an output for each token."""
    product: Tensor
    """Â_L ... Â_1: how much of each token, a column, reaches each final one: float32 (B, T, T)."""
    shares: Tensor
    """How much of each final token the head reads, see `reading`: (B, T) or (1, T)."""


@torch.no_grad()
def rolled(classifier: Classifier, images: Tensor) -> Rolled:
    """Multiply all layers of attention; `rollout` is the head's row of the product. Prepared images,
    uint8 (B, 3, H, W).

    Keeps one layer's attention in memory at a time. Raises VitkitError for a model without attention
    among patches. If the model has an output for each token, the head's shares are zeros.
    """
    model = check_transformer(classifier)
    with rolling(model, model.grid(images)) as rolled_up:
        logits = classifier.logits(images)
    return Rolled(logits, rolled_up.product, rolled_up.shares())


@dataclass
class Rolling:
    """Collects Attention Rollout during a pass within `rolling`."""

    config: ViTConfig
    tokens: int
    """T, the number of tokens."""
    record: Recording
    product: Tensor = field(init=False)
    """Â_l ... Â_1 of the layers that have been computed: float32 (B, T, T)."""

    def shares(self) -> Tensor:
        """How much of each final token the head reads, see `reading`: (B, T) or (1, T)."""
        shares = reading(self.config, self.tokens, self.record.attention)
        return shares.to(self.product.device)


@contextmanager
def rolling(model: VisionTransformer, grid: Grid) -> Iterator[Rolling]:
    """A context in which a pass through a model multiplies its layers of attention for `rollout`. grid: the
    grid of patches of the images. Only one layer's attention is in memory at a time."""
    config = model.config
    tokens = config.prefix + grid[0] * grid[1]

    def multiply(layer: int, weights: Tensor) -> None:
        weights = among_all_tokens(of_heads(weights, None), layer, config, grid)
        step = weights + torch.eye(tokens, device=weights.device)
        step = step / step.sum(-1, keepdim=True)
        if layer == 0:
            rolled_up.product = step
            return
        with in_float32(step):
            rolled_up.product = step @ rolled_up.product

    with attention_by_layer(model, multiply) as record:
        rolled_up = Rolling(config, tokens, record)
        yield rolled_up


@torch.no_grad()
def raw_attention(
    classifier: Classifier,
    images: Tensor,
    layer: int,
    head: int | None = None,
    query: tuple[int, int] | None = None,
) -> Tensor:
    """Raw attention of one layer: how much one token attends to each patch.

    Prepared images, uint8 (B, 3, H, W) -> float32 (B, h, w) on the CPU. A map, together with the
    attention to the tokens before the patches, sums to one.

    layer: index in `layer_names`.
    head: number from 0, or None for the mean of all.
    query: the patch whose attention is shown, (row, column) from 0, or None for what the head reads: in
        the paper's models the class token.

    Raises VitkitError for a layer, head or patch that does not exist, and like `rollout`.
    """
    model = check_has_attention(classifier)
    config = model.config
    grid = model.grid(images)
    names = layer_names(config)
    check_number("layer", layer, len(names), "layers of attention")
    if head is not None:
        check_number("head", head, config.heads, "heads")
    check_patch("query", query, grid)
    if query is not None and names[layer] == POOLING:
        raise BadSettings(
            "query is a patch, but in the pooling a learned query attends to the patches; give None"
        )
    wanted = []

    def keep(number: int, weights: Tensor) -> None:
        if number == layer:
            wanted.append(among_all_tokens(of_heads(weights, head), layer, config, grid))

    with attention_by_layer(model, keep) as record:
        classifier.features(images)

    # The learned query of a MAP head attends only to patches
    if names[layer] == POOLING:
        return of_heads(record.attention[-1], head)[:, 0].unflatten(1, grid).cpu()

    # The row of the query token
    tokens = config.prefix + grid[0] * grid[1]
    shares = reading(config, tokens, record.attention)
    if query is not None:
        shares = torch.zeros(1, tokens)
        shares[0, config.prefix + query[0] * grid[1] + query[1]] = 1
    return map_of(shares, wanted[0], config, grid)
