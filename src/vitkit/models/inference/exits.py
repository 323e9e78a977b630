"""Early exit: an image whose class is sure after a few blocks is not computed by the others.

After a block, a linear map of the class token foretells what the head will read (Din et al. 2023,
"Jump to Conclusions: Short-Cutting Transformers With Linear Transformations"), and the model's own
head answers. The maps are least squares from a model's own states: no labels, and no training of the
model. The answers change a little: measure how much.

Legend: B batch, T tokens, D width, K classes. As in the paper, z are the states of the tokens.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from vitkit.models.inference.merging import answers_by_class_token
from vitkit.models.vision_transformer import VisionTransformer


class Exit(nn.Module):
    """What foretells the features after a block."""

    def __init__(self, after: int, weight: Tensor, bias: Tensor):
        """after: blocks that have been computed. weight: (D, D). bias: (D,)."""
        super().__init__()
        self.after = after
        self.register_buffer("weight", weight)
        self.register_buffer("bias", bias)

    def forward(self, states: Tensor) -> Tensor:
        """Normalised states of the class token, (B, D), -> features (B, D)."""
        return states @ self.weight.mT + self.bias


def check_sure(sure: float) -> None:
    """Raises ValueError for a probability that is none."""
    if not 0 < sure <= 1:
        raise ValueError(f"an exit is sure from the probability {sure}; it is above 0, up to 1")


class EarlyExit(nn.Module):
    """A Vision Transformer, for inference, that answers an image after the first exit that is sure of
    it."""

    inference_only = True

    def __init__(self, model: VisionTransformer, exits: Sequence[Exit], sure: float):
        """sure: the largest probability that ends the computation, by softmax. Raises ValueError for
        one that is none, and for a model that has no class token alone."""
        super().__init__()
        check_can_exit(model, [each.after for each in exits])
        check_sure(sure)
        self.model = model
        self.config = model.config
        self.head = model.head
        self.exits = nn.ModuleList(exits)
        self.sure = sure

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, h·P, w·P) normalised images -> (B, K) logits."""
        logits, _ = self.answer(images)
        return logits

    def answer(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """The logits, (B, K), and after how many blocks each image had its answer, int64 (B,)."""
        norm = self.model.norm
        exits = {each.after: each for each in self.exits}
        *blocks, last = self.model.blocks
        z = self.model.embed(images)  # (B, T, D)  Eq. 1
        waiting = torch.arange(len(z), device=z.device)  # images without an answer
        answered = []  # which images, their logits, and after how many blocks

        # The images that are sure of their class leave
        for i, block in enumerate(blocks, start=1):
            z = block(z)
            if i in exits:
                logits = self.head(exits[i](norm(z[:, 0])))  # (B, K)
                is_sure = logits.float().softmax(-1).amax(-1) >= self.sure  # (B,)
                if is_sure.any():
                    answered.append((waiting[is_sure], logits[is_sure], i))
                    waiting = waiting[~is_sure]
                    z = z[~is_sure]
            if not len(waiting):
                break

        # The others have the whole model's answer
        if len(waiting):
            z = last(z, queries=1)
            answered.append((waiting, self.head(self.read(z)), len(blocks) + 1))

        # In the order of the images again
        order = torch.cat([rows for rows, _, _ in answered]).argsort()
        logits = torch.cat([logits for _, logits, _ in answered])
        depths = torch.cat([torch.full_like(rows, depth) for rows, _, depth in answered])
        return logits[order], depths[order]

    def read(self, z: Tensor) -> Tensor:
        """What the head reads of the last block's tokens: (B, T, D) -> (B, D)."""
        y = self.model.norm(z)[:, 0]
        if self.model.representation is not None:
            y = torch.tanh(self.model.representation(y))
        return y


def check_can_exit(model: nn.Module, after: Sequence[int]) -> None:
    """Raises ValueError for a model that does not answer by its class token from blocks as the paper
    has them, and for exits that are behind no block but the last."""
    if not answers_by_class_token(model):
        raise ValueError(
            "early exit is for models that answer by a class token alone, with positions added at the "
            "stem and the paper's blocks; this one is another"
        )
    depth = len(model.blocks)
    for blocks in after:
        if not 1 <= blocks < depth:
            raise ValueError(
                f"an exit after {blocks} blocks is not possible; the model has {depth}, and one is after "
                f"1 to {depth - 1}"
            )


def states_at(model: VisionTransformer, images: Tensor, after: Sequence[int]) -> list[Tensor]:
    """The normalised class token after each of these numbers of blocks, and what the head reads last:
    (B, C, h·P, w·P) -> (B, D) each."""
    z = model.embed(images)
    states = []
    for i, block in enumerate(model.blocks, start=1):
        z = block(z)
        if i in after:
            states.append(model.norm(z[:, 0]))
    y = model.norm(z)[:, 0]
    if model.representation is not None:
        y = torch.tanh(model.representation(y))
    return [*states, y]
