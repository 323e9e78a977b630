"""Passes through a model for figures: images in small batches, layers of attention passed on one by one
while the model computes, and the weights of the final tokens that its head reads.

Legend: B batch, H heads, N patches, T tokens (N, and the prefix before them: the class token and
registers), (h, w) the grid of patches.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial

import torch
from torch import Tensor

from vitkit.models import Grid, Model, Patch, Token, VisionTransformer, ViTConfig, recording
from vitkit.models.states import Recording
from vitkit.system.errors import BadSettings, Unsupported
from vitkit.weights import Classifier

Images = Tensor | Iterable[Tensor]
"""Prepared images, uint8 (B, 3, H, W), or an iterable of such batches."""

LARGEST = 128 * 2**20  # bytes of the attention weights of one layer
MOST = 16  # images in a batch; larger batches are not faster on a CPU
POOLING = "pooling"  # name of a MAP head's layer


# Checks of models and arguments


def check_transformer(classifier: Classifier) -> VisionTransformer:
    """The model, if its patches attend to each other. Raises VitkitError otherwise."""
    model = classifier.model
    if not isinstance(model, VisionTransformer):
        raise Unsupported(
            f"a {model.config.title} has no attention among patches, so there is no map of what it looks "
            "at; Vision Transformers and their hybrids have one"
        )
    return model


def check_has_attention(classifier: Classifier) -> VisionTransformer:
    """The model, if its patches attend to each other and it has one output for an image. Raises VitkitError
    otherwise."""
    model = check_transformer(classifier)
    if model.config.segments:
        raise Unsupported(
            "the model classifies every pixel, so there is no single answer whose attention could be shown"
        )
    if not model.config.pools:
        raise Unsupported(
            f'the model has an output for every token (its pool is "{model.config.pool}"), so there is no single '
            "answer whose attention could be shown"
        )
    return model


def layer_names(config: ViTConfig) -> tuple[str, ...]:
    """A name for each layer of attention, counted from one: "layer 1".

    An axial layer has two: "layer 1, rows" and "layer 1, columns". A MAP head's attention, whose only query
    is learned, is last: "pooling".
    """
    names = []
    for i in range(config.depth):
        if config.mixer == "axial":
            names += [f"layer {i + 1}, rows", f"layer {i + 1}, columns"]
        else:
            names.append(f"layer {i + 1}")
    if config.pool == "map":
        names.append(POOLING)
    return tuple(names)


def check_number(name: str, number: int, count: int, things: str) -> None:
    """Raise VitkitError if the argument `name` is not the number of one of `count` things."""
    if not 0 <= number < count:
        raise BadSettings(
            f"{name} is {number}; the model's {count} {things} are numbered 0 to {count - 1}"
        )


def check_patch(name: str, patch: tuple[int, int] | None, grid: Grid) -> None:
    """Raise VitkitError if the argument `name` is a patch outside of the grid."""
    if patch is None:
        return
    row, column = patch
    if not (0 <= row < grid[0] and 0 <= column < grid[1]):
        raise BadSettings(
            f"{name} is the patch {row}, {column}; rows are numbered 0 to {grid[0] - 1}, columns 0 "
            f"to {grid[1] - 1}"
        )


def class_numbers(target: int | Tensor, count: int, classes: int) -> Tensor:
    """The class of each of `count` images, int64 (count,) on the CPU, from one class for all or one for each.
    Raises VitkitError for classes that do not exist."""
    chosen = torch.as_tensor(target).cpu().expand(count).long()
    for number in (int(chosen.min()), int(chosen.max())):
        check_number("target", number, classes, "classes")
    return chosen


# Batches


def small_batches(classifier: Classifier, images: Images) -> Iterator[Tensor]:
    """Yield the images in batches, uint8 (B, 3, H, W), whose attention weights fit in LARGEST bytes.

    Raises VitkitError if there are none, or if something is not a batch of prepared images.
    """
    batches = images
    if isinstance(images, Tensor):
        batches = [images]
    seen = 0
    for batch in batches:
        if not isinstance(batch, Tensor) or batch.ndim != 4:
            given = type(batch).__name__
            if isinstance(batch, Tensor):
                given = f"{batch.dtype} of shape {tuple(batch.shape)}"
            raise BadSettings(
                f"got {given}; expected prepared images, uint8 (B, 3, h, w), as "
                "classifier.batch(...) makes them"
            )
        seen += len(batch)
        yield from batch.split(_images_at_a_time(classifier, batch))
    if not seen:
        raise BadSettings("there are no images to look at")


def _images_at_a_time(classifier: Classifier, batch: Tensor) -> int:
    """Number of images of this size in a batch: from 1 to MOST."""
    model = classifier.model
    if not isinstance(model, VisionTransformer):
        return MOST
    rows, columns = model.grid(batch)
    tokens = model.config.prefix + rows * columns
    weights = 4 * model.config.heads * tokens**2  # bytes of one image's weights in float32
    return min(max(LARGEST // weights, 1), MOST)


def same_grid(before: Grid | None, grid: Grid) -> Grid:
    """The grid of these images. Raises VitkitError if previous images had another."""
    if before is not None and before != grid:
        raise BadSettings(
            f"images of {grid[0]} x {grid[1]} patches come after images of {before[0]} x "
            f"{before[1]}; a mean over images needs one size: prepare all with one Preprocessing"
        )
    return grid


# Layer by layer, as the attention of all layers may not fit in memory


@contextmanager
def attention_by_layer(
    model: VisionTransformer, see: Callable[[int, Tensor], None]
) -> Iterator[Recording]:
    """A recording that calls `see` with the number of each layer of attention, from 0, and its weights, as
    soon as its block has run. Then the weights are dropped.

    Weights are (B, H, T, T); of an axial layer (B·h, H, w, w) for rows and (B·w, H, h, h) for columns. A
    MAP head's weights are not passed to `see`, but remain in the recording.
    """
    number = 0

    def see_block(block: int, record: Recording) -> None:
        nonlocal number
        if block == 0:  # a new pass begins
            number = 0
        for weights in record.attention:
            see(number, weights)
            number += 1

    with block_by_block(model, see_block) as record:
        yield record


@contextmanager
def block_by_block(
    model: Model, see: Callable[[int, Recording], None], attention: bool = True
) -> Iterator[Recording]:
    """A recording that calls `see` after each block with its number, from 0, and the record of that block
    only, which is dropped afterwards."""

    def drop(record: Recording) -> None:
        record.weights_by_layer.clear()
        record.state_by_block.clear()

    def begin(*_) -> None:
        """Drop the records of a hybrid's ResNet, or of an earlier pass."""
        drop(record)

    def after_block(number: int, *_) -> None:
        see(number, record)
        drop(record)

    # Hooks are called in the order of registration: these after those of the recording
    with recording(model, attention) as record, ExitStack() as hooks:
        hooks.enter_context(model.blocks[0].register_forward_pre_hook(begin))
        for i, block in enumerate(model.blocks):
            hooks.enter_context(block.register_forward_hook(partial(after_block, i)))
        yield record


def of_heads(weights: Tensor, head: int | None) -> Tensor:
    """The weights of one head, or the mean of all: (B, H, T, T) -> float32 (B, T, T)."""
    if head is None:
        return weights.mean(1, dtype=torch.float32)
    return weights[:, head].float()


def among_all_tokens(weights: Tensor, layer: int, config: ViTConfig, grid: Grid) -> Tensor:
    """A layer's attention weights among all tokens, for one head or the mean of heads: float32 (B, T, T).

    An axial layer attends within rows, (B·h, w, w), or within columns, (B·w, h, h); weights between tokens
    of different rows, or columns, are 0.
    """
    if config.mixer != "axial":
        return weights
    h, w = grid
    if is_of_columns(layer, config):
        weights = weights.unflatten(0, (-1, w))  # (B, w, h, h)
        same_column = torch.eye(w, device=weights.device)
        weights = torch.einsum("bxyt,xs->byxts", weights, same_column)  # (B, h, w, h, w)
    else:
        weights = weights.unflatten(0, (-1, h))  # (B, h, w, w)
        same_row = torch.eye(h, device=weights.device)
        weights = torch.einsum("byxs,yt->byxts", weights, same_row)  # (B, h, w, h, w)
    return weights.flatten(3, 4).flatten(1, 2)


def is_of_columns(layer: int, config: ViTConfig) -> bool:
    """Whether a layer of attention, by its number from 0, is an axial one along columns."""
    return config.mixer == "axial" and layer % 2 == 1


def in_float32(tensor: Tensor) -> AbstractContextManager:
    """A context in which matrix products are computed in float32, even if the caller uses bfloat16."""
    return torch.autocast(tensor.device.type, enabled=False)


# The final tokens that the model's head reads


def reading(config: ViTConfig, tokens: int, pooling: list[Tensor]) -> Tensor:
    """How much of each final token the head reads: float32 (B, T) or (1, T), rows that sum to one.

    All states that the pooling concatenates have equal weight, and so have the patches in a mean, or compared
    with a memory bank. For a MAP head the weights are the attention of the learned query to the patches,
    averaged over its heads, from `pooling`, (B, H, 1, N). Registers are never read.
    """
    if config.pool == "map":
        by_probe = of_heads(pooling[-1], None)[:, 0]  # (B, N)
        shares = torch.zeros(len(by_probe), tokens, device=by_probe.device)
        shares[:, config.prefix :] = by_probe
        return shares
    shares = torch.zeros(1, tokens)
    patches = tokens - config.prefix
    if config.pooling.compares_patches:
        shares[:, config.prefix :] = 1 / patches
        return shares
    for part in config.pooling.reads:
        if isinstance(part, Token):
            shares[:, part.number] += 1
        elif isinstance(part, Patch):
            shares[:, config.prefix + part.number] += 1
        else:  # parts of the image have about equally many patches
            shares[:, config.prefix :] += part.states / patches
    return shares / config.pooling.states


def map_of(shares: Tensor, weights: Tensor, config: ViTConfig, grid: Grid) -> Tensor:
    """The mean of the tokens' rows in `weights`, (B, T, T), with weights `shares`, (B, T), as a map of the
    patches: (B, h, w) on the CPU."""
    with in_float32(weights):
        row = shares.to(weights.device)[:, None] @ weights  # (B, 1, T)
    return row[:, 0, config.prefix :].unflatten(1, grid).cpu()
