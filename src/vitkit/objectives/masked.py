"""Masked patch prediction (Section 4.6, App. B.1.2): corrupt half of an image's patch embeddings
and predict their mean colours.

The paper leaves some things open; they are so here:

- In every image exactly half of the patches are corrupted. What becomes of each of them, the mask,
  another patch or nothing, is drawn for it alone. Another patch is one of the same image.
- Embeddings are corrupted before positions are added: a corrupted patch still knows where it is.
- A channel's three bits are floor(8 m) of its mean m from 0 to 1, and 7 for m = 1.
- A class token takes part in attention and has no loss of its own; fine-tuning trains it.

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

# What is drawn from an example's key: the corrupted patches, how each is corrupted, the other patch
WHICH, FATE, OTHER = range(3)
BINS = 8  # of a channel's mean: three bits
COLOURS = 3  # channels, at most, whose mixes are classes
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
        """Loss and accuracy on corrupted patches, beside those of always giving the same answer."""
        return (Reconstruction(),)

    def learner(self, model: Model, preprocessing: Preprocessing) -> "MaskedPatchesLearner":
        """The model with a mask embedding and a linear layer that predicts. Raises VitkitError for a
        model without patches."""
        return MaskedPatchesLearner(model, self, preprocessing)


class Corruption(NamedTuple):
    """The corruption of the patches of a batch."""

    which: Tensor
    """int64 (B, M): indices of the corrupted patches."""
    masked: Tensor
    """bool (B, M): whether each becomes the mask."""
    swapped: Tensor
    """bool (B, M): whether each becomes another patch."""
    other: Tensor
    """int64 (B, M): index of that other patch."""

    def apply(self, x: Tensor, mask: Tensor) -> Tensor:
        """(B, N, D) patches, as embeddings or as pixels, (D,) mask -> (B, N, D), corrupted."""
        own = gather_patches(x, self.which)
        others = gather_patches(x, self.other)
        values = torch.where(self.swapped[..., None], others, own)
        values = torch.where(self.masked[..., None], mask.to(x.dtype), values)
        return scatter_patches(x, self.which, values)


class MaskedPatchesLearner(PatchLearner):
    """The learner of masked patch prediction: the model, the mask embedding, and a linear layer
    that predicts."""

    objective: MaskedPatches
    travels = ("mask", "predict")

    def __init__(self, model: Model, objective: MaskedPatches, preprocessing: Preprocessing):
        super().__init__(model, objective, preprocessing)
        self.channels = self.model.config.channels
        if objective.target != "pixels" and self.channels > COLOURS:
            raise Unsupported(
                f"the target is {objective.target!r}, one class for each mix of channels, and of "
                f"{self.channels} channels there are too many; choose `objective.target='pixels'`"
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
        """Parts along a patch's side, the colour of each of which is predicted."""
        height, width = self.size
        self.part = (height // self.squares, width // self.squares)
        """Height and width of such a part in pixels."""
        width = self.model.config.width
        self.mask = nn.Parameter(torch.zeros(width))
        self.predict = Dense(width, outputs[objective.target])
        nn.init.zeros_(self.predict.weight)  # zero, as every new head
        nn.init.zeros_(self.predict.bias)

    def predictions_and_targets(self, images: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """(B, C, H, W), (B,) -> predictions of the corrupted patches, (B, M, outputs), and their
        targets, (B, M, ...)."""
        predicted, corruption = self.predictions(images, keys)
        return predicted, gather_patches(self.targets(images), corruption.which)

    def predictions(self, images: Tensor, keys: Tensor) -> tuple[Tensor, Corruption]:
        """(B, C, H, W), (B,) -> predictions (B, M, outputs), each from a corrupted patch's own
        representation; and how the patches were corrupted."""
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
        """(B,) keys -> what happens to the patches of each image, of which there are N."""
        settings = self.objective

        # Which ones: the first M of a random order
        count = max(1, round(settings.rate * patches))
        which = uniforms(keys, patches, WHICH).argsort(dim=1, stable=True)[:, :count]

        # How: 80 % are masked, 10 % swapped, 10 % stay, by a random number each
        fate = uniforms(keys, count, FATE)
        masked = fate < settings.masked
        swapped = (fate >= settings.masked) & (fate < settings.masked + settings.swapped)

        # The other patch is 1 to N - 1 places further on, so never the patch itself
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
        """(B, 3, H, W) normalised -> uint8 in that shape: the image, what the model sees, and the
        image with its predictions, and with the targets, of the corrupted patches."""
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
        """Targets, or guesses in their shape, (B, M, ...) -> pixels, uint8 (B, M, P·P·C)."""
        if self.objective.target == "pixels":
            alone = unpatchify(values.flatten(0, 1)[:, None], (1, 1), self.size)  # (B M, C, P, P)
            images = self.preprocessing.levels(alone)
        else:
            classes = values.reshape(-1, self.squares, self.squares)
            colours = colour_levels(classes, self.channels, BINS).byte()
            colours = colours.permute(0, 3, 1, 2)  # (B M, C, squares, squares)
            images = F.interpolate(colours, scale_factor=self.part)
        return patchify(images, self.size).view(*values.shape[:2], -1)
