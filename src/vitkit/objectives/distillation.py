"""Self-distillation (DINO, Caron et al. 2021), beyond the paper: agree with a slower self about other views of an image.

A student gives small and large crops of an image the outputs that a teacher gives to the large ones. The teacher is the
student's exponential moving average and gets no gradient; centring and a low temperature keep both from giving everything
one answer. The model that is saved is the student's, of which `Recipe.average` makes a mean much like the teacher.

Legend: B batch, V views, D width, K outputs.
"""

import copy
import itertools
import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.data import Preprocessing, Target
from vitkit.evaluate import Evaluator, Neighbours
from vitkit.objectives.objective import Learner
from vitkit.objectives.views import View, view
from vitkit.system.ranks import sum_over_ranks
from vitkit.system.span import Span
from vitkit.weights.classifier import Activation


@dataclass(frozen=True)
class SelfDistillation:
    """Student and teacher agree about views of an image. The defaults are DINO's."""

    outputs: int = 65536
    """K, between which an image is distributed."""
    hidden: int = 2048
    """Width of the two hidden layers before them."""
    bottleneck: int = 256
    """Width of the normalised vector that they are products with."""
    local_views: int = 8
    """Small crops, for the student alone, beside the two large ones."""
    local_size: int = 96
    """Their side in pixels, a multiple of the patch."""
    global_area: tuple[float, float] = (0.4, 1.0)
    """Part of the image that a large crop shows."""
    local_area: tuple[float, float] = (0.05, 0.4)
    """Part that a small one shows."""
    student_temperature: float = 0.1
    """Of the student's softmax."""
    teacher_temperature: float = 0.04
    """Of the teacher's: lower, for sharper answers. 0.07 in DINO's best runs, after a warm-up."""
    teacher_start: float = 0.04
    """The teacher's temperature where such a warm-up begins."""
    teacher_warmup: Span = Span(0, "epochs")
    """Linear growth of the teacher's temperature; 30 epochs in those runs."""
    last_layer_still: Span = Span(1, "epochs")
    """How long the projection's last layer stays as it began."""
    momentum: float = 0.996
    """The teacher's share of its old self at the first update; it grows to 1 as a cosine does."""
    centre_momentum: float = 0.9
    """Of the teacher's mean output, which is subtracted from it."""

    def __post_init__(self):
        for name in ("global_area", "local_area"):
            low, high = getattr(self, name)
            if not 0 < low <= high <= 1:
                raise ValueError(
                    f"{name} is {low}, {high}; it is two shares of the image, 0 < smallest <= largest <= 1"
                )
        for name in ("student_temperature", "teacher_temperature", "teacher_start"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be above 0")
        for name in ("momentum", "centre_momentum"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it is a share from 0 to 1")
        if self.local_views < 0:
            raise ValueError(f"local_views is {self.local_views}; it is 0 or more")

    def head(self, target: Target, classes: int) -> int:
        """None: it looks at the images alone."""
        return 0

    def activation(self) -> Activation:
        """What a head that the model gets later is usually trained for."""
        return "softmax"

    def evaluators(self, target: Target) -> tuple[Evaluator, ...]:
        """Where images have one class, how often the nearest others have it: labels only judge, nothing learns them."""
        if target == "class":
            return (Neighbours(),)
        return ()

    def learner(self, model: nn.Module, preprocessing: Preprocessing) -> "SelfDistillationLearner":
        """The model as student, a projection, and a teacher of both. Raises ValueError for small crops of no whole patches."""
        return SelfDistillationLearner(model, self, preprocessing)


class Projection(nn.Module):
    """Features to outputs: an MLP, a normalised bottleneck, and products with normalised rows: (B, D) -> (B, K).

    While `still`, the rows get no gradient at all, so that Adam does not count the step for them.
    """

    def __init__(self, width: int, of: SelfDistillation):
        super().__init__()
        sizes = (width, of.hidden, of.hidden, of.bottleneck)
        self.layers = nn.ModuleList(nn.Linear(i, o) for i, o in itertools.pairwise(sizes))
        for layer in self.layers:
            nn.init.trunc_normal_(layer.weight, std=0.02)
            nn.init.zeros_(layer.bias)
        self.last = nn.Linear(of.bottleneck, of.outputs, bias=False)
        self.still = False

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = F.gelu(layer(x))
        x = F.normalize(self.layers[-1](x).float(), dim=-1)
        rows = self.last.weight.detach() if self.still else self.last.weight
        return F.linear(x, F.normalize(rows, dim=-1))  # a weight-norm whose lengths stay 1


class SelfDistillationLearner(Learner):
    """What such a run trains: the model and its projection. The teacher and the centre follow them."""

    def __init__(self, model: nn.Module, objective: SelfDistillation, preprocessing: Preprocessing):
        super().__init__()
        config = model.config
        stride = getattr(config, "stride", 1)
        if objective.local_views and objective.local_size % stride:
            raise ValueError(
                f"small crops of {objective.local_size} pixels cannot be cut into patches of {stride}; choose a multiple"
            )
        self.model, self.objective, self.preprocessing = model, objective, preprocessing
        with torch.no_grad():
            width = model.eval()(
                torch.zeros(
                    1, config.channels, *config.image, device=next(model.parameters()).device
                )
            ).shape
        if len(width) != 2:
            raise ValueError(
                'an image needs one vector to compare, and the model\'s pool is "none": use another pool'
            )
        self.projection = Projection(width[-1], objective)
        self.teacher = copy.deepcopy(nn.ModuleList([model, self.projection])).requires_grad_(False)
        self.register_buffer("centre", torch.zeros(objective.outputs))
        self.temperature = objective.teacher_temperature
        self.seen: list[
            Tensor
        ] = []  # the teacher's mean outputs since the last update, with their weights

        size, small = tuple(config.image), (objective.local_size,) * 2
        self.views = [
            View(size, objective.global_area, blur=1.0),
            View(size, objective.global_area, blur=0.1, solarise=0.2),
            *[View(small, objective.local_area, blur=0.5)] * objective.local_views,
        ]

    def forward(self, images: Tensor, targets: Tensor, keys: Tensor) -> Tensor:
        """Mean cross-entropy of the student's views against the teacher's others: images (B, C, H, W) normalised, keys (B,)."""
        of, views = self.objective, self.looked_at(images, keys)
        with torch.no_grad():
            outputs = self.taught(torch.cat(views[:2]))  # (2 B, K)
            self.seen.append(torch.cat([outputs.sum(0), outputs.new_full((1,), len(outputs))]))
            answers = ((outputs - self.centre) / self.temperature).softmax(-1).chunk(2)
        groups = [torch.cat(group) for group in (views[:2], views[2:]) if group]  # of one size each
        guesses = [self.projection(self.model(group)).float() for group in groups]
        guesses = [(group / of.student_temperature).log_softmax(-1) for group in guesses]
        guesses = [guess for group in guesses for guess in group.split(len(images))]
        losses = [
            -(p * q).sum(-1) for i, p in enumerate(answers) for j, q in enumerate(guesses) if i != j
        ]
        return torch.stack(losses).mean()

    def taught(self, images: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, K), the teacher's outputs, without its dropout."""
        model, projection = self.teacher.eval()
        return projection(model(images)).float()

    def before(self, step: int, total: int) -> None:
        """After `step` updates: how sharp the teacher is, and whether the last layer moves."""
        of = self.objective
        warm = min(step / of.teacher_warmup.n, 1.0) if of.teacher_warmup.n else 1.0
        self.temperature = of.teacher_start + (of.teacher_temperature - of.teacher_start) * warm
        self.projection.still = step < of.last_layer_still.n
        self.seen.clear()  # what a step that was skipped has left

    @torch.no_grad()
    def updated(self, step: int, total: int) -> None:
        """After update `step` of `total` the teacher follows, and the centre."""
        momentum = (
            1 - (1 - self.objective.momentum) * (1 + math.cos(math.pi * (step - 1) / total)) / 2
        )
        student = nn.ModuleList([self.model, self.projection])
        torch._foreach_lerp_(
            list(self.teacher.parameters()), list(student.parameters()), 1 - momentum
        )
        found = sum_over_ranks(torch.stack(self.seen).sum(0))
        self.centre.lerp_(found[:-1] / found[-1], 1 - self.objective.centre_momentum)

    def looked_at(self, images: Tensor, keys: Tensor) -> list[Tensor]:
        """(B, C, H, W) normalised -> every view, the two large ones first, normalised too."""
        with torch.autocast(
            images.device.type, enabled=False
        ):  # places in bfloat16 are fifths of a pixel off
            images = self.preprocessing.unnormalise(images).clamp_(0, 1)
            found = [view(images, keys, i, how) for i, how in enumerate(self.views)]
            return [self.preprocessing.normalise_(x) for x in found]

    def pictures(self, images: Tensor, keys: Tensor) -> dict[str, Tensor]:
        """(B, 3, H, W) normalised -> uint8 pictures: the image, and its first views."""
        names = [
            "image",
            "large view 1",
            "large view 2",
            "small view 1",
            "small view 2",
            "small view 3",
        ]
        shown = [images, *self.looked_at(images, keys)]
        return {name: self.preprocessing.levels(x) for name, x in zip(names, shown, strict=False)}
