"""Masked autoencoder (MAE, He et al. 2021), beyond the paper: see a quarter of the patches, draw the others.

The encoder gets the visible patches only, so that it is about four times as fast; a small decoder, with fixed sine and
cosine positions, gets their states and a learned embedding in the place of every hidden patch.

Legend: B batch, C channels, N patches, M hidden ones, D width, W the decoder's, T tokens, P pixels along a patch's side.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vitkit.data import Preprocessing, Target, uniforms
from vitkit.evaluate import Evaluator
from vitkit.models import ViTConfig, create
from vitkit.objectives.guesses import Reconstruction
from vitkit.objectives.objective import Learner
from vitkit.objectives.patches import cut, joined, put, taken, with_patches
from vitkit.weights.classifier import Activation

HIDDEN = 0  # what is drawn of an example's key


@dataclass(frozen=True)
class MaskedAutoencoder:
    """Draw the hidden patches of an image, by squared error. The defaults are MAE's."""

    rate: float = 0.75
    """Share of an image's patches that are hidden."""
    width: int = 512
    """W, the decoder's."""
    depth: int = 8
    """The decoder's blocks."""
    heads: int = 16
    """Of the decoder; its MLPs are four times as wide as it is."""
    normalised: bool = True
    """Whether a patch's pixels are compared after subtracting their mean and dividing by their standard deviation."""

    def __post_init__(self):
        if not 0 < self.rate < 1:
            raise ValueError(
                f"rate is {self.rate}; it is a share of the patches above 0 and below 1"
            )

    def head(self, target: Target, classes: int) -> int:
        """None: it looks at the images alone."""
        return 0

    def activation(self) -> Activation:
        """What a head that the model gets later is usually trained for."""
        return "softmax"

    def evaluators(self, target: Target) -> tuple[Evaluator, ...]:
        """Loss on hidden patches, beside that of always drawing the same patch."""
        return (Reconstruction(),)

    def learner(self, model: nn.Module, preprocessing: Preprocessing) -> "MaskedAutoencoderLearner":
        """The model as encoder, with a decoder. Raises ValueError for a model that needs all of its patches."""
        return MaskedAutoencoderLearner(model, self, preprocessing)


class MaskedAutoencoderLearner(Learner):
    """What such a run trains: the model, and the decoder that is thrown away afterwards."""

    def __init__(
        self, model: nn.Module, objective: MaskedAutoencoder, preprocessing: Preprocessing
    ):
        super().__init__()
        self.model, self.objective, self.preprocessing = (
            with_patches(model),
            objective,
            preprocessing,
        )
        config, of = model.config, objective
        if config.injected != "stem" or config.mixer != "full":
            raise ValueError(
                f"{config.mixer} attention with {config.positions} positions needs every patch, and an autoencoder shows the "
                'encoder some: choose mixer "full" and positions that are added at the stem'
            )
        shape = ViTConfig(
            of.width,
            of.depth,
            4 * of.width,
            of.heads,
            config.stride,
            config.image,
            gelu=config.gelu,
            positions="sincos-moco",
            pool="none",
            classes=0,
        )
        self.enter = nn.Linear(config.width, of.width)
        self.mask = nn.Parameter(torch.empty(1, 1, of.width).normal_(std=0.02))
        self.decoder = create(shape)
        self.decoder.stem = nn.Identity()  # its patches are states
        self.predict = nn.Linear(of.width, config.channels * config.stride**2)
        for layer in (self.enter, self.predict):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, images: Tensor, targets: Tensor, keys: Tensor) -> Tensor:
        """Mean squared error of the hidden patches: images (B, C, H, W) normalised, targets unused, keys (B,)."""
        return self.losses(*self.asked(images, keys)).mean()

    def asked(self, images: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """(B, C, H, W) -> (B, M, P·P·C) predictions of the hidden patches, and what there was to predict."""
        predicted, hidden = self.predictions(images, keys)
        pixels = taken(cut(images, self.model.config.stride), hidden)
        return predicted, (pixels - mean(pixels)) / spread(
            pixels
        ) if self.objective.normalised else pixels

    def losses(self, predicted: Tensor, targets: Tensor) -> Tensor:
        """(B, M, P·P·C) twice -> squared errors."""
        return (predicted - targets) ** 2

    def predictions(self, images: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """(B, C, H, W) -> (B, M, P·P·C) of the hidden patches, and which they are, (B, M)."""
        grid = self.model.grid(images)
        count = grid[0] * grid[1]
        order = uniforms(keys, count, HIDDEN).argsort(dim=1, stable=True)
        visible, hidden = order.tensor_split(
            [min(max(round((1 - self.objective.rate) * count), 1), count - 1)], 1
        )
        tokens = self.model.add_positions(self.model.patch_embed(images), grid)  # (B, T, D)
        prefix, patches = tokens.tensor_split([tokens.shape[1] - count], 1)
        states = self.enter(
            self.model.encoder(torch.cat([prefix, taken(patches, visible)], 1), grid)
        )
        prefix, states = states.tensor_split([prefix.shape[1]], 1)
        x = put(
            self.mask.to(states.dtype).expand(len(images), count, -1), visible, states
        )  # (B, N, W)
        x = self.decoder.encoder(torch.cat([prefix, self.decoder.add_positions(x, grid)], 1), grid)[
            :, -count:
        ]
        return self.predict(taken(x, hidden)).float(), hidden

    def pictures(self, images: Tensor, keys: Tensor) -> dict[str, Tensor]:
        """(B, 3, H, W) normalised -> uint8 in that shape: the image, what the encoder sees, and the hidden patches drawn.

        A normalised prediction is drawn with the mean and the contrast of its own patch, which it was not asked for.
        """
        side, grid = self.model.config.stride, self.model.grid(images)
        predicted, hidden = self.predictions(images, keys)
        pixels = cut(images, side)
        if self.objective.normalised:
            own = taken(pixels, hidden)
            predicted = predicted * spread(own) + mean(own)
        shown = {"image": pixels, "predicted": put(pixels, hidden, predicted)}
        shown = {
            name: self.preprocessing.levels(joined(x, grid, side)) for name, x in shown.items()
        }
        levels = cut(shown["image"], side)
        seen = put(levels, hidden, torch.full_like(taken(levels, hidden), 128))
        return {
            "image": shown["image"],
            "seen": joined(seen, grid, side),
            "predicted": shown["predicted"],
        }


def mean(patches: Tensor) -> Tensor:
    """(B, M, P·P·C) -> (B, M, 1), over all of a patch's values."""
    return patches.mean(-1, keepdim=True)


def spread(patches: Tensor) -> Tensor:
    """(B, M, P·P·C) -> (B, M, 1), their standard deviation, never 0."""
    return (patches.var(-1, keepdim=True) + 1e-6).sqrt()
