"""How the paper fine-tunes on each data set (Table 4, App. B.1.1), and BiT's rule (Kolesnikov et
al. 2020), whose preprocessing it follows (Section 4.1): a random crop of a square, mirrored or not;
and for which of VTAB's tasks not."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from vitkit.data import Augmentation, Source, open_image, square_before_crop

SWEEP = (0.001, 0.003, 0.01, 0.03)  # the learning rates that Table 4 chooses from, for most tasks
SIDES = (128, 384)  # of the images of the presets, in pixels, if the model's patch divides them


@dataclass(frozen=True)
class TransferTask:
    """How a model is fine-tuned on one data set: a row of Table 4, with what the paper's text and
    the official code add."""

    steps: int
    """Training steps."""
    warmup: int
    """Steps of the warm-up: the official code's, not in the paper."""
    lr: float
    """Base learning rate if none is chosen: the official configurations'."""
    rates: tuple[float, ...] = SWEEP
    """The base learning rates that the paper chooses from."""
    hold_out: float = 0.1
    """Share of the training images that it chooses on, if there is no validation part."""
    batch: int = 512
    """Examples of a step."""
    side: int = 384
    """Height and width of images in pixels; 0 keeps the model's own image size."""
    staircase: bool = False
    """BiT's learning-rate schedule instead of the paper's cosine."""
    mixup: float = 0.0
    """BiT's, for 20,000 images and more."""


TABLE_4 = {
    "imagenet": TransferTask(20_000, 500, 0.03, (0.003, 0.01, 0.03, 0.06), hold_out=0.01),
    "cifar100": TransferTask(10_000, 500, 0.01, hold_out=0.02),
    "cifar10": TransferTask(10_000, 500, 0.01, hold_out=0.02),
    "pets": TransferTask(500, 100, 0.003),
    "flowers": TransferTask(500, 100, 0.003),
    "vtab": TransferTask(2_500, 500, 0.01, (0.01,), hold_out=0.2),
}


def bit_hyper_rule(images: Source) -> TransferTask:
    """BiT's rule: steps and mixup follow from the number of images, the
    image size from the size of some of them."""
    # A small, a medium or a large data set
    count = len(images)
    if count < 20_000:
        task = TransferTask(500, 100, 0.003, staircase=True)
    elif count < 500_000:
        task = TransferTask(10_000, 500, 0.003, staircase=True, mixup=0.1)
    else:
        task = TransferTask(20_000, 500, 0.003, staircase=True, mixup=0.1)

    # Of small images 128 pixels
    small, large = SIDES
    if few_pixels(images):
        return replace(task, side=small)
    return replace(task, side=large)


def few_pixels(images: Source, side: int = 96) -> bool:
    """Whether images are small: the median of up to 16 of them, evenly spread, has fewer pixels
    than a square of this side. 96 is BiT's rule."""
    areas = []
    for index in np.linspace(0, len(images) - 1, min(len(images), 16)).astype(int):
        height, width = open_image(images[index][0], images.name(index)).size
        areas.append(height * width)
    return bool(np.median(areas) < side**2)


# What training images go through

# VTAB's tasks by the names of their folders, and those of copies on the Hugging Face hub, which
# CLIP-benchmark has named
ON_HUB = {
    "caltech101": "caltech101",
    "cifar": "cifar100",
    "dtd": "dtd",
    "oxford_flowers102": "flowers",
    "oxford_iiit_pet": "pets",
    "svhn": "svhn",
    "patch_camelyon": "pcam",
    "eurosat": "eurosat",
    "resisc45": "resisc45",
    "diabetic_retinopathy": "diabetic_retinopathy",
    "clevr_count": "clevr_count_all",
    "clevr_dist": "clevr_closest_object_distance",
    "dmlab": "dmlab",
    "dsprites_loc": "dsprites_label_x_position",
    "dsprites_ori": "dsprites_label_orientation",
    "smallnorb_azi": "smallnorb_label_azimuth",
    "smallnorb_ele": "smallnorb_label_elevation",
}
HUB = "wds_vtab-"  # what its names begin with there
TASKS = (*ON_HUB, "sun397", "kitti")  # of which no copy is known there

# Where a class is a place or a direction, and where it is a place, a distance or a count
UNMIRRORED = ("dsprites_loc", "dsprites_ori", "smallnorb_azi")
UNCROPPED = ("clevr_count", "clevr_dist", "dmlab", "dsprites_loc", "kitti")


def bit_crops(image: tuple[int, int], flip: bool = True, crop: bool = True) -> Augmentation:
    """BiT's preprocessing for images of (height, width) pixels: a resize to a square, and a random
    crop of it, mirrored or not; for a task that is not cropped, the preprocessing of evaluation."""
    if not crop:
        return Augmentation("none", flip=flip)
    return Augmentation("resize_crop", resize=square_before_crop(max(image)), flip=flip)


def vtab_task(data: str) -> str | None:
    """The VTAB task to which images belong, found by the name of their folder or file, such as
    vtab-1k/dsprites_loc, or of their data set on the hub; None for other images."""
    name = Path(data).name.partition(".")[0].removesuffix("-train")
    if name in TASKS:
        return name
    for task, on_hub in ON_HUB.items():
        if name == f"{HUB}{on_hub}":
            return task
    return None
