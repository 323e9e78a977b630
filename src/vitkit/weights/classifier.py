"""The Classifier: a model with everything that is needed to classify an image; and its description,
which is everything but the weights.

Legend: B batch, K classes, h w pixels of a prepared image.
"""

import math
from collections.abc import Callable, Iterable, Iterator, KeysView, Mapping, Set
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
from vitkit.system.errors import BadSettings, BadWeights, Unsupported, WrongArgument
from vitkit.system.machine import check_device
from vitkit.system.storage.private import public
from vitkit.weights.licenses import License, license_to_json
from vitkit.weights.origins import checked_origin
from vitkit.weights.outputs import Activation, activate
from vitkit.weights.rules import gist
from vitkit.weights.unknown import Unknown


@dataclass(frozen=True)
class Classifier:
    """A model with everything that must stay with it: preprocessing, labels, activation, origin, licence.

    Every package that computes a model's output for images takes three steps, in this order: `batch`
    prepares pictures, `logits` computes, `probabilities` applies the activation.
    """

    model: Model
    preprocessing: Preprocessing
    labels: tuple[str, ...]
    """A name for every class; empty for a model without a head. If a saved model has no names, its
    classes are numbered."""
    activation: Activation = "softmax"
    """How logits become probabilities. "softmax": one class of K, probabilities sum to one. "sigmoid":
    several classes, each independently. "none": outputs are not logits, such as those of a regression."""
    origin: dict = field(default_factory=dict)
    """Where the model came from, for people. vitkit itself reads two entries: if a model is written in
    the format of its "format", tensors get the names of its "layout" (`Tidied.layout`)."""
    license: License | None = None
    """Terms under which the weights may be used and passed on; None if unknown."""
    pretraining: dict[str, Tensor] = field(default_factory=dict, compare=False, repr=False)
    """Modules that pre-training added to the model: a mask embedding, a decoder
    (weights/pretraining.py). A run of the same objective that begins with the model uses them too."""
    unknown: Unknown | None = field(default=None, compare=False, repr=False)
    """Limits beyond which an image is unknown to the model, and classes that a prediction leaves open;
    None if they were not fitted. They are valid for one head and one set of features only."""

    def __post_init__(self):
        if self.activation not in get_args(Activation):
            choices = ", ".join(get_args(Activation))
            raise BadSettings(f"activation is {self.activation!r}; it is one of {choices}")
        if not isinstance(self.model, nn.Module):
            kind = type(self.model).__name__
            raise WrongArgument(
                f"the model is of type {kind}; give a network, such as vitkit.create returns; vitkit.load "
                "opens a file with its preprocessing and labels"
            )
        check_preprocessing(self.preprocessing)
        # A copy, so that later changes of the caller's list have no effect
        object.__setattr__(self, "labels", checked_labels(self.labels))
        config = getattr(self.model, "config", None)
        if self.preprocessing.is_native and isinstance(config, ModelConfig):
            check_native(config, self.preprocessing.patch)
        outputs = getattr(config, "classes", None)
        if self.labels and outputs is not None and len(self.labels) != outputs:
            raise BadSettings(
                f"there are {len(self.labels)} labels for a head of {outputs} outputs"
            )

    def __repr__(self) -> str:
        """A summary in five lines: the model, its images, classes, origin and licence."""
        # The model, which another library may have wrapped
        config = getattr(self.model, "config", None)
        name = type(self.model).__name__
        if isinstance(config, ModelConfig):
            name = called(config)

        # Its classes, the first three by name
        classes = "none: it gives features"
        if self.labels:
            names = some([printable_name(label) for label in self.labels], 3)
            classes = f"{len(self.labels):,} ({self.activation}): {names}"

        # Its origin and licence
        origin = self.origin.get("file") or self.origin.get("init") or "made from its parts"
        if data := self.origin.get("data"):
            origin = f"{origin}, trained on {data}"
        license = "unknown"
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
        """The classifier with its model on a device. Like nn.Module.to, this moves the model itself. Raises
        VitkitError for a device that this machine does not have."""
        if isinstance(device, str | torch.device):  # nn.Module.to takes types and numbers too
            check_device(device)
        return replace(self, model=self.model.to(device))

    def for_inference(self) -> "Classifier":
        """A copy for deployment, in which everything that depends only on the image size is computed in
        advance. Its model cannot be trained or saved. Returns the classifier itself if its model is already
        such a model.
        """
        if getattr(self.model, "inference_only", False):
            return self
        size: Grid | None = self.preprocessing.size
        if self.preprocessing.is_native:  # positions of every grid come from the trained one
            size = None
        model = for_inference(self.model, size)
        return replace(self, model=model)

    def batch(self, images: Any) -> Tensor:
        """Prepare images: -> uint8 (B, 3, h, w) on the model's device; or (B, M) if they keep their aspect
        ratios and these differ (data/images/native.py).

        An image is a path, the bytes of a file, a Pillow image, an array (h, w, 3) or (h, w), a tensor
        (3, h, w), uint8 or float from 0 to 1, or a picture (`vitkit.data.open_image`). One or several are
        accepted. Raises BadImage for an image that cannot be decoded, and VitkitError for an empty list.
        """
        from vitkit.data import as_pictures

        prepared = [self.preprocessing.array(picture) for picture in as_pictures(images)]
        if not prepared:
            raise BadSettings("there are no images to prepare")
        return torch.from_numpy(self.preprocessing.together(prepared)).to(self.device)

    def logits(self, images: Tensor) -> Tensor:
        """Compute logits: prepared images, uint8 (B, 3, h, w) or (B, M) as from `batch`, on any device ->
        float32 (B, K), without gradients, in evaluation mode.

        A model that classifies every pixel returns (B, K, h, w), for images of one size.
        A model without a head returns its representation, (B, D).
        """
        return self._compute(self.model, images)

    def features(self, images: Tensor) -> Tensor:
        """Compute the features that the head reads: prepared images uint8 (B, 3, h, w) -> float32 (B, D)."""
        return self._compute(self.model.features, images)

    # no_grad instead of inference_mode, because a model in training is evaluated too, and FSDP would keep
    # memory that is allocated here as tensors that autograd cannot use.
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
        """Predict the most likely classes of images: see `vitkit.predict(classifier, *images, **settings)`.
        Images are files, folders, bytes, Pillow images, arrays or tensors."""
        import vitkit  # `predict` is in a higher layer, and this only forwards the call

        return vitkit.predict(self, *images, **settings)

    __call__ = predict

    def __getattr__(self, name: str) -> Any:
        """Raise AttributeError for a missing attribute, with the right name if other libraries have one of
        that name."""
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
_SAVE = 'vitkit.save(classifier, "weights") saves it'
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
"""Names of other libraries for attributes of a classifier, each with what to write here."""


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """A context in which the model is in evaluation mode. Afterwards each module has its previous mode
    again, so frozen parts stay in evaluation mode."""
    modules = [module for module in model.modules() if module.training]
    for module in modules:
        module.training = False
    try:
        yield
    finally:
        for module in modules:
            module.training = True


def check_native(config: ModelConfig, patch: tuple[int, int]) -> None:
    """Raise VitkitError for a model that cannot read images in their own aspect ratios, with patches of
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
    """The reason why the model's outputs do not depend on the image, as the beginning of a sentence: it has
    no head, or one of zeros. "" for any other model.

    Google published its files of ImageNet-21k with a head of 21,843 classes, all zeros. A new head is zero
    too (Section 3.2), until it is trained.
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
    """Raise VitkitError for a model whose outputs do not depend on the image; the message ends with
    `instead`, the remedy."""
    if reason := no_answer(classifier):
        raise Unsupported(f"{reason}; {instead}")


def has_head_of_zeros(model: nn.Module) -> bool:
    """Whether the weights of the model's head, or of both heads of DeiT, are all zeros. Biases are ignored,
    as they do not depend on the image."""
    head = getattr(model, "head", None)
    if not isinstance(head, nn.Module):
        return False
    weights = [layer.weight for layer in head.modules() if isinstance(layer, nn.Linear)]
    if not weights or any(weight.is_meta for weight in weights):
        return False
    return not any(bool(weight.any()) for weight in weights)


def checked_labels(labels: Iterable[str]) -> tuple[str, ...]:
    """Names of classes as a tuple. Raises VitkitError unless they are strings in a list or something else with
    an order; a single string is refused, because its letters would become the labels."""
    if isinstance(labels, str):
        raise BadSettings(
            f"labels is {labels!r}, one string; give a list of names, one for each class"
        )
    if not isinstance(labels, Iterable):
        raise BadSettings(f"labels is {labels!r}; give a list of names, one for each class")
    if isinstance(labels, Set | Mapping) and not isinstance(labels, KeysView):
        # Without an order, or with one that is not meant
        kind = type(labels).__name__
        raise BadSettings(f"labels is a {kind}; give a list of names, in the order of the classes")
    names = tuple(labels)
    for name in names:
        if not isinstance(name, str):
            raise BadSettings(
                f"labels holds {name!r}, which is not a string; give a name for each class"
            )
    return tuple(map(str.__str__, names))  # converts numpy's strings, and those of an Enum


def check_preprocessing(preprocessing: object) -> None:
    """Raise VitkitError for anything but a Preprocessing."""
    if not isinstance(preprocessing, Preprocessing):
        kind = type(preprocessing).__name__
        raise WrongArgument(
            f"preprocessing is of type {kind}; give a vitkit.Preprocessing, such as "
            "vitkit.Preprocessing(size=(224, 224))"
        )


@torch.no_grad()
def with_temperature(classifier: Classifier, temperature: float) -> Classifier:
    """A copy of the classifier whose logits are divided by the temperature.

    The origin records the temperature. Metrics of probabilities in the origin and limits for unknown
    images are dropped, because they are no longer valid. The division is applied to the weights of the
    head, exact up to float32's rounding, so every format, library, runtime and server has the same
    probabilities. Raises VitkitError for a temperature that is not positive, and for a model without a
    head or with one of zeros.
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

    # Metrics of probabilities are no longer valid; those of predicted classes are
    product = temperature * classifier.origin.get("temperature", 1.0)
    origin = {**classifier.origin, "temperature": product}
    if metrics := origin.get("metrics"):
        changed = ("calibration_error", "loss")
        origin["metrics"] = {
            name: text for name, text in metrics.items() if name.rpartition("/")[2] not in changed
        }
    return replace(classifier, model=model, origin=origin, unknown=None)


# The description, which vitkit writes beside or into the weights, and derives from other libraries'
# files


class Description(NamedTuple):
    """A model whose weights are not read yet."""

    config: ModelConfig
    preprocessing: Preprocessing
    labels: tuple[str, ...] | None = None
    """Names of the classes, if the file gives them."""
    notes: tuple[str, ...] = ()
    """Assumptions, one sentence each."""
    activation: Activation = "softmax"
    """How logits become probabilities."""
    origin: dict | None = None
    """Where the model came from, if the file contains it."""
    guess: str = ""
    """An assumption that the file does not support and that is costly if wrong, such as the mean for
    normalisation: a sentence that also says how to set it. It is reported first."""
    objective: dict | None = None
    """Settings of pre-training that cannot be derived from tensors, if the file contains them."""


def to_json(classifier: Classifier) -> dict:
    """vitkit's description of a model; `from_json` reads it."""
    return {
        "model": config_to_dict(classifier.model.config),
        "preprocessing": classifier.preprocessing.to_json(),
        "labels": list(classifier.labels),
        "activation": classifier.activation,
        "origin": public(classifier.origin),
        "license": license_to_json(classifier.license),
    }


def from_json(values: dict) -> Description:
    """Read the description of a model. Raises VitkitError for malformed values."""
    try:
        config = config_from(values["model"])
        preprocessing = Preprocessing.from_json(values["preprocessing"])
        # The reader numbers classes without names, once the weights have confirmed their number.
        # None, in the comment of an archive, means that the names are numbers.
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

    # Older descriptions do not name the activation; it follows from the loss
    usual: Activation = "softmax"
    objective = origin.get("objective")
    if isinstance(objective, dict) and objective.get("loss") == "sigmoid":
        usual = "sigmoid"
    activation = values.get("activation") or usual
    origin, notes = checked_origin(origin)
    return Description(config, preprocessing, labels, notes, activation, origin)


# A model that PEFT, a quantiser or torch.compile has changed has other tensors. Saved as vitkit's, it
# would not open, or would compute something else.


def check_own_weights(model: nn.Module) -> None:
    """Raise VitkitError for a model that was made for inference, or that something else changed."""
    if getattr(model, "inference_only", False):
        raise Unsupported("the model was made for inference; save the model that it was made from")
    if not isinstance(model, Model):
        raise Unsupported(
            f"the model is wrapped in a {type(model).__name__}, but vitkit saves only its own models; "
            "unwrap it, or save the model that it was made from"
        )
    expected = blueprint(model.config).state_dict()
    state = model.state_dict()
    wrong = expected.keys() ^ state.keys()  # in one of them only
    wrong |= {name for name, tensor in state.items() if not _fits(tensor, expected.get(name))}
    if wrong:
        raise BadWeights(
            f"the model has other weights than it was built with: {gist(sorted(wrong))}; "
            "merge adapters, or save the model before quantisation"
        )


def _fits(tensor: object, expected: Tensor | None) -> bool:
    """Whether a weight is a plain tensor of the expected shape, and floating point as expected."""
    if expected is None or type(tensor) is not Tensor or tensor.shape != expected.shape:
        return False
    return tensor.is_floating_point() == expected.is_floating_point()


def check_finite(state: dict[str, Tensor]) -> None:
    """Raise VitkitError, with the names of the tensors, if any contains NaN or infinity."""
    broken = []
    for name, tensor in state.items():
        # The sum is not finite if any value is not; rarely, large finite values overflow too. It is much
        # faster.
        if not tensor.sum().isfinite() and not tensor.isfinite().all():
            broken.append(name)
    if broken:
        raise BadWeights(f"its weights hold NaN or infinity: {gist(broken)}")
