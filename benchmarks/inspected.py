"""The numbers of docs/inspection.md: what the figures show inside a published model, on photographs.

    python benchmarks/inspected.py --model WEIGHTS --images imagenet_val500.parquet --output FILE

Occlusion is measured on eight of the photographs, which `vitkit inspect` would show; everything else on --count.
"""

from collections.abc import Iterator
from pathlib import Path

import record
import torch
from torch import Tensor

from vitkit.data import open_source, subset
from vitkit.inspection import (
    Occlusion,
    alignment,
    attention_distance,
    class_relevance,
    filter_components,
    gradient_rollout,
    occlusion_curves,
    position_similarity,
    raw_attention,
    rollout,
    token_norms,
)
from vitkit.weights import Classifier, load

PACKAGES = ("torch", "pillow")
BATCH = 32
SHOWN = 8  # photographs that are covered step by step
COMPONENTS = 28  # of the filters, as Figure 7 has them


def main(argv: list[str] | None = None) -> dict:
    parser = record.parser(__doc__)
    parser.add_argument("--model", required=True, help="a Vision Transformer with a class token")
    parser.add_argument("--images", required=True, help="photographs")
    parser.add_argument("--count", type=int, default=128, help="of the photographs")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args(argv)
    result = record.about(__doc__.partition("\n")[0], PACKAGES)

    classifier = load(options.model, quiet=True).for_inference()
    source = open_source(options.images)
    chosen = torch.linspace(0, len(source) - 1, options.count).long().numpy()
    source = subset(source, chosen)
    pictures = [source.picture(i) for i in range(len(source))]
    images = classifier.batch(pictures)  # uint8 (B, 3, H, W)
    result |= {
        "photographs": len(images),
        "filters": filters(classifier),
        "positions": positions(classifier),
        "distance": distance(classifier, images),
        "norms": norms(classifier, images),
        "alignment": aligned(classifier, images),
        "occlusion": occlusion(classifier, images[:: len(images) // SHOWN][:SHOWN]),
    }
    for name, numbers in result.items():
        if isinstance(numbers, dict):
            print(name, numbers)
    record.write(result, options.output)
    return result


def filters(classifier: Classifier) -> dict:
    """How much of the filters' variance the components explain."""
    shares = filter_components(classifier, COMPONENTS).shares
    return {"explained": rounded(shares[:COMPONENTS].sum())}


def positions(classifier: Classifier) -> dict:
    """The mean cosine of two patches' positions, by where they lie to one another."""
    similarity = position_similarity(classifier)
    tiles = similarity.tiles  # (h, w, h, w)
    h, w = similarity.grid
    y = torch.arange(h)
    x = torch.arange(w)
    rows = (y[:, None] - y).abs()[:, None, :, None].expand(tiles.shape)
    columns = (x[:, None] - x).abs()[None, :, None, :].expand(tiles.shape)
    first = tiles[:, 0].diagonal(dim1=0, dim2=1)  # (w, h): a patch of the first column with its row
    return {
        "neighbours": rounded(tiles[rows + columns == 1].mean()),
        "of a row": rounded(tiles[(rows == 0) & (columns > 0)].mean()),
        "of a column": rounded(tiles[(columns == 0) & (rows > 0)].mean()),
        "others": rounded(tiles[(rows > 0) & (columns > 0)].mean()),
        "first column with the last, in its row": rounded(first[-1].mean()),
        "first column with the middle, in its row": rounded(first[w // 2].mean()),
        "class token": [rounded(end) for end in similarity.prefix_maps.aminmax()],
    }


def distance(classifier: Classifier, images: Tensor) -> dict:
    """Attention distances, in pixels, and what patches give to the class token."""
    found = attention_distance(classifier, batches(images))
    return {
        "mean of each layer": [rounded(mean, 1) for mean in found.plain.mean(1)],
        "heads of the first layer": [rounded(head, 1) for head in found.plain[0]],
        "uniform": round(found.uniform[0], 1),
        "to the class token, by layer": [rounded(mean) for mean in found.prefix_share.mean(1)],
        "to the class token, most in the first layer": rounded(found.prefix_share[0].max()),
    }


def norms(classifier: Classifier, images: Tensor) -> dict:
    """How many times as long as the median patch the longest is, and whether the four longest are the corners."""
    patches = token_norms(classifier, batches(images)).patches  # (B, L + 1, h, w)
    ratios = patches.flatten(2).amax(2) / patches.flatten(2).median(2).values  # (B, L + 1)
    corners = patches[:, :, [0, 0, -1, -1], [0, -1, 0, -1]].amin(2)  # (B, L + 1)
    others = patches.clone()
    others[:, :, [0, 0, -1, -1], [0, -1, 0, -1]] = 0
    are_longest = corners > others.flatten(2).amax(2)
    return {
        "longest, in medians, mean over photographs by layer": [
            rounded(mean, 1) for mean in ratios.mean(0)
        ],
        "photographs whose corners are longest, by layer": are_longest.sum(0).tolist(),
    }


def aligned(classifier: Classifier, images: Tensor) -> dict:
    """CKA between neighbouring layers, the embedding before the first block."""
    values = alignment(classifier, images).values
    return {
        "of neighbours": [rounded(value) for value in values.diagonal(1)],
        "of the last with each": [rounded(value) for value in values[-1]],
    }


def occlusion(classifier: Classifier, images: Tensor) -> dict:
    """How much better than a random order maps are, in areas between curves: the mean, and the worst."""
    last = len(classifier.model.blocks) - 1
    maps = {
        "rollout": rollout(classifier, images),
        "relevance": class_relevance(classifier, images),
        "gradient rollout": gradient_rollout(classifier, images),
        "attention of the last layer": raw_attention(classifier, images, last),
    }
    found = {}
    for name, each in maps.items():
        curves: Occlusion = occlusion_curves(classifier, images, each)
        found[name] = {
            "mean": rounded(curves.gain.mean()),
            "least": rounded(curves.gain.min()),
        }
    return found


def batches(images: Tensor) -> Iterator[Tensor]:
    return iter(images.split(BATCH))


def rounded(value: Tensor, digits: int = 2) -> float:
    return round(value.item(), digits)


if __name__ == "__main__":
    main()
