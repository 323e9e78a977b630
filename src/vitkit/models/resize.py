"""A model for images of another size (Section 3.2), and a model to deploy.

Neither changes the model that it is given; weights that stay as they are share its memory.
"""

import copy
from itertools import chain
from typing import TypeVar

import torch
from torch import nn

from vitkit.models.backbone import Grid

Model = TypeVar("Model", bound=nn.Module)


def resized(model: Model, image: Grid, method: str | None = None) -> Model:
    """The model for images of (height, width), in the same mode.

    Position tables are resampled (`method`: google, timm, huggingface or torchvision; the origin's
    own unless told, and with that it computes what the model itself does when it is fed images of
    that size). Raises ValueError for a size that the model cannot be made for, and for a model that
    was made for inference.
    """
    if getattr(model, "prepared", False):
        raise ValueError("this model was made for inference; resize the one that it was made from")
    with torch.device("meta"):
        new = type(model)(model.config.resized(image, method))
    state = dict(model.state_dict())
    with torch.no_grad():
        for name, module in new.named_modules():
            if hasattr(module, "resampled"):
                tables = module.resampled(model.get_submodule(name))
                state |= {f"{name}.{key}": table for key, table in tables.items()}
    new.load_state_dict(state, assign=True)
    trained = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    for name, parameter in new.named_parameters():
        parameter.requires_grad_(trained[name])
    new.recompute = model.recompute
    return new.train(model.training)


def for_inference(model: Model, image: Grid | None = None) -> Model:
    """A model to deploy: the same answers in evaluation mode, with all that can be computed once.

    Positions are resampled to `image`, (height, width), fixed positions are tabled, kernels are
    standardised. It is not for training or saving, for its weights are others (`prepared` says so).
    It may be moved and converted without a change to the model itself; an update of that model's
    weights in place is not followed. Raises ValueError for a size that the model cannot be made for.

    What can be computed once is known to the modules: those that have something do it in a method
    `prepare(device)`.
    """
    if image is not None and tuple(image) != tuple(model.config.image):
        model = resized(model, image)
    deployed = copy.deepcopy(model, memo=same_memory(model))
    device = next(model.parameters()).device
    with torch.no_grad():
        for module in deployed.modules():
            if hasattr(module, "prepare"):
                module.prepare(device)
    deployed.prepared = True
    return deployed.eval()


def same_memory(model: nn.Module) -> dict[int, torch.Tensor]:
    """For copy.deepcopy: new parameters and buffers, frozen, in the memory of the model's own."""
    tensors = {}
    for tensor in chain(model.parameters(), model.buffers()):
        shared = tensor.detach()
        if isinstance(tensor, nn.Parameter):
            shared = nn.Parameter(shared, requires_grad=False)
        tensors[id(tensor)] = shared
    return tensors
