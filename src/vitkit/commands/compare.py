"""`vitkit compare`: two models, layer by layer, or two runs, by what they wrote down."""

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from tyro.conf import Positional, arg

from vitkit.commands import MODEL
from vitkit.commands.predict_images import spread
from vitkit.system.console.text import as_word, printable
from vitkit.verbs import Images, ModelHints, check_tolerance
from vitkit.weights import Hints

if TYPE_CHECKING:  # --help imports no model
    from vitkit.data import Picture
    from vitkit.inspection import Comparison
    from vitkit.prediction import Item
    from vitkit.training import Recorded


@dataclass
class Compare:
    """Check whether two models compute the same. Prints the largest difference in every layer, and
    how often the models agree. The exit status is 1 if their logits differ.

    Two runs without an image are compared by what they wrote down: results, curves and settings."""

    one: Annotated[Positional[str], arg(metavar="ONE", help=MODEL)]
    two: Annotated[Positional[str], arg(metavar="TWO")]
    """The model to compare it with, given in the same ways."""
    images: Images
    limit: int = 64
    """Largest number of images, chosen evenly from all; 0 is all."""
    tolerance: float = 1e-4
    """Largest difference of the logits that counts as the same."""
    output: Path = Path("comparison.html")
    """Of two runs: the page to write."""
    json: bool = False
    """Print one JSON object."""
    hints: ModelHints = field(default_factory=Hints)


def compare(command: Compare) -> int:
    """`vitkit compare`. Returns 1 if the logits differ by more than the tolerance."""
    from vitkit.training import is_run

    if not command.images and is_run(command.one) and is_run(command.two):
        return _compare_runs(command)
    return _compare_models(command)


def _compare_runs(command: Compare) -> int:
    """Print what two runs reached and in what they differ, and write a page with their curves."""
    from vitkit.training import read_run, results, settings, verdict, write_comparison

    runs = [read_run(Path(command.one)), read_run(Path(command.two))]
    if command.json:
        print(
            json.dumps(
                {
                    "results": {row.name: row.values for row in results(runs)},
                    "settings": {row.name: row.values for row in settings(runs)},
                    "verdict": verdict(runs),
                }
            )
        )
        return 0
    print_comparison(runs)

    # As a page
    page = write_comparison(command.output, runs)
    print(f"wrote {page}")
    print(
        f"next: vitkit evaluate {as_word(command.one)} DATA --against {as_word(command.two)}, or "
        f"vitkit compare {as_word(command.one)} {as_word(command.two)} IMAGE..., layer by layer"
    )
    return 0


def print_comparison(runs: "Sequence[Recorded]") -> None:
    """Print what runs reached, in what they differ, and which is best."""
    from vitkit.training import results, run_names, settings, verdict

    names = [escape(printable(name)) for name in run_names(runs)]
    different = settings(runs)
    for title, rows in (("", results(runs)), ("setting", different)):
        table = Table(title, *names)
        for column in table.columns:
            column.overflow = "fold"
        for row in rows:
            table.add_row(*(escape(printable(text)) for text in (row.name, *row.values)))
        if rows:
            Console().print(table)
    if not different:
        print("their settings are the same")
    print(printable(verdict(runs)))


def _compare_models(command: Compare) -> int:
    """Compute with two models, and print how far they differ."""
    from rich.progress import track

    from vitkit import inspection
    from vitkit import prediction as deploy
    from vitkit.training import is_run
    from vitkit.weights import load_as

    check_tolerance(command.tolerance)

    # Compute with both
    if not command.images:
        (other, *_) = [name for name in (command.one, command.two) if not is_run(name)]
        raise ValueError(
            f"{other} is no run, and models are compared on images: vitkit compare ONE TWO "
            "IMAGE... takes files, folders and data sets"
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


def _decoded(items: "Iterable[Item]") -> "Iterator[Picture]":
    """The images that can be decoded, decoded once for both models; a sentence about each other one
    is printed."""
    from vitkit.data import BadImage, in_memory, open_image

    for item in items:
        try:
            picture = in_memory(open_image(item.read(), item.name))
        except BadImage as error:
            print(f"left out: {printable(str(error))}", file=sys.stderr)
        except OSError as error:
            print(printable(f"left out: {item.name} cannot be read: {error}"), file=sys.stderr)
        else:
            yield picture


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
