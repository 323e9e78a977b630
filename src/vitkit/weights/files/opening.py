"""A model directory or a file of weights, opened: its tensors by name and shape, and what lies
beside them."""

from dataclasses import dataclass, field
from pathlib import Path

from safetensors import SafetensorError

from vitkit.weights.files.comment import read_comment
from vitkit.weights.files.lazy import KEY, Tensors, read_json
from vitkit.weights.files.npz import is_npz, read_npz
from vitkit.weights.files.pytorch import read_pickle
from vitkit.weights.files.safetensors import read_safetensors

FOLDER_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
# Endings of other files that people give as a model -> what to do instead.
NO_WEIGHTS = {
    ".json": "give the directory that it is in",
    ".py": "vitkit runs no code; give a model directory or a file of weights",
}
ENDINGS = (".safetensors", ".npz", ".pth", ".pt", ".bin")


@dataclass(frozen=True)
class Opened:
    """A file of weights, with what lies beside it or inside it and says more about the model."""

    path: Path
    tensors: Tensors
    config: dict = field(default_factory=dict)
    """config.json beside it."""
    preprocessor: dict = field(default_factory=dict)
    """preprocessor_config.json beside it."""
    described: dict = field(default_factory=dict)
    """vitkit's own description of the model."""
    wrapper: str = ""
    """The key of a training checkpoint under which the model was, such as "model" or "teacher"."""


def open_weights(path: Path) -> Opened:
    """Open a model directory, a run or a file of weights. Raises ValueError for what is none, in
    one sentence."""
    # FOLDER_FILES are weights whatever their ending: that of model.safetensors.index.json is .json
    ending = path.suffix.lower()
    if ending in NO_WEIGHTS and path.is_file() and path.name not in FOLDER_FILES:
        raise ValueError(f"{path} is not a file of weights; {NO_WEIGHTS[ending]}")

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


def _file_of(path: Path, folder: Path) -> Path:
    """The file of weights in a folder: of a name that others know, or the only one."""
    for name in FOLDER_FILES:
        if (folder / name).is_file():
            return folder / name
    files = sorted(file for file in folder.iterdir() if file.suffix in ENDINGS)
    if len(files) == 1:
        return files[0]
    if (path / "recipe.json").is_file():
        raise ValueError(
            f"{path} is a run that has not finished; continue it with the command that started it"
        )
    content = "no model"
    if files:
        names = ", ".join(file.name for file in files)
        content = f"several files of weights ({names}): name one"
    raise ValueError(
        f"{path} holds {content}; a model directory has config.json and model.safetensors in it"
    )


def _open(file: Path, folder: Path | None) -> Opened:
    """A file, and what is beside it in its folder."""
    config = {}
    preprocessor = {}
    if folder is not None:
        config = _beside(folder, "config.json")
        preprocessor = _beside(folder, "preprocessor_config.json")
    inside = {}
    wrapper = ""
    try:
        if file.name.endswith(".index.json"):
            tensors = _shards(file)
        else:
            tensors, inside, wrapper = _read(file)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{file} cannot be loaded: {error}") from error
    described = config.get(KEY) or inside
    if not isinstance(described, dict):
        raise ValueError(
            f"{file} cannot be loaded: its description of the model is {type(described).__name__}"
        )
    return Opened(file, tensors, config, preprocessor, described, wrapper)


def _beside(folder: Path, name: str) -> dict:
    """The object of a JSON file; {} if it is not there."""
    file = folder / name
    if not file.is_file():
        return {}
    return read_json(file)


def _read(file: Path) -> tuple[Tensors, dict, str]:
    """The tensors, vitkit's description inside the file, and which part of a checkpoint they are.

    The kind of file is known by its first bytes: an archive (.npz, .pth), a pickle, or the length
    of a safetensors header.
    """
    with file.open("rb") as opened:
        start = opened.read(2)
    is_archive = start == b"PK"
    is_bare_pickle = start[:1] == b"\x80"  # as PyTorch before 1.6 wrote
    if is_archive and is_npz(file):
        tensors, description = read_npz(file)
        return tensors, description, ""
    if is_archive or is_bare_pickle:
        tensors, wrapper = read_pickle(file)
        return tensors, read_comment(file), wrapper
    tensors, description = read_safetensors(file)
    return tensors, description, ""


def _shards(index: Path) -> Tensors:
    """The tensors of a model in several files, which lie beside their index and nowhere else."""
    file_of = read_json(index).get("weight_map")
    if not isinstance(file_of, dict) or not file_of:
        raise ValueError(f"{index} has no weight_map from tensors to files")
    if not all(isinstance(name, str) for name in file_of.values()):
        raise ValueError(f"{index} has no weight_map from tensors to files")
    tensors: Tensors = {}
    for name in sorted(set(file_of.values())):
        if Path(name).name != name or name in ("", ".", ".."):  # "../secret.bin"
            raise ValueError(f"{index} names a file outside of its folder: {name!r}")
        if not (index.parent / name).is_file():
            raise ValueError(f"{index} names {name}, which is not there; download it too")
        shard, _, _ = _read(index.parent / name)
        tensors |= {key: lazy for key, lazy in shard.items() if file_of.get(key) == name}
    absent = file_of.keys() - tensors.keys()
    if absent:
        raise ValueError(
            f"{index}: {len(absent)} tensors are not in their files, such as {min(absent)}"
        )
    return tensors
