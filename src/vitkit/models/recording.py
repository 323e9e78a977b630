"""What happens inside a model: states and attention weights, without changing what it computes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from vitkit.models.attention import ScaledDotProduct, attention_weights, combined


@dataclass
class Recording:
    """The last forward pass through a model."""

    embedding: Tensor | None = None
    """What the first block gets: tokens with their positions (B, T, D), or a ResNet's maps."""
    features: Tensor | None = None
    """What the head reads: (B, D)."""
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
        """The weights of each attention layer before dropout, (B, H, T, T): rows sum to one, token
        0 is the class token. A MAP head's (B, H, 1, T) comes last. Axial attention has two a layer,
        (B·h, H, w, w) for the rows, then (B·w, H, h, h) for the columns."""
        return [self.weights_of[i] for i in sorted(self.weights_of)]


@contextmanager
def recording(model: nn.Module, attention: bool = True) -> Iterator[Recording]:
    """See every block's states, and with `attention` every layer's weights, of the last pass.

        with recording(model) as record:
            model(images)
        record.attention[3]            # fourth block: (B, H, T, T)
        record.states[-1]              # last block, every token: (B, T, D)

    The model computes what it computes otherwise, to the bit, and nothing of it is changed: there
    are hooks while the context is open. Where the last block answers for the class token alone, it
    is run once more to show all tokens. Compiled models run eagerly meanwhile.

    Raises ValueError for what is no model of vitkit's, RuntimeError when no forward pass ran
    inside.
    """
    blocks = list(getattr(model, "blocks", []))
    if not blocks:
        raise ValueError(f"{type(model).__name__} has no blocks, so there is nothing to show of it")
    record = Recording()
    hooks = [
        blocks[0].register_forward_pre_hook(reads_embedding(record)),
        model.head.register_forward_pre_hook(reads_features(record)),
    ]
    for i, block in enumerate(blocks):
        hooks.append(block.register_forward_hook(reads_state(record, i), with_kwargs=True))
    if attention:
        layers = [module for module in model.modules() if isinstance(module, ScaledDotProduct)]
        for i, layer in enumerate(layers):
            hooks.append(layer.register_forward_hook(reads_weights(record, i)))
    try:
        with torch.compiler.set_stance("force_eager"):
            yield record
        if record.embedding is None:
            raise RuntimeError(
                "no forward pass ran inside recording(model): there is nothing to show"
            )
    finally:
        for hook in hooks:
            hook.remove()


def reads_embedding(record: Recording) -> Callable:
    """A hook before the first block."""

    def hook(block: nn.Module, inputs: tuple) -> None:
        record.embedding = inputs[0]

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
        # It answered for some tokens; run it for all, with the random numbers put back afterwards.
        for_all = settings | {"queries": None}
        with torch.random.fork_rng() if block.training else nullcontext():
            record.states_of[number] = block.forward(*inputs, **for_all)

    return hook


def reads_weights(record: Recording, number: int) -> Callable:
    """A hook after softmax(q kᵀ / √E) v, which computes the weights of all queries from its
    inputs."""

    def hook(layer: nn.Module, inputs: tuple, output: Tensor) -> None:
        q, k, _, *rest = inputs
        bias, mask = (*rest, None, None)[:2]
        record.weights_of[number] = attention_weights(q, k, combined(bias, mask))

    return hook
