"""PyTorch's runtimes, eager and compiled; and Classifiers whose model another runtime computes.

Legend: B batch, K classes, h w pixels of the model's input.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from vitkit.data import Preprocessing
from vitkit.models import same_memory
from vitkit.runtimes.exported import FileRuntime, PictureRuntime, takes_pictures
from vitkit.runtimes.runtime import Runtime
from vitkit.system.errors import Unsupported
from vitkit.system.functions.steps import IMAGES, MODEL, step
from vitkit.system.machine import Precision, PrecisionChoice, autocast, pick_device, pick_precision
from vitkit.weights import Activation, Classifier


@dataclass(frozen=True)
class Eager:
    """A classifier that PyTorch computes in a precision, for inference."""

    classifier: Classifier
    """The model on its device."""
    precision: Precision = "float32"
    """Arithmetic of the matrix products."""

    @property
    def preprocessing(self) -> Preprocessing:
        """The preprocessing of the classifier."""
        return self.classifier.preprocessing

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of the classifier."""
        return self.classifier.labels

    @property
    def activation(self) -> Activation:
        """The activation of the classifier."""
        return self.classifier.activation

    def logits(self, images: np.ndarray) -> np.ndarray:
        """Prepared images, uint8 (B, 3, h, w), -> float32 (B, K)."""
        with torch.inference_mode(), autocast(self.classifier.device, self.precision):
            logits = self.classifier.logits(torch.from_numpy(images))
        return logits.cpu().numpy()

    @property
    def least(self) -> np.ndarray | None:
        """Smallest probability of a class that is left open, (K,) or (1,); None if the classifier has no
        thresholds."""
        return least_of(self.classifier)

    def logits_and_strangeness(self, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Prepared images, uint8 (B, 3, h, w), -> logits (B, K), and out-of-distribution scores (B,), above 0
        for unknown images."""
        return with_strangeness(self.classifier, lambda: self.logits(images))


def least_of(classifier: Classifier) -> np.ndarray | None:
    """Smallest probability of a class that a classifier leaves open, (K,) or (1,); None if it has no
    thresholds."""
    if classifier.unknown is None:
        return None
    return np.atleast_1d(classifier.unknown.least.numpy())


def with_strangeness(
    classifier: Classifier, compute: Callable[[], np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Logits, (B, K), and out-of-distribution scores, (B,), from one forward pass of a classifier with thresholds.
    compute: runs the forward pass, and returns the logits."""
    head_inputs = []
    head = classifier.model.head
    hook = head.register_forward_pre_hook(
        lambda module, inputs: head_inputs.append(inputs[0].detach())
    )
    try:
        logits = compute()
    finally:
        hook.remove()
    assert classifier.unknown is not None, "the classifier has no thresholds"
    features = head_inputs[0].cpu().double()
    strangeness = classifier.unknown.excess(features, torch.from_numpy(logits))
    return logits, strangeness.float().numpy()


def eager(
    classifier: Classifier,
    device: str | torch.device = "auto",
    precision: PrecisionChoice = "float32",
) -> Eager:
    """The eager runtime of a classifier. The given classifier does not change.

    device: cpu, cuda, cuda:1 or mps; "auto" is the best one of this machine.
    precision: "auto" is bfloat16 where the device has instructions for it.

    Raises VitkitError for a model with an output for every token.
    """
    check_answer(classifier)
    own_device = pick_device(device)
    deployed = classifier.for_inference().to(own_device)
    return Eager(deployed, pick_precision(precision, own_device).precision)


def compiled(
    classifier: Classifier,
    device: str | torch.device = "auto",
    precision: PrecisionChoice = "float32",
) -> Eager:
    """A compiled `Eager` runtime: the first batch of each size takes about a minute."""
    runtime = eager(classifier, device, precision)
    model = torch.compile(runtime.classifier.model, dynamic=False)
    computing = replace(runtime.classifier, model=model)  # type: ignore[arg-type]  # replaces the model
    return replace(runtime, classifier=computing)


def check_answer(classifier: Classifier) -> None:
    """Raises VitkitError for a model with an output for each of its tokens or pixels instead of one for the
    image."""
    if getattr(classifier.model.config, "segments", False):
        raise Unsupported(
            f"the model classifies every pixel, and this needs one output for the image; "
            f"{step('segment', MODEL, IMAGES)} writes its masks"
        )
    if not classifier.model.config.pools:
        raise Unsupported(
            'the model has an output for every token (its pool is "none"), and this needs one for the '
            "image; use its logits from Python"
        )


# Classifiers whose model another runtime computes


BLACK = np.zeros((8, 8, 3), np.uint8)  # a black image


class OnRuntime(nn.Module):
    """A model whose logits a runtime computes from normalised images.

    preprocessing: the one that normalises the images.
    """

    inference_only = True

    def __init__(self, runtime: Runtime, preprocessing: Preprocessing):
        super().__init__()
        self.runtime = runtime
        self.preprocessing = preprocessing
        self.takes_pictures = takes_pictures(runtime)  # whole pictures, one at a time
        self.where = nn.Parameter(torch.empty(0), requires_grad=False)  # defines the model's device

    def forward(self, images: Tensor) -> Tensor:
        """Normalised images (B, 3, h, w) -> logits, float32 (B, K).

        The runtime takes uint8 levels, so the normalisation is undone, exactly.
        """
        levels = self.preprocessing.levels(images)
        logits = self.runtime.logits(levels.cpu().numpy())
        return torch.from_numpy(logits).to(images.device)


class FeaturesOnRuntime(nn.Module):
    """A model whose features a runtime computes from normalised images.

    It keeps the model's own weights, which identify the features in the cache.
    """

    inference_only = True

    def __init__(
        self,
        classifier: Classifier,
        compute: Callable[[np.ndarray], np.ndarray],
        computed_by: str,
    ):
        super().__init__()
        self.model = classifier.model
        self.config = classifier.model.config
        self.computed_by = computed_by  # identifies the features in the cache, too
        self.preprocessing = classifier.preprocessing
        self.compute = compute

    def features(self, images: Tensor) -> Tensor:
        """Normalised images (B, 3, h, w) -> features, float32 (B, D)."""
        levels = self.preprocessing.levels(images)
        return torch.from_numpy(self.compute(levels.cpu().numpy())).to(images.device)


def answering_features(classifier: Classifier) -> Classifier:
    """A classifier whose outputs are the features of the given one; they share their weights."""
    width = classifier.features(classifier.batch([BLACK])).shape[-1]  # D
    model = copy.deepcopy(classifier.model, memo=same_memory(classifier.model))
    model.head = nn.Identity()
    model.config = replace(model.config, classes=width)
    names = tuple(f"feature {i}" for i in range(width))
    return Classifier(model, classifier.preprocessing, names, "none")


def of_file(runtime: FileRuntime | PictureRuntime) -> Classifier:
    """An exported file as a Classifier."""
    exported = runtime.exported
    return Classifier(
        OnRuntime(runtime, exported.preprocessing),  # type: ignore[arg-type]  # replaces a model
        exported.preprocessing,
        exported.labels,
        exported.activation,
        exported.origin,
    )


def file_with_map(classifier: Classifier) -> FileRuntime | PictureRuntime | None:
    """The exported file that computes a classifier, if it gives an anomaly map, as that of a model of good images
    does; else None."""
    runtime = getattr(classifier.model, "runtime", None)
    if isinstance(runtime, FileRuntime | PictureRuntime) and runtime.exported.has_anomaly_map:
        return runtime
    return None


def on_runtime(classifier: Classifier, runtime: Runtime) -> Classifier:
    """A copy of a classifier whose logits are computed by a runtime. It has no thresholds of unknown images, which
    need the features."""
    model = OnRuntime(runtime, classifier.preprocessing)
    return replace(classifier, model=model, unknown=None)  # type: ignore[arg-type]  # replaces the model
