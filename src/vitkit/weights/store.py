"""Loading models of every format, recognised by content and not trusted, and saving them for everybody."""

import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from vitkit.data import Preprocessing
from vitkit.models import LeNetConfig, Model, ModelConfig, ResNetConfig, build, called, cost, plain
from vitkit.weights.card import model_card
from vitkit.weights.classifier import Classifier
from vitkit.weights.description import Description, Hints, from_json, numbered
from vitkit.weights.fetch import fetch
from vitkit.weights.files import DAMAGE, KEY, Opened, Tensors, open_weights
from vitkit.weights.formats import FORMATS, TABLES, cannot, huggingface, native
from vitkit.weights.rules import read, write


def load(
    source: Path | str,
    *,
    image: tuple[int, int] | None = None,
    heads: int | None = None,
    labels: Sequence[str] | None = None,
    preprocessing: Preprocessing | None = None,
    quiet: bool = False,
) -> Classifier:
    """Open any published model of the family: a run, a model directory, a file of weights, or the name of one to download.

    The format (vitkit's, Hugging Face's, Google's .npz, timm's or torchvision's) is recognised by the tensors' names and
    shapes; what it implies (eps, form of the GELU, position rows, preprocessing) is set, and a short account of that is
    printed to the standard error unless `quiet`. The model is in evaluation mode, on the CPU.

    `image` (height, width) and `heads` are for files that do not say them; `labels` and `preprocessing` replace what the
    file has. Nothing is unpickled or run, and every name and shape is checked before memory is taken: ValueError names
    all that does not fit.
    """
    opened = open_weights(fetch(source))
    with _blamed(opened.path):
        classifier, account = _build(opened, Hints(image, heads))
    if labels is not None:
        if len(labels) != classifier.model.config.classes:
            raise ValueError(
                f"{len(labels)} labels for a head of {classifier.model.config.classes}"
            )
        classifier = replace(classifier, labels=tuple(labels))
    if preprocessing is not None:
        classifier = replace(classifier, preprocessing=preprocessing)
    if not quiet:
        print(
            "\n".join([f"{source}: {account[0]}", *(f"  {line}" for line in account[1:])]),
            file=sys.stderr,
        )
    return classifier


def _build(opened: Opened, hints: Hints) -> tuple[Classifier, list[str]]:
    """The model of a file, and what to say about it."""
    form = next((table for table in TABLES if table.recognises(opened.tensors)), None)
    if form is None:
        raise ValueError(
            f"its {len(opened.tensors)} tensors ({', '.join(list(opened.tensors)[:3])}, ...) have the names of no Vision "
            f"Transformer, hybrid or BiT that vitkit knows; it knows {', '.join(FORMATS)}"
        )
    if opened.described:
        config, preprocessing, labels, activation, origin = from_json(opened.described)
        if config.kind not in form.HOLDS:
            raise ValueError(
                f"it is described as {called(config)}, but its tensors have other names"
            )
        tensors, _, _ = form.tidy(opened.tensors)
        said: list[str] = []
    else:
        found: Description = form.describe(opened, hints)
        config, preprocessing, tensors = found.config, found.preprocessing, found.tensors
        labels, said = found.labels or numbered(config.classes), list(found.notes)
        activation = found.activation
        origin = {"format": form.NAME, "file": opened.path.name} | (
            {"layout": found.layout} if found.layout else {}
        )
    model = assemble(config, form, tensors)
    classifier = Classifier(model, preprocessing, labels, activation, origin)
    kinds = {lazy.dtype for lazy in tensors.values()} - {"float32"}
    said += [f"widened from {', '.join(sorted(kinds))} to float32"] if kinds else []
    return classifier, [summary(classifier, form.NAME), *said]


def assemble(config: ModelConfig, form: ModuleType, tensors: Tensors) -> Model:
    """A model with a format's tensors as its own, mapped from the disk where the numbers are the same."""
    if (blocks := _blocks(config)) > len(tensors):
        raise ValueError(f"it has {len(tensors)} tensors, too few for {blocks} blocks")
    with torch.device("meta"):
        model = build(config)
    model.load_state_dict(read(tensors, form.rules(config), model.state_dict()), assign=True)
    return model.eval()


def _blocks(config: ModelConfig) -> int:
    """Blocks and residual units: none is built before there are as many tensors."""
    if isinstance(config, LeNetConfig):
        return 0
    if isinstance(config, ResNetConfig):
        return sum(config.backbone.units)
    return config.depth + (sum(config.stem.units) if config.stem else 0)


@contextmanager
def _blamed(file: Path) -> Iterator[None]:
    """Errors of a file's content name the file."""
    try:
        yield
    except (SafetensorError, *DAMAGE) as error:
        where = "" if str(error).startswith(str(file)) else f"{file} cannot be loaded: "
        raise ValueError(f"{where}{error}") from error


def summary(classifier: Classifier, form: str) -> str:
    """A model in one sentence."""
    config = classifier.model.config
    return (
        f"{called(config)} for {config.image[0]} x {config.image[1]} pixels, {cost(config).parameters:,} parameters, "
        f"{f'{config.classes:,} classes' if config.classes else 'no head'}, in {form} format\n"
        f"  preprocessing: {classifier.preprocessing}"
    )


def described(classifier: Classifier) -> dict:
    """vitkit's own description of a model, which from_json reads."""
    return {
        "model": plain(classifier.model.config),
        "preprocessing": classifier.preprocessing.to_json(),
        "labels": list(classifier.labels),
        "activation": classifier.activation,
        "origin": classifier.origin,
    }


def tensors_in(form: ModuleType, classifier: Classifier) -> dict[str, torch.Tensor]:
    """The model's tensors in a format, spelled as it spells them."""
    config = classifier.model.config
    state = {name: tensor.detach().cpu() for name, tensor in classifier.model.state_dict().items()}
    same = classifier.origin.get("format") == form.NAME
    return form.spell(
        write(state, form.rules(config)),
        config,
        classifier.origin.get("layout", "") if same else "",
    )


def save(classifier: Classifier, path: Path | str) -> Path:
    """Write a model directory, which `vitkit.load` opens to the bit. An earlier model at `path` is replaced at the end.

    config.json, model.safetensors, preprocessor_config.json and a model card. Wherever Transformers can express the
    architecture, `AutoModelForImageClassification.from_pretrained` opens it too; else the names are vitkit's.

    Raises ValueError when `path` holds something else than a model.
    """
    form = native if cannot("huggingface", classifier.model.config) else huggingface
    return save_as(form, classifier, path)


def save_as(form: ModuleType, classifier: Classifier, path: Path | str) -> Path:
    """`save` in the names of native or huggingface."""
    path, config = Path(path), classifier.model.config
    if path.exists() and not (path / "config.json").exists():
        raise ValueError(f"{path} exists and is no model directory; choose another place")
    beside = (
        huggingface.config_json(config, classifier.labels, classifier.activation)
        if form is huggingface
        else {"model_type": "vitkit"}
    )
    with _replacing(path) as new:
        write_json(new / "config.json", {**beside, KEY: described(classifier)})
        write_json(
            new / "preprocessor_config.json", huggingface.processor_json(classifier.preprocessing)
        )
        write_safetensors(new / "model.safetensors", tensors_in(form, classifier))
        (new / "README.md").write_text(model_card(classifier, form.NAME), "utf-8")
    return path


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A new directory that takes the place of `path` when it is complete."""
    new, old = path.with_name(path.name + ".new"), path.with_name(path.name + ".old")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    try:
        yield new
        shutil.rmtree(old, ignore_errors=True)
        if path.exists():
            path.rename(old)
        new.rename(path)
        shutil.rmtree(old, ignore_errors=True)
    except OSError:
        shutil.rmtree(new, ignore_errors=True)
        raise


def write_json(file: Path, values: dict) -> None:
    """A JSON file, for people too."""
    file.write_text(json.dumps(values, indent=1, ensure_ascii=False), "utf-8")


def write_safetensors(
    file: Path, tensors: dict[str, torch.Tensor], metadata: dict[str, str] | None = None
) -> None:
    """A safetensors file. Raises OSError, also where the library calls a full disk something else."""
    try:
        save_file(tensors, file, metadata={"format": "pt", **(metadata or {})})
    except SafetensorError as error:
        raise OSError(f"could not write {file}: {error}") from error
