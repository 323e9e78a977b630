"""How well a model of good images finds others, beside two published methods on the same weights and images.

From 1, 4, 16 and 64 good images, drawn several times: the area under the ROC curve of the images (`auroc`),
with its mean and standard error over draws, and AUPRO where the data have boxes (`aupro`). The ways are vitkit's
model (`vitkit finetune`), and, written here from their papers:

- `anomalydino`: the patches of the last block, all of them in memory, the cosine distance to the nearest, and
  the mean of the largest hundredth (AnomalyDINO, Damm et al. 2025);
- `patchcore`: the patches of two blocks in the middle, each averaged with its eight neighbours, a tenth of them
  in memory (greedy k-centre), the Euclidean distance, and the largest one (PatchCore, Roth et al. 2022).

`false alarms`: half of all good images are learned from, and the other half is measured, over 40 draws, where
the threshold promises 5 %. `large`: seconds and bytes for 1,000 good images.

    python benchmarks/defects.py --model WEIGHTS --data FOLDER --output FILE
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import record
import torch
from PIL import Image
from scipy.ndimage import label as components
from torch import Tensor

from vitkit.data import Source, merge_parts, open_parts, subset
from vitkit.evaluation.metrics.defects import auroc, per_region_overlap
from vitkit.finetuning import good_images
from vitkit.finetuning.memory_bank import coreset, fit_threshold, left_out_scores, memory_bank
from vitkit.models.head import distances_to, worst_count
from vitkit.recipes import finetune as recipe_of
from vitkit.weights import Classifier

PACKAGES = ("torch", "numpy", "vitkit")
SETS = ("defects_solar", "defects_boards")
COUNTS = (1, 4, 16, 64)
DRAWS = 10
SHARES = 40  # draws of images for the share of false alarms
