"""A configuration becomes a model, and says how many parameters that has."""

import torch
from torch import nn

from vitkit.models.ancestors import LeNet, LeNetConfig
from vitkit.models.backbone import ResNetConfig
from vitkit.models.config import ViTConfig
from vitkit.models.resnet import Conv, ResNet
from vitkit.models.vit import VisionTransformer

ModelConfig = ViTConfig | ResNetConfig | LeNetConfig
Model = VisionTransformer | ResNet | LeNet
MODELS = {ViTConfig: VisionTransformer, ResNetConfig: ResNet, LeNetConfig: LeNet}
KERNEL_LAYERS = (nn.Linear, nn.Conv2d, Conv)  # whose weight is a kernel, in weight decay's sense


def build(config: ModelConfig) -> Model:
    """The model of a configuration, with memory for its weights and no values: under
    `torch.device("meta")` not even that."""
    return MODELS[type(config)](config)


def parameters(config: ModelConfig) -> int:
    """How many numbers a model learns; shapes are made for it, and no memory is taken."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in build(config).parameters())
