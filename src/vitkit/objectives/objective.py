"""The interface of objectives: the settings (`Objective`), and the module that a run trains (`Learner`). The loop
calls their methods and does not depend on a particular objective.

A new objective is one file, anywhere: a frozen dataclass with the methods of `Objective`, and a Learner. A recipe
has it as a value; it needs no registration.

Random numbers of a forward pass are derived from `keys`, one integer for each example, which is a function of
(seed, step, position in the batch). So they do not depend on micro-batches and ranks.

Legend: B batch, C channels, K classes.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar, Protocol, runtime_checkable

from torch import Tensor, nn

from vitkit.data import Preprocessing, Source, TargetKind
from vitkit.evaluation.evaluator import Evaluator
from vitkit.models import Model
from vitkit.weights import Activation


class Learner(nn.Module):
    """The module that a run trains: the model, as its attribute `model`, and the modules that the objective adds.

    Its forward pass returns the mean loss over B:
    (images (B, C, H, W) normalised, targets as in a Batch, keys int64 (B,)) -> float32 ().

    The forward pass must not iterate over the images of a batch: the resources of a step are counted with 2^30
    images without values, and a list of that length fills the memory (training/footprint.py).
    """

    model: Model
    travels: ClassVar[tuple[str, ...]] = ()
    """Names of the added modules and parameters that are saved beside the model, so that a run with the same
    objective can start from them."""

    def prepare(self, train: Source) -> None:
        """Called once, at the beginning of a run, with its training images."""

    def before(self, step: float, total: int) -> None:
        """Called before the update that follows `step` finished ones, of `total`. In a run with a deadline,
        `step` is the position in the schedule of the full length."""

    def updated(self, step: float, total: int) -> None:
        """Called after update `step` of `total`."""

    @contextmanager
    def deployed(self) -> Iterator[None]:
        """Context in which the model is as it will be saved and evaluated. Afterwards it is as in
        training."""
        yield

    def pictures(self, images: Tensor, keys: Tensor) -> dict[str, Tensor]:
        """(B, 3, H, W) normalised, (B,) -> uint8 pictures of that shape, by their titles in the
        report."""
        return {}


@runtime_checkable
class Objective(Protocol):
    """A frozen dataclass of settings that says what a step minimises."""

    def head(self, target_kind: TargetKind, classes: int) -> int:
        """The number of outputs of the model's head for images with this kind of targets and this number of
        classes; 0 for no head.

        Raises VitkitError for targets that the objective cannot learn.
        """

    def activation(self) -> Activation:
        """The activation that turns the outputs of the trained model into probabilities."""

    def evaluators(self, target_kind: TargetKind) -> tuple[Evaluator, ...]:
        """The default evaluators of a run on held-out images with such targets; may be empty."""

    def learner(self, model: Model, preprocessing: Preprocessing) -> Learner:
        """The module that is trained. Raises VitkitError for a model that this objective cannot
        train."""


class Unlabelled:
    """Base of objectives that learn without labels."""

    def head(self, target_kind: TargetKind, classes: int) -> int:
        """Returns 0: there is no head, because labels are not used."""
        return 0

    def activation(self) -> Activation:
        """Returns "softmax", the usual activation of a head that the model gets later."""
        return "softmax"


def blocks_of(learner: nn.Module) -> list[nn.Module]:
    """The blocks of every encoder and decoder of a learner, in its modules' order."""
    blocks: list[nn.Module] = []
    for module in learner.modules():
        blocks += getattr(module, "blocks", ())
    return blocks
