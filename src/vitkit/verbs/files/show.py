"""What a model is: architecture, cost, preprocessing, classes, and where it came from."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from vitkit.inspection import check_drawing, write_architecture
from vitkit.models import ModelConfig, ViTConfig, called, config_to_dict, cost, parameters, parts
from vitkit.system.console.text import printable
from vitkit.verbs.arguments import Model, ModelHints, word_of
from vitkit.verbs.definition import result, verb
from vitkit.weights import Classifier, Hints, license_to_json, load_as


@dataclass(frozen=True)
class Show:
    """Print what a model is: architecture, cost, preprocessing, classes, where it came from."""

    model: Model
    json: bool = False
    """Print one JSON object."""
    draw: Path | None = None
    """Draw the architecture, as Figure 1 of the paper has it, with the shapes, parameters and operations
    of its parts: model.svg, model.png, or model.html, a page."""
    hints: ModelHints = field(default_factory=Hints)


@result
@dataclass(frozen=True)
class Description:
    """What a model is."""

    settings: Show
    classifier: Classifier

    @property
    def path(self) -> Path | None:
        """The drawing of its architecture, if one was asked for."""
        return self.settings.draw

    def to_json(self) -> dict:
        """All of it as plain values: architecture, cost and that of each part, preprocessing, labels,
        origin, licence."""
        classifier = self.classifier
        config = classifier.model.config
        costs = cost(config)
        return {
            "model": config_to_dict(config),
            "parameters": parameters(config),
            "tokens": costs.tokens,
            "macs": costs.macs,
            "parts": [asdict(part) for part in parts(config)],
            "preprocessing": classifier.preprocessing.to_json(),
            "labels": classifier.labels,
            "activation": classifier.activation,
            "origin": classifier.origin,
            "license": license_to_json(classifier.license),
        }

    def shown(self) -> Iterator[str | Table]:
        """A table, or JSON."""
        if self.settings.json:
            yield json.dumps(self.to_json())
            return
        yield _description(self.classifier)
        if self.path:
            yield f"wrote {self.path}"
        if self.classifier.labels:
            yield f"next: vitkit predict {word_of(self.settings.model)} IMAGE..."
        else:
            yield f"next: vitkit finetune {word_of(self.settings.model)} DATA"


@verb
def show(settings: Show) -> Description:
    """A model's description, and a drawing of its architecture. Raises ValueError if it cannot be
    loaded, or drawn; OSError."""
    if settings.draw:
        check_drawing(settings.draw)
    classifier = settings.model
    if not isinstance(classifier, Classifier):
        classifier = load_as(classifier, settings.hints, quiet=settings.json)
    if settings.draw:
        write_architecture(settings.draw, classifier.model.config)
    return Description(settings, classifier)


def _description(classifier: Classifier) -> Table:
    """A model as a table, with a row for every setting and for everything known of its origin."""
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


def _resolved(config: ModelConfig) -> ModelConfig:
    """The same configuration with the values that settings of None stand for, as far as a Vision
    Transformer has such settings."""
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
