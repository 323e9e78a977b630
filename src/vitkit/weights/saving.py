"""Save a classifier so that as many libraries as possible open it."""

from os import PathLike
from pathlib import Path

from vitkit.system.console.text import quoted
from vitkit.system.errors import BadSettings, WrongArgument
from vitkit.system.functions.results import ModelResult
from vitkit.system.storage.files import impossible
from vitkit.system.values import given
from vitkit.weights.classifier import Classifier, check_own_weights
from vitkit.weights.destination import check_destination, write_model
from vitkit.weights.formats import cannot, format_of
from vitkit.weights.formats.format import Format
from vitkit.weights.store import load


def save(classifier: "Classifier | ModelResult", path: Path | str) -> Path:
    """Write a model directory, which `vitkit.load` opens to the bit. An earlier model at `path` is
    replaced at the end.

    It contains config.json, model.safetensors, preprocessor_config.json and a model card. If Transformers
    can express the architecture, `AutoModelForImageClassification.from_pretrained` opens it too; otherwise
    the names are vitkit's.

    Raises VitkitError if `path` contains something else than a model, and for a model that was made for
    inference or that another library changed; WrongArgument for an object that is not a model, or a path that is none.
    """
    if not isinstance(path, str | PathLike):
        raise WrongArgument(f"`path` is {given(path)}; it takes a path")
    made = classifier.made if isinstance(classifier, ModelResult) else classifier
    if isinstance(made, str | Path):
        made = load(made, quiet=True)
    if not isinstance(made, Classifier):
        raise WrongArgument(
            f"the object to save is of type {type(made).__name__}; give a Classifier, such as "
            "vitkit.load returns, or a network with its preprocessing and the names of its outputs: "
            "Classifier(model, preprocessing, labels)"
        )
    if reason := impossible(path):
        raise BadSettings(f"`path` is {quoted(str(path))}, {reason}; give another name")
    return write_model(made, _format_to_save(made), Path(path))


def check_savable(classifier: Classifier, path: Path | str) -> None:
    """Raise the exceptions of `save`, before the work whose result is to be saved."""
    check_destination(classifier, _format_to_save(classifier), Path(path))


def _format_to_save(classifier: Classifier) -> Format:
    """The format of Transformers if it can express the model; otherwise vitkit's own."""
    check_own_weights(classifier.model)
    config = classifier.model.config
    rule = classifier.preprocessing.rule
    name = "huggingface"
    if cannot(name, config, rule):
        name = "native"
    format = format_of(name, config, rule)
    assert format is not None  # vitkit's own stores every model
    return format
