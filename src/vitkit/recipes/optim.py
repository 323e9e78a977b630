"""The settings of a run's optimiser: the parameters that it trains, their learning rates and weight decay.

A schedule is a function of the step alone, so checkpoints need no state of it.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch

from vitkit.models.construction import KERNEL_LAYERS
from vitkit.objectives import Learner
from vitkit.system.errors import BadSettings
from vitkit.system.span import Span
from vitkit.system.values import check_settings

Schedule = Literal["cosine", "linear", "polynomial", "staircase", "constant"]
POWER = 0.9  # of the polynomial schedule, which is usual for masks (DeepLab, Segmenter)


@dataclass(frozen=True)
class Optim:
    """Adam with decoupled weight decay (Section 4.1, Table 3), or SGD with momentum (Table 4)."""

    name: Literal["adam", "sgd"] = "adam"
    """adam: decoupled decay, p <- p - lr * decay * p. sgd: plain momentum, not Nesterov."""
    lr: float = 1e-3
    """Base learning rate, reached at the end of the warm-up."""

    # Weight decay
    weight_decay: float = 0.0
    """Multiplied by the current learning rate."""
    weight_decay_end: float | None = None
    """Weight decay at the end of the run, which it reaches along a cosine (DINO's goes from 0.04 to
    0.4); None keeps it constant."""
    decay_on: Literal["all", "kernels", "matrices"] = "all"
    """Which parameters decay. all: as in the group's published code. kernels: the weights of dense
    layers and convolutions, as in big_vision. matrices: all but vectors (biases, norms), as in MAE
    and DINO."""

    # Clipping
    clip: float = 1.0
    """Largest global norm of the gradient; 0 is off."""
    clip_each: bool = False
    """Clip each parameter's gradient by its own norm, as DINO does, instead of clipping all by
    their global norm."""

    # The schedule of the learning rate
    warmup: Span = Span(0, "steps")
    """Linear increase of the learning rate from 0."""
    schedule: Schedule = "cosine"
    """What follows the warm-up. polynomial is the linear one to the power of 0.9. staircase divides
    by ten after 30, 60 and 90 % of the whole run, warm-up included, as BiT's fine-tuning does."""
    end_lr: float | None = None
    """Learning rate at the end of the linear, polynomial and cosine schedules; None is 1e-5 for
    linear and 0 for cosine, as in the official code, and 0 for polynomial."""

    # Adam's and SGD's own
    beta1: float = 0.9
    """Adam's decay of the first moment."""
    beta2: float = 0.999
    """Adam's decay of the second moment."""
    eps: float = 1e-8
    """Adam's addition to the denominator."""
    momentum: float = 0.9
    """SGD's momentum."""

    # Layers at different rates, in fine-tuning
    layer_decay: float = 1.0
    """Learning rate of a layer as a share of that of the layer above; 1 gives all layers the same
    learning rate, as in the paper."""

    def __post_init__(self):
        check_settings(self)
        if not 0 < self.lr < math.inf:
            raise BadSettings(f"lr is {self.lr}; it must be a number above 0")
        if not 0 < self.layer_decay <= 1:
            raise BadSettings(
                f"layer_decay is {self.layer_decay}; it must be above 0 and at most 1"
            )
        for name in ("weight_decay", "weight_decay_end", "clip", "end_lr", "eps"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise BadSettings(f"{name} is {value}; it must be 0 or more")
        for name in ("beta1", "beta2", "momentum"):
            value = getattr(self, name)
            if not 0 <= value < 1:
                raise BadSettings(f"{name} is {value}; it must be from 0 up to, not including, 1")

    def rate(self, step: float, total: int) -> float:
        """Learning rate of the update that follows `step` finished ones, of `total`. As in the
        official code it is 0 at the first update of a warm-up."""
        # The end of the linear, polynomial and cosine schedules
        end = self.end_lr
        if end is None:
            end = 1e-5 if self.schedule == "linear" else 0.0
        end = min(end, self.lr)

        # The schedule: progress goes from 0 to 1 after the warm-up
        warmup = self.warmup.n
        progress = min(max((step - warmup) / max(total - warmup, 1), 0.0), 1.0)
        if self.schedule == "linear":
            lr = end + (self.lr - end) * (1 - progress)
        elif self.schedule == "polynomial":
            lr = end + (self.lr - end) * (1 - progress) ** POWER
        elif self.schedule == "cosine":
            lr = _cosine(self.lr, end, progress)
        elif self.schedule == "staircase":
            stairs = sum(step >= share * total for share in (0.3, 0.6, 0.9))
            lr = self.lr * 0.1**stairs
        else:
            lr = self.lr

        if warmup:
            lr *= min(1.0, step / warmup)
        return lr

    def decay(self, step: float, total: int) -> float:
        """Weight decay of the update that follows `step` finished ones, of `total`; it does not depend on the
        warm-up."""
        if self.weight_decay_end is None:
            return self.weight_decay
        return _cosine(self.weight_decay, self.weight_decay_end, step / total)

    def build(self, learner: Learner) -> torch.optim.Optimizer:
        """The optimiser of a learner, with the groups of `parameter_groups`."""
        groups = parameter_groups(learner, self)
        if self.name == "adam":
            betas = (self.beta1, self.beta2)
            return torch.optim.AdamW(groups, self.lr, betas, self.eps, fused=True)

        sgd = torch.optim.SGD(groups, self.lr, self.momentum, fused=True)
        # The fused kernel needs a momentum buffer for all parameters or for none. A parameter without a
        # gradient in the first step, such as DINO's last layer, would have none, so create all of them here
        if self.momentum:
            for group in groups:
                for parameter in group["params"]:
                    sgd.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        return sgd


@dataclass(frozen=True)
class Tune:
    """Which parameters are trained; the others keep their initial values."""

    blocks: int = -1
    """Number of blocks to train, counted from the last, with the norm, pooling and head that follow
    them; 0 trains only the head, a linear probe; -1 trains the whole model."""
    lora: int = 0
    """Rank of the adapters (LoRA) that are trained, with the head, instead of the matrices of the
    blocks; 0 uses no adapters (extra `lora`)."""
    lora_alpha: float = 16.0
    """Scale of the adapters: the product of an adapter is multiplied by this number divided by the
    rank."""

    def __post_init__(self):
        check_settings(self)
        if self.blocks < -1:
            raise BadSettings(
                f"`tune.blocks` is {self.blocks}; it is a number of blocks, 0 for the head, -1 for "
                "everything"
            )
        if self.lora < 0 or not self.lora_alpha > 0:
            raise BadSettings(
                f"`tune.lora` is {self.lora} and `tune.lora_alpha` {self.lora_alpha}; a rank is 0 or more, "
                "alpha above 0"
            )
        if self.lora and self.blocks != -1:
            raise BadSettings(
                "tune.lora adapts every block and tune.blocks freezes some; choose one of them"
            )


def _cosine(start: float, end: float, progress: float) -> float:
    """A value that goes from start to end along half a cosine wave, as progress goes from 0 to 1."""
    return end + (start - end) * 0.5 * (1 + math.cos(math.pi * progress))


def parameter_groups(learner: Learner, optim: Optim) -> list[dict]:
    """The trained parameters in groups with equal learning rate and weight decay, for a PyTorch optimiser.

    Each group has `scale`, its share of the base learning rate, and `decays`, whether it has weight decay.
    Modules that an objective adds beside `learner.model` count as the last layer.
    """
    model = learner.model
    last_layer = model.layer_of("head")
    kernels = {id(layer.weight) for layer in learner.modules() if isinstance(layer, KERNEL_LAYERS)}
    groups: dict[tuple[bool, float], dict[str, Any]] = {}
    for name, parameter in learner.named_parameters():
        if not parameter.requires_grad:
            continue

        decays = True
        if optim.decay_on == "kernels":
            decays = id(parameter) in kernels
        elif optim.decay_on == "matrices":
            decays = parameter.ndim > 1

        # The share of the learning rate: layer_decay to the power of the number of layers above
        layer = last_layer
        if name.startswith("model."):
            layer = model.layer_of(name.removeprefix("model."))
        scale = optim.layer_decay ** (last_layer - layer)

        if (decays, scale) not in groups:
            groups[decays, scale] = {
                "params": [],
                "weight_decay": optim.weight_decay * decays,
                "scale": scale,
                "decays": decays,
            }
        groups[decays, scale]["params"].append(parameter)
    return list(groups.values())
