"""A model directory or a file of weights: its tensors by name and shape, and what lies beside them."""

import json
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from vitkit.system.console.text import printable_name
from vitkit.system.errors import BadRun, BadWeights, VitkitError
from vitkit.system.storage.files import refuse_special, save_npz, whole
from vitkit.weights.files.content import (
    CONFIG,
    DAMAGE,
    KEY,
    PREPROCESSOR,
    WRITTEN_WITH,
    Fields,
    Parts,
    Tensors,
    check_fields,
    comment_of,
    identity,
    read_comment,
    read_json,
    write_comment,
)
from vitkit.weights.files.npz import is_npz, read_npz
from vitkit.weights.files.pytorch import read_pickle
from vitkit.weights.files.safetensors import read_safetensors, write_safetensors
from vitkit.weights.licenses import FILE, License, license_in, license_of_file, license_text

PRETRAINING = "pretraining.safetensors"
"""What pre-training added to the model in a directory (weights/pretraining.py)."""
UNKNOWN = "unknown.safetensors"
"""The limits from which on an image is unknown to the model in a directory (weights/unknown.py)."""
PROCESSOR_FILE = "processor_config.json"
FOLDER_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
ENDINGS = (".safetensors", ".npz", ".pth", ".pt", ".bin", ".ckpt", ".pth.tar")
# Endings of other files that people give as a model -> what to do instead
EXPORTED = (
    "it was exported, and gives answers alone, to predict and evaluate; this needs the model that it "
    "was exported from"
)
NO_WEIGHTS = {
    ".json": "give the directory that it is in",
    ".py": "vitkit runs no code; give a model directory or a file of weights",
    ".html": "a page that vitkit export wrote is for a browser: open it there, and drop photographs on it",
    **dict.fromkeys((".onnx", ".xml", ".pt2"), EXPORTED),
}
INTERRUPTED = (
    "config.json was written for other weights than these, so the save that replaced them was "
    "interrupted; read as the weights describe themselves. Save the model again for other libraries"
)


@dataclass(frozen=True)
class Opened:
    """A file of weights, with what lies beside it or inside it and says more about the model."""

    path: Path
    parts: Parts
    """The state dicts in it: one, or those of a training checkpoint."""
    config: dict = field(default_factory=dict)
    """config.json beside it."""
    preprocessor: dict = field(default_factory=dict)
    """preprocessor_config.json beside it, or the same object in processor_config.json."""
    described: dict = field(default_factory=dict)
    """vitkit's own description of the model."""
    architecture: str = ""
    """What a training checkpoint calls the architecture, in its own words: "vit_tiny_patch16_224"."""
    wrapper: str = ""
    """The key of a training checkpoint under which the model was, such as "model" or "teacher";
    `weights/parts.py` fills it in."""
    license: License | None = None
    """What the files say of the weights' licence."""
    notes: tuple[str, ...] = ()
    """What is unusual about the files, one sentence each."""
    pretraining: Tensors = field(default_factory=dict)
    """What pre-training added to the model, from the file beside the weights."""
    unknown: Tensors = field(default_factory=dict)
    """Limits from which on an image is unknown, likewise."""

    @property
    def tensors(self) -> Tensors:
        """The tensors of the outermost state dict, which in most files is the only one."""
        return next(iter(self.parts.values()))


def open_weights(path: Path) -> Opened:
    """Open a model directory, a run or a file of weights. Raises VitkitError if it is none."""
    # FOLDER_FILES are weights whatever their ending: that of model.safetensors.index.json is .json
    ending = refuse_special(path).suffix.lower()
    if ending in NO_WEIGHTS and path.is_file() and path.name not in FOLDER_FILES:
        raise BadWeights(f"{path} is not a file of weights; {NO_WEIGHTS[ending]}")

    # A file; what lies beside it belongs to it if it has the name that a model directory gives it
    if path.is_file():
        folder = None
        if path.name in FOLDER_FILES:
            folder = path.parent
        return _open(path, folder)

    # A directory
    folder = path
    if (path / "model" / "config.json").is_file():  # a run
        folder = path / "model"
    return _open(_file_of(path, folder), folder)


def is_written_by_vitkit(path: Path) -> bool:
    """Whether the weights in a file or a directory describe themselves as vitkit's do, so that they
    may be replaced. False for what cannot be read."""
    try:
        file = refuse_special(path)
        if path.is_dir():
            file = _file_of(path, path)
        _, description, _ = _read(file)
    except (SafetensorError, *DAMAGE):
        return False
    return "model" in description


def _file_of(path: Path, folder: Path) -> Path:
    """The file of weights in a folder: of a name that others know, or the only one."""
    for name in FOLDER_FILES:
        if refuse_special(folder / name).is_file():
            return folder / name
    files = sorted(file for file in folder.iterdir() if file.name.endswith(ENDINGS))
    for file in files:
        refuse_special(file)
    if len(files) == 1:
        return files[0]
    if (path / "recipe.json").is_file():
        raise BadRun(
            f"{path} is a run that has not finished; continue it with the command that started it"
        )
    content = "no model"
    if files:
        names = ", ".join(file.name for file in files)
        content = f"several files of weights ({names}): name one"
    raise BadWeights(
        f"{path} holds {content}; a model directory has config.json and model.safetensors in it"
    )


def _open(file: Path, folder: Path | None) -> Opened:
    """A file, and what is beside it in its folder."""
    # What the weights say of themselves
    inside: dict = {}
    architecture = ""
    try:
        if file.name.endswith(".index.json"):
            parts: Parts = {(): _shards(file)}
        else:
            parts, inside, architecture = _read(file)
    except (OSError, SafetensorError) as error:
        raise BadWeights(f"{file} cannot be loaded: {error}") from error
    if folder is None:
        license = license_of_file(license_text(file), inside.get("license"))
        return Opened(file, parts, described=inside, architecture=architecture, license=license)

    # What lies beside them, unless it was written beside other weights
    config = _beside(folder, "config.json", CONFIG)
    described = config.get(KEY)
    # A config.json of Transformers or timm describes the model by itself: it was written after vitkit
    is_of_a_library = config.get("model_type", KEY) != KEY or "architecture" in config
    if not described and not is_of_a_library:
        described = inside
    described = described or {}
    if not isinstance(described, dict):
        raise BadWeights(
            f"{file} cannot be loaded: its description of the model is {type(described).__name__}"
        )
    if inside and described.get(WRITTEN_WITH, identity(inside)) != identity(inside):
        license = license_of_file(folder / FILE, inside.get("license"))
        return Opened(file, parts, described=inside, license=license, notes=(INTERRUPTED,))
    preprocessor = _image_processor(folder)
    license = license_in(folder, described.get("license"), config)
    pretraining, notes = _of_these_weights(folder / PRETRAINING, inside)
    unknown, more_notes = _of_these_weights(folder / UNKNOWN, inside)
    notes = (*notes, *more_notes)
    return Opened(
        file,
        parts,
        config,
        preprocessor,
        described,
        architecture,
        license=license,
        notes=notes,
        pretraining=pretraining,
        unknown=unknown,
    )


def _of_these_weights(file: Path, inside: dict) -> tuple[Tensors, tuple[str, ...]]:
    """The tensors of a file beside a model that describes itself so, and a note if the file belongs
    to other weights. Nothing if there is no such file."""
    refuse_special(file)
    if not file.is_file():
        return {}, ()
    try:
        tensors, written_with = read_safetensors(file)
    except (OSError, SafetensorError) as error:
        raise BadWeights(f"{file} cannot be loaded: {error}") from error
    if written_with.get(WRITTEN_WITH) == identity(inside):
        return tensors, ()
    return {}, (f"left out: {file.name}, which was written for other weights than these",)


def _beside(folder: Path, name: str, fields: Fields) -> dict:
    """The object of a JSON file, whose fields have these types; {} if it is not there."""
    file = refuse_special(folder / name)
    if not file.is_file():
        return {}
    values = read_json(file)
    try:
        check_fields(values, fields)
    except VitkitError as error:
        raise BadWeights(f"{file} cannot be read: {error}") from None
    return values


def _image_processor(folder: Path) -> dict:
    """The description of the image processor; {} if there is none.

    Transformers 5 writes that of CLIP and SigLIP into processor_config.json, beside the tokenizer's,
    and reads it there first.
    """
    processor = _beside(folder, PROCESSOR_FILE, {"image_processor": PREPROCESSOR})
    return processor.get("image_processor") or _beside(
        folder, "preprocessor_config.json", PREPROCESSOR
    )


def _read(file: Path) -> tuple[Parts, dict, str]:
    """The state dicts in a file, vitkit's description inside it, and what a checkpoint calls the
    architecture.

    The kind of file is known by its first bytes: an archive (.npz, .pth), a pickle, or the length
    of a safetensors header and the header's brace.
    """
    with file.open("rb") as opened:
        start = opened.read(9)
    is_archive = start[:2] == b"PK"
    # PyTorch before 1.6 wrote pickles, which begin with 0x80. So does one in 32 safetensors files,
    # by its header's length
    has_header = start[8:] == b"{" and int.from_bytes(start[:8], "little") < file.stat().st_size
    is_bare_pickle = start[:1] == b"\x80" and not has_header
    if is_archive and is_npz(file):
        tensors, description = read_npz(file)
        return {(): tensors}, description, ""
    if is_archive or is_bare_pickle:
        parts, architecture = read_pickle(file)
        return parts, read_comment(file), architecture
    tensors, description = read_safetensors(file)
    return {(): tensors}, description, ""


def _shards(index: Path) -> Tensors:
    """The tensors of a model in several files, which lie beside their index and nowhere else."""
    file_of = read_json(index).get("weight_map")
    is_map = isinstance(file_of, dict) and all(isinstance(name, str) for name in file_of.values())
    if not is_map or not file_of:
        raise BadWeights(f"{index} has no weight_map from tensors to files")
    tensors: Tensors = {}
    for name in sorted(set(file_of.values())):
        if Path(name).name != name or name in ("", ".", ".."):  # "../secret.bin"
            raise BadWeights(f"{index} names a file outside of its folder: {name[:100]!r}")
        if not refuse_special(index.parent / name).is_file():
            called = printable_name(name)
            raise BadWeights(f"{index} names {called}, which is not there; download it too")
        shards, _, _ = _read(index.parent / name)
        shard = next(iter(shards.values()))
        tensors |= {key: lazy for key, lazy in shard.items() if file_of.get(key) == name}
    absent = file_of.keys() - tensors.keys()
    if absent:
        raise BadWeights(
            f"{index}: {len(absent)} tensors are not in their files, such as {printable_name(min(absent))}"
        )
    return tensors


def write_tensors(file: Path, tensors: dict[str, Tensor], description: dict) -> None:
    """Write tensors, with vitkit's description of the model inside, to a .npz, .safetensors, .pth
    or .pt file.

    The file is there whole or not at all. Raises OSError, and VitkitError for a description that
    does not fit.
    """
    if file.suffix == ".safetensors":
        with whole(file) as new:
            write_safetensors(new, tensors, {KEY: json.dumps(description)})
        return

    # The others are ZIP archives
    comment = comment_of(description)
    with whole(file) as new:
        if file.suffix == ".npz":
            save_npz(new, {name: tensor.numpy() for name, tensor in tensors.items()})
        else:
            # Clones: torch.save writes the whole storage of a tensor that is a part of another
            torch.save({name: tensor.clone() for name, tensor in tensors.items()}, new)
        write_comment(new, comment)


def load_state_dict(file: Path) -> dict[str, Tensor]:
    """The tensors of a .safetensors, .pth or .pt file of vitkit's, as other libraries read them."""
    if file.suffix == ".safetensors":
        return load_file(file)
    return torch.load(file, weights_only=True)
