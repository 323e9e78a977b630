"""What a model of good images would be if its blocks and its share of patches had been chosen on other defects, and
whether the promise of its threshold holds for images that come from elsewhere.

`vitkit finetune` compares patches by blocks 2 to 6 of 12, and an image's score is the mean of the largest 0.5 % of
distances. To choose by the images that one reports on would flatter the choice, so of several blocks and shares those that
are best on one data set (`chosen on`) are measured on the other: the area under the ROC curve of the images in percent,
mean over 1, 4 and 16 good images. `product` is vitkit's own choice on each.

`promise`: the share of good images above a threshold that promises 5 %, in percent: of the test part, learned from the
training part (`parts`), and if learned and tested images are drawn at random from both (`drawn`, the mean of 40 draws).

All images are read at 224 x 224 pixels.

    python benchmarks/defects_choice.py --model WEIGHTS --data FOLDER --output FILE
"""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import record
import torch
import torch.nn.functional as F
from torch import Tensor

from vitkit.data import open_parts
from vitkit.evaluation.metrics.defects import auroc
from vitkit.finetuning.memory_bank import fit_threshold
from vitkit.models.head import WORST
from vitkit.weights import Classifier, load

PACKAGES = ("torch", "numpy", "vitkit")
SETS = ("defects_solar", "defects_boards")
DRAWS = {1: 4, 4: 2, 16: 1}  # good images, and how often they are drawn
# The first and the last block, counted from 1
BLOCKS = (
    (1, 3), (2, 4), (2, 6), (1, 6), (3, 6), (4, 6), (6, 6), (3, 8), (5, 8), (4, 9), (7, 9), (9, 9),
    (6, 10), (8, 10), (10, 12), (12, 12), (1, 12), (2, 12),
)  # fmt: skip
SHARES = (WORST, 0.01, 0.02, 0.05, 0.1)
PRODUCT = ((2, 6), WORST)
PROMISES = 40
BATCH = 10

Choice = tuple[tuple[int, int], float]
"""The blocks, and the share of the largest distances."""


class Images(NamedTuple):
    """The patches of all blocks, float16 (I, L, N, D), each of length 1."""

    learn: Tensor
    test: Tensor
    is_bad: np.ndarray


def main(argv: list[str] | None = None) -> dict:
    options = arguments().parse_args(argv)
    classifier = load(options.model, quiet=True)
    whole = replace(classifier.preprocessing, rule="square", resize=0)
    classifier = replace(classifier, preprocessing=whole).for_inference()
    measures = __doc__.partition("\n\n")[0].replace("\n", " ")
    content = {**record.about(measures, PACKAGES), "choice": {}, "promise": {}}
    reached = {}
    for name in SETS:
        images = read(classifier, options.data, name)
        reached[name] = of_choices(images)
        content["promise"][name] = promise(images)
        print(name, content["promise"][name], flush=True)
    for name, other in zip(SETS, reversed(SETS), strict=True):
        chosen = max(reached[name], key=reached[name].__getitem__)
        content["choice"][f"chosen on {name}"] = {
            "blocks": list(chosen[0]),
            "share": chosen[1],
            name: percent(reached[name][chosen]),
            other: percent(reached[other][chosen]),
        }
    content["choice"]["product"] = {name: percent(reached[name][PRODUCT]) for name in SETS}
    print(content["choice"])
    record.write(content, options.output)
    return content


def arguments() -> argparse.ArgumentParser:
    parser = record.parser(__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", type=Path, required=True, help="folder of the parquet files")
    parser.add_argument("--output", type=Path)
    return parser


def percent(value: float) -> float:
    return round(100 * float(value), 1)


def read(classifier: Classifier, folder: Path, name: str) -> Images:
    """Both parts of a data set."""
    parts = []
    for part in ("train", "test"):
        (source,) = open_parts(folder / f"{name}-{part}.parquet").sources.values()
        rows = []
        for start in range(0, len(source), BATCH):
            pictures = [source.picture(i) for i in range(start, min(start + BATCH, len(source)))]
            rows.append(patches_of(classifier, classifier.batch(pictures)))
        parts.append(torch.cat(rows))
    return Images(*parts, source.target_array != 0)


@torch.inference_mode()
def patches_of(classifier: Classifier, images: Tensor) -> Tensor:
    """What each block says of each patch: (B, 3, H, W) -> (B, L, N, D)."""
    network = classifier.model
    x = classifier.preprocessing.normalise(images)
    states = network.last_states(network.embed(x), network.grid(x), len(network.blocks))
    patches = [F.normalize(z[:, network.config.prefix :].float(), dim=-1) for z in states]
    return torch.stack(patches, 1).half()


def of_choices(images: Images) -> dict[Choice, float]:
    """The area under the ROC curve by each choice."""
    found: dict[Choice, list[float]] = {}
    for count, draws in DRAWS.items():
        of_draws: dict[Choice, list[float]] = {}
        for draw in range(draws):
            chosen = np.random.default_rng(draw).permutation(len(images.learn))[:count]
            learned = images.learn[torch.from_numpy(chosen)].float()
            memory = learned.transpose(0, 1).flatten(1, 2)  # (L, M, D)
            for choice, scores in scores_of(images.test, memory).items():
                of_draws.setdefault(choice, []).append(auroc(scores, images.is_bad))
        for choice, values in of_draws.items():
            found.setdefault(choice, []).append(float(np.mean(values)))
    return {choice: float(np.mean(values)) for choice, values in found.items()}


def scores_of(test: Tensor, memory: Tensor) -> dict[Choice, np.ndarray]:
    """The scores of test images by each choice, (I,)."""
    distances: dict[tuple[int, int], list[Tensor]] = {blocks: [] for blocks in BLOCKS}
    for image in test:
        similar = torch.bmm(image.float(), memory.mT).cumsum(
            0
        )  # (L, N, M), of all blocks up to each
        for first, last in BLOCKS:
            own = similar[last - 1]
            if first > 1:
                own = own - similar[first - 2]
            distances[first, last].append(1 - own.amax(1) / (last - first + 1))
    scores = {}
    for blocks, rows in distances.items():
        ordered = np.sort(torch.stack(rows).numpy(), axis=1)  # (I, N)
        for share in SHARES:
            count = max(1, round(share * ordered.shape[1]))
            scores[blocks, share] = ordered[:, -count:].mean(1)
    return scores


def promise(images: Images) -> dict[str, float]:
    """The share of good images above the threshold. Distances between images are computed once."""
    good = torch.cat([images.learn, images.test[torch.from_numpy(~images.is_bad)]])
    (first, last), share = PRODUCT
    patches = good[:, first - 1 : last].transpose(1, 2).flatten(2).float()  # (I, N, D)
    patches = F.normalize(patches, dim=-1)
    count, each, _ = patches.shape
    memory = patches.flatten(0, 1)
    rows = [(1 - (own @ memory.mT).unflatten(1, (count, each)).amax(2)) for own in patches]
    distances = torch.stack(rows).numpy()  # (I, N, I), to the nearest patch of each image
    worst = max(1, round(share * each))

    def score(image: int, others: np.ndarray) -> float:
        return float(np.sort(distances[image][:, others].min(1))[-worst:].mean())

    def above(learned: np.ndarray, others: np.ndarray) -> float:
        left_out = np.array([score(i, learned[learned != i]) for i in learned])
        found = np.array([score(i, learned) for i in others])
        return float((found > fit_threshold(left_out).value).mean())

    size = len(images.learn)
    shares = []
    for draw in range(PROMISES):
        order = np.random.default_rng(draw).permutation(count)
        shares.append(above(order[:size], order[size:]))
    parts = above(np.arange(size), np.arange(size, count))
    return {"parts": percent(parts), "drawn": percent(np.mean(shares))}


if __name__ == "__main__":
    main()
