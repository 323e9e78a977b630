"""From a configuration to its model, and how many parameters that has."""

import torch
from torch import nn

from vitkit.models.ancestors.lenet import LeNet, LeNetConfig
from vitkit.models.config import ViTConfig
from vitkit.models.resnets.backbone import ResNetConfig
from vitkit.models.resnets.convolution import Conv
from vitkit.models.resnets.resnet import ResNet
from vitkit.models.vision_transformer import VisionTransformer

ModelConfig = ViTConfig | ResNetConfig | LeNetConfig
Model = VisionTransformer | ResNet | LeNet
MODELS = {ViTConfig: VisionTransformer, ResNetConfig: ResNet, LeNetConfig: LeNet}
# Layers whose weight is a kernel: what weight decay shrinks, if it leaves out the rest.
KERNEL_LAYERS = (nn.Linear, nn.Conv2d, Conv)


def build(config: ModelConfig) -> Model:
    """The model of a configuration, with memory for its weights but no values in it; `create` gives
    it these. Under `torch.device("meta")` it has no memory either."""
    return MODELS[type(config)](config)


def parameters(config: ModelConfig) -> int:
    """How many numbers a model learns. Takes no memory."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in build(config).parameters())
