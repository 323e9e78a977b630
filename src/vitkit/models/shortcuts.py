"""Faster inference of a Vision Transformer without training. Outputs change slightly, so measure the
accuracy.

Token merging (Bolya et al. 2023, "Token Merging: Your ViT But Faster"): after the attention of each
block the r most similar pairs of tokens become one token each, so that later blocks compute fewer.

Early exit: later blocks are skipped for an image whose class is certain after a few blocks. After a
block, a linear map of the class token predicts the final features (Din et al. 2023, "Jump to Conclusions:
Short-Cutting Transformers With Linear Transformations"), to which the model's own head is applied. The
maps are least squares from a model's own states: no labels are needed.

Legend: B batch, T tokens, D width, K classes, H heads, D_h width of a head, r tokens merged in a block,
s number of patches that a token represents. As in the paper, z are the states of the tokens.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from vitkit.models.block import Block
from vitkit.models.config import ViTConfig
from vitkit.models.vision_transformer import VisionTransformer
from vitkit.system.errors import BadSettings, Unsupported


def check_class_token(model: nn.Module, shortcut: str) -> VisionTransformer:
    """Return the model. Raises VitkitError unless it is a Vision Transformer whose head reads only the class
    token, and whose blocks accept any number of tokens and add no positions."""
    if isinstance(model, VisionTransformer):
        config = model.config
        reads_it_alone = (
            config.prefix == 1 and config.pooling.tokens_read == 1 and config.read_blocks == 1
        )
        is_the_papers = config.mixer == "full" and config.resolved_inject == "stem"
        norms_are = config.branch_norm != "after" and config.norm == "tokens"
        if reads_it_alone and is_the_papers and norms_are:
            return model
    raise Unsupported(
        f"{shortcut} is for models that answer by a class token alone, with positions added at the "
        "stem and the paper's blocks; this one is another"
    )


def read(model: VisionTransformer, z: Tensor) -> Tensor:
    """The features, which the head reads, from the last block's tokens: (B, T, D) -> (B, D)."""
    y = model.norm(z)[:, 0]  # Eq. 4
    if model.representation is not None:
        y = torch.tanh(model.representation(y))
    return y


# Token merging


class Merging(nn.Module):
    """A Vision Transformer for inference that merges r tokens in every block except the last, of which
    the head reads only the class token."""

    inference_only = True

    def __init__(self, model: VisionTransformer, r: int):
        """Raises VitkitError like `check_can_merge`."""
        super().__init__()
        check_can_merge(model, r)
        self.model = model
        self.config = model.config
        self.head = model.head
        self.r = r

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, h·P, w·P) normalised images -> (B, K) logits."""
        return self.head(self.features(images))

    def features(self, images: Tensor) -> Tensor:
        """The features, which the head reads: (B, C, h·P, w·P) -> (B, D)."""
        z = self.model.embed(images)  # (B, T, D)  Eq. 1
        sizes = None  # (B, T)  s; each token is one patch
        *blocks, last = [block for block in self.model.blocks if isinstance(block, Block)]  # all
        for block in blocks:
            z, sizes = merging_block(block, z, sizes, self.r)
        z = attend(last, z, sizes, queries=1)[0]  # (B, 1, D)
        z = with_mlp(last, z)
        return read(self.model, z)


def check_can_merge(model: nn.Module, r: int) -> None:
    """Raise VitkitError unless r tokens can be merged in each block of a model."""
    if r < 0:
        raise BadSettings(f"{r} tokens of a block cannot be merged; it must be a number from 0")
    patches = math.prod(check_class_token(model, "token merging").config.grid)
    most = merging_at_most(1 + patches, r)
    if r > most:
        raise BadSettings(
            f"{r} tokens of a block cannot be merged: at most half do, and the model has {patches} "
            f"patches; give {most} or fewer"
        )


def merging_at_most(tokens: int, r: int) -> int:
    """The number of tokens, r or fewer, that merge in a block with this many tokens: at most half
    of the patches."""
    return min(r, (tokens - 1) // 2)


def tokens_left(config: ViTConfig, r: int) -> int:
    """The number of tokens that the last block of a model reads if every block before it merges r."""
    tokens = 1 + math.prod(config.grid)
    for _ in range(config.depth - 1):
        tokens -= merging_at_most(tokens, r)
    return tokens


def merging_block(block: Block, z: Tensor, sizes: Tensor | None, r: int) -> tuple[Tensor, Tensor]:
    """A block that merges r tokens: (B, T, D) and s, (B, T) or None for ones -> (B, T - r, D) and
    (B, T - r)."""
    z, keys = attend(block, z, sizes)
    if sizes is None:
        sizes = torch.ones_like(z[..., 0])
    z, sizes = merged(z, sizes, keys, r)
    return with_mlp(block, z), sizes


def attend(
    block: Block, z: Tensor, sizes: Tensor | None, queries: int | None = None
) -> tuple[Tensor, Tensor]:
    """Eq. 2, where a token that represents s patches counts s times as a key: softmax(q kᵀ / √D_h + log s).
    (B, T, D) -> (B, Q, D); and the mean of the heads' keys, (B, T, D_h)."""
    q, k, v = block.attention.project(block.norm1(z))  # (B, H, T, D_h) each
    bias = None
    if sizes is not None:
        bias = sizes.log()[:, None, None].to(q.dtype)  # (B, 1, 1, T)
    attended = block.attention.attend(q[:, :, :queries], k, v, bias)  # [:None] is all
    branch = block.scale1(block.attention.join(attended))
    return z[:, :queries] + branch, k.mean(1)


def with_mlp(block: Block, z: Tensor) -> Tensor:
    """Eq. 3: (B, T, D) -> (B, T, D)."""
    return z + block.scale2(block.mlp(block.norm2(z)))


def merged(z: Tensor, sizes: Tensor, keys: Tensor, r: int) -> tuple[Tensor, Tensor]:
    """Merge the r most similar pairs of tokens, each to the mean of its patches: (B, T, D), s of (B, T) and
    keys (B, T, D_h) -> (B, T - r, D) and (B, T - r). The class token stays first.

    Tokens are divided alternately into two sets. Each of the first set has one partner, the most similar of
    the second by the cosine of their keys; the r most similar pairs merge (App. D of that paper). At most
    half of the patches merge.
    """
    r = merging_at_most(z.shape[1], r)
    if r == 0:
        return z, sizes

    # The pairs
    keys = keys / keys.norm(dim=-1, keepdim=True)
    similarity = keys[:, ::2] @ keys[:, 1::2].mT  # (B, first set, second set)
    best, partner = similarity.max(-1)  # (B, first set) each
    # Keep the class token
    best = torch.cat([torch.full_like(best[:, :1], -torch.inf), best[:, 1:]], 1)
    order = best.argsort(dim=-1, descending=True)
    leaving = order[:, :r]
    staying = order[:, r:].sort(dim=-1).values
    target = partner.gather(1, leaving)  # (B, r)

    # Sums over patches of states and of their number, then the mean
    rows = torch.cat([z * sizes[..., None], sizes[..., None]], -1)  # (B, T, D + 1)
    first = rows[:, ::2]
    second = rows[:, 1::2].scatter_add(1, _expanded(target, rows), _rows(first, leaving))
    rows = torch.cat([_rows(first, staying), second], 1)  # (B, T - r, D + 1)
    sizes = rows[..., -1]
    return rows[..., :-1] / sizes[..., None], sizes


def _rows(x: Tensor, indices: Tensor) -> Tensor:
    """Select rows of each image: (B, T, D) and (B, n) -> (B, n, D)."""
    return x.gather(1, _expanded(indices, x))


def _expanded(indices: Tensor, x: Tensor) -> Tensor:
    """(B, n) -> (B, n, D), repeated for every channel of x, (B, T, D)."""
    return indices[..., None].expand(-1, -1, x.shape[-1])


# Early exit


class Exit(nn.Module):
    """Predicts the features of the model from the states after a block."""

    weight: Tensor
    bias: Tensor

    def __init__(self, after: int, weight: Tensor, bias: Tensor):
        """after: number of computed blocks. weight: (D, D). bias: (D,)."""
        super().__init__()
        self.after = after
        self.register_buffer("weight", weight)
        self.register_buffer("bias", bias)

    def forward(self, states: Tensor) -> Tensor:
        """Normalised states of the class token, (B, D), -> features (B, D)."""
        return states @ self.weight.mT + self.bias


class EarlyExit(nn.Module):
    """A Vision Transformer for inference that classifies an image at the first exit that is certain
    enough."""

    inference_only = True

    def __init__(self, model: VisionTransformer, exits: Sequence[Exit], sure: float):
        """sure: the softmax probability of the most likely class at which an image exits. Raises VitkitError
        like `check_can_exit` and `check_sure`."""
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
        """The logits, (B, K), and the number of blocks computed for each image, int64 (B,)."""
        norm = self.model.norm
        exits = {each.after: each for each in self.exits if isinstance(each, Exit)}  # all of them
        *blocks, last = self.model.blocks
        z = self.model.embed(images)  # (B, T, D)  Eq. 1
        waiting = torch.arange(len(z), device=z.device)  # indices of images without logits
        # Of images with logits: their indices, logits, and numbers of blocks
        answered = []
        answers = []
        depths = []

        # Images with a certain class exit
        for i, block in enumerate(blocks, start=1):
            z = block(z)
            if i in exits:
                logits = self.head(exits[i](norm(z[:, 0])))  # (B, K)
                is_sure = logits.float().softmax(-1).amax(-1) >= self.sure  # (B,)
                if is_sure.any():
                    answered.append(waiting[is_sure])
                    answers.append(logits[is_sure])
                    depths.append(torch.full_like(answered[-1], i))
                    waiting = waiting[~is_sure]
                    z = z[~is_sure]
            if not len(waiting):
                break

        # The whole model classifies the others
        if len(waiting):
            z = last(z, queries=1)
            answered.append(waiting)
            answers.append(self.head(read(self.model, z)))
            depths.append(torch.full_like(waiting, len(blocks) + 1))

        # Restore the order of the images
        order = torch.cat(answered).argsort()
        return torch.cat(answers)[order], torch.cat(depths)[order]


def check_can_exit(model: nn.Module, after: Sequence[int]) -> None:
    """Raise VitkitError unless a model can have exits after these numbers of blocks."""
    depth = len(check_class_token(model, "early exit").blocks)
    for blocks in after:
        if not 1 <= blocks < depth:
            raise BadSettings(
                f"an exit after {blocks} blocks is not possible; the model has {depth}, so it must be "
                f"after 1 to {depth - 1}"
            )


def check_sure(sure: float) -> None:
    """Raise VitkitError unless this is a probability above 0."""
    if not 0 < sure <= 1:
        raise BadSettings(
            f"an exit is sure from the probability {sure}; it must be above 0, up to 1"
        )


def states_at(model: VisionTransformer, images: Tensor, after: Sequence[int]) -> list[Tensor]:
    """The normalised class token after each of these numbers of blocks, and the final features:
    (B, C, h·P, w·P) -> (B, D) each."""
    z = model.embed(images)
    states = []
    for i, block in enumerate(model.blocks, start=1):
        z = block(z)
        if i in after:
            states.append(model.norm(z[:, 0]))
    return [*states, read(model, z)]
