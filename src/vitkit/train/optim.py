"""Optimisers, parameter groups by rule, and schedules as pure functions of the step."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from vitkit.models import KERNEL_LAYERS
from vitkit.system.ranks import world
from vitkit.system.span import Span


@dataclass(frozen=True)
class Optim:
    """Adam with decoupled weight decay (Section 4.1, Table 3), or SGD with momentum (Table 4)."""

    name: Literal["adam", "sgd"] = "adam"
    """adam: decoupled decay, p <- p - lr * decay * p. sgd: plain momentum, not Nesterov."""
    lr: float = 1e-3
    """Base learning rate, reached at the end of the warm-up."""
    weight_decay: float = 0.0
    """Multiplied by the current learning rate."""
    weight_decay_end: float | None = None
    """Where the weight decay goes by the end, along a cosine (DINO's, from 0.04 to 0.4); None keeps it as it is."""
    decay_on: Literal["all", "kernels", "matrices"] = "all"
    """Which parameters decay: all of them, as in the paper's sibling code; the weights of dense layers and convolutions only,
    as in big_vision; or all but the vectors (biases, norms), as in MAE and DINO."""
    clip: float = 1.0
    """Largest global norm of the gradient; 0 is off."""
    clip_each: bool = False
    """Clip each parameter's gradient by its own norm, as DINO does, rather than all by their common one."""
    warmup: Span = Span(0, "steps")
    """Linear increase of the learning rate from 0."""
    schedule: Literal["cosine", "linear", "staircase", "constant"] = "cosine"
    """What follows the warm-up; staircase divides by ten after 30, 60 and 90 % of the run, as BiT's fine-tuning does."""
    end_lr: float | None = None
    """Where linear and cosine end; None is the official code's 1e-5 for linear and 0 for cosine."""
    beta1: float = 0.9
    """Adam's decay of the first moment."""
    beta2: float = 0.999
    """Adam's decay of the second moment."""
    eps: float = 1e-8
    """Adam's addition to the denominator."""
    momentum: float = 0.9
    """SGD's."""
    layer_decay: float = 1.0
    """Learning rate of a layer as a share of that of the layer above; 1 is the same for all, as in the paper."""

    def __post_init__(self):
        for name, low, high in (("lr", 0, math.inf), ("layer_decay", 0, 1)):
            if not low < getattr(self, name) <= high:
                raise ValueError(
                    f"{name} is {getattr(self, name)}; it must be above {low} and at most {high}"
                )
        for name in ("weight_decay", "weight_decay_end", "clip", "end_lr", "eps"):
            if not 0 <= (getattr(self, name) or 0) < math.inf:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be 0 or more")
        for name in ("beta1", "beta2", "momentum"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(
                    f"{name} is {getattr(self, name)}; it must be from 0 up to, not including, 1"
                )

    def rate(self, step: int, total: int) -> float:
        """Learning rate of the update that follows `step` finished ones (as the official code): 0 at the first with a warm-up."""
        warmup = self.warmup.n
        progress = min(max((step - warmup) / max(total - warmup, 1), 0.0), 1.0)
        end = {"linear": 1e-5}.get(self.schedule, 0.0) if self.end_lr is None else self.end_lr
        end = min(end, self.lr)
        if self.schedule == "linear":
            lr = end + (self.lr - end) * (1 - progress)
        elif self.schedule == "cosine":
            lr = _cosine(self.lr, end, progress)
        elif self.schedule == "staircase":
            lr = self.lr * 0.1 ** sum(step >= share * total for share in (0.3, 0.6, 0.9))
        else:
            lr = self.lr
        return lr * min(1.0, step / warmup) if warmup else lr

    def decay(self, step: int, total: int) -> float:
        """Weight decay of the update that follows `step` finished ones; warm-up plays no part."""
        if self.weight_decay_end is None:
            return self.weight_decay
        return _cosine(self.weight_decay, self.weight_decay_end, step / total)

    def build(self, learner: nn.Module) -> torch.optim.Optimizer:
        """An optimiser whose groups carry `scale`, the share of the learning rate that their layer gets, and `decays`."""
        groups = parameter_groups(learner, self)
        if self.name == "sgd":
            sgd = torch.optim.SGD(
                groups, self.lr, self.momentum, fused=world().world_size == 1
            )  # not of shards in PyTorch
            # parameters that wait, as DINO's last layer does, have no momentum yet; fused wants that of all or of none
            for parameter in (one for group in groups for one in group["params"] if self.momentum):
                sgd.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
            return sgd
        return torch.optim.AdamW(groups, self.lr, (self.beta1, self.beta2), self.eps, fused=True)


def _cosine(start: float, end: float, progress: float) -> float:
    """From start to end, as half a wave falls."""
    return end + (start - end) * 0.5 * (1 + math.cos(math.pi * progress))


def parameter_groups(learner: nn.Module, optim: Optim) -> list[dict]:
    """Parameters by weight decay and share of the learning rate; frozen ones are left out.

    Each group carries `scale`, its share of the learning rate, and `decays`. Parameters beside
    `learner.model`, an objective's own, are treated as those of its last layer.
    """
    model = learner.model
    last = model.layer_of("head")
    kernels = {id(layer.weight) for layer in learner.modules() if isinstance(layer, KERNEL_LAYERS)}
    groups = {}
    for name, parameter in learner.named_parameters():
        if not parameter.requires_grad:
            continue
        decays = {
            "all": True,
            "kernels": id(parameter) in kernels,
            "matrices": parameter.ndim > 1,
        }[optim.decay_on]
        part, _, path = name.partition(".")
        layer = last
        if part == "model":
            layer = model.layer_of(path)
        scale = optim.layer_decay ** (last - layer)
        if (decays, scale) not in groups:
            groups[decays, scale] = {
                "params": [],
                "weight_decay": optim.weight_decay * decays,
                "scale": scale,
                "decays": decays,
            }
        groups[decays, scale]["params"].append(parameter)
    return list(groups.values())
