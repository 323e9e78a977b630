"""Models as files: `vitkit show`, `vitkit compare`, `vitkit convert`, `vitkit push`."""

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from tyro.conf import Positional, arg

from vitkit.commands import MODEL
from vitkit.commands.arguments import Images, Model, ModelHints
from vitkit.commands.use import spread
from vitkit.system.text import as_word, printable
from vitkit.weights.description import Hints

if TYPE_CHECKING:  # --help imports no model
    from vitkit.data.images import Picture
    from vitkit.deploy.predict import Item
    from vitkit.inspection import Comparison
    from vitkit.models import ModelConfig
    from vitkit.weights import Classifier, License


NOT_COMPARED = {
    "native": "only vitkit reads this format",
    "google": "Google's code computes what vitkit computes",
    "huggingface": "Transformers is not installed; pip install transformers",
    "timm": "timm is not installed; pip install timm",
    "torchvision": "torchvision is not installed; pip install torchvision",
}
"""Why there may be no other library's logits to compare a converted model with, by format."""


@dataclass
class Show:
    """Print what a model is: architecture, cost, preprocessing, classes, where it came from."""

    model: Model
    json: bool = False
    """Print one JSON object."""
    hints: ModelHints = field(default_factory=Hints)


@dataclass
class Compare:
    """Check whether two models compute the same. Prints the largest difference in every layer, and
    how often the models agree. The exit status is 1 if their logits differ."""

    one: Annotated[Positional[str], arg(metavar="ONE", help=MODEL)]
    two: Annotated[Positional[str], arg(metavar="TWO")]
    """The model to compare it with, given in the same ways."""
    images: Images
    limit: int = 64
    """Largest number of images, chosen evenly from all; 0 is all."""
    tolerance: float = 1e-4
    """Largest difference of the logits that counts as the same."""
    json: bool = False
    """Print one JSON object."""
    hints: ModelHints = field(default_factory=Hints)


@dataclass
class Convert:
    """Write a model in another library's format, and check that it is the same model there."""

    source: Model
    dest: Annotated[Positional[Path], arg(metavar="DEST")]
    """What to write: a directory (huggingface, native, timm) or a file (.npz, .safetensors,
    .pth)."""
    to: Annotated[str, arg(metavar="FORMAT")]
    """The format: huggingface, timm, google, torchvision or native."""
    approximate: bool = False
    """Write the model even if the other library computes a little differently, such as with another
    form of the GELU, or its logits differ by more than the tolerance."""
    tolerance: float = 1e-4
    """Largest difference of the logits there that counts as the same. Beyond it the status is 1,
    and nothing is written."""
    hints: ModelHints = field(default_factory=Hints)


@dataclass
class Push:
    """Upload a model directory to the Hugging Face hub, model card and all."""

    folder: Annotated[Positional[Path], arg(metavar="DIRECTORY")]
    """A run, or a model directory."""
    name: Annotated[Positional[str], arg(metavar="NAME")]
    """The repository, such as you/your-model; it is created if it does not exist."""
    private: bool = False
    """Create a private repository."""
    license: str = ""
    """The licence, as the hub calls it, such as apache-2.0, mit or cc-by-nc-4.0; it is written into
    the card. Default: that of the weights that the model began with. other is what the file LICENSE
    in the directory says."""


def show(command: Show) -> int:
    """Print a model's description, as a table or as JSON."""
    from vitkit.models import config_to_dict, cost, parameters
    from vitkit.weights import load_as
    from vitkit.weights.licenses import to_json as license_json

    classifier = load_as(command.model, command.hints, quiet=command.json)
    config = classifier.model.config
    costs = cost(config)
    if command.json:
        description = {
            "model": config_to_dict(config),
            "parameters": parameters(config),
            "tokens": costs.tokens,
            "macs": costs.macs,
            "preprocessing": classifier.preprocessing.to_json(),
            "labels": classifier.labels,
            "activation": classifier.activation,
            "origin": classifier.origin,
            "license": license_json(classifier.license),
        }
        print(json.dumps(description))
        return 0
    Console().print(_description(classifier))
    if classifier.labels:
        print(f"next: vitkit predict {as_word(command.model)} IMAGE...")
    else:
        print(f"next: vitkit finetune {as_word(command.model)} DATA")
    return 0


def _description(classifier: "Classifier") -> Table:
    """A model as a table, with a row for every setting and for everything known of its origin."""
    from vitkit.models import called, config_to_dict, cost, parameters

    config = classifier.model.config
    costs = cost(config)
    table = Table(show_header=False)
    table.add_column()
    table.add_column(overflow="fold")

    # The architecture
    table.add_row("model", called(config))
    table.add_row("parameters", f"{parameters(config):,}")
    table.add_row("tokens", f"{costs.tokens:,}")
    table.add_row("GMACs", f"{costs.macs / 1e9:.2f}")
    for name, value in _settings(config_to_dict(_resolved(config))):
        table.add_row(f"  {name}", escape(value))

    # What belongs to it
    table.add_row("preprocessing", str(classifier.preprocessing))
    table.add_row("labels", escape(printable(_classes(classifier.labels)).replace("\n", " ")))
    if classifier.labels:
        table.add_row("activation", classifier.activation)
    license = "not known"
    if classifier.license:
        license = f"{classifier.license.called} ({classifier.license.allows()})"
    table.add_row("licence", escape(printable(license)))
    for name, value in classifier.origin.items():
        if isinstance(value, dict):
            value = ", ".join(f"{key} {_number(number)}" for key, number in value.items())
        table.add_row(escape(printable(f"origin: {name}")), escape(printable(str(value))))
    return table


def _resolved(config: "ModelConfig") -> "ModelConfig":
    """The same configuration with the values that settings of None stand for, as far as a Vision
    Transformer has such settings."""
    from vitkit.models import ViTConfig

    if not isinstance(config, ViTConfig):
        return config
    return replace(
        config,
        class_token=config.has_class_token,
        inject=config.resolved_inject,
        prefix_positions=config.prefix_rows,
    )


def _settings(config: dict) -> Iterator[tuple[str, str]]:
    """Every setting of a configuration by name; that of a part is "part.setting"."""
    for name, value in config.items():
        if isinstance(value, dict):
            for part, setting in value.items():
                yield f"{name}.{part}", str(setting)
        elif name == "image":
            yield name, " x ".join(map(str, value))
        else:
            yield name, str(value)


def _classes(labels: Sequence[str]) -> str:
    """The number of classes and the first five names: "10 (cat, dog, bird, fish, cow, ...)"."""
    if not labels:
        return "0"
    names = ", ".join(labels[:5])
    if len(labels) > 5:
        names += ", ..."
    return f"{len(labels):,} ({names})"


def _number(value: object) -> str:
    """A number with four digits; anything else as it is."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


def compare(command: Compare) -> int:
    """`vitkit compare`. Returns 1 if the logits differ by more than the tolerance."""
    from rich.progress import track

    from vitkit import deploy, inspection
    from vitkit.weights import load_as

    _check_tolerance(command.tolerance)

    # Compute with both
    if not command.images:
        raise ValueError(
            "there is no image to compare the models on; vitkit compare ONE TWO IMAGE... takes "
            "files, folders and data sets"
        )
    items = spread(list(deploy.pictures(command.images)), command.limit)
    first = load_as(command.one, command.hints)
    second = load_as(command.two, command.hints)
    items = track(items, "comparing", console=Console(stderr=True), transient=True)
    comparison = inspection.compare(first, second, _decoded(items))

    # The logits decide; there are none to compare if the numbers of classes differ
    logits = [layer for layer in comparison.layers if layer.name == "logits"]
    same = bool(logits) and logits[0].largest <= command.tolerance
    status = 0 if same else 1
    if command.json:
        print(_comparison_as_json(comparison, same))
        return status

    # Layer by layer
    table = Table("layer", "largest difference", "largest number")
    for layer in comparison.layers:
        table.add_row(layer.name, f"{layer.largest:.2e}", f"{layer.scale:.3g}")
    Console().print(table)

    # In sentences
    if first.preprocessing != second.preprocessing:
        print(f"their preprocessing differs: {first.preprocessing}; {second.preprocessing}")
    if first.activation != second.activation:
        print(f"their activation differs: {first.activation}; {second.activation}")
    with_heads = first.labels and second.labels
    if with_heads:
        print(f"the same likeliest class for {comparison.same_top} of {comparison.images} images")
    outputs = "logits" if with_heads else "features"  # what a model without a head returns
    if not logits:
        print("the models return a different number of values, so these cannot be compared")
    elif same:
        print(f"the {outputs} are the same to {command.tolerance:g}")
    else:
        print(f"the {outputs} are not the same to {command.tolerance:g}")
    return status


def _check_tolerance(tolerance: float) -> None:
    """Raises ValueError for a tolerance that is no number from 0 on."""
    if not tolerance >= 0:  # NaN too
        raise ValueError(f"--tolerance is {tolerance}; it is a number from 0 on")


def _decoded(items: "Iterable[Item]") -> "Iterator[Picture]":
    """The images that can be decoded, decoded once for both models; a sentence about each other one
    is printed."""
    from vitkit.data import BadImage, open_image

    for item in items:
        try:
            pixels = open_image(item.read(), item.name).pixels()
        except BadImage as error:
            print(f"left out: {printable(str(error))}", file=sys.stderr)
        except OSError as error:
            print(printable(f"left out: {item.name} cannot be read: {error}"), file=sys.stderr)
        else:
            yield open_image(pixels, item.name)


def _comparison_as_json(comparison: "Comparison", same: bool) -> str:
    """What --json prints: {"images", "same_top1", "same", "layers": {name: ...}}."""
    layers = {}
    for layer in comparison.layers:
        layers[layer.name] = {"largest": layer.largest, "scale": layer.scale}
    values = {
        "images": comparison.images,
        "same_top1": comparison.same_top,
        "same": same,
        "layers": layers,
    }
    return json.dumps(values)


def convert(command: Convert) -> int:
    """Write a model in another format, and print how far its logits differ there."""
    from vitkit import weights
    from vitkit.weights.licenses import license_text
    from vitkit.weights.replacing import is_somebodys

    _check_tolerance(command.tolerance)

    classifier = weights.load_as(command.source, command.hints)
    proof = weights.convert(
        classifier, command.dest, command.to, command.approximate, command.tolerance
    )
    print(f"wrote {proof.path}; read back, every tensor is the same to the bit")
    if proof.path.is_dir() and is_somebodys(proof.path / "README.md"):
        print("kept README.md, which is your own: no model card was written")
    if classifier.license and classifier.license.text:
        text = license_text(proof.path)
        print(f"with it the text of its licence, {classifier.license.called}, in {text}")
    if classifier.pretraining and not proof.path.is_dir():
        names = sorted({name.split(".")[0] for name in classifier.pretraining})
        print(
            f"left out: what pre-training added ({', '.join(names)}), which a model directory keeps"
        )
    for difference in proof.differences:
        print(f"computed differently there: {difference}")
    if proof.largest is None:
        print(f"logits were not compared: {NOT_COMPARED[command.to]}")
    else:
        print(
            f"logits differ by {proof.largest:.1e} at most from those of {proof.library} "
            f"(the largest logit is {proof.scale:.3g})"
        )
    if proof.pixels is not None:
        print(
            f"test images after the preprocessing of {proof.library} differ by "
            f"{proof.pixels:.2g} of 255 levels at most (it rounds and crops in its own way: "
            "docs/weights.md)"
        )
    print(f"next: vitkit compare {as_word(command.source)} {as_word(proof.path)} IMAGE...")
    return 0


def push(command: Push) -> int:
    """Upload a model directory, or the one in a run. Raises ValueError for another folder."""
    from vitkit.weights import load
    from vitkit.weights.fetch import push

    folder = command.folder
    if (folder / "model" / "config.json").is_file():  # a run
        folder = folder / "model"
    if not (folder / "config.json").is_file():
        raise ValueError(
            f"{command.folder} is not a model directory; "
            "write one with vitkit convert MODEL DIR --to huggingface"
        )
    classifier = load(folder)  # raises for what cannot be opened, before anything is sent
    license = _license_to_push(folder, classifier, command.license)
    address = push(folder, command.name, command.private)
    print(f"uploaded {folder} to {address}, under the licence {license.called}")
    print(f"next: vitkit predict {as_word(command.name)} IMAGE...")
    return 0


def _license_to_push(folder: Path, classifier: "Classifier", said: str) -> "License":
    """The licence under which a model directory may be uploaded; one that was said is written into
    its card. Raises ValueError if it must not be, and for paths of this machine in what is sent."""
    from vitkit.weights.fetch import paths_in
    from vitkit.weights.licenses import check_may_be_shared, chosen, read_license
    from vitkit.weights.writing import state_license

    license = classifier.license
    if said:
        license = chosen(license, said.lower(), read_license(folder))
    check_may_be_shared(license, "recipe" in classifier.origin)
    if paths := paths_in(folder):
        raise ValueError(
            f"{paths[0]}, which is a path of this machine and would be uploaded; take it out of the "
            "file"
        )
    if said:
        state_license(folder, classifier, license)
    return license
