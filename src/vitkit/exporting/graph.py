"""The network that is exported: from the levels of an image, uint8, to logits.

Legend: B batch, K classes, D width, P side of a patch, h w pixels of what the model gets.
"""

import copy

import torch
from torch import Tensor, nn

from vitkit.data import Preprocessing
from vitkit.exporting.resizing import PictureResize
from vitkit.models import Attention, Merging, Model, Patches, same_memory
from vitkit.weights import Classifier, activate


class Graph(nn.Module):
    """Prepared images to logits, the normalisation inside."""

    def __init__(self, classifier: Classifier, merge: int = 0, apart: bool = False):
        """classifier: as its for_inference gives it. merge: tokens to merge in every block. apart:
        whether queries, keys and values come from dense layers of their own (ApartAttention)."""
        super().__init__()
        preprocessing = classifier.preprocessing
        self.model = classifier.model
        self.normalises = not isinstance(getattr(self.model, "stem", None), Patches)
        if not self.normalises:
            self.model = reading_levels(self.model, preprocessing)
        if apart:
            self.model = with_projections_apart(self.model)
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

    def __init__(self, classifier: Classifier, merge: int = 0, apart: bool = False):
        """As Graph's."""
        super().__init__()
        self.resize = PictureResize(classifier.preprocessing)
        self.network = Graph(classifier, merge, apart)
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


class ApartAttention(Attention):
    """Attention whose queries, keys and values come from three dense layers, not one: the same numbers.

    Inference engines compute these faster than one layer's output that they must cut apart (by 1.05 to
    1.18 in int8, batch 8); PyTorch computes one layer faster.
    """

    def __init__(self, joined: Attention):
        """joined: of which the other layers are taken as they are."""
        nn.Module.__init__(self)  # without layers of its own
        self.heads = joined.heads
        self.q, self.k, self.v = apart(joined.qkv)
        self.attend = joined.attend
        self.out = joined.out

    def project(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Eq. 5: (B, T, D) -> three times (B, H, T, D_h)."""
        q, k, v = [
            layer(z).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        ]
        return q, k, v


def apart(joined: nn.Linear) -> list[nn.Linear]:
    """A dense layer to 3 D numbers as three layers to D."""
    layers = []
    width = joined.out_features // 3
    for part in range(3):
        rows = slice(part * width, (part + 1) * width)
        layer = nn.Linear(joined.in_features, width, joined.bias is not None, device="meta")
        layer.weight = nn.Parameter(joined.weight.detach()[rows].clone(), requires_grad=False)
        if joined.bias is not None:
            layer.bias = nn.Parameter(joined.bias.detach()[rows].clone(), requires_grad=False)
        layers.append(layer)
    return layers


def with_projections_apart(model: Model) -> Model:
    """A model that gives the same answers, its attention as ApartAttention."""
    own = copy.deepcopy(model, memo=same_memory(model))
    for module in list(own.modules()):
        for name, child in list(module.named_children()):
            if type(child) is Attention:
                setattr(module, name, ApartAttention(child))
    return own
