"""The model as an argument of public functions."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from vitkit.system.errors import BadSettings, WrongArgument
from vitkit.system.functions.arguments import name_of
from vitkit.system.functions.steps import DATA, step
from vitkit.system.functions.types import CONVERTED
from vitkit.weights.hints import Hints

if TYPE_CHECKING:
    from vitkit.system.functions.results import ModelResult
    from vitkit.weights.classifier import Classifier

if TYPE_CHECKING and not CONVERTED:
    ModelLike: TypeAlias = str | Path | Classifier | ModelResult
    """A model: a run, a model directory, a file of weights, the name of a published model, what
    `vitkit.load` returns, or a result that made one. The body gets a str or a Classifier."""
elif TYPE_CHECKING:
    ModelLike: TypeAlias = str | Classifier
else:  # no PyTorch for a signature
    ModelLike = Annotated[Any, "MODEL"]


def classifier_of(model: "str | Classifier", hints: Hints, quiet: bool = False) -> "Classifier":
    """The classifier of a model that is given by name or as an object. Raises WrongArgument for anything
    else, and VitkitError if there are hints for a model that is already loaded."""
    from vitkit.weights.classifier import Classifier
    from vitkit.weights.store import load_as

    if isinstance(model, Classifier):
        if hints != Hints():
            raise BadSettings(
                "this model is already loaded, so settings for its file (such as its image size, pooling or "
                "labels) have no effect; give them to vitkit.load"
            )
        return model
    if not isinstance(model, str | Path):
        raise WrongArgument(
            f"model is of type {type(model).__name__}; it is a name, a path, or what vitkit.load returns"
        )
    return load_as(model, hints, quiet)


def classifier_with_head(model: "str | Classifier", hints: Hints) -> "Classifier":
    """The classifier of a model, see `classifier_of`. Raises VitkitError for one that has no classes, or that
    predicts the same ones for every image."""
    from vitkit.weights.classifier import no_answer

    classifier = classifier_of(model, hints)
    if reason := no_answer(classifier):
        raise BadSettings(f"{name_of(model)}: {reason}; {step('finetune', model, DATA)} trains one")
    return classifier
