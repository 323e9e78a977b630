"""The states of tokens as figures: how long they are in every layer, how alike to a chosen patch's,
and their principal components as colours.

Legend: B batch, P tokens before the patches, D width, L blocks, (h, w) the grid or a feature map.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from vitkit.inspection.figures.attention import check_patch
from vitkit.inspection.figures.batches import Images, small_batches
from vitkit.inspection.figures.filters import with_positive_peak
from vitkit.inspection.figures.layers import block_by_block
from vitkit.models import Recording, ViTConfig, hidden_states
from vitkit.weights import Classifier, evaluating

CUT = 0.01  # of the values of a principal component, at each end, that are drawn as 0 and 1


@dataclass(frozen=True, eq=False)
class TokenNorms:
    """How long the states of tokens are, after each block and before the first."""

    patches: Tensor
    """float32 (B, L + 1, h, w): Euclidean norms of z_0, ..., z_L (Eq. 1 to 3), without the last
    LayerNorm."""
    prefix: Tensor
    """float32 (B, L + 1, P): those of the tokens before the patches, the class token's first."""


@torch.no_grad()
def token_norms(classifier: Classifier, images: Images) -> TokenNorms:
    """The norm of every token's state in every layer.

    images: prepared, uint8 (B, 3, H, W), or batches of them, of one size.

    In large models that were trained for long, a few patches of the background become many times
    longer than the others: the model keeps there what belongs to no place, and maps of it show
    artefacts. Registers cure that (Darcet et al. 2024).

    Raises ValueError for a model that is no Vision Transformer, and if there are no images.
    """
    model = classifier.model
    config = model.config
    if not isinstance(config, ViTConfig):
        raise ValueError(
            f"a {config.title} has feature maps and no tokens, so there are no norms of tokens"
        )
    of_batches = []
    for batch in small_batches(classifier, images):
        norms = []

        def see(block: int, record: Recording, norms: list[Tensor] = norms) -> None:
            if block == 0:
                norms.append(record.embedding.float().norm(dim=-1).cpu())
            norms.append(record.states[0].float().norm(dim=-1).cpu())  # of this block alone

        with block_by_block(model, see, attention=False):
            classifier.features(batch)
        of_layers = torch.stack(norms, 1)  # (B, L + 1, T)
        patches = of_layers[..., config.prefix :].unflatten(2, model.grid(batch))
        of_batches.append((patches, of_layers[..., : config.prefix]))
    patches, prefix = zip(*of_batches, strict=True)
    return TokenNorms(torch.cat(patches), torch.cat(prefix))


@torch.no_grad()
def patch_similarity(
    classifier: Classifier,
    images: Images,
    patch: tuple[int, int] | None = None,
    layer: int = -1,
) -> Tensor:
    """The cosine similarity of every patch's state with that of a chosen patch, from -1 to 1: what
    else in the image is the same to the model.

    Prepared images, uint8 (B, 3, H, W), or batches of them -> float32 (B, h, w) on the CPU.

    patch: (row, column) from 0; None is that in the middle, (h // 2, w // 2). layer: as
    `vitkit.models.hidden_states` counts, 0 what the first block gets, -1 the last. The states pass
    the last LayerNorm. Of a ResNet a patch is a position of the layer's feature map.

    Raises ValueError for a patch or a layer that is not there, and if there are no images.
    """
    maps = []
    for batch in small_batches(classifier, images):
        states = _states(classifier, batch, layer)  # (B, D, h, w)
        grid = tuple(states.shape[-2:])
        check_patch("patch", patch, grid)
        row, column = patch or (grid[0] // 2, grid[1] // 2)
        unit = F.normalize(states, dim=1)
        chosen = unit[:, :, row, column]  # (B, D)
        maps.append(torch.einsum("bdhw,bd->bhw", unit, chosen).cpu())
    return torch.cat(maps)


@torch.no_grad()
def token_colours(classifier: Classifier, images: Images, layer: int = -1) -> Tensor:
    """The first three principal components of the patches' states as red, green and blue: patches
    that are alike to the model have like colours, also in different images.

    Prepared images, uint8 (B, 3, H, W), or batches of them -> float32 (B, h, w, 3), from 0 to 1, on
    the CPU. The components are those of all patches of all images, whose last states (D numbers
    each) are kept; each is stretched so that all but 1 % of them at either end fit into 0 to 1.

    layer: as in `patch_similarity`. Raises ValueError for a layer that is not there, if there are
    no images, and for fewer than four patches.
    """
    states = [
        _states(classifier, batch, layer).cpu() for batch in small_batches(classifier, images)
    ]
    states = torch.cat(states).permute(0, 2, 3, 1)  # (B, h, w, D)
    rows = states.flatten(0, 2).double()
    if min(rows.shape) < 4:
        raise ValueError(
            f"there are {len(rows)} patches of {rows.shape[1]} numbers; three principal components "
            "need at least four of each: give more images"
        )
    rows = rows - rows.mean(0)
    _, directions = torch.linalg.eigh(rows.T @ rows)  # columns, the strongest last
    components = with_positive_peak(directions[:, -3:].flip(1).T)  # (3, D)
    values = rows @ components.T  # (B·h·w, 3)
    low, high = values.quantile(torch.tensor([CUT, 1 - CUT], dtype=values.dtype), dim=0)
    colours = (values - low) / (high - low).clamp(min=torch.finfo(torch.float32).tiny)
    return colours.clamp(0, 1).float().unflatten(0, states.shape[:3])


def _states(classifier: Classifier, images: Tensor, layer: int) -> Tensor:
    """The patches' states after a block, where they lie in the image: float32 (B, D, h, w)."""
    model = classifier.model
    config = model.config
    norm = isinstance(config, ViTConfig) and config.norm == "tokens"
    normalised = classifier.preprocessing.normalise(images.to(classifier.device))
    with evaluating(model):
        states = hidden_states(model, normalised, [layer], "map", norm)
    return states[layer].float()
