"""A Classifier whose model another runtime computes: for all that takes a Classifier, such as the
evaluators.

Legend: B batch, K classes, h w pixels of what the model gets.
"""

from dataclasses import replace

import torch
from torch import Tensor, nn

from vitkit.deploy.exported import FileRuntime
from vitkit.deploy.runtimes import Runtime
from vitkit.weights import Classifier


class OnRuntime(nn.Module):
    """A model that asks a runtime: normalised images to logits."""

    inference_only = True

    def __init__(self, runtime: Runtime):
        super().__init__()
        self.runtime = runtime
        self.where = nn.Parameter(torch.empty(0), requires_grad=False)  # a model has a device

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, h, w), as the runtime's preprocessing normalises them -> float32 (B, K).

        A runtime takes levels, and normalising is undone exactly.
        """
        levels = self.runtime.preprocessing.levels(images)
        logits = self.runtime.logits(levels.cpu().numpy())
        return torch.from_numpy(logits).to(images.device)


def of_file(runtime: FileRuntime) -> Classifier:
    """An exported file as a Classifier."""
    model = OnRuntime(runtime)
    origin = runtime.exported.origin
    return Classifier(model, runtime.preprocessing, runtime.labels, runtime.activation, origin)


def on_runtime(classifier: Classifier, runtime: Runtime) -> Classifier:
    """The same classifier, its logits computed by a runtime. It has no limits for unknown images:
    they are of the features."""
    return replace(classifier, model=OnRuntime(runtime), unknown=None)
