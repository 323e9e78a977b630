"""Open a model directory or a file of weights: its tensors by name and shape, and the files beside it."""

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
"""The file of a directory with modules that pre-training added (weights/pretraining.py)."""
UNKNOWN = "unknown.safetensors"
"""The file of a directory with limits beyond which images are unknown (weights/unknown.py)."""
PROCESSOR_FILE = "processor_config.json"
FOLDER_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
ENDINGS = (".safetensors", ".npz", ".pth", ".pt", ".bin", ".ckpt", ".pth.tar")
# Suffixes of files that are given instead of a model -> what to do
EXPORTED = (
    "it was exported, and can only predict and be evaluated; this needs the model that it "
    "was exported from"
)
NO_WEIGHTS = {
    ".json": "give the directory that it is in",
    ".py": "vitkit runs no code; give a model directory or a file of weights",
    ".html": "a page that vitkit export wrote is for a browser: open it there, and drop photographs on it",
    **dict.fromkeys((".onnx", ".xml", ".pt2"), EXPORTED),
}
INTERRUPTED = (
    "config.json was written for other weights, so the save that replaced them was "
    "interrupted; the weights' own description is used. Save the model again for other libraries"
)


@dataclass(frozen=True)
class Opened:
    """A file of weights, and further information on the model inside or beside it."""

    path: Path
    parts: Parts
    """The state dicts of the file: one, or those of a training checkpoint."""
    config: dict = field(default_factory=dict)
    """config.json beside it."""
    preprocessor: dict = field(default_factory=dict)
    """preprocessor_config.json beside it, or the same object in processor_config.json."""
    described: dict = field(default_factory=dict)
    """vitkit's own description of the model."""
    architecture: str = ""
    """The name of the architecture in a training checkpoint, such as "vit_tiny_patch16_224"."""
    wrapper: str = ""
    """The key of the model in a training checkpoint, such as "model" or "teacher"; set by
    `weights/parts.py`."""
    license: License | None = None
    """The licence of the weights, if the files state it."""
    notes: tuple[str, ...] = ()
    """Unusual properties of the files, one sentence each."""
    pretraining: Tensors = field(default_factory=dict)
    """Tensors that pre-training added to the model, from the file beside the weights."""
    unknown: Tensors = field(default_factory=dict)
    """Limits beyond which an image is unknown, from the file beside the weights."""

    @property
    def tensors(self) -> Tensors:
        """The tensors of the outermost state dict, which is the only one in most files."""
        return next(iter(self.parts.values()))


def open_weights(path: Path) -> Opened:
    """Open a model directory, a run or a file of weights. Raises VitkitError for anything else."""
    # FOLDER_FILES are weights whatever their suffix: that of model.safetensors.index.json is .json
    ending = refuse_special(path).suffix.lower()
    if ending in NO_WEIGHTS and path.is_file() and path.name not in FOLDER_FILES:
        raise BadWeights(f"{path} is not a file of weights; {NO_WEIGHTS[ending]}")

    # A file. Files beside it belong to it if it has a usual name of weights in a model directory
    if path.is_file():
        folder = None
        if path.name in FOLDER_FILES:
            folder = path.parent
        return _open(path, folder)

    # A directory
    folder = model_directory(path)
    return _open(_file_of(path, folder), folder)


def model_directory(path: Path) -> Path:
    """The model directory that a path names: that of a run, or the path itself."""
    if (path / "model" / "config.json").is_file():  # a run
        return path / "model"
    return path


def is_written_by_vitkit(path: Path) -> bool:
    """Whether the weights in a file or a directory contain vitkit's description, so that they may be
    replaced. False if they cannot be read."""
    try:
        file = refuse_special(path)
        if path.is_dir():
            file = _file_of(path, path)
        _, description, _ = _read(file)
    except (SafetensorError, *DAMAGE):
        return False
    return "model" in description


def _file_of(path: Path, folder: Path) -> Path:
    """The file of weights in a folder: one with a usual name, or the only one."""
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
    """Open a file, and read the files beside it in its folder."""
    # The file itself
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

    # Files beside it, unless they were written with other weights
    config = _read_json_beside(folder, "config.json", CONFIG)
    described = config.get(KEY)
    # A config.json of Transformers or timm describes the model by itself, as vitkit did not write it
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
    pretraining, notes = _read_tensors_beside(folder / PRETRAINING, inside)
    unknown, more_notes = _read_tensors_beside(folder / UNKNOWN, inside)
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


def _read_tensors_beside(file: Path, inside: dict) -> tuple[Tensors, tuple[str, ...]]:
    """The tensors of a file beside a model with this description, and a note if the file belongs to other
    weights. Empty if there is no such file."""
    refuse_special(file)
    if not file.is_file():
        return {}, ()
    try:
        tensors, written_with = read_safetensors(file)
    except (OSError, SafetensorError) as error:
        raise BadWeights(f"{file} cannot be loaded: {error}") from error
    if written_with.get(WRITTEN_WITH) == identity(inside):
        return tensors, ()
    return {}, (f"left out: {file.name}, which was written for other weights",)


def _read_json_beside(folder: Path, name: str, fields: Fields) -> dict:
    """Read a JSON file beside the weights and check the types of its fields; {} if it does not exist."""
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

    Transformers 5 writes the description for CLIP and SigLIP into processor_config.json, together with
    that of the tokenizer, and reads that file first.
    """
    processor = _read_json_beside(folder, PROCESSOR_FILE, {"image_processor": PREPROCESSOR})
    return processor.get("image_processor") or _read_json_beside(
        folder, "preprocessor_config.json", PREPROCESSOR
    )


def _read(file: Path) -> tuple[Parts, dict, str]:
    """The state dicts in a file, vitkit's description in it, and the checkpoint's name of the architecture.

    The kind of file is detected by its first bytes: an archive (.npz, .pth), a pickle, or the length of a
    safetensors header and the header's brace.
    """
    with file.open("rb") as opened:
        start = opened.read(9)
    is_archive = start[:2] == b"PK"
    # PyTorch before 1.6 wrote bare pickles, which begin with 0x80. So do one in 32 safetensors files,
    # because of the length of the header
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
    """The tensors of a model in several files, which must lie beside their index."""
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
            raise BadWeights(f"{index} names {called}, which does not exist; download it too")
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
    """Write tensors, with vitkit's description of the model, to a .npz, .safetensors, .pth or .pt file.

    The file is written completely or not at all. Raises OSError, and VitkitError for a description that
    does not fit.
    """
    if file.suffix == ".safetensors":
        with whole(file) as new:
            write_safetensors(new, tensors, {KEY: json.dumps(description)})
        return

    # The other formats are ZIP archives
    comment = comment_of(description)
    with whole(file) as new:
        if file.suffix == ".npz":
            save_npz(new, {name: tensor.numpy() for name, tensor in tensors.items()})
        else:
            # Clone, because torch.save writes the whole storage of a tensor that is a view
            torch.save({name: tensor.clone() for name, tensor in tensors.items()}, new)
        write_comment(new, comment)


def load_state_dict(file: Path) -> dict[str, Tensor]:
    """Read the tensors of a .safetensors, .pth or .pt file of vitkit, as other libraries do."""
    if file.suffix == ".safetensors":
        return load_file(file)
    return torch.load(file, weights_only=True)
