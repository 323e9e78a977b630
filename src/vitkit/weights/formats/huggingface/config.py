"""Read and write config.json of Transformers for a Vision Transformer.

`json` is the object in that file. Transformers omits fields that equal the default of a model's class, so
an absent field has that default.
"""

from collections.abc import Mapping

from vitkit.models import ViTConfig
from vitkit.system.errors import BadWeights
from vitkit.weights.files.content import Tensors
from vitkit.weights.formats.huggingface.processors import sides_in_json
from vitkit.weights.formats.labels import named_outputs
from vitkit.weights.outputs import Activation

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
HIDDEN_ACT = {  # form of the GELU -> hidden_act
    "erf": "gelu",
    "tanh": "gelu_pytorch_tanh",
    "quick": "quick_gelu",
    "relu": "relu",
    "silu": "silu",
}
# activation -> problem_type
PROBLEMS: dict[Activation, str] = {
    "softmax": "single_label_classification",
    "sigmoid": "multi_label_classification",
    "none": "regression",
}
CLASSIFIERS = ("classifier", "cls_classifier", "distillation_classifier")


# Settings of the architecture


def read_fields(json: dict, fields: Mapping[str, tuple[str, object]]) -> dict:
    """The settings of a ViTConfig in a config.json."""
    settings = {ours: json.get(theirs, usual) for ours, (theirs, usual) in fields.items()}
    if "gelu" in settings:
        settings["gelu"] = gelu_of(settings["gelu"])
    return settings


def write_fields(config: ViTConfig, fields: Mapping[str, tuple[str, object]]) -> dict:
    """Invert `read_fields`: the fields of a config.json."""
    spelled = {
        "gelu": HIDDEN_ACT[config.gelu],
        "image": sides_in_json(config.image),
        "patch": sides_in_json(config.patches.size),
    }
    json = {}
    for ours, (theirs, _) in fields.items():
        json[theirs] = spelled.get(ours, getattr(config, ours))
    return json


def gelu_of(act: object) -> str:
    """The form of the GELU. Raises VitkitError for another activation."""
    if act not in GELU:
        raise BadWeights(
            f"its hidden_act is {act!r}; a Vision Transformer has one of {', '.join(GELU)}"
        )
    return GELU[act]


def about_images(json: dict) -> dict:
    """The fields of a config.json with two towers that describe the vision tower."""
    return {**(json.get("vision_config") or {}), **json}


def objective_of(json: dict) -> dict | None:
    """The settings of a ViT-MAE's pre-training as those of vitkit's MaskedAutoencoder; None for other
    models."""
    if json.get("model_type") != "vit_mae":
        return None
    return {
        "class": "MaskedAutoencoder",
        "rate": json.get("mask_ratio", 0.75),
        "heads": json.get("decoder_num_attention_heads", 16),
        "normalised": json.get("norm_pix_loss", False),
    }


def changed_fields(ours: dict, theirs: dict) -> list[str]:
    """The fields of a config.json, `theirs`, that differ from those that vitkit would write for the model
    that it described, `ours`.

    Transformers keeps fields that it does not know. So if a model that vitkit wrote is edited or
    fine-tuned, it is saved with vitkit's outdated description. Any different value, also of class names,
    was written after vitkit. Absent fields are no contradiction.
    """
    ours = about_images(ours)
    theirs = about_images(theirs)
    unread = ("label2id", "vision_config")  # redundant with id2label, and with the fields beside it
    return [
        name
        for name, value in ours.items()
        if name in theirs and theirs[name] != value and name not in unread
    ]


# The head


def classifiers_in(tensors: Tensors) -> list[str]:
    """The names of the layers that compute logits: none, one, or two of a distilled model."""
    return [name for name in CLASSIFIERS if f"{name}.weight" in tensors]


def labels_of(json: dict, classes: int) -> tuple[tuple[str, ...] | None, list[str]]:
    """The names in id2label, or else in label2id, and a note on how they were read; None if there are
    none, so that classes are numbered."""
    for field in ("id2label", "label2id"):
        labels, notes = named_outputs(field, json.get(field), classes)
        if labels or notes:
            return labels, notes
    return None, []


def activation_of(json: dict, classes: int) -> tuple[Activation, list[str]]:
    """The activation for its problem_type, and a note if that is unknown.

    Without a problem_type, Transformers' own rule applies: one output is a regression, several are classes
    that exclude each other (ForSequenceClassificationLoss in loss_utils.py).
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
        f"read as {PROBLEMS['softmax']}"
    )
    return "softmax", [note]


def classes_json(labels: tuple[str, ...], activation: Activation) -> dict:
    """The fields of config.json for the classes of a head.

    One output with a softmax has no problem_type: Transformers does not open a model of one class that has
    "single_label_classification".
    """
    problem: str | None = PROBLEMS[activation]
    if len(labels) == 1 and activation == "softmax":
        problem = None
    return {
        "id2label": {str(i): name for i, name in enumerate(labels)},
        "label2id": {name: i for i, name in enumerate(labels)},
        "problem_type": problem,
    }
