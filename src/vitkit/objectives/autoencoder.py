"""Masked autoencoder (MAE, He et al. 2021), an extension of the paper: predicts the pixels of three quarters of an
image's patches from the others.

The encoder gets the visible patches only, which makes it about four times as fast. A small decoder with fixed
sine and cosine positions gets the encoder's output, and a learned mask embedding for every hidden patch.

Legend: B batch, C channels, N patches, M hidden ones, D width, W the decoder's width, T tokens,
P pixels along a patch's side.
"""

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn

from vitkit.data import Preprocessing, TargetKind, uniforms
from vitkit.evaluation.evaluator import Evaluator
from vitkit.models import Dense, Model, VisionTransformer, ViTConfig, create
from vitkit.objectives.objective import Unlabelled
from vitkit.objectives.patches import (
    PatchLearner,
    Reconstruction,
    gather_patches,
    patchify,
    scatter_patches,
    unpatchify,
)
from vitkit.system.errors import BadSettings, Unsupported
from vitkit.system.values import check_settings

HIDDEN = 0  # random stream of an example's key that decides which patches are hidden


@dataclass(frozen=True)
class MaskedAutoencoder(Unlabelled):
    """Predict the pixels of hidden patches, by squared error. The defaults are MAE's."""

    rate: float = 0.75
    """Share of an image's patches that are hidden."""
    width: int = 512
    """W, the width of the decoder; its MLPs are four times as wide."""
    depth: int = 8
    """Blocks of the decoder."""
    heads: int = 16
    """Attention heads of the decoder."""
    normalised: bool = True
    """Predict a patch's pixels minus their mean and divided by their standard deviation, instead of
    the pixels themselves."""

    def __post_init__(self):
        check_settings(self)
        if not 0 < self.rate < 1:
            raise BadSettings(
                f"rate is {self.rate}; it is a share of the patches above 0 and below 1"
            )
        for name in ("width", "depth", "heads"):
            if getattr(self, name) < 1:
                raise BadSettings(f"{name} is {getattr(self, name)}; it must be at least 1")

    def evaluators(self, target_kind: TargetKind) -> tuple[Evaluator, ...]:
        """Loss on hidden patches, beside that of always predicting the same patch."""
        return (Reconstruction(),)

    def learner(self, model: Model, preprocessing: Preprocessing) -> "MaskedAutoencoderLearner":
        """The model as encoder, with a decoder. Raises VitkitError for a model that needs all of its
        patches."""
        return MaskedAutoencoderLearner(model, self, preprocessing)


class MaskedAutoencoderLearner(PatchLearner):
    """The learner of a masked autoencoder: the model, and the decoder, which is saved beside it."""

    objective: MaskedAutoencoder
    travels = ("enter", "mask", "decoder", "predict")

    def __init__(self, model: Model, objective: MaskedAutoencoder, preprocessing: Preprocessing):
        super().__init__(model, objective, preprocessing)
        config = self.model.config
        if config.resolved_inject != "stem" or config.mixer != "full":
            raise Unsupported(
                f"{config.mixer} attention with {config.positions} positions needs every patch, "
                'and an autoencoder shows the encoder some: choose mixer "full" and positions that '
                "are added at the stem"
            )

        # The decoder: a Vision Transformer whose patches are the encoder's output
        width = objective.width
        decoder = ViTConfig(
            width,
            objective.depth,
            4 * width,
            objective.heads,
            self.size,
            image=config.image,
            gelu=config.gelu,
            eps=config.eps,
            positions="sincos-mae",
            pool="none",
            classes=0,
        )
        self.enter = Dense(config.width, width)
        self.mask = nn.Parameter(torch.empty(1, 1, width).normal_(std=0.02))
        built = create(decoder)
        assert isinstance(built, VisionTransformer)  # the model of a ViTConfig
        self.decoder = built
        self.decoder.stem = nn.Identity()  # its inputs are embeddings, not pixels
        self.predict = Dense(width, config.channels * prod(self.size))
        for layer in (self.enter, self.predict):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    def predictions_and_targets(self, images: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """(B, C, H, W), (B,) -> predictions of the hidden patches and their targets, (B, M, P·P·C)
        each."""
        predicted, hidden = self.predictions(images, keys)
        pixels = gather_patches(patchify(images, self.size), hidden)
        if self.objective.normalised:
            pixels = (pixels - mean(pixels)) / spread(pixels)
        return predicted, pixels

    def predictions(self, images: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """(B, C, H, W), (B,) -> predictions of the hidden patches, (B, M, P·P·C), and the indices of these
        patches, (B, M)."""
        grid = self.model.grid(images)
        count = grid[0] * grid[1]
        visible, hidden = self.choose(keys, count)

        # The encoder: visible patches only. Positions are added before hidden patches are removed
        x = self.model.patch_embed(images)  # (B, N, D)
        x = self.model.add_positions(x, grid)  # (B, T, D), with the class token
        prefix, patches = x.tensor_split([x.shape[1] - count], 1)
        x = torch.cat([prefix, gather_patches(patches, visible)], 1)  # (B, T - M, D)
        x = self.enter(self.model.encoder(x, grid))  # (B, T - M, W)

        # The decoder: all patches, with the mask embedding for the hidden ones
        prefix, states = x.tensor_split([prefix.shape[1]], 1)
        masks = self.mask.to(states.dtype).expand(len(images), count, -1)  # (B, N, W)
        x = scatter_patches(masks, visible, states)
        x = self.decoder.add_positions(x, grid)
        x = self.decoder.encoder(torch.cat([prefix, x], 1), grid)  # (B, T, W)
        x = x[:, -count:]  # (B, N, W)
        return self.predict(gather_patches(x, hidden)).float(), hidden

    def choose(self, keys: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """(B,) keys -> indices of the visible patches, (B, N - M), and of the hidden ones, (B, M),
        of N = `count`; at least one of each."""
        visible = round((1 - self.objective.rate) * count)
        visible = min(max(visible, 1), count - 1)
        order = uniforms(keys, count, HIDDEN).argsort(dim=1, stable=True)
        return order[:, :visible], order[:, visible:]

    def pictures(self, images: Tensor, keys: Tensor) -> dict[str, Tensor]:
        """(B, 3, H, W) normalised -> uint8 in that shape: the image, the image with only the visible patches,
        and the image with the predicted patches."""
        grid = self.model.grid(images)
        image = self.preprocessing.levels(images)

        # The image with predictions of the hidden patches. The prediction of a normalised patch lacks its mean
        # and contrast, so these are taken from the original
        predicted, hidden = self.predictions(images, keys)
        pixels = patchify(images, self.size)
        if self.objective.normalised:
            original = gather_patches(pixels, hidden)
            predicted = predicted * spread(original) + mean(original)
        drawn = unpatchify(scatter_patches(pixels, hidden, predicted), grid, self.size)

        # The image with the hidden patches in grey
        levels = patchify(image, self.size)
        grey = torch.full_like(gather_patches(levels, hidden), 128)
        seen = unpatchify(scatter_patches(levels, hidden, grey), grid, self.size)
        return {"image": image, "seen": seen, "predicted": self.preprocessing.levels(drawn)}


def mean(patches: Tensor) -> Tensor:
    """The mean of a patch's values: (B, M, P·P·C) -> (B, M, 1)."""
    return patches.mean(-1, keepdim=True)


def spread(patches: Tensor) -> Tensor:
    """The standard deviation of a patch's values, never 0: (B, M, P·P·C) -> (B, M, 1)."""
    return (patches.var(-1, keepdim=True) + 1e-6).sqrt()
