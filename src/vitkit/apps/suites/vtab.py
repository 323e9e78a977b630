"""VTAB-1k (Zhai et al. 2019, Section 4.2 and Table 9 of the ViT paper): 19 tasks with 1,000 training
images each.

The images are read from DIR/NAME, in any format that vitkit reads. VTAB's usual archive contains
the lists train800.txt, val200.txt and test.txt with the original selection of images; the rules
below are for preparing a task from the original data set. Splits and their order are those of
TensorFlow Datasets.
"""

import math
from collections.abc import Callable, Sequence

from vitkit.apps.suites.task import Original, Place, Suite, Task
from vitkit.recipes.table_4 import HUB, ON_HUB, UNCROPPED, UNMIRRORED
from vitkit.system.errors import BadData

LEARNED = 1000  # training images: 800 for training, 200 for validation
ARCHIVE = "https://huggingface.co/datasets/XiN0919/VTAB-1k"

CLEVR_DISTANCES = (0, 8, 8.5, 9, 9.5, 10, 100)
KITTI_DISTANCES = (-100, 8, 20, 999)
DSPRITES_CLASSES = 16


# Rules for classes that the original data set does not contain


def clevr_count(objects: int) -> int:
    """The class of a scene with 3 to 10 objects. Raises VitkitError for other numbers."""
    if not 3 <= objects <= 10:
        raise BadData(f"a scene of Clevr has 3 to 10 objects, not {objects}")
    return objects - 3


def clevr_distance(depths: Sequence[float]) -> int:
    """The class of a scene from the depths of its objects, pixel_coords[2]: the range of the smallest.
    Raises VitkitError for depths outside of all ranges."""
    return _last_below(CLEVR_DISTANCES, min(depths))


def kitti_distance(kinds: Sequence[int], depths: Sequence[float]) -> int:
    """The class of an image from its objects' kinds and depths (z of their locations, in metres): the
    range of the nearest vehicle; the last class if there is none. Kinds 0, 1 and 2 are car, van and
    truck."""
    vehicles = [z for kind, z in zip(kinds, depths, strict=True) if kind < 3]
    return _last_below(KITTI_DISTANCES, min(vehicles, default=1000))


def dsprites_class(value: int, values: int) -> int:
    """The class of a factor with `values` possible values, from 0: 32 x positions, or 40 orientations, in
    16 ranges. Raises VitkitError for an invalid value."""
    if not 0 <= value < values:
        raise BadData(f"the factor has the values 0 to {values - 1}, not {value}")
    return math.floor(value / (values / DSPRITES_CLASSES))


def _last_below(thresholds: Sequence[float], distance: float) -> int:
    """The index of the last threshold below a distance."""
    below = [i for i, threshold in enumerate(thresholds) if threshold < distance]
    if not below:
        raise BadData(f"a distance of {distance} is below all of {thresholds}")
    return below[-1]


def _whole(value: float) -> int:
    """A measurement as an integer. Raises VitkitError if it is not a whole number."""
    if not value.is_integer():
        raise BadData(f"expected a whole number, not {value:g}")
    return int(value)


def _number_below(classes: int) -> Callable[[float], int]:
    """The rule for a measurement that is the class number itself."""

    def rule(value: float) -> int:
        number = _whole(value)
        if not 0 <= number < classes:
            raise BadData(f"expected a class from 0 to {classes - 1}, not {number}")
        return number

    return rule


def _dsprites(values: int) -> Callable[[float], int]:
    """The rule for a factor with `values` possible values."""
    return lambda value: dsprites_class(_whole(value), values)


# Original data sets as local files, with the column of each task (docs/evaluation.md)

_CLEVR_PLACES = (Place("train", 0.9), Place("val"))
_DSPRITES_PLACES = (Place("train", 0.8), Place("train", 0.9))
_NORB_PLACES = (Place("test"), Place("test", 0.5))
_KITTI_PLACES = (Place("val"), Place("test"))

ORIGINALS = {
    "clevr_count": Original("clevr_scenes", *_CLEVR_PLACES, "objects",
                            lambda number: clevr_count(_whole(number))),
    "clevr_dist": Original("clevr_scenes", *_CLEVR_PLACES, "distance",
                           lambda depth: clevr_distance([depth])),
    "dsprites_loc": Original("dsprites_factors", *_DSPRITES_PLACES, "label_x_position",
                             _dsprites(32)),
    "dsprites_ori": Original("dsprites_factors", *_DSPRITES_PLACES, "label_orientation",
                             _dsprites(40)),
    "kitti": Original("kitti_objects", *_KITTI_PLACES, "distance",
                      lambda depth: kitti_distance([0], [depth])),
    "smallnorb_azi": Original("smallnorb_factors", *_NORB_PLACES, "label_azimuth",
                              _number_below(18)),
    "smallnorb_ele": Original("smallnorb_factors", *_NORB_PLACES, "label_elevation",
                              _number_below(9)),
}  # fmt: skip

# Copies on the Hugging Face hub, under CLIP-benchmark's names. Some of their training parts end before
# VTAB's validation images, so these are taken from the end instead. The numbers of images and classes are
# checked when a copy is read. There is no known copy of SUN397 and KITTI.
_HUB = f"hf:clip-benchmark/{HUB}"


def _originals(name: str) -> tuple[Original, ...]:
    """The data sets from which a task can be made."""
    originals = []
    if name in ORIGINALS:
        originals.append(ORIGINALS[name])
    if name in ON_HUB:
        originals.append(Original(_HUB + ON_HUB[name], Place("train", 0.8), Place("test")))
    return tuple(originals)


# Table 9: ViT-H/14 and ViT-L/16 pre-trained on JFT-300M, and ViT-L/16 pre-trained on ImageNet-21k
TABLE_9_MODELS = ("paper: H/14, JFT", "paper: L/16, JFT", "paper: L/16, I21k")
TABLE_2 = (
    0.23,
    0.46,
    0.21,
)  # Table 2: standard deviations of the models' means, from three runs each
TABLE_9 = {
    "caltech101": (95.3, 95.4, 90.8), "cifar": (85.5, 81.9, 84.1), "dtd": (75.2, 74.3, 74.1),
    "oxford_flowers102": (99.7, 99.7, 99.3), "oxford_iiit_pet": (97.2, 96.7, 92.7),
    "sun397": (65.0, 63.5, 61.0), "svhn": (88.9, 87.4, 80.9),
    "patch_camelyon": (83.3, 83.6, 82.5), "eurosat": (96.7, 96.5, 95.6),
    "resisc45": (91.4, 89.7, 85.2), "diabetic_retinopathy": (76.6, 77.1, 75.3),
    "clevr_count": (91.7, 86.4, 70.3), "clevr_dist": (63.8, 63.1, 56.1), "dmlab": (53.1, 49.7, 41.9),
    "dsprites_loc": (79.4, 74.5, 74.7), "dsprites_ori": (63.3, 60.5, 64.9), "kitti": (84.5, 82.2, 79.9),
    "smallnorb_azi": (33.2, 36.2, 30.5), "smallnorb_ele": (51.2, 51.1, 41.7),
}  # fmt: skip


def _task(
    name: str,
    group: str,
    title: str,
    classes: int,
    test: int,
    rule: str,
    source: str,
) -> Task:
    """A task from its row of the table. Mirroring and cropping follow BiT."""
    return Task(
        name,
        group,
        title,
        classes=classes,
        train=LEARNED,
        test=test,
        flip=name not in UNMIRRORED,
        crop=name not in UNCROPPED,
        source=source,
        rule=rule,
        originals=_originals(name),
        published=TABLE_9[name],
    )


_CLEVR = "https://cs.stanford.edu/people/jcjohns/clevr/"
_DSPRITES = "https://github.com/google-deepmind/dsprites-dataset"
_NORB = "https://cs.nyu.edu/~ylclab/data/norb-v1.0-small/"
_VAL = "train[:800], validation[:200]; test"
_CLEVR_SPLITS = "train[:800], 200 after 90 % of train; validation is the test part"
_DSPRITES_SPLITS = "train[:800], 200 after 80 % of train; the last 10 % are the test part"
_NORB_SPLITS = "train[:800], test[:200]; the second half of test"

VTAB = Suite(
    "VTAB",
    (
        _task("caltech101", "natural", "Caltech101", 102, 6_084,
              "train[:800], 200 after 90 % of train; test",
              "https://data.caltech.edu/records/mzrjq-6wc02"),
        _task("cifar", "natural", "CIFAR-100", 100, 10_000,
              "train[:800], train[45000:45200]; test",
              "https://www.cs.toronto.edu/~kriz/cifar.html"),
        _task("dtd", "natural", "DTD", 47, 1_880, _VAL,
              "https://www.robots.ox.ac.uk/~vgg/data/dtd/"),
        _task("oxford_flowers102", "natural", "Flowers102", 102, 6_149, _VAL,
              "https://www.robots.ox.ac.uk/~vgg/data/flowers/102/"),
        _task("oxford_iiit_pet", "natural", "Pets", 37, 3_669,
              "train[:800], 200 after 80 % of train; test",
              "https://www.robots.ox.ac.uk/~vgg/data/pets/"),
        _task("sun397", "natural", "Sun397", 397, 21_750, _VAL,
              "https://groups.csail.mit.edu/vision/SUN/"),
        _task("svhn", "natural", "SVHN", 10, 26_032,
              "train[:800], 200 after 90 % of train; test",
              "http://ufldl.stanford.edu/housenumbers/"),
        _task("patch_camelyon", "specialised", "Camelyon", 2, 32_768, _VAL,
              "https://patchcamelyon.grand-challenge.org/"),
        _task("eurosat", "specialised", "EuroSAT", 10, 5_400,
              "train[:800], 200 after 60 % of train; the last 20 % are the test part",
              "https://github.com/phelber/EuroSAT"),
        _task("resisc45", "specialised", "Resisc45", 45, 6_300,
              "train[:800], 200 after 60 % of train; the last 20 % are the test part",
              "NWPU-RESISC45"),
        _task("diabetic_retinopathy", "specialised", "Retinopathy", 5, 42_670, _VAL,
              "https://www.kaggle.com/c/diabetic-retinopathy-detection"),
        _task("clevr_count", "structured", "Clevr-Count", 8, 15_000,
              f"{_CLEVR_SPLITS}; the class is the number of objects - 3", _CLEVR),
        _task("clevr_dist", "structured", "Clevr-Dist", 6, 15_000,
              f"{_CLEVR_SPLITS}; the class is the range of the nearest object's distance",
              _CLEVR),
        _task("dmlab", "structured", "DMLab", 6, 22_735, _VAL,
              "https://github.com/google-research/task_adaptation"),
        _task("dsprites_loc", "structured", "dSpr-Loc", 16, 73_728,
              f"{_DSPRITES_SPLITS}; the class is the x position, of 32, in 16 ranges",
              _DSPRITES),
        _task("dsprites_ori", "structured", "dSpr-Ori", 16, 73_728,
              f"{_DSPRITES_SPLITS}; the class is the orientation, of 40, in 16 ranges",
              _DSPRITES),
        _task("kitti", "structured", "KITTI-Dist", 4, 711,
              f"{_VAL}; the class is the range of the nearest vehicle's distance",
              "https://www.cvlibs.net/datasets/kitti/"),
        _task("smallnorb_azi", "structured", "sNORB-Azim", 18, 12_150, _NORB_SPLITS, _NORB),
        _task("smallnorb_ele", "structured", "sNORB-Elev", 9, 12_150, _NORB_SPLITS, _NORB),
    ),
    fine_tuned=True,
    published=TABLE_9_MODELS,
    published_deviations=TABLE_2,
    hint=f"all 19 tasks with their 800, 200 and test images are in {ARCHIVE}: unpack it, and give "
    "its folder as `data`",
)  # fmt: skip
