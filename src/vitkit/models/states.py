"""Recording a model's hidden states and attention weights by hooks, without a change of its results.

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
    """Input of the first block: tokens with their positions (B, T, D), or a ResNet's maps."""
    features: Tensor | None = None
    """Input of the head, (B, D); None if the pass ended before the head, as `encode` does."""
    state_by_block: dict[int, Tensor] = field(default_factory=dict)
    """The items of `states`, by the block's number from 0."""
    weights_by_layer: dict[int, Tensor] = field(default_factory=dict)
    """The items of `attention`, by the attention layer's number from 0."""

    @property
    def states(self) -> list[Tensor]:
        """The output of each block, for every token: (B, T, D), or a ResNet's maps (B, C, h, w)."""
        return [self.state_by_block[i] for i in sorted(self.state_by_block)]

    @property
    def attention(self) -> list[Tensor]:
        """The weights of each attention layer before dropout, (B, H, T, T).

        Rows sum to one, or are zeros if a mask hides all keys from a query. The weights of a MAP head,
        (B, H, 1, N), are last. Axial attention has two per layer: (B·h, H, w, w) for the rows, then
        (B·w, H, h, h) for the columns. Local attention has none.
        """
        return [self.weights_by_layer[i] for i in sorted(self.weights_by_layer)]


@contextmanager
def recording(model: nn.Module, attention: bool = True) -> Iterator[Recording]:
    """Record the states of every block, and with `attention` the weights of every layer, in the last
    pass.

        with recording(model) as record:
            model(images)
        record.attention[3]            # fourth attention layer: (B, H, T, T)
        record.states[-1]              # last block, every token: (B, T, D)

    The model's outputs stay the same, and its hooks are removed when the context closes. If the last
    block computes only the class token, it runs again for all tokens; in training with dropout, with
    other random numbers. A compiled model runs eagerly meanwhile, so its outputs may differ in the last
    digit.

    Raises VitkitError for a model that is not vitkit's, and for one that recomputes its blocks in
    the backward pass; RuntimeError if no forward pass ran inside.
    """
    ours = check_recordable(model)
    record = Recording()

    def see_embedding(block: nn.Module, inputs: tuple) -> None:
        """Start the recording of a new pass."""
        record.embedding = inputs[0]
        record.features = None

    def see_features(head: nn.Module, inputs: tuple) -> None:
        record.features = inputs[0]

    def see_state(
        number: int, block: nn.Module, inputs: tuple, arguments: dict, output: Tensor
    ) -> None:
        if arguments.get("queries") is not None:
            # It computed only some of the tokens, so run it again for all. `block.forward` instead of
            # `block`, which would call this hook again. The hooks of layers within the block run, and
            # record the weights of all queries.
            arguments = arguments | {"queries": None}
            with torch.random.fork_rng():  # the model's next random numbers do not change
                output = block.forward(*inputs, **arguments)
        record.state_by_block[number] = output

    def see_weights(number: int, layer: ScaledDotProduct, inputs: tuple, output: Tensor) -> None:
        """Compute the weights again from the layer's inputs: a fused kernel does not return them."""
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
    """A context in which compiled models run eagerly: compiled code calls no hooks.

    Does not import the compiler, which takes seconds, if nothing was compiled.
    """
    if "torch._dynamo" not in sys.modules:
        return nullcontext()
    return torch.compiler.set_stance("force_eager")


def check_recordable(model: nn.Module) -> "Model":
    """Return the model. Raises VitkitError for one whose states cannot be recorded."""
    # Checked by attributes, so that compiled models, which forward them, are accepted.
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

    layers: 0 is z_0, the input of the first block (Eq. 1), and 1 to L are the outputs of the blocks; -1 is
        the last, None is all. Transformers counts in the same way (`hidden_states[6]`), timm's
        `forward_intermediates` from the first block (`indices=[5]`).
    form: "tokens" is every token, (B, T, D); "class" the class token, (B, D); "map" the patches as a map
        of the image, (B, D, h, w). A ResNet's states are always maps, (B, C, h, w).
    norm: apply the last LayerNorm (Eq. 4) to the states.

    The model stays in its mode, and gradients flow. Raises VitkitError for a layer that the model
    lacks, for a form or norm that has no meaning for it, and for a model that is not vitkit's.
    """
    ours = check_recordable(model)
    numbers = _numbers(layers, len(ours.blocks))
    _check_form(form, norm, ours)

    # All tokens of every block, in one pass
    with recording(model, attention=False) as record:
        ours.encode(images)
    assert record.embedding is not None  # because a pass ran
    states = [record.embedding, *record.states]

    chosen = {}
    for requested, number in numbers.items():
        state = states[number]
        if norm and isinstance(ours.config, ViTConfig):  # _check_form refuses others
            state = ours.norm(state)
        chosen[requested] = formed(state, form, ours, images)
    return chosen


def _numbers(layers: Iterable[int] | int | None, depth: int) -> dict[int, int]:
    """Map each requested number of a layer to one from 0 to `depth`. Raises VitkitError."""
    if layers is None:
        layers = range(depth + 1)
    if not isinstance(layers, Iterable):
        layers = [layers]
    numbers = {}
    for layer in layers:
        try:
            requested = index(layer)  # also accepts numpy's integers
        except TypeError:
            raise BadSettings(
                f"layer {layer!r} is not a whole number; 0 is the input of the first block, and 1 to "
                f"{depth} are the outputs of the blocks"
            ) from None
        if not -depth - 1 <= requested <= depth:
            raise BadSettings(
                f"there is no layer {requested}: the model has {depth} blocks, so that layers are 0 to "
                f"{depth}, or from the end -1 to {-depth - 1}"
            )
        numbers[requested] = requested % (depth + 1)
    return numbers


def _check_form(form: str, norm: bool, model: "Model") -> None:
    """Raise VitkitError for a form or a norm that has no meaning for this model."""
    if form not in get_args(Form):
        raise BadSettings(f"form is {form!r}; it must be one of {', '.join(get_args(Form))}")
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
    """Convert a state of images to one of the forms: (B, T, D) -> (B, T, D), (B, D) or (B, D, h, w). A
    ResNet's state is already a map."""
    if not isinstance(model.config, ViTConfig) or form == "tokens":
        return state
    if form == "class":
        return state[:, 0]
    patches = state[:, model.config.prefix :]  # (B, N, D)
    grid = model.config.tiling.grid((images.shape[-2], images.shape[-1]))
    return patches.mT.unflatten(2, grid)
