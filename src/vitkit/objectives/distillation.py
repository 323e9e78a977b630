"""Self-distillation (DINO, Caron et al. 2021), an extension of the paper: a student is trained to predict, from
each view of an image, the teacher's outputs for other views of it.

The views are two large crops and several small ones; the teacher gets the large ones only. The teacher is the
exponential moving average of the student and gets no gradient. Centring its outputs and a low temperature prevent
a collapse to equal outputs for all images. The student is saved; with `Recipe.average` its average, which is
similar to the teacher.

Legend: B batch, V views, D width, K outputs.
"""

import copy
import math
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.data import Preprocessing, TargetKind
from vitkit.evaluation import Neighbours
from vitkit.evaluation.evaluator import Evaluator
from vitkit.models import Dense, Model
from vitkit.objectives.objective import Learner, Unlabelled
from vitkit.objectives.views import View, view
from vitkit.system.console.text import counted
from vitkit.system.errors import BadSettings, Unsupported
from vitkit.system.processes.ranks import sum_over_ranks
from vitkit.system.span import Span
from vitkit.system.values import check_settings


@dataclass(frozen=True)
class SelfDistillation(Unlabelled):
    """A student learns to agree with a teacher about views of an image. The defaults are DINO's."""

    outputs: int = 65536
    """K, the outputs of the projection."""
    hidden: int = 2048
    """Width of the projection's two hidden layers."""
    bottleneck: int = 256
    """Width of the normalised vector before the last layer, from which the outputs are computed."""
    local_views: int = 8
    """Number of small crops, which only the student sees, in addition to the two large ones."""
    local_size: int = 96
    """Side of a small crop in pixels, a multiple of the patch size."""
    global_area: tuple[float, float] = (0.4, 1.0)
    """Smallest and largest share of the image that a large crop shows."""
    local_area: tuple[float, float] = (0.05, 0.4)
    """Smallest and largest share of the image that a small crop shows."""
    student_temperature: float = 0.1
    """Temperature of the student's softmax."""
    teacher_temperature: float = 0.04
    """Temperature of the teacher's softmax: lower, for sharper answers. DINO's best runs have 0.07,
    after a warm-up."""
    teacher_start: float = 0.04
    """The teacher's temperature at the beginning of that warm-up."""
    teacher_warmup: Span = Span(0, "epochs")
    """Length of that warm-up, in which the teacher's temperature grows linearly; 30 epochs in those
    runs."""
    last_layer_still: Span = Span(1, "epochs")
    """Time at the beginning in which the last layer of the projection is not trained."""
    momentum: float = 0.996
    """Momentum of the teacher's weights at the first update; it grows to 1 along a cosine."""
    centre_momentum: float = 0.9
    """Momentum of the centre: the mean output of the teacher, which is subtracted from its
    outputs."""

    def __post_init__(self):
        check_settings(self)
        for name in ("global_area", "local_area"):
            low, high = getattr(self, name)
            if not 0 < low <= high <= 1:
                raise BadSettings(
                    f"{name} is {low}, {high}; it is two shares of the image, 0 < smallest <= "
                    "largest <= 1"
                )
        for name in ("student_temperature", "teacher_temperature", "teacher_start"):
            if not getattr(self, name) > 0:
                raise BadSettings(f"{name} is {getattr(self, name)}; it must be above 0")
        for name in ("momentum", "centre_momentum"):
            if not 0 <= getattr(self, name) <= 1:
                raise BadSettings(f"{name} is {getattr(self, name)}; it is a share from 0 to 1")
        for name in ("outputs", "hidden", "bottleneck", "local_size"):
            if getattr(self, name) < 1:
                raise BadSettings(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.local_views < 0:
            raise BadSettings(f"local_views is {self.local_views}; it is 0 or more")

    def evaluators(self, target_kind: TargetKind) -> tuple[Evaluator, ...]:
        """k-NN accuracy if images have one class each; the labels evaluate the features, and are not used in
        training."""
        if target_kind == "class":
            return (Neighbours(),)
        return ()

    def learner(self, model: Model, preprocessing: Preprocessing) -> "SelfDistillationLearner":
        """The model as student with a projection, and a teacher with copies of both. Raises VitkitError if small
        crops do not consist of whole patches, and for images that are not RGB."""
        if preprocessing.channels != 3:
            raise Unsupported(
                "self-distillation changes the colours of its views, and the images have "
                f"{counted(preprocessing.channels, 'channel')}; it is for red, green and blue"
            )
        return SelfDistillationLearner(model, self, preprocessing)


class Projection(nn.Module):
    """DINO's projection head, (B, D) -> (B, K): an MLP, then the cosines of its output with K learned rows."""

    def __init__(self, width: int, settings: SelfDistillation):
        super().__init__()
        sizes = (width, settings.hidden, settings.hidden, settings.bottleneck)
        layers = [Dense(width_in, width_out) for width_in, width_out in pairwise(sizes)]
        self.layers = nn.ModuleList(layers)
        for layer in layers:
            nn.init.trunc_normal_(layer.weight, std=0.02)
            nn.init.zeros_(layer.bias)
        self.last = Dense(settings.bottleneck, settings.outputs, bias=False)
        self.frozen = False
        """Whether the last layer is currently not trained. Its gradient is then None rather than zero, so that
        Adam does not update its moments."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, D) -> (B, K), from -1 to 1."""
        for layer in self.layers[:-1]:
            x = F.gelu(layer(x))
        x = self.layers[-1](x).float()
        x = F.normalize(x, dim=-1)  # (B, bottleneck)
        rows = self.last.weight  # (K, bottleneck)
        if self.frozen:
            rows = rows.detach()
        return F.linear(x, F.normalize(rows, dim=-1))


class SelfDistillationLearner(Learner):
    """The learner of self-distillation: the student, which is the model with a projection; the teacher; and the
    centre."""

    centre: Tensor
    """Moving average of the teacher's mean output, (K,)."""

    def __init__(self, model: Model, objective: SelfDistillation, preprocessing: Preprocessing):
        super().__init__()
        self.model = model
        self.objective = objective
        self.preprocessing = preprocessing
        small = (objective.local_size, objective.local_size)
        tiling = getattr(model.config, "tiling", None)
        if objective.local_views and tiling is not None and not tiling.fits(small):
            raise Unsupported(
                f"small crops: {tiling.misfit(small)}; choose {tiling.sizes(small)} "
                "(`objective.local_size`)"
            )
        self.projection = Projection(features_of(model), objective)
        self.teacher = copy.deepcopy(nn.ModuleList([model, self.projection])).requires_grad_(False)
        self.register_buffer("centre", torch.zeros(objective.outputs))
        self.temperature = objective.teacher_temperature
        self.teacher_sums: list[Tensor] = []
        """For each forward pass since the last update, the sum of the teacher's outputs, and their
        number: (K + 1,)."""

        # Two large views and several small ones, with DINO's probabilities
        large = model.config.image
        self.views = [
            View(large, objective.global_area, blur=1.0),
            View(large, objective.global_area, blur=0.1, solarise=0.2),
            *[View(small, objective.local_area, blur=0.5)] * objective.local_views,
        ]

    def forward(self, images: Tensor, targets: Tensor, keys: Tensor) -> Tensor:
        """images (B, C, H, W) normalised, targets unused, keys (B,) -> the mean cross-entropy
        between the student's and the teacher's outputs for different views, ()."""
        views = self.make_views(images, keys)
        large = torch.cat(views[:2])  # (2 B, C, H, W)
        small = views[2:]

        # The teacher's probabilities for the two large views; `updated` uses the sums of its outputs
        with torch.no_grad():
            outputs = self.teacher_outputs(large)  # (2 B, K)
            count = outputs.new_full((1,), len(outputs))
            self.teacher_sums.append(torch.cat([outputs.sum(0), count]))
            centred = outputs - self.centre
            teacher = (centred / self.temperature).softmax(-1).chunk(2)  # 2 x (B, K)

        # The student's log-probabilities for all V views
        student = self.student_log_probabilities(large).chunk(2)
        if small:
            student += self.student_log_probabilities(torch.cat(small)).split(len(images))

        # Every pair of different views
        losses = []
        for i, probabilities in enumerate(teacher):
            for j, log_probabilities in enumerate(student):
                if i != j:
                    losses.append(-(probabilities * log_probabilities).sum(-1))  # (B,)
        return torch.stack(losses).mean()

    def student_log_probabilities(self, images: Tensor) -> Tensor:
        """The student's log-probabilities: (B, C, H, W) -> (B, K)."""
        outputs = self.projection(self.model(images)).float()
        return (outputs / self.objective.student_temperature).log_softmax(-1)

    def teacher_outputs(self, images: Tensor) -> Tensor:
        """The teacher's outputs, computed without dropout: (B, C, H, W) -> (B, K)."""
        model, projection = self.teacher.eval()
        return projection(model(images)).float()

    def before(self, step: float, total: int) -> None:
        """Set the teacher's temperature, and whether the last layer is trained, for the update that follows
        `step` finished ones."""
        settings = self.objective
        progress = 1.0  # progress of the temperature's warm-up
        if settings.teacher_warmup.n:
            progress = min(step / settings.teacher_warmup.n, 1.0)
        start = settings.teacher_start
        self.temperature = start + (settings.teacher_temperature - start) * progress
        self.projection.frozen = step < settings.last_layer_still.n
        self.teacher_sums.clear()  # remain from the last step if it was skipped

    @torch.no_grad()
    def updated(self, step: float, total: int) -> None:
        """Update the moving averages after update `step` of `total`: the teacher and the centre."""
        # teacher <- momentum * teacher + (1 - momentum) * student, the momentum growing to 1
        remaining = (1 + math.cos(math.pi * (step - 1) / total)) / 2  # from 1 to 0
        momentum = 1 - (1 - self.objective.momentum) * remaining
        student = nn.ModuleList([self.model, self.projection])
        weights: list[Tensor] = list(student.parameters())
        teacher_weights: list[Tensor] = list(self.teacher.parameters())
        torch._foreach_lerp_(teacher_weights, weights, 1 - momentum)

        # The mean output, over all micro-batches and ranks
        sums = sum_over_ranks(torch.stack(self.teacher_sums).sum(0))  # (K + 1,)
        mean = sums[:-1] / sums[-1]
        self.centre.lerp_(mean, 1 - self.objective.centre_momentum)

    def make_views(self, images: Tensor, keys: Tensor) -> list[Tensor]:
        """(B, C, H, W) normalised, keys (B,) -> V normalised views, the two large ones first."""
        # Without autocast: coordinates in bfloat16 would be off by a fifth of a pixel
        with torch.autocast(images.device.type, enabled=False):
            images = self.preprocessing.unnormalise(images).clamp_(0, 1)
            views = [view(images, keys, i, how) for i, how in enumerate(self.views)]
            return [self.preprocessing.normalise_(x) for x in views]

    def pictures(self, images: Tensor, keys: Tensor) -> dict[str, Tensor]:
        """(B, 3, H, W) normalised, (B,) -> uint8 pictures: the image, and its first five views."""
        pictures = {"image": images}
        views = self.make_views(images, keys)
        for number, large in enumerate(views[:2], 1):
            pictures[f"large view {number}"] = large
        for number, small in enumerate(views[2:5], 1):
            pictures[f"small view {number}"] = small
        return {name: self.preprocessing.levels(x) for name, x in pictures.items()}


@torch.no_grad()
def features_of(model: Model) -> int:
    """The width of a model's features. Raises VitkitError if it has features for every patch instead of one
    vector for the image."""
    config = model.config
    device = next(model.parameters()).device
    features = model.eval()(torch.zeros(1, config.channels, *config.image, device=device))
    if features.ndim != 2:
        raise Unsupported(
            'self-distillation needs one vector for an image, and the model\'s pool is "none": use another '
            "pool"
        )
    return features.shape[-1]
