"""Two models, layer by layer, or two runs, by what they wrote down."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from rich.table import Table
from tyro.conf import Positional, arg

from vitkit import inspection
from vitkit.data import BadImage, Picture, Preprocessing, in_memory, open_image
from vitkit.inspection import Comparison
from vitkit.prediction import Item, pictures, spread
from vitkit.quick import check_recorded
from vitkit.system.console.messages import say
from vitkit.system.console.progress import bar
from vitkit.system.console.text import counted, printable
from vitkit.system.errors import BadSettings
from vitkit.training import (
    Recorded,
    is_run,
    read_run,
    results,
    verdict,
    write_comparison,
)
from vitkit.training import settings as different_settings
from vitkit.verbs.arguments import Images, ModelHints, OkIfUnreadable, name_of, status_of, word_of
from vitkit.verbs.computing import classifier_of
from vitkit.verbs.definition import result, verb
from vitkit.verbs.files.convert import check_tolerance
from vitkit.verbs.training.report import comparison_rows, on_common_images, side_by_side
from vitkit.verbs.words import MODEL
from vitkit.weights import Classifier, Hints, no_answer


@dataclass(frozen=True)
class Compare:
    """Check whether two models compute the same. Prints the largest difference in every layer, and
    how often the models agree. The exit status is 1 if their logits differ.

    Two runs without images are compared by their records: results, curves and settings."""

    one: Annotated[Positional[str], arg(metavar="ONE", help=MODEL)]
    two: Annotated[Positional[str], arg(metavar="TWO")]
    """The model to compare it with; it takes the same values as ONE."""
    images: Images = ()
    limit: int = 64
    """Largest number of images, chosen evenly from all; 0 is all."""
    tolerance: float = 1e-4
    """Largest difference between the logits that counts as the same."""
    output: Path = Path("comparison.html")
    """For two runs: the page to write."""
    data: Annotated[tuple[str, ...], arg(metavar="DATA...")] = ()
    """For two runs: data sets that may be opened again although they are Python functions or
    addresses, as in vitkit report."""
    json: bool = False
    """Print one JSON object."""
    ok_if_unreadable: OkIfUnreadable = False
    hints: ModelHints = field(default_factory=Hints)


@result
@dataclass(frozen=True)
class ComparedModels:
    """How closely two models agree."""

    settings: Compare
    first: Classifier
    second: Classifier
    comparison: Comparison
    """Layer by layer."""
    unreadable: int
    """Images that could not be read; the others are compared all the same."""

    @property
    def same(self) -> bool:
        """Whether the logits are the same, to the tolerance. There are none to compare if the numbers
        of classes differ."""
        logits = [layer for layer in self.comparison.layers if layer.name == "logits"]
        return bool(logits) and logits[0].largest <= self.settings.tolerance

    @property
    def status(self) -> int:
        """The exit status of the command: 1 if the models differ, 3 if images could not be read."""
        if not self.same:
            return 1
        return status_of(self.unreadable, self.settings.ok_if_unreadable)

    def rows(self) -> list[dict]:
        """A row for each layer."""
        return [layer._asdict() for layer in self.comparison.layers]

    def to_json(self) -> dict:
        """{"images", "same_top1", "ties", "same", "layers": {name: {"largest", "scale"}}}"""
        layers = {}
        for layer in self.comparison.layers:
            layers[layer.name] = {"largest": layer.largest, "scale": layer.scale}
        return {
            "images": self.comparison.images,
            "same_top1": self.comparison.same_top,
            "ties": self.comparison.ties,
            "same": self.same,
            "layers": layers,
        }

    def shown(self) -> Iterator[str | Table]:
        """A row for each layer, and what it comes to; or JSON."""
        if self.settings.json:
            yield json.dumps(self.to_json())
            return
        table = Table("layer", "largest difference", "largest number")
        for layer in self.comparison.layers:
            table.add_row(layer.name, f"{layer.largest:.2e}", f"{layer.scale:.3g}")
        yield table
        yield from self._sentences()

    def _sentences(self) -> Iterator[str]:
        first = self.first
        second = self.second
        if first.preprocessing != second.preprocessing:
            yield f"their preprocessing differs: {first.preprocessing}; {second.preprocessing}"
        if first.activation != second.activation:
            yield f"their activation differs: {first.activation}; {second.activation}"
        outputs = "features"  # what a model without a head returns
        if first.labels and second.labels:
            outputs = "logits"
        if not no_answer(first) and not no_answer(second):
            comparison = self.comparison
            sentence = (
                f"the same likeliest class for {comparison.same_top} of {comparison.images} images"
            )
            if comparison.ties:
                sentence += (
                    f" (counting {counted(comparison.ties, 'tie')}: two classes whose logits the first "
                    f"model puts at most {self.settings.tolerance:g} apart)"
                )
            yield sentence
        for name, classifier in ((self.settings.one, first), (self.settings.two, second)):
            if reason := no_answer(classifier):
                yield f"{name_of(name)}: {reason}"
        if not any(layer.name == "logits" for layer in self.comparison.layers):
            yield "the models return a different number of values, so these cannot be compared"
        elif self.same:
            yield f"the {outputs} are the same to {self.settings.tolerance:g}"
        else:
            yield f"the {outputs} are not the same to {self.settings.tolerance:g}"


@result
@dataclass(frozen=True)
class ComparedRuns:
    """What two runs reached, and how they differ."""

    settings: Compare
    runs: tuple[Recorded, Recorded]
    path: Path | None
    """The page that was written; None with `json`."""
    notes: tuple[str, ...] = ()
    """How both answered the images that both held out, in a sentence."""

    def rows(self) -> list[dict]:
        """A row for each result and for each setting that differs, with a column for each run."""
        return comparison_rows(self.runs)

    def to_json(self) -> dict:
        """{"results": {name: values}, "settings": {name: values}, "verdict", "notes"}"""
        return {
            "results": {row.name: row.values for row in results(self.runs)},
            "settings": {row.name: row.values for row in different_settings(self.runs)},
            "verdict": verdict(self.runs),
            "notes": list(self.notes),
        }

    def shown(self) -> Iterator[str | Table]:
        """The output: tables, and the path of the page; or JSON."""
        if self.settings.json:
            yield json.dumps(self.to_json())
            return
        yield from side_by_side(self.runs, self.notes)
        yield f"wrote {self.path}"
        one = word_of(self.settings.one)
        two = word_of(self.settings.two)
        yield (
            f"next: vitkit evaluate {one} DATA --against {two}, or "
            f"vitkit compare {one} {two} IMAGE..., layer by layer"
        )


@verb
def compare(settings: Compare) -> ComparedModels | ComparedRuns:
    """Compute with two models on the same images, and measure how far they differ in every layer; or,
    without an image, set two runs side by side.

    Without images, raises ValueError if one is not a run.
    """
    names = (settings.one, settings.two)
    if not settings.images:
        for name in names:
            if not isinstance(name, Classifier):
                check_recorded(Path(name))
    runs = [name for name in names if not isinstance(name, Classifier) and is_run(name)]
    if not settings.images and len(runs) == 2:
        return _compared_runs(settings)

    check_tolerance(settings.tolerance)
    if settings.data:
        raise BadSettings("`data` is for two runs without images; give images as IMAGE...")
    if not settings.images:
        (other, *_) = [name for name in names if name not in runs]
        raise BadSettings(
            f"{name_of(other)} is not a run, and models are compared on images: vitkit compare ONE TWO "
            "IMAGE... takes files, folders and data sets"
        )
    items = spread(list(pictures(settings.images)), settings.limit)
    first = classifier_of(settings.one, settings.hints)
    second = classifier_of(settings.two, settings.hints)
    preparing = (first.preprocessing, second.preprocessing)
    decoded = _decoded(bar("comparing")(items, len(items)), preparing)
    comparison = inspection.compare(first, second, decoded, tolerance=settings.tolerance)
    unreadable = len(items) - comparison.images
    return ComparedModels(settings, first, second, comparison, unreadable)


def _compared_runs(settings: Compare) -> ComparedRuns:
    """What two runs wrote down, and a page with their curves."""
    runs = tuple(read_run(Path(name), settings.data) for name in (settings.one, settings.two))
    notes = on_common_images(runs)
    page = None
    if not settings.json:
        page = write_comparison(settings.output, runs, notes)
    return ComparedRuns(settings, runs, page, notes)


def _decoded(items: Iterable[Item], preparing: Iterable[Preprocessing]) -> Iterator[Picture]:
    """The images that both models can be given, decoded once if one picture serves both; each other
    one is said."""
    for item in items:
        try:
            picture = in_memory(open_image(item.read(), item.name))
            for preprocessing in preparing:
                preprocessing.decode(picture)
        except BadImage as error:
            say(f"left out: {printable(str(error))}")
        except OSError as error:
            say(printable(f"left out: {item.name} cannot be read: {error}"))
        else:
            yield picture
