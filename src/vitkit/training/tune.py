"""Which of a model's parameters a run trains: all of them, as in the paper; the last blocks; the
head alone; or low-rank adapters (LoRA).

Adapters are peft's. They stand beside the model's own weights while it trains, and are added to
them before it is saved, so that the saved model is an ordinary one.
"""

from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True)
class Tune:
    """What is trained; the rest stays as it began."""

    blocks: int = -1
    """How many of the last blocks are trained, with the norm, pooling and head that follow them; 0
    is the head alone, a linear probe; -1 is the whole model."""
    lora: int = 0
    """Rank of the adapters (LoRA) that are trained instead of the blocks' matrices, with the head;
    0 is no adapters (extra `lora`)."""
    lora_alpha: float = 16.0
    """An adapter's product is multiplied by this, over its rank."""

    def __post_init__(self):
        if self.blocks < -1:
            raise ValueError(
                f"tune.blocks is {self.blocks}; it is a number of blocks, 0 for the head, -1 for "
                "everything"
            )
        if self.lora < 0 or not self.lora_alpha > 0:
            raise ValueError(
                f"tune.lora is {self.lora} and lora_alpha {self.lora_alpha}; a rank is 0 or more, "
                "alpha above 0"
            )
        if self.lora and self.blocks != -1:
            raise ValueError(
                "tune.lora adapts every block and tune.blocks freezes some; choose one of them"
            )


def apply_tuning(model: nn.Module, tune: Tune, seed: int = 0) -> None:
    """Freeze the parameters that are not trained, and add adapters, drawn by `seed`, if they are
    asked for.

    Raises ValueError for blocks or layers that the model does not have.
    """
    depth = len(model.blocks)
    if tune.blocks > depth:
        raise ValueError(f"tune.blocks is {tune.blocks}; the model has {depth} blocks")

    # The model's own parameters: taken before there are adapters, which all train
    own = dict(model.named_parameters())
    if tune.lora:
        _add_adapters(model, tune, seed)
    for name, parameter in own.items():
        is_head = name.startswith("head.")
        if tune.lora or tune.blocks == 0:
            parameter.requires_grad_(is_head)
        elif tune.blocks > 0:
            is_late = model.layer_of(name) > depth - tune.blocks  # the stem is layer 0
            parameter.requires_grad_(is_head or is_late)
    if not any(p.requires_grad for p in model.parameters()):
        raise ValueError("tune.blocks 0 trains the head alone, and this model has none")


def _add_adapters(model: nn.Module, tune: Tune, seed: int) -> None:
    """Add an adapter to every dense layer of the blocks. Raises ValueError if there is none."""
    from peft import LoraConfig, inject_adapter_in_model

    matrices = []
    for name, module in model.named_modules():
        if name.startswith("blocks.") and isinstance(module, nn.Linear):
            matrices.append(name)
    if not matrices:
        raise ValueError(
            f"tune.lora adapts the dense layers of blocks; a {type(model).__name__} has none"
        )
    with torch.random.fork_rng(devices=[]):  # peft draws from PyTorch's global generator
        torch.manual_seed(seed)
        settings = LoraConfig(r=tune.lora, lora_alpha=tune.lora_alpha, target_modules=matrices)
        inject_adapter_in_model(settings, model)


def merged(model: nn.Module) -> nn.Module:
    """The same model, whose adapters are added to its own weights and removed."""
    for name, module in list(model.named_modules()):
        if hasattr(module, "get_base_layer"):  # a dense layer with peft's adapter around it
            module.merge()
            model.set_submodule(name, module.get_base_layer())
    return model
