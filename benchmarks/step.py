"""A training step of the same models in vitkit, timm, Transformers and torchvision.

    python benchmarks/step.py --output benchmarks/results/step-cpu.json
    python benchmarks/step.py --profile --data PHOTOGRAPHS

A step is forward pass, cross-entropy, backward pass and the same fused AdamW for all, without
gradient clipping. In the mode `compiled` the model is compiled. `autocast` is bfloat16 autocast
over float32 weights. side_by_side.py says how models are made equal and take turns.

Prints and writes a row for each model, batch, precision and mode: milliseconds of every library,
and vitkit's speed over the fastest peer's, of medians. Above 1 vitkit is faster.

--profile compares nothing: it shows what a step of a real run spends its time on (shares.py).
"""

import sys

import torch
import torch.nn.functional as F
from shares import profile
from side_by_side import Run, autocast, compare
from torch import Tensor, nn


def work(model: nn.Module, images: Tensor, precision: str) -> Run:
    """One training step."""
    labels = torch.arange(len(images), device=images.device) % 10
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)

    def run() -> None:
        with autocast(images, precision):
            loss = F.cross_entropy(model(images).float(), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return run


if __name__ == "__main__":
    if "--profile" in sys.argv:
        profile()
    else:
        compare(__doc__, work, train=True, precisions=["float32", "autocast"])
