"""Masked patch prediction (Section 4.6, App. B.1.2): corrupts half of an image's patch embeddings, and predicts
their mean colours.

The paper leaves some details open; this implementation chooses:

- In every image exactly half of the patches are corrupted. Whether each becomes the mask or another patch, or
  stays, is drawn independently. The other patch is one of the same image.
- Embeddings are corrupted before positions are added, so a corrupted patch keeps its position.
- A channel's three bits are floor(8 m) of its mean m from 0 to 1, and 7 for m = 1.
- A class token takes part in attention and has no loss of its own; its output is trained in fine-tuning.

Legend: B batch, C channels, N patches, M corrupted ones, D width, T tokens, (h, w) grid, P pixels
along a patch's side.
"""

from dataclasses import dataclass
from math import prod
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.data import Preprocessing, TargetKind, uniforms
from vitkit.evaluation.evaluator import Evaluator
from vitkit.models import Dense, Model
from vitkit.objectives.objective import Unlabelled
from vitkit.objectives.patches import (
    PatchLearner,
    Reconstruction,
    by_class,
    colour_levels,
    gather_patches,
    mean_colours,
    patchify,
    scatter_patches,
    unpatchify,
)
from vitkit.system.errors import BadSettings, Unsupported
from vitkit.system.values import check_settings

# Random streams of an example's key: the corrupted patches, how each is corrupted, and the other patch
WHICH, FATE, OTHER = range(3)
BINS = 8  # bins of a channel's mean: three bits
COLOURS = 3  # largest number of channels for targets that are colour classes
SMALL = 4  # squares along the side of a downsized patch


@dataclass(frozen=True)
class MaskedPatches(Unlabelled):
    """Predict the content of corrupted patches, each from its own representation (App. B.1.2)."""

    target: Literal["colour", "colours", "pixels"] = "colour"
    """Target of a patch. colour: its mean colour with 3 bits per channel, one of 512 classes.
    colours: the 16 colours of its 4 x 4 downsized version. pixels: all of its pixels, with a
    squared error. In the paper, colour is best and pixels is worst."""
    rate: float = 0.5
    """Share of an image's patches that are corrupted; BERT's 0.15 was slightly worse."""
    masked: float = 0.8
    """Share of the corrupted patches that become a learned mask embedding."""
    swapped: float = 0.1
    """Share of the corrupted patches that become the embedding of another patch. The others keep
    their embedding, and are predicted too."""

    def __post_init__(self):
        check_settings(self)
        if self.target not in ("colour", "colours", "pixels"):
            raise BadSettings(f"target is {self.target!r}; it is one of colour, colours, pixels")
        if not 0 < self.rate <= 1:
            raise BadSettings(
                f"rate is {self.rate}; it is a share of the patches above 0, at most 1"
            )
        if min(self.masked, self.swapped) < 0 or self.masked + self.swapped > 1:
            raise BadSettings(
                f"masked is {self.masked} and swapped {self.swapped}; they are shares, together at "
                "most 1"
            )

    def evaluators(self, target_kind: TargetKind) -> tuple[Evaluator, ...]:
        """Loss and accuracy on corrupted patches, with the loss of the best constant prediction."""
        return (Reconstruction(),)

    def learner(self, model: Model, preprocessing: Preprocessing) -> "MaskedPatchesLearner":
        """The model with a mask embedding and a linear prediction layer. Raises VitkitError for a model without
        patches."""
        return MaskedPatchesLearner(model, self, preprocessing)


class Corruption(NamedTuple):
    """The corruption of the patches of a batch."""

    which: Tensor
    """Indices of the corrupted patches, int64 (B, M)."""
    masked: Tensor
    """Whether each becomes the mask, bool (B, M)."""
    swapped: Tensor
    """Whether each becomes another patch, bool (B, M)."""
    other: Tensor
    """Index of that other patch, int64 (B, M)."""

    def apply(self, x: Tensor, mask: Tensor) -> Tensor:
        """Corrupt patches, given as embeddings or as pixels: (B, N, D), mask (D,) -> (B, N, D)."""
        own = gather_patches(x, self.which)
        others = gather_patches(x, self.other)
        values = torch.where(self.swapped[..., None], others, own)
        values = torch.where(self.masked[..., None], mask.to(x.dtype), values)
        return scatter_patches(x, self.which, values)


class MaskedPatchesLearner(PatchLearner):
    """The learner of masked patch prediction: the model, the mask embedding, and a linear prediction layer."""

    objective: MaskedPatches
    travels = ("mask", "predict")

    def __init__(self, model: Model, objective: MaskedPatches, preprocessing: Preprocessing):
        super().__init__(model, objective, preprocessing)
        self.channels = self.model.config.channels
        if objective.target != "pixels" and self.channels > COLOURS:
            raise Unsupported(
                f"the target is {objective.target!r}, whose number of classes is too large for "
                f"{self.channels} channels; choose `objective.target='pixels'`"
            )
        if objective.target == "colours" and any(side % SMALL for side in self.size):
            raise Unsupported(
                f"a patch of {self.size[0]} x {self.size[1]} pixels has no {SMALL} x {SMALL} "
                f"parts; choose multiples of {SMALL}"
            )
        classes = BINS**self.channels
        outputs = {
            "colour": classes,
            "colours": SMALL**2 * classes,
            "pixels": self.channels * prod(self.size),
        }
        self.squares = SMALL if objective.target == "colours" else 1
        """Number of parts along a patch's side; the colour of each part is predicted."""
        height, width = self.size
        self.part = (height // self.squares, width // self.squares)
        """Height and width of a part in pixels."""
        width = self.model.config.width
        self.mask = nn.Parameter(torch.zeros(width))
        self.predict = Dense(width, outputs[objective.target])
        nn.init.zeros_(self.predict.weight)  # zero, like every new head
        nn.init.zeros_(self.predict.bias)

    def predictions_and_targets(self, images: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """(B, C, H, W), (B,) -> predictions of the corrupted patches, (B, M, outputs), and their
        targets, (B, M, ...)."""
        predicted, corruption = self.predictions(images, keys)
        return predicted, gather_patches(self.targets(images), corruption.which)

    def predictions(self, images: Tensor, keys: Tensor) -> tuple[Tensor, Corruption]:
        """(B, C, H, W), (B,) -> predictions (B, M, outputs), each from a corrupted patch's own representation;
        and the corruption of the patches."""
        grid = self.model.grid(images)
        patches = self.model.patch_embed(images)  # (B, N, D)
        count = patches.shape[1]
        corruption = self.corruption(keys, count)
        x = corruption.apply(patches, self.mask)
        x = self.model.add_positions(x, grid)  # (B, T, D), with the class token
        x = self.model.encoder(x, grid)
        x = x[:, -count:]  # (B, N, D), without it
        return self.predict(gather_patches(x, corruption.which)).float(), corruption

    def corruption(self, keys: Tensor, patches: int) -> Corruption:
        """Draw the corruption of N = `patches` patches of each image, from keys (B,)."""
        settings = self.objective

        # The corrupted patches are the first M of a random order
        count = max(1, round(settings.rate * patches))
        which = uniforms(keys, patches, WHICH).argsort(dim=1, stable=True)[:, :count]

        # A random number for each decides: 80 % are masked, 10 % swapped, 10 % stay
        fate = uniforms(keys, count, FATE)
        masked = fate < settings.masked
        swapped = (fate >= settings.masked) & (fate < settings.masked + settings.swapped)

        # The other patch is 1 to N - 1 places ahead, so never the patch itself
        distance = (uniforms(keys, count, OTHER) * (patches - 1)).long().clamp(max=patches - 2)
        other = (which + 1 + distance) % patches
        return Corruption(which, masked, swapped, other)

    def targets(self, images: Tensor) -> Tensor:
        """(B, C, H, W) -> the targets of all patches: (B, N) colours, (B, N, 16) colours, or
        (B, N, P·P·C) normalised pixels."""
        if self.objective.target == "pixels":
            return patchify(images, self.size)
        levels = self.preprocessing.levels(images)
        colours = mean_colours(levels, self.part, BINS)  # of every part
        return patchify(colours[:, None], self.squares).squeeze(-1)  # by patches

    def pictures(self, images: Tensor, keys: Tensor) -> dict[str, Tensor]:
        """(B, 3, H, W) normalised -> uint8 in that shape: the image, the corrupted image, and the image with the
        predictions, and with the targets, of the corrupted patches."""
        predicted, corruption = self.predictions(images, keys)
        targets = gather_patches(self.targets(images), corruption.which)
        if self.objective.target != "pixels":
            predicted = by_class(predicted, targets).argmax(-1)

        pixels = patchify(self.preprocessing.levels(images), self.size)
        rows = {
            "image": pixels,
            "seen": corruption.apply(pixels, torch.tensor(128)),
            "predicted": scatter_patches(pixels, corruption.which, self.paint(predicted)),
            "target": scatter_patches(pixels, corruption.which, self.paint(targets)),
        }
        grid = self.model.grid(images)
        return {name: unpatchify(x, grid, self.size) for name, x in rows.items()}

    def paint(self, values: Tensor) -> Tensor:
        """Targets, or predictions in their shape, (B, M, ...) -> pixels, uint8 (B, M, P·P·C)."""
        if self.objective.target == "pixels":
            alone = unpatchify(values.flatten(0, 1)[:, None], (1, 1), self.size)  # (B M, C, P, P)
            images = self.preprocessing.levels(alone)
        else:
            classes = values.reshape(-1, self.squares, self.squares)
            colours = colour_levels(classes, self.channels, BINS).byte()
            colours = colours.permute(0, 3, 1, 2)  # (B M, C, squares, squares)
            images = F.interpolate(colours, scale_factor=self.part)
        return patchify(images, self.size).view(*values.shape[:2], -1)
