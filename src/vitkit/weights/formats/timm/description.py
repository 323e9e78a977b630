"""The description of a Vision Transformer in timm's files: from shapes, from config.json, and by convention."""

import re
from dataclasses import replace
from math import floor
from typing import Any, Literal

from vitkit.data import Preprocessing
from vitkit.models import DIALECTS, Grid, ViTConfig
from vitkit.system.errors import BadWeights
from vitkit.weights.classifier import Description
from vitkit.weights.files.content import Tensors
from vitkit.weights.files.directory import FOLDER_FILES, Opened
from vitkit.weights.formats.encoders import settings_of
from vitkit.weights.formats.format import Tidied, has_end
from vitkit.weights.formats.resnets import with_stem
from vitkit.weights.formats.rest import without_rest
from vitkit.weights.formats.shapes import IMAGENET, STATISTICS, heads_of, shape_of, table_of
from vitkit.weights.formats.timm.architectures import Architecture, architecture_called
from vitkit.weights.formats.timm.config import (
    GELU,
    NO_TABLE,
    POOLS,
    architecture_name,
    check_arguments,
    input_size,
    labels_of,
    pretrained_cfg,
    written_preprocessing,
)
from vitkit.weights.formats.timm.names import NAMES, RESNET, ROOT_ALONE
from vitkit.weights.hints import Hints

GUESSED = "GUESSED: "
NAME = "its name"  # source of an architecture that is known from the name of a file


def describe(opened: Opened, tidied: Tidied, hints: Hints) -> Description:
    """The description that follows from the shapes, and from timm's own config.json if there is one."""
    tensors = tidied.tensors
    json = opened.config
    arguments = json.get("model_args") or {}
    check_arguments(arguments)
    name, known, where = _architecture(opened)

    # From the image to the tokens
    settings = settings_of(tensors, NAMES)
    name_note: list[str] = []
    if known and where == NAME:
        known, name_note = _if_compatible(known, tensors, settings)
    elif known and not name:
        name_note = [f"architecture: timm's {known.name}, by {where}"]
    settings, tiling = with_stem(settings, tensors, (RESNET, ROOT_ALONE), DIALECTS["timm"])
    prefix = settings["class_token"] + settings["registers"]
    grid, positions, positions_note = _positions(opened, tensors, known, prefix, tiling.size, hints)
    embedding_norm = "norm_pre.weight" in tensors

    # Blocks
    mlp = settings["mlp"]
    swiglu = shape_of(tensors, "blocks.0.mlp.fc1.weight", 2)[0] == 2 * mlp
    gelu, gelu_note = _gelu(arguments, known, embedding_norm, swiglu)
    branch_norm, branch_norm_note = _branch_norm(tidied, known)
    given_heads = arguments.get("num_heads")
    if not given_heads and known and known.width == settings["width"]:
        given_heads = known.heads
    heads, heads_note = heads_of(settings["width"], mlp, given_heads or hints.heads)
    # A tensor exists: this is the value with which LayerScale's factors would be initialised
    layer_scale = None
    if "blocks.0.ls1.gamma" in tensors:
        layer_scale = arguments.get("init_values") or 1e-5  # DINOv2's

    # Head
    pool, pool_note = _pool(tensors, json, known, prefix, positions["positions"])
    if hints.pool:
        pool_note = []
    norm: Literal["pooled", "tokens"] = "pooled" if "fc_norm.weight" in tensors else "tokens"

    # Strings from tables, which ViTConfig checks
    of_table: dict[str, Any] = {"pool": pool, "gelu": gelu, "branch_norm": branch_norm}
    config = ViTConfig(
        **settings,
        **positions,
        heads=heads,
        image=tiling.image(grid),
        **of_table,
        norm=norm,
        swiglu=swiglu,
        embedding_norm=embedding_norm,
        eps=_eps(arguments, known, embedding_norm or positions["positions"] == "rotary-dinov3"),
        resample="timm",
        layer_scale=layer_scale,
    )
    preprocessing, preprocessing_note = _preprocessing(opened, config)
    preprocessing, rest_note = without_rest(preprocessing, config, "timm")
    guesses = [note for note in positions_note if note.startswith(GUESSED)]
    positions_note = [note for note in positions_note if note not in guesses]
    if name and not known:
        guesses.append(
            f"GUESSED: vitkit does not know timm's architecture {name[:100]}, so only its tensors determine what "
            "it computes; another activation, number of heads or kind of positions would go unnoticed"
        )
    if not pretrained_cfg(json) and not hints.statistics:
        preprocessing, guess = _guessed_statistics(opened, config, preprocessing)
        guesses.append(guess)
    labels, labels_note = labels_of(json, config.classes)
    notes = (
        *name_note,
        *positions_note,
        *heads_note,
        *pool_note,
        *gelu_note,
        *branch_norm_note,
        *preprocessing_note,
        *rest_note,
        *labels_note,
    )
    return Description(config, preprocessing, labels, notes, guess="\n  ".join(guesses))


def _architecture(opened: Opened) -> tuple[str, Architecture | None, str]:
    """timm's name of the model in config.json, "" without one; the architecture with that name, or with the
    name in the checkpoint or of the file; and the source of the name. Raises VitkitError for an architecture
    that vitkit cannot read."""
    name = architecture_name(opened.config)
    if name:
        return name, architecture_called(name), "config.json"

    # A name in the checkpoint, as timm's training and others write it
    known = architecture_called(opened.architecture)
    if known and known.refused:
        raise BadWeights(
            f"it is timm's {known.name} by its checkpoint, {known.refused}, which vitkit cannot "
            "read; if it is another model, save its state dict alone"
        )
    if known:
        return "", known, "the name in the checkpoint"

    named = opened.path.name
    if opened.path.name in FOLDER_FILES:
        named = opened.path.resolve().parent.name
    known = architecture_called(named)
    if known and known.refused:
        raise BadWeights(
            f"it has the name of timm's {known.name}, {known.refused}, which vitkit cannot read; "
            "rename it if it is another model"
        )
    return "", known, NAME


def _if_compatible(
    known: Architecture, tensors: Tensors, settings: dict
) -> tuple[Architecture | None, list[str]]:
    """The architecture that the name of a file suggests, if the tensors are compatible with it; otherwise
    None. With a note."""
    expected = (known.width, known.patch, known.class_token, known.pool == "map")
    has_pool = "attn_pool.latent" in tensors
    found = (settings["width"], settings["patch"][0], settings["class_token"], has_pool)
    if expected == found:
        return known, [f"architecture: timm's {known.name}, by {NAME}"]
    return None, [
        f"architecture: not timm's {known.name}, as {NAME} suggests, because its tensors differ"
    ]


def _eps(arguments: dict, known: Architecture | None, is_recent: bool) -> float:
    """The eps of all norms: that of config.json or the architecture; otherwise the usual one, which is
    larger for CLIP and DINOv3."""
    if arguments.get("norm_layer"):  # timm's own class, with this default
        return 1e-6
    if known:
        return known.eps
    return 1e-5 if is_recent else 1e-6


def _positions(
    opened: Opened,
    tensors: Tensors,
    known: Architecture | None,
    prefix: int,
    patch: Grid,
    hints: Hints,
) -> tuple[Grid, dict, list[str]]:
    """The grid, the settings of positions, and notes. `prefix` tokens are before the patches. Raises
    VitkitError if the kind of positions is unknown."""
    image = hints.image or input_size(opened.config)

    # No table: no positions, or rotary ones, which have no tensors
    if "pos_embed" not in tensors:
        return _without_table(tensors, opened.config, known, prefix, patch, image)
    if known and known.positions != "learned":
        raise BadWeights(f"it has a table of positions, unlike timm's {known.name}")
    if not known and "attn_pool.latent" in tensors and "norm_pre.weight" in tensors:
        raise BadWeights(
            "it has attention pooling and a norm before the blocks (attn_pool, norm_pre), like Perception "
            "Encoders, whose positions are both added and rotary: vitkit cannot read those"
        )
    if not known and has_end(opened.tensors, ".attn.q_bias"):
        raise BadWeights(
            "it has biases of q and v only, and a position table (attn.q_bias), like EVA, EVA-02 and BEiT. "
            "Some of these have both added and rotary positions, which tensors do not show; put "
            "timm's config.json beside it, which names its architecture"
        )

    # Tokens that have a position: all, none, or only the class token
    tokens: tuple[int, ...] = (prefix, 0)
    if "registers" in tensors and "cls_token" in tensors:
        tokens = (prefix, 0, 1)
    rows = shape_of(tensors, "pos_embed", 3)[1]
    grid, prefix_positions, notes = table_of(rows, tokens, patch, image)
    if not known and has_end(opened.tensors, ".gamma_1"):
        notes.append(
            f"{GUESSED}positions are only added, as in DeiT III, and not also rotary, as in timm's "
            "vit_*_rope_ape_*, which has the same names (gamma_1) and which vitkit cannot read"
        )
    return grid, {"positions": "learned", "prefix_positions": prefix_positions}, notes


def _without_table(
    tensors: Tensors,
    json: dict,
    known: Architecture | None,
    prefix: int,
    patch: Grid,
    image: tuple[int, int] | None,
) -> tuple[Grid, dict, list[str]]:
    """The grid, settings and notes of a model without a table of positions."""
    arguments = json.get("model_args") or {}
    notes = []
    if arguments.get("pos_embed") in NO_TABLE:
        kind = "none"
    elif known and known.positions != "learned":
        kind = known.positions
    elif known:
        raise BadWeights(f"it has no table of positions (pos_embed), which timm's {known.name} has")
    elif "blocks.0.ls1.gamma" in tensors and "cls_token" in tensors and prefix > 1:
        kind = "rotary-dinov3"
        notes.append("positions: no table in the file, so DINOv3's rotary ones")
    else:
        raise BadWeights(
            "it has no table of positions (pos_embed), and its kind of positions is unknown; put timm's "
            "config.json beside it, which names its architecture"
        )

    # The image size of the training, by which rotary positions are scaled
    settings: dict = {"positions": kind}
    if known and known.trained_grid:
        image = input_size(json) or image
        settings["position_grid"] = (known.trained_grid, known.trained_grid)
    height, width = image or (224, 224)
    if not image:
        notes.append(f"images: of {height} x {width} pixels, which the file does not state")
    return (height // patch[0], width // patch[1]), settings, notes


def _pool(
    tensors: Tensors, json: dict, known: Architecture | None, prefix: int, positions: str
) -> tuple[str, list[str]]:
    """The pooling of a model with `prefix` tokens before the patches: from its parameters, from
    config.json, or the usual one, with a note. Raises VitkitError for a pooling that vitkit lacks."""
    arguments = json.get("model_args") or {}
    # timm's EVA code, which includes its models with rotary positions, always does
    is_of_eva = positions.startswith("rotary") or (known and known.name.startswith("eva"))
    pools_all = arguments.get("pool_include_prefix") or (
        is_of_eva and "attn_pool.latent" in tensors
    )
    if pools_all and prefix:
        raise BadWeights(
            "its pooling includes the tokens before the patches (timm's pool_include_prefix); "
            "vitkit's reads only the patches"
        )
    if "head_dist.weight" in tensors:
        return "distilled", []
    if "attn_pool.latent" in tensors:
        return "map", []

    # From config.json
    global_pool = json.get("global_pool", arguments.get("global_pool"))
    has_mean = "fc_norm.weight" in tensors or "cls_token" not in tensors
    if global_pool is None and known and not has_mean:
        global_pool = POOLS[known.pool]
    if global_pool is not None:
        pools = {theirs: ours for ours, theirs in POOLS.items() if ours != "map"}
        if global_pool not in pools:
            raise BadWeights(
                f"its global_pool is {global_pool!r}; vitkit supports timm's token, avg, map "
                "(with its attn_pool) and none"
            )
        return pools[global_pool], []

    # By convention
    otherwise = "the file does not state it (otherwise: `pool`)"
    if positions == "rotary-dinov3" and "head.weight" in tensors:
        return "gap", [f"pooling: the mean of the patches, timm's default for DINOv3; {otherwise}"]
    if has_mean:
        return "gap", [f"pooling: the mean of the patches; {otherwise}"]
    return "token", [f"pooling: the class token; {otherwise}"]


def _gelu(
    arguments: dict, known: Architecture | None, is_clip: bool, swiglu: bool
) -> tuple[str, list[str]]:
    """The form of the GELU, and a note if it is a guess. Raises VitkitError for an unknown one, and for a
    gate with another activation than a SwiGLU's."""
    act = arguments.get("act_layer")
    if swiglu and act not in (None, "silu", "swish"):
        raise BadWeights(f"its act_layer is {act!r}; the gate of a SwiGLU has silu")
    if swiglu:
        return "erf", []
    if act and act not in GELU:
        raise BadWeights(f"its act_layer is {act!r}; vitkit knows {', '.join(GELU)}")
    if act:
        return GELU[act], []
    if known:
        return known.gelu, []
    notes = []
    if is_clip:
        notes.append(
            "GELU: the erf form, as timm computes models with this name; OpenAI's and Meta's CLIP were "
            "trained with the quick form (timm's names with quickgelu)"
        )
    return "erf", notes


def _branch_norm(tidied: Tidied, known: Architecture | None) -> tuple[str, list[str]]:
    """The position of the blocks' norms, and a note if it is a guess, as tensors do not show it."""
    if known:
        return known.branch_norm, []

    # Among published models only timm's rpn has neither class token, LayerScale nor biases of q
    tensors = tidied.tensors
    no_biases = "blocks.0.attn.qkv.bias" not in tensors
    if no_biases and "cls_token" not in tensors and "blocks.0.ls1.gamma" not in tensors:
        note = (
            "norms: after attention and MLP, as in timm's vit_base_patch16_rpn_224, the only model "
            "that is known to have such tensors"
        )
        return "after", [note]
    return "before", []


def _preprocessing(opened: Opened, config: ViTConfig) -> tuple[Preprocessing, list[str]]:
    """The preprocessing in timm's config.json; without one the usual one, with a note. Its mean and
    deviation of 0.5 are those of timm's own ViTs."""
    if written := written_preprocessing(opened.config, config.image):
        return written
    resize = max(config.image)
    if config.image == (224, 224):
        resize = floor(224 / 0.9)  # timm's usual crop_pct
    preprocessing = Preprocessing(
        size=config.image, rule="shorter", resize=resize, interpolation="bicubic"
    )
    note = (
        f"preprocessing: not in the file, so timm's usual one: shorter side to {resize}, bicubic "
        "(otherwise: `resize`, `crop`, `interpolation`)"
    )
    return preprocessing, [note]


def _guessed_statistics(
    opened: Opened, config: ViTConfig, preprocessing: Preprocessing
) -> tuple[Preprocessing, str]:
    """The preprocessing with the most likely mean and deviation for a file without a config.json, and a
    sentence with the reason. A wrong guess costs the real ViT-Ti/16 20 points of accuracy, DeiT-Ti 4."""
    if config.embedding_norm:
        return replace(preprocessing, **STATISTICS["clip"]), (
            "GUESSED: images are normalised with CLIP's mean and deviation, as for most models with "
            "a norm before the blocks; otherwise: `statistics='half'`, or imagenet"
        )
    reason = _reason_for_imagenet(opened, config)
    if not reason:
        return preprocessing, (
            "GUESSED: images are normalised with mean and deviation 0.5, as for most of timm's "
            "ViTs; the file does not state them. If it is DeiT's, MAE's or DINO's: "
            "`statistics='imagenet'`"
        )
    return replace(preprocessing, **IMAGENET), (
        f"GUESSED: images are normalised with ImageNet's mean and deviation, {reason}; otherwise: "
        "`statistics='half'`"
    )


def _reason_for_imagenet(opened: Opened, config: ViTConfig) -> str:
    """The reason why a file is probably from DeiT, MAE, DINO or a successor, as text; "" without one.

    Of timm's published models, all distilled ones have ImageNet's statistics, and so have 43 of 49 with a
    class token and LayerScale, but only 24 of 110 with neither.
    """
    if config.pool == "distilled":
        return "as every distilled model (DeiT) has them"
    if config.layer_scale is not None and config.has_class_token:
        return "as most models with LayerScale (DeiT III, DINOv2) have them"
    if opened.wrapper in ("model", "teacher"):
        return (
            f'as training checkpoints with "{opened.wrapper}" in them (DeiT, MAE, DINO) have them'
        )
    if not config.classes and opened.path.suffix == ".pth":
        return "as encoders in a .pth (MAE, DINO) have them"
    if re.search(r"deit|dino|mae", opened.path.name.lower()):
        return "only because of the file's name"
    return ""
