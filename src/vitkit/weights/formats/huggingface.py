"""Hugging Face's Vision Transformers: ViT, DeiT (distilled too) and the encoder of ViT-MAE, with their image processors.

Written in the spelling of Transformers 4, which every later version reads; read in that of 5 too.
"""

import re
from math import isfinite, prod

from vitkit.data import Preprocessing
from vitkit.models import ViTConfig
from vitkit.weights.classifier import Activation
from vitkit.weights.description import IMAGENET, Description, Hints, beyond, numbered, shape_of
from vitkit.weights.files import Opened, Tensors
from vitkit.weights.rules import THREE, Rule, each, pairs, rows, rule

NAME = "huggingface"
HOLDS = ("vit",)  # kinds of configurations
PATCHES = "embeddings.patch_embeddings.projection.weight"
TYPES = ("vit", "deit", "vit_mae", "vit_msn")
GELU = {
    "gelu": "erf",
    "gelu_python": "erf",
    "gelu_new": "tanh",
    "gelu_pytorch_tanh": "tanh",
    "gelu_fast": "tanh",
}
NEWER = {  # Transformers 5 in memory -> 4 and every file that it writes
    r"^layers\.(\d+)\.": r"encoder.layer.\1.",
    r"\.attention\.q_proj\.": ".attention.attention.query.",
    r"\.attention\.k_proj\.": ".attention.attention.key.",
    r"\.attention\.v_proj\.": ".attention.attention.value.",
    r"\.attention\.o_proj\.": ".attention.output.dense.",
    r"\.mlp\.fc1\.": ".intermediate.dense.",
    r"\.mlp\.fc2\.": ".output.dense.",
}
PROBLEMS = {  # what its problem_type calls the three kinds of outputs
    "softmax": "single_label_classification",
    "sigmoid": "multi_label_classification",
    "none": "regression",
}
RESAMPLE = {2: "bilinear", 3: "bicubic", "bilinear": "bilinear", "bicubic": "bicubic"}
ASIDE = re.compile(
    r"(decoder\..*|.*mask_token)"
)  # of masked image modelling; no classifier reads them


def recognises(tensors: Tensors) -> bool:
    """Whether these are a Vision Transformer's names in this format."""
    return any(name.endswith(PATCHES) for name in tensors)


def describe(opened: Opened, hints: Hints) -> Description:
    """What config.json and preprocessor_config.json say, checked against the tensors later."""
    said, kind = opened.config, opened.config.get("model_type")
    if kind not in TYPES:
        what = f"a model of type {kind!r}" if said else "no config.json beside it"
        raise ValueError(
            f"{opened.path} has Hugging Face's names and {what}; vitkit reads {', '.join(TYPES)}"
        )
    tensors, notes, _ = tidy(opened.tensors)
    act = said.get("hidden_act", "gelu")
    if act not in GELU:
        raise ValueError(
            f"its hidden_act is {act!r}; a Vision Transformer has one of {', '.join(GELU)}"
        )
    if not said.get("qkv_bias", True):
        raise ValueError("its q, k and v have no biases (qkv_bias false), which vitkit's have")
    patch = said.get("patch_size", 16)
    if isinstance(patch, list):
        if len(set(map(str, patch))) != 1:
            raise ValueError(f"its patch_size is {patch}; vitkit's patches are square")
        patch = patch[0]
    image, width = said.get("image_size", 224), said.get("hidden_size", 768)
    heads, prefix = _heads(tensors), 2 if "embeddings.distillation_token" in tensors else 1
    if "pooler.dense.weight" in tensors and heads:
        notes.append("left out: the pooler, which the classifier does not read")
        tensors = {name: lazy for name, lazy in tensors.items() if not name.startswith("pooler.")}
    pooler = "pooler.dense.weight" in tensors
    if pooler and said.get("pooler_act", "tanh") != "tanh":
        raise ValueError(
            f"its pooler_act is {said['pooler_act']!r}; the hidden layer of the paper's head has tanh"
        )
    config = ViTConfig(
        width=width, depth=said.get("num_hidden_layers", 12), mlp=said.get("intermediate_size", 3072),
        heads=said.get("num_attention_heads", 12), patch=patch, image=image, channels=said.get("num_channels", 3),
        classes=shape_of(tensors, f"{heads[0]}.weight", 2)[0] if heads else 0,
        pool="distilled" if len(heads) == 2 else "token", registers=prefix - 1,
        representation=shape_of(tensors, "pooler.dense.weight", 2)[0] if pooler else 0,
        dropout=said.get("hidden_dropout_prob", 0.0), attention_dropout=said.get("attention_probs_dropout_prob", 0.0),
        gelu=GELU[act], eps=said.get("layer_norm_eps", 1e-12), resample="huggingface",
    )  # fmt: skip
    preprocessing, note = _preprocessing(opened.preprocessor, config, kind)
    return Description(
        config,
        preprocessing,
        tensors,
        _labels(said, config.classes),
        (*notes, *note),
        activation=_activation(said),
    )


def rules(config: ViTConfig) -> list[Rule]:
    """The table, without the prefix that a classifier's encoder has."""
    attention, block, bare = (
        "encoder.layer.{i}.attention",
        "encoder.layer.{i}",
        config.prefix - config.position_rows,
    )
    found = [
        *pairs("stem.project", "embeddings.patch_embeddings.projection"),
        rule("cls", "embeddings.cls_token"),
        *([rule("registers", "embeddings.distillation_token")] if config.registers else []),
        rule("positions.table", "embeddings.position_embeddings", way=rows(config.position_rows, bare, prod(config.grid))),
        *each(config.depth, [
            *pairs("blocks.{i}.norm1", f"{block}.layernorm_before"),
            *(
                rule(f"blocks.{{i}}.attention.qkv.{kind}",
                     *(f"{attention}.attention.{part}.{kind}" for part in ("query", "key", "value")), way=THREE)
                for kind in ("weight", "bias")
            ),
            *pairs("blocks.{i}.attention.out", f"{attention}.output.dense"),
            *pairs("blocks.{i}.norm2", f"{block}.layernorm_after"),
            *pairs("blocks.{i}.mlp.expand", f"{block}.intermediate.dense"),
            *pairs("blocks.{i}.mlp.contract", f"{block}.output.dense"),
        ]),
        *pairs("norm", "layernorm"),
    ]  # fmt: skip
    if config.representation:
        found += pairs("representation", "pooler.dense")
    heads = {"head": "classifier"}
    if config.pool == "distilled":
        heads = {"head.token": "cls_classifier", "head.distilled": "distillation_classifier"}
    for ours, theirs in heads.items():
        found += pairs(ours, theirs) if config.classes else []
    return found


def cannot(config: ViTConfig) -> list[str]:
    """What of a model Transformers' ViT and DeiT have no place for."""
    return beyond(config) + [
        what
        for what, there in {
            f'pooling by "{config.pool}"': config.pool not in ("token", "distilled"),
            "more than one register": config.registers > 1,
            "LayerScale": config.layer_scale is not None,
            "a representation layer before the head": config.representation and config.classes,
        }.items()
        if there
    ]


def differs(config: ViTConfig) -> list[str]:
    """What Transformers would compute a little differently: nothing, its configuration says it all."""
    return []


def spell(tensors: dict, config: ViTConfig, layout: str = "") -> dict:
    """Tensors under the names that the architecture's class has."""
    prefix = ("deit." if config.registers else "vit.") if config.classes else ""
    return {
        (name if "classifier" in name.split(".")[0] else prefix + name): tensor
        for name, tensor in tensors.items()
    }


def config_json(config: ViTConfig, labels: tuple[str, ...], activation: Activation) -> dict:
    """config.json for Transformers."""
    family = "DeiT" if config.registers else "ViT"
    kind = (
        "Model"
        if not config.classes
        else "ForImageClassification" + "WithTeacher" * (config.pool == "distilled")
    )
    found = {
        "architectures": [family + kind],
        "model_type": family.lower(),
        "hidden_size": config.width,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.heads,
        "intermediate_size": config.mlp,
        "hidden_act": "gelu" if config.gelu == "erf" else "gelu_pytorch_tanh",
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.attention_dropout,
        "layer_norm_eps": config.eps,
        "image_size": config.image[0] if len(set(config.image)) == 1 else list(config.image),
        "patch_size": config.patch,
        "num_channels": config.channels,
        "qkv_bias": True,
    }
    if config.representation:
        found["pooler_output_size"] = config.representation
    if config.classes:
        found["id2label"] = {str(i): name for i, name in enumerate(labels)}
        found["label2id"] = {name: i for i, name in enumerate(labels)}
        found["problem_type"] = PROBLEMS[activation]
    return found


def processor_json(preprocessing: Preprocessing) -> dict:
    """preprocessor_config.json: the processor that does the same. What none does is antialias=False."""
    height, width = preprocessing.size
    cropped = preprocessing.resize or preprocessing.rule == "shorter"
    side = preprocessing.resize or max(height, width)
    kind = "ViT" if not cropped else "DeiT" if preprocessing.rule == "square" else "Bit"
    size = {"height": height, "width": width} if not cropped else {"height": side, "width": side}
    found = {
        "image_processor_type": f"{kind}ImageProcessor",
        "do_resize": True,
        "size": {"shortest_edge": side} if preprocessing.rule == "shorter" else size,
        "resample": 2 if preprocessing.interpolation == "bilinear" else 3,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(preprocessing.mean),
        "image_std": list(preprocessing.std),
        "do_convert_rgb": True,
    }
    return found | (
        {"do_center_crop": True, "crop_size": {"height": height, "width": width}} if cropped else {}
    )


def tidy(tensors: Tensors) -> tuple[Tensors, list[str], str]:
    """Transformers 4's names without the prefix of a classifier's encoder; what was left out is said."""
    prefix = next(name for name in tensors if name.endswith(PATCHES)).removesuffix(PATCHES)
    if aside := [name for name in tensors if ASIDE.fullmatch(name.removeprefix(prefix))]:
        notes = [f"left out: {len(aside)} tensors of masked image modelling, such as {aside[0]}"]
    else:
        notes = []
    found = {}
    for name, lazy in tensors.items():
        if name in aside:
            continue
        short = name.removeprefix(prefix)
        for newer, older in NEWER.items():
            short = re.sub(newer, older, short)
        found[short] = lazy
    return found, notes, ""


def _heads(tensors: Tensors) -> list[str]:
    names = ("classifier", "cls_classifier", "distillation_classifier")
    return [name for name in names if f"{name}.weight" in tensors]


def _labels(said: dict, classes: int) -> tuple[str, ...] | None:
    names = said.get("id2label")
    if not isinstance(names, dict) or not classes:
        return None
    found = [str(names.get(str(i), f"LABEL_{i}")) for i in range(min(classes, len(names)))]
    if len(found) != classes:
        return None
    return numbered(classes) if found == [f"LABEL_{i}" for i in range(classes)] else tuple(found)


def _activation(said: dict) -> Activation:
    """Of its problem_type; a file without one is a classifier of one class among K."""
    problem = said.get("problem_type") or PROBLEMS["softmax"]
    activations = {name: activation for activation, name in PROBLEMS.items()}
    if problem not in activations:
        raise ValueError(f"its problem_type is {problem!r}; vitkit knows {', '.join(activations)}")
    return activations[problem]


def _preprocessing(said: dict, config: ViTConfig, kind: str) -> tuple[Preprocessing, list[str]]:
    """What an image processor does, as a Preprocessing. Raises ValueError for what no Preprocessing does."""
    if not said:
        found = {"size": config.image, **({} if kind == "vit" else IMAGENET)}
        return Preprocessing(**found), [
            f"preprocessing: no preprocessor_config.json, so {kind}'s usual one"
        ]
    name = str(said.get("image_processor_type") or said.get("feature_extractor_type") or "ViT")
    resample = said.get(
        "resample", 3 if name.startswith(("DeiT", "Bit", "CLIP", "ConvNext")) else 2
    )
    if resample not in RESAMPLE:
        raise ValueError(
            f"its preprocessor resizes by method {resample!r}; vitkit knows 2 (bilinear) and 3 (bicubic)"
        )
    size, crop, rule = said.get("size", list(config.image)), said.get("crop_size"), "square"
    crop = (
        _pair(crop)
        if crop and said.get("do_center_crop", name.startswith(("DeiT", "Bit", "CLIP")))
        else None
    )
    if isinstance(size, dict) and "shortest_edge" in size:
        rule, size = "shorter", size["shortest_edge"]
    elif isinstance(size, int) and name.startswith(("Bit", "CLIP", "ConvNext")):
        rule = "shorter"
    notes, wanted = [], crop or _pair(size)
    if not said.get("do_resize", True):
        notes.append(
            f"preprocessing: the processor does not resize; images are made {wanted[0]} x {wanted[1]} here"
        )
    factor = said.get("rescale_factor", 1 / 255) if said.get("do_rescale", True) else 1.0
    if not isinstance(factor, int | float) or not isfinite(factor) or factor <= 0:
        raise ValueError(f"its preprocessor's rescale_factor is {factor!r}")
    normal = said.get("do_normalize", True)
    mean, std = (
        (said.get("image_mean") or [0.5] * 3, said.get("image_std") or [0.5] * 3)
        if normal
        else ([0.0] * 3, [1.0] * 3)
    )
    scale = (
        1.0 if abs(255 * factor - 1) < 1e-6 else 255 * factor
    )  # (x f - m) / s = (x / 255 - m / 255 f) / (s / 255 f)
    edges = _pair(size)
    resize = max(edges) if (crop and edges != crop) or rule == "shorter" else 0
    if crop and rule == "square" and len(set(edges)) != 1 and edges != crop:
        raise ValueError(
            f"its preprocessor resizes to {edges[0]} x {edges[1]} before a crop; vitkit resizes to a square"
        )
    made = Preprocessing(
        size=wanted, rule=rule, resize=resize, interpolation=RESAMPLE[resample],
        mean=tuple(value / scale for value in mean), std=tuple(value / scale for value in std),
    )  # fmt: skip
    return made, notes


def _pair(size) -> tuple[int, int]:
    if isinstance(size, dict):
        size = (
            [size.get("height"), size.get("width")]
            if "height" in size
            else [size.get("shortest_edge")] * 2
        )
    pair = (
        (size, size)
        if isinstance(size, int)
        else tuple(size)
        if isinstance(size, list | tuple)
        else ()
    )
    if len(pair) != 2 or not all(isinstance(side, int) for side in pair):
        raise ValueError(f"its preprocessor's size is {size!r}; expected pixels")
    return pair
