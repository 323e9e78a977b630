"""`vitkit show`: architecture, cost, preprocessing, classes and origin of a model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from json import dumps as dumped
from pathlib import Path
from typing import Unpack

from rich.markup import escape
from rich.table import Table

from vitkit.inspection.architecture.drawing import check_drawing, write_architecture
from vitkit.models import (
    ModelConfig,
    ViTConfig,
    called,
    config_to_dict,
    cost,
    named,
    parameters,
    parts,
)
from vitkit.system.console.text import printable, some
from vitkit.system.errors import BadSettings, VitkitError
from vitkit.system.functions.arguments import name_of
from vitkit.system.functions.public import public
from vitkit.system.functions.results import Result
from vitkit.system.functions.steps import DATA, IMAGES, step
from vitkit.system.functions.types import PathLike
from vitkit.weights import (
    Classifier,
    Hints,
    ModelLike,
    Overrides,
    classifier_of,
    find_published,
    hints_of,
    license_to_json,
    no_answer,
)
from vitkit.weights.hints import CREATE


@dataclass(frozen=True, repr=False)
class ModelDescription(Result):
    """The description of a model."""

    model: str | Classifier
    """The model, as it was given."""
    config: ModelConfig
    """The architecture."""
    classifier: Classifier | None
    """The model; None for a size such as B/16, which has no weights."""

    path: Path | None = None
    """The file of the drawing of the architecture, if there is one."""
    json: bool = False
    """Whether the result is printed as JSON."""

    def to_json(self) -> dict:
        """All of it as plain values: architecture, its cost and that of each part; for a model with weights
        also preprocessing, labels, origin and licence."""
        costs = cost(self.config)
        architecture = {
            "model": config_to_dict(self.config),
            "parameters": parameters(self.config),
            "tokens": costs.tokens,
            "macs": costs.macs,
            "parts": [asdict(part) for part in parts(self.config)],
        }
        classifier = self.classifier
        if classifier is None:
            return architecture
        return architecture | {
            "preprocessing": classifier.preprocessing.to_json(),
            "labels": classifier.labels,
            "activation": classifier.activation,
            "origin": classifier.origin,
            "license": license_to_json(classifier.license),
        }

    def shown(self) -> Iterator[str | Table]:
        """A table, or JSON."""
        if self.json:
            yield dumped(self.to_json())
            return
        yield _description(self.config, self.classifier)
        if self.path:
            yield f"wrote {self.path}"
        if self.classifier is None:
            if find_published(name_of(self.model)):
                published = step("list_models", self.model, published=True)
                yield f"next: {published}   weights of this size to begin with"
        elif reason := no_answer(self.classifier):
            yield reason
            yield f"next: {step('finetune', self.model, DATA)}"
        else:
            function = "predict"
            if getattr(self.classifier.model.config, "segments", False):
                function = "segment"
            yield f"next: {step(function, self.model, IMAGES)}"


@public
def show(
    model: ModelLike,
    *,
    json: bool = False,
    draw: PathLike | None = None,
    **overrides: Unpack[Overrides],
) -> ModelDescription:
    """Print what a model is: architecture, cost, preprocessing, classes and origin. The model may also
    be a size without weights, such as B/16 or R50+B/32.

    Args:
        model: A run, a model directory, a file of weights (vitkit's, Hugging Face's, timm's,
            torchvision's or Google's), or the name of a published model.
        json: Print one JSON object.
        draw: Draw the architecture like Figure 1 of the paper, with the shapes, parameters and operations
            of its parts: model.svg, model.png, or model.html, a page.
        **overrides: What the file of the model does not say, or should be something else: `Overrides`.

    Raises:
        BadSettings: If the drawing cannot be written, or an override has no meaning for the model.
        BadWeights: If the model cannot be read.
    """
    if draw:
        check_drawing(draw)
    hints = hints_of(overrides)
    config = _architecture(model, hints)
    classifier = None
    if config is None:
        classifier = classifier_of(model, hints, quiet=json)
        config = classifier.model.config
    if draw:
        write_architecture(draw, config)
    return ModelDescription(model, config, classifier, draw, json)


def _architecture(name: str | Classifier, hints: Hints) -> ModelConfig | None:
    """The configuration of a name such as B/16, with the size that the hints give; None for a name that may
    have weights. Raises BadSettings for a hint that needs weights."""
    if not isinstance(name, str) or Path(name).exists():
        return None
    try:
        named(name)
    except VitkitError:
        return None
    changes = {}
    for hint, value in vars(hints).items():
        if value == getattr(Hints(), hint):
            continue
        if hint not in CREATE:
            raise BadSettings(
                f"{name} is a size without weights, so `{hint}` has no meaning for it"
            )
        changes[hint] = value
    return named(name, **changes)


def _description(config: ModelConfig, classifier: Classifier | None) -> Table:
    """A table with a row for every setting and for every entry of the origin."""
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

    # What belongs to a model with weights
    if classifier is None:
        table.add_row("weights", "none; this is a size")
        return table
    table.add_row("preprocessing", str(classifier.preprocessing))
    table.add_row("labels", escape(printable(_classes(classifier.labels)).replace("\n", " ")))
    if classifier.labels:
        table.add_row("activation", classifier.activation)
    license = "not known"
    if classifier.license:
        license = f"{classifier.license.called} ({classifier.license.allows()})"
    table.add_row("licence", escape(printable(license)))
    for name, value in classifier.origin.items():
        if name == "left_out" and isinstance(value, dict):
            value = f"scores of {len(value):,} images"
        elif isinstance(value, dict):
            value = ", ".join(f"{key} {_number(number)}" for key, number in value.items())
        table.add_row(escape(printable(f"origin: {name}")), escape(printable(str(value))))
    return table


def _resolved(config: ModelConfig) -> ModelConfig:
    """Replace settings of None by the values that they default to. Only Vision Transformers have such
    settings."""
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
    return f"{len(labels):,} ({some(labels)})"


def _number(value: object) -> str:
    """A number with four digits; anything else unchanged."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)
