"""Masked patch prediction (Section 4.6, App. B.1.2): corrupt half of an image's patch embeddings,
predict their colours.

The paper leaves open, and here it is so: exactly that share of every image is corrupted, and each
patch's fate is drawn alone. The embeddings are corrupted before positions are added, so a corrupted
patch still knows where it is. "Another patch" is one of the same image. A channel's three bits are
floor(8 m) of its mean m from 0 to 1, 7 for m = 1. A class token, where the model has one, takes
part in attention and has no loss of its own; it learns its part in fine-tuning.

Legend: B batch, C channels, N patches, M corrupted ones, D width, T tokens, (h, w) grid, P pixels
along a patch's side.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.data import Preprocessing, Target, uniforms
from vitkit.evaluate import Evaluator
from vitkit.objectives.guesses import Reconstruction, cross_entropies, guesses
from vitkit.objectives.objective import Learner
from vitkit.objectives.patches import (
    colour_levels,
    gather_patches,
    mean_colours,
    patchify,
    scatter_patches,
    unpatchify,
    with_patches,
)
from vitkit.weights.classifier import Activation

WHICH, FATE, OTHER = range(3)  # what is drawn of an example's key
BINS = 8  # of a channel: three bits
SMALL = 4  # parts along a downsized patch's side


@dataclass(frozen=True)
class MaskedPatches:
    """Predict what was in corrupted patches, each from its own representation (App. B.1.2)."""

    target: Literal["colour", "colours", "pixels"] = "colour"
    """The patch's mean colour in 3 bits a channel, 512 classes; those of its 4 x 4 downsized
    version, 16 at once; or all of its pixels, by squared error. The paper's best is the first, its
    least good the last."""
    rate: float = 0.5
    """Share of an image's patches that are corrupted; BERT's 0.15 was slightly worse."""
    masked: float = 0.8
    """Share of those that become a learned mask embedding."""
    swapped: float = 0.1
    """Share that become the embedding of another patch; the rest stay what they are, and are
    predicted all the same."""

    def __post_init__(self):
        if self.target not in ("colour", "colours", "pixels"):
            raise ValueError(f"target is {self.target!r}; it is one of colour, colours, pixels")
        if not 0 < self.rate <= 1:
            raise ValueError(
                f"rate is {self.rate}; it is a share of the patches above 0, at most 1"
            )
        if min(self.masked, self.swapped) < 0 or self.masked + self.swapped > 1:
            raise ValueError(
                f"masked is {self.masked} and swapped {self.swapped}; they are shares, together at "
                "most 1"
            )

    def head(self, target: Target, classes: int) -> int:
        """None: it looks at the images alone."""
        return 0

    def activation(self) -> Activation:
        """What a head that the model gets later is usually trained for."""
        return "softmax"

    def evaluators(self, target: Target) -> tuple[Evaluator, ...]:
        """Loss and accuracy on hidden patches, beside the baseline of always giving the same
        answer."""
        return (Reconstruction(),)

    def learner(self, model: nn.Module, preprocessing: Preprocessing) -> "MaskedPatchesLearner":
        """The model with a mask embedding and a linear layer that predicts. Raises ValueError where
        it has no patches."""
        return MaskedPatchesLearner(model, self, preprocessing)


class Corruption(NamedTuple):
    """What happens to the patches of a batch."""

    which: Tensor
    """int64 (B, M): the corrupted patches."""
    masked: Tensor
    """bool (B, M): which of them are hidden."""
    swapped: Tensor
    """bool (B, M): which of them become another patch."""
    other: Tensor
    """int64 (B, M): which one that is."""

    def apply(self, x: Tensor, mask: Tensor) -> Tensor:
        """(B, N, D) patches in any form, (D,) -> (B, N, D), corrupted; what is hidden becomes
        `mask`."""
        own = gather_patches(x, self.which)
        others = gather_patches(x, self.other)
        values = torch.where(self.swapped[..., None], others, own)
        values = torch.where(self.masked[..., None], mask.to(x.dtype), values)
        return scatter_patches(x, self.which, values)


class MaskedPatchesLearner(Learner):
    """What such a run trains: the model, the mask embedding, and a linear layer that predicts."""

    def __init__(self, model: nn.Module, objective: MaskedPatches, preprocessing: Preprocessing):
        super().__init__()
        self.model = with_patches(model)
        self.objective = objective
        self.preprocessing = preprocessing
        self.side = model.config.stride
        self.channels = model.config.channels
        if objective.target == "colours" and self.side % SMALL:
            raise ValueError(
                f"a patch of {self.side} pixels has no {SMALL} x {SMALL} parts; choose a multiple "
                f"of {SMALL}"
            )
        classes = BINS**self.channels
        outputs = {
            "colour": classes,
            "colours": SMALL**2 * classes,
            "pixels": self.channels * self.side**2,
        }
        self.mask = nn.Parameter(torch.zeros(model.config.width))
        self.predict = nn.Linear(model.config.width, outputs[objective.target])
        nn.init.zeros_(self.predict.weight)  # as every new head: all colours alike
        nn.init.zeros_(self.predict.bias)

    @property
    def parts(self) -> int:
        """Parts along a patch's side whose colours are predicted."""
        return SMALL if self.objective.target == "colours" else 1

    def forward(self, images: Tensor, targets: Tensor, keys: Tensor) -> Tensor:
        """Mean loss over the corrupted patches: images (B, C, H, W) normalised, targets unused,
        keys (B,)."""
        predicted, original = self.predictions_and_targets(images, keys)
        return self.losses(predicted, original).mean()

    def predictions_and_targets(self, images: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """(B, C, H, W) -> what is predicted of the corrupted patches, (B, M, outputs), and what
        there was to predict."""
        predicted, corruption = self.predictions(images, keys)
        return predicted, gather_patches(self.targets(images), corruption.which)

    def predictions(self, images: Tensor, keys: Tensor) -> tuple[Tensor, Corruption]:
        """(B, C, H, W) -> (B, M, outputs) of each corrupted patch's own representation, and what
        was done to it."""
        grid = self.model.grid(images)
        patches = self.model.patch_embed(images)  # (B, N, D)
        corruption = self.corruption(keys, patches.shape[1])
        x = corruption.apply(patches, self.mask)
        x = self.model.encoder(self.model.add_positions(x, grid), grid)  # (B, T, D)
        x = x[:, -patches.shape[1] :]  # without the class token
        return self.predict(gather_patches(x, corruption.which)).float(), corruption

    def corruption(self, keys: Tensor, patches: int) -> Corruption:
        """(B,) keys -> what happens to N patches. Of every image as many are corrupted; what
        becomes of each is drawn."""
        shares = self.objective
        count = max(1, round(shares.rate * patches))
        which = uniforms(keys, patches, WHICH).argsort(dim=1, stable=True)[:, :count]
        fate = uniforms(keys, count, FATE)
        masked = fate < shares.masked
        swapped = (fate >= shares.masked) & (fate < shares.masked + shares.swapped)
        others = (uniforms(keys, count, OTHER) * (patches - 1)).long().clamp(max=patches - 2)
        other = (which + 1 + others) % patches  # any but itself
        return Corruption(which, masked, swapped, other)

    def targets(self, images: Tensor) -> Tensor:
        """(B, C, H, W) -> what there is to predict: (B, N) colours, (B, N, 16) of them, or (B, N,
        P·P·C) normalised pixels."""
        if self.objective.target == "pixels":
            return patchify(images, self.side)
        levels = self.preprocessing.levels(images)
        colours = mean_colours(levels, self.side // self.parts, BINS)
        return patchify(colours[:, None], self.parts).squeeze(-1)

    def losses(self, predicted: Tensor, targets: Tensor) -> Tensor:
        """(B, M, outputs), and targets of M patches -> cross-entropies or squared errors, in the
        targets' shape."""
        if self.objective.target == "pixels":
            return (predicted - targets) ** 2
        return cross_entropies(predicted, targets)

    def pictures(self, images: Tensor, keys: Tensor) -> dict[str, Tensor]:
        """(B, 3, H, W) normalised -> uint8 in that shape: the image, what the model gets to see,
        what it predicts of the corrupted patches, and what they are."""
        predicted, corruption = self.predictions(images, keys)
        targets = gather_patches(self.targets(images), corruption.which)
        if self.objective.target != "pixels":
            predicted = guesses(predicted, targets)

        pixels = patchify(self.preprocessing.levels(images), self.side)
        rows = {
            "image": pixels,
            "seen": corruption.apply(pixels, torch.tensor(128)),
            "predicted": scatter_patches(pixels, corruption.which, self.paint(predicted)),
            "target": scatter_patches(pixels, corruption.which, self.paint(targets)),
        }
        grid = self.model.grid(images)
        return {name: unpatchify(x, grid, self.side) for name, x in rows.items()}

    def paint(self, values: Tensor) -> Tensor:
        """Targets of M patches, or predictions in their shape -> uint8 (B, M, P·P·C) pixels."""
        if self.objective.target == "pixels":
            alone = unpatchify(values.flatten(0, 1)[:, None], (1, 1), self.side)  # (B M, C, P, P)
            images = self.preprocessing.levels(alone)
        else:
            squares = values.reshape(-1, self.parts, self.parts)
            colours = colour_levels(squares, self.channels, BINS).byte().permute(0, 3, 1, 2)
            images = F.interpolate(colours, scale_factor=self.side // self.parts)
        return patchify(images, self.side).view(*values.shape[:2], -1)
