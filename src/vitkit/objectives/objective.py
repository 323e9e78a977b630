"""What an objective is: a value with settings (`Objective`), and the module that a run trains
(`Learner`). The loop calls their methods and knows no objective by name.

A new objective is one file, anywhere: a frozen dataclass with the methods of `Objective`, and a
Learner. A recipe has it as a value; nothing else needs to know of it.

What is random in a forward pass is drawn from `keys`, one integer for each example. They are a
function of (seed, step, place in the batch), so that micro-batches and ranks change nothing.

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
    """The module that a run trains: the model, under this name, and the parts that the objective
    adds to it.

    Its forward pass returns the loss, the mean over B:
    (images (B, C, H, W) normalised, targets as a Batch has them, keys int64 (B,)) -> float32 ().

    It must not go through a batch image by image: what a step takes is counted with 2^30 images that
    have a shape and no values, and a list of that length fills the memory (training/footprint.py).
    """

    model: Model
    travels: ClassVar[tuple[str, ...]] = ()
    """The names of what the objective adds and is saved beside the model, so that a run of the same
    objective can begin with it."""

    def prepare(self, train: Source) -> None:
        """Called once, when a run begins, with the images that it trains on."""

    def before(self, step: float, total: int) -> None:
        """Called before the update that follows `step` finished ones, of `total`; in a run that
        must end in a time, those of an undisturbed one."""

    def updated(self, step: float, total: int) -> None:
        """Called after update `step` of `total`."""

    @contextmanager
    def deployed(self) -> Iterator[None]:
        """Within it the model is as it will be saved, and is measured so. Afterwards it is as it is
        trained."""
        yield

    def pictures(self, images: Tensor, keys: Tensor) -> dict[str, Tensor]:
        """(B, 3, H, W) normalised, (B,) -> uint8 pictures of that shape, by their titles in the
        report."""
        return {}


@runtime_checkable
class Objective(Protocol):
    """A frozen dataclass of settings that says what a step minimises."""

    def head(self, target_kind: TargetKind, classes: int) -> int:
        """How many outputs the model's head needs for images with such targets and this number of
        classes; 0 is no head.

        Raises VitkitError for targets that the objective cannot learn.
        """

    def activation(self) -> Activation:
        """How the outputs of the trained model become probabilities."""

    def evaluators(self, target_kind: TargetKind) -> tuple[Evaluator, ...]:
        """The default evaluators of a run on held-out images with such targets; may be empty."""

    def learner(self, model: Model, preprocessing: Preprocessing) -> Learner:
        """The module that is trained. Raises VitkitError for a model that this objective cannot
        train."""


class Unlabelled:
    """The common part of objectives that learn without labels: an `Objective` may begin with it."""

    def head(self, target_kind: TargetKind, classes: int) -> int:
        """Returns 0: there is no head, because labels are not used."""
        return 0

    def activation(self) -> Activation:
        """softmax: what a head that the model gets later is usually trained for."""
        return "softmax"


def blocks_of(learner: nn.Module) -> list[nn.Module]:
    """The blocks of every encoder and decoder of a learner, in its modules' order."""
    blocks: list[nn.Module] = []
    for module in learner.modules():
        blocks += getattr(module, "blocks", ())
    return blocks
