"""Saving a model with everything that it needs to be used, and opening it again without trusting the file."""

import json
import shutil
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from vitkit.data import Preprocessing
from vitkit.models import VisionTransformer, ViTConfig

LARGEST_CONFIG = 64 * 2**20  # bytes of a config.json; with 21,843 class names it has about one million


@dataclass(frozen=True)
class Classifier:
    """A model and what it must never travel without: its preprocessing, its classes' names, where it came from."""

    model: VisionTransformer
    preprocessing: Preprocessing
    labels: tuple[str, ...]
    origin: dict = field(default_factory=dict)


def save(classifier: Classifier, path: Path | str) -> Path:
    """Write a model directory: config.json and model.safetensors. An earlier model at `path` is replaced at the end.

    Raises ValueError when `path` holds something else than a model.
    """
    path = Path(path)
    if path.exists() and not (path / "config.json").exists():
        raise ValueError(f"{path} exists and is no model directory; choose another place")
    new = path.with_name(path.name + ".new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    try:
        config = {
            "model_type": "vitkit",
            "vitkit": {
                "model": asdict(classifier.model.config),
                "preprocessing": classifier.preprocessing.to_json(),
                "labels": list(classifier.labels),
                "origin": classifier.origin,
            },
        }
        (new / "config.json").write_text(json.dumps(config, indent=1, ensure_ascii=False), "utf-8")
        tensors = {name: t.detach().cpu().contiguous() for name, t in classifier.model.state_dict().items()}
        try:
            save_file(tensors, new / "model.safetensors", metadata={"format": "pt"})
        except SafetensorError as error:
            raise OSError(f"could not write {new / 'model.safetensors'}: {error}") from error
        old = path.with_name(path.name + ".old")
        shutil.rmtree(old, ignore_errors=True)
        if path.exists():
            path.rename(old)
        new.rename(path)
        shutil.rmtree(old, ignore_errors=True)
    except OSError:
        shutil.rmtree(new, ignore_errors=True)
        raise
    return path


def load(path: Path | str) -> Classifier:
    """Open a model directory, or the finished model of a run directory. The model is in evaluation mode, on the CPU.

    The file is not trusted: nothing is unpickled, and every name and shape is checked before memory is taken. Raises
    ValueError with what does not fit.
    """
    path = Path(path)
    folder = path / "model" if (path / "model" / "config.json").is_file() else path
    if not (folder / "config.json").is_file():
        if (path / "recipe.json").is_file():
            raise ValueError(f"{path} is a run that has not finished; continue it with the command that started it")
        raise ValueError(f"{path} holds no model: no config.json in it")
    if (folder / "config.json").stat().st_size > LARGEST_CONFIG:
        raise ValueError(f"{folder / 'config.json'} is larger than {LARGEST_CONFIG // 2**20} MiB, so it is no model's")
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))["vitkit"]
        known = {f.name for f in fields(ViTConfig)}
        if unknown := config["model"].keys() - known:
            raise ValueError(f"it has settings that this version does not know: {', '.join(sorted(unknown))}")
        architecture = ViTConfig(**config["model"])
        preprocessing = Preprocessing.from_json(config["preprocessing"])
        labels, origin = tuple(map(str, config["labels"])), dict(config["origin"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else error
        raise ValueError(f"{folder / 'config.json'} does not describe a vitkit model: {reason}") from error
    if len(labels) != architecture.classes:
        raise ValueError(f"{folder / 'config.json'} names {len(labels)} classes for a head of {architecture.classes}")
    return Classifier(_weights(folder / "model.safetensors", architecture), preprocessing, labels, origin)


def _weights(file: Path, config: ViTConfig) -> VisionTransformer:
    """The model with the file's tensors as its own: mapped from the disk, no second copy."""
    try:
        with safe_open(file, "pt") as opened:
            slices = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118 no dict
            found = {name: tuple(part.get_shape()) for name, part in slices.items()}
            if other := {part.get_dtype() for part in slices.values()} - {"F32"}:
                raise ValueError(f"its numbers are {', '.join(sorted(other))}; expected F32")
        if config.depth > len(found):
            raise ValueError(f"it has {len(found)} tensors, too few for {config.depth} blocks")
        with torch.device("meta"):
            model = VisionTransformer(config)
        expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
        odd = [
            f"{name} {found.get(name, 'missing')} (expected {expected.get(name, 'nothing')})"
            for name in sorted(found.keys() | expected.keys())
            if found.get(name) != expected.get(name)
        ]
        if odd:
            raise ValueError(f"{len(odd)} tensors do not fit its config.json: {'; '.join(odd[:5])}")
        model.load_state_dict(load_file(file), assign=True)
    except (OSError, SafetensorError, ValueError) as error:
        raise ValueError(f"{file} cannot be loaded: {error}") from error
    return model.eval()
