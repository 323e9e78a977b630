"""Writing a model in another format, with the proof that it is the same model there."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from vitkit.data import open_image
from vitkit.models import ModelConfig, build
from vitkit.weights.card import model_card
from vitkit.weights.classifier import Classifier
from vitkit.weights.files import KEY, write_comment
from vitkit.weights.formats import FORMATS, cannot, huggingface, table_of
from vitkit.weights.store import (
    _replacing,
    described,
    load,
    save_as,
    tensors_in,
    write_json,
    write_safetensors,
)

PROBES = 4  # images


class Proof(NamedTuple):
    """What was seen after writing."""

    path: Path
    differences: tuple[str, ...]
    """What the other library computes a little differently."""
    library: str
    """Its name and version, or empty where it is not installed."""
    largest: float | None
    """Largest difference between its logits and vitkit's, on random images."""
    scale: float
    """Largest logit, for comparison."""
    pixels: float | None = None
    """Largest difference between the pixels that its own preprocessing and vitkit's make of an image, in levels of 255."""


def convert(classifier: Classifier, path: Path | str, to: str, approximate: bool = False) -> Proof:
    """Write `classifier` to `path` in a format: huggingface and native (a directory), google (.npz), timm (a directory for
    its hub, or a file), torchvision (a file: .safetensors, or .pth).

    What is written is opened again: every tensor must come back to the bit, and where the other library is installed its
    logits are compared with vitkit's. Raises ValueError for what the format cannot express, and, unless `approximate`, for
    what the other library would compute a little differently.
    """
    if to not in FORMATS:
        raise ValueError(f"no format {to!r}; there are {', '.join(FORMATS)}")
    path, config = Path(path), classifier.model.config
    if problems := cannot(to, config):
        others = ", ".join(name for name in FORMATS if not cannot(name, config))
        raise ValueError(f"{to} has no place for {', '.join(problems)}; there is one in {others}")
    form = table_of(to, config)
    if (differences := form.differs(config)) and not approximate:
        raise ValueError(
            f"{to} would compute another function ({'; '.join(differences)}); write it all the same with --approximate"
        )
    if to in ("native", "huggingface"):
        save_as(form, classifier, path)
    elif to == "timm" and path.suffix == "":
        _timm_directory(classifier, path)
    else:
        _file(classifier, path, to)
    again = load(path, quiet=True)
    for name, tensor in classifier.model.state_dict().items():
        if not torch.equal(tensor.cpu(), again.model.state_dict()[name]):
            raise RuntimeError(
                f"{name} did not come back to the bit from {path}; this is a defect of vitkit, please report it"
            )
    images = torch.randn(
        PROBES, config.channels, *config.image, generator=torch.Generator().manual_seed(0)
    )
    library, theirs = LIBRARIES.get(to, lambda *_: ("", None))(classifier, path)
    with torch.inference_mode():
        ours = again.model(images)
        largest = None if theirs is None else float((theirs.eval()(images) - ours).abs().max())
    return Proof(
        path,
        tuple(differences),
        library,
        largest,
        float(ours.abs().max()),
        _pixels(classifier, path, to),
    )


def _file(classifier: Classifier, path: Path, to: str) -> None:
    """One file of tensors, vitkit's description inside it where others do not look."""
    endings = (".npz",) if to == "google" else (".safetensors", ".pth", ".pt")
    if path.suffix not in endings:
        raise ValueError(f"{path} should end in {' or '.join(endings)} for {to}")
    form = table_of(to, classifier.model.config)
    tensors, new = tensors_in(form, classifier), path.with_name(path.name + ".new" + path.suffix)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        if to == "google":
            np.savez(new, **{name: tensor.numpy() for name, tensor in tensors.items()})
            write_comment(new, described(classifier))
        elif path.suffix == ".safetensors":
            write_safetensors(new, tensors, {KEY: json.dumps(described(classifier))})
        else:
            torch.save({name: tensor.clone() for name, tensor in tensors.items()}, new)
            write_comment(new, described(classifier))
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


def _timm_directory(classifier: Classifier, path: Path) -> None:
    """What timm's own hub repositories hold."""
    if path.exists() and not (path / "config.json").exists():
        raise ValueError(f"{path} exists and is no model directory; choose another place")
    form = table_of("timm", classifier.model.config)
    config = form.config_json(classifier.model.config, classifier.preprocessing, classifier.labels)
    with _replacing(path) as new:
        write_json(new / "config.json", {**config, KEY: described(classifier)})
        write_safetensors(new / "model.safetensors", tensors_in(form, classifier))
        (new / "README.md").write_text(model_card(classifier, "timm"), "utf-8")


def _pixels(classifier: Classifier, path: Path, to: str) -> float | None:
    """A photograph-like image through the other library's preprocessing, as the files that were written describe it."""
    if to not in PREPARED or not path.is_dir() or classifier.model.config.channels != 3:
        return None
    coarse = np.random.default_rng(0).integers(0, 256, (9, 12, 3), dtype=np.uint8)
    image = Image.fromarray(coarse).resize((400, 300), Image.Resampling.BICUBIC)
    prepare = classifier.preprocessing
    ours = prepare.normalise(classifier.batch([open_image(np.asarray(image), "probe")]).cpu())
    try:
        theirs = PREPARED[to](path, image)
    except ImportError:
        return None
    if theirs.shape != ours.shape:
        return 255.0
    return float((theirs - ours).abs().amax((0, 2, 3)).mul(torch.tensor(prepare.std) * 255).max())


# the other libraries, where they are installed


class _Answer(nn.Module):
    """Transformers' models answer with a record; others with a tensor."""

    def __init__(self, model: nn.Module, config: ModelConfig):
        super().__init__()
        self.model, self.config = model, config

    def forward(self, images: Tensor) -> Tensor:
        found = self.model(images)
        if self.config.classes:
            return found.logits
        return found.pooler_output if self.config.representation else found.last_hidden_state[:, 0]


def in_transformers(classifier: Classifier, path: Path) -> tuple[str, nn.Module | None]:
    """The class that the directory's config.json names, opened by Transformers itself."""
    try:
        import transformers
    except ImportError:
        return "", None
    config = classifier.model.config
    written = huggingface.config_json(config, classifier.labels, classifier.activation)
    kind = written["architectures"][0]
    more = {} if config.classes else {"add_pooling_layer": bool(config.representation)}
    model = getattr(transformers, kind).from_pretrained(path, local_files_only=True, **more)
    return f"Transformers {transformers.__version__}", _Answer(model, config)


def in_timm(classifier: Classifier, path: Path) -> tuple[str, nn.Module | None]:
    """timm's model with the file's tensors, every one of them and no other."""
    try:
        import timm as library
        from safetensors.torch import load_file
    except ImportError:
        return "", None
    name, arguments = table_of("timm", classifier.model.config).architecture(
        classifier.model.config
    )
    model = library.create_model(name, num_classes=classifier.model.config.classes, **arguments)
    file = path / "model.safetensors" if path.is_dir() else path
    model.load_state_dict(
        load_file(file) if file.suffix == ".safetensors" else torch.load(file, weights_only=True),
        strict=True,
    )
    return f"timm {library.__version__}", model


def transformers_pixels(path: Path, image: Image.Image) -> Tensor:
    """What the image processor of a written directory makes of an image."""
    from transformers import AutoImageProcessor

    return AutoImageProcessor.from_pretrained(path, local_files_only=True)(
        image, return_tensors="pt"
    )["pixel_values"]


def timm_pixels(path: Path, image: Image.Image) -> Tensor:
    """What timm makes of an image for a written directory."""
    from timm.data import create_transform, resolve_data_config

    said = json.loads((path / "config.json").read_text("utf-8"))["pretrained_cfg"]
    return create_transform(**resolve_data_config(pretrained_cfg=said), is_training=False)(image)[
        None
    ]


def in_torchvision(classifier: Classifier, path: Path) -> tuple[str, nn.Module | None]:
    """torchvision's model with the file's tensors, every one of them and no other."""
    from safetensors.torch import load_file
    from torchvision import __version__
    from torchvision.models import VisionTransformer

    c = classifier.model.config
    model = VisionTransformer(
        c.image[0], c.patch, c.depth, c.heads, c.width, c.mlp, num_classes=c.classes or 1,
        representation_size=c.representation or None,
    )  # fmt: skip
    if not c.classes:
        model.heads = nn.Identity()
    model.load_state_dict(
        load_file(path) if path.suffix == ".safetensors" else torch.load(path, weights_only=True),
        strict=True,
    )
    return f"torchvision {__version__}", model


def as_google_computes(classifier: Classifier, path: Path) -> tuple[str, nn.Module | None]:
    """The same weights with the arithmetic of Google's code, which is written in JAX."""
    config = classifier.model.config
    form = table_of("google", config)
    if not form.differs(config):
        return "", None
    with torch.device("meta"):
        model = build(form.computed(config))
    model.load_state_dict(classifier.model.state_dict(), assign=True)
    return "the same weights with the arithmetic of Google's code", model


LIBRARIES: dict[str, Callable[[Classifier, Path], tuple[str, nn.Module | None]]] = {
    "huggingface": in_transformers,
    "timm": in_timm,
    "torchvision": in_torchvision,
    "google": as_google_computes,
}
PREPARED = {"huggingface": transformers_pixels, "timm": timm_pixels}
