"""The network that is exported: from the uint8 levels of images to logits, and to out-of-distribution scores if the
model has thresholds of unknown images.

Legend: B batch, K classes, D width, P side of a patch, h w pixels of the model's input.
"""

import copy
from dataclasses import replace

import torch
from torch import Tensor, nn

from vitkit.data import Preprocessing
from vitkit.inspection.figures.attention_maps import rolling
from vitkit.inspection.photographs import membership
from vitkit.models import (
    RESAMPLE,
    Attention,
    Grid,
    Merging,
    Model,
    NoPositions,
    VisionTransformer,
    same_memory,
)
from vitkit.models.positions import LearnedPositions, insert_zeros
from vitkit.models.vision_transformer import Patches
from vitkit.system.errors import Unsupported
from vitkit.weights import Classifier, Unknown
from vitkit.weights.outputs import activate


class Graph(nn.Module):
    """Prepared images to logits, including the normalisation; and to out-of-distribution scores, if the model has
    thresholds."""

    scale: Tensor
    shift: Tensor

    def __init__(
        self, classifier: Classifier, merge: int = 0, apart: bool = False, looks: bool = False
    ):
        """
        classifier: from its `for_inference`.
        merge: number of tokens to merge in every block.
        apart: whether queries, keys and values are computed by separate dense layers (ApartAttention).
        looks: whether attention rollout is added as the last output.
        """
        super().__init__()
        preprocessing = classifier.preprocessing
        model = classifier.model
        self.normalises = True
        if isinstance(model, VisionTransformer) and isinstance(model.stem, Patches):
            self.normalises = False
            model = reading_levels(model, preprocessing)
        if preprocessing.is_native:
            assert isinstance(model, VisionTransformer)  # Classifier has checked this
            model = with_positions_on_any_grid(model)
        if apart:
            model = with_projections_apart(model)
        self.model: Model | Merging = model
        if merge:
            assert isinstance(model, VisionTransformer)  # check_can_merge has checked this
            self.model = Merging(model, merge)
        mean = torch.tensor(preprocessing.mean)[:, None, None]
        std = torch.tensor(preprocessing.std)[:, None, None]
        self.register_buffer("scale", 1 / (255 * std))
        self.register_buffer("shift", mean / std)
        self.limits = None
        if classifier.unknown is not None:
            self.limits = UnknownLimits(classifier.unknown)
        self.looks = looks
        self.segments = getattr(classifier.model.config, "segments", False)

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Levels from 0 to 255, (B, 3, h, w) -> logits, float32 (B, K); with thresholds also out-of-distribution
        scores, (B,); with `looks` also attention rollout, (B, m, n). A model of good images gives its logits and
        its anomaly map, (B, h, w); one that classifies every pixel gives (B, K, h, w)."""
        x = images.float()
        if self.normalises:
            x = x * self.scale - self.shift
        if self.segments:
            return self.model(x).float()
        attention = None
        if compares_patches(self.model):
            assert isinstance(self.model, VisionTransformer)
            logits, of_patches = self.model.with_patch_logits(x)
            return logits.float(), of_patches.float().softmax(-1)[..., 1]
        if self.looks:
            assert isinstance(self.model, VisionTransformer)  # shows_attention has checked this
            features, attention = features_and_attention(self.model, x)
        else:
            features = self.model.features(x)
        logits = self.model.head(features).float()
        outputs = [logits]
        if self.limits is not None:
            outputs.append(self.limits(features, logits))
        if attention is not None:
            outputs.append(attention)
        if len(outputs) == 1:
            return logits
        return tuple(outputs)


def compares_patches(model: nn.Module) -> bool:
    """Whether a model compares the patches of an image with those of good images, so that its file has an
    anomaly map."""
    return isinstance(model, VisionTransformer) and model.config.pooling.compares_patches


def features_and_attention(model: VisionTransformer, x: Tensor) -> tuple[Tensor, Tensor]:
    """Features, (B, D), and attention rollout of the cells of an image, (B, m, n), equal to that of inspection's
    `rollout` and `over_image`, from normalised images (B, 3, h, w).

    It avoids products with constant matrices, which a quantiser would treat as dense layers.
    """
    grid = model.grid(x)
    with rolling(model, grid) as rolled:
        features = model.features(x)
    row = (rolled.shares()[:, :, None] * rolled.product).sum(1)  # (B, T)
    maps = row[:, model.config.prefix :].unflatten(1, grid)  # (B, h, w)
    tiling = model.config.tiling
    if tiling.overlaps:
        down = membership(grid[0], tiling.size[0], tiling.stride[0])  # (m, h)
        across = membership(grid[1], tiling.size[1], tiling.stride[1])  # (n, w)
        maps = (down[:, :, None] * maps[:, None]).sum(2)  # (B, m, w)
        maps = (across * maps[:, :, None]).sum(3)  # (B, m, n)
    return features, maps


class UnknownLimits(nn.Module):
    """The rejection thresholds of unknown images, as part of the network."""

    means: Tensor
    whitening: Tensor
    centre: Tensor
    limit: Tensor

    def __init__(self, unknown: Unknown):
        super().__init__()
        self.unknown = unknown
        for name in ("means", "whitening", "centre"):
            self.register_buffer(name, getattr(unknown, name))
        self.register_buffer("limit", unknown.limit.float())

    def forward(self, features: Tensor, logits: Tensor) -> Tensor:
        """Features, (B, D), and logits, (B, K) -> out-of-distribution scores, float32 (B,): `Unknown.excess`."""
        own = replace(
            self.unknown,
            means=self.means,
            whitening=self.whitening,
            centre=self.centre,
            limit=self.limit,
        )
        return own.excess(features.float(), logits)


class PictureGraph(nn.Module):
    """Pictures of any size to probabilities, including the preprocessing; and to out-of-distribution scores."""

    def __init__(self, classifier: Classifier, merge: int = 0, apart: bool = False):
        """The arguments are those of Graph."""
        super().__init__()
        self.resize = PictureResize(classifier.preprocessing)
        self.network = Graph(classifier, merge, apart)
        self.activation = classifier.activation

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, ...]:
        """uint8 (B, height, width, 3), RGB -> probabilities, float32 (B, K); and the other outputs of Graph."""
        outputs = self.network(self.resize(images))
        if isinstance(outputs, Tensor):
            return activate(outputs, self.activation)
        logits, *others = outputs
        return activate(logits, self.activation), *others


def reading_levels(model: VisionTransformer, preprocessing: Preprocessing) -> VisionTransformer:
    """A copy of a model with the stem Patches that takes levels from 0 to 255 instead of normalised images:
    (x / 255 - mean) / std is folded into the projection of patches (Eq. 1).

    It is exact up to rounding, because patches have no padding; the zero padding of a ResNet would not be
    normalised.
    """
    own = copy.deepcopy(model, memo=same_memory(model))
    assert isinstance(own.stem, Patches)
    project = own.stem.project
    exact = project.weight.detach().double()  # (D, 3, P, P)
    mean = torch.tensor(preprocessing.mean, dtype=torch.float64)[:, None, None]
    std = torch.tensor(preprocessing.std, dtype=torch.float64)[:, None, None]
    bias = -(exact * (mean / std)).sum((1, 2, 3))  # (D,)
    if project.bias is not None:
        bias = bias + project.bias.detach().double()

    patches = own.stem.patches
    folded = nn.Conv2d(3, project.out_channels, patches.size, patches.stride)
    folded.weight = nn.Parameter((exact / (255 * std)).to(project.weight), requires_grad=False)
    folded.bias = nn.Parameter(bias.to(project.weight), requires_grad=False)
    own.stem.project = folded
    return own


class ApartAttention(Attention):
    """Attention with separate dense layers for queries, keys and values instead of a joint one, and equal outputs.

    Inference engines compute separate layers faster than a joint one whose output they must split (by 1.05 to
    1.18 in int8, batch 8); PyTorch computes a joint layer faster.
    """

    def __init__(self, joined: Attention):
        """joined: the attention to split; its other layers are shared."""
        nn.Module.__init__(self)  # skips Attention's, which creates layers
        self.heads = joined.heads
        self.q, self.k, self.v = split_qkv(joined.qkv)
        self.q_norm, self.k_norm = joined.q_norm, joined.k_norm
        self.attend = joined.attend
        self.out = joined.out

    def project(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Eq. 5: (B, T, D) -> three times (B, H, T, D_h)."""
        q, k, v = [
            layer(z).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        ]
        return *self.normed(q, k), v


def split_qkv(joined: nn.Linear) -> list[nn.Linear]:
    """Split the dense layer of queries, keys and values, D to 3 D, into three layers, D to D."""
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
    """A copy of a model with ApartAttention and equal outputs."""
    own = copy.deepcopy(model, memo=same_memory(model))
    for module in list(own.modules()):
        for name, child in list(module.named_children()):
            if type(child) is Attention:
                setattr(module, name, ApartAttention(child))
    return own


# Positions on a grid that is known only at run time


class PositionsOnAnyGrid(nn.Module):
    """E_pos of Eq. 1 on the grid of the images, resampled as by LearnedPositions, but by two products with
    matrices that are computed from the grid."""

    table: Tensor

    def __init__(self, learned: LearnedPositions):
        super().__init__()
        self.grid = learned.grid
        self.prefix_rows = learned.prefix_rows
        self.prefix_tokens = learned.prefix_tokens
        self.way = RESAMPLE[learned.method]
        self.register_buffer("table", learned.table.detach())

    def add(self, z: Tensor, grid: Grid) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        image = self.table[0, self.prefix_rows :].unflatten(0, self.grid)  # (h, w, D)
        down = self.shares(grid[0], self.grid[0])  # (h', h)
        across = self.shares(grid[1], self.grid[1])  # (w', w)
        image = down @ image.flatten(1)  # (h', w D)
        image = across @ image.unflatten(1, (self.grid[1], -1))  # (h', w', D)
        rows = torch.cat([self.table[0, : self.prefix_rows], image.flatten(0, 1)])
        return z + insert_zeros(rows[None], self.prefix_rows, self.prefix_tokens).to(z.dtype)

    def shares(self, new: int, old: int) -> Tensor:
        """The resampling matrix of one axis, (new, old), of torch.nn.functional.interpolate: the weight of each old
        position in each new one."""
        index = torch.arange(new).float()  # (new,)
        length = torch.full((1,), new, dtype=torch.int64).float()
        scale = old / length  # old positions for one new one
        centres = (index + 0.5) * scale
        if self.way.get("align_corners"):
            centres = index * ((old - 1) / torch.clamp(length - 1, min=1.0)) + 0.5
        positions = torch.arange(old).float()
        antialias = self.way.get("antialias", False)
        return shares_of_axis(
            positions, torch.full((1,), old), scale, centres, self.way["mode"], antialias
        )


def with_positions_on_any_grid(model: VisionTransformer) -> VisionTransformer:
    """A copy of a model whose positions work on any grid, with equal outputs."""
    own = copy.deepcopy(model, memo=same_memory(model))
    if isinstance(own.positions, LearnedPositions):
        own.positions = PositionsOnAnyGrid(own.positions)
    return own


def check_any_grid(model: VisionTransformer) -> None:
    """Raises VitkitError for positions that cannot be exported for every grid."""
    if not isinstance(model.positions, LearnedPositions | NoPositions):
        raise Unsupported(
            f"{model.config.positions} positions cannot be exported for images at their own proportions, "
            "only 'learned' and 'none' can, at the stem; `crop='centre'` exports a model that crops"
        )


# Preprocessing as part of the network: resize and centre crop as two products with matrices


RADIUS = {"bilinear": 1, "bicubic": 2}  # radius of the kernel in pixels

# Keys' parameter of the cubic kernel, with antialiasing (Pillow's) and without (PyTorch's)
SHARP = {True: -0.5, False: -0.75}


class PictureResize(nn.Module):
    """Resizes and crops pictures of any size to the model's input."""

    def __init__(self, preprocessing: Preprocessing):
        super().__init__()
        self.preprocessing = preprocessing

    def forward(self, pictures: Tensor) -> Tensor:
        """uint8 (B, H, W, 3) -> integer levels as float32, (B, 3, h, w)."""
        old_height = torch.full((1,), pictures.shape[1], dtype=torch.int64)
        old_width = torch.full((1,), pictures.shape[2], dtype=torch.int64)
        new_height, new_width = self.resized(old_height, old_width)
        rows = torch.arange(pictures.shape[1]).float()
        columns = torch.arange(pictures.shape[2]).float()
        height, width = self.preprocessing.size
        down = self.shares(rows, old_height, new_height, height)  # (h, H)
        across = self.shares(columns, old_width, new_width, width)  # (w, W)
        x = pictures.permute(0, 3, 1, 2).float()  # (B, 3, H, W)
        x = levels(x @ across.mT)  # (B, 3, H, w)  Pillow resizes rows first, and rounds
        return levels(down @ x)  # (B, 3, h, w)

    def resized(self, height: Tensor, width: Tensor) -> tuple[Tensor, Tensor]:
        """Height and width after the resize and before the centre crop, as in Preprocessing: int64 (1,) each."""
        preprocessing = self.preprocessing
        side = preprocessing.resize or max(preprocessing.size)
        if preprocessing.rule == "shorter":
            shorter = torch.minimum(height, width)
            return side * height // shorter, side * width // shorter
        both = (preprocessing.resize, preprocessing.resize)
        if not preprocessing.resize:
            both = preprocessing.size
        return torch.full_like(height, both[0]), torch.full_like(width, both[1])

    def shares(self, pixels: Tensor, old: Tensor, new: Tensor, count: int) -> Tensor:
        """The matrix of one axis, (count, old): weights of `old` pixels in the central `count` of `new` ones.

        pixels: 0, 1, ..., old - 1.
        """
        first = torch.round((new - count).float() / 2)  # (1,)  first pixel of the crop
        scale = old.float() / new.float()  # (1,)  old pixels per new one
        centres = (first + torch.arange(count) + 0.5) * scale  # (count,)
        preprocessing = self.preprocessing
        kind = preprocessing.interpolation
        return shares_of_axis(pixels, old, scale, centres, kind, preprocessing.antialias)


def shares_of_axis(
    pixels: Tensor, old: Tensor, scale: Tensor, centres: Tensor, kind: str, antialias: bool
) -> Tensor:
    """The weights of old pixels in new ones for an interpolation, (count, old). Pixel 0 extends from 0 to 1.

    pixels: 0, 1, ..., old - 1.
    scale: old pixels per new one, (1,).
    centres: centres of the new pixels in old coordinates, (count,).
    kind: bilinear or bicubic.
    """
    a = SHARP[antialias]
    if antialias:
        # In downscaling, the kernel covers several old pixels
        stretch = torch.clamp(scale, min=1.0)
        weights = kernel((pixels + 0.5 - centres[:, None]) / stretch, kind, a)  # (count, old)
        return weights / weights.sum(1, keepdim=True)

    # The nearest two or four pixels; beyond the border, the border pixel is repeated
    radius = RADIUS[kind]
    below = torch.floor(centres - 0.5)  # (count,)
    weights = torch.zeros_like(centres)[:, None] * pixels  # (count, old)
    for step in range(1 - radius, radius + 1):
        neighbour = below + step
        share = kernel(neighbour + 0.5 - centres, kind, a)[:, None]  # (count, 1)
        at = torch.minimum(neighbour.clamp(min=0.0), (old - 1).float())[:, None]
        weights = weights + share * (pixels == at).float()
    return weights


def kernel(distance: Tensor, interpolation: str, a: float) -> Tensor:
    """The weight of a pixel at a distance from the centre, in pixels, of any shape. a: Keys' parameter."""
    x = distance.abs()
    if interpolation == "bilinear":
        return torch.clamp(1 - x, min=0.0)
    # Cubic convolution (Keys 1981): one polynomial up to a distance of 1, one up to 2, then 0
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return torch.where(x < 1, near, torch.where(x < 2, far, torch.zeros_like(x)))


def levels(x: Tensor) -> Tensor:
    """Values rounded to integer levels from 0 to 255, halves upwards."""
    return torch.floor(x + 0.5).clamp(0.0, 255.0)
