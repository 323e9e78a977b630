"""Training step of the same Vision Transformers in vitkit, timm, Transformers and torchvision, interleaved in one run.

    python benchmarks/step.py --output benchmarks/results/step-cpu.json

Forward, cross-entropy, backward and the same fused AdamW for all, no gradient clipping; compiled is the model. `autocast` is
bfloat16 autocast over float32 weights. The ratio is vitkit's speed over the fastest peer's, of medians: above 1 vitkit is
faster.
"""

import torch
import torch.nn.functional as F
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
    compare(__doc__, work, train=True, precisions=["float32", "autocast"])
