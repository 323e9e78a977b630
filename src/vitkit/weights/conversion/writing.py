"""Writing a model in a format: as a directory that the format's library opens, or as one file."""

import json
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from vitkit.system.storage.files import whole_files, write_json, write_whole
from vitkit.weights.adaptation.pretraining import remove_pretraining, write_pretraining
from vitkit.weights.classifier import Classifier
from vitkit.weights.conversion.rules import write
from vitkit.weights.files import open_weights, write_safetensors, write_tensors
from vitkit.weights.files.lazy import KEY, WRITTEN_WITH, identity
from vitkit.weights.files.opening import ENDINGS
from vitkit.weights.files.replacing import (
    check_file,
    check_license,
    check_license_text,
    check_model_replaceable,
    is_somebodys,
    signed,
)
from vitkit.weights.formats import recognise
from vitkit.weights.formats.format import Format
from vitkit.weights.ownership import check_own_weights
from vitkit.weights.provenance.card import model_card
from vitkit.weights.provenance.description import to_json
from vitkit.weights.provenance.licenses import CARD, FILE, License, beside, with_license
from vitkit.weights.unknown import remove_unknown, write_unknown


def write_model(classifier: Classifier, format: Format, path: Path) -> Path:
    """Write a model to `path`: to one file if the name ends so, else to a directory; returns
    `path`.

    vitkit's own description goes with it, where other libraries do not look. Raises ValueError for
    a path that the format cannot be written to, and for a model that was made for inference or that
    another library changed.
    """
    check_destination(classifier, format, path)
    if path.suffix in format.endings:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Through a link, which stays
        write_tensors(path.resolve(), tensors_in(format, classifier), to_json(classifier))
        if classifier.license and classifier.license.text:
            write_whole(beside(path), classifier.license.text.encode())
    else:
        _write_directory(classifier, format, path)
    return path


def check_destination(classifier: Classifier, format: Format, path: Path) -> None:
    """Raises ValueError for a path that the format cannot be written to, or where something would
    be lost, and for a model that was made for inference or that another library changed."""
    check_own_weights(classifier.model)
    if path.suffix in format.endings:
        check_file(path)
        check_license_text(beside(path), classifier.license)
    else:
        _check_directory(format, path)
        check_model_replaceable(path, format.directory(classifier))
        check_license(path, classifier.license)


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
    """The format's JSON files, model.safetensors, a model card, and the text of the licence.

    The weights carry their description, and are replaced first: if the process is killed before
    config.json is replaced, which is last, the loader sees that the two do not belong together.
    """
    descriptions = format.directory(classifier)
    check_model_replaceable(path, descriptions)
    remove_license = check_license(path, classifier.license)
    ours = json.loads(json.dumps(to_json(classifier)))  # as it will be read
    with whole_files(path, first="model.safetensors", last="config.json") as new:
        for name, values in descriptions.items():
            if name == "config.json":
                values = {**values, KEY: {**ours, WRITTEN_WITH: identity(ours)}}
            write_json(new / name, values)
        tensors = tensors_in(format, classifier)
        write_safetensors(new / "model.safetensors", tensors, {KEY: json.dumps(ours)})
        write_pretraining(new, classifier.pretraining, identity(ours))
        write_unknown(new, classifier.unknown, identity(ours))
        if classifier.license and classifier.license.text:
            (new / FILE).write_bytes(classifier.license.text.encode())
        if not is_somebodys(path / CARD):
            (new / CARD).write_text(signed(model_card(classifier, format)), "utf-8")
    for file in remove_license:
        file.unlink()
    if not classifier.pretraining:
        remove_pretraining(path)
    if classifier.unknown is None:
        remove_unknown(path)


def state_license(folder: Path, classifier: Classifier, license: License) -> None:
    """Write a licence into the card of a model directory. A card that its owner wrote keeps all
    else; vitkit's own, or a missing one, is written anew."""
    card = folder / CARD
    if is_somebodys(card):
        text = with_license(card.read_text("utf-8", errors="replace"), license)
    else:
        format = recognise(open_weights(folder).tensors)
        text = signed(model_card(replace(classifier, license=license), format))
    write_whole(card, text.encode())


def tensors_in(format: Format, classifier: Classifier) -> dict[str, Tensor]:
    """The model's tensors as a format stores them, in the layout that `layout_for` says."""
    config = classifier.model.config
    state = {name: tensor.detach().cpu() for name, tensor in classifier.model.state_dict().items()}
    tensors = write(state, format.rules(config))
    spelled = format.spell(tensors, config, layout_for(format, classifier.origin))

    # Its own mask embedding, where the library's class has one
    mask = classifier.pretraining.get("mask")
    name = next((name for name in spelled if format.mask and name.endswith(format.mask)), None)
    if name and mask is not None and mask.numel() == spelled[name].numel():
        spelled[name] = mask.detach().cpu().reshape(spelled[name].shape).clone()
    return spelled


def layout_for(format: Format, origin: dict) -> str:
    """The layout to write: that of the file which the model came from, if it had the same format,
    so that its arrays get their names back; else "", the format's usual one."""
    if origin.get("format") != format.name:
        return ""
    return origin.get("layout", "")
