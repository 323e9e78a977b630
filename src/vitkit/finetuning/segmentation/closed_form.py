"""A head in closed form that classifies patches: ridge regression from the patches' features to the share of
each class in a patch, with the predictions of fits that have not seen the image.

The sums that ridge regression needs, XᵀX and XᵀY, are kept for each fold of images; those without a fold are a
difference. The features of the last n blocks are the last n D columns of those of all blocks, so one pass
over the images serves every number of blocks and every l2.

Legend: N patches of an image, D width, M features (blocks · D, and a one), K classes, F folds, (h, w) the grid
of patches.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitkit.data import IGNORED

FOLDS = 5
FINER = (
    4  # predictions are compared with masks at so many times as many rows and columns as patches
)
L2 = (1e-4, 1e-2, 1e-1)  # as multiples of the mean of XᵀX's diagonal
MOST_FEATURES = 3_072  # M: XᵀX of all folds and their decompositions take seconds
MOST_PATCHES = (
    1 << 16
)  # of all images, that a fit takes; of more, each image gives as many, drawn at random
MOST_KEPT = (
    1 << 28
)  # features, and shares that are predicted by them, that are kept, of 2 bytes each
SAMPLE = 25_000  # pixels that the map to logits is fitted to
STEPS = 60  # of L-BFGS, at most
DECAY = 1e-4  # of the map's weights
RARE = (0.0, 0.25, 0.5)  # powers of one over a class's frequency by which its pixels count


class Example(NamedTuple):
    """What one image adds to a fit."""

    features: Tensor
    """float16 (N, M - 1), those of the last block last."""
    grid: tuple[int, int]
    mask: np.ndarray
    """The classes at FINER times the grid: uint8 (FINER h, FINER w), IGNORED where pixels do not count."""


class Reading(NamedTuple):
    """What a head reads, and how strongly its weights are kept small."""

    blocks: int
    l2: float


def shares_of(mask: np.ndarray, grid: tuple[int, int], classes: int) -> tuple[Tensor, Tensor]:
    """The share of each class among the pixels of each patch that count, float32 (N, K), and the share of
    pixels that count, (N,): the patches of a mask whose size is a multiple of the grid, uint8 (H, W)."""
    height, width = mask.shape[0] // grid[0], mask.shape[1] // grid[1]
    cells = mask.reshape(grid[0], height, grid[1], width).swapaxes(1, 2)
    parts = cells.reshape(grid[0] * grid[1], height * width).astype(np.int64)
    known = parts != IGNORED
    number = np.arange(len(parts))[:, None]
    codes = (number * classes + parts)[known]
    counts = np.bincount(codes, minlength=len(parts) * classes).reshape(len(parts), classes)
    count = known.sum(1)
    shares = counts / np.maximum(count, 1)[:, None]
    return torch.from_numpy(shares).float(), torch.from_numpy(count / parts.shape[1]).float()


@dataclass
class Sums:
    """The sums of ridge regression, of each fold of images."""

    features: int
    """M - 1."""
    classes: int
    folds: int
    xx: Tensor = field(init=False)
    """XᵀX: float64 (F, M, M), the last row and column those of the one."""
    xy: Tensor = field(init=False)
    """XᵀY: float64 (F, M, K)."""

    def __post_init__(self):
        width = self.features + 1
        self.xx = torch.zeros(self.folds, width, width, dtype=torch.float64)
        self.xy = torch.zeros(self.folds, width, self.classes, dtype=torch.float64)

    def add(self, fold: int, features: Tensor, shares: Tensor, known: Tensor) -> None:
        """Add an image's features, (N, M - 1), and shares, (N, K), weighted by `known`, (N,), to a fold."""
        x = with_one(features)
        weighted = x * known[:, None]
        self.xx[fold] += (weighted.mT @ x).double()
        self.xy[fold] += (weighted.mT @ shares).double()

    def without(self, fold: int | None, columns: slice) -> tuple[Tensor, Tensor]:
        """XᵀX and XᵀY of these columns, of the images of all folds but one; None leaves out none."""
        xx = self.xx[:, columns, columns].sum(0)
        xy = self.xy[:, columns].sum(0)
        if fold is not None:
            xx -= self.xx[fold, columns, columns]
            xy -= self.xy[fold, columns]
        return xx, xy


def solved(xx: Tensor, xy: Tensor, l2: float) -> Tensor:
    """The weights of a head, float32 (M, K), the last row the bias, from XᵀX and XᵀY."""
    own = xx.clone()
    own.diagonal()[:-1] += l2 * float(xx.diagonal()[:-1].mean())
    own[-1, -1] += 1e-9  # the bias is free
    return torch.cholesky_solve(xy, torch.linalg.cholesky(own)).float()


def columns_of(blocks: int, width: int) -> slice:
    """The columns of the features of the last blocks, and of the one."""
    return slice(-1 - blocks * width, None)


def with_one(features: Tensor) -> Tensor:
    """Features with a column of ones behind them: (N, M - 1) -> float32 (N, M)."""
    return F.pad(features.float(), (0, 1), value=1.0)


def predicted(example: Example, weights: Tensor) -> Tensor:
    """The shares that a head predicts, between patches interpolated: float32 (K, FINER h, FINER w)."""
    features = example.features[:, -(len(weights) - 1) :]
    maps = (with_one(features) @ weights).mT.unflatten(1, example.grid)  # (K, h, w)
    return F.interpolate(maps[None], scale_factor=float(FINER), mode="bilinear")[0]


def blocks_to_try(width: int, depth: int) -> list[int]:
    """The numbers of blocks that are compared, of a model with this D and L."""
    most = max(1, min(depth, MOST_FEATURES // width))
    return sorted({max(1, most // 3), most})


def folds_of(count: int, groups: np.ndarray | None, most: int = FOLDS) -> np.ndarray:
    """The fold of each image, one of at most `most`, int64 (count,), drawn at random but always alike; images of
    one group are in one fold."""
    if groups is None:
        groups = np.arange(count)
    _, numbers = np.unique(groups, return_inverse=True)
    random = np.random.Generator(np.random.PCG64(0))
    order = random.permutation(numbers.max() + 1)
    return order[numbers] % min(most, len(order))


def sample(count: int, most: int, seed: int) -> Tensor:
    """The numbers of at most `most` of `count` patches, drawn at random by a seed, in order: int64."""
    random = np.random.Generator(np.random.PCG64(seed))
    return torch.from_numpy(np.sort(random.permutation(count)[:most]))


class Tried(NamedTuple):
    """A head's settings, and how good its cross-validated predictions are."""

    reading: Reading
    counts: np.ndarray
    """For each image, its pixels in the mask, in the prediction and in both: int64 (images, 3, K)."""
    maps: list[Tensor]
    """The shares that are predicted for each image: float16 (K, FINER h, FINER w)."""
    rare: float = 0.0
    """The power of RARE that the map to logits was fitted with."""

    @property
    def miou(self) -> float:
        """The mean IoU of the classes that there are, over the pixels of all images."""
        truth, predicted, right = self.counts.sum(0)
        either = truth + predicted - right
        return float((right / np.maximum(either, 1))[either > 0].mean())


def cross_validated(
    sums: Sums, examples: Sequence[Example], folds: np.ndarray, width: int, depth: int
) -> list[Tried]:
    """Every reading with its predictions for images that had no part in the fit; those of all but the best are
    dropped.

    folds: the fold of each example, int64 (examples,).
    """
    readings = [Reading(blocks, l2) for blocks in blocks_to_try(width, depth) for l2 in L2]
    tried: list[Tried] = []
    for blocks in blocks_to_try(width, depth):
        weights: dict[tuple[int, float], Tensor] = {}
        for fold in np.unique(folds).tolist():
            xx, xy = sums.without(fold, columns_of(blocks, width))
            weights |= {(fold, l2): solved(xx, xy, l2) for l2 in L2}
        for reading in readings:
            if reading.blocks != blocks:
                continue
            maps = [
                predicted(example, weights[fold, reading.l2]).half()
                for example, fold in zip(examples, folds.tolist(), strict=True)
            ]
            own = Tried(reading, counts_of_maps(examples, maps, sums.classes), maps)
            if tried and own.miou <= max(each.miou for each in tried):
                own = own._replace(maps=[])
            else:
                tried = [each._replace(maps=[]) for each in tried]
            tried.append(own)
    return tried


def counts_of_maps(examples: Sequence[Example], maps: Iterable[Tensor], classes: int) -> np.ndarray:
    """The counts of the most likely classes: maps, (K, H, W) each -> int64 (examples, 3, K)."""
    counts = []
    for example, of_image in zip(examples, maps, strict=True):
        likeliest = of_image.argmax(0).to(torch.uint8).numpy()
        counts.append(counts_of(example.mask, likeliest, classes))
    return np.stack(counts)


def counts_of(mask: np.ndarray, classes: np.ndarray, count: int) -> np.ndarray:
    """Pixels of each class in a mask, in a prediction and in both, where the mask counts: int64 (3, K)."""
    counts = mask != IGNORED
    both = np.where(mask == classes, mask, IGNORED)
    columns = [mask[counts], classes[counts], both[counts]]
    return np.stack([np.bincount(each, minlength=IGNORED + 1)[:count] for each in columns])


class ToLogits(NamedTuple):
    """The affine map from predicted shares to logits."""

    weight: Tensor
    """float32 (K, K)."""
    bias: Tensor
    """float32 (K,)."""

    def maps(self, shares: Tensor) -> Tensor:
        """Shares, (K, H, W), -> logits, float32 (K, H, W)."""
        return torch.einsum("khw,kj->jhw", shares.float(), self.weight) + self.bias[:, None, None]


def calibrated(best: Tried, examples: Sequence[Example], classes: int) -> tuple[ToLogits, Tried]:
    """The map from shares to logits that makes the cross-validated predictions of the softmax most likely
    (multinomial logistic regression on a sample of their pixels), and these predictions.

    Ridge regression predicts the share of a rare class too low nearly everywhere, so that it is seldom the most
    likely one. The map corrects that. How much pixels of rare classes count is chosen by IoU.
    """
    random = np.random.Generator(np.random.PCG64(0))
    per_image = max(64, SAMPLE // len(examples))
    shares = []
    truths = []
    for example, maps in zip(examples, best.maps, strict=True):
        truth = example.mask.reshape(-1)
        chosen = random.permutation(np.flatnonzero(truth != IGNORED))[:per_image]
        shares.append(maps.flatten(1).mT[torch.from_numpy(chosen)].float())
        truths.append(torch.from_numpy(truth[chosen].astype(np.int64)))
    x = torch.cat(shares)
    y = torch.cat(truths)
    frequency = torch.bincount(y, minlength=classes).clamp(min=1) / len(y)
    found = []
    for rare in RARE:
        to_logits = logistic(x, y, frequency**-rare)
        logits = map(to_logits.maps, best.maps)
        counts = counts_of_maps(examples, logits, classes)
        found.append((to_logits, best._replace(counts=counts, rare=rare)))
    return max(found, key=lambda each: each[1].miou)


def logistic(x: Tensor, y: Tensor, class_weights: Tensor) -> ToLogits:
    """Multinomial logistic regression: x, float32 (n, K), to classes, int64 (n,), which count as
    `class_weights`, (K,), say.

    It begins at a multiple of the identity, which leaves the most likely class as it is.
    """
    x = x.double()
    classes = len(class_weights)
    weight = (5 * torch.eye(classes, dtype=torch.float64)).requires_grad_()
    bias = torch.zeros(classes, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([weight, bias], max_iter=STEPS, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimiser.zero_grad()
        misfit = F.cross_entropy(x @ weight + bias, y, weight=class_weights.double())
        value = misfit + DECAY * weight.square().mean()
        value.backward()
        return value

    optimiser.step(loss)
    return ToLogits(weight.detach().float(), bias.detach().float())
