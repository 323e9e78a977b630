"""The paper's fine-tuning on each data set (Table 4, App. B.1.1), and BiT's rule (Kolesnikov et al. 2020), whose
preprocessing the paper follows (Section 4.1): a random crop of a square, mirrored or not, with exceptions for some
of VTAB's tasks."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from vitkit.data import Augmentation, Source, open_image, square_before_crop

SWEEP = (0.001, 0.003, 0.01, 0.03)  # candidate learning rates of Table 4 for most tasks
SIDES = (128, 384)  # image sizes of BiT's rule, in pixels, if the model's patch divides them


@dataclass(frozen=True)
class TransferTask:
    """The settings for fine-tuning on one data set: a row of Table 4, with details from the paper's text and
    the official code."""

    steps: int
    """Training steps."""
    warmup: int
    """Steps of the warm-up, from the official code; the paper does not state them."""
    lr: float
    """Base learning rate if none is chosen, from the official configurations."""
    rates: tuple[float, ...] = SWEEP
    """The base learning rates from which the paper chooses."""
    hold_out: float = 0.1
    """Share of the training images for that choice, if there is no validation part."""
    batch: int = 512
    """Examples of a step."""
    side: int = 384
    """Height and width of images in pixels; 0 keeps the model's own image size."""
    staircase: bool = False
    """Whether to use BiT's learning-rate schedule instead of the paper's cosine."""
    mixup: float = 0.0
    """Alpha of mixup, which BiT uses for 20,000 images and more."""


TABLE_4 = {
    "imagenet": TransferTask(20_000, 500, 0.03, (0.003, 0.01, 0.03, 0.06), hold_out=0.01),
    "cifar100": TransferTask(10_000, 500, 0.01, hold_out=0.02),
    "cifar10": TransferTask(10_000, 500, 0.01, hold_out=0.02),
    "pets": TransferTask(500, 100, 0.003),
    "flowers": TransferTask(500, 100, 0.003),
    "vtab": TransferTask(2_500, 500, 0.01, (0.01,), hold_out=0.2),
}


def bit_hyper_rule(images: Source) -> TransferTask:
    """BiT-HyperRule: steps and mixup depend on the number of images, the image size on the size of some of
    them."""
    # A small, a medium or a large data set
    count = len(images)
    if count < 20_000:
        task = TransferTask(500, 100, 0.003, staircase=True)
    elif count < 500_000:
        task = TransferTask(10_000, 500, 0.003, staircase=True, mixup=0.1)
    else:
        task = TransferTask(20_000, 500, 0.003, staircase=True, mixup=0.1)

    # Small images are resized to 128 pixels
    small, large = SIDES
    if few_pixels(images):
        return replace(task, side=small)
    return replace(task, side=large)


def few_pixels(images: Source, side: int = 96) -> bool:
    """Whether images are small: whether the median area of up to 16 of them, evenly spread, is below that of a
    square of this side. 96 is BiT's rule."""
    areas = []
    for index in np.linspace(0, len(images) - 1, min(len(images), 16)).astype(int):
        height, width = open_image(images[index][0], images.name(index)).size
        areas.append(height * width)
    return bool(np.median(areas) < side**2)


# The preprocessing of training images

# Names of VTAB's tasks, which are those of their folders, and of CLIP-benchmark's copies on the Hugging Face
# hub
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
HUB = "wds_vtab-"  # prefix of the names of these copies
TASKS = (*ON_HUB, "sun397", "kitti")  # the last two have no known copy on the hub

# The class is a place or a direction
UNMIRRORED = (
    "dsprites_loc",
    "dsprites_ori",
    "smallnorb_azi",
)
# The class is a place, a distance or a count
UNCROPPED = ("clevr_count", "clevr_dist", "dmlab", "dsprites_loc", "kitti")


def bit_crops(image: tuple[int, int], flip: bool = True, crop: bool = True) -> Augmentation:
    """BiT's preprocessing for images of (height, width) pixels: a resize to a square, and a random
    crop of it, mirrored or not; for a task that is not cropped, the preprocessing of evaluation."""
    if not crop:
        return Augmentation("none", flip=flip)
    return Augmentation("resize_crop", resize=square_before_crop(max(image)), flip=flip)


def vtab_task(data: str) -> str | None:
    """The VTAB task of a data set, from the name of its folder or file, such as vtab-1k/dsprites_loc, or of its
    copy on the hub; None for other data."""
    name = Path(data).name.partition(".")[0].removesuffix("-train")
    if name in TASKS:
        return name
    for task, on_hub in ON_HUB.items():
        if name == f"{HUB}{on_hub}":
            return task
    return None
