"""What training images go through by BiT's rule (Kolesnikov et al. 2020), which the paper follows
(Section 4.1, App. B.1.1): a random crop of a square, mirrored or not; and for which of VTAB's tasks
not."""

from pathlib import Path

from vitkit.data import Augmentation, square_before_crop

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
    """BiT's preprocessing for images of (height, width) pixels: both sides to a square, and a random
    crop of it, mirrored or not; of a task that is not cropped, what evaluation has."""
    if not crop:
        return Augmentation("none", flip=flip)
    return Augmentation("resize_crop", resize=square_before_crop(max(image)), flip=flip)


def vtab_task(data: str) -> str | None:
    """The task of VTAB that images are of, by the name of their folder or file, such as
    vtab-1k/dsprites_loc, or by that on the hub; None for other images."""
    name = Path(data).name.partition(".")[0].removesuffix("-train")
    if name in TASKS:
        return name
    for task, on_hub in ON_HUB.items():
        if name == f"{HUB}{on_hub}":
            return task
    return None
