"""How well `vitkit data review --masks` finds damaged masks: masks of a known share of images are exchanged, shifted, or
lose a quarter of their objects, and the images are ordered by their doubt.

Reports the average precision of the order and how many of the damaged masks are among as many first ones, beside chance
(the share of damaged images) and beside orders by single measures; and how much of what was changed the regions cover.
The features are computed once. Exchanged masks are of the size of their new image, by the nearest pixel; a shift is by
8 % of both sides, and the last row and column are repeated; an object is a connected region, of a patch to a fifth of the
image, of any class but the most frequent one of the image, which then takes its place.

    python benchmarks/mask_review.py --model MODEL --data masks_street --ignore 11 --folder FOLDER --output FILE
"""

import argparse
from pathlib import Path

import numpy as np
import record
import torch
from scipy.ndimage import label

import vitkit
from vitkit.apps.review.doubts import Judged, Kept, judge, order_of
from vitkit.data import IGNORED, Columns, Masked, masked, open_source, resized_mask
from vitkit.finetuning.segmentation.closed_form import blocks_to_try
from vitkit.weights import dense

PACKAGES = ("torch", "numpy", "vitkit")
SHARE = 0.15  # of the images that are damaged
SHIFT = 0.08
PATCHES = 784
# Orders of images: the review's own, and single measures
ORDERS = {
    "both": order_of,
    "IoU": lambda found: np.argsort([each.iou for each in found], kind="stable"),
    "evidence": lambda found: np.argsort([-each.evidence for each in found], kind="stable"),
    "probability": lambda found: np.argsort([-each.doubt for each in found], kind="stable"),
}


def main(argv: list[str] | None = None) -> dict:
    options = arguments().parse_args(argv)
    about = record.about(__doc__.partition(",")[0], PACKAGES)
    torch.set_num_threads(1)
    part = opened(options)
    masks = [part.mask(i) for i in range(len(part))]
    published = vitkit.load(options.model, quiet=True)
    config = published.model.config
    bare = dense(published, (), blocks_to_try(config.width, config.depth)[-1]).for_inference()
    patch = bare.preprocessing.patch

    def features(i: int):
        image = bare.preprocessing.array(part.images.picture(i))
        with torch.inference_mode():
            computed = bare.features(torch.from_numpy(image[None]))[0].half()
        return computed, (image.shape[1] // patch[0], image.shape[2] // patch[1])

    kept = Kept(features)
    damaged_count = max(2, round(SHARE * len(part)))
    results: dict[str, dict] = {}
    for kind, damage in DAMAGES.items():
        draws = []
        for draw in range(options.draws):
            random = np.random.default_rng(draw)
            rows = random.permutation(len(part))[:damaged_count]
            own = damage(masks, rows, random)
            found = judge(
                kept, own.__getitem__, len(own), part.images.groups, len(part.labels),
                (config.width, config.depth), patch,
            )  # fmt: skip
            draws.append(measured(found, masks, own, rows))
        results[kind] = {name: float(np.mean([each[name] for each in draws])) for name in draws[0]}
        print(kind, {name: round(value, 3) for name, value in results[kind].items()}, flush=True)
    content = {
        **about,
        "data": options.data,
        "images": len(part),
        "damaged": damaged_count,
        "chance": damaged_count / len(part),
        "draws": options.draws,
        "results": results,
    }
    record.write(content, options.output)
    return content


def opened(options: argparse.Namespace) -> Masked:
    """The training images with their masks."""
    where = str(options.folder / f"{options.data}-train.parquet")
    source = open_source(where, Columns(target="none"))
    parts, _ = masked({"": source}, where, "mask", None, options.ignore)
    return parts[""]


def measured(
    found: list[Judged], before: list[np.ndarray], after: list[np.ndarray], rows: np.ndarray
) -> dict[str, float]:
    """The figures of one draw."""
    is_damaged = np.zeros(len(found), bool)
    is_damaged[rows] = True
    figures = {}
    for name, order_by in ORDERS.items():
        right = is_damaged[order_by(found)]
        precision = np.cumsum(right) / np.arange(1, len(right) + 1)
        figures[f"average precision by {name}"] = float(precision[right].mean())
        figures[f"found among as many first by {name}"] = float(right[: len(rows)].mean())
    # Of the changed pixels of damaged masks, and of all pixels of the others, how many regions cover
    inside = []
    outside = []
    for i, each in enumerate(found):
        shown = resized_mask(each.disagrees.astype(np.uint8), before[i].shape).astype(bool)
        changed = before[i] != after[i]
        if changed.any():
            inside.append(shown[changed].mean())
        else:
            outside.append(shown.mean())
    figures["changed pixels that regions cover"] = float(np.mean(inside))
    figures["pixels of other masks that regions cover"] = float(np.mean(outside))
    return figures


def exchanged(masks: list[np.ndarray], rows: np.ndarray, random) -> list[np.ndarray]:
    """Each of these images gets the mask of the next one."""
    own = list(masks)
    for row, other in zip(rows, np.roll(rows, -1), strict=True):
        own[row] = resized_mask(masks[other], masks[row].shape)
    return own


def shifted(masks: list[np.ndarray], rows: np.ndarray, random) -> list[np.ndarray]:
    """The masks of these images are too far to the lower right."""
    own = list(masks)
    for row in rows:
        height, width = masks[row].shape
        by = ((round(SHIFT * height), 0), (round(SHIFT * width), 0))
        own[row] = np.pad(masks[row], by, mode="edge")[:height, :width]
    return own


def erased(masks: list[np.ndarray], rows: np.ndarray, random) -> list[np.ndarray]:
    """The masks of these images lose a quarter of their objects, one at least."""
    own = list(masks)
    for row in rows:
        mask = masks[row].copy()
        frequent = np.bincount(mask[mask != IGNORED]).argmax()
        objects, count = label((mask != frequent) & (mask != IGNORED))
        sizes = np.bincount(objects.reshape(-1), minlength=count + 1)
        fitting = (sizes >= mask.size / PATCHES) & (sizes <= mask.size / 5)
        fitting[0] = False
        chosen = random.permutation(np.flatnonzero(fitting))
        mask[np.isin(objects, chosen[: max(1, len(chosen) // 4)])] = frequent
        own[row] = mask
    return own


DAMAGES = {"exchanged": exchanged, "shifted": shifted, "erased": erased}


def arguments() -> argparse.ArgumentParser:
    parser = record.parser(__doc__)
    parser.add_argument("--model", required=True, help="a pre-trained model")
    parser.add_argument("--folder", type=Path, required=True, help="folder of the parquet files")
    parser.add_argument("--data", default="masks_street", help="NAME of NAME-train.parquet")
    parser.add_argument("--ignore", type=int, help="value of the masks whose pixels do not count")
    parser.add_argument("--draws", type=int, default=2, help="draws of each kind of damage")
    parser.add_argument("--output", type=Path, help="file for the results, JSON")
    return parser


if __name__ == "__main__":
    main()
