"""A model for images of another size (Section 3.2), or for patches at other distances, and a model
for inference only.

No function changes the model that it is given; weights that stay as they are share its memory.
"""

import copy
from itertools import chain
from typing import TypeVar

import torch
from torch import nn

from vitkit.models.construction import ModelConfig
from vitkit.models.positions.embeddings import SinCosPositions
from vitkit.models.resnets.backbone import Grid
from vitkit.models.resnets.convolution import Conv
from vitkit.models.vision_transformer import VisionTransformer

AnyModel = TypeVar("AnyModel", bound=nn.Module)


def resized(model: AnyModel, image: Grid, method: str | None = None) -> AnyModel:
    """The model for images of (height, width), in the same mode.

    Position tables are resampled by `method`, one of RESAMPLE. None is the model's own, with which
    the new model computes what the model itself does when it is fed images of that size. Raises
    ValueError for a size that the model cannot be made for, and for a model that was made for
    inference.
    """
    check_not_for_inference(model)
    return _with_tables(model, model.config.resized(image, method))


def with_stride(
    model: VisionTransformer,
    stride: int | Grid | None,
    image: Grid | None = None,
    method: str | None = None,
) -> VisionTransformer:
    """The model with patches at other distances, in the same mode: the same projection E cuts them,
    and position tables are resampled to the new grid, as `resized` does.

    `stride`, in pixels, and `image` are as in `ViTConfig.with_stride`, which raises ValueError.
    """
    check_not_for_inference(model)
    return _with_tables(model, model.config.with_stride(stride, image, method))


def check_not_for_inference(model: nn.Module) -> None:
    """Raise ValueError for a model that was made for inference."""
    if getattr(model, "inference_only", False):
        raise ValueError("this model was made for inference; resize the one that it was made from")


def _with_tables(model: AnyModel, config: ModelConfig) -> AnyModel:
    """The model of a configuration that differs from the model's own in its grid, with the model's
    weights."""
    with torch.device("meta"):  # shapes only: the weights are the model's
        new = type(model)(config)

    # The weights, with new tables for those modules whose tables are of one size of images.
    weights = dict(model.state_dict())
    with torch.no_grad():
        for name, module in new.named_modules():
            if hasattr(module, "resampled"):
                old = model.get_submodule(name)
                for key, table in module.resampled(old).items():
                    weights[f"{name}.{key}"] = table
    new.load_state_dict(weights, assign=True)

    # What is not in the weights: which of them are frozen, and the model's modes.
    old_parameters = dict(model.named_parameters())
    for name, parameter in new.named_parameters():
        parameter.requires_grad_(old_parameters[name].requires_grad)
    new.recompute = model.recompute
    return new.train(model.training)


def for_inference(model: AnyModel, image: Grid | None = None) -> AnyModel:
    """A model that gives the same answers in evaluation mode, with less work in every pass.

    What can be computed once is: positions are resampled to `image`, (height, width), fixed
    positions are stored, kernels are standardised. Its weights are not the model's any more, so it
    is not for training or saving, as its `inference_only` says.

    It may be moved and converted without a change to the model itself. An update of that model's
    weights in place is not followed. Raises ValueError for a size that the model cannot be made
    for.
    """
    if image is not None and tuple(image) != tuple(model.config.image):
        model = resized(model, image)
    deployed = copy.deepcopy(model, memo=same_memory(model))
    device = next(model.parameters()).device
    with torch.no_grad():
        for module in deployed.modules():
            if isinstance(module, Conv):
                module.standardise_once()
            elif isinstance(module, SinCosPositions):
                module.store_table(device)
    deployed.inference_only = True
    return deployed.eval()


def same_memory(model: nn.Module) -> dict[int, torch.Tensor]:
    """The memo of a copy.deepcopy that copies everything but the numbers: for each tensor of the
    model a new one, frozen, in the same memory."""
    tensors = {}
    for tensor in chain(model.parameters(), model.buffers()):
        shared = tensor.detach()
        if isinstance(tensor, nn.Parameter):
            shared = nn.Parameter(shared, requires_grad=False)
        tensors[id(tensor)] = shared
    return tensors
