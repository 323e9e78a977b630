"""Models from names and configurations: created, made for another size of images (Section 3.2) or
another stride, and made for inference.

No function changes the model that it is given; weights that stay as they are share its memory.
"""

import copy
from dataclasses import asdict, fields
from functools import lru_cache
from itertools import chain
from typing import TypeVar, cast

import torch
from torch import nn

from vitkit.models.ancestors.backbone import ResNetConfig
from vitkit.models.ancestors.lenet import LeNet, LeNetConfig
from vitkit.models.ancestors.resnet import Conv, ResNet
from vitkit.models.config import ViTConfig
from vitkit.models.positions import SinCosPositions
from vitkit.models.tiling import Grid
from vitkit.models.vision_transformer import VisionTransformer
from vitkit.models.zoo import ModelConfig, named
from vitkit.system.errors import BadSettings, BadWeights, Unsupported, WrongArgument

Model = VisionTransformer | ResNet | LeNet
MODELS = {ViTConfig: VisionTransformer, ResNetConfig: ResNet, LeNetConfig: LeNet}
KINDS: dict[str, type[ViTConfig] | type[ResNetConfig] | type[LeNetConfig]] = {
    config.kind: config for config in (ViTConfig, ResNetConfig, LeNetConfig)
}
# Layers whose weight is a kernel: what weight decay shrinks, if it leaves out the rest.
KERNEL_LAYERS = (nn.Linear, nn.Conv2d, Conv)
AnyModel = TypeVar("AnyModel", bound=Model)


def create(
    model: ModelConfig | str,
    device: torch.device | str = "cpu",
    seed: int | None = None,
    **changes,
) -> Model:
    """A model with the official initial weights: `create("B/16", classes=10)` or `create(config)`.

    `seed` makes the weights repeatable, whatever the device, and leaves torch's own generator as it
    was. Raises VitkitError for an unknown name or setting, WrongArgument for what is neither.
    """
    if isinstance(model, str):
        config = named(model, **changes)
    elif changes:
        raise BadSettings(
            f"changes ({', '.join(changes)}) go with a model's name; use dataclasses.replace on a "
            "config"
        )
    elif type(model) in MODELS:
        config = model
    else:
        raise WrongArgument(
            f"model is of type {type(model).__name__}; give a name, such as 'B/16', or a configuration"
        )

    # Shapes first, then memory. On the CPU: a GPU would draw other numbers from the same seed
    with torch.device("meta"):
        network = build(config)
    _give_memory(network)

    # The weights, and torch's generator as it was. torch.manual_seed would seed those of GPUs too
    with torch.no_grad(), torch.random.fork_rng([], enabled=seed is not None):
        if seed is not None:
            torch.default_generator.manual_seed(seed)
        network.init_weights()
    missed = [name for name, tensor in network.state_dict().items() if tensor.isnan().any()]
    if missed:
        raise RuntimeError(f"init_weights() never touched {', '.join(missed)}")
    return network.to(device)


def _give_memory(network: nn.Module) -> None:
    """Memory on the CPU for a network that has shapes alone. With NaN everywhere in it, so that a
    parameter without an initialisation cannot go unnoticed.

    Module.to_empty would do, but it goes through Python for each tensor without memory, and takes a
    third of the time in which a small model is made.
    """
    for module in network.modules():
        for name, parameter in module.named_parameters(recurse=False):
            values = torch.full(parameter.shape, torch.nan, dtype=parameter.dtype, device="cpu")
            setattr(module, name, nn.Parameter(values, parameter.requires_grad))
        for name, buffer in module.named_buffers(recurse=False):
            # BatchNorm counts its batches in integers, which know no NaN
            fill = torch.nan if buffer.is_floating_point() else 0
            values = torch.full(buffer.shape, fill, dtype=buffer.dtype, device="cpu")
            setattr(module, name, values)


def build(config: ModelConfig) -> Model:
    """The model of a configuration, with memory for its weights but no values in it; `create` gives
    it these. Under `torch.device("meta")` it has no memory either."""
    return MODELS[type(config)](config)


@lru_cache(maxsize=8)  # saving a model and its card asks for the same one several times
def blueprint(config: ModelConfig) -> Model:
    """A model without memory, for the names and shapes of its parameters. Every caller gets the same
    one, so nobody may change it."""
    with torch.device("meta"):
        return build(config)


def parameters(model: nn.Module | ModelConfig) -> int:
    """How many numbers a model learns, or one of this configuration would. Takes no memory."""
    if not isinstance(model, nn.Module):
        model = blueprint(model)
    return sum(parameter.numel() for parameter in model.parameters())


def config_to_dict(config: ModelConfig) -> dict:
    """A configuration as a dict of JSON values, its kind among them; `config_from` is the way back."""
    return {"kind": config.kind, **asdict(config)}


def config_from(values: dict) -> ModelConfig:
    """The configuration that `config_to_dict` made this of, or JSON of it; a ViTConfig if it names no kind.

    Raises VitkitError or TypeError for anything else.
    """
    settings = dict(values)
    kind = settings.pop("kind", "vit")
    if not isinstance(kind, str) or kind not in KINDS:
        raise BadWeights(f"it is a model of kind {kind!r}; there are {', '.join(KINDS)}")
    known = {field.name for field in fields(KINDS[kind])}
    unknown = settings.keys() - known
    if unknown:
        raise BadWeights(
            f"it has settings that this version does not know: {', '.join(sorted(unknown))}"
        )
    return KINDS[kind](**settings)


def resized(model: AnyModel, image: Grid, method: str | None = None) -> AnyModel:
    """The model for images of (height, width), in the same mode.

    Position tables are resampled by `method`, one of RESAMPLE. None is the model's own, with which
    the new model computes what the model itself does when it is fed images of that size. Raises
    VitkitError for a size that the model cannot be made for, and for a model that was made for
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

    `stride`, in pixels, and `image` are as in `ViTConfig.with_stride`, which raises VitkitError.
    """
    check_not_for_inference(model)
    return _with_tables(model, model.config.with_stride(stride, image, method))


def check_not_for_inference(model: nn.Module) -> None:
    """Raise VitkitError for a model that was made for inference."""
    if getattr(model, "inference_only", False):
        raise Unsupported("this model was made for inference; resize the one that it was made from")


def _with_tables(model: AnyModel, config: ModelConfig) -> AnyModel:
    """The model of a configuration that differs from the model's own in its grid, with the model's
    weights."""
    with torch.device("meta"):  # shapes only: the weights are the model's
        new = cast(AnyModel, build(config))

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
    new.train(model.training)
    return new


def for_inference(model: AnyModel, image: Grid | None = None) -> AnyModel:
    """A model that gives the same answers in evaluation mode, with less work in every pass.

    Everything is computed once that can be: positions are resampled to `image`, (height, width),
    fixed positions are stored, kernels are standardised. Its weights are not the model's any more,
    so it is not for training or saving, as its `inference_only` says.

    It may be moved and converted without a change to the model itself. An update of that model's
    weights in place is not followed. Raises VitkitError for a size that the model cannot be made
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
    deployed.eval()
    return deployed


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
