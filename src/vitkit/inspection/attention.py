"""What a Vision Transformer looks at: Attention Rollout (Fig. 6 and 14, App. D.8), and the raw
attention of one layer.

Each answers from where the model's head reads. That is the class token in the paper; what other
poolings read is in `reading`. `darkened` in figures.py draws the answers over a photograph.

Legend: B batch, K classes, H heads, N patches, T tokens (N, and the prefix before them: the class
token and registers), (h, w) the grid of patches.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor

from vitkit.models import Recording, VisionTransformer, ViTConfig, recording
from vitkit.models.backbone import Grid
from vitkit.weights import Classifier

POOLING = "pooling"  # the name of a MAP head's layer


def rollout(classifier: Classifier, images: Tensor) -> Tensor:
    """Attention Rollout: how much of each patch reaches what the head reads, through all layers.

    Prepared images, uint8 (B, 3, H, W) -> float32 (B, h, w) on the CPU.

    With A_l the attention of layer l, averaged over its heads, it is the head's row of

        Â_L ... Â_2 Â_1,   Â_l = (A_l + I), each row divided by its sum

    (Abnar and Zuidema 2020; the identity is the residual connection). The row sums to one over all
    tokens. What reaches the tokens before the patches is left out here, so a map sums to less.

    Raises ValueError for a model without attention among patches, and for one that answers for each
    of its tokens.
    """
    _, weights = logits_and_rollout(classifier, images)
    return weights


@torch.no_grad()
def logits_and_rollout(classifier: Classifier, images: Tensor) -> tuple[Tensor, Tensor]:
    """Classifier.logits, float32 (B, K) on the model's device, and `rollout`, both from one pass.

    Keeps one layer's attention in memory at a time. Raises ValueError as `rollout` does.
    """
    config = check_has_attention(classifier)
    model = classifier.model
    grid = model.grid(images)
    tokens = config.prefix + grid[0] * grid[1]
    identity = torch.eye(tokens, device=classifier.device)
    product = identity.expand(len(images), -1, -1)  # (B, T, T)

    def multiply(layer: int, weights: Tensor) -> None:
        nonlocal product
        step = _among_all(weights, None, layer, config, grid) + identity
        step = step / step.sum(-1, keepdim=True)
        with in_float32(step):
            product = step @ product

    with recording(model) as record, _layer_by_layer(model, record, multiply):
        logits = classifier.logits(images)
    shares = reading(config, tokens, record.attention)
    return logits, _map_of(shares, product, config, grid)


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
    model = classifier.model
    grid = model.grid(images)
    names = layer_names(config)
    _check_layer(layer, names)
    _check_head(head, config.heads)
    _check_query(query, grid, names[layer])
    wanted = []

    def keep(number: int, weights: Tensor) -> None:
        if number == layer:
            wanted.append(_among_all(weights, head, layer, config, grid))

    with recording(model) as record, _layer_by_layer(model, record, keep):
        classifier.features(images)

    # The learned query of a MAP head looks at patches only
    if names[layer] == POOLING:
        return _of_heads(record.attention[-1], head)[:, 0].unflatten(1, grid).cpu()

    # Of the tokens, the one that looks
    tokens = config.prefix + grid[0] * grid[1]
    shares = reading(config, tokens, record.attention)
    if query is not None:
        shares = torch.zeros(1, tokens)
        shares[0, config.prefix + query[0] * grid[1] + query[1]] = 1
    return _map_of(shares, wanted[0], config, grid)


def reading(config: ViTConfig, tokens: int, pooling: list[Tensor]) -> Tensor:
    """How much of each final token the head reads: float32 (B, T) or (1, T), rows that sum to one.

    - "token", the paper: the class token;
    - "distilled": half of the class token and half of the distillation token, whose answers are
      averaged;
    - "gap": all patches alike, and "token-gap": half of that, and half of the class token;
    - "map": the patches, by the attention of the learned query, averaged over its heads;
    - "corner": the first patch.

    Registers are never read. `pooling` has a MAP head's attention, (B, H, 1, N).
    """
    shares = torch.zeros(1, tokens)
    patches = tokens - config.prefix
    if config.pool == "token":
        shares[:, 0] = 1
    elif config.pool == "distilled":
        shares[:, :2] = 1 / 2
    elif config.pool == "gap":
        shares[:, config.prefix :] = 1 / patches
    elif config.pool == "token-gap":
        shares[:, 0] = 1 / 2
        shares[:, config.prefix :] = 1 / patches / 2
    elif config.pool == "corner":
        shares[:, config.prefix] = 1
    elif config.pool == "map":
        by_probe = _of_heads(pooling[-1], None)[:, 0]  # (B, N)
        shares = torch.zeros(len(by_probe), tokens, device=by_probe.device)
        shares[:, config.prefix :] = by_probe
    return shares


def layer_names(config: ViTConfig) -> tuple[str, ...]:
    """A name for each layer of attention, for people, who count from one: "layer 1".

    An axial layer is two, "layer 1, rows" and "layer 1, columns". A MAP head's attention, whose
    only query is learned, comes last: "pooling".
    """
    names = [f"layer {i + 1}" for i in range(config.depth)]
    if config.mixer == "axial":
        names = [f"{name}, {axis}" for name in names for axis in ("rows", "columns")]
    if config.pool == "map":
        names.append(POOLING)
    return tuple(names)


def check_has_attention(classifier: Classifier) -> ViTConfig:
    """The configuration of a model whose patches attend to each other, and which has one answer an
    image. Raises ValueError for another."""
    config = classifier.model.config
    if not isinstance(config, ViTConfig):
        raise ValueError(
            f"a {config.title} has no attention among patches, so there is no map of what it looks "
            "at; Vision Transformers and their hybrids have one"
        )
    if not config.pools:
        raise ValueError(
            'the model gives an answer for every token (its pool is "none"), so there is no one '
            "answer whose attention could be shown"
        )
    return config


# Layer by layer


@contextmanager
def _layer_by_layer(
    model: VisionTransformer, record: Recording, see: Callable[[int, Tensor], None]
) -> Iterator[None]:
    """Within a recording, call `see` with the number of each layer of attention and its weights, as
    soon as its block has run, and drop them: those of all layers together may not fit into memory.
    A MAP head's stay recorded."""
    hooks = []
    number = 0

    def begin(*_) -> None:
        """Drop what a hybrid's ResNet, or an earlier pass, has recorded."""
        nonlocal number
        number = 0
        record.weights_by_layer.clear()

    def after_block(*_) -> None:
        nonlocal number
        layers = record.attention
        record.weights_by_layer.clear()
        record.state_by_block.clear()
        for weights in layers:
            see(number, weights)
            number += 1

    # Hooks are called in the order in which they were registered: these after the recording's
    try:
        hooks.append(model.blocks[0].register_forward_pre_hook(begin))
        for block in model.blocks:
            hooks.append(block.register_forward_hook(after_block))
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _of_heads(weights: Tensor, head: int | None) -> Tensor:
    """The weights of one head, or the mean of all: (B, H, T, T) -> float32 (B, T, T)."""
    if head is None:
        return weights.mean(1, dtype=torch.float32)
    return weights[:, head].float()


def _among_all(
    weights: Tensor, head: int | None, layer: int, config: ViTConfig, grid: Grid
) -> Tensor:
    """A layer's weights as attention among all tokens, of one head or the mean of all: float32
    (B, T, T).

    Those of an axial layer are of sequences within rows, (B·h, H, w, w), or within columns,
    (B·w, H, h, h). They become zero elsewhere.
    """
    weights = _of_heads(weights, head)
    if config.mixer != "axial":
        return weights
    h, w = grid
    is_columns = layer % 2 == 1
    if is_columns:
        weights = weights.unflatten(0, (-1, w))  # (B, w, h, h)
        same_column = torch.eye(w, device=weights.device)
        weights = torch.einsum("bxyt,xs->byxts", weights, same_column)  # (B, h, w, h, w)
    else:
        weights = weights.unflatten(0, (-1, h))  # (B, h, w, w)
        same_row = torch.eye(h, device=weights.device)
        weights = torch.einsum("byxs,yt->byxts", weights, same_row)  # (B, h, w, h, w)
    return weights.flatten(3, 4).flatten(1, 2)


def in_float32(tensor: Tensor) -> AbstractContextManager:
    """A block whose matrix products are in float32, also where a caller computes the model in
    bfloat16."""
    return torch.autocast(tensor.device.type, enabled=False)


def _map_of(shares: Tensor, weights: Tensor, config: ViTConfig, grid: Grid) -> Tensor:
    """The mean of the tokens' rows, (B, T, T), by their shares, (B, T), as a map of the patches:
    (B, h, w) on the CPU."""
    with in_float32(weights):
        row = shares.to(weights.device)[:, None] @ weights  # (B, 1, T)
    return row[:, 0, config.prefix :].unflatten(1, grid).cpu()


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


def _check_query(query: tuple[int, int] | None, grid: Grid, layer: str) -> None:
    if query is None:
        return
    if layer == POOLING:
        raise ValueError(
            "query is a patch, and in the pooling a learned query looks at the patches; give None"
        )
    row, column = query
    if not (0 <= row < grid[0] and 0 <= column < grid[1]):
        raise ValueError(
            f"query is the patch {row}, {column}; rows are numbered 0 to {grid[0] - 1}, columns 0 "
            f"to {grid[1] - 1}"
        )
