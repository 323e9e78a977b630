"""Classes of people's own around an encoder, and how they save them: what the tests of such checkpoints
share."""

from pathlib import Path

import torch
from other_libraries import TIMM, randomised
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from vitkit.weights import load

CLASSES = TIMM["num_classes"]
WIDTH = TIMM["embed_dim"]


def timm_vit(**settings) -> nn.Module:
    return randomised(VisionTransformer(**{**TIMM, **settings}))


def under(prefix: str, model: nn.Module) -> dict:
    return {prefix + name: tensor for name, tensor in model.state_dict().items()}


def written(content, folder: Path, name: str = "best.pth") -> Path:
    torch.save(content, folder / name)
    return folder / name


def loaded(path: Path, **settings) -> nn.Module:
    return load(path, heads=4, quiet=True, **settings).model


def above(encoder: nn.Module, **layers: nn.Module) -> nn.Module:
    """A class of a course: an encoder without a head, and layers one after the other."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.backbone = encoder
            for name, layer in layers.items():
                setattr(self, name, layer)

        def forward(self, images):
            x = self.backbone(images)
            for name in layers:
                x = getattr(self, name)(x)
            return x

    return randomised(Net())


def linear(width: int = WIDTH, **settings) -> nn.Linear:
    return nn.Linear(width, 5, **settings)
