"""A model for images of another size (Section 3.2), and a model to deploy.

Neither changes the model that it is given, and neither copies weights that stay as they are.
"""

import copy
from itertools import chain
from typing import TypeVar

import torch
from torch import nn

from vitkit.models.backbone import Grid

Model = TypeVar("Model", bound=nn.Module)


def resized(model: Model, image: Grid, method: str | None = None) -> Model:
    """The model for images of (height, width), in the same mode; other weights are shared.

    Position tables are resampled (`method`: google, timm, huggingface or torchvision; the origin's
    own unless told). It computes what the model itself does when it is fed images of that size.
    Raises ValueError for a size that the model cannot be made for.
    """
    with torch.device("meta"):
        new = type(model)(model.config.resized(image, method))
    state = dict(model.state_dict())
    with torch.no_grad():
        for name, module in new.named_modules():
            if hasattr(module, "resampled"):
                tables = module.resampled(model.get_submodule(name))
                state |= {f"{name}.{key}": table for key, table in tables.items()}
    new.load_state_dict(state, assign=True)
    return new.train(model.training)


def for_inference(model: Model, image: Grid | None = None) -> Model:
    """A model to deploy: the same answers in evaluation mode, with all that can be computed once.

    Positions are resampled to `image`, (height, width), fixed positions are tabled, kernels are
    standardised. What it holds are no weights to train or to save; the model itself stays as it is.
    Raises ValueError for a size that the model cannot be made for.
    """
    if image is not None and tuple(image) != tuple(model.config.image):
        model = resized(model, image)
    tensors = {id(tensor): tensor for tensor in chain(model.parameters(), model.buffers())}
    prepared = copy.deepcopy(model, memo=tensors)  # every module anew, every tensor the same
    device = next(model.parameters()).device
    with torch.no_grad():
        for module in prepared.modules():
            if hasattr(module, "prepare"):
                module.prepare(device)
    return prepared.eval()
