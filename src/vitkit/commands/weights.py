"""Models as files: `vitkit show` and `vitkit push`."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from tyro.conf import Positional, arg

from vitkit.system.console.text import as_word, printable
from vitkit.verbs import Model, ModelHints
from vitkit.weights import Hints

if TYPE_CHECKING:  # --help imports no model
    from vitkit.models import ModelConfig
    from vitkit.weights import Classifier, License


@dataclass
class Show:
    """Print what a model is: architecture, cost, preprocessing, classes, where it came from."""

    model: Model
    json: bool = False
    """Print one JSON object."""
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
    from vitkit.weights import license_to_json, load_as

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
            "license": license_to_json(classifier.license),
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


def push(command: Push) -> int:
    """Upload a model directory, or the one in a run. Raises ValueError for another folder."""
    from vitkit.weights import load, push

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
    from vitkit.weights import check_may_be_shared, chosen, paths_in, read_license, state_license

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
