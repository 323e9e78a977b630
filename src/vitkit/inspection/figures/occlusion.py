"""Test a map by occlusion: covering patches in the order of the map should reduce the class's probability
sooner than covering them at random, and uncovering them should raise it sooner (Petsiuk et al. 2018:
deletion and insertion).

Legend: B images, K classes, S steps, R random orders, N patches, (h, w) the grid of a map.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vitkit.inspection.figures.passes import class_numbers, small_batches
from vitkit.inspection.plots import LIGHT, Theme, panels, themed
from vitkit.system.errors import BadSettings
from vitkit.weights import Classifier, check_answers

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False)
class Occlusion:
    """The model's output while patches of the images are covered, or uncovered."""

    shares: Tensor
    """float64 (S + 1,), from 0 to 1: share of the patches that are covered, or uncovered."""
    deletion: Tensor
    """float64 (B, S + 1): the class's probability (or output, if the classifier has no activation) with
    the highest patches of the map covered."""
    insertion: Tensor
    """float64 (B, S + 1): the class's probability with only the highest patches uncovered."""
    random_deletion: Tensor
    """float64 (B, S + 1): `deletion`, averaged over R random orders of the patches."""
    random_insertion: Tensor
    """float64 (B, S + 1): `insertion`, averaged over R random orders of the patches."""
    classes: Tensor
    """int64 (B,): class of each image."""

    @staticmethod
    def area(curve: Tensor) -> Tensor:
        """The area under curves by the trapezoidal rule: (B, S + 1) -> (B,). A good map has a small area for
        deletion and a large one for insertion."""
        return torch.trapezoid(curve, dx=1 / (curve.shape[1] - 1), dim=1)

    @property
    def gain(self) -> Tensor:
        """float64 (B,): difference of areas between the map's order and random ones, averaged over deletion
        and insertion. Positive if the map contains information on what the model needs."""
        deletion = self.area(self.random_deletion) - self.area(self.deletion)
        insertion = self.area(self.insertion) - self.area(self.random_insertion)
        return (deletion + insertion) / 2


def occlusion_curves(
    classifier: Classifier,
    images: Tensor,
    maps: Tensor,
    target: int | Tensor | None = None,
    steps: int = 14,
    orders: int = 2,
) -> Occlusion:
    """Cover the patches of images step by step, in the order of maps, and at random.

    images: prepared, uint8 (B, 3, H, W).
    maps: (B, h, w), any numbers, used in descending order. H and W are multiples of h and w; `over_image`
        converts maps of overlapping patches.
    target: the class, or one for each image (B,); None is the most likely class of the whole image.
    steps: number of times that patches are covered, at most h·w.
    orders: number of random orders, equal in every call.

    Covered patches have the mean colour of the image. B · (steps + 1) · 2 · (1 + orders) images are
    computed.

    Raises VitkitError for maps that do not fit the images, for invalid numbers of steps or orders, for a
    class that does not exist, and for a model without a head.
    """
    _check(classifier, images, maps, steps, orders)
    # The class of each image, int64 (B,) on the CPU
    if target is None:
        batches = small_batches(classifier, images)
        classes = torch.cat([classifier.logits(batch).argmax(-1).cpu() for batch in batches])
    else:
        classes = class_numbers(target, len(images), classifier.model.config.classes)
    shares = torch.arange(steps + 1, dtype=torch.float64) / steps
    by_map = []
    at_random = []
    for i, image in enumerate(images):
        ranks = _ranks(maps[i])
        by_map.append(_curves(classifier, image, ranks, shares, classes[i]))
        generator = torch.Generator().manual_seed(i)
        several = []
        for _ in range(orders):
            ranks = _ranks(torch.rand(maps.shape[1:], generator=generator))
            several.append(_curves(classifier, image, ranks, shares, classes[i]))
        at_random.append(torch.stack(several).mean(0))
    deletion, insertion = torch.stack(by_map, 1)  # (B, S + 1) each
    random_deletion, random_insertion = torch.stack(at_random, 1)
    return Occlusion(shares, deletion, insertion, random_deletion, random_insertion, classes)


def _ranks(values: Tensor) -> Tensor:
    """The rank of each patch, 0 for the highest: (h, w) -> (h, w). Equal patches keep their order in the
    image."""
    order = values.flatten().cpu().argsort(descending=True, stable=True)
    ranks = torch.empty_like(order)
    ranks[order] = torch.arange(len(order))
    return ranks.view(values.shape)


def _curves(
    classifier: Classifier, image: Tensor, ranks: Tensor, shares: Tensor, target: Tensor
) -> Tensor:
    """The class's probability for deletion and insertion: float64 (2, S + 1)."""
    counts = (shares * ranks.numel()).round()  # number of patches in each step
    first = ranks < counts[:, None, None]  # (S + 1, h, w)
    down = image.shape[1] // ranks.shape[0]
    across = image.shape[2] // ranks.shape[1]
    first = first.repeat_interleave(down, 1).repeat_interleave(across, 2)[:, None]
    first = first.to(image.device)
    mean = image.float().mean((1, 2))[:, None, None]  # (C, 1, 1)
    if image.dtype == torch.uint8:
        mean = mean.round().byte()
    covered = torch.cat([torch.where(first, mean, image), torch.where(first, image, mean)])
    values = []
    for batch in small_batches(classifier, covered):
        probabilities = classifier.probabilities(classifier.logits(batch))
        values.append(probabilities[:, target].double().cpu())
    return torch.cat(values).view(2, -1)


def _check(classifier: Classifier, images: Tensor, maps: Tensor, steps: int, orders: int) -> None:
    """Raise VitkitError for invalid arguments."""
    config = classifier.model.config
    check_answers(classifier, "covering parts of an image changes no answer")
    if not config.pools:
        raise BadSettings(
            "the model has no head with an output for an image, so covering parts of one changes no "
            "answer"
        )
    fits = maps.ndim == 3 and len(maps) == len(images)
    if not fits or images.shape[2] % maps.shape[1] or images.shape[3] % maps.shape[2]:
        raise BadSettings(
            f"the maps are of shape {tuple(maps.shape)} for images of shape {tuple(images.shape)}; "
            "there is one (h, w) for each image, whose sides are multiples of h and w"
        )
    patches = maps.shape[1] * maps.shape[2]
    if not 1 <= steps <= patches or orders < 1:
        raise BadSettings(
            f"{steps} steps and {orders} random orders; a map of {patches} patches has 1 to "
            f"{patches} steps, and at least one order is needed to compare with"
        )


def draw_occlusion(occlusion: Occlusion, theme: Theme = LIGHT, title: str = "the map") -> "Figure":
    """Draw the class's probability while patches are covered, and uncovered, in the order of a map and at
    random: the mean over images, with its area. title: name of the map."""
    figure, cells = panels(3.7, 3.7, height=3.2)
    ways = {
        "covered, the highest first": (occlusion.deletion, occlusion.random_deletion),
        "shown, the highest first": (occlusion.insertion, occlusion.random_insertion),
    }
    for axes, (way, curves) in zip(cells, ways.items(), strict=True):
        colours = (theme.first, theme.faint)
        for name, curve, colour in zip(("map", "random"), curves, colours, strict=True):
            area = float(occlusion.area(curve).mean())
            style = "o-"
            if name == "random":
                style = "--"
            axes.plot(
                100 * occlusion.shares, curve.mean(0), style, markersize=4, color=colour,
                label=f"{name}, area {area:.2f}",
            )  # fmt: skip
        axes.set(xlabel=f"patches {way} (%)", ylabel="the class's probability", ylim=(0, None))
        axes.spines[["top", "right"]].set_visible(False)
    cells[0].legend(fontsize=8, loc="upper right")  # away from the curves
    cells[1].legend(fontsize=8, loc="lower right")
    count = len(occlusion.classes)
    gain = float(occlusion.gain.mean())
    figure.suptitle(
        f"Occlusion by {title}, {count:,} images: {gain:+.2f} against random",
        fontsize=11,
    )
    return themed(figure, theme)
