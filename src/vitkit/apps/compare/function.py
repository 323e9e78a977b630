"""`vitkit compare`: two models layer by layer, or two runs by their records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from json import dumps as to_json
from pathlib import Path
from typing import Annotated, Unpack

from rich.table import Table

from vitkit.data import Picture, Preprocessing, in_memory, open_image
from vitkit.finetuning import check_recorded
from vitkit.inspection import compare_models
from vitkit.inspection.comparison import Comparison
from vitkit.prediction import Item, pictures, spread
from vitkit.runtimes import check_answer
from vitkit.system.console.messages import say
from vitkit.system.console.progress import bar
from vitkit.system.console.text import counted, printable
from vitkit.system.errors import BadImage, BadSettings
from vitkit.system.functions.arguments import check_limit, name_of, status_of
from vitkit.system.functions.public import public
from vitkit.system.functions.results import Rows
from vitkit.system.functions.steps import DATA, IMAGES, step
from vitkit.system.functions.types import DataLike, PathLike, Several
from vitkit.training import (
    Recorded,
    comparison_rows,
    is_run,
    on_common_images,
    read_run,
    results,
    side_by_side,
    verdict,
    write_comparison,
)
from vitkit.training import settings as different_settings
from vitkit.weights import (
    Classifier,
    ModelLike,
    Overrides,
    check_tolerance,
    classifier_of,
    hints_of,
    no_answer,
)


@dataclass(frozen=True, repr=False)
class ComparedModels(Rows):
    """How closely two models agree."""

    names: tuple[str, str]
    """The names of the two models."""
    first: Classifier
    second: Classifier
    comparison: Comparison
    """The differences, layer by layer."""
    unreadable: int
    """Number of unreadable images, which are left out."""
    tolerance: float
    """Largest difference of logits that counts as equal."""
    json: bool = False
    """Whether the result is printed as JSON."""
    ok_if_unreadable: bool = False
    """Whether the exit status is 0 even if images could not be read."""

    @property
    def same(self) -> bool:
        """Whether the logits are equal within the tolerance. False if the numbers of classes
        differ."""
        logits = [layer for layer in self.comparison.layers if layer.name == "logits"]
        return bool(logits) and logits[0].largest <= self.tolerance

    @property
    def status(self) -> int:
        """The exit status of the command: 1 if the models differ, 3 if images could not be read."""
        if not self.same:
            return 1
        return status_of(self.unreadable, self.ok_if_unreadable)

    def rows(self) -> list[dict]:
        """One row per layer."""
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
        """One row per layer, and the conclusion; or JSON."""
        if self.json:
            yield to_json(self.to_json())
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
        outputs = "features"  # the outputs of a model without a head
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
                    f"model puts at most {self.tolerance:g} apart)"
                )
            yield sentence
        for name, classifier in zip(self.names, (first, second), strict=True):
            if reason := no_answer(classifier):
                yield f"{name}: {reason}"
        if not any(layer.name == "logits" for layer in self.comparison.layers):
            yield "the models return a different number of values, so these cannot be compared"
        elif self.same:
            yield f"the {outputs} are the same to {self.tolerance:g}"
        else:
            yield f"the {outputs} are not the same to {self.tolerance:g}"


@dataclass(frozen=True, repr=False)
class ComparedRuns(Rows):
    """The results and differences of two runs."""

    names: tuple[str | Classifier, str | Classifier]
    """The two runs, as given by the caller."""
    runs: tuple[Recorded, Recorded]
    path: Path | None
    """The written page; None with `json`."""
    notes: tuple[str, ...] = ()
    """A comparison of their predictions for common held-out images, in a sentence."""
    json: bool = False
    """Whether the result is printed as JSON."""

    def rows(self) -> list[dict]:
        """One row per result, and one per setting that differs, with one column per run."""
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
        if self.json:
            yield to_json(self.to_json())
            return
        yield from side_by_side(self.runs, self.notes)
        yield f"wrote {self.path}"
        one, two = self.names
        yield (
            f"next: {step('evaluate', one, DATA, against=two)}, or "
            f"{step('compare', one, two, IMAGES)}, layer by layer"
        )


@public
def compare(
    one: Annotated[ModelLike, "ONE"],
    two: Annotated[ModelLike, "TWO"],
    *images: DataLike,
    limit: int = 64,
    tolerance: float = 1e-4,
    output: PathLike = Path("comparison.html"),
    data: Several[DataLike] = (),
    json: bool = False,
    ok_if_unreadable: bool = False,
    **overrides: Unpack[Overrides],
) -> ComparedModels | ComparedRuns:
    """Check whether two models compute the same. Prints the largest difference in every layer, and
    how often the models agree. The exit status is 1 if their logits differ.

    Two runs without images are compared by their records: results, curves and settings.

    Args:
        one: A run, a model directory, a file of weights (vitkit's, Hugging Face's, timm's,
            torchvision's or Google's), or the name of a published model.
        two: The model to compare it with; it takes the same values as ONE.
        images: Image files, folders of images, patterns ('**/*.jpg'), web addresses, data sets (their
            test part), or digits.
        limit: Largest number of images, chosen evenly from all; 0 is all.
        tolerance: Largest difference between the logits that counts as the same.
        output: For two runs: the page to write.
        data: For two runs: data sets that may be opened again although they are Python functions or
            addresses, as in `vitkit.report`.
        json: Print one JSON object.
        ok_if_unreadable: End with the exit status 0, and not 3, if images could not be read; they are
            still named.
        **overrides: Settings that the files of the models do not give, or that you want to change:
            `Overrides`.

    Raises:
        BadSettings: If there are no images and one of the two is not a run, or if settings do not go
            together.
        BadWeights: If a model cannot be read.
    """
    check_limit(limit)
    hints = hints_of(overrides)
    names = (one, two)
    runs: list[str] = []
    for name in names:
        if isinstance(name, Classifier):
            continue
        if not images:
            check_recorded(Path(name))
        if is_run(name):
            runs.append(name)
    if not images and len(runs) == 2:
        return _compared_runs(runs[0], runs[1], output, data, json)

    check_tolerance(tolerance)
    if data:
        raise BadSettings(
            f"`data` is for two runs without images; images are given as in {step('compare', one, two, IMAGES)}"
        )
    if not images:
        (other, *_) = [name for name in names if name not in runs]
        raise BadSettings(
            f"{name_of(other)} is not a run, and models are compared on images: "
            f"{step('compare', one, two, IMAGES)} takes files, folders and data sets"
        )
    items = spread(list(pictures(images)), limit)
    first = classifier_of(one, hints)
    second = classifier_of(two, hints)
    for each in (first, second):
        check_answer(each)
    preparing = (first.preprocessing, second.preprocessing)
    decoded = _decoded(bar("comparing")(items, len(items)), preparing)
    comparison = compare_models(first, second, decoded, tolerance=tolerance)
    return ComparedModels(
        names=(name_of(one), name_of(two)),
        first=first,
        second=second,
        comparison=comparison,
        unreadable=len(items) - comparison.images,
        tolerance=tolerance,
        json=json,
        ok_if_unreadable=ok_if_unreadable,
    )


def _compared_runs(
    one: str, two: str, output: Path, data: tuple[str, ...], json: bool
) -> ComparedRuns:
    """The comparison of two runs' records; writes a page with their curves, unless JSON is printed."""
    runs = (read_run(Path(one), data), read_run(Path(two), data))
    notes = on_common_images(runs)
    page = None
    if not json:
        page = write_comparison(output, runs, notes)
    return ComparedRuns((one, two), runs, page, notes, json)


def _decoded(items: Iterable[Item], preparing: Iterable[Preprocessing]) -> Iterator[Picture]:
    """The images that both models can take, decoded once if one picture serves both. Logs each
    image that is left out."""
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
