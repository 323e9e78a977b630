"""What a server says of an image whose every pixel is classified: its mask, the share of each class, and regions.

Legend: K classes, h w pixels of an image.
"""

import base64
from typing import Any

import numpy as np

from vitkit.data import regions
from vitkit.prediction import palette
from vitkit.prediction.segmentation.palette import backgrounds, mask_png
from vitkit.runtimes import Runtime

MOST_REGIONS = 10_000  # of an image; more are counted, but not listed


def values_of(
    name: str, mask: np.ndarray, labels: tuple[str, ...], smallest: int
) -> dict[str, Any]:
    """The answer for an image as JSON values, with the fields of `description.SegmentedImage`: masks of many large
    images would not fit in memory, and as PNG they do.

    Args:
        name: The name of the image.
        mask: The number of every pixel's class, uint8 (h, w).
        labels: The names of the K classes.
        smallest: Pixels of the smallest region that is listed.
    """
    height, width = mask.shape
    counts = np.bincount(mask.reshape(-1), minlength=len(labels))
    colours = colours_of(labels)
    classes = []
    for number in np.argsort(-counts, kind="stable").tolist():
        if counts[number]:
            share = round(float(counts[number]) / mask.size, 6)
            colour = colours[number]
            classes.append(
                {"number": number, "label": labels[number], "colour": colour, "share": share}
            )
    listed = []
    count = 0
    for region in regions(mask, len(labels), smallest, backgrounds(labels)):
        label = labels[region.number]
        count += 1
        if count <= MOST_REGIONS:
            listed.append({"label": label, "box": list(region.box), "area": region.area})
    return {
        "name": name,
        "width": width,
        "height": height,
        "classes": classes,
        "region_count": count,
        "regions": listed,
        "mask": base64.b64encode(mask_png(mask, labels)).decode(),
    }


def colours_of(labels: tuple[str, ...]) -> list[str]:
    """The colour of each class in a mask's palette, such as "#800000"."""
    return [
        f"#{red:02x}{green:02x}{blue:02x}" for red, green, blue in palette(labels)[: len(labels)]
    ]


def classifies_pixels(runtime: Runtime) -> bool:
    """Whether a runtime gives logits for every pixel. Does not import PyTorch."""
    exported = getattr(runtime, "exported", None)
    if exported is not None:
        return bool(exported.segments)
    model = getattr(getattr(runtime, "classifier", None), "model", None)
    return bool(getattr(getattr(model, "config", None), "segments", False))


def classes_of_pixels(runtime: Runtime, prepared: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """The class of every pixel of an image of this (height, width), uint8 (h, w), from the prepared image."""
    # PyTorch interpolates, and is imported here alone
    from vitkit.runtimes import likeliest

    [maps] = runtime.logits(prepared[None])
    if not np.isfinite(maps).all():
        raise RuntimeError("the model's logits are not finite; its weights may be damaged")
    return likeliest(maps, size)
