"""torchvision's Vision Transformers (vit_b_16 and others), with the names of every version.

torchvision's code: torchvision/models/vision_transformer.py.
"""

from math import prod
from pathlib import Path

from torch import nn

from vitkit.data import Preprocessing
from vitkit.data.images.preprocessing import Interpolation
from vitkit.models import ViTConfig
from vitkit.weights.classifier import Classifier, Description
from vitkit.weights.files.content import Tensors
from vitkit.weights.files.directory import Opened, load_state_dict
from vitkit.weights.formats.encoders import BlockNames, PartNames, encoder_rules, settings_of
from vitkit.weights.formats.format import (
    Elsewhere,
    Format,
    Tidied,
    another_eps,
    another_gelu,
    beyond_vit,
    has_end,
    reasons,
    without_prefix,
)
from vitkit.weights.formats.shapes import IMAGENET, grid_of, heads_of, shape_of
from vitkit.weights.hints import Hints
from vitkit.weights.outputs import usual_labels
from vitkit.weights.rules import Rule, position_table

PATCHES = "conv_proj.weight"
NAMES = PartNames(
    patches="conv_proj",
    cls="class_token",
    positions="encoder.pos_embedding",
    block=BlockNames(
        prefix="encoder.layers.encoder_layer_{i}.",
        first_norm="ln_1",
        # torch.nn.MultiheadAttention stores q, k and v in one matrix, as vitkit does, under an unusual name
        qkv=("self_attention.in_proj",),
        qkv_ends=("_weight", "_bias"),
        out="self_attention.out_proj",
        norm="ln_2",
        expand="mlp.0",
        contract="mlp.3",
    ),
    norm="encoder.ln",
    representation="heads.pre_logits",
    head="heads.head",
)
# Version 1 of torchvision's MLPBlock has names for its layers, version 2 is a Sequential (see
# MLPBlock._load_from_state_dict). Pattern of a name in a file -> the name that the rules use.
RENAMED = {r"\.mlp\.linear_1\.": ".mlp.0.", r"\.mlp\.linear_2\.": ".mlp.3."}


def recognises(tensors: Tensors) -> bool:
    """Recognise a model by the convolution that makes patches."""
    return has_end(tensors, PATCHES)


def tidy(tensors: Tensors) -> Tidied:
    """Convert names to the newest version, without a prefix that training added."""
    return Tidied(without_prefix(tensors, PATCHES, RENAMED))


def describe(opened: Opened, tidied: Tidied, hints: Hints) -> Description:
    """The description that follows from the shapes; the file does not contain the preprocessing."""
    tensors = tidied.tensors
    settings = settings_of(tensors, NAMES)
    height, width = settings["patch"]
    positions = shape_of(tensors, NAMES.positions, 3)[1]
    # The class token has a position
    rows, columns = grid_of(positions - 1, (height, width), hints.image or None)
    heads, heads_note = heads_of(settings["width"], settings["mlp"], hints.heads)
    config = ViTConfig(
        **settings,
        heads=heads,
        image=(rows * height, columns * width),
        # Constants in torchvision's code
        gelu="erf",
        eps=1e-6,
        resample="torchvision",
    )
    preprocessing, preprocessing_note = _usual_preprocessing(config.image)
    labels, labels_note = usual_labels(config.classes)
    notes = (*heads_note, preprocessing_note, *labels_note)
    return Description(config, preprocessing, labels, notes)


def _usual_preprocessing(image: tuple[int, int]) -> tuple[Preprocessing, str]:
    """The preprocessing of most of torchvision's models of this size, and a note.

    torchvision defines it in code (ViT_B_16_Weights and others), not in the files.
    """
    interpolation: Interpolation
    if image == (224, 224):
        resize = 256
        interpolation = "bilinear"
        usual = "256 to 224, bilinear"
    else:
        resize = max(image)
        interpolation = "bicubic"
        usual = f"{resize}, bicubic"
    preprocessing = Preprocessing(
        size=image, rule="shorter", resize=resize, interpolation=interpolation, **IMAGENET
    )
    note = (
        f"preprocessing: not in the file, so torchvision's usual one ({usual}); its L/16 has 242, "
        "its SWAG models bicubic (`resize`, `interpolation`)"
    )
    return preprocessing, note


def rules(config: ViTConfig) -> list[Rule]:
    """The rules for torchvision's VisionTransformer, whose position table has a row for every token."""
    positions = position_table(config.prefix_rows, config.prefix, prod(config.grid))
    return encoder_rules(config, NAMES, positions=positions)


def cannot(config: ViTConfig) -> list[str]:
    """The parts of a model that torchvision lacks: its VisionTransformer supports only the class token, and
    square colour images."""
    height, width = config.image
    return beyond_vit(config) + reasons(
        {
            f'pooling by "{config.pool}"': config.pool != "token",
            "registers": config.registers,
            f"images of {height} x {width}, not square": height != width,
            f"images of {config.channels} channels": config.channels != 3,
            "a representation layer without a head": config.representation and not config.classes,
        }
    )


def differs(config: ViTConfig) -> list[str]:
    """MLPBlock has nn.GELU, the erf form, and every LayerNorm has eps 1e-6."""
    return another_gelu(config, "erf") + another_eps(config)


def open_elsewhere(classifier: Classifier, path: Path) -> Elsewhere:
    """torchvision's model with exactly the file's tensors."""
    from torchvision import __version__
    from torchvision.models import VisionTransformer

    config = classifier.model.config
    assert isinstance(config, ViTConfig)  # by FORMAT.kinds
    model = VisionTransformer(
        image_size=config.image[0],
        patch_size=config.patches.size[0],
        num_layers=config.depth,
        num_heads=config.heads,
        hidden_dim=config.width,
        mlp_dim=config.mlp,
        num_classes=config.classes or 1,  # without a head, the layer is replaced below
        representation_size=config.representation or None,
    )
    if not config.classes:  # torchvision always makes a head
        model.heads = nn.Identity()
    model.load_state_dict(load_state_dict(path), strict=True)
    return Elsewhere(f"torchvision {__version__}", model)


FORMAT = Format(
    name="torchvision",
    kinds=("vit",),
    recognises=recognises,
    describe=describe,
    rules=rules,
    tidy=tidy,
    first=PATCHES,
    head=NAMES.head,
    cannot=cannot,
    differs=differs,
    endings=(".safetensors", ".pth", ".pt"),
    open_elsewhere=open_elsewhere,
)
