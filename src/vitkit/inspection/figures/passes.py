"""Passes through a model as the figures make them: images in batches that are small enough, layers of
attention seen one by one while the model computes, and which of the final tokens its head reads.

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
"""Prepared images, uint8 (B, 3, H, W), or any number of such batches, one after the other."""

LARGEST = 128 * 2**20  # bytes of the attention weights of one layer
MOST = 16  # images at a time; larger batches are not faster on a CPU
POOLING = "pooling"  # the name of a MAP head's layer


# What a figure can be made of


def check_transformer(classifier: Classifier) -> VisionTransformer:
    """The model, if its patches attend to each other. Raises VitkitError for another."""
    model = classifier.model
    if not isinstance(model, VisionTransformer):
        raise Unsupported(
            f"a {model.config.title} has no attention among patches, so there is no map of what it looks "
            "at; Vision Transformers and their hybrids have one"
        )
    return model


def check_has_attention(classifier: Classifier) -> VisionTransformer:
    """The model, if its patches attend to each other, and it has one answer an image. Raises VitkitError
    for another."""
    model = check_transformer(classifier)
    if not model.config.pools:
        raise Unsupported(
            'the model gives an answer for every token (its pool is "none"), so there is no one '
            "answer whose attention could be shown"
        )
    return model


def layer_names(config: ViTConfig) -> tuple[str, ...]:
    """A name for each layer of attention, for people, who count from one: "layer 1".

    An axial layer is two, "layer 1, rows" and "layer 1, columns". A MAP head's attention, whose
    only query is learned, comes last: "pooling".
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
    """Raise VitkitError for the number, in the argument `name`, of a thing that the model lacks."""
    if not 0 <= number < count:
        raise BadSettings(
            f"{name} is {number}; the model's {count} {things} are numbered 0 to {count - 1}"
        )


def check_patch(name: str, patch: tuple[int, int] | None, grid: Grid) -> None:
    """Raise VitkitError for a patch, the argument called `name`, that is not on the grid."""
    if patch is None:
        return
    row, column = patch
    if not (0 <= row < grid[0] and 0 <= column < grid[1]):
        raise BadSettings(
            f"{name} is the patch {row}, {column}; rows are numbered 0 to {grid[0] - 1}, columns 0 "
            f"to {grid[1] - 1}"
        )


def class_numbers(target: int | Tensor, count: int, classes: int) -> Tensor:
    """The class of each of `count` images, int64 (count,) on the CPU, from one class or one for each
    image. Raises VitkitError for classes that are not there."""
    chosen = torch.as_tensor(target).cpu().expand(count).long()
    for number in (int(chosen.min()), int(chosen.max())):
        check_number("target", number, classes, "classes")
    return chosen


# Batches


def small_batches(classifier: Classifier, images: Images) -> Iterator[Tensor]:
    """Yields the images in batches, uint8 (B, 3, H, W), whose attention fits into LARGEST.

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
    """How many images of this size are computed at a time: from 1 to MOST."""
    model = classifier.model
    if not isinstance(model, VisionTransformer):
        return MOST
    rows, columns = model.grid(batch)
    tokens = model.config.prefix + rows * columns
    weights = 4 * model.config.heads * tokens**2  # bytes of one image's, in float32
    return min(max(LARGEST // weights, 1), MOST)


def same_grid(before: Grid | None, grid: Grid) -> Grid:
    """The grid of these images. Raises VitkitError if those before them had another."""
    if before is not None and before != grid:
        raise BadSettings(
            f"images of {grid[0]} x {grid[1]} patches come after images of {before[0]} x "
            f"{before[1]}; a mean over images needs one size: prepare all with one Preprocessing"
        )
    return grid


# Layer by layer, as those of all layers together may not fit into memory


@contextmanager
def attention_by_layer(
    model: VisionTransformer, see: Callable[[int, Tensor], None]
) -> Iterator[Recording]:
    """A recording within which `see` is called with the number of each layer of attention, from 0,
    and its weights, as soon as its block has run; then they are dropped.

    The weights are (B, H, T, T); of an axial layer (B·h, H, w, w) for rows and (B·w, H, h, h) for
    columns. A MAP head's are not shown to `see`: after the pass they are recorded.
    """
    number = 0

    def see_block(block: int, record: Recording) -> None:
        nonlocal number
        if block == 0:  # another pass may have gone before
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
    """A recording within which `see` is called after each block with its number, from 0, and the
    record of that block alone, which is dropped then."""

    def drop(record: Recording) -> None:
        record.weights_by_layer.clear()
        record.state_by_block.clear()

    def begin(*_) -> None:
        """Drop what a hybrid's ResNet, or an earlier pass, has recorded."""
        drop(record)

    def after_block(number: int, *_) -> None:
        see(number, record)
        drop(record)

    # Hooks are called in the order in which they were registered: these after the recording's
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
    """A layer's attention weights, of one head or of the mean head, among all tokens: float32
    (B, T, T).

    An axial layer attends within rows, (B·h, w, w), or within columns, (B·w, h, h): between tokens
    of different rows, or columns, the weight is 0.
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
    """A block whose matrix products are in float32, also where a caller computes the model in
    bfloat16."""
    return torch.autocast(tensor.device.type, enabled=False)


# Where the model's head reads


def reading(config: ViTConfig, tokens: int, pooling: list[Tensor]) -> Tensor:
    """How much of each final token the head reads: float32 (B, T) or (1, T), rows that sum to one.

    Each of the states that the pooling puts side by side counts the same, and in a mean of patches, or
    compared with a memory bank, each patch. Of a MAP head they are the attention of the learned query to
    the patches, averaged over its heads, from `pooling`, (B, H, 1, N). Registers are never read.
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
        else:  # parts of the image have about as many patches each
            shares[:, config.prefix :] += part.states / patches
    return shares / config.pooling.states


def map_of(shares: Tensor, weights: Tensor, config: ViTConfig, grid: Grid) -> Tensor:
    """The mean of the tokens' rows, (B, T, T), by their shares, (B, T), as a map of the patches:
    (B, h, w) on the CPU."""
    with in_float32(weights):
        row = shares.to(weights.device)[:, None] @ weights  # (B, 1, T)
    return row[:, 0, config.prefix :].unflatten(1, grid).cpu()
