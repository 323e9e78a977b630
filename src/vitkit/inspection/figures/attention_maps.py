"""Where a model looks: Attention Rollout through all layers (Fig. 6 and 14, App. D.8), and the raw
attention of one.

Where the head reads is the class token in the paper; what other poolings read is in `reading`.
`darkened` in photographs.py draws the maps over a photograph.

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
    """Attention Rollout: how much each patch contributes to the tokens that the head reads, through
    all layers.

    Prepared images, uint8 (B, 3, H, W) -> float32 (B, h, w) on the CPU.

    With A_l the attention of layer l, averaged over its heads, it is the head's row of

        Â_L ... Â_2 Â_1,   Â_l = (A_l + I), each row divided by its sum

    (Abnar and Zuidema 2020; the identity is the residual connection). The row sums to one over all
    tokens. The contribution of the tokens before the patches is left out here, so a map sums to
    less.

    Raises VitkitError for a model without attention among patches, and for one that answers for each
    of its tokens.
    """
    _, weights = logits_and_rollout(classifier, images)
    return weights


def logits_and_rollout(classifier: Classifier, images: Tensor) -> tuple[Tensor, Tensor]:
    """Classifier.logits, float32 (B, K) on the model's device, and `rollout`, both from one pass.

    Keeps one layer's attention in memory at a time. Raises VitkitError as `rollout` does.
    """
    model = check_has_attention(classifier)
    logits, product, shares = rolled(classifier, images)
    return logits, map_of(shares, product, model.config, model.grid(images))


class Rolled(NamedTuple):
    """The rolled-out attention of one pass through all layers; all on the model's device."""

    logits: Tensor
    """Classifier.logits: float32 (B, K), or (B, T, K) of a model that answers for each token."""
    product: Tensor
    """Â_L ... Â_1: how much of each token, a column, reaches each final one: float32 (B, T, T)."""
    shares: Tensor
    """How much of each final token the head reads, as `reading` has it: (B, T) or (1, T)."""


@torch.no_grad()
def rolled(classifier: Classifier, images: Tensor) -> Rolled:
    """The product of all layers of attention, of which `rollout` is the head's row: prepared images,
    uint8 (B, 3, H, W).

    Keeps one layer's attention in memory at a time. Raises VitkitError for a model without attention
    among patches; the head of one that answers for each of its tokens reads none, zeros.
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
    """T."""
    record: Recording
    product: Tensor = field(init=False)
    """Â_l ... Â_1 of the layers that have been computed: float32 (B, T, T)."""

    def shares(self) -> Tensor:
        """How much of each final token the head reads, as `reading` has it: (B, T) or (1, T)."""
        shares = reading(self.config, self.tokens, self.record.attention)
        return shares.to(self.product.device)


@contextmanager
def rolling(model: VisionTransformer, grid: Grid) -> Iterator[Rolling]:
    """A block within which a pass through a model, of images with such a grid of patches, multiplies its
    layers of attention as `rollout` has it. Only one layer's attention is in memory at a time."""
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

    Prepared images, uint8 (B, 3, H, W) -> float32 (B, h, w) on the CPU. A map sums to one together
    with the attention of the token to the tokens before the patches.

    layer: which of `layer_names`, from 0. head: from 0, or None for the mean of all. query: the
    patch that looks, (row, column) from 0, or None for what the head reads: in the paper's models
    the class token.

    Raises VitkitError for a layer, head or patch that does not exist, and as `rollout` does.
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
            "query is a patch, and in the pooling a learned query looks at the patches; give None"
        )
    wanted = []

    def keep(number: int, weights: Tensor) -> None:
        if number == layer:
            wanted.append(among_all_tokens(of_heads(weights, head), layer, config, grid))

    with attention_by_layer(model, keep) as record:
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
