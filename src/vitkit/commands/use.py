"""`vitkit predict`: the likeliest classes of images, as a table, as JSON or as a contact sheet."""

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from vitkit.commands.arguments import (
    Device,
    Images,
    Model,
    ModelHints,
    Precision,
    pick_precision,
)
from vitkit.system.files import check_replaceable
from vitkit.system.machine import pick_device
from vitkit.system.text import as_word, printable, printable_name
from vitkit.weights import Classifier
from vitkit.weights.description import Hints

if TYPE_CHECKING:
    from vitkit.deploy.predict import Item, Prediction
    from vitkit.weights.classifier import Activation


@dataclass
class Predict:
    """Print the likeliest classes of images, with their probabilities."""

    model: Model
    images: Images
    top: int = 5
    """Classes to name for each image."""
    limit: int = 0
    """Largest number of images, chosen evenly from all; 0 is all."""
    sheet: Path | None = None
    """Draw images and predictions into this PNG file."""
    workers: int = -1
    """Processes that read and decode images; -1 follows the CPU quota."""
    precision: Precision = "auto"
    device: Device = "auto"
    json: bool = False
    """Print one line of JSON per image."""
    hints: ModelHints = field(default_factory=Hints)


def predict(command: Predict) -> int:
    """`vitkit predict`. Returns 1 if an image was broken; the others are classified all the
    same."""
    from rich.progress import track

    from vitkit import deploy
    from vitkit.weights import load_as

    if not command.images:
        raise ValueError(
            f"there is no image to classify; vitkit predict {command.model} IMAGE... "
            "takes files, folders and data sets"
        )
    if command.sheet:
        check_sheet(command.sheet)

    # Classify the images
    classifier = with_head(load_as(command.model, command.hints), command.model)
    device = pick_device(command.device)
    runtime = deploy.eager(classifier, device, pick_precision(command.precision, device))
    items = spread(list(deploy.pictures(command.images, classifier.labels)), command.limit)
    predictions = track(
        deploy.predict(runtime, items, command.top, workers=command.workers),
        "predicting",
        len(items),
        console=Console(stderr=True),
        transient=True,
    )
    if command.json:  # each as it comes, for the program that reads it
        predictions = _printed(predictions)
    predictions = list(predictions)
    good = [prediction for prediction in predictions if prediction.error is None]

    # Print the predictions
    if not command.json:
        _print(predictions, good, classifier.activation)

    # Draw them; with --json, standard output is for the JSON alone
    next_command = f"vitkit predict {as_word(command.model)} IMAGE... --json, or --sheet FILE.png"
    if command.sheet and good:
        _draw(command.sheet, items, predictions, classifier.activation)
        terminal = sys.stderr if command.json else sys.stdout
        print(f"wrote {command.sheet}", file=terminal)
        next_command = f"open {as_word(command.sheet)}"
    if good and not command.json:
        print(f"next: {next_command}")
    return int(len(good) < len(predictions))


def _printed(predictions: "Iterable[Prediction]") -> "Iterator[Prediction]":
    """The same, each printed as a line of JSON on the way."""
    for prediction in predictions:
        print(_as_json(prediction), flush=True)
        yield prediction


def _print(
    predictions: "Sequence[Prediction]", good: "Sequence[Prediction]", activation: "Activation"
) -> None:
    """A table of the good predictions, and a sentence for each broken image."""
    if good:
        Console().print(_table(good, activation))
    for prediction in predictions:
        if prediction.error is not None:
            print(f"not classified: {printable(prediction.error)}", file=sys.stderr)


def _as_json(prediction: "Prediction") -> str:
    """What --json prints of an image: the prediction's fields, or its name and error."""
    if prediction.error is not None:
        return json.dumps({"name": prediction.name, "error": prediction.error})
    return json.dumps(prediction._asdict())


def _table(predictions: "Sequence[Prediction]", activation: "Activation") -> Table:
    """A row for every image: its likeliest class, and the others with a probability of 0.001 or
    more; all outputs if they are no probabilities."""
    table = Table("prediction", "probability", "image", "next")
    if activation == "none":
        table.columns[1].header = "value"
    for column in table.columns[2:]:
        column.overflow = "fold"
    for prediction in predictions:
        name = prediction.labels[0]
        if prediction.truth not in (None, name):
            name += f" (is {prediction.truth})"
        number = _number(prediction.probabilities[0], activation)
        others = []
        for label, value in zip(prediction.labels[1:], prediction.probabilities[1:], strict=True):
            if activation == "none" or value >= 0.001:
                others.append(f"{label} {_number(value, activation)}")
        texts = (name, prediction.name, ", ".join(others))
        name, image, others = (escape(printable(text).replace("\n", " ")) for text in texts)
        table.add_row(name, number, image, others)
    return table


def _number(value: float, activation: "Activation") -> str:
    """A probability as 12.3%, an output that is no probability as 1.234."""
    if activation == "none":
        return f"{value:.4g}"
    return f"{value:.1%}"


def _draw(
    file: Path,
    items: "Sequence[Item]",
    predictions: "Sequence[Prediction]",
    activation: "Activation",
) -> None:
    """Draw the images that are not broken into a PNG file, each with its likeliest class."""
    from vitkit.data import open_image
    from vitkit.inspection.sheet import Tile, contact_sheet

    tiles = []
    for item, prediction in zip(items, predictions, strict=True):
        if prediction.error is not None:
            continue
        name = printable_name(prediction.labels[0])
        caption = f"{name} {_number(prediction.probabilities[0], activation)}"
        right = None  # nobody knows
        if prediction.truth is not None and activation != "none":
            # One class, whose name may have commas, or the names of several
            names = {prediction.truth, *prediction.truth.split(", ")}
            right = prediction.labels[0] in names
        tiles.append(Tile(open_image(item.read(), item.name).pixels(), caption, right))
    contact_sheet(tiles, file)


def check_sheet(file: Path) -> None:
    """Raises ValueError for a path that a contact sheet cannot be written to."""
    if file.suffix.lower() != ".png":
        raise ValueError(f"--sheet is {file}; give the name of a PNG file, such as {file}.png")
    check_replaceable(file)


def with_head(classifier: Classifier, name: str) -> Classifier:
    """The same classifier. Raises ValueError if it has no head."""
    if not classifier.labels:
        raise ValueError(
            f"{name} has no classification head, so it names no classes; "
            f"vitkit show {name} says what it is"
        )
    return classifier


def spread(items: list, limit: int) -> list:
    """At most `limit` of the items, evenly spread; 0 is all."""
    if not 0 < limit < len(items):
        return items
    return [items[i * len(items) // limit] for i in range(limit)]
