"""`vitkit faster`: the search for the fastest model within an allowed loss of accuracy."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Unpack

from rich.table import Table

from vitkit.apps.faster.bodies import Library
from vitkit.apps.faster.figures import HEADER, cells, draw, write_page
from vitkit.apps.faster.losses import on_others
from vitkit.apps.faster.pareto import ParetoLine, Point
from vitkit.apps.faster.races import LIBRARIES, SearchGoal
from vitkit.apps.faster.searching import Found, check, search
from vitkit.apps.faster.subjects import SearchSubject, of_data, of_run
from vitkit.apps.faster.writing import ending_of, library_of, write
from vitkit.runtimes import run_of
from vitkit.system.console.messages import say
from vitkit.system.console.text import counted, readable
from vitkit.system.errors import BadSettings
from vitkit.system.functions.arguments import name_of
from vitkit.system.functions.public import alone, public
from vitkit.system.functions.results import Rows
from vitkit.system.functions.steps import IMAGES, step
from vitkit.system.functions.types import DataLike, PathLike, SeveralPaths
from vitkit.system.storage.files import MARK, check_can_be_made, check_replaceable, write_json
from vitkit.weights import (
    Classifier,
    MadeModel,
    ModelLike,
    Overrides,
    check_savable,
    classifier_of,
    hints_of,
)

DURATION = re.compile(r"\s*([0-9]*\.?[0-9]+)\s*(ms|s|m|min|h)?\s*")
SECONDS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
NAME = "faster"  # default name of the output
WRITTEN = (".json", ".png", ".svg", ".html")


@dataclass(frozen=True)
class Goal:
    """The requested model, and the time budget of the search."""

    lose: float = 0.5
    """Percentage points of accuracy that the model may lose."""
    most: float | None = None
    """Largest time per image in milliseconds; replaces `lose` as the goal."""
    search: SearchGoal = field(default_factory=SearchGoal)


@dataclass(frozen=True)
class Places:
    """The output paths of the model and its reports."""

    output: Path
    """The file or directory of the model."""
    is_given: bool
    """Whether the caller named it; otherwise it gets the suffix of the chosen model's format."""
    reports: tuple[Path, ...]


@dataclass(frozen=True, repr=False)
class FasterModel(Rows, MadeModel):
    """The models for which no other is both faster and nearer to the original, and the one that was
    written."""

    model: str | Classifier
    """The model from which the search began, as given by the caller."""
    search: dict[str, Any]
    """The given arguments of `vitkit.faster` that determine which models are measured: data, purpose,
    output."""
    line: ParetoLine
    chosen: Point
    path: Path
    """The written file or directory."""
    classifier: Classifier
    """The chosen model as a PyTorch classifier."""
    sentences: tuple[str, ...]
    """Sentences about the chosen model."""
    reports: tuple[Path, ...]

    @property
    def labels(self) -> tuple[str, ...]:
        """The model's class names."""
        return self.classifier.labels

    @property
    def made(self) -> str:
        """The file or the directory of the faster model."""
        return str(self.path)

    def rows(self) -> list[dict]:
        """A row for each model that was measured, the slowest first."""
        rows = []
        for point in self.line.points:
            values = point.to_json()
            loss = values.pop("loss")
            best = point in self.line.best
            rows.append(values | loss | {"best": best, "chosen": point == self.chosen})
        return rows

    def shown(self) -> Iterator[str | Table]:
        """The output: the table of the line, the chosen model, the files that were written, and the
        next command."""
        table = Table(box=None, pad_edge=False)
        table.add_column(HEADER[0])
        for name in HEADER[1:]:
            table.add_column(name, justify="right")
        shown = self.line.shown
        if self.chosen not in shown:  # the most accurate within a time may be beside the line
            shown = tuple(sorted([*shown, self.chosen], key=lambda point: -point.milliseconds))
        for point in shown:
            style = "bold" if point == self.chosen else ""
            table.add_row(*cells(point), style=style)
        yield table
        yield from self.sentences
        yield f"wrote {self.path}"
        for path in self.reports:
            yield f"wrote {path}"
        precision = {}
        if self.chosen.library == "torch" and self.chosen.precision != "float32":
            precision = {"precision": self.chosen.precision}
        predicting = step("predict", self.path, IMAGES, **precision)
        yield f"next: {predicting}, or {step('serve', self.path, **precision)}"
        if other := self.other():
            yield f"another model of the line: {other}"

    def other(self) -> str:
        """The command for choosing a faster point of the front, or a slower one; "" if there is no
        other."""
        best = self.line.best
        others = [point for point in best if point != self.chosen]
        if not others:
            return ""
        faster = [point for point in others if point.milliseconds < self.chosen.milliseconds]
        point = faster[0] if faster else others[-1]
        limit = f"{readable(1.01 * point.milliseconds).replace(',', '')}ms"
        return f"{step('faster', self.model, **self.search, at_most=limit)} ({point.name})"


@public
@alone
def faster(
    model: ModelLike,
    *,
    data: DataLike = "",
    lose: float = 0.5,
    at_most: str = "",
    purpose: Literal["latency", "throughput"] = "latency",
    budget: str = "10m",
    output: PathLike | None = None,
    report: SeveralPaths = (),
    **overrides: Unpack[Overrides],
) -> FasterModel:
    """Find the fastest model that loses no more accuracy than you allow, and write it. The search
    covers every runtime and precision of this machine, fewer blocks, smaller images and merged
    tokens. It measures accuracy on images that the model has not learned from. Run the same command
    again to continue the search.

    Args:
        model: A run, a model directory, a file of weights (vitkit's, Hugging Face's, timm's,
            torchvision's or Google's), or the name of a published model.
        data: Images to measure accuracy on, from which the model has not learned: the test part of a
            data set with the model's classes. Default: the data set of the model's run.
        lose: Percentage points of accuracy that the model may lose, at 95 % confidence, if there are
            enough images to show it.
        at_most: Instead of `lose`: find the most accurate model that takes no longer than this for an
            image, such as 15ms.
        purpose: latency: one image at a time; throughput: batches of 32 images.
        budget: Approximate time of the search: 90s, 10m or 1h.
        output: File to write, with the ending .onnx or .xml, or a directory for PyTorch, without an
            ending. The search is then limited to models of this format. Default: a file named faster,
            with the ending of the fastest model, in the directory of the run, or else in this folder.
        report: Reports to write: .html is a page, .png or .svg its picture, .json has the numbers.
            Default: faster.html beside the model.
        **overrides: What the file of the model does not say, or should be something else: `Overrides`.

    Raises:
        BadSettings: If a setting has a value that is not allowed, there are no images that the model has
            not learned from, or no model is fast enough.
        BadData: If the images cannot be read, or the model cannot be evaluated by them.
        BadWeights: If the model cannot be read.
        Unsupported: If no faster model of this kind can be made.
    """
    # The goal
    hints = hints_of(overrides)
    seconds = duration(budget, "`budget`", "10m")
    most = None
    if at_most:
        most = 1000 * duration(at_most, "`at_most`", "15ms")
    if not 0 < lose < 100:
        raise BadSettings(
            f"`lose` is {lose:g}; it is in points of accuracy, above 0 and below 100, such as 0.5"
        )
    libraries: tuple[Library, ...] = LIBRARIES
    if output is not None:
        libraries = (library_of(output),)
    for path in report:
        if path.suffix.lower() not in WRITTEN:
            raise BadSettings(f"`report` is {path}; its name ends in {', '.join(WRITTEN)}")
    goal = Goal(lose, most, SearchGoal(purpose, seconds, libraries))
    run_dir = run_of(model)
    places = places_for(run_dir, output, report)

    # The model, and its images
    classifier = classifier_of(model, hints)
    check(classifier)
    if output is not None and not output.suffix:
        check_savable(classifier, output)
    if data:
        subject = of_data(classifier, data, run_dir)
    elif run_dir is not None:
        subject = of_run(classifier, run_dir)
    else:
        raise BadSettings(
            f"{name_of(model)} is not a run, so there are no held-out images: "
            "name some, sorted into folders of their classes, with `data`"
        )

    asked: dict[str, Any] = {}
    if data:
        asked["data"] = data
    if purpose != "latency":
        asked["purpose"] = purpose
    if output is not None:
        asked["output"] = output
    return _found(model, subject, goal, places, asked)


def places_for(run_dir: Path | None, output: Path | None, report: tuple[Path, ...]) -> Places:
    """The output paths of a search. Raises BadSettings or OSError, before the search, if they cannot be
    written."""
    path = output or (run_dir or Path()) / NAME
    check_can_be_made(path)
    reports = report or (path.with_name(f"{path.stem}.html"),)
    for each in reports:
        check_replaceable(each)
    return Places(path, output is not None, tuple(reports))


def _found(
    model: str | Classifier,
    subject: SearchSubject,
    goal: Goal,
    places: Places,
    asked: dict[str, Any],
) -> FasterModel:
    """Search, and write the chosen model and the reports."""
    say(f"evaluating on {subject.where}")
    found = search(subject, goal.search)
    line = found.line
    chosen = choose(line, goal.lose / 100, goal.most)

    # The output
    output = places.output
    if not places.is_given:
        output = output.with_name(f"{NAME}{ending_of(chosen.library)}")
    written = write(subject, found, chosen, output)
    sentences = tuple(_sentences(goal, found, chosen))
    for path in places.reports:
        _report(path, goal.lose, line, chosen, list(sentences))
    return FasterModel(model, asked, line, chosen, output, written, sentences, places.reports)


def duration(text: str, option: str, example: str) -> float:
    """Seconds of a text such as 15ms, 90s, 10m or 1h. Raises VitkitError for any other text, also ""."""
    match = DURATION.fullmatch(text)
    if match is None or not match[2] or float(match[1]) == 0:
        raise BadSettings(f"{option} is {text!r}; it is a time such as {example}")
    return float(match[1]) * SECONDS[match[2]]


def choose(line: ParetoLine, lose: float, most: float | None) -> Point:
    """The fastest model that is shown to lose less than the share `lose`; or the most accurate one within
    `most` milliseconds. Raises VitkitError if no model is that fast."""
    if most is None:
        return line.fastest(lose)
    chosen = line.most_accurate(most)
    if chosen is None:
        fastest = min(line.points, key=lambda point: point.milliseconds)
        rest = f"; {_left_out(line)}" if line.left_out else ""
        raise BadSettings(
            f"no model takes {most:g} ms or less: the fastest is {fastest.name}, with "
            f"{fastest.milliseconds:.3g} ms an image{rest}"
        )
    return chosen


def _left_out(line: ParetoLine) -> str:
    """A sentence about what there was no time for."""
    return (
        f"there was no time for {counted(len(line.left_out), 'part')} of the search, such as "
        f"{line.left_out[0]}; the same command continues"
    )


def _sentences(goal: Goal, found: Found, chosen: Point) -> Iterator[str]:
    """Sentences about the chosen model, and about faster ones that failed the test."""
    line = found.line
    yield f"chosen: {chosen.name}, {chosen.times:.2f} times as fast as the whole model in PyTorch"
    loss = chosen.loss
    if loss.at_most == 0:
        yield "it computes the same numbers up to rounding, so it loses nothing"
    else:
        # For a model chosen by its loss, no tighter limit than the requested one can be promised: it was
        # selected among several, and each test holds for the requested limit
        how_much = f"loses less than {_points(goal.lose)}, as asked"
        if goal.most is not None:
            how_much = f"loses {100 * loss.at_most:.2f} points at most"
        less = f"{100 * loss.lost:.1f} points less often"
        if loss.lost < 0:
            less = f"{-100 * loss.lost:.1f} points more often"
        yield (
            f"it {how_much}, at 95 % confidence, by {line.tested:,} of {line.where}: there it is right "
            f"{less} (a loss of {100 * loss.low:.1f} to {100 * loss.high:.1f})"
        )
        if goal.most is None:
            by_chance = 100 * on_others(loss, goal.lose / 100, line.tested)
            yield (
                f"that is of all images of this kind: on {line.tested:,} others, it may lose up to "
                f"{by_chance:.1f} points by chance alone"
            )
    if goal.most is None:
        yield from _failed_next(goal.lose, found)
    if line.left_out:
        yield _left_out(line)


def _failed_next(lose: float, found: Found) -> Iterator[str]:
    """Sentences about why the next model of the front failed, and how many images could be enough."""
    failing = found.line.failing(lose / 100)
    if failing is None:
        return
    loss = failing.loss
    sentence = (
        f"the next of the line, {failing.name}, is {failing.times:.2f} times as fast; that it loses less "
        f"than {_points(lose)} is not shown by {found.line.tested:,} images "
        f"({100 * loss.at_most:.2f} at most)"
    )
    images = found.needed(failing, lose / 100)
    if images is None:
        yield f"{sentence}, and more would hardly show it, because it seems to lose that much"
    elif images <= found.line.images:
        yield f"{sentence}; other images, or more of them, might show it"
    else:
        yield f"{sentence}; about {images:,} images could"


def _points(lose: float) -> str:
    """A number of percentage points as text."""
    return f"{lose:g} point" if lose == 1 else f"{lose:g} points"


def _report(path: Path, lose: float, line: ParetoLine, chosen: Point, sentences: list[str]) -> None:
    """Write a report: a page, a figure or the numbers, by its suffix."""
    ending = path.suffix.lower()
    if ending == ".html":
        write_page(path, line, chosen, sentences)
    elif ending == ".json":
        path.absolute().parent.mkdir(parents=True, exist_ok=True)
        values = {"made": MARK} | line.to_json() | {"chosen": chosen.name, "lose": lose}
        write_json(path, values)
    else:
        draw(path, line, chosen)
