"""The config.json of timm's repositories: reading and writing it, and opening a model with timm.

`json` is the object in that file, {} without a file. Fields that belong to the weights are in its
"pretrained_cfg"; timm's oldest repositories have them at the top level (timm/models/_hub.py,
_parse_model_cfg).
"""

import json as json_files
from math import floor, nextafter
from pathlib import Path
from typing import Any

from PIL import Image
from torch import Tensor

from vitkit.data import Preprocessing
from vitkit.data.images.preprocessing import Interpolation, Rule
from vitkit.models import ModelConfig, Patch, Token, ViTConfig
from vitkit.models.pooling import EachPatch, Means
from vitkit.system.errors import BadWeights
from vitkit.weights.classifier import Classifier
from vitkit.weights.files.directory import load_state_dict
from vitkit.weights.formats.format import Elsewhere, is_before
from vitkit.weights.formats.labels import named_outputs
from vitkit.weights.formats.shapes import IMAGENET
from vitkit.weights.outputs import usual_labels

RULES: dict[str, Rule] = {
    "center": "shorter",
    "squash": "square",
}  # timm's crop_mode -> Preprocessing.rule
CROP_MODES = {rule: mode for mode, rule in RULES.items()}
INTERPOLATIONS: tuple[Interpolation, ...] = ("bilinear", "bicubic")
# timm's defaults for absent and null fields: resolve_data_config (timm/data/config.py)
DEFAULTS: dict[str, Any] = {
    "crop_pct": 0.875,
    "crop_mode": "center",
    "interpolation": "bicubic",
    **IMAGENET,
}
GELU = {  # timm's act_layer -> the form of the GELU
    "gelu": "erf",
    "gelu_tanh": "tanh",
    "quick_gelu": "quick",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
ACTS = {form: act for act, form in GELU.items() if act != "swish"}  # form of the GELU -> act_layer
POOLS = {"token": "token", "gap": "avg", "map": "map", "none": ""}  # pool -> global_pool
OPENS_DIRECTORIES = (1, 0, 26)  # the first version of timm that opens directories of safetensors
ENDINGS = (".safetensors", ".pth", ".pt")

NO_TABLE = ("none", "")  # values of pos_embed for no positions
# Arguments of timm's functions, "model_args" in config.json. These are read from there:
READ_ARGUMENTS = ("img_size", "num_heads", "act_layer", "init_values", "global_pool")
# These follow from tensors:
SHAPES = (
    "patch_size", "in_chans", "num_classes", "embed_dim", "depth", "mlp_ratio", "qkv_bias", "class_token",
    "no_embed_class", "reg_tokens", "qk_norm", "num_reg_tokens", "pre_norm", "fc_norm", "use_fc_norm",
    "use_pre_transformer_norm", "swiglu_mlp", "swiglu_align_to",
)  # fmt: skip
# These affect only training, or images of another size:
TRAINING = (
    "drop_rate", "pos_drop_rate", "patch_drop_rate", "proj_drop_rate", "attn_drop_rate", "drop_path_rate",
    "weight_init", "fix_init", "head_init_scale", "dynamic_img_size", "dynamic_img_pad", "strict_img_size",
    "rope_shift_coords", "rope_jitter_coords", "rope_rescale_coords", "device", "dtype", "pretrained",
)  # fmt: skip
# These must have one of these values:
USUAL = {
    "pos_embed": ("learn", *NO_TABLE),
    "norm_layer": ("layernorm", "rmsnorm"),
    "pool_include_prefix": (True, False),  # `_pool` refuses True with its own message
    "scale_attn_norm": (False,),
    "scale_mlp_norm": (False,),
    "final_norm": (True,),
    "proj_bias": (True,),
}


def pretrained_cfg(json: dict) -> dict:
    """The fields that belong to the weights; {} if there are none."""
    if "pretrained_cfg" in json:
        return json["pretrained_cfg"] or {}
    if "architecture" in json:
        return json
    return {}


def architecture_name(json: dict) -> str:
    """The name of timm's function for the model; "" if there is none."""
    name = json.get("architecture") or pretrained_cfg(json).get("architecture")
    return str(name or "")


def check_arguments(arguments: dict) -> None:
    """Raise VitkitError for an argument of timm's function that changes what the model computes and that
    vitkit cannot read."""
    for name, value in arguments.items():
        if value is None or name in READ_ARGUMENTS or name in SHAPES or name in TRAINING:
            continue
        if name in USUAL and value in USUAL[name]:
            continue
        raise BadWeights(
            f"its model_args contain {name}: {repr(value)[:60]}, which vitkit cannot read: it may change "
            "what the model computes"
        )


def input_size(json: dict) -> tuple[int, int] | None:
    """(height, width) of the model's images; None if the file does not contain it."""
    arguments = json.get("model_args") or {}
    size = arguments.get("img_size") or pretrained_cfg(json).get("input_size")
    if not isinstance(size, list):
        size = [size, size]
    size = size[-2:]  # input_size is (channels, height, width)
    numbers = all(isinstance(side, int) and side > 0 for side in size)
    if not numbers or len(size) != 2:
        return None
    return tuple(size)


def labels_of(json: dict, classes: int) -> tuple[tuple[str, ...] | None, list[str]]:
    """The names of the classes in the file, or the usual ones, with a note.

    "label_names" is a list, or an object if some outputs have no name; its name was "labels" in timm's
    oldest repositories. Keys of "label_descriptions" are these names, not outputs.
    """
    for fields in (json, pretrained_cfg(json)):
        for field in ("label_names", "labels"):
            labels, notes = named_outputs(field, fields.get(field), classes)
            if labels or notes:
                return labels, notes
    return usual_labels(classes)


def written_preprocessing(
    json: dict, image: tuple[int, int]
) -> tuple[Preprocessing, list[str]] | None:
    """The preprocessing in the file, and notes; None if there is none. Raises VitkitError for one that a
    Preprocessing cannot express."""
    written = pretrained_cfg(json)
    if not written:
        return None
    values = {name: written.get(name) or default for name, default in DEFAULTS.items()}
    size = input_size({"pretrained_cfg": written}) or image
    notes = []
    crop_mode = values["crop_mode"]
    if crop_mode not in CROP_MODES.values():
        raise BadWeights(
            f"its crop_mode is {crop_mode!r}; vitkit supports timm's {', '.join(CROP_MODES.values())}"
        )
    interpolation = values["interpolation"]
    if interpolation not in INTERPOLATIONS:
        raise BadWeights(
            f"its interpolation is {interpolation!r}; vitkit supports timm's {', '.join(INTERPOLATIONS)}"
        )

    # The size before the crop
    crop_pct = values["crop_pct"]
    if not 0 < crop_pct <= 1:
        raise BadWeights(f"its crop_pct is {crop_pct}; it is a number from 0 to 1")
    resize = resize_from_crop_pct(crop_pct, size)
    if crop_mode == "squash" and crop_pct >= 1:  # resized to `size` itself, so there is no crop
        resize = 0
    elif size[0] != size[1]:
        height, width = (floor(side / crop_pct) for side in size)
        notes.append(
            f"preprocessing: timm resizes images to {height} x {width} before the crop, "
            f"or to cover that; vitkit resizes one side or both to {resize}"
        )

    preprocessing = Preprocessing(
        size=size,
        rule=RULES[crop_mode],
        resize=resize,
        interpolation=interpolation,
        mean=tuple(values["mean"]),
        std=tuple(values["std"]),
    )
    return preprocessing, notes


# timm stores the crop as a part of the resized image, vitkit the size of the resized image.
#
# timm resizes an image to height / crop_pct x width / crop_pct, or to cover that in the image's own
# aspect ratio (transforms_imagenet_eval in timm/data/transforms_factory.py). vitkit has one number for
# both sides, so the two are equivalent only for square sizes; for others vitkit's number is that of the
# longer side.


def resize_from_crop_pct(crop_pct: float, size: tuple[int, int]) -> int:
    """Preprocessing.resize for a crop of `size`, rounded down as in timm."""
    return floor(max(size) / crop_pct)


def crop_pct_from_resize(resize: int, size: tuple[int, int]) -> float:
    """Invert `resize_from_crop_pct`: a crop_pct for which it returns exactly this number."""
    if not resize:
        return 1.0
    crop_pct = max(size) / resize
    # Dividing by a rounded quotient may give a value just below `resize`, which would be rounded down
    if resize_from_crop_pct(crop_pct, size) < resize:
        crop_pct = nextafter(crop_pct, 0)
    return crop_pct


def config_json(
    config: ModelConfig,
    preprocessing: Preprocessing,
    labels: tuple[str, ...],
    architecture: dict,
    layers: dict,
) -> dict:
    """The complete config.json. layers: fields of pretrained_cfg with the names of special layers."""
    height, width = preprocessing.size
    crop_mode = CROP_MODES[preprocessing.rule]
    pretrained = {
        "input_size": [config.channels, height, width],
        "interpolation": preprocessing.interpolation,
        "crop_pct": crop_pct_from_resize(preprocessing.resize, preprocessing.size),
        "crop_mode": crop_mode,
        "mean": list(preprocessing.mean),
        "std": list(preprocessing.std),
        "num_classes": config.classes,
        **layers,
    }
    if config.channels != 3:
        # timm (1.0.20, for example) would adapt that layer to other channels than three, and reinitialises
        # it if it has them already
        del pretrained["first_conv"]
    json = {**architecture, "num_classes": config.classes, "pretrained_cfg": pretrained}
    if config.classes:
        json["label_names"] = list(labels)
    return json


# Opening a saved model with timm, for the comparison and for the model card


def open_in_timm(classifier: Classifier, path: Path, name: str, arguments: dict) -> Elsewhere:
    """Open a directory with timm by its config.json. For a file, which has none, create timm's model with
    this name and these arguments, and load exactly its tensors. Raises ImportError without timm."""
    import timm

    library = f"timm {timm.__version__}"
    if path.is_dir() and not is_before(timm.__version__, OPENS_DIRECTORIES):
        return Elsewhere(library, timm.create_model(f"local-dir:{path}", pretrained=True))
    classes = classifier.model.config.classes
    model = timm.create_model(name, num_classes=classes, **arguments)
    file = path
    if path.is_dir():
        file = path / "model.safetensors"
    model.load_state_dict(load_state_dict(file), strict=True)
    return Elsewhere(library, model)


def pixels_in_timm(path: Path, image: Image.Image) -> Tensor:
    """An image (1, 3, h, w) prepared by timm with the settings of a saved directory."""
    from timm.data import create_transform, resolve_data_config

    values = json_files.loads((path / "config.json").read_text("utf-8"))["pretrained_cfg"]
    settings = resolve_data_config(pretrained_cfg=values)
    transform = create_transform(**settings, is_training=False)
    return transform(image)[None]


def example(config: ModelConfig) -> str:
    """Python that opens a directory with timm."""
    return """\
import timm  # 1.0.26 or newer opens directories of safetensors

model = timm.create_model("local-dir:DIRECTORY", pretrained=True)
"""


def example_of_states(config: ViTConfig) -> str:
    """Python that computes the logits of a head on the states of several blocks or parts of an image."""
    read = [
        _python_of(part) for part in config.pooling.reads if not isinstance(part, Patch | EachPatch)
    ]
    parts = ""
    if "*parts" in " ".join(read):
        parts = f"""

def parts(patches, sides):
    grid = patches.mT.unflatten(2, {config.grid})
    return torch.nn.functional.adaptive_avg_pool2d(grid, sides).flatten(2).unbind(2)

"""
    return f"""\
import timm  # 1.0.26 or newer opens directories of safetensors
import torch
from PIL import Image
from safetensors.torch import load_file

encoder = timm.create_model("local-dir:ENCODER", pretrained=True).eval()
settings = timm.data.resolve_model_data_config(encoder)
transform = timm.data.create_transform(**settings, is_training=False)
head = load_file("DIRECTORY/model.safetensors")
{parts}
images = transform(Image.open("IMAGE").convert("RGB"))[None]
with torch.inference_mode():
    blocks = encoder.forward_intermediates(
        images,
        indices={config.read_blocks},
        norm=True,
        output_fmt="NLC",
        return_prefix_tokens=True,
        intermediates_only=True,
    )
    states = []
    for patches, token in blocks:
        states += [{", ".join(read)}]
    logits = torch.cat(states, 1) @ head["head.weight"].T + head["head.bias"]
"""


def _python_of(part: Token | Means) -> str:
    """A part of a pooling in Python, from timm's `token`, (B, T - N, D), and `patches`, (B, N, D)."""
    if isinstance(part, Token):
        return f"token[:, {part.number}]"
    if part.sides == 1:
        return "patches.mean(1)"
    return f"*parts(patches, {part.sides})"
