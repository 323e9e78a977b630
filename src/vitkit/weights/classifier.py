"""The Classifier: a model with everything that an image needs on its way to a probability.

Legend: B batch, K classes, h w pixels of what the model gets.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, get_args

import torch
from torch import Tensor, nn

from vitkit.data import Preprocessing, as_pictures
from vitkit.models import Model, for_inference
from vitkit.weights.activation import Activation, activate
from vitkit.weights.provenance.licenses import License
from vitkit.weights.unknown import Unknown


@dataclass(frozen=True)
class Classifier:
    """A model, and what it must not be separated from: preprocessing, labels, activation, origin,
    licence.

    Every room that needs a model's answer to an image takes the same three steps, in this order:
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
    """What pre-training added to the model: a mask embedding, a decoder (weights/adaptation/pretraining.py). A
    run of the same objective that begins with the model begins with it too."""
    unknown: Unknown | None = field(default=None, compare=False, repr=False)
    """From where on an image is unknown to the model, and which classes an answer leaves open; None
    if nobody has fitted that. Another head, or other features, make it meaningless: they begin
    without."""

    def __post_init__(self):
        if self.activation not in get_args(Activation):
            choices = ", ".join(get_args(Activation))
            raise ValueError(f"activation is {self.activation!r}; it is one of {choices}")
        check_labels(self.labels)
        config = getattr(self.model, "config", None)
        outputs = getattr(config, "classes", None)
        if self.labels and outputs is not None and len(self.labels) != outputs:
            raise ValueError(f"there are {len(self.labels)} labels for a head of {outputs} outputs")

    @property
    def device(self) -> torch.device:
        """Where the model's parameters are."""
        return next(self.model.parameters()).device

    def to(self, device: torch.device | str) -> "Classifier":
        """The same classifier with its model on a device. As nn.Module.to does, it moves the model
        itself."""
        return replace(self, model=self.model.to(device))

    def for_inference(self) -> "Classifier":
        """The same classifier to deploy, with what can be computed once for the size of its
        preprocessing.

        Its model is for inference alone: it is not trained on, and not saved. A classifier whose model
        is that already is returned as it is.
        """
        if getattr(self.model, "inference_only", False):
            return self
        model = for_inference(self.model, self.preprocessing.size)
        return replace(self, model=model)

    def batch(self, images: Any) -> Tensor:
        """Prepare images: -> uint8 (B, 3, h, w) on the model's device.

        They are one or several of: a path, the bytes of a file, a Pillow image, an array (h, w, 3)
        or (h, w), a tensor (3, h, w); of uint8, or float from 0 to 1; or a picture
        (`vitkit.data.open_image`). Raises BadImage for one that cannot be decoded, and ValueError
        for an empty list.
        """
        prepared = [self.preprocessing(picture) for picture in as_pictures(images)]
        if not prepared:
            raise ValueError("there are no images to prepare")
        return torch.stack(prepared).to(self.device)

    def logits(self, images: Tensor) -> Tensor:
        """Prepared images, uint8 (B, 3, h, w) on any device, -> float32 (B, K), without a gradient,
        in evaluation mode.

        A model without a head gives its representation, (B, D).
        """
        return self._compute(self.model, images)

    def features(self, images: Tensor) -> Tensor:
        """Prepared images, uint8 (B, 3, h, w) on any device, -> float32 (B, D): what the head
        reads."""
        return self._compute(self.model.features, images)

    # Not inference_mode: a model in training is evaluated too, and FSDP keeps the memory that it
    # takes here, as tensors that autograd could then not use.
    @torch.no_grad()
    def _compute(self, function: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
        if not isinstance(images, Tensor):
            kind = type(images).__name__
            raise ValueError(f"the images are a {kind}; prepare them with batch(images)")
        images = self.preprocessing.normalise(images.to(self.device, non_blocking=True))
        with evaluating(self.model):
            return function(images).float()

    def probabilities(self, logits: Tensor) -> Tensor:
        """Logits (B, K) -> (B, K), by the classifier's activation."""
        return activate(logits, self.activation)

    def predict(self, *images: Any, **settings: Any) -> Any:
        """The likeliest classes of images, as `vitkit.predict(classifier, *images, **settings)` gives
        them: files, folders, bytes, Pillow images, arrays or tensors; raises what that raises."""
        import vitkit  # the verb is above this room, which only hands the call on

        return vitkit.predict(self, *images, **settings)

    __call__ = predict


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """A block in which the model is in evaluation mode. Afterwards each module has the mode that it
    had before: frozen parts stay in evaluation mode."""
    modules = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in modules:
            module.training = True


def check_labels(labels: Iterable[str]) -> None:
    """Raises ValueError for one string instead of several names: its letters would become the
    labels."""
    if isinstance(labels, str):
        raise ValueError(f"labels is {labels!r}, one string; give a list of names, one a class")
