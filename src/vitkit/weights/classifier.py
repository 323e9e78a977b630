"""The Classifier: a model with everything that an image needs on its way to a probability; and its
description, which is all of it but the weights.

Legend: B batch, K classes, h w pixels of what the model gets.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, get_args

import torch
from torch import Tensor, nn

from vitkit.data import Preprocessing
from vitkit.models import (
    Grid,
    Model,
    ModelConfig,
    ViTConfig,
    called,
    config_from,
    config_to_dict,
    for_inference,
    parameters,
)
from vitkit.models.construction import blueprint
from vitkit.system.console.text import printable_name, some
from vitkit.system.errors import BadSettings, BadWeights, Unsupported
from vitkit.system.storage.private import public
from vitkit.weights.licenses import License, license_to_json
from vitkit.weights.origins import checked_origin
from vitkit.weights.outputs import Activation, activate
from vitkit.weights.rules import gist
from vitkit.weights.unknown import Unknown


@dataclass(frozen=True)
class Classifier:
    """A model with everything that must stay with it: preprocessing, labels, activation, origin,
    licence.

    Every package that needs a model's answer to an image takes the same three steps, in this order:
    `batch` prepares pictures, `logits` computes, `probabilities` applies the activation.
    """

    model: Model
    preprocessing: Preprocessing
    labels: tuple[str, ...]
    """A name for every class; none for a model without a head. Without names the classes of a saved
    model are numbered."""
    activation: Activation = "softmax"
    """How logits become probabilities. "softmax": one class among K, the probabilities sum to one.
    "sigmoid": each class is a question of its own. "none": the outputs are other numbers, such as
    those of a regression."""
    origin: dict = field(default_factory=dict)
    """Where the model came from, for people. vitkit itself reads two entries: a model that is
    written in the format of its "format" gets the spelling of its "layout" again (see
    `Tidied.layout`)."""
    license: License | None = None
    """Under which terms the weights may be used and passed on; None if nobody has said."""
    pretraining: dict[str, Tensor] = field(default_factory=dict, compare=False, repr=False)
    """What pre-training added to the model: a mask embedding, a decoder (weights/pretraining.py). A run
    of the same objective that begins with the model begins with it too."""
    unknown: Unknown | None = field(default=None, compare=False, repr=False)
    """From where on an image is unknown to the model, and which classes an answer leaves open; None
    if nobody has fitted that. Another head, or other features, make it meaningless: they begin
    without."""

    def __post_init__(self):
        if self.activation not in get_args(Activation):
            choices = ", ".join(get_args(Activation))
            raise BadSettings(f"activation is {self.activation!r}; it is one of {choices}")
        check_labels(self.labels)
        config = getattr(self.model, "config", None)
        if self.preprocessing.is_native and isinstance(config, ModelConfig):
            check_native(config, self.preprocessing.patch)
        outputs = getattr(config, "classes", None)
        if self.labels and outputs is not None and len(self.labels) != outputs:
            raise BadSettings(
                f"there are {len(self.labels)} labels for a head of {outputs} outputs"
            )

    def __repr__(self) -> str:
        """What it is, in five lines: the model, its images, classes, origin and licence."""
        # The model; another library may have wrapped it
        config = getattr(self.model, "config", None)
        name = type(self.model).__name__
        if isinstance(config, ModelConfig):
            name = called(config)

        # Its classes, the first three by name
        classes = "none: it gives features"
        if self.labels:
            names = some([printable_name(label) for label in self.labels], 3)
            classes = f"{len(self.labels):,} ({self.activation}): {names}"

        # Where it came from, and what may be done with it
        origin = self.origin.get("file") or self.origin.get("init") or "made from its parts"
        if data := self.origin.get("data"):
            origin = f"{origin}, trained on {data}"
        license = "nobody has said"
        if self.license:
            license = self.license.called
        return "\n".join(
            [
                f"Classifier: {name}, {parameters(self.model):,} parameters on {self.device}",
                f"  images: {self.preprocessing}",
                f"  classes: {classes}",
                f"  origin: {printable_name(str(origin))}",
                f"  licence: {license}",
            ]
        )

    @property
    def device(self) -> torch.device:
        """The device of the model's parameters."""
        return next(self.model.parameters()).device

    def to(self, device: torch.device | str) -> "Classifier":
        """The classifier with its model on a device; as nn.Module.to, this moves the model itself."""
        return replace(self, model=self.model.to(device))

    def for_inference(self) -> "Classifier":
        """A copy of the classifier for deployment, with everything computed in advance that can be for
        the size of its preprocessing. Its model is only for inference: it cannot be trained or
        saved. If the model is already such a model, the classifier itself is returned.
        """
        if getattr(self.model, "inference_only", False):
            return self
        size: Grid | None = self.preprocessing.size
        if self.preprocessing.is_native:  # positions of every grid come from the trained one
            size = None
        model = for_inference(self.model, size)
        return replace(self, model=model)

    def batch(self, images: Any) -> Tensor:
        """Prepare images: -> uint8 (B, 3, h, w) on the model's device; or (B, M), if they keep their own
        proportions and these differ (data/images/native.py).

        They are one or several of: a path, the bytes of a file, a Pillow image, an array (h, w, 3)
        or (h, w), a tensor (3, h, w); of uint8, or float from 0 to 1; or a picture
        (`vitkit.data.open_image`). Raises BadImage for one that cannot be decoded, and VitkitError
        for an empty list.
        """
        from vitkit.data import as_pictures

        prepared = [self.preprocessing.array(picture) for picture in as_pictures(images)]
        if not prepared:
            raise BadSettings("there are no images to prepare")
        return torch.from_numpy(self.preprocessing.together(prepared)).to(self.device)

    def logits(self, images: Tensor) -> Tensor:
        """Prepared images, uint8 (B, 3, h, w), or (B, M) as `batch` gives them, on any device, ->
        float32 (B, K), without a gradient, in evaluation mode.

        A model that classifies every pixel gives (B, K, h, w), for images of one size.
        A model without a head gives its representation, (B, D).
        """
        return self._compute(self.model, images)

    def features(self, images: Tensor) -> Tensor:
        """The features of prepared images, which the head reads: uint8 (B, 3, h, w) -> float32 (B,
        D)."""
        return self._compute(self.model.features, images)

    # Not inference_mode: a model in training is evaluated too, and FSDP keeps the memory that it
    # takes here, as tensors that autograd could then not use.
    @torch.no_grad()
    def _compute(self, function: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
        if not isinstance(images, Tensor):
            kind = type(images).__name__
            raise BadSettings(f"the images are a {kind}; prepare them with batch(images)")

        def compute(images: Tensor) -> list[Tensor]:
            return [function(self.preprocessing.normalise(images)).float()]

        images = images.to(self.device, non_blocking=True)
        with evaluating(self.model):
            [result] = self.preprocessing.computed(compute, images)
        return result

    def probabilities(self, logits: Tensor) -> Tensor:
        """Logits (B, K) -> (B, K), by the classifier's activation."""
        return activate(logits, self.activation)

    def predict(self, *images: Any, **settings: Any) -> Any:
        """The most likely classes of images, as `vitkit.predict(classifier, *images, **settings)` gives
        them: files, folders, bytes, Pillow images, arrays or tensors; raises what that raises."""
        import vitkit  # `predict` is in a higher layer; this only hands the call on

        return vitkit.predict(self, *images, **settings)

    __call__ = predict

    def __getattr__(self, name: str) -> Any:
        """Raises AttributeError for an attribute that does not exist, with the right name if another library
        calls something so."""
        sentence = f"a Classifier has no {name!r}"
        if name in OTHER_NAMES:
            sentence += f"; {OTHER_NAMES[name]}"
        raise AttributeError(sentence)


_NAMES = "its class names are classifier.labels"
_INDEX = "dict(enumerate(classifier.labels)) names the classes by number"
_PREPARE = "classifier.batch(images) prepares images, by classifier.preprocessing"
_ANSWER = "classifier.predict(images) gives classes with probabilities"
_FEATURES = "classifier.features(classifier.batch(images)) gives features"
_NETWORK = "the network itself, a torch.nn.Module, is classifier.model"
_TRAIN = 'vitkit.finetune("MODEL", "photos/") trains a model'
_SAVE = 'vitkit.save(classifier, "weights") writes it'
OTHER_NAMES = {
    **dict.fromkeys(
        ("classes", "classes_", "names", "class_names", "label_names", "vocab"), _NAMES
    ),
    **dict.fromkeys(("id2label", "idx_to_class"), _INDEX),
    "label2id": "{label: k for k, label in enumerate(classifier.labels)} numbers the classes",
    "class_to_idx": "{label: k for k, label in enumerate(classifier.labels)} numbers the classes",
    **dict.fromkeys(
        ("num_classes", "num_labels", "n_classes"), "len(classifier.labels) counts them"
    ),
    **dict.fromkeys(
        ("transform", "transforms", "processor", "image_processor", "preprocess"), _PREPARE
    ),
    **dict.fromkeys(("predict_proba", "classify", "infer", "inference"), _ANSWER),
    **dict.fromkeys(
        ("embed", "encode", "embedding", "embeddings", "extract", "get_features"), _FEATURES
    ),
    **dict.fromkeys(
        ("eval", "parameters", "state_dict", "modules", "forward", "half", "train"), _NETWORK
    ),
    "cuda": 'classifier.to("cuda") moves it',
    "cpu": 'classifier.to("cpu") moves it',
    "config": "the model's configuration is classifier.model.config",
    **dict.fromkeys(("fit", "finetune", "fine_tune"), _TRAIN),
    **dict.fromkeys(("save", "save_pretrained", "save_model"), _SAVE),
    **dict.fromkeys(
        ("export", "to_onnx"), 'vitkit.export(classifier, output="model.onnx") writes such a file'
    ),
    **dict.fromkeys(
        ("evaluate", "score", "test", "val"), 'vitkit.evaluate(classifier, "photos/") does that'
    ),
    "push_to_hub": 'vitkit.push("weights", "owner/name") uploads a saved model',
}
"""What other libraries call something of a classifier, each with what to write here."""


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """A context in which the model is in evaluation mode. Afterwards each module has the mode
    that it had before: frozen parts stay in evaluation mode."""
    modules = [module for module in model.modules() if module.training]
    for module in modules:
        module.training = False
    try:
        yield
    finally:
        for module in modules:
            module.training = True


def check_native(config: ModelConfig, patch: tuple[int, int]) -> None:
    """Raises VitkitError for a model that cannot read images at their own proportions, cut into patches of
    (height, width) pixels."""
    reason = None
    if not isinstance(config, ViTConfig) or config.stem is not None or config.mixer != "full":
        reason = f"{called(config)} is no plain Vision Transformer"
    elif config.tiling.overlaps:
        reason = "the model's patches overlap"
    elif not config.position_kind.any_grid:
        reason = f"{config.positions} positions have no meaning on another grid"
    elif not config.pools and not config.segments:
        reason = "the model answers for every token"
    elif config.tiling.size != tuple(patch):
        height, width = config.tiling.size
        reason = (
            f"the model has patches of {height} x {width} pixels, not of {patch[0]} x {patch[1]}"
        )
    if reason is not None:
        raise Unsupported(
            f'images cannot be read at their own proportions (rule "native"): {reason}; choose the '
            'rule "shorter" or "square"'
        )


def no_answer(classifier: Classifier) -> str:
    """Why the model's outputs say nothing of an image, as the beginning of a sentence: it has no
    head, or one of zeros. "" for a model that answers.

    Google's files of ImageNet-21k were published so: with a head of 21,843 classes, all zeros. A new
    head is of zeros too (Section 3.2), until it is trained.
    """
    if not classifier.labels:
        return "the model has no classification head, so it names no classes"
    if has_head_of_zeros(classifier.model):
        return (
            "the model's head is all zeros, published without its head or not trained yet, so its "
            "answer is the same for every image"
        )
    return ""


def check_answers(classifier: Classifier, instead: str = "train one: vitkit finetune") -> None:
    """Raises VitkitError for a model whose outputs say nothing of an image, which also says what to do
    `instead`."""
    if reason := no_answer(classifier):
        raise Unsupported(f"{reason}; {instead}")


def has_head_of_zeros(model: nn.Module) -> bool:
    """Whether the weights of the model's head, or of both of DeiT's, are all zeros. Its biases do not
    depend on the image."""
    head = getattr(model, "head", None)
    if not isinstance(head, nn.Module):
        return False
    weights = [layer.weight for layer in head.modules() if isinstance(layer, nn.Linear)]
    if not weights or any(weight.is_meta for weight in weights):
        return False
    return not any(bool(weight.any()) for weight in weights)


def check_labels(labels: Iterable[str]) -> None:
    """Raises VitkitError for one string: its letters would become the labels."""
    if isinstance(labels, str):
        raise BadSettings(f"labels is {labels!r}, one string; give a list of names, one a class")


@torch.no_grad()
def with_temperature(classifier: Classifier, temperature: float) -> Classifier:
    """A copy of the classifier whose logits are divided by the temperature, which is noted in its
    origin. The origin's metrics of probabilities are dropped, and the limits for unknown images, as
    they are another model's now.

    The division is in the weights of the head, exact to float32's rounding. So every format and
    every library, runtime and server has the same probabilities, and nobody can forget them. Raises
    VitkitError for a temperature that is not positive, and for a model without a head or with one of
    zeros.
    """
    if not math.isfinite(temperature) or temperature <= 0:
        raise BadSettings(f"the temperature is {temperature}; it is a positive number")
    check_answers(classifier, "there are no logits to divide by a temperature")
    check_own_weights(classifier.model)
    model = deepcopy(classifier.model)
    for layer in model.head.modules():  # DeiT's head has two of them
        if isinstance(layer, nn.Linear):
            layer.weight.div_(temperature)
            layer.bias.div_(temperature)

    # What is said of the model: figures of probabilities are another model's now, those of answers stay
    product = temperature * classifier.origin.get("temperature", 1.0)
    origin = {**classifier.origin, "temperature": product}
    if metrics := origin.get("metrics"):
        changed = ("calibration_error", "loss")
        origin["metrics"] = {
            name: text for name, text in metrics.items() if name.rpartition("/")[2] not in changed
        }
    return replace(classifier, model=model, origin=origin, unknown=None)


# Its description: what vitkit writes beside or into the weights, and what it makes of other libraries'
# files


class Description(NamedTuple):
    """A model whose weights are not read yet."""

    config: ModelConfig
    preprocessing: Preprocessing
    labels: tuple[str, ...] | None = None
    """Names of the classes, if the file gives them."""
    notes: tuple[str, ...] = ()
    """What was assumed, one sentence each."""
    activation: Activation = "softmax"
    """How its logits become probabilities."""
    origin: dict | None = None
    """Where it came from, if the file says so."""
    guess: str = ""
    """What nothing in the file says and a wrong answer is costly of, such as the mean that images
    are normalised with: a sentence that also says how to say it. It is the first that is told."""
    objective: dict | None = None
    """Settings of its pre-training that no tensor tells, if the file says them."""


def to_json(classifier: Classifier) -> dict:
    """A model as vitkit describes it; `from_json` reads that."""
    return {
        "model": config_to_dict(classifier.model.config),
        "preprocessing": classifier.preprocessing.to_json(),
        "labels": list(classifier.labels),
        "activation": classifier.activation,
        "origin": public(classifier.origin),
        "license": license_to_json(classifier.license),
    }


def from_json(values: dict) -> Description:
    """The way back. Raises VitkitError for values that describe no model."""
    try:
        config = config_from(values["model"])
        preprocessing = Preprocessing.from_json(values["preprocessing"])
        # Classes without names are numbered by the reader, once the weights have shown that there
        # are so many. A comment in an archive has None for the numbers.
        names = values["labels"]
        if names is None:
            names = ()
        if not isinstance(names, list | tuple):
            raise BadWeights(f"labels is {repr(names)[:100]}; it is a list of names")
        labels = tuple(map(str, names))
        origin = values["origin"]
        if not isinstance(origin, dict):
            raise BadWeights(f"origin is {repr(origin)[:100]}; it is an object")
    except KeyError as error:
        raise BadWeights(f"it does not describe a vitkit model: {error} is missing") from error
    except (TypeError, ValueError, AttributeError) as error:
        raise BadWeights(f"it does not describe a vitkit model: {error}") from error
    if labels and len(labels) != config.classes:
        raise BadWeights(f"it names {len(labels)} classes for a head of {config.classes}")

    # Before descriptions named the activation, it was that of the loss which trained the model
    usual: Activation = "softmax"
    objective = origin.get("objective")
    if isinstance(objective, dict) and objective.get("loss") == "sigmoid":
        usual = "sigmoid"
    activation = values.get("activation") or usual
    origin, notes = checked_origin(origin)
    return Description(config, preprocessing, labels, notes, activation, origin)


# A model that PEFT, a quantiser or torch.compile has changed has other tensors. Saved as if it were
# vitkit's, it would not open, or compute something else.


def check_own_weights(model: nn.Module) -> None:
    """Raises VitkitError for a model that was made for inference, or that something else changed."""
    if getattr(model, "inference_only", False):
        raise Unsupported("the model was made for inference; save the one it was made from")
    if not isinstance(model, Model):
        raise Unsupported(
            f"the model is wrapped in a {type(model).__name__}, and vitkit saves its own models; "
            "unwrap it, or save the one that it was made from"
        )
    expected = blueprint(model.config).state_dict()
    state = model.state_dict()
    wrong = expected.keys() ^ state.keys()  # only in one of them
    wrong |= {name for name, tensor in state.items() if not _fits(tensor, expected.get(name))}
    if wrong:
        raise BadWeights(
            f"the model's weights are not those that it was built with: {gist(sorted(wrong))}; "
            "merge adapters, or save the model that was quantised"
        )


def _fits(tensor: object, expected: Tensor | None) -> bool:
    """Whether a weight is a plain tensor of the expected shape and kind of numbers."""
    if expected is None or type(tensor) is not Tensor or tensor.shape != expected.shape:
        return False
    return tensor.is_floating_point() == expected.is_floating_point()


def check_finite(state: dict[str, Tensor]) -> None:
    """Raises VitkitError, with their names, if tensors hold NaN or infinity."""
    broken = []
    for name, tensor in state.items():
        # The sum is not finite if any number is not, and sometimes of large ones; it is much faster
        if not tensor.sum().isfinite() and not tensor.isfinite().all():
            broken.append(name)
    if broken:
        raise BadWeights(f"its weights hold NaN or infinity: {gist(broken)}")
