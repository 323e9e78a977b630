"""Forward pass of the same Vision Transformers in vitkit, timm, Transformers and torchvision, interleaved in one run.

    python benchmarks/forward.py --output benchmarks/results/forward-cpu.json

Inference mode; `bfloat16` is autocast. The ratio is vitkit's speed over the fastest peer's, of medians.
"""

import torch
from side_by_side import compare
from torch import nn


def work(model: nn.Module, images: torch.Tensor, precision: str):
    """One forward pass."""

    @torch.inference_mode()
    def run() -> torch.Tensor:
        with torch.autocast(images.device.type, torch.bfloat16, enabled=precision == "bfloat16"):
            return model(images)

    return run


if __name__ == "__main__":
    compare(__doc__, work, train=False)
