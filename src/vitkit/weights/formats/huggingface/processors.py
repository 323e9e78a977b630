"""Hugging Face's image processors (preprocessor_config.json) as a Preprocessing, and the way back.

`json` is that file's object. What it leaves out is the default of the processor's class, and the
classes differ: `name` is the class.
"""

from math import isfinite

from vitkit.data import Preprocessing
from vitkit.weights.formats.shapes import IMAGENET

# Pillow's number for an interpolation, or its name -> ours, and back.
RESAMPLE = {2: "bilinear", 3: "bicubic", "bilinear": "bilinear", "bicubic": "bicubic"}
NUMBER = {"bilinear": 2, "bicubic": 3}
# Classes of processors, by how their names begin, that by default ...
BICUBIC = ("DeiT", "Bit", "CLIP", "ConvNext")  # resize by bicubic interpolation, not bilinear
CROPS = ("DeiT", "Bit", "CLIP")  # crop the centre
SHORTER = ("Bit", "CLIP", "ConvNext")  # take a size of one number as the shorter side's


def processor_json(preprocessing: Preprocessing) -> dict:
    """preprocessor_config.json, for the processor that does the same. None resizes without
    antialiasing, so that is not written."""
    height, width = preprocessing.size
    crops = True
    side = preprocessing.resize or max(height, width)
    if preprocessing.rule == "shorter":  # the shorter side to `side`, then a crop
        processor = "BitImageProcessor"
        size = {"shortest_edge": side}
    elif preprocessing.resize:  # to a square, then a crop
        processor = "DeiTImageProcessor"
        size = {"height": side, "width": side}
    else:  # to the size of the model, whatever the image's proportions
        processor = "ViTImageProcessor"
        size = {"height": height, "width": width}
        crops = False
    values = {
        "image_processor_type": processor,
        "do_resize": True,
        "size": size,
        "resample": NUMBER[preprocessing.interpolation],
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(preprocessing.mean),
        "image_std": list(preprocessing.std),
        "do_convert_rgb": True,
    }
    if crops:
        values["do_center_crop"] = True
        values["crop_size"] = {"height": height, "width": width}
    return values


def preprocessing_of(
    json: dict, image: tuple[int, int], model_type: str
) -> tuple[Preprocessing, list[str]]:
    """What an image processor does, and notes about what was assumed.

    Without a processor, what models of this type usually have. Raises ValueError for what no
    Preprocessing does.
    """
    if not json:
        statistics = IMAGENET
        if model_type == "vit":  # mean and standard deviation 0.5
            statistics = {}
        note = f"preprocessing: no preprocessor_config.json, so {model_type}'s usual one"
        return Preprocessing(size=image, **statistics), [note]
    name = str(json.get("image_processor_type") or json.get("feature_extractor_type") or "ViT")

    # The size of the result
    rule, resized, crop = _geometry(json, name, image)
    size = crop or resized
    notes = []
    if not json.get("do_resize", True):
        sentence = "the processor does not resize; images are made"
        notes.append(f"preprocessing: {sentence} {size[0]} x {size[1]} here")

    # The size before a crop; 0 if there is none
    cropped = crop is not None and crop != resized
    if cropped and rule == "square" and resized[0] != resized[1]:
        raise ValueError(
            f"its preprocessor resizes to {resized[0]} x {resized[1]} before a crop; "
            "vitkit resizes to a square"
        )
    resize = 0
    if cropped or rule == "shorter":
        resize = max(resized)

    # Values
    interpolation = _interpolation(json, name)
    mean, std = _statistics(json)
    preprocessing = Preprocessing(
        size=size,
        rule=rule,
        resize=resize,
        interpolation=interpolation,
        mean=mean,
        std=std,
    )
    return preprocessing, notes


def _interpolation(json: dict, name: str) -> str:
    """How it resizes: as is written, or the default of its class."""
    default = 3 if name.startswith(BICUBIC) else 2
    resample = json.get("resample", default)
    if resample not in RESAMPLE:
        raise ValueError(
            f"its preprocessor resizes by method {resample!r}; "
            "vitkit knows 2 (bilinear) and 3 (bicubic)"
        )
    return RESAMPLE[resample]


def _geometry(
    json: dict, name: str, image: tuple[int, int]
) -> tuple[str, tuple[int, int], tuple[int, int] | None]:
    """The rule of the resize, its (height, width), and those of the crop after it, or None."""
    size = json.get("size", list(image))
    rule = "square"
    if isinstance(size, dict) and "shortest_edge" in size:
        rule = "shorter"
        size = size["shortest_edge"]
    elif isinstance(size, int) and name.startswith(SHORTER):
        rule = "shorter"
    crop = json.get("crop_size")
    if not crop or not json.get("do_center_crop", name.startswith(CROPS)):
        return rule, _pair(size), None
    return rule, _pair(size), _pair(crop)


def _pair(size) -> tuple[int, int]:
    """(height, width), however it is written: {"height", "width"}, {"shortest_edge"}, a number or a
    pair. Raises ValueError for anything else."""
    pair = size
    if isinstance(size, dict) and "height" in size:
        pair = (size["height"], size.get("width"))
    elif isinstance(size, dict):
        pair = (size.get("shortest_edge"),) * 2
    elif isinstance(size, int):
        pair = (size, size)
    numbers = isinstance(pair, list | tuple) and all(isinstance(side, int) for side in pair)
    if not numbers or len(pair) != 2:
        raise ValueError(f"its preprocessor's size is {size!r}; expected pixels")
    return tuple(pair)


def _statistics(json: dict) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation on the scale from 0 to 1.

    A processor may multiply pixels by another factor f than 1 / 255 before it subtracts the mean:

    (x f - mean) / std = (x / 255 - mean / (255 f)) / (std / (255 f))
    """
    factor = 1.0
    if json.get("do_rescale", True):
        factor = json.get("rescale_factor", 1 / 255)
    if not isinstance(factor, int | float) or not isfinite(factor) or factor <= 0:
        raise ValueError(f"its preprocessor's rescale_factor is {factor!r}")
    mean = [0.0] * 3
    std = [1.0] * 3
    if json.get("do_normalize", True):
        mean = json.get("image_mean") or [0.5] * 3
        std = json.get("image_std") or [0.5] * 3
    scale = 255 * factor
    if abs(scale - 1) < 1e-6:  # 1 / 255, rounded: the published numbers stay as they are
        scale = 1.0
    scaled_mean = tuple(value / scale for value in mean)
    scaled_std = tuple(value / scale for value in std)
    return scaled_mean, scaled_std
