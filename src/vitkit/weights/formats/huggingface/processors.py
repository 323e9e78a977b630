"""Convert Hugging Face's image processors (preprocessor_config.json) to a Preprocessing and back.

`json` is the object in that file. An absent field has the default of the processor's class (`DEFAULTS`),
and so has a null field, unless null turns it off (OFF_IF_NULL). A class that is not in that table may
change pixels in any way, so it is refused, as is every field that changes pixels in a way that a
Preprocessing cannot. Otherwise the model would get other pixels without any error.
"""

import re
from math import isfinite
from typing import Any

from vitkit.data import Preprocessing, squarest
from vitkit.data.images.preprocessing import Rule
from vitkit.system.console.text import printable_name, some
from vitkit.system.errors import BadWeights
from vitkit.weights.formats.shapes import IMAGENET, STATISTICS, ChannelStatistics
from vitkit.weights.hints import MOST_TOKENS

# Pillow's number or name of an interpolation -> vitkit's name; and the number of each name
RESAMPLE = {2: "bilinear", 3: "bicubic", "bilinear": "bilinear", "bicubic": "bicubic"}
NUMBER = {"bilinear": 2, "bicubic": 3}


def _in_json(statistics: ChannelStatistics) -> dict:
    """Mean and standard deviation under their names in the file."""
    return {"image_mean": list(statistics["mean"]), "image_std": list(statistics["std"])}


# Attributes of each class in Transformers 5 (image_processing_vit.py and others), with their names in the
# file. default_to_square: whether a size given as one number is that of both sides instead of the
# shorter side.
HALF = _in_json(STATISTICS["half"])
OPENAI = _in_json(STATISTICS["clip"])
COLOURS = _in_json(IMAGENET)
EVERY_CLASS = {
    "do_resize": True,
    "do_center_crop": False,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "do_pad": False,
    "default_to_square": True,
}


def _square(side: int) -> dict:
    """A square size in the notation of the file."""
    return {"height": side, "width": side}


def _crop(side: int) -> dict:
    """Fields of a centre crop to a square."""
    return {"do_center_crop": True, "crop_size": _square(side)}


def _shorter_edge(side: int) -> dict:
    """Fields of a resize of the shorter side."""
    return {"size": {"shortest_edge": side}, "default_to_square": False}


BIT = {**_shorter_edge(224), **_crop(224), "resample": 3, **OPENAI}
DEFAULTS = {
    "ViT": {"size": _square(224), "resample": 2, **HALF},
    "DeiT": {"size": _square(256), **_crop(224), "resample": 3, **HALF},
    "Beit": {"size": _square(224), "crop_size": _square(224), "resample": 3, **HALF},
    "Bit": BIT,
    "CLIP": BIT,
    "ChineseCLIP": BIT,
    "Blip": {"size": _square(384), "resample": 3, **OPENAI},
    "Siglip": {"size": _square(224), "default_to_square": False, "resample": 3, **HALF},
    "Siglip2": {"patch_size": 16, "max_num_patches": 256, "resample": 2, **HALF},
    "DINOv3ViT": {"size": _square(224), "resample": 2, **COLOURS},
    "Pvt": {"size": _square(224), "resample": 3, **COLOURS},
    "MobileNetV1": {**_shorter_edge(256), **_crop(224), "resample": 2, **HALF},
    "MobileNetV2": {**_shorter_edge(256), **_crop(224), "resample": 2, **HALF},
    "Segformer": {"size": _square(512), "resample": 2, **COLOURS},
    "OwlViT": {"size": _square(768), "crop_size": _square(768), "resample": 3, **OPENAI},
    # These resize to more than `size` (`_resize_of_class`)
    "ConvNext": {**_shorter_edge(384), "crop_pct": 224 / 256, "resample": 3, **HALF},
    "Levit": {**_shorter_edge(224), **_crop(224), "resample": 3, **COLOURS},
    "PoolFormer": {**_shorter_edge(224), **_crop(224), "crop_pct": 0.9, "resample": 3, **COLOURS},
    # These change colours, which is refused (REFUSED)
    "EfficientNet": {
        "size": _square(346),
        "crop_size": _square(289),
        "rescale_offset": False,
        "include_top": True,
        "resample": 3,
        **HALF,
    },
    "MobileViT": {
        **_shorter_edge(224),
        **_crop(256),
        "do_flip_channel_order": True,
        "resample": 3,
        **HALF,
    },
}
# By class: fields that are refused unless they are false, because no Preprocessing has their effect
REFUSED = {
    "CLIP": {"use_square_size": "sets another size than the file's"},
    "EfficientNet": {
        "rescale_offset": "subtracts 1 from the pixels",
        "include_top": "divides by image_std twice",
    },
    "MobileViT": {"do_flip_channel_order": "turns red, green, blue into blue, green, red"},
}
# By class: what it never does, whatever the file contains
NO_PADDING = {"do_pad": False}
NEVER_DONE = {
    "Beit": NO_PADDING,
    "ConvNext": NO_PADDING,
    "DINOv3ViT": NO_PADDING,
    "EfficientNet": NO_PADDING,
    "MobileNetV2": NO_PADDING,
    "MobileViT": {**NO_PADDING, "do_normalize": False},
    "Segformer": {**NO_PADDING, "do_center_crop": False},
}
# Fields that null turns off in Transformers, whatever the class's default is
OFF_IF_NULL = (
    "do_resize",
    "do_center_crop",
    "do_rescale",
    "do_normalize",
    "do_pad",
    "do_flip_channel_order",
    "include_top",
    "rescale_offset",
    "crop_pct",
)
# model_type -> class, for a file without a class, or no file
FAMILIES = {
    "deit": "DeiT",
    "dinov2": "Bit",
    "dinov2_with_registers": "Bit",
    "clip": "CLIP",
    "clip_vision_model": "CLIP",
    "siglip": "Siglip",
    "siglip_vision_model": "Siglip",
    "siglip2": "Siglip2",
    "siglip2_vision_model": "Siglip2",
    "dinov3_vit": "DINOv3ViT",
}


def sides_in_json(size: tuple[int, int]) -> int | list[int]:
    """A number for a square, otherwise [height, width]."""
    height, width = size
    if height == width:
        return height
    return [height, width]


def processor_json(preprocessing: Preprocessing) -> dict:
    """preprocessor_config.json of an equivalent processor. All processors resize with antialiasing."""
    height, width = preprocessing.size
    crops = True
    side = preprocessing.resize or max(height, width)
    sizes: dict
    if preprocessing.rule == "naflex":  # the whole image in its own aspect ratio
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
    else:  # to the model's size, whatever the image's aspect ratio
        processor = "ViTImageProcessor"
        sizes = {"size": {"height": height, "width": width}}
        crops = False
    values: dict = {
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
    """The preprocessing of an image processor, and notes on assumptions. `image` and `patch` are the
    model's.

    Without a processor, the usual preprocessing of the model_type is used. Raises VitkitError for one that
    a Preprocessing cannot express.
    """
    if not json:
        note = f"preprocessing: no preprocessor_config.json, so {model_type}'s usual one is used"
        return _usual(image, model_type, patch), [note]
    family, json = _with_defaults(json, model_type)
    notes: list[str] = []
    values = _values(family, json)
    if family == "Siglip2":
        size = _size_of_patches(json, patch)
        if not json["do_resize"]:
            notes.append("preprocessing: the processor does not resize; images are resized here")
        return Preprocessing(size, "naflex", patch=(patch, patch), **values), notes

    # The size of the result
    rule, resized, crop = _geometry(family, json)
    size = crop or resized
    _check_padding(json, size)
    if not json["do_resize"]:
        sentence = "the processor does not resize; images are made"
        notes.append(f"preprocessing: {sentence} {size[0]} x {size[1]} here")

    # The size before a crop; 0 without a crop
    resize = 0
    if rule == "shorter":
        resize = max(resized)
    if crop is not None and crop != resized:
        resize = max(resized)
        _check_crop(json, rule, resized, crop)
    if rule == "shorter" and crop is None:
        notes.append(
            "preprocessing: the processor keeps the aspect ratio of images; "
            f"vitkit crops the centre of {size[0]} x {size[1]}"
        )
    return Preprocessing(size, rule, resize, **values), notes


def _usual(image: tuple[int, int], model_type: str, patch: int) -> Preprocessing:
    """The preprocessing of the published models of a type."""
    family = FAMILIES.get(model_type)
    if family == "Siglip2":
        return Preprocessing(image, "naflex", patch=(patch, patch))
    if family == "CLIP":
        return Preprocessing(image, "shorter", interpolation="bicubic", **STATISTICS["clip"])
    if family == "Siglip":
        return Preprocessing(image, interpolation="bicubic")
    if model_type.startswith("dinov2"):
        # Their position tables are for 518 pixels; published accuracies were measured with 224, cut from 256
        size = (min(image[0], 224), min(image[1], 224))
        resize = round(max(size) * 256 / 224)
        return Preprocessing(size, "shorter", resize, "bicubic", **IMAGENET)
    if model_type == "vit":  # mean and standard deviation 0.5
        return Preprocessing(size=image)
    return Preprocessing(size=image, **IMAGENET)


def _with_defaults(json: dict, model_type: str) -> tuple[str, dict]:
    """The class, and all fields, with the defaults of the class.

    Raises VitkitError for an unknown class, and for a field of its class that changes pixels in a way that
    a Preprocessing cannot.
    """
    # ViTImageProcessor, ViTImageProcessorFast and ViTFeatureExtractor are versions of one class. A file
    # without a class has the class of its model (image_processing_auto.py)
    usual = FAMILIES.get(model_type, "ViT") + "ImageProcessor"
    name = str(json.get("image_processor_type") or json.get("feature_extractor_type") or usual)
    family = re.sub(r"(ImageProcessor|FeatureExtractor)(Fast|Pil)?$", "", name)
    if family not in DEFAULTS or family == name:
        raise BadWeights(_unknown_class(name, json))
    written = {
        field: value for field, value in json.items() if value is not None or field in OFF_IF_NULL
    }
    fields = {**EVERY_CLASS, **DEFAULTS[family], **written, **NEVER_DONE.get(family, {})}
    for field, effect in REFUSED.get(family, {}).items():
        if fields.get(field):
            raise BadWeights(
                f"its preprocessor's {field} is {fields[field]!r}, which {effect}; "
                "vitkit does not do that"
            )
    return family, fields


def _unknown_class(name: str, json: dict) -> str:
    """The error message for an unknown class, which names the class and its own fields."""
    known = {"image_processor_type", "feature_extractor_type", "processor_class", "crop_size"}
    known |= EVERY_CLASS.keys() | DEFAULTS["Beit"].keys() | DEFAULTS["Siglip2"].keys()
    known |= {"do_convert_rgb", "data_format", "input_data_format", "auto_map"}
    own = sorted(field for field, value in json.items() if field not in known and value)
    beside = ""
    if own:
        beside = f", with {some([printable_name(field) for field in own])}"
    return (
        f"its preprocessor's image_processor_type is {name[:100]!r}{beside}, but vitkit does not know what "
        "that does with pixels; if it prepares images like one of "
        f"{', '.join(f'{family}ImageProcessor' for family in DEFAULTS)}, name that one in "
        "preprocessor_config.json"
    )


def _size_of_patches(json: dict, patch: int) -> tuple[int, int]:
    """The size with the largest number of patches of an image in its own aspect ratio. Raises VitkitError
    for other patches than the model's, and for an invalid number."""
    if json["patch_size"] != patch:
        raise BadWeights(
            f"its preprocessor's patch_size is {json['patch_size']}, but the model's is {patch}; "
            "they must be equal"
        )
    most = json["max_num_patches"]
    if not 1 <= most <= MOST_TOKENS:
        raise BadWeights(
            f"its preprocessor's max_num_patches is {most}; it is a number from 1 to {MOST_TOKENS:,}"
        )
    rows, columns = squarest(most)
    return rows * patch, columns * patch


def _geometry(family: str, json: dict) -> tuple[Rule, tuple[int, int], tuple[int, int] | None]:
    """The rule of the resize, its (height, width), and the size of the crop after it, or None."""
    size = json["size"]
    rule: Rule = "square"
    if (isinstance(size, dict) and "shortest_edge" in size) or (
        isinstance(size, int) and not json["default_to_square"]
    ):
        rule = "shorter"
    rule, resized, crop = _resize_of_class(family, json, rule, _pair("size", size))
    if not json["do_center_crop"]:
        return rule, resized, crop
    if "crop_size" not in json:
        raise BadWeights("its preprocessor crops the centre, but has no crop_size")
    if not json["do_resize"]:
        raise BadWeights(
            "its preprocessor's do_resize is false but its do_center_crop true, so the model sees a "
            "part of an image at its own scale; vitkit resizes before a crop"
        )
    crop_size = _pair("crop_size", json["crop_size"])
    if crop is not None and crop != crop_size:
        raise BadWeights(
            f"its preprocessor crops twice, to {crop[0]} x {crop[1]} (size) and then to "
            f"{crop_size[0]} x {crop_size[1]} (crop_size); vitkit crops once"
        )
    return rule, resized, crop_size


def _resize_of_class(
    family: str, json: dict, rule: Rule, size: tuple[int, int]
) -> tuple[Rule, tuple[int, int], tuple[int, int] | None]:
    """The meaning of `size` for a class: the rule, the (height, width) of the resize, and the size of a
    crop, or None. Most classes resize to `size` itself."""
    if family == "Levit" and rule == "shorter":
        side = int(256 / 224 * size[0])
        return rule, (side, side), None
    if family == "PoolFormer" and json["crop_pct"] is not None:
        height, width = (int(side / _crop_pct(json)) for side in size)
        if height == width:  # equal numbers mean the shorter side too
            rule = "shorter"
        return rule, (height, width), None
    if family == "ConvNext":
        if rule != "shorter":
            raise BadWeights(
                f"its preprocessor's size is {json['size']!r}; a ConvNextImageProcessor's has a "
                "shortest_edge"
            )
        if size[0] >= 384:
            return "square", size, None
        side = int(size[0] / _crop_pct(json))
        return rule, (side, side), size
    return rule, size, None


def _crop_pct(json: dict) -> float:
    """The part of an image's side that remains after a crop."""
    value = json["crop_pct"]
    if not _is_number(value) or not 0 < value <= 1:
        raise BadWeights(f"its preprocessor's crop_pct is {value!r}; it is a number from 0 to 1")
    return value


def _check_crop(json: dict, rule: str, resized: tuple[int, int], crop: tuple[int, int]) -> None:
    """Raise VitkitError for a crop that a Preprocessing cannot express."""
    if rule == "square" and resized[0] != resized[1]:
        raise BadWeights(
            f"its preprocessor resizes to {resized[0]} x {resized[1]} before a crop; "
            "vitkit resizes to a square"
        )
    if max(crop) > resized[0]:
        raise BadWeights(
            f"its preprocessor's crop_size is {json['crop_size']!r}, larger than the {resized[0]} pixels "
            "that it resizes to, so it adds a black border; vitkit does not"
        )


def _check_padding(json: dict, size: tuple[int, int]) -> None:
    """Raise VitkitError if an image of this (height, width) would be padded. Without a pad_size, images are
    padded to the largest of a batch, but here all have the same size."""
    if not json["do_pad"] or "pad_size" not in json:
        return
    if _pair("pad_size", json["pad_size"]) != size:
        raise BadWeights(
            f"its preprocessor's do_pad is {json['do_pad']!r} and its pad_size {json['pad_size']!r}, so "
            f"images of {size[0]} x {size[1]} are padded; vitkit does not pad"
        )


def _pair(field: str, size: Any) -> tuple[int, int]:
    """(height, width) from any notation. Raises VitkitError for an invalid size, and for a notation that is
    not supported for this field."""
    pair = size
    if isinstance(size, dict) and size.keys() == {"height", "width"}:
        pair = (size["height"], size["width"])
    elif isinstance(size, dict) and size.keys() == {"shortest_edge"} and field == "size":
        pair = (size["shortest_edge"],) * 2
    elif isinstance(size, int):
        pair = (size, size)
    is_pair = isinstance(pair, list | tuple) and len(pair) == 2
    if not is_pair or not all(isinstance(side, int) and side > 0 for side in pair):
        raise BadWeights(
            f"its preprocessor's {field} is {size!r}; vitkit reads pixels: a number, height and width, "
            "or, for size, only the shortest_edge"
        )
    height, width = pair
    return height, width


def _values(family: str, json: dict) -> dict:
    """Interpolation, mean and standard deviation, as settings of a Preprocessing."""
    resample = json["resample"]
    if not isinstance(resample, int | str) or resample not in RESAMPLE:
        raise BadWeights(
            f"its preprocessor's resample is {resample!r}; "
            "vitkit knows 2 (bilinear) and 3 (bicubic)"
        )
    interpolation = RESAMPLE[resample]
    # Bicubic interpolation may exceed the range of the pixels. Bytes are clipped to it, floats are not
    if family == "DINOv3ViT" and interpolation == "bicubic" and json["do_rescale"]:
        raise BadWeights(
            f"its preprocessor's resample is {resample!r}, and a DINOv3ViTImageProcessor resizes floats without "
            "clipping; vitkit resizes bytes, which gives another bicubic image (2, bilinear, is equal)"
        )
    mean, std = _statistics(json)
    return {"interpolation": interpolation, "mean": mean, "std": std}


def _statistics(json: dict) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation for levels from 0 to 1.

    A processor may multiply pixels by another factor f than 1 / 255 before it subtracts the mean:

    (x f - mean) / std = (x / 255 - mean / (255 f)) / (std / (255 f))
    """
    factor = 1.0
    if json["do_rescale"]:
        factor = json["rescale_factor"]
    if not _is_number(factor) or factor <= 0:
        raise BadWeights(f"its preprocessor's rescale_factor is {factor!r}; it is above 0")
    mean = [0.0] * 3
    std = [1.0] * 3
    if json["do_normalize"]:
        mean = _of_channels(json, "image_mean")
        std = _of_channels(json, "image_std")
    channels = max(len(mean), len(std))
    if len(mean) == 1:
        mean = mean * channels
    if len(std) == 1:
        std = std * channels
    scale = 255 * factor
    if abs(scale - 1) < 1e-6:  # 1 / 255, rounded: published numbers are not changed
        scale = 1.0
    scaled_mean = tuple(value / scale for value in mean)
    scaled_std = tuple(value / scale for value in std)
    return scaled_mean, scaled_std


def _of_channels(json: dict, field: str) -> list[float]:
    """A mean or a standard deviation for each channel; a single number applies to red, green and blue."""
    values = json[field]
    if _is_number(values):
        return [values] * 3
    if not isinstance(values, list | tuple) or not all(_is_number(value) for value in values):
        raise BadWeights(
            f"its preprocessor's {field} is {values!r}; it is a number, or one for each channel"
        )
    return list(values)


def _is_number(value: object) -> bool:
    """Whether a value is a finite number, and not a boolean."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return isfinite(value)
