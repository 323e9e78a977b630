"""Figures of the states of tokens: their norms in every layer, their similarity to a chosen patch, and
their principal components as colours.

Legend: B batch, P tokens before the patches, D width, L blocks, (h, w) the grid or a feature map.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitkit.inspection.figures.embedding import with_positive_peak
from vitkit.inspection.figures.passes import Images, block_by_block, check_patch, small_batches
from vitkit.inspection.photographs import aspect, cells_beside
from vitkit.inspection.plots import LIGHT, Theme, draw_numbers, in_rows, name_layers, panels, themed
from vitkit.models import VisionTransformer, ViTConfig, hidden_states
from vitkit.models.states import Recording
from vitkit.system.console.text import counted
from vitkit.system.errors import BadSettings, Unsupported
from vitkit.weights import Classifier, evaluating

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CUT = 0.01  # share of the values of a principal component, at each end, that are clipped


# Norms


@dataclass(frozen=True, eq=False)
class TokenNorms:
    """Norms of the states of tokens, before the first block and after each block."""

    patches: Tensor
    """float32 (B, L + 1, h, w): Euclidean norms of z_0, ..., z_L (Eq. 1 to 3), without the last
    LayerNorm."""
    prefix: Tensor
    """float32 (B, L + 1, P): norms of the tokens before the patches, the class token's first."""


@torch.no_grad()
def token_norms(classifier: Classifier, images: Images) -> TokenNorms:
    """The norm of every token's state in every layer.

    images: prepared, uint8 (B, 3, H, W), or batches of them, of one size.

    In large models after long training, a few patches of the background have much larger norms than the
    others: the model stores global information there, which causes artefacts in maps. Registers avoid this
    (Darcet et al. 2024).

    Raises VitkitError for a model that is not a Vision Transformer, and if there are no images.
    """
    model = classifier.model
    if not isinstance(model, VisionTransformer):
        raise Unsupported(
            f"a {model.config.title} has feature maps and no tokens, so there are no norms of tokens"
        )
    config = model.config
    of_batches = []
    for batch in small_batches(classifier, images):
        norms: list[Tensor] = []

        def see(block: int, record: Recording, norms: list[Tensor] = norms) -> None:
            if block == 0:
                assert record.embedding is not None  # recorded before the first block
                norms.append(record.embedding.float().norm(dim=-1).cpu())
            # The state of this block only
            norms.append(record.states[0].float().norm(dim=-1).cpu())

        with block_by_block(model, see, attention=False):
            classifier.features(batch)
        of_layers = torch.stack(norms, 1)  # (B, L + 1, T)
        patches = of_layers[..., config.prefix :].unflatten(2, model.grid(batch))
        of_batches.append((patches, of_layers[..., : config.prefix]))
    patches, prefix = zip(*of_batches, strict=True)
    return TokenNorms(torch.cat(patches), torch.cat(prefix))


def draw_norms(norms: TokenNorms, theme: Theme = LIGHT) -> "Figure":
    """Draw the norms of the patches' states by depth: median, 5 to 95 %, and maximum; the norms of the tokens
    before them; and beside it the norms in the last layer, image by image."""
    count, depth = norms.patches.shape[:2]
    figure, (left, right) = panels(4, 4, height=3.3)

    # By depth
    of_layers = norms.patches.transpose(0, 1).flatten(1).numpy()  # (L + 1, B·h·w)
    low, median, high = np.quantile(of_layers, [0.05, 0.5, 0.95], axis=1)
    positions = np.arange(depth)
    left.fill_between(positions, low, high, color=theme.first, alpha=0.25, linewidth=0)
    left.plot(positions, median, "o-", markersize=4, color=theme.first, label="patches: median")
    left.plot(
        positions, of_layers.max(1), "^", markersize=5, color=theme.first, label="the longest patch"
    )
    for i, by_layer in enumerate(norms.prefix.mean(0).T):
        name = None
        if i == 0:
            name = "tokens before the patches"
        left.plot(positions, by_layer, color=theme.second, label=name)
    name_layers(left, ["input", *map(str, range(1, depth))])
    left.tick_params(axis="x", rotation=0)
    left.set(ylabel="norm of a token's state", yscale="log")
    left.set_title("5 to 95 % of the patches in the band", fontsize=9)
    left.legend(fontsize=8, loc="upper left")

    # Maps of the last layer
    last = norms.patches[:, -1].numpy()  # (B, h, w)
    picture = in_rows(last, 4)
    image = draw_numbers(right, picture, (0, float(last.max())), theme)
    right.set(xticks=[], yticks=[])
    right.set_title("norms after the last block, a tile for each image", fontsize=9)
    figure.colorbar(image, ax=right, orientation="horizontal", shrink=0.8)
    figure.suptitle(f"Token norms, {counted(count, 'image')}", fontsize=11)
    return themed(figure, theme)


# Similarity and colours


@torch.no_grad()
def patch_similarity(
    classifier: Classifier,
    images: Images,
    patch: tuple[int, int] | None = None,
    layer: int = -1,
) -> Tensor:
    """The cosine similarity of every patch's state with that of a chosen patch, from -1 to 1. It shows which
    parts of the image have similar representations.

    Prepared images, uint8 (B, 3, H, W), or batches of them -> float32 (B, h, w) on the CPU.

    patch: (row, column) from 0; None is the patch in the middle, (h // 2, w // 2).
    layer: number as in `vitkit.models.hidden_states`: 0 is the input of the first block, -1 the last. The
        states pass the last LayerNorm. In a ResNet a patch is a position of the layer's feature map.

    Raises VitkitError for a patch or a layer that does not exist, and if there are no images.
    """
    maps = []
    for batch in small_batches(classifier, images):
        states = _states(classifier, batch, layer)  # (B, D, h, w)
        h, w = states.shape[-2:]
        check_patch("patch", patch, (h, w))
        row, column = patch or (h // 2, w // 2)
        unit = F.normalize(states, dim=1)
        chosen = unit[:, :, row, column]  # (B, D)
        maps.append(torch.einsum("bdhw,bd->bhw", unit, chosen).cpu())
    return torch.cat(maps)


def draw_similarity(
    images: np.ndarray,
    maps: Tensor,
    patch: tuple[int, int],
    theme: Theme = LIGHT,
    names: Sequence[str] = (),
) -> "Figure":
    """Draw photographs, uint8 (B, H, W, 3), each beside the cosines (B, h, w), from -1 to 1, of its patches
    with a chosen one, (row, column), which is marked by a ring."""
    figure, cells = cells_beside(images, ("similarity to the ring",), names)
    for i in range(len(images)):
        axes = cells[i][0]
        image = draw_numbers(axes, maps[i].numpy(), (-1, 1), theme)
        axes.plot(patch[1], patch[0], "o", markersize=9, fillstyle="none", color="white")
        axes.set_aspect(aspect(images, maps))
        axes.axis("off")
        below = axes.inset_axes((0.05, -0.06, 0.9, 0.04))
        scale = figure.colorbar(image, cax=below, orientation="horizontal", ticks=(-1, 0, 1))
        scale.set_ticklabels(("−1", "cosine similarity", "1"), fontsize=8)
        scale.outline.set_visible(False)
        below.tick_params(length=0, pad=1)
    return themed(figure, theme)


@torch.no_grad()
def token_colours(classifier: Classifier, images: Images, layer: int = -1) -> Tensor:
    """The first three principal components of the patches' states as red, green and blue: patches with similar
    representations have similar colours, also in different images.

    Prepared images, uint8 (B, 3, H, W), or batches of them -> float32 (B, h, w, 3), from 0 to 1, on
    the CPU. The components are those of all patches of all images, whose last states (D numbers
    each) are kept in memory. Each component is scaled so that all but 1 % of the values at either end fit
    in 0 to 1.

    layer: see `patch_similarity`. Raises VitkitError for a layer that does not exist, if there are no
    images, and for fewer than four patches.
    """
    batches = small_batches(classifier, images)
    of_batches = [_states(classifier, batch, layer).cpu() for batch in batches]
    states = torch.cat(of_batches).permute(0, 2, 3, 1)  # (B, h, w, D)
    rows = states.flatten(0, 2).double()
    if min(rows.shape) < 4:
        raise BadSettings(
            f"there are {len(rows)} patches of {rows.shape[1]} numbers; three principal components "
            "need at least four of each: give more images"
        )
    rows = rows - rows.mean(0)
    _, directions = torch.linalg.eigh(rows.T @ rows)  # columns in ascending order of variance
    components = with_positive_peak(directions[:, -3:].flip(1).T)  # (3, D)
    values = rows @ components.T  # (B·h·w, 3)
    low, high = values.quantile(torch.tensor([CUT, 1 - CUT], dtype=values.dtype), dim=0)
    colours = (values - low) / (high - low).clamp(min=torch.finfo(torch.float32).tiny)
    return colours.clamp(0, 1).float().unflatten(0, states.shape[:3])


def draw_colours(
    images: np.ndarray, colours: Tensor, theme: Theme = LIGHT, names: Sequence[str] = ()
) -> "Figure":
    """Draw photographs, uint8 (B, H, W, 3), each beside its patches' principal components as red, green and
    blue, (B, h, w, 3) from 0 to 1."""
    figure, cells = cells_beside(images, ("principal components",), names)
    for i in range(len(images)):
        axes = cells[i][0]
        axes.imshow(colours[i].numpy(), interpolation="nearest", aspect=aspect(images, colours))
        axes.axis("off")
    return themed(figure, theme)


def _states(classifier: Classifier, images: Tensor, layer: int) -> Tensor:
    """The patches' states after a block, arranged as in the image: float32 (B, D, h, w)."""
    model = classifier.model
    config = model.config
    norm = isinstance(config, ViTConfig) and config.norm == "tokens"
    normalised = classifier.preprocessing.normalise(images.to(classifier.device))
    with evaluating(model):
        states = hidden_states(model, normalised, [layer], "map", norm)
    return states[layer].float()
