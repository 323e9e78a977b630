"""The network that is exported: from the levels of an image, uint8, to logits.

Legend: B batch, K classes, D width, P side of a patch, h w pixels of what the model gets.
"""

import copy

import torch
from torch import Tensor, nn

from vitkit.data import Preprocessing
from vitkit.deploy.resizing import PictureResize
from vitkit.models import Model
from vitkit.models.merging import Merging
from vitkit.models.resize import same_memory
from vitkit.models.stems import Patches
from vitkit.weights import Classifier
from vitkit.weights.activation import activate


class Graph(nn.Module):
    """Prepared images to logits, the normalisation inside."""

    def __init__(self, classifier: Classifier, merge: int = 0):
        """classifier: as its for_inference gives it. merge: tokens to merge in every block."""
        super().__init__()
        preprocessing = classifier.preprocessing
        self.model = classifier.model
        self.normalises = not isinstance(getattr(self.model, "stem", None), Patches)
        if not self.normalises:
            self.model = reading_levels(self.model, preprocessing)
        if merge:
            self.model = Merging(self.model, merge)
        mean = torch.tensor(preprocessing.mean)[:, None, None]
        std = torch.tensor(preprocessing.std)[:, None, None]
        self.register_buffer("scale", 1 / (255 * std))
        self.register_buffer("shift", mean / std)

    def forward(self, images: Tensor) -> Tensor:
        """Levels from 0 to 255, (B, 3, h, w) -> float32 (B, K)."""
        x = images.float()
        if self.normalises:
            x = x * self.scale - self.shift
        return self.model(x).float()


class PictureGraph(nn.Module):
    """Pictures of any size to probabilities, the preprocessing inside."""

    def __init__(self, classifier: Classifier, merge: int = 0):
        """As Graph's."""
        super().__init__()
        self.resize = PictureResize(classifier.preprocessing)
        self.network = Graph(classifier, merge)
        self.activation = classifier.activation

    def forward(self, images: Tensor) -> Tensor:
        """uint8 (B, height, width, 3), red first -> float32 (B, K)."""
        return activate(self.network(self.resize(images)), self.activation)


def reading_levels(model: Model, preprocessing: Preprocessing) -> Model:
    """A model that gives the same answers to the levels of an image, from 0 to 255, as the given one
    to the normalised image: (x / 255 - mean) / std is folded into the projection of patches (Eq. 1).

    Exact but for rounding, as nothing surrounds a patch: where zeros surround an image, as in a
    ResNet, they would not be normalised.
    """
    project = model.stem.project
    exact = project.weight.detach().double()  # (D, 3, P, P)
    mean = torch.tensor(preprocessing.mean, dtype=torch.float64)[:, None, None]
    std = torch.tensor(preprocessing.std, dtype=torch.float64)[:, None, None]
    bias = -(exact * (mean / std)).sum((1, 2, 3))  # (D,)
    if project.bias is not None:
        bias = bias + project.bias.detach().double()

    folded = nn.Conv2d(3, project.out_channels, project.kernel_size, project.stride)
    folded.weight = nn.Parameter((exact / (255 * std)).to(project.weight), requires_grad=False)
    folded.bias = nn.Parameter(bias.to(project.weight), requires_grad=False)
    own = copy.deepcopy(model, memo=same_memory(model))
    own.stem.project = folded
    return own
