"""Attention entropy by head and depth: how many tokens a head spreads its attention over.

Legend: B batch, H heads, L layers of attention, N patches, T tokens.
"""

from dataclasses import dataclass
from math import log

import torch
from torch import Tensor

from vitkit.inspection.figures.batches import Images, small_batches
from vitkit.inspection.figures.distance import same_grid
from vitkit.inspection.figures.layers import attention_by_layer, check_transformer, layer_names
from vitkit.weights import Classifier


@dataclass(frozen=True, eq=False)
class AttentionEntropy:
    """How evenly the heads look, averaged over queries and images."""

    nats: Tensor
    """float64 (L, H). From 0, all attention on one token, to `highest`, all tokens alike; e to its
    power is a number of tokens."""
    layers: tuple[str, ...]
    """A name for each of the L layers; a MAP head's comes last."""
    highest: tuple[float, ...]
    """For each of the L layers the entropy of uniform attention, the logarithm of the number of
    tokens that can be looked at."""
    images: int
    """How many there were."""


@torch.no_grad()
def attention_entropy(classifier: Classifier, images: Images) -> AttentionEntropy:
    """The mean entropy of the attention of every head of every layer, -sum_k a_k ln(a_k).

    images: prepared, uint8 (B, 3, H, W), or batches of them; the mean is a running one, over all
    images and all tokens as queries, the class token included. A MAP head has one query.

    A head of low entropy in all images looks at one place; where the entropy of all heads falls
    towards 0 in training, it is about to diverge (Zhai et al. 2023).

    Raises ValueError for a model without attention among patches, if there are no images, and for
    images of several sizes.
    """
    config = check_transformer(classifier)
    layers = layer_names(config)
    sums = torch.zeros(len(layers), config.heads, dtype=torch.float64)
    queries = torch.zeros(len(layers), 1, dtype=torch.float64)
    highest = [0.0] * len(layers)
    grid = None
    count = 0

    def see(layer: int, weights: Tensor) -> None:
        entropies = torch.special.entr(weights.float()).sum(-1)  # (B, H, T)
        sums[layer] += entropies.cpu().double().sum((0, 2))
        queries[layer] += entropies[:, 0].numel()
        highest[layer] = log(weights.shape[-1])

    for batch in small_batches(classifier, images):
        grid = same_grid(grid, classifier.model.grid(batch))
        with attention_by_layer(classifier.model, see) as record:
            classifier.features(batch)
        if config.pool == "map":
            see(len(layers) - 1, record.attention[-1])  # (B, H, 1, N)
        count += len(batch)
    return AttentionEntropy(sums / queries, layers, tuple(highest), count)
