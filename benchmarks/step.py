"""Training step of the same Vision Transformers in vitkit, timm, Transformers and torchvision, interleaved in one run.

    python benchmarks/step.py --models Ti/16 S/16 cifar10 --output benchmarks/results/step-cpu.json

Forward, cross-entropy, backward and the same fused AdamW for all; `bfloat16` is autocast. The ratio is vitkit's speed over
the fastest peer's, of medians.
"""

import torch
import torch.nn.functional as F
from side_by_side import compare
from torch import nn


def work(model: nn.Module, images: torch.Tensor, precision: str):
    """One training step."""
    labels = torch.arange(len(images), device=images.device) % 10
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)

    def run() -> None:
        with torch.autocast(images.device.type, torch.bfloat16, enabled=precision == "bfloat16"):
            loss = F.cross_entropy(model(images).float(), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return run


if __name__ == "__main__":
    compare(__doc__, work, train=True)
