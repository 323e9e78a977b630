"""What happens inside a model: `recording` shows its states and attention weights, by hooks,
without changing what it computes.

Legend: B batch, C channels, T tokens, D width, H heads, (h, w) the grid or a feature map.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from vitkit.models.attention import ScaledDotProduct, attention_weights, logit_bias


@dataclass
class Recording:
    """What was seen of the last forward pass through a model: read `states` and `attention`."""

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
        """What each block gives, for every token: (B, T, D), or a ResNet's maps (B, C, h, w)."""
        return [self.state_by_block[i] for i in sorted(self.state_by_block)]

    @property
    def attention(self) -> list[Tensor]:
        """The weights of each attention layer before dropout, (B, H, T, T).

        Rows sum to one; those of a query that a mask lets look at nothing are zeros. A MAP head's,
        (B, H, 1, N), come last. Axial attention has two a layer: (B·h, H, w, w) for the rows, then
        (B·w, H, h, h) for the columns. Local attention (ancestors.py) has none.
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

    Raises ValueError for a model that is not vitkit's, and for one that recomputes its blocks in
    the backward pass; RuntimeError if no forward pass ran inside.
    """
    check_recordable(model)
    record = Recording()
    layers = []
    if attention:
        layers = [module for module in model.modules() if isinstance(module, ScaledDotProduct)]
    hooks = []
    try:
        hooks.append(model.blocks[0].register_forward_pre_hook(embedding_hook(record)))
        for i, block in enumerate(model.blocks):
            hooks.append(block.register_forward_hook(state_hook(record, i), with_kwargs=True))
        for i, layer in enumerate(layers):
            hooks.append(layer.register_forward_hook(weights_hook(record, i), with_kwargs=True))
        hooks.append(model.head.register_forward_pre_hook(features_hook(record)))
        with not_compiled():
            yield record
        if record.embedding is None:
            raise RuntimeError(
                "no forward pass ran inside recording(model): there is nothing to show"
            )
    finally:
        for hook in hooks:
            hook.remove()


def not_compiled() -> AbstractContextManager:
    """A block in which compiled models run eagerly: compiled code calls no hooks.

    If nothing was compiled, the compiler is not imported for that: it takes seconds.
    """
    if "torch._dynamo" not in sys.modules:
        return nullcontext()
    return torch.compiler.set_stance("force_eager")


def check_recordable(model: nn.Module) -> None:
    """Raise ValueError for a model whose inside cannot be seen."""
    # By its attributes, so that a compiled model, which passes them on, is one too.
    ours = hasattr(model, "layer_of") and hasattr(model, "head") and hasattr(model, "blocks")
    if not ours:
        message = (
            f"{type(model).__name__} is not a model of vitkit's, so there is nothing to show of it"
        )
        if hasattr(model, "model"):  # a Classifier
            message += "; give its .model"
        raise ValueError(message)
    if model.recompute and model.training:
        raise ValueError(
            "a model that recomputes its blocks in the backward pass cannot be recorded while it "
            "trains; set model.recompute to False, or call model.eval()"
        )


def embedding_hook(record: Recording) -> Callable:
    """A hook to call before the first block, where a new pass begins: it records what the block
    gets."""

    def hook(block: nn.Module, inputs: tuple) -> None:
        record.embedding = inputs[0]
        record.features = None

    return hook


def features_hook(record: Recording) -> Callable:
    """A hook to call before the head: it records what the head reads."""

    def hook(head: nn.Module, inputs: tuple) -> None:
        record.features = inputs[0]

    return hook


def state_hook(record: Recording, number: int) -> Callable:
    """A hook to call after a block: it records the states of all tokens."""

    def hook(block: nn.Module, inputs: tuple, arguments: dict, output: Tensor) -> None:
        if arguments.get("queries") is None:
            record.state_by_block[number] = output
            return
        # It computed some of the tokens, so run it once more for all. This is `block.forward`, not
        # `block`, which would call this hook again. The hooks of the layers within are called, and
        # record the weights of all queries.
        arguments = arguments | {"queries": None}
        with torch.random.fork_rng():  # the model's next random numbers stay what they were
            record.state_by_block[number] = block.forward(*inputs, **arguments)

    return hook


def weights_hook(record: Recording, number: int) -> Callable:
    """A hook to call after a ScaledDotProduct: it records the attention weights, computed again
    from what the layer got, as a fused kernel does not give them."""

    def record_weights(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        position_bias: Tensor | None = None,
        mask: Tensor | None = None,
        queries: int | None = None,
    ) -> None:
        """Has the parameters of ScaledDotProduct.forward, so that it can be called the same way."""
        if queries is None:  # otherwise state_hook runs the block again
            bias = logit_bias(position_bias, mask, q.dtype)
            record.weights_by_layer[number] = attention_weights(q, k, bias)

    def hook(layer: ScaledDotProduct, inputs: tuple, arguments: dict, output: Tensor) -> None:
        record_weights(*inputs, **arguments)

    return hook
