"""What happens inside a model: states and attention weights, without changing what it computes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from vitkit.models.attention import ScaledDotProduct, attention_weights, logit_bias


@dataclass
class Recording:
    """The last forward pass through a model."""

    embedding: Tensor | None = None
    """What the first block gets: tokens with their positions (B, T, D), or a ResNet's maps."""
    features: Tensor | None = None
    """What the head reads, (B, D); None if the pass did not come to the head."""
    states_of: dict[int, Tensor] = field(default_factory=dict)
    """By the block's number."""
    weights_of: dict[int, Tensor] = field(default_factory=dict)
    """By the attention layer's number."""

    @property
    def states(self) -> list[Tensor]:
        """What each block gives, for every token: (B, T, D), or a ResNet's maps (B, C, h, w)."""
        return [self.states_of[i] for i in sorted(self.states_of)]

    @property
    def attention(self) -> list[Tensor]:
        """The weights of each attention layer before dropout, (B, H, T, T).

        Rows sum to one, but for a query that a mask lets look at nothing; token 0 is the class token.
        A MAP head's (B, H, 1, T) comes last. Axial attention has two a layer, (B·h, H, w, w) for the
        rows, then (B·w, H, h, h) for the columns. The local attention of an ancestor has none."""
        return [self.weights_of[i] for i in sorted(self.weights_of)]


@contextmanager
def recording(model: nn.Module, attention: bool = True) -> Iterator[Recording]:
    """See every block's states, and with `attention` every layer's weights, of the last pass.

        with recording(model) as record:
            model(images)
        record.attention[3]            # fourth block: (B, H, T, T)
        record.states[-1]              # last block, every token: (B, T, D)

    The model's outputs are those without a recording, and nothing of it is changed: there are hooks
    while the context is open. If the last block answers for the class token alone, it is run once
    more to show all tokens; in training with dropout that is another draw. A compiled model runs
    eagerly meanwhile, so that its outputs may differ in the last digit.

    Raises ValueError for a model that is not vitkit's, and for one that recomputes its blocks in the
    backward pass; RuntimeError when no forward pass ran inside.
    """
    check_recordable(model)
    record = Recording()
    blocks = list(model.blocks)
    layers = [module for module in model.modules() if isinstance(module, ScaledDotProduct)]
    hooks = []
    try:
        hooks.append(blocks[0].register_forward_pre_hook(reads_embedding(record)))
        for i, block in enumerate(blocks):
            hooks.append(block.register_forward_hook(reads_state(record, i), with_kwargs=True))
        hooks.append(model.head.register_forward_pre_hook(reads_features(record)))
        if attention:
            for i, layer in enumerate(layers):
                hooks.append(layer.register_forward_hook(reads_weights(record, i)))
        with torch.compiler.set_stance("force_eager"):
            yield record
        if record.embedding is None:
            raise RuntimeError(
                "no forward pass ran inside recording(model): there is nothing to show"
            )
    finally:
        for hook in hooks:
            hook.remove()


def check_recordable(model: nn.Module) -> None:
    """Raise ValueError for a model whose inside cannot be seen."""
    ours = hasattr(model, "layer_of") and hasattr(model, "head") and hasattr(model, "blocks")
    if not ours:
        raise ValueError(
            f"{type(model).__name__} is no model of vitkit's, so there is nothing to show of it"
        )
    if model.recompute and model.training:
        raise ValueError(
            "a model that recomputes its blocks in the backward pass cannot be recorded while it "
            "trains; set model.recompute to False, or call model.eval()"
        )


def reads_embedding(record: Recording) -> Callable:
    """A hook before the first block, where a new pass begins."""

    def hook(block: nn.Module, inputs: tuple) -> None:
        record.embedding = inputs[0]
        record.features = None

    return hook


def reads_features(record: Recording) -> Callable:
    """A hook before the head."""

    def hook(head: nn.Module, inputs: tuple) -> None:
        record.features = inputs[0]

    return hook


def reads_state(record: Recording, number: int) -> Callable:
    """A hook after a block."""

    def hook(block: nn.Module, inputs: tuple, settings: dict, output: Tensor) -> None:
        if settings.get("queries") is None:
            record.states_of[number] = output
            return
        # It answered for some tokens: run it for all. `forward` is called by itself, so that this
        # hook is not; those of the layers in it are, and record the weights of all queries.
        for_all = settings | {"queries": None}
        with torch.random.fork_rng():
            record.states_of[number] = block.forward(*inputs, **for_all)

    return hook


def reads_weights(record: Recording, number: int) -> Callable:
    """A hook after softmax(q kᵀ / √E) v, which computes the weights from its inputs."""

    def hook(layer: ScaledDotProduct, inputs: tuple, output: Tensor) -> None:
        q, k, _, position_bias, mask, queries = six_inputs(inputs)
        if queries is None:
            bias = logit_bias(position_bias, mask, q.dtype)
            record.weights_of[number] = attention_weights(q, k, bias)

    return hook


def six_inputs(inputs: tuple) -> tuple:
    """What ScaledDotProduct.forward got: q, k, v, position_bias, mask, queries.

    Callers may leave out the last ones, which are None then.
    """
    missing = 6 - len(inputs)
    return inputs + (None,) * missing
