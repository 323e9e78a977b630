"""Intermediate layers by number: z_l of Equations 2 and 3, as tokens, as the class token alone, or
as a map.

Legend: B batch, C channels, T tokens, D width, L blocks, (h, w) the grid or a feature map.
"""

from collections.abc import Iterable
from operator import index
from typing import Literal, get_args

from torch import Tensor, nn

from vitkit.models.config import ViTConfig
from vitkit.models.states.recording import check_recordable, recording

Form = Literal["tokens", "class", "map"]


def hidden_states(
    model: nn.Module,
    images: Tensor,
    layers: Iterable[int] | int | None = None,
    form: Form = "tokens",
    norm: bool = False,
) -> dict[int, Tensor]:
    """The states after the blocks of these numbers, by number, from one pass over normalised images
    (B, C, H, W).

        states = hidden_states(model, images, [3, 6, -1], form="map")
        states[6]                      # after the sixth block: (B, D, h, w)

    layers: 0 is z_0, what the first block gets (Eq. 1), and 1 to L is what each block gives; -1 is
    the last. None is all of them. Transformers counts as here (`hidden_states[6]`), timm's
    `forward_intermediates` from the first block (`indices=[5]`).
    form: "tokens" gives every token, (B, T, D); "class" the class token, (B, D); "map" the patches
    where they lie in the image, (B, D, h, w). A ResNet's states are maps in any case, (B, C, h, w).
    norm: also through the last LayerNorm (Eq. 4), which the states themselves have not passed.

    The model is in the mode that it is in, and gradients flow. Raises ValueError for a layer that
    the model has not, for a form or norm that has no meaning for it, and for a model that is not
    vitkit's.
    """
    check_recordable(model)
    numbers = _numbers(layers, len(model.blocks))
    _check_form(form, norm, model)

    # All tokens of every block, in one pass
    with recording(model, attention=False) as record:
        model.encode(images)
    states = [record.embedding, *record.states]

    chosen = {}
    for asked, number in numbers.items():
        state = states[number]
        if norm:
            state = model.norm(state)
        chosen[asked] = formed(state, form, model, images)
    return chosen


def _numbers(layers: Iterable[int] | int | None, depth: int) -> dict[int, int]:
    """The number from 0 to `depth` of each layer, by how it was asked for. Raises ValueError."""
    if layers is None:
        layers = range(depth + 1)
    if not isinstance(layers, Iterable):
        layers = [layers]
    numbers = {}
    for layer in layers:
        try:
            asked = index(layer)  # numpy's integers too
        except TypeError:
            raise ValueError(
                f"layer {layer!r} is no whole number; 0 is what the first block gets, and 1 to "
                f"{depth} what each block gives"
            ) from None
        if not -depth - 1 <= asked <= depth:
            raise ValueError(
                f"there is no layer {asked}: the model has {depth} blocks, so that layers are 0 to "
                f"{depth}, or from the end -1 to {-depth - 1}"
            )
        numbers[asked] = asked % (depth + 1)
    return numbers


def _check_form(form: str, norm: bool, model: nn.Module) -> None:
    """Raises ValueError for a form or a norm that has no meaning for this model."""
    if form not in get_args(Form):
        raise ValueError(f"form is {form!r}; it is one of {', '.join(get_args(Form))}")
    config = model.config
    if not isinstance(config, ViTConfig):
        if form == "class" or norm:
            raise ValueError(
                f"a {config.title}'s states are feature maps: it has no class token, and no "
                'LayerNorm after its blocks; leave out form="class" and norm'
            )
        return
    if form == "class" and not config.has_class_token:
        raise ValueError(
            f'the model has no class token (its pool is "{config.pool}"); choose the form "tokens" '
            'or "map"'
        )


def formed(state: Tensor, form: Form, model: nn.Module, images: Tensor) -> Tensor:
    """A state that a model has of images, in a form: (B, T, D) -> (B, T, D), (B, D) or (B, D, h, w). A
    ResNet's is a map as it is."""
    if not isinstance(model.config, ViTConfig) or form == "tokens":
        return state
    if form == "class":
        return state[:, 0]
    patches = state[:, model.config.prefix :]  # (B, N, D)
    return patches.mT.unflatten(2, model.grid(images))
