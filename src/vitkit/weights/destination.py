"""Write a model as a directory that a format's library opens, or as one file. An earlier model of vitkit
is replaced, but files of the user are not."""

import json
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from vitkit.system.errors import BadSettings
from vitkit.system.storage.files import (
    as_utf8,
    remove_unfinished,
    whole_files,
    write_json,
    write_whole,
)
from vitkit.weights.card import model_card
from vitkit.weights.classifier import Classifier, check_own_weights, to_json
from vitkit.weights.files.content import KEY, WRITTEN_WITH, identity, read_json
from vitkit.weights.files.directory import (
    ENDINGS,
    PRETRAINING,
    UNKNOWN,
    is_written_by_vitkit,
    open_weights,
    write_tensors,
)
from vitkit.weights.files.safetensors import write_safetensors
from vitkit.weights.formats import recognise
from vitkit.weights.formats.format import Format
from vitkit.weights.licenses import (
    CARD,
    FILE,
    NAMES,
    License,
    digest,
    license_text,
    read_text,
    with_license,
)
from vitkit.weights.rules import write

DESCRIPTIONS = ("config.json", "preprocessor_config.json")
"""Files that describe the weights beside them."""
MODEL = (*DESCRIPTIONS, "model.safetensors")
"""The files that vitkit writes to a directory, except the card."""
SIGNATURE = re.compile(r"(.*)\n<!-- written by vitkit: ([0-9a-f]{16}) -->\n", re.DOTALL)


# Writing


def write_model(classifier: Classifier, format: Format, path: Path) -> Path:
    """Write a model to `path`, and return `path`: a single file if the suffix is one of the format's,
    otherwise a directory.

    vitkit's own description is included where other libraries ignore it. Raises VitkitError for a path
    that the format cannot be written to, and for a model that was made for inference or that another
    library changed.
    """
    check_destination(classifier, format, path)
    if path.suffix in format.endings:
        path.parent.mkdir(parents=True, exist_ok=True)
        # resolve: if the path is a link, the link stays
        write_tensors(path.resolve(), tensors_in(format, classifier), to_json(classifier))
        if classifier.license and classifier.license.text:
            write_whole(license_text(path), classifier.license.text.encode())
    else:
        _write_directory(classifier, format, path)
    return path


def _write_directory(classifier: Classifier, format: Format, path: Path) -> None:
    """Write the format's JSON files, model.safetensors, a model card, and the text of the licence.

    The weights contain their description and are replaced first, config.json is replaced last. If the
    process is killed in between, the loader detects that the two do not match.
    """
    assert format.directory is not None  # by check_destination
    descriptions = format.directory(classifier)
    check_model_replaceable(path, descriptions)
    remove_license = _obsolete_licenses(path, classifier.license)
    ours = json.loads(json.dumps(to_json(classifier)))  # in the form in which it will be read
    beside_weights = {PRETRAINING: classifier.pretraining, UNKNOWN: {}}
    if classifier.unknown:
        beside_weights[UNKNOWN] = classifier.unknown.tensors()
    remove_unfinished(path)  # left by a process that was killed
    with whole_files(path, first="model.safetensors", last="config.json") as new:
        for name, values in descriptions.items():
            if name == "config.json":
                values = {**values, KEY: {**ours, WRITTEN_WITH: identity(ours)}}
            write_json(new / name, values)
        tensors = tensors_in(format, classifier)
        write_safetensors(new / "model.safetensors", tensors, {KEY: json.dumps(ours)})
        for name, more in beside_weights.items():
            if more:
                _write_for_vitkit(new / name, more, identity(ours))
        if classifier.license and classifier.license.text:
            (new / FILE).write_bytes(classifier.license.text.encode())
        if not is_users_own(path / CARD):
            (new / CARD).write_bytes(as_utf8(_signed(model_card(classifier, format))))

    # Remove files of an earlier model
    for file in remove_license:
        file.unlink()
    for name, more in beside_weights.items():
        if not more:
            (path / name).unlink(missing_ok=True)


def _write_for_vitkit(file: Path, tensors: dict[str, Tensor], description_id: str) -> None:
    """Write tensors that only vitkit reads, marked as belonging to the weights with this description."""
    ours = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    write_safetensors(file, ours, {KEY: json.dumps({WRITTEN_WITH: description_id})})


def tensors_in(format: Format, classifier: Classifier) -> dict[str, Tensor]:
    """The model's tensors in the form in which a format stores them.

    If the model came from a file of the same format, its layout is used again, so that arrays get their
    original names; otherwise the format's usual layout.
    """
    layout = ""
    if classifier.origin.get("format") == format.name:
        layout = classifier.origin.get("layout", "")
    config = classifier.model.config
    state = {name: tensor.detach().cpu() for name, tensor in classifier.model.state_dict().items()}
    tensors = write(state, format.rules(config))
    spelled = format.spell(tensors, config, layout)

    # The model's mask embedding, if the library's class has one
    mask = classifier.pretraining.get("mask")
    name = next((name for name in spelled if format.mask and name.endswith(format.mask)), None)
    if name and mask is not None and mask.numel() == spelled[name].numel():
        spelled[name] = mask.detach().cpu().reshape(spelled[name].shape).clone()
    return spelled


def state_license(folder: Path, classifier: Classifier, license: License) -> None:
    """Write a licence into the card of a model directory. In a card that the user wrote, only the licence
    changes; vitkit's own card, or a missing one, is written again."""
    card = folder / CARD
    if is_users_own(card):
        text = with_license(card.read_text("utf-8", errors="replace"), license)
    else:
        format = recognise(open_weights(folder).tensors)
        assert format is not None  # the classifier was loaded from here
        text = _signed(model_card(replace(classifier, license=license), format))
    write_whole(card, as_utf8(text))


# Checks of what may be replaced


def check_destination(classifier: Classifier, format: Format, path: Path) -> None:
    """Raise VitkitError for a path that the format cannot be written to or where files would be lost,
    and for a model that was made for inference or that another library changed."""
    check_own_weights(classifier.model)
    if path.suffix in format.endings:
        _check_file(path)
        _check_license_text(license_text(path), classifier.license)
    else:
        _check_directory(format, path)
        assert format.directory is not None  # by _check_directory
        check_model_replaceable(path, format.directory(classifier))
        _obsolete_licenses(path, classifier.license)


def _check_directory(format: Format, path: Path) -> None:
    """Raise VitkitError unless the format has directories and `path` can be the name of one.

    A user who asks for model.npz does not want a directory of that name.
    """
    endings = " or ".join(format.endings)
    if format.directory is None:
        raise BadSettings(f"{path} should end in {endings} for {format.name}")
    if format.endings and path.suffix:
        raise BadSettings(
            f"{path} should end in {endings} for {format.name}; "
            "a name without an ending becomes a directory"
        )
    if path.suffix.lower() in ENDINGS:
        raise BadSettings(
            f"{path} is the name of a file, but {format.name} is written to a directory; "
            f"leave out {path.suffix}"
        )


def _check_file(path: Path) -> None:
    """Raise VitkitError if the file exists and does not contain a model of vitkit. It may be needed, such
    as a download, or a checkpoint with the state of its optimiser."""
    _check_link(path)
    if path.is_dir():
        raise BadSettings(f"{path} is a directory; give the name of a file")
    if path.exists() and not is_written_by_vitkit(path):
        raise BadSettings(
            f"{path} exists and contains no model of vitkit, so it is not replaced; give "
            "another name, or remove it"
        )


def check_model_replaceable(path: Path, descriptions: Iterable[str] = DESCRIPTIONS) -> None:
    """Raise VitkitError unless a model with these descriptions can be written to a directory without
    loss: it is new or empty, or contains an earlier model of vitkit. Other files in it are kept."""
    _check_link(path)
    if not path.exists():
        return
    if not path.is_dir():
        raise BadSettings(
            f"{path} is a file, but a model is written to a directory; give another name"
        )
    for name in (*MODEL, CARD, *NAMES):
        if (path / name).is_dir():
            raise BadSettings(f"{path / name} is a directory; give another name than {path}")

    # A directory of other files without a model; hidden ones such as .git do not count
    others = sorted(file.name for file in path.iterdir() if not file.name.startswith("."))
    others = [name for name in others if name not in (*MODEL, CARD, *NAMES)]
    existing = [name for name in MODEL if (path / name).exists()]
    if others and not existing:
        raise BadSettings(
            f"{path} holds other files ({', '.join(others[:3])}) and no model; give a directory of "
            "its own"
        )

    # Files with the names of a model's that vitkit did not write
    if existing and not is_written_by_vitkit(path):
        raise BadSettings(
            f"{path / existing[0]} does not belong to a model of vitkit, so it is not replaced; give "
            "another directory, or remove it"
        )

    # A description that would remain beside the new model and describe it wrongly
    for name in DESCRIPTIONS:
        if name in existing and name not in descriptions:
            raise BadSettings(
                f"{path / name} describes an earlier model, but this format would not replace it; "
                "remove it, or give another directory"
            )


def _check_link(path: Path) -> None:
    """Raise VitkitError for a broken link."""
    if path.is_symlink() and not path.exists():
        raise BadSettings(f"{path} is a broken link; create its target, or give another name")


def _obsolete_licenses(path: Path, license: License | None) -> list[Path]:
    """The licence texts of an earlier model in a directory, to be removed when the new model is written.
    Raises VitkitError if the user put another licence there than the new model's."""
    try:
        noted = read_json(path / "config.json")[KEY]["license"]["text_digest"]
    except (OSError, ValueError, KeyError, TypeError):
        noted = None  # there is no earlier model
    obsolete = []
    for name in NAMES:
        file = path / name
        text = read_text(file)
        if not text or (license and license.text == text):
            continue
        if digest(text) == noted:
            if name != FILE or not (license and license.text):
                obsolete.append(file)
        else:
            _check_license_text(file, license)
    return obsolete


def _check_license_text(file: Path, license: License | None) -> None:
    """Raise VitkitError if a file contains another licence than the one to be written."""
    if license and license.text and file.exists() and read_text(file) != license.text:
        raise BadSettings(
            f"{file} exists and is not the licence of this model ({license.called}), which must be "
            "saved with it; give another directory or name, or remove it"
        )


# The card, which the user may edit


def _signed(card: str) -> str:
    """A model card with a last line that readers do not see: a digest of its text."""
    return f"{card.rstrip()}\n<!-- written by vitkit: {digest(card.rstrip())} -->\n"


def is_users_own(card: Path) -> bool:
    """Whether there is a README.md that vitkit did not write, or that was changed since. It is not
    replaced."""
    if not card.exists():
        return False
    match = SIGNATURE.fullmatch(card.read_text("utf-8", errors="replace"))
    return match is None or digest(match[1]) != match[2]
