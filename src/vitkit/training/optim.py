"""The parameters that a run trains, and the steps of its optimiser.

All parameters are trained, as in the paper; or the last blocks, the head alone, or low-rank adapters (LoRA).
The adapters are those of peft. They are merged into the model's weights before it is saved, so that the saved
model is an ordinary one.
"""

import torch
from torch import Tensor, nn

from vitkit.models import Model, VisionTransformer
from vitkit.recipes import Recipe, Tune
from vitkit.system.errors import BadSettings
from vitkit.system.processes.ranks import local_tensor


def take_step(optimizer: torch.optim.Optimizer, bad: Tensor | None = None) -> None:
    """Take a step of an optimiser from `Optim.build`.

    bad: float32 () on the parameters' device: 1 skips the step, None is 0. The fused kernels read it on
        the device, as with PyTorch's GradScaler.
    """
    if isinstance(optimizer, torch.optim.SGD):
        _step_of_sgd(optimizer, bad)
        return
    optimizer.found_inf = bad  # type: ignore[attr-defined]  # as PyTorch's GradScaler sets it
    optimizer.step()


@torch.no_grad()
def _step_of_sgd(sgd: torch.optim.SGD, bad: Tensor | None) -> None:
    """`sgd.step()` with fused kernels on FSDP's shards, which PyTorch's fused SGD does not support."""
    for group in sgd.param_groups:
        parameters, gradients, momenta = [], [], []
        for parameter in group["params"]:
            if parameter.grad is None or not local_tensor(parameter).numel():
                continue
            parameters.append(local_tensor(parameter))
            gradients.append(local_tensor(parameter.grad))
            if group["momentum"]:
                momenta.append(local_tensor(sgd.state[parameter]["momentum_buffer"]))
        if not parameters:
            continue
        torch._fused_sgd_(
            parameters,
            gradients,
            momenta,
            weight_decay=group["weight_decay"],
            momentum=group["momentum"],
            lr=group["lr"],
            dampening=0.0,
            nesterov=False,
            maximize=False,
            is_first_step=False,
            found_inf=bad,
        )


# Partial training


def apply_tuning(model: Model, tune: Tune, seed: int = 0) -> None:
    """Freeze the parameters that are not trained, and add the adapters of `tune`. `seed` is that of the
    adapters' initial weights.

    Raises VitkitError for blocks or layers that the model does not have.
    """
    depth = len(model.blocks)
    if tune.blocks > depth:
        raise BadSettings(f"`tune.blocks` is {tune.blocks}; the model has {depth} blocks")

    # The model's own parameters, before adapters are added; adapters are always trained
    own = dict(model.named_parameters())
    if tune.lora:
        from peft import LoraConfig, inject_adapter_in_model

        matrices = []
        for name, module in model.named_modules():
            if name.startswith("blocks.") and isinstance(module, nn.Linear):
                matrices.append(name)
        if not matrices:
            raise BadSettings(
                f"tune.lora adapts the dense layers of blocks; a {type(model).__name__} has none"
            )
        alpha = tune.lora_alpha
        settings = LoraConfig(
            r=tune.lora,
            lora_alpha=alpha,  # peft says int, and scales by any number
            target_modules=matrices,
        )
        with torch.random.fork_rng(devices=[]):  # peft draws from PyTorch's global generator
            torch.default_generator.manual_seed(seed)
            inject_adapter_in_model(settings, model)

    # Freeze the model's own parameters that are not trained
    for name, parameter in own.items():
        is_head = name.startswith("head.")
        if tune.lora or tune.blocks == 0:
            parameter.requires_grad_(is_head)
        elif tune.blocks > 0:
            is_late = model.layer_of(name) > depth - tune.blocks  # the stem is layer 0
            parameter.requires_grad_(is_head or is_late)
    if not any(p.requires_grad for p in model.parameters()):
        raise BadSettings("tune.blocks 0 trains the head alone, and this model has none")


def merged(model: Model) -> Model:
    """Merges the adapters of a model into its weights and removes them; returns the model."""
    for name, module in list(model.named_modules()):
        if hasattr(module, "get_base_layer"):  # a dense layer with peft's adapter around it
            module.merge()
            model.set_submodule(name, module.get_base_layer())
    return model


def set_residual(learner: nn.Module, recipe: Recipe) -> None:
    """Set the data type of the residual streams of a learner's models from the recipe."""
    for module in learner.modules():
        if isinstance(module, VisionTransformer) and recipe.residual == "bfloat16":
            module.residual_dtype = torch.bfloat16
