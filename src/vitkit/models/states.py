"""What happens inside a model: its hidden states and attention weights, seen by hooks, without a change
to what it computes.

Legend: B batch, C channels, T tokens, D width, L blocks, H heads, (h, w) the grid or a feature map.
"""

import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from operator import index
from typing import TYPE_CHECKING, Literal, cast, get_args

import torch
from torch import Tensor, nn

from vitkit.models.attention import ScaledDotProduct, attention_weights
from vitkit.models.config import ViTConfig
from vitkit.system.errors import BadSettings

if TYPE_CHECKING:
    from vitkit.models.construction import Model

Form = Literal["tokens", "class", "map"]


@dataclass
class Recording:
    """The recording of the last forward pass through a model: read `states` and `attention`."""

    embedding: Tensor | None = None
    """What the first block gets: tokens with their positions (B, T, D), or a ResNet's maps."""
    features: Tensor | None = None
    """What the head reads, (B, D); None if the pass ended before the head, as `encode` does."""
    state_by_block: dict[int, Tensor] = field(default_factory=dict)
    """What `states` lists, by the block's number from 0."""
    weights_by_layer: dict[int, Tensor] = field(default_factory=dict)
    """What `attention` lists, by the attention layer's number from 0."""

    @property
    def states(self) -> list[Tensor]:
        """The output of each block, for every token: (B, T, D), or a ResNet's maps (B, C, h, w)."""
        return [self.state_by_block[i] for i in sorted(self.state_by_block)]

    @property
    def attention(self) -> list[Tensor]:
        """The weights of each attention layer before dropout, (B, H, T, T).

        Rows sum to one; those of a query that a mask lets look at nothing are zeros. A MAP head's,
        (B, H, 1, N), come last. Axial attention has two a layer: (B·h, H, w, w) for the rows, then
        (B·w, H, h, h) for the columns. Local attention has none.
        """
        return [self.weights_by_layer[i] for i in sorted(self.weights_by_layer)]


@contextmanager
def recording(model: nn.Module, attention: bool = True) -> Iterator[Recording]:
    """See the states of every block, and with `attention` the weights of every layer, of the last
    pass.

        with recording(model) as record:
            model(images)
        record.attention[3]            # fourth attention layer: (B, H, T, T)
        record.states[-1]              # last block, every token: (B, T, D)

    The model's outputs stay the same, and its hooks are removed when the context closes. If the
    last block computes the class token alone, it is run once more to show all tokens; in training
    with dropout that is another draw. A compiled model runs eagerly meanwhile, so that its outputs
    may differ in the last digit.

    Raises VitkitError for a model that is not vitkit's, and for one that recomputes its blocks in
    the backward pass; RuntimeError if no forward pass ran inside.
    """
    ours = check_recordable(model)
    record = Recording()

    def see_embedding(block: nn.Module, inputs: tuple) -> None:
        """A new pass begins."""
        record.embedding = inputs[0]
        record.features = None

    def see_features(head: nn.Module, inputs: tuple) -> None:
        record.features = inputs[0]

    def see_state(
        number: int, block: nn.Module, inputs: tuple, arguments: dict, output: Tensor
    ) -> None:
        if arguments.get("queries") is not None:
            # It computed some of the tokens, so run it once more for all. This is `block.forward`,
            # not `block`, which would call this hook again. The hooks of the layers within are
            # called, and record the weights of all queries.
            arguments = arguments | {"queries": None}
            with torch.random.fork_rng():  # the model's next random numbers stay what they were
                output = block.forward(*inputs, **arguments)
        record.state_by_block[number] = output

    def see_weights(number: int, layer: ScaledDotProduct, inputs: tuple, output: Tensor) -> None:
        """They are computed again from what the layer got, as a fused kernel does not give them."""
        q, k, _, *bias = inputs
        record.weights_by_layer[number] = attention_weights(q, k, *bias)

    layers = []
    if attention:
        layers = [module for module in model.modules() if isinstance(module, ScaledDotProduct)]
    with ExitStack() as hooks:
        hooks.enter_context(ours.blocks[0].register_forward_pre_hook(see_embedding))
        for i, block in enumerate(ours.blocks):
            hook = partial(see_state, i)
            hooks.enter_context(block.register_forward_hook(hook, with_kwargs=True))
        for i, layer in enumerate(layers):
            hooks.enter_context(layer.register_forward_hook(partial(see_weights, i)))
        hooks.enter_context(ours.head.register_forward_pre_hook(see_features))
        with not_compiled():
            yield record
        if record.embedding is None:
            raise RuntimeError(
                "no forward pass ran inside recording(model): there is nothing to show"
            )


def not_compiled() -> AbstractContextManager:
    """A block in which compiled models run eagerly: compiled code calls no hooks.

    If nothing was compiled, the compiler is not imported for that: it takes seconds.
    """
    if "torch._dynamo" not in sys.modules:
        return nullcontext()
    return torch.compiler.set_stance("force_eager")


def check_recordable(model: nn.Module) -> "Model":
    """The model. Raises VitkitError for one whose states cannot be recorded."""
    # By its attributes, so that a compiled model, which passes them on, is one too.
    ours = hasattr(model, "layer_of") and hasattr(model, "head") and hasattr(model, "blocks")
    if not ours:
        message = (
            f"{type(model).__name__} is not a model of vitkit's, so there is nothing to show of it"
        )
        if hasattr(model, "model"):  # a Classifier
            message += "; give its .model"
        raise BadSettings(message)
    if model.recompute and model.training:
        raise BadSettings(
            "a model that recomputes its blocks in the backward pass cannot be recorded while it "
            "trains; set model.recompute to False, or call model.eval()"
        )
    return cast("Model", model)


# Layers by number: z_l of Equations 2 and 3


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

    The model stays in its mode, and gradients flow. Raises VitkitError for a layer that the model
    lacks, for a form or norm that has no meaning for it, and for a model that is not
    vitkit's.
    """
    ours = check_recordable(model)
    numbers = _numbers(layers, len(ours.blocks))
    _check_form(form, norm, ours)

    # All tokens of every block, in one pass
    with recording(model, attention=False) as record:
        ours.encode(images)
    assert record.embedding is not None  # a pass ran
    states = [record.embedding, *record.states]

    chosen = {}
    for asked, number in numbers.items():
        state = states[number]
        if norm and isinstance(ours.config, ViTConfig):  # no other has one, says _check_form
            state = ours.norm(state)
        chosen[asked] = formed(state, form, ours, images)
    return chosen


def _numbers(layers: Iterable[int] | int | None, depth: int) -> dict[int, int]:
    """The number from 0 to `depth` of each layer, by how it was asked for. Raises VitkitError."""
    if layers is None:
        layers = range(depth + 1)
    if not isinstance(layers, Iterable):
        layers = [layers]
    numbers = {}
    for layer in layers:
        try:
            asked = index(layer)  # numpy's integers too
        except TypeError:
            raise BadSettings(
                f"layer {layer!r} is no whole number; 0 is what the first block gets, and 1 to "
                f"{depth} what each block gives"
            ) from None
        if not -depth - 1 <= asked <= depth:
            raise BadSettings(
                f"there is no layer {asked}: the model has {depth} blocks, so that layers are 0 to "
                f"{depth}, or from the end -1 to {-depth - 1}"
            )
        numbers[asked] = asked % (depth + 1)
    return numbers


def _check_form(form: str, norm: bool, model: "Model") -> None:
    """Raises VitkitError for a form or a norm that has no meaning for this model."""
    if form not in get_args(Form):
        raise BadSettings(f"form is {form!r}; it is one of {', '.join(get_args(Form))}")
    config = model.config
    if not isinstance(config, ViTConfig):
        if form == "class" or norm:
            raise BadSettings(
                f"a {config.title}'s states are feature maps: it has no class token, and no "
                'LayerNorm after its blocks; leave out form="class" and norm'
            )
        return
    if form == "class" and not config.has_class_token:
        raise BadSettings(
            f'the model has no class token (its pool is "{config.pool}"); choose the form "tokens" '
            'or "map"'
        )


def formed(state: Tensor, form: Form, model: "Model", images: Tensor) -> Tensor:
    """A state of images in one of the forms: (B, T, D) -> (B, T, D), (B, D) or (B, D, h, w). A ResNet's
    is a map already."""
    if not isinstance(model.config, ViTConfig) or form == "tokens":
        return state
    if form == "class":
        return state[:, 0]
    patches = state[:, model.config.prefix :]  # (B, N, D)
    grid = model.config.tiling.grid((images.shape[-2], images.shape[-1]))
    return patches.mT.unflatten(2, grid)
