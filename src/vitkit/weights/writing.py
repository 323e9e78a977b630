"""Writing a model in a format: as a directory that the format's library opens, or as one file."""

from pathlib import Path

from torch import Tensor

from vitkit.system.files import whole_files, write_json
from vitkit.weights.card import model_card
from vitkit.weights.classifier import Classifier
from vitkit.weights.description import to_json
from vitkit.weights.files import write_safetensors, write_tensors
from vitkit.weights.files.lazy import KEY
from vitkit.weights.files.opening import ENDINGS
from vitkit.weights.formats.format import Format
from vitkit.weights.own import check_own_weights
from vitkit.weights.replacing import CARD, check_file, check_replaceable, is_somebodys, signed
from vitkit.weights.rules import write


def write_model(classifier: Classifier, format: Format, path: Path) -> Path:
    """Write a model to `path`: to one file if the name ends so, else to a directory; returns
    `path`.

    vitkit's own description goes with it, where other libraries do not look. Raises ValueError for
    a path that the format cannot be written to, and for a model that was made for inference or that
    another library changed.
    """
    check_own_weights(classifier.model)
    if path.suffix in format.endings:
        check_file(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_tensors(path, tensors_in(format, classifier), to_json(classifier))
    else:
        _check_directory(format, path)
        _write_directory(classifier, format, path)
    return path


def _check_directory(format: Format, path: Path) -> None:
    """Raises ValueError unless the format has directories, and `path` can be the name of one.

    Somebody who asks for model.npz does not want a directory of that name.
    """
    endings = " or ".join(format.endings)
    if format.directory is None:
        raise ValueError(f"{path} should end in {endings} for {format.name}")
    if format.endings and path.suffix:
        raise ValueError(
            f"{path} should end in {endings} for {format.name}; "
            "a name without an ending becomes a directory"
        )
    if path.suffix.lower() in ENDINGS:
        raise ValueError(
            f"{path} is the name of a file, and {format.name} is written to a directory; "
            f"leave out {path.suffix}"
        )


def _write_directory(classifier: Classifier, format: Format, path: Path) -> None:
    """The format's JSON files, model.safetensors and a model card."""
    descriptions = format.directory(classifier)
    check_replaceable(path, descriptions)
    with whole_files(path) as new:
        for name, values in descriptions.items():
            if name == "config.json":
                values = {**values, KEY: to_json(classifier)}
            write_json(new / name, values)
        write_safetensors(new / "model.safetensors", tensors_in(format, classifier))
        if not is_somebodys(path / CARD):
            (new / CARD).write_text(signed(model_card(classifier, format)), "utf-8")


def tensors_in(format: Format, classifier: Classifier) -> dict[str, Tensor]:
    """The model's tensors as a format stores them, in the layout that `layout_for` says."""
    config = classifier.model.config
    state = {name: tensor.detach().cpu() for name, tensor in classifier.model.state_dict().items()}
    tensors = write(state, format.rules(config))
    return format.spell(tensors, config, layout_for(format, classifier.origin))


def layout_for(format: Format, origin: dict) -> str:
    """The layout to write: that of the file which the model came from, if it had the same format,
    so that its arrays get their names back; else "", the format's usual one."""
    if origin.get("format") != format.name:
        return ""
    return origin.get("layout", "")
