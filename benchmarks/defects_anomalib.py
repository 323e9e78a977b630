"""How well anomalib's PatchCore finds defects, with the weights, images and draws of defects.py.

anomalib (2.7, `pip install anomalib`) computes everything from the blocks' outputs on: the pooling, the coreset of a tenth
of the patches, the nearest neighbours and the score of an image, with its own settings. The blocks are those of the
adaptation in defects.py (`middle`), or the last one (`last`). The figures are the area under the ROC curve of the images in
percent, mean and standard error over draws, by the number of good images.

    python benchmarks/defects_anomalib.py --model WEIGHTS --data FOLDER --output FILE
"""

import argparse
from pathlib import Path

import numpy as np
import record
import torch
from defects import BATCH, COUNTS, DRAWS, MIDDLE, SETS, batch_of, mean_and_error, opened
from safetensors.torch import load_file
from torch import Tensor

from vitkit.data import Source
from vitkit.evaluation.metrics.defects import auroc
from vitkit.recipes import Recipe

PACKAGES = ("torch", "numpy", "vitkit", "anomalib", "timm")
BACKBONE = "vit_tiny_patch16_224"
DEPTH = 12
CORESET = 0.1  # share of the patches, anomalib's default
BLOCKS = {
    "middle": [f"blocks.{round(share * DEPTH) - 1}" for share in MIDDLE],
    "last": [f"blocks.{DEPTH - 1}"],
}


def main(argv: list[str] | None = None) -> dict:
    options = arguments().parse_args(argv)
    content = {**record.about(__doc__.partition("\n")[0], PACKAGES), "auroc": {}}
    for name in options.sets:
        learn, test, recipe = opened(options, name)
        is_bad = test.target_array != 0
        for which, blocks in BLOCKS.items():
            model = patchcore(options.model, blocks)
            learned = embeddings(model, recipe, learn)
            tested = embeddings(model, recipe, test)
            found = {}
            for count in options.counts:
                aurocs = []
                for draw in range(options.draws or DRAWS[count]):
                    chosen = np.random.default_rng(draw).permutation(len(learned))[:count]
                    scores = scores_of(model, learned[torch.from_numpy(chosen)], tested, draw)
                    aurocs.append(auroc(scores, is_bad))
                found[count] = mean_and_error(aurocs)
            content["auroc"].setdefault(name, {})[which] = found
            print(name, which, found, flush=True)
    record.write(content, options.output)
    return content


def arguments() -> argparse.ArgumentParser:
    parser = record.parser(__doc__)
    parser.add_argument("--model", required=True, help=f"timm's weights of {BACKBONE}")
    parser.add_argument("--data", type=Path, required=True, help="folder of the parquet files")
    parser.add_argument("--sets", nargs="*", default=SETS)
    parser.add_argument("--counts", nargs="+", type=int, default=COUNTS)
    parser.add_argument("--draws", type=int, default=0, help="instead of the usual number")
    parser.add_argument("--output", type=Path)
    return parser


def patchcore(weights: str, blocks: list[str]):
    """anomalib's model, with these weights."""
    from anomalib.models.image.patchcore.torch_model import PatchcoreModel

    model = PatchcoreModel(blocks, BACKBONE, pre_trained=False).eval()
    model.feature_extractor.feature_extractor.load_state_dict(load_file(weights))
    return model


@torch.inference_mode()
def embeddings(model, recipe: Recipe, source: Source) -> Tensor:
    """What anomalib compares of each patch: (I, N, D)."""
    rows = []
    for start in range(0, len(source), BATCH):
        features = model.feature_extractor(batch_of(recipe, source, start))
        pooled = {block: model.feature_pooler(each) for block, each in features.items()}
        joined = model.generate_embedding(pooled)  # (B, D, h, w)
        rows.append(model.reshape_embedding(joined).unflatten(0, (len(joined), -1)))
    return torch.cat(rows)


@torch.inference_mode()
def scores_of(model, learned: Tensor, tested: Tensor, draw: int) -> np.ndarray:
    """The scores of test images, (T,), by a memory bank of learned ones."""
    torch.manual_seed(draw)
    model.embedding_store.append(learned.flatten(0, 1))
    model.subsample_embedding(CORESET)
    scores = []
    for embedding in tested:
        distances, places = model.nearest_neighbors(embedding, n_neighbors=1)
        rows = (distances.reshape(1, -1), places.reshape(1, -1))
        scores.append(model.compute_anomaly_score(*rows, embedding))
    return torch.cat(scores).numpy()


if __name__ == "__main__":
    main()
