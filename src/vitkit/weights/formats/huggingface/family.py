"""Common code of all families of Transformers' Vision Transformers: from a file's names and config.json to
a model, and back. Each family is a table of its own (vit.py, dino.py, towers.py).

Names are written as in Transformers 4, which later versions read too.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from vitkit.models import ViTConfig
from vitkit.system.errors import BadWeights
from vitkit.weights.classifier import Classifier, Description
from vitkit.weights.files.content import Tensors, lazy_zeros
from vitkit.weights.files.directory import Opened
from vitkit.weights.formats.encoders import PYTORCH, ArrayStorage, PartNames, encoder_rules
from vitkit.weights.formats.format import (
    CROPS,
    Elsewhere,
    Format,
    Tidied,
    beyond_vit,
    has_end,
    is_before,
    reasons,
    without_prefix,
)
from vitkit.weights.formats.huggingface.config import (
    CLASSIFIERS,
    activation_of,
    changed_fields,
    classes_json,
    labels_of,
    objective_of,
    read_fields,
    write_fields,
)
from vitkit.weights.formats.huggingface.processors import preprocessing_of, processor_json
from vitkit.weights.formats.rest import without_rest
from vitkit.weights.formats.shapes import length_of, shape_of
from vitkit.weights.hints import Hints
from vitkit.weights.outputs import Activation, numbered
from vitkit.weights.pretraining import mask_of
from vitkit.weights.rules import SAME, Rule, Transform

MASK = "embeddings.mask_token"


@dataclass(frozen=True)
class Family:
    """The properties of one family: its names, its settings, and its limits."""

    title: str
    """Name of the family for people: "DINOv2"."""
    types: tuple[str, ...]
    """model_type of each model that vitkit reads."""
    class_of: Callable[[ViTConfig], tuple[str, str]]
    """A model's model_type, and the prefix of its classes: "ViT" in ViTForImageClassification."""
    recognises: Callable[[Tensors], bool]
    names: PartNames
    """Names of the encoder, without its prefix in a larger model."""
    fields: Mapping[str, tuple[str, object]]
    """Setting of a ViTConfig -> its field in config.json, and Transformers' default for it."""
    pools: Callable[[ViTConfig], tuple[str, ...]]
    """Poolings that such models may have."""
    settings: Callable[[dict, Tensors], dict]
    """Settings that follow from the tensors, or from fields without a corresponding setting. Raises
    VitkitError for those that vitkit lacks."""
    more_fields: Callable[[ViTConfig], dict] = lambda config: {}
    """Inverts `settings`: fields of config.json without a corresponding setting."""
    has: tuple[str, ...] = ()
    """Parts that its models may have beyond the plain one, by their names in `beyond_vit`."""
    cannot: Callable[[ViTConfig], dict[str, object]] = lambda config: {}
    """Further parts that it cannot express: text -> whether a model has the part."""
    tidy: Callable[[Tensors], Tidied] = Tidied
    """Final changes to tensors with the names in `names`: removes parts that no classifier reads, and
    joins layers that are one layer in vitkit."""
    check: Callable[[dict, Tidied], None] = lambda config, tidied: None
    """Raises VitkitError for a combination of config.json and tensors that vitkit cannot read."""
    vision_json: Callable[[dict], dict] = lambda json: json
    """The part of config.json that describes the vision model."""
    of_types: Mapping[str, dict] = field(default_factory=dict)
    """model_type -> defaults of fields that differ from those in `fields`."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Patterns of other names in files -> the names in `names`. Transformers 5 has new names in memory,
    but still writes the old ones."""
    positions: str = "learned"
    position_table: Callable[[ViTConfig], Transform] = lambda config: SAME
    arrays: Callable[[ViTConfig], ArrayStorage] = lambda config: PYTORCH
    prefix: str = ""
    """Prefix of the encoder's names in a written file. If empty, names of a classifier's encoder begin with
    the model_type."""
    classifier_nests: str = ""
    """The field of a classifier's config.json that contains the description of the encoder, if any."""
    images: tuple[str, ...] = CROPS
    """See `Format.images`."""
    given: Callable[[Tensor, ViTConfig], dict[str, Tensor]] = lambda images, config: {
        "pixel_values": images
    }
    """Converts normalised images (B, C, h, w) to the arguments of its class."""
    image_of: Callable[[dict[str, Tensor]], Tensor] = lambda batch: batch["pixel_values"]
    """Converts the output of an image processor to an image (1, 3, h, w)."""
    mask_axes: int = 0
    """Number of axes of its class's mask embedding; 0 if it has none."""
    always_registers: bool = False
    """Whether a model without registers has an empty tensor of them, (1, 0, D)."""
    pooler_is_optional: bool = False
    """Whether a model without a head may have a pooler or not."""
    cuts_rest: bool = False
    """Whether its models ignore pixels at the border that do not fill a patch."""

    def format(self) -> Format:
        """The format of this family, for the table of formats."""
        mask = ""
        if self.mask_axes:
            mask = MASK
        return Format(
            name="huggingface",
            kinds=("vit",),
            recognises=self.recognises,
            describe=self._describe,
            rules=self._rules,
            tidy=self._tidy,
            first=f"{self.names.patches}.weight",
            head=self.names.head,
            spell=self._spell,
            contradictions=self._contradictions,
            cannot=self._cannot,
            directory=self._directory,
            library="transformers",
            example=_example,
            open_elsewhere=self._open_elsewhere,
            pixels_elsewhere=self._pixels_elsewhere,
            mask=mask,
            images=self.images,
        )

    # Reading

    def _tidy(self, tensors: Tensors) -> Tidied:
        """Convert names to those of Transformers 4, and separate tensors that pre-training added."""
        tensors = without_prefix(tensors, f"{self.names.patches}.weight", self.renamed)
        mask, mask_note = mask_of(tensors.pop(MASK, None))
        registers = tensors.get(self.names.registers)
        if registers is not None and registers.shape[1:2] == (0,):  # num_register_tokens: 0
            del tensors[self.names.registers]
        tidied = self.tidy(tensors)
        tensors = tidied.tensors
        biases_note: list[str] = []
        if "qkv_bias" in self.has and _have_biases(tensors, self.names):
            tensors, biases_note = with_biases(tensors, self.names.block.qkv)
        notes = (*tidied.notes, *mask_note, *biases_note)
        pretraining = {**mask, **tidied.pretraining}
        return tidied._replace(tensors=tensors, notes=notes, pretraining=pretraining)

    def _describe(self, opened: Opened, tidied: Tidied, hints: Hints) -> Description:
        """The description that follows from the JSON files and the tensors. Shapes are checked when tensors
        are read."""
        model_type = opened.config.get("model_type")
        if not opened.config:
            raise BadWeights(
                f"it has the names of {self.title} but no config.json, which defines what it computes; "
                "name the file pytorch_model.bin or model.safetensors, and put the config.json of "
                "the model that it began with beside it"
            )
        if model_type not in self.types:
            raise BadWeights(
                f"it has the names of {self.title} but a config.json of type {str(model_type)[:100]!r}; "
                f"vitkit reads {', '.join(self.types)}"
            )

        self.check(opened.config, tidied)
        json = {**self.of_types.get(model_type, {}), **self.vision_json(opened.config)}
        tensors = tidied.tensors
        registers = 0
        if self.names.registers in tensors:
            registers = shape_of(tensors, self.names.registers, 3)[1]
        settings = {
            **read_fields(json, self.fields),
            "positions": self.positions,
            "registers": registers,
            "qkv_bias": "qkv_bias" not in self.has or _have_biases(tensors, self.names),
            "classes": length_of(tensors, f"{self.names.head}.bias"),
            "resample": "huggingface",
            **self.settings(json, tensors),
        }
        config = ViTConfig(**settings)
        preprocessing, notes = preprocessing_of(
            opened.preprocessor, config.image, model_type, config.patches.size[0]
        )
        if self.cuts_rest:
            preprocessing, rest_note = without_rest(preprocessing, config, "Transformers")
            notes += rest_note
        activation, activation_note = activation_of(opened.config, config.classes)
        labels, labels_note = labels_of(opened.config, config.classes)
        return Description(
            config,
            preprocessing,
            labels=labels,
            notes=(*notes, *labels_note, *activation_note),
            activation=activation,
            objective=objective_of(opened.config),
        )

    def _rules(self, config: ViTConfig) -> list[Rule]:
        """See `Format.rules`."""
        return encoder_rules(config, self.names, self.arrays(config), self.position_table(config))

    # Writing

    def _spell(
        self, tensors: dict[str, Tensor], config: ViTConfig, layout: str
    ) -> dict[str, Tensor]:
        """Add the prefix of Transformers' class, an untrained mask embedding of zeros, and an empty tensor of
        registers if its class expects one."""
        if self.mask_axes:
            shape = [1] * (self.mask_axes - 1) + [config.width]
            tensors = {**tensors, MASK: torch.zeros(shape)}
        if self.always_registers and not config.registers:
            tensors = {**tensors, self.names.registers: torch.zeros(1, 0, config.width)}
        prefix = self.prefix
        if config.classes and not prefix:
            prefix = f"{self.class_of(config)[0]}."
        spelled = {}
        for name, tensor in tensors.items():
            if not name.startswith(CLASSIFIERS):
                name = prefix + name
            spelled[name] = tensor
        return spelled

    def _cannot(self, config: ViTConfig) -> list[str]:
        """See `Format.cannot`."""
        beyond = beyond_vit(config, (self.positions,), has=self.has)
        return beyond + reasons(
            {
                f'pooling by "{config.pool}"': config.pool not in self.pools(config),
                "a norm after the pooling": config.norm == "pooled",
                "no LayerScale": "layer_scale" in self.has and config.layer_scale is None,
                "a representation layer": not self.names.representation and config.representation,
                "dropout": "dropout" not in self.fields and config.dropout,
                **self.cannot(config),
            }
        )

    def architecture(self, config: ViTConfig) -> str:
        """The class of Transformers for a model."""
        _, family = self.class_of(config)
        if not config.classes:
            return f"{family}Model"
        if config.pool == "distilled":
            return f"{family}ForImageClassificationWithTeacher"
        return f"{family}ForImageClassification"

    def config_json(
        self, config: ViTConfig, labels: tuple[str, ...], activation: Activation
    ) -> dict:
        """config.json for Transformers."""
        encoder = {**write_fields(config, self.fields), **self.more_fields(config)}
        if config.classes and self.classifier_nests:
            encoder = {self.classifier_nests: encoder}
        values = {
            "architectures": [self.architecture(config)],
            "model_type": self.class_of(config)[0],
            **encoder,
        }
        if config.classes:
            values |= classes_json(labels or numbered(config.classes), activation)
        return values

    def _contradictions(self, described: Description, opened: Opened) -> list[str]:
        """The fields of config.json that differ from vitkit's description."""
        config = described.config
        assert isinstance(config, ViTConfig)  # by `kinds`
        ours = self.config_json(config, described.labels or (), described.activation)
        return changed_fields(ours, opened.config)

    def _directory(self, classifier: Classifier) -> dict[str, dict]:
        """See `Format.directory`."""
        config = classifier.model.config
        assert isinstance(config, ViTConfig)  # by `kinds`
        return {
            "config.json": self.config_json(config, classifier.labels, classifier.activation),
            "preprocessor_config.json": processor_json(classifier.preprocessing),
        }

    def _open_elsewhere(self, classifier: Classifier, path: Path) -> Elsewhere:
        """Open the class that the directory's config.json names."""
        config = classifier.model.config
        assert isinstance(config, ViTConfig)  # by `kinds`
        answer = "pooler"
        arguments = {}
        if config.classes:
            answer = "logits"
        elif config.pool == "gap":
            answer = "mean"
        elif self.pooler_is_optional and not config.representation:
            answer = "class token"
        if self.pooler_is_optional and not config.classes:
            arguments["add_pooling_layer"] = bool(config.representation)
        library, model = _open_in_transformers(path, self.architecture(config), arguments)

        def compute(images: Tensor) -> Tensor:
            return ANSWERS[answer](model(**self.given(images, config)))

        return Elsewhere(library, _Answer(model, compute))

    def _pixels_elsewhere(self, path: Path, image: Image.Image) -> Tensor:
        """An image (1, 3, h, w) prepared by the image processor of a saved directory."""
        from transformers import AutoImageProcessor

        processor = AutoImageProcessor.from_pretrained(path, local_files_only=True)
        return self.image_of(processor(image, return_tensors="pt"))


# Biases that a file omits (qkv_bias: false)


def _have_biases(tensors: Tensors, names: PartNames) -> bool:
    """Whether any layer of queries, keys or values has a bias."""
    return has_end(tensors, *(f".{layer}.bias" for layer in names.block.qkv))


def with_biases(tensors: Tensors, layers: Sequence[str]) -> tuple[Tensors, list[str]]:
    """Add biases of zeros to those of these layers that have none, with a note."""
    ends = tuple(f".{layer}.weight" for layer in layers)
    missing = {}
    for name, lazy in tensors.items():
        bias = name.removesuffix("weight") + "bias"
        if name.endswith(ends) and bias not in tensors:
            missing[bias] = lazy_zeros(*lazy.shape[:1])
    notes = []
    if missing:
        notes.append(
            f"biases: {len(missing)} are not in the file, such as {min(missing)}, so zeros are used"
        )
    return tensors | missing, notes


# Opening a saved model with Transformers, for the comparison and for the model card


ANSWERS = {  # output of a model of Transformers -> (B, K) or (B, D)
    "logits": lambda record: record.logits,
    "pooler": lambda record: record.pooler_output,
    "class token": lambda record: record.last_hidden_state[:, 0],
    "mean": lambda record: record.last_hidden_state.mean(1),  # all tokens are patches
}


class _Answer(nn.Module):
    """A model of Transformers that maps images to a tensor, like vitkit's models."""

    def __init__(self, model: nn.Module, compute: Callable[[Tensor], Tensor]):
        super().__init__()
        self.model = model
        self.compute = compute

    def forward(self, images: Tensor) -> Tensor:
        return self.compute(images)


def _open_in_transformers(
    path: Path, architecture: str, arguments: dict[str, Any]
) -> tuple[str, nn.Module]:
    """Open a saved directory with a class of Transformers; returns the library's name and the model.
    Raises ImportError without Transformers."""
    import transformers
    from transformers.utils import logging

    kind = getattr(transformers, architecture)
    bars = logging.is_progress_bar_enabled()
    verbosity = logging.get_verbosity()
    logging.disable_progress_bar()  # loading takes a second
    logging.set_verbosity_error()  # such as warnings of an unread text tower
    dtype = "dtype"  # name of the argument; by default, the dtype is the file's
    if is_before(transformers.__version__, (4, 56)):
        dtype = "torch_dtype"
    arguments = {**arguments, dtype: torch.float32}
    try:
        model = kind.from_pretrained(path, local_files_only=True, **arguments)
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
    return f"Transformers {transformers.__version__}", model


def _example(config: ViTConfig) -> str:
    """Python that opens a directory with Transformers."""
    kind = "AutoModelForImageClassification" if config.classes else "AutoModel"
    return f"""\
from transformers import AutoImageProcessor, {kind}

model = {kind}.from_pretrained("DIRECTORY")
processor = AutoImageProcessor.from_pretrained("DIRECTORY")
"""
