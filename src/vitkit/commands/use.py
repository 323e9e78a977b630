"""`vitkit predict`."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from tyro.conf import Positional, arg

from vitkit.weights import Classifier

if TYPE_CHECKING:
    from vitkit.deploy.predict import Item, Prediction
    from vitkit.weights.classifier import Activation


@dataclass
class Predict:
    """The likeliest classes of images, with their probabilities."""

    model: Annotated[Positional[str], arg(metavar="MODEL")]
    """A run, a model directory, a file of weights in any format, or the name of a published model."""
    images: Annotated[Positional[tuple[str, ...]], arg(metavar="IMAGE")]
    """Image files, folders of images, data sets (their test part), or digits."""
    top: int = 5
    """Classes to name for each image."""
    limit: int = 0
    """At most so many images, spread evenly; 0 is all."""
    sheet: Path | None = None
    """Draw images and predictions into this PNG file."""
    device: str = "auto"
    """cpu, cuda, cuda:1 or mps; auto takes the best there is."""
    json: bool = False
    """Print one line of JSON an image."""


def predict(command: Predict) -> int:
    """`vitkit predict`; returns 1 when an image was broken, after all the others are done."""
    from rich.progress import track

    from vitkit import deploy
    from vitkit.weights import load

    if not command.images:
        raise ValueError(
            f"there is no image to classify; vitkit predict {command.model} IMAGE... takes files, folders and data sets"
        )
    if command.sheet:
        check_sheet(command.sheet)
    classifier = with_head(load(command.model), command.model)
    items = spread(list(deploy.pictures(command.images)), command.limit)
    predictions = track(
        deploy.predict(classifier, items, command.top, device=command.device),
        "predicting",
        len(items),
        console=Console(stderr=True),
        transient=True,
    )
    predictions = list(predictions)
    good = [prediction for prediction in predictions if prediction.error is None]

    # print the predictions
    if command.json:
        for prediction in predictions:
            print(_as_json(prediction))
    else:
        if good:
            Console().print(_table(good, classifier.activation))
        for prediction in predictions:
            if prediction.error is not None:
                print(f"not classified: {prediction.error}", file=sys.stderr)

    # draw them
    following = f"vitkit predict {command.model} IMAGE... --json, or --sheet FILE.png"
    if command.sheet and good:
        following = f"open {_draw(command.sheet, items, predictions, classifier.activation)}"
        print(f"wrote {command.sheet}", file=sys.stderr if command.json else sys.stdout)
    if not command.json:
        print(f"next: {following}")
    return 0 if len(good) == len(predictions) else 1


def _as_json(prediction: "Prediction") -> str:
    """One line of JSON."""
    if prediction.error is not None:
        return json.dumps({"name": prediction.name, "error": prediction.error})
    return json.dumps(prediction._asdict())


def _table(predictions: "Sequence[Prediction]", activation: "Activation") -> Table:
    """A line for every image: its likeliest class, and the others that have a share of a thousandth; or all its numbers."""
    table = Table("prediction", "probability", "image", "next")
    if activation == "none":
        table.columns[1].header = "value"
    for column in table.columns[2:]:
        column.overflow = "fold"
    for prediction in predictions:
        name = prediction.labels[0]
        if prediction.truth not in (None, name):
            name += f" (is {prediction.truth})"
        pairs = list(zip(prediction.labels, prediction.probabilities, strict=True))
        others = ", ".join(
            f"{label} {_number(value, activation)}"
            for label, value in pairs[1:]
            if activation == "none" or value >= 0.001
        )
        number = _number(prediction.probabilities[0], activation)
        table.add_row(escape(name), number, escape(prediction.name), escape(others))
    return table


def _number(value: float, activation: "Activation") -> str:
    """A probability as 12.3%; an output that is none as 1.234."""
    return f"{value:.4g}" if activation == "none" else f"{value:.1%}"


def _draw(
    file: Path,
    items: "Sequence[Item]",
    predictions: "Sequence[Prediction]",
    activation: "Activation",
) -> Path:
    """Draw the images that are not broken, each with its likeliest class, into a PNG file."""
    from vitkit.data import open_image
    from vitkit.inspection.sheet import Tile, contact_sheet

    tiles = []
    for item, prediction in zip(items, predictions, strict=True):
        if prediction.error is not None:
            continue
        caption = f"{prediction.labels[0]} {_number(prediction.probabilities[0], activation)}"
        right = None
        if prediction.truth is not None and activation != "none":
            names = {prediction.truth, *prediction.truth.split(", ")}  # of one class, or several
            right = prediction.labels[0] in names
        tiles.append(Tile(open_image(item.read(), item.name).pixels(), caption, right))
    return contact_sheet(tiles, file)


def check_sheet(file: Path) -> None:
    """Raises ValueError for what a contact sheet cannot be written to, before any image is classified."""
    if file.suffix.lower() != ".png":
        raise ValueError(f"--sheet is {file}; give the name of a PNG file, such as {file}.png")
    if file.is_dir():
        raise ValueError(f"--sheet is {file}, a directory; give the name of a PNG file in it")


def with_head(classifier: Classifier, name: str) -> Classifier:
    """The classifier. Raises ValueError when it has no head."""
    if not classifier.labels:
        raise ValueError(
            f"{name} has no classification head, so it names no classes; vitkit show {name} says what it is"
        )
    return classifier


def spread(items: list, limit: int) -> list:
    """At most `limit` of them, evenly; 0 is all."""
    if not 0 < limit < len(items):
        return items
    return [items[i * len(items) // limit] for i in range(limit)]
