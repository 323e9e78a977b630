"""Hugging Face's image processors (preprocessor_config.json) as a Preprocessing, and the way back.

`json` is that file's object. A field that it leaves out, or that is null, has the default of the
processor's class (`DEFAULTS`).
"""

import re
from math import isfinite

from vitkit.data import Preprocessing, squarest
from vitkit.weights.formats.shapes import IMAGENET, STATISTICS
from vitkit.weights.hints import MOST_TOKENS

# Pillow's number for an interpolation, or its name -> ours, and back.
RESAMPLE = {2: "bilinear", 3: "bicubic", "bilinear": "bilinear", "bicubic": "bicubic"}
NUMBER = {"bilinear": 2, "bicubic": 3}


def _in_json(statistics: dict) -> dict:
    """Mean and standard deviation under their names in the file."""
    return {f"image_{name}": list(values) for name, values in statistics.items()}


# The attributes of each class in Transformers (image_processing_vit.py and its siblings), under the
# names that they have in the file. `default_to_square`: a size of one number is both sides', not
# the shorter one's.
HALF = _in_json(STATISTICS["half"])
OPENAI = _in_json(STATISTICS["clip"])
SQUARE = {"height": 224, "width": 224}
SHORTER = {"shortest_edge": 224}
EVERY_CLASS = {
    "do_resize": True,
    "do_center_crop": False,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "default_to_square": True,
}
CROPS = {"do_center_crop": True, "crop_size": SQUARE}
BIT = {"size": SHORTER, "default_to_square": False, **CROPS, "resample": 3, **OPENAI}
DEFAULTS = {
    "ViT": {"size": SQUARE, "resample": 2, **HALF},
    "DeiT": {"size": {"height": 256, "width": 256}, **CROPS, "resample": 3, **HALF},
    "Bit": BIT,
    "CLIP": BIT,
    "Siglip": {"size": SQUARE, "default_to_square": False, "resample": 3, **HALF},
    "Siglip2": {"patch_size": 16, "max_num_patches": 256, "resample": 2, **HALF},
    "DINOv3ViT": {"size": SQUARE, "resample": 2, **_in_json(IMAGENET)},
}
# Of a file without a class, or of no file at all, by the type of the model
FAMILIES = {
    "deit": "DeiT",
    "clip": "CLIP",
    "clip_vision_model": "CLIP",
    "siglip": "Siglip",
    "siglip_vision_model": "Siglip",
    "siglip2": "Siglip2",
    "siglip2_vision_model": "Siglip2",
    "dinov3_vit": "DINOv3ViT",
}


def sides_in_json(size: tuple[int, int]) -> int | list[int]:
    """One number for a square, else height and width."""
    height, width = size
    if height == width:
        return height
    return [height, width]


def processor_json(preprocessing: Preprocessing) -> dict:
    """preprocessor_config.json of a processor that does the same; all of them resize with antialiasing."""
    height, width = preprocessing.size
    crops = True
    side = preprocessing.resize or max(height, width)
    if preprocessing.rule == "naflex":  # whole, at its own proportions
        processor = "Siglip2ImageProcessor"
        sizes = {
            "patch_size": sides_in_json(preprocessing.patch),
            "max_num_patches": preprocessing.patches,
        }
        crops = False
    elif preprocessing.rule == "shorter":  # the shorter side to `side`, then a crop
        processor = "BitImageProcessor"
        sizes = {"size": {"shortest_edge": side}}
    elif preprocessing.resize:  # to a square, then a crop
        processor = "DeiTImageProcessor"
        sizes = {"size": {"height": side, "width": side}}
    else:  # to the size of the model, whatever the image's proportions
        processor = "ViTImageProcessor"
        sizes = {"size": {"height": height, "width": width}}
        crops = False
    values = {
        "image_processor_type": processor,
        "do_resize": True,
        **sizes,
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
    json: dict, image: tuple[int, int], model_type: str, patch: int = 16
) -> tuple[Preprocessing, list[str]]:
    """The preprocessing of an image processor, and notes about assumptions. `image` and `patch`
    are the model's.

    Without a processor, what models of this type usually have. Raises ValueError for what no
    Preprocessing does.
    """
    if not json:
        note = f"preprocessing: no preprocessor_config.json, so {model_type}'s usual one"
        return _usual(image, model_type, patch), [note]
    family, json, notes = _with_defaults(json, model_type)
    values = _values(json)
    if family == "Siglip2":
        size = _size_of_patches(json, patch)
        if not json["do_resize"]:
            notes.append("preprocessing: the processor does not resize; images are resized here")
        return Preprocessing(size, "naflex", patch=(patch, patch), **values), notes

    # The size of the result
    rule, resized, crop = _geometry(json)
    size = crop or resized
    if not json["do_resize"]:
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
    if rule == "shorter" and crop is None:
        notes.append(
            "preprocessing: the processor leaves images their proportions; "
            f"vitkit crops the centre of {size[0]} x {size[1]}"
        )
    return Preprocessing(size, rule, resize, **values), notes


def _usual(image: tuple[int, int], model_type: str, patch: int) -> Preprocessing:
    """The preprocessing that the published models of a type have."""
    family = FAMILIES.get(model_type)
    if family == "Siglip2":
        return Preprocessing(image, "naflex", patch=(patch, patch))
    if family == "CLIP":
        return Preprocessing(image, "shorter", interpolation="bicubic", **STATISTICS["clip"])
    if family == "Siglip":
        return Preprocessing(image, interpolation="bicubic")
    if model_type.startswith("dinov2"):
        # Their tables are for 518 pixels, their published accuracies of 224, cut from 256
        size = (min(image[0], 224), min(image[1], 224))
        resize = round(max(size) * 256 / 224)
        return Preprocessing(size, "shorter", resize, "bicubic", **IMAGENET)
    if model_type == "vit":  # mean and standard deviation 0.5
        return Preprocessing(size=image)
    return Preprocessing(size=image, **IMAGENET)


def _with_defaults(json: dict, model_type: str) -> tuple[str, dict, list[str]]:
    """The class, all fields, absent ones as the class has them, and a note if the class is unknown."""
    # ViTImageProcessor, ViTImageProcessorFast, ViTFeatureExtractor: the same class of three times.
    # A file without a class gets that of its model (image_processing_auto.py)
    usual = FAMILIES.get(model_type, "ViT")
    name = json.get("image_processor_type") or json.get("feature_extractor_type") or usual
    family = re.sub(r"(ImageProcessor|FeatureExtractor).*", "", str(name))
    notes = []
    if family not in DEFAULTS:
        notes.append(
            f"preprocessing: vitkit does not know {name}; what preprocessor_config.json leaves "
            "out is taken as ViTImageProcessor's"
        )
        family = "ViT"
    written = {field: value for field, value in json.items() if value is not None}
    return family, {**EVERY_CLASS, **DEFAULTS[family], **written}, notes


def _size_of_patches(json: dict, patch: int) -> tuple[int, int]:
    """The size that has as many patches as an image at its own proportions may have. Raises ValueError
    for other patches than the model's, and for a number that no image can have."""
    if json["patch_size"] != patch:
        raise ValueError(
            f"its preprocessor's patch_size is {json['patch_size']}, and the model's is {patch}; "
            "they must be the same"
        )
    most = json["max_num_patches"]
    if not 1 <= most <= MOST_TOKENS:
        raise ValueError(
            f"its preprocessor's max_num_patches is {most}; it is a number from 1 to {MOST_TOKENS:,}"
        )
    rows, columns = squarest(most)
    return rows * patch, columns * patch


def _geometry(json: dict) -> tuple[str, tuple[int, int], tuple[int, int] | None]:
    """The rule of the resize, its (height, width), and those of the crop after it, or None."""
    size = json["size"]
    rule = "square"
    if isinstance(size, dict) and "shortest_edge" in size:
        rule = "shorter"
        size = size["shortest_edge"]
    elif isinstance(size, int) and not json["default_to_square"]:
        rule = "shorter"
    if not json["do_center_crop"]:
        return rule, _pair(size), None
    if "crop_size" not in json:
        raise ValueError("its preprocessor crops the centre, but has no crop_size")
    return rule, _pair(size), _pair(json["crop_size"])


def _pair(size) -> tuple[int, int]:
    """(height, width), however it is written. Raises ValueError for what is no size."""
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


def _values(json: dict) -> dict:
    """How pixels are resized and normalised, as settings of a Preprocessing."""
    if json["resample"] not in RESAMPLE:
        raise ValueError(
            f"its preprocessor resizes by method {json['resample']!r}; "
            "vitkit knows 2 (bilinear) and 3 (bicubic)"
        )
    mean, std = _statistics(json)
    return {"interpolation": RESAMPLE[json["resample"]], "mean": mean, "std": std}


def _statistics(json: dict) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation on the scale from 0 to 1.

    A processor may multiply pixels by another factor f than 1 / 255 before it subtracts the mean:

    (x f - mean) / std = (x / 255 - mean / (255 f)) / (std / (255 f))
    """
    factor = 1.0
    if json["do_rescale"]:
        factor = json["rescale_factor"]
    if not isinstance(factor, int | float) or not isfinite(factor) or factor <= 0:
        raise ValueError(f"its preprocessor's rescale_factor is {factor!r}")
    mean = [0.0] * 3
    std = [1.0] * 3
    if json["do_normalize"]:
        mean = json["image_mean"]
        std = json["image_std"]
    scale = 255 * factor
    if abs(scale - 1) < 1e-6:  # 1 / 255, rounded: the published numbers stay as they are
        scale = 1.0
    scaled_mean = tuple(value / scale for value in mean)
    scaled_std = tuple(value / scale for value in std)
    return scaled_mean, scaled_std
