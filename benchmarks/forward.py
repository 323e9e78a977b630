"""The forward pass of the same models in vitkit, timm, Transformers and torchvision.

    python benchmarks/forward.py --output benchmarks/results/forward-cpu.json
    python benchmarks/forward.py --models R26+S/32 R50+B/16 BiT-R50x1 \\
        --output benchmarks/results/forward-cpu-resnets.json

Runs in inference mode. `autocast` is bfloat16 autocast over float32 weights; `bfloat16` has
bfloat16 weights and images. side_by_side.py says how models are made equal and take turns.

Prints and writes a row for each model, batch, precision and mode: milliseconds of every library,
and vitkit's speed over the fastest peer's, of medians. Above 1 vitkit is faster.
"""

import torch
from side_by_side import Run, autocast, compare
from torch import Tensor, nn

from vitkit.models import ResNet, VisionTransformer, for_inference


def work(model: nn.Module, images: Tensor, precision: str) -> Run:
    """One forward pass. vitkit's model is prepared for inference, as predict and evaluate do."""
    if isinstance(model, VisionTransformer | ResNet):
        model = for_inference(model)

    @torch.inference_mode()
    def run() -> Tensor:
        with autocast(images, precision):
            return model(images)

    return run


if __name__ == "__main__":
    compare(__doc__, work, train=False, precisions=["float32", "autocast", "bfloat16"])
