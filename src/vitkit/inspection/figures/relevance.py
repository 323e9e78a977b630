"""Relevance of an image's patches for a class: attention weighted by the gradient of the class's logit
(Chefer et al. 2021). Attention alone does not depend on the class.

Both functions keep the attention and the graph of the backward pass of only one block at a time.

Legend: B batch, K classes, H heads, T tokens, Q number of queries that are computed, N patches,
D width, D_h width of a head, L blocks, (h, w) the grid of patches.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from vitkit.inspection.figures.passes import (
    among_all_tokens,
    check_has_attention,
    class_numbers,
    in_float32,
    reading,
)
from vitkit.models import ScaledDotProduct, VisionTransformer, attention_weights
from vitkit.models.states import not_compiled
from vitkit.weights import Classifier, check_answers, evaluating

Update = Callable[[Tensor, Tensor], Tensor]
"""(the head's row (B, T), a layer's weighted attention (B, T, T) or (B, Q, T)) -> the new row."""


def class_relevance(
    classifier: Classifier, images: Tensor, target: int | Tensor | None = None
) -> Tensor:
    """The relevance of each patch for a class, by the rules of Chefer, Gur and Wolf (2021b, "Generic
    Attention-model Explainability").

    Prepared images, uint8 (B, 3, H, W) -> float32 (B, h, w) on the CPU, not negative.

    With A_l the attention of layer l, and ∇A_l the gradient of the class's logit with respect to it, the
    relevance is the head's row of

        (I + Ā_L) ... (I + Ā_1),   Ā_l = the mean over heads of (∇A_l ⊙ A_l)⁺

    where ⁺ sets negative numbers to 0. The head's row begins as in `rollout`; for a MAP head it is the row
    of Ā of its own attention.

    target: the class, from 0, or one for each image (B,); None is the most likely class.

    Raises VitkitError for a class that does not exist, for a model without a head, and like `rollout`.
    """

    def mean_of_positive(weighted: Tensor) -> Tensor:
        return weighted.clamp(min=0).mean(1)  # (B, H, T, T) -> (B, T, T)

    def update(row: Tensor, weighted: Tensor) -> Tensor:
        return row + _through(row, weighted)

    return _propagate(classifier, images, target, mean_of_positive, update)


def gradient_rollout(
    classifier: Classifier, images: Tensor, target: int | Tensor | None = None
) -> Tensor:
    """Attention Rollout for a class: each layer's attention is weighted by the gradient of the
    class's logit.

    Unlike `class_relevance`, negative numbers are set to 0 after the mean over heads, and rows are divided
    by their sum, as in rollout: it is the head's row of

        Â_L ... Â_1,   Â_l = I + (the mean over heads of ∇A_l ⊙ A_l)⁺, each row divided by its sum

    ("Gradient Attention Rollout", J. Gildenblat's vit-explain). Here heads with opposite signs cancel each
    other.
    """

    def positive_of_mean(weighted: Tensor) -> Tensor:
        return weighted.mean(1).clamp(min=0)  # (B, H, T, T) -> (B, T, T)

    def update(row: Tensor, weighted: Tensor) -> Tensor:
        # A row of Â: the part that stays with the token, and the part that comes from others
        share = row[:, : weighted.shape[1]] / (1 + weighted.sum(-1))  # (B, Q)
        stays = torch.cat([share, row[:, weighted.shape[1] :]], 1)
        return stays + _through(share, weighted)

    return _propagate(classifier, images, target, positive_of_mean, update)


def _through(row: Tensor, weighted: Tensor) -> Tensor:
    """The row (B, T) times the first rows of a matrix, (B, Q, T): (B, T)."""
    queries = weighted.shape[1]
    return (row[:, None, :queries] @ weighted)[:, 0]


@dataclass
class _AttentionCall:
    """Inputs and output of a layer of attention."""

    weights: Callable[[], Tensor]
    """Computes the weights (B, H, Q, T)."""
    values: Tensor
    """(B, H, T, D_h)."""
    output: Tensor
    """(B, H, Q, D_h), part of a graph."""

    @torch.no_grad()
    def weighted(self, gradient: Tensor) -> Tensor:
        """∇A ⊙ A, float32 (B, H, Q, T), from the gradient of the output. As the output is A v, the gradient
        of A is that of the output times vᵀ."""
        by_weights = gradient.float() @ self.values.float().mT
        return by_weights * self.weights().float()


@dataclass
class _Pass:
    """Results of a forward pass that the backward pass needs."""

    logits: Tensor
    """(B, K), with a graph that ends at `states`."""
    states: list[Tensor]
    """States of the blocks that the head reads, (B, T, D) each; the last block's is last: (B, Q, D)."""
    calls: list[tuple[tuple, dict]]
    """Arguments of each block."""
    pooling: list[_AttentionCall]
    """The attention of a MAP head, if there is one."""


def _propagate(
    classifier: Classifier,
    images: Tensor,
    target: int | Tensor | None,
    of_heads: Callable[[Tensor], Tensor],
    update: Update,
) -> Tensor:
    """Propagate the head's row through the layers, from the last to the first: (B, h, w) on the CPU."""
    model = check_has_attention(classifier)
    config = model.config
    check_answers(
        classifier, "there is no class to compute relevance for; rollout shows what it looks at"
    )
    grid = model.grid(images)
    tokens = config.prefix + grid[0] * grid[1]
    with (
        torch.inference_mode(False),  # the caller may have turned gradients off
        torch.enable_grad(),
        in_float32(next(model.parameters())),
        not_compiled(),
        evaluating(model),
    ):
        pixels = classifier.preprocessing.normalise(images.to(classifier.device))

        # Forward, and from the logit back to the last block's states
        forward = _forward(model, pixels)
        score = _of_target(forward.logits, target).sum()
        count = len(forward.states)
        ends = [*forward.states, *(layer.output for layer in forward.pooling)]
        gradients = torch.autograd.grad(score, ends)
        *by_earlier, gradient = gradients[:count]
        by_pooling = gradients[count:]

        # The weights of the tokens that the head reads
        if forward.pooling:
            by_probe = of_heads(forward.pooling[0].weighted(by_pooling[0]))[:, 0]  # (B, N)
            row = by_probe.new_zeros(len(images), tokens)
            row[:, config.prefix :] = by_probe
        else:
            row = reading(config, tokens, []).to(pixels.device).expand(len(images), -1)

        # Run each block again, from the last: compute its gradients, and propagate the row through its layers
        for i in reversed(range(len(model.blocks))):
            arguments, settings = forward.calls[i]
            state = arguments[0].detach().requires_grad_()
            with _attention_recorded(model.blocks[i]) as layers:
                after = model.blocks[i](state, *arguments[1:], **settings)
            outputs = [layer.output for layer in layers]
            gradient, *by_output = torch.autograd.grad(after, [state, *outputs], gradient)
            if by_earlier:  # the head also reads the input of this block
                gradient = gradient + by_earlier.pop()
            for j in reversed(range(len(layers))):  # an axial block has two
                weighted = of_heads(layers[j].weighted(by_output[j]))
                row = update(row, among_all_tokens(weighted, j, config, grid))
    return row[:, config.prefix :].unflatten(1, grid).detach().cpu()


def _forward(model: VisionTransformer, pixels: Tensor) -> _Pass:
    """Run normalised images, and keep the inputs of each block but not its graph."""
    calls = []
    states = []

    def before(block: nn.Module, arguments: tuple, settings: dict) -> tuple[tuple, dict]:
        """Cut the graph before a block, so that only one block's graph exists at a time."""
        arguments = (arguments[0].detach(), *arguments[1:])
        calls.append((arguments, settings))
        return arguments, settings

    def after(block: nn.Module, arguments: tuple, output: Tensor) -> Tensor:
        """Begin a graph at a state that the head reads."""
        states.append(output.detach().requires_grad_())
        return states[-1]

    with ExitStack() as hooks:
        for block in model.blocks:
            hooks.enter_context(block.register_forward_pre_hook(before, with_kwargs=True))
        for block in model.blocks[-model.config.read_blocks :]:
            hooks.enter_context(block.register_forward_hook(after))
        pooling = hooks.enter_context(_attention_recorded(model.pool))
        logits = model(pixels)
    return _Pass(logits, states, calls, pooling)


@contextmanager
def _attention_recorded(module: nn.Module) -> Iterator[list[_AttentionCall]]:
    """A context in which the layers of attention within a module are recorded, in the order in which they
    run."""
    layers = []

    def hook(layer: ScaledDotProduct, inputs: tuple, output: Tensor) -> None:
        q, k, v, *bias = inputs
        layers.append(_AttentionCall(partial(attention_weights, q, k, *bias), v.detach(), output))

    with ExitStack() as hooks:
        for layer in module.modules():
            if isinstance(layer, ScaledDotProduct):
                hooks.enter_context(layer.register_forward_hook(hook))
        yield layers


def _of_target(logits: Tensor, target: int | Tensor | None) -> Tensor:
    """The logit of each image's class: (B, K) -> (B,). Raises VitkitError for classes that do not exist."""
    if target is None:
        return logits.max(-1).values
    chosen = class_numbers(target, *logits.shape).to(logits.device)
    return logits.gather(1, chosen[:, None])[:, 0]
