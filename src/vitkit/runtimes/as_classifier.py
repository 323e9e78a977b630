"""A Classifier whose model another runtime computes: for all that takes a Classifier, such as the
evaluators.

Legend: B batch, K classes, h w pixels of what the model gets.
"""

import copy
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from vitkit.data import Preprocessing
from vitkit.models import same_memory
from vitkit.runtimes.exported import FileRuntime, PictureRuntime, takes_pictures
from vitkit.runtimes.runtime import Runtime
from vitkit.weights import Classifier

BLACK = np.zeros((8, 8, 3), np.uint8)  # a picture


class OnRuntime(nn.Module):
    """A model that asks a runtime: normalised images to logits.

    preprocessing: what has normalised them.
    """

    inference_only = True

    def __init__(self, runtime: Runtime, preprocessing: Preprocessing):
        super().__init__()
        self.runtime = runtime
        self.preprocessing = preprocessing
        self.takes_pictures = takes_pictures(runtime)  # whole ones, one at a time
        self.where = nn.Parameter(torch.empty(0), requires_grad=False)  # a model has a device

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, h, w), as the preprocessing normalises them -> float32 (B, K).

        A runtime takes levels, and normalising is undone exactly.
        """
        levels = self.preprocessing.levels(images)
        logits = self.runtime.logits(levels.cpu().numpy())
        return torch.from_numpy(logits).to(images.device)


class FeaturesOnRuntime(nn.Module):
    """A model whose features a runtime computes: normalised images to what the head reads.

    The model's own weights stay in it, by which features are told apart in the cache.
    """

    inference_only = True

    def __init__(self, classifier: Classifier, runtime: Runtime, computed_by: str):
        super().__init__()
        self.model = classifier.model
        self.config = classifier.model.config
        self.computed_by = computed_by  # is among what tells features apart, too
        self.preprocessing = classifier.preprocessing
        self.runtime = runtime

    def features(self, images: Tensor) -> Tensor:
        """(B, 3, h, w), as the preprocessing normalises them -> float32 (B, D)."""
        levels = self.preprocessing.levels(images)
        return torch.from_numpy(self.runtime.logits(levels.cpu().numpy())).to(images.device)


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
    model = OnRuntime(runtime, exported.preprocessing)
    return Classifier(
        model, exported.preprocessing, exported.labels, exported.activation, exported.origin
    )


def on_runtime(classifier: Classifier, runtime: Runtime) -> Classifier:
    """The same classifier, its logits computed by a runtime. It has no limits for unknown images:
    they are of the features."""
    model = OnRuntime(runtime, classifier.preprocessing)
    return replace(classifier, model=model, unknown=None)
