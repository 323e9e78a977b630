"""Self-distillation (DINO, Caron et al. 2021), beyond the paper: agree with a slower self about
other views of an image.

A student gives small and large crops of an image the outputs that a teacher gives to the large
ones. The teacher is the student's exponential moving average and gets no gradient; centring and a
low temperature keep both from giving everything one answer. The model that is saved is the
student's, of which `Recipe.average` makes a mean much like the teacher.

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
                    f"{name} is {low}, {high}; it is two shares of the image, 0 < smallest <= "
                    "largest <= 1"
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
        """Where images have one class, how often the nearest others have it: labels only judge,
        nothing learns them."""
        if target == "class":
            return (Neighbours(),)
        return ()

    def learner(self, model: nn.Module, preprocessing: Preprocessing) -> "SelfDistillationLearner":
        """The model as student, a projection, and a teacher of both. Raises ValueError for small
        crops of no whole patches."""
        return SelfDistillationLearner(model, self, preprocessing)


class Projection(nn.Module):
    """Features to outputs: an MLP, a normalised bottleneck, and products with normalised rows: (B,
    D) -> (B, K).

    While `frozen`, the rows get no gradient at all, so that Adam does not count the step for them.
    """

    def __init__(self, width: int, settings: SelfDistillation):
        super().__init__()
        sizes = (width, settings.hidden, settings.hidden, settings.bottleneck)
        self.layers = nn.ModuleList(nn.Linear(i, o) for i, o in itertools.pairwise(sizes))
        for layer in self.layers:
            nn.init.trunc_normal_(layer.weight, std=0.02)
            nn.init.zeros_(layer.bias)
        self.last = nn.Linear(settings.bottleneck, settings.outputs, bias=False)
        self.frozen = False

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = F.gelu(layer(x))
        x = F.normalize(self.layers[-1](x).float(), dim=-1)
        rows = self.last.weight
        if self.frozen:
            rows = rows.detach()
        return F.linear(x, F.normalize(rows, dim=-1))  # a weight-norm whose lengths stay 1


class SelfDistillationLearner(Learner):
    """What such a run trains: the model and its projection. The teacher and the centre follow
    them."""

    def __init__(self, model: nn.Module, objective: SelfDistillation, preprocessing: Preprocessing):
        super().__init__()
        self.model = model
        self.objective = objective
        self.preprocessing = preprocessing
        stride = getattr(model.config, "stride", 1)
        if objective.local_views and objective.local_size % stride:
            raise ValueError(
                f"small crops of {objective.local_size} pixels cannot be cut into patches of "
                f"{stride}; choose a multiple"
            )
        self.projection = Projection(features_of(model), objective)
        self.teacher = copy.deepcopy(nn.ModuleList([model, self.projection])).requires_grad_(False)
        self.register_buffer("centre", torch.zeros(objective.outputs))
        self.temperature = objective.teacher_temperature
        self.teacher_sums: list[Tensor] = []  # its outputs since the last update, and how many

        large = tuple(model.config.image)
        small = (objective.local_size, objective.local_size)
        self.views = [
            View(large, objective.global_area, blur=1.0),
            View(large, objective.global_area, blur=0.1, solarise=0.2),
            *[View(small, objective.local_area, blur=0.5)] * objective.local_views,
        ]

    def forward(self, images: Tensor, targets: Tensor, keys: Tensor) -> Tensor:
        """Mean cross-entropy of the student's views against the teacher's others: images (B, C, H,
        W) normalised, keys (B,)."""
        views = self.make_views(images, keys)
        large = torch.cat(views[:2])  # (2 B, C, H, W)
        with torch.no_grad():
            outputs = self.teacher_outputs(large)  # (2 B, K)
            count = outputs.new_full((1,), len(outputs))
            self.teacher_sums.append(torch.cat([outputs.sum(0), count]))
            answers = ((outputs - self.centre) / self.temperature).softmax(-1).chunk(2)

        guesses = self.student_guesses(large).chunk(2)
        if views[2:]:
            guesses += self.student_guesses(torch.cat(views[2:])).split(len(images))

        losses = []
        for i, answer in enumerate(answers):
            for j, guess in enumerate(guesses):
                if i != j:  # never of a view against itself
                    losses.append(-(answer * guess).sum(-1))
        return torch.stack(losses).mean()

    def student_guesses(self, images: Tensor) -> Tensor:
        """(B, C, h, w) -> log-probabilities (B, K)."""
        outputs = self.projection(self.model(images)).float()
        return (outputs / self.objective.student_temperature).log_softmax(-1)

    def teacher_outputs(self, images: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, K), without the teacher's dropout."""
        model, projection = self.teacher.eval()
        return projection(model(images)).float()

    def before(self, step: int, total: int) -> None:
        """After `step` updates: how sharp the teacher is, and whether the last layer moves."""
        settings = self.objective
        warm = 1.0
        if settings.teacher_warmup.n:
            warm = min(step / settings.teacher_warmup.n, 1.0)
        start = settings.teacher_start
        self.temperature = start + (settings.teacher_temperature - start) * warm
        self.projection.frozen = step < settings.last_layer_still.n
        self.teacher_sums.clear()  # of a step that was skipped

    @torch.no_grad()
    def updated(self, step: int, total: int) -> None:
        """After update `step` of `total` the teacher follows, and the centre."""
        to_go = (1 + math.cos(math.pi * (step - 1) / total)) / 2  # from 1 to 0
        momentum = 1 - (1 - self.objective.momentum) * to_go
        student = nn.ModuleList([self.model, self.projection])
        pairs = (list(self.teacher.parameters()), list(student.parameters()))
        torch._foreach_lerp_(*pairs, 1 - momentum)

        sums = sum_over_ranks(torch.stack(self.teacher_sums).sum(0))
        self.centre.lerp_(sums[:-1] / sums[-1], 1 - self.objective.centre_momentum)

    def make_views(self, images: Tensor, keys: Tensor) -> list[Tensor]:
        """(B, C, H, W) normalised -> every view, the two large ones first, normalised too."""
        # coordinates in bfloat16 are fifths of a pixel off
        with torch.autocast(images.device.type, enabled=False):
            images = self.preprocessing.unnormalise(images).clamp_(0, 1)
            views = [view(images, keys, i, how) for i, how in enumerate(self.views)]
            return [self.preprocessing.normalise_(x) for x in views]

    def pictures(self, images: Tensor, keys: Tensor) -> dict[str, Tensor]:
        """(B, 3, H, W) normalised -> uint8 pictures: the image, and its first views."""
        pictures = {"image": images}
        views = self.make_views(images, keys)
        for number, large in enumerate(views[:2], 1):
            pictures[f"large view {number}"] = large
        for number, small in enumerate(views[2:5], 1):
            pictures[f"small view {number}"] = small
        return {name: self.preprocessing.levels(x) for name, x in pictures.items()}


@torch.no_grad()
def features_of(model: nn.Module) -> int:
    """How many numbers a model gives an image. Raises ValueError if it gives them for every
    patch."""
    config = model.config
    device = next(model.parameters()).device
    features = model.eval()(torch.zeros(1, config.channels, *config.image, device=device))
    if features.ndim != 2:
        raise ValueError(
            'an image needs one vector to compare, and the model\'s pool is "none": use another '
            "pool"
        )
    return features.shape[-1]
