"""Writing a model in a format: a directory that the format's library opens, or one file."""

from pathlib import Path

from torch import Tensor

from vitkit.system.files import whole_directory, write_json
from vitkit.weights.card import model_card
from vitkit.weights.classifier import Classifier
from vitkit.weights.description import to_json
from vitkit.weights.files import write_safetensors, write_tensors
from vitkit.weights.files.lazy import KEY
from vitkit.weights.formats.format import Format
from vitkit.weights.own import check_own_weights
from vitkit.weights.rules import write


def write_model(classifier: Classifier, format: Format, path: Path) -> Path:
    """Write a model to a directory, or to a file where the format has those and `path` has an
    ending; returns `path`.

    vitkit's own description is in it, where others do not look. Raises ValueError for a path that
    does not fit, and for a model that was made for inference or that another library changed.
    """
    check_own_weights(classifier.model)
    if format.directory and not (format.endings and path.suffix):
        _write_directory(classifier, format, path)
    elif path.suffix in format.endings:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_tensors(path, tensors_in(format, classifier), to_json(classifier))
    else:
        endings = " or ".join(format.endings)
        message = f"{path} should end in {endings} for {format.name}"
        if format.directory:
            message += "; a name without an ending becomes a directory"
        raise ValueError(message)
    return path


def _write_directory(classifier: Classifier, format: Format, path: Path) -> None:
    """The format's JSON files, model.safetensors and a model card."""
    if path.exists() and not (path / "config.json").exists():
        raise ValueError(f"{path} exists and is no model directory; choose another place")
    with whole_directory(path) as new:
        for name, values in format.directory(classifier).items():
            if name == "config.json":
                values = {**values, KEY: to_json(classifier)}
            write_json(new / name, values)
        write_safetensors(new / "model.safetensors", tensors_in(format, classifier))
        (new / "README.md").write_text(model_card(classifier, format), "utf-8")


def tensors_in(format: Format, classifier: Classifier) -> dict[str, Tensor]:
    """The model's tensors in a format, spelled as it spells them: as the model's origin did, if
    that was the same format."""
    config = classifier.model.config
    state = {name: tensor.detach().cpu() for name, tensor in classifier.model.state_dict().items()}
    layout = ""
    if classifier.origin.get("format") == format.name:
        layout = classifier.origin.get("layout", "")
    return format.spell(write(state, format.rules(config)), config, layout)
