"""Google's .npz files of Vision Transformers and hybrids.

They come from google-research/vision_transformer (the paper's, AugReg, SAM, fine-tuned ones) and
big_vision, and contain the same arrays with different spellings (names.py). The rules here use the
spelling of big_vision's models/vision_transformer.py.
"""

from dataclasses import replace
from pathlib import Path

from torch import Tensor

from vitkit.data import Preprocessing
from vitkit.models import DIALECTS, Grid, ModelConfig, ViTConfig
from vitkit.models.pooling import PoolName
from vitkit.weights.adoption import rebuilt
from vitkit.weights.classifier import Classifier, Description
from vitkit.weights.files.content import Tensors
from vitkit.weights.files.directory import Opened
from vitkit.weights.formats.encoders import FLAX, BlockNames, PartNames, encoder_rules, settings_of
from vitkit.weights.formats.format import (
    Elsewhere,
    Format,
    Tidied,
    another_dialect,
    another_eps,
    another_gelu,
    beyond_vit,
    has_end,
    reasons,
)
from vitkit.weights.formats.google.names import BIG_VISION, ORIGINAL, Spelling, spelled, tidy_names
from vitkit.weights.formats.resnets import ResNetNames, backbone_rules, with_stem
from vitkit.weights.formats.shapes import shape_of, table_of
from vitkit.weights.hints import Hints
from vitkit.weights.outputs import usual_labels
from vitkit.weights.rules import Rule

ROOT = "conv_root/kernel"
# The ResNet below a hybrid: vit_jax/models_resnet.py
VIT_JAX_NAMES = ResNetNames(
    root=ROOT,
    root_norm="gn_root",
    unit="block{stage}/unit{unit}/",
    conv="conv{n}/kernel",
    norm="gn{n}",
    shortcut="conv_proj/kernel",
    shortcut_norm="gn_proj",
    norm_ends=("/scale", "/bias"),
)
ATTENTION = "MultiHeadDotProductAttention_0"
EXPAND = "MlpBlock_0/Dense_0"
CONTRACT = "MlpBlock_0/Dense_1"
QKV = tuple(f"{ATTENTION}/{part}" for part in ("query", "key", "value"))
# Names in big_vision's spelling
NAMES = PartNames(
    patches="embedding",
    cls="cls",
    positions="pos_embedding",
    block=BlockNames(
        prefix="Transformer/encoderblock_{i}/",
        first_norm="LayerNorm_0",
        qkv=QKV,
        out=f"{ATTENTION}/out",
        norm="LayerNorm_1",
        expand=EXPAND,
        contract=CONTRACT,
    ),
    norm="Transformer/encoder_norm",
    probe="MAPHead_0/probe",
    pool=BlockNames(
        prefix="MAPHead_0/",
        qkv=QKV,
        out=f"{ATTENTION}/out",
        norm="LayerNorm_0",
        expand=EXPAND,
        contract=CONTRACT,
    ),
    representation="pre_logits",
    head="head",
)


def recognises(tensors: Tensors) -> bool:
    """Recognise a model by the convolution that makes patches, "embedding" in both code bases."""
    return has_end(tensors, "embedding/kernel")


def tidy(tensors: Tensors) -> Tidied:
    """The image model's tensors in big_vision's spelling."""
    tidied, notes, layout = tidy_names(tensors)
    return Tidied(tidied, tuple(notes), str(layout))


def describe(opened: Opened, tidied: Tidied, hints: Hints) -> Description:
    """The description that follows from the shapes and the constants of Google's code: mean and deviation
    0.5, tanh GELU, eps 1e-6."""
    tensors = tidied.tensors

    settings = settings_of(tensors, NAMES, FLAX)
    settings, tiling = with_stem(settings, tensors, (VIT_JAX_NAMES,), DIALECTS["google"])
    grid, positions, positions_note = _positions(tidied, tiling.size, hints.image or None)

    # flax stores the heads separately, (D, H, E), so their number is known
    heads = shape_of(tensors, f"Transformer/encoderblock_0/{QKV[0]}/kernel", 3)[1]
    pool, pool_note = _pool(tensors)
    if hints.pool:
        pool_note = []
    config = ViTConfig(
        **settings,
        **positions,
        heads=heads,
        image=tiling.image(grid),
        pool=pool,
        gelu="tanh",
        eps=1e-6,
        resample="google",
    )
    labels, labels_note = usual_labels(config.classes)
    notes = (*positions_note, *pool_note, *labels_note)
    # Transformers' preprocessing for these weights. Google's own evaluation resized without antialiasing
    # (tf.image.resize in vit_jax/input_pipeline.py)
    preprocessing = Preprocessing(size=config.image)
    return Description(config, preprocessing, labels, notes)


def _pool(tensors: Tensors) -> tuple[PoolName, list[str]]:
    """The pooling that follows from the parameters, and a note if it is ambiguous."""
    if "MAPHead_0/probe" in tensors:
        return "map", []
    if "cls" in tensors:
        return "token", []
    note = (
        'pooling: the mean of the patches; the file does not distinguish it from pool_type "0", the first '
        "patch (`pool='corner'`)"
    )
    return "gap", [note]


def _positions(
    tidied: Tidied, patch: Grid, image: tuple[int, int] | None
) -> tuple[Grid, dict, list[str]]:
    """The grid of patches, the settings of a ViTConfig on positions, and notes."""
    tensors = tidied.tensors

    # big_vision's sincos2d positions are computed, so files do not contain them
    if "pos_embedding" not in tensors:
        height, width = image or (224, 224)
        grid = (height // patch[0], width // patch[1])
        note = "positions: none in the file, so big_vision's fixed sines and cosines"
        if not image:
            note += ", for 224 x 224 pixels, which the file does not state (otherwise: `image`)"
        return grid, {"positions": "sincos"}, [note]

    # The paper's code adds the table after the class token, which therefore has a row; it is recognised by
    # the table's name. big_vision adds the table before (models/vision_transformer.py), but also has older
    # files, so there the number of rows decides
    rows = shape_of(tensors, "pos_embedding", 3)[1]
    tokens: tuple[int, ...] = (int("cls" in tensors),)
    of_big_vision = Spelling.parse(tidied.layout).table != ORIGINAL.table
    if of_big_vision:
        tokens += (0,)
    grid, prefix_positions, notes = table_of(rows, tokens, patch, image, either=of_big_vision)
    return grid, {"positions": "learned", "prefix_positions": prefix_positions}, notes


def rules(config: ViTConfig) -> list[Rule]:
    """The table of rules, in big_vision's spelling."""
    table = []
    if config.stem:
        table += backbone_rules(config.stem, "stem.", VIT_JAX_NAMES)
    return table + encoder_rules(config, NAMES, FLAX)


def spell(tensors: dict[str, Tensor], config: ViTConfig, layout: str) -> dict[str, Tensor]:
    """Tensors in a layout. Without one, in that of the paper's code, which both code bases read, if it can
    express the model; otherwise in big_vision's."""
    if layout:
        return spelled(tensors, Spelling.parse(layout), config.depth)
    every_token_has_a_position = (
        config.positions == "learned" and config.prefix_rows == config.prefix
    )
    if every_token_has_a_position and config.pool != "map":
        return spelled(tensors, ORIGINAL, config.depth)
    return spelled(tensors, BIG_VISION, config.depth)


def cannot(config: ViTConfig) -> list[str]:
    """The parts of a model that Google's ViT lacks (models_vit.py in vit_jax, models/vision_transformer.py in
    big_vision). It has at most one class token, and reads it if there is one, so it has no registers."""
    # Without pooling ("none") the head has an output for every token, including the class token
    is_read = config.pooling.extends_class_token or not config.pools
    unread_token = config.prefix and not is_read
    return beyond_vit(config, ("learned", "sincos"), stems=True, has=("rectangles",)) + reasons(
        {
            "registers": config.registers,
            "a norm after the pooling": config.norm == "pooled",
            "a class token that the head does not read": unread_token,
        }
    )


def differs(config: ViTConfig) -> list[str]:
    """The settings that differ from flax: tanh form of the GELU, eps 1e-6 of LayerNorm, the ResNet's
    dialect."""
    dialect = another_dialect(config.stem, DIALECTS["google"])
    return another_gelu(config, "tanh") + another_eps(config) + dialect


def open_elsewhere(classifier: Classifier, path: Path) -> Elsewhere | None:
    """The weights with the arithmetic of Google's code; None if that is vitkit's too."""
    config = classifier.model.config
    assert isinstance(config, ViTConfig)  # by FORMAT.kinds
    if not differs(config):
        return None
    stem = config.stem
    if stem is not None:
        stem = replace(stem, **DIALECTS["google"])
    return as_google_computes(classifier, replace(config, gelu="tanh", eps=1e-6, stem=stem))


def as_google_computes(classifier: Classifier, config: ModelConfig) -> Elsewhere:
    """The classifier's weights in a model with the configuration of Google's code.

    Google's code needs JAX, which vitkit does not require, and its arithmetic is fixed. So vitkit itself
    computes with the constants of Google's code.
    """
    model = rebuilt(classifier.model, config)
    return Elsewhere("the same weights with the arithmetic of Google's code", model)


FORMAT = Format(
    name="google",
    kinds=("vit",),
    recognises=recognises,
    describe=describe,
    rules=rules,
    tidy=tidy,
    spell=spell,
    cannot=cannot,
    differs=differs,
    endings=(".npz",),
    open_elsewhere=open_elsewhere,
)
