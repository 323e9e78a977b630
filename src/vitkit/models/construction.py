"""Models from names and configurations: created, adapted to another size of images (Section 3.2) or
another stride, and prepared for inference.

No function changes the model that it gets; unchanged weights share its memory.
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
from vitkit.system.functions.values import read_value
from vitkit.system.machine import check_device

Model = VisionTransformer | ResNet | LeNet
MODELS = {ViTConfig: VisionTransformer, ResNetConfig: ResNet, LeNetConfig: LeNet}
KINDS: dict[str, type[ViTConfig] | type[ResNetConfig] | type[LeNetConfig]] = {
    config.kind: config for config in (ViTConfig, ResNetConfig, LeNetConfig)
}
# Layers whose weight is a kernel, the part that weight decay applies to if it excludes other parameters.
KERNEL_LAYERS = (nn.Linear, nn.Conv2d, Conv)
# The seeds that PyTorch's generators accept
LEAST_SEED = -(2**63)
LARGEST_SEED = 2**64 - 1
AnyModel = TypeVar("AnyModel", bound=Model)


def create(
    model: ModelConfig | str,
    device: torch.device | str = "cpu",
    seed: int | None = None,
    **changes,
) -> Model:
    """A model with the official initial weights: `create("B/16", classes=10)` or `create(config)`.

    `seed` makes the weights reproducible on every device and does not change torch's own generator.
    Raises VitkitError for an unknown name, setting or device, WrongArgument for another type.
    """
    check_device(device)
    seed = read_value("seed", int | None, seed)
    if seed is not None and not LEAST_SEED <= seed <= LARGEST_SEED:
        raise BadSettings(f"seed is {seed}; it is a whole number of at most 64 bits")
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

    # Shapes first, then memory. On the CPU: a GPU would produce other random numbers from the same seed
    with torch.device("meta"):
        network = build(config)
    _allocate(network)

    # The weights, without a change of torch's generator. torch.manual_seed would seed GPUs too
    with torch.no_grad(), torch.random.fork_rng([], enabled=seed is not None):
        if seed is not None:
            torch.default_generator.manual_seed(seed)
        network.init_weights()
    missed = [name for name, tensor in network.state_dict().items() if tensor.isnan().any()]
    if missed:
        raise RuntimeError(f"init_weights() never touched {', '.join(missed)}")
    return network.to(device)


def _allocate(network: nn.Module) -> None:
    """Allocate CPU memory for a network that has only shapes, filled with NaN so that a parameter without
    an initialisation is noticed.

    Module.to_empty would do the same, but it runs Python for each tensor without memory, which takes a
    third of the time of creating a small model.
    """
    for module in network.modules():
        for name, parameter in module.named_parameters(recurse=False):
            values = torch.full(parameter.shape, torch.nan, dtype=parameter.dtype, device="cpu")
            setattr(module, name, nn.Parameter(values, parameter.requires_grad))
        for name, buffer in module.named_buffers(recurse=False):
            # BatchNorm counts its batches with integers, which cannot be NaN
            fill = torch.nan if buffer.is_floating_point() else 0
            values = torch.full(buffer.shape, fill, dtype=buffer.dtype, device="cpu")
            setattr(module, name, values)


def build(config: ModelConfig) -> Model:
    """The model of a configuration, with memory for its weights but without values; `create` initialises
    them. Under `torch.device("meta")` it has no memory either."""
    return MODELS[type(config)](config)


@lru_cache(maxsize=8)  # saving a model and its card needs the same one several times
def blueprint(config: ModelConfig) -> Model:
    """A model without memory, for the names and shapes of its parameters. It is shared by all callers and
    must not be changed."""
    with torch.device("meta"):
        return build(config)


def parameters(model: nn.Module | ModelConfig) -> int:
    """The number of learned values of a model or of a configuration's model. Allocates no memory."""
    if not isinstance(model, nn.Module):
        model = blueprint(model)
    return sum(parameter.numel() for parameter in model.parameters())


def config_to_dict(config: ModelConfig) -> dict:
    """A configuration as a dict of JSON values, including its kind; `config_from` is the inverse."""
    return {"kind": config.kind, **asdict(config)}


def config_from(values: dict) -> ModelConfig:
    """The configuration from the dict of `config_to_dict`, or from JSON of it; a ViTConfig without a kind.

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

    Position tables are resampled by `method`, one of RESAMPLE. With None, the model's own, the new model's
    results equal those of the old one on images of that size. Raises VitkitError for a size that is
    impossible for the model, and for a model that was made for inference.
    """
    check_not_for_inference(model)
    return _on_new_grid(model, model.config.resized(image, method))


def with_stride(
    model: VisionTransformer,
    stride: int | Grid | None,
    image: Grid | None = None,
    method: str | None = None,
) -> VisionTransformer:
    """The model with patches at other distances, in the same mode. The projection E stays the same, and
    position tables are resampled to the new grid as in `resized`.

    `stride`, in pixels, and `image` are as in `ViTConfig.with_stride`, which raises VitkitError.
    """
    check_not_for_inference(model)
    return _on_new_grid(model, model.config.with_stride(stride, image, method))


def check_not_for_inference(model: nn.Module) -> None:
    """Raise VitkitError for a model that was made for inference."""
    if getattr(model, "inference_only", False):
        raise Unsupported("this model was made for inference; resize the one that it was made from")


def _on_new_grid(model: AnyModel, config: ModelConfig) -> AnyModel:
    """The model of a configuration with another grid, with the weights of this model."""
    with torch.device("meta"):  # only shapes: the weights are the model's
        new = cast(AnyModel, build(config))

    # The weights, with new tables for modules whose tables depend on the size of images.
    weights = dict(model.state_dict())
    with torch.no_grad():
        for name, module in new.named_modules():
            if hasattr(module, "resampled"):
                old = model.get_submodule(name)
                for key, table in module.resampled(old).items():
                    weights[f"{name}.{key}"] = table
    new.load_state_dict(weights, assign=True)

    # State besides the weights: frozen parameters, and the model's modes.
    old_parameters = dict(model.named_parameters())
    for name, parameter in new.named_parameters():
        parameter.requires_grad_(old_parameters[name].requires_grad)
    new.recompute = model.recompute
    new.train(model.training)
    return new


def for_inference(model: AnyModel, image: Grid | None = None) -> AnyModel:
    """A model with the same outputs in evaluation mode and less work in every pass.

    Everything that does not depend on images is computed once: positions are resampled to `image`, (height,
    width), fixed positions are stored, kernels are standardised. Its weights differ from the model's, so
    it cannot be trained or saved; `inference_only` marks it.

    Moving and converting it does not change the original model. Later in-place changes of that model's
    weights do not reach it. Raises VitkitError for a size that is impossible for the model.
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
    """The memo of a copy.deepcopy that copies everything except the values: it maps each tensor of the
    model to a new one, frozen, in the same memory."""
    tensors = {}
    for tensor in chain(model.parameters(), model.buffers()):
        shared = tensor.detach()
        if isinstance(tensor, nn.Parameter):
            shared = nn.Parameter(shared, requires_grad=False)
        tensors[id(tensor)] = shared
    return tensors
