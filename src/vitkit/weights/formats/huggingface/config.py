"""config.json of Transformers: what it says of a Vision Transformer, and what is written there.

`json` is that file's object. Transformers leaves out what equals the default of its ViTConfig
(configuration_vit.py), so a field that is absent has that default.
"""

from vitkit.models import ViTConfig, as_side
from vitkit.weights.classifier import Activation
from vitkit.weights.files import Tensors
from vitkit.weights.formats.huggingface.biases import QKV, have_biases
from vitkit.weights.formats.shapes import shape_of
from vitkit.weights.labels import numbered

# hidden_act -> the form of the GELU
GELU = {
    "gelu": "erf",
    "gelu_python": "erf",
    "gelu_new": "tanh",
    "gelu_pytorch_tanh": "tanh",
    "gelu_fast": "tanh",
    "quick_gelu": "quick",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
HIDDEN_ACT = {  # the way back
    "erf": "gelu",
    "tanh": "gelu_pytorch_tanh",
    "quick": "quick_gelu",
    "relu": "relu",
    "silu": "silu",
}
# activation -> problem_type
PROBLEMS = {
    "softmax": "single_label_classification",
    "sigmoid": "multi_label_classification",
    "none": "regression",
}
CLASSIFIERS = ("classifier", "cls_classifier", "distillation_classifier")


def classifiers_in(tensors: Tensors) -> list[str]:
    """The names of the layers that give logits: none, one, or a distilled model's two."""
    return [name for name in CLASSIFIERS if f"{name}.weight" in tensors]


def config_of(json: dict, tensors: Tensors) -> ViTConfig:
    """The architecture that a config.json describes; whether there are a head, a pooler and a
    distillation token is read from the tensors, which a config.json does not tell reliably."""
    # What the tensors say
    classifiers = classifiers_in(tensors)
    classes = 0
    if classifiers:
        classes = shape_of(tensors, f"{classifiers[0]}.weight", 2)[0]
    pool = "token"
    if len(classifiers) == 2:
        pool = "distilled"
    elif "embeddings.cls_token" not in tensors:
        pool = "gap"  # I-JEPA
    distillation_tokens = int("embeddings.distillation_token" in tensors)

    # What config.json says
    return ViTConfig(
        width=json.get("hidden_size", 768),
        depth=json.get("num_hidden_layers", 12),
        mlp=json.get("intermediate_size", 3072),
        heads=json.get("num_attention_heads", 12),
        patch=json.get("patch_size", 16),
        image=json.get("image_size", 224),
        channels=json.get("num_channels", 3),
        classes=classes,
        pool=pool,
        registers=distillation_tokens,
        qkv_bias=have_biases(tensors, QKV),
        representation=_representation(json, tensors),
        dropout=json.get("hidden_dropout_prob", 0.0),
        attention_dropout=json.get("attention_probs_dropout_prob", 0.0),
        gelu=gelu_of(json, "gelu"),
        eps=json.get("layer_norm_eps", 1e-12),
        resample="huggingface",
    )


def objective_of(json: dict) -> dict | None:
    """What a ViT-MAE says of its pre-training, in the words of vitkit's MaskedAutoencoder; None for
    other models."""
    if json.get("model_type") != "vit_mae":
        return None
    return {
        "class": "MaskedAutoencoder",
        "rate": json.get("mask_ratio", 0.75),
        "heads": json.get("decoder_num_attention_heads", 16),
        "normalised": json.get("norm_pix_loss", False),
    }


def gelu_of(json: dict, default: str) -> str:
    """The form of the GELU. Raises ValueError for another activation."""
    act = json.get("hidden_act", default)
    if act not in GELU:
        raise ValueError(
            f"its hidden_act is {act!r}; a Vision Transformer has one of {', '.join(GELU)}"
        )
    return GELU[act]


def square_patch_of(json: dict, default: int) -> int:
    """The side of a patch, which may be written as one number or as height and width, of a model
    whose class in Transformers takes squares alone."""
    patch = as_side(json.get("patch_size", default))
    if isinstance(patch, tuple):
        raise ValueError(
            f"its patch_size is {list(patch)}; Transformers' class of this model takes squares alone"
        )
    return patch


def _representation(json: dict, tensors: Tensors) -> int:
    """The width of the pooler, which is the hidden layer of the paper's head (Section 3.1); 0
    without one."""
    if "pooler.dense.weight" not in tensors:
        return 0
    if "embeddings.cls_token" not in tensors:
        raise ValueError(
            "its pooler reads the first patch (pooler.dense.weight in a model without a class "
            "token), which vitkit's hidden layer does not; save the model without its pooler"
        )
    act = json.get("pooler_act", "tanh")
    if act != "tanh":
        raise ValueError(
            f"its pooler_act is {act!r}; the hidden layer of the paper's head has tanh"
        )
    return shape_of(tensors, "pooler.dense.weight", 2)[0]


def labels_of(json: dict, classes: int) -> tuple[str, ...] | None:
    """The names in id2label; None if there is not one for each class.

    Numbers if all are the names that Transformers makes up for classes without one: LABEL_0,
    LABEL_1.
    """
    names = json.get("id2label")
    if not isinstance(names, dict) or not classes or len(names) < classes:
        return None
    made_up = tuple(f"LABEL_{i}" for i in range(classes))
    labels = tuple(str(names.get(str(i), made_up[i])) for i in range(classes))
    if labels == made_up:
        return numbered(classes)
    return labels


def activation_of(json: dict, classes: int) -> tuple[Activation, list[str]]:
    """The activation that its problem_type means, and a note if that is unknown.

    Without a problem_type, Transformers' own rule: one output is a regression, several are a choice
    of one class (ForSequenceClassificationLoss in loss_utils.py).
    """
    problem = json.get("problem_type")
    if not problem and classes == 1:
        return "none", []
    if not problem:
        return "softmax", []
    for activation, name in PROBLEMS.items():
        if name == problem:
            return activation, []
    note = (
        f"its problem_type is {problem!r}, which vitkit does not know; "
        f"taken as {PROBLEMS['softmax']}"
    )
    return "softmax", [note]


def changed_fields(ours: dict, theirs: dict) -> list[str]:
    """The fields of a config.json, `theirs`, that are not as vitkit would write them for the model
    that it described, `ours`.

    Transformers keeps fields that it does not know. So whoever edits or fine-tunes a model that
    vitkit wrote saves vitkit's description with it, out of date. Fields that are absent contradict
    nothing. Any other value does, names of classes too: whoever wrote it did so after vitkit.
    """
    ours = {
        name: value for name, value in ours.items() if name != "label2id"
    }  # says id2label again
    return [name for name, value in ours.items() if name in theirs and theirs[name] != value]


def config_json(config: ViTConfig, labels: tuple[str, ...], activation: Activation) -> dict:
    """config.json for Transformers."""
    values = {
        "architectures": [architecture(config)],
        "model_type": model_type(config),
        "hidden_size": config.width,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.heads,
        "intermediate_size": config.mlp,
        "hidden_act": HIDDEN_ACT[config.gelu],
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.attention_dropout,
        "layer_norm_eps": config.eps,
        "image_size": image_json(config),
        "patch_size": patch_json(config),
        "num_channels": config.channels,
        "qkv_bias": config.qkv_bias,
    }
    if config.representation:
        values["pooler_output_size"] = config.representation
    if config.classes:
        values |= classes_json(labels, activation)
    return values


def classes_json(labels: tuple[str, ...], activation: Activation) -> dict:
    """The fields of config.json about the classes of a head."""
    return {
        "id2label": {str(i): name for i, name in enumerate(labels)},
        "label2id": {name: i for i, name in enumerate(labels)},
        "problem_type": PROBLEMS[activation],
    }


def image_json(config: ViTConfig) -> int | list[int]:
    """The size of images: one number for a square."""
    height, width = config.image
    if height == width:
        return height
    return [height, width]


def patch_json(config: ViTConfig) -> int | list[int]:
    """The size of patches: one number for a square."""
    height, width = config.patches.size
    if height == width:
        return height
    return [height, width]


def model_type(config: ViTConfig) -> str:
    """What Transformers calls the model: with a distillation token a DeiT, and without a class token
    an I-JEPA."""
    if config.registers:
        return "deit"
    if not config.has_class_token:
        return "ijepa"
    return "vit"


def architecture(config: ViTConfig) -> str:
    """The class of Transformers that computes this model."""
    family = {"deit": "DeiT", "ijepa": "IJepa", "vit": "ViT"}[model_type(config)]
    if not config.classes:
        return f"{family}Model"
    if config.pool == "distilled":
        return f"{family}ForImageClassificationWithTeacher"
    return f"{family}ForImageClassification"
