"""The fastest model that loses no more than is allowed, as a file."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from rich.table import Table
from tyro.conf import arg

from vitkit.acceleration import (
    HEADER,
    LIBRARIES,
    Found,
    Line,
    Point,
    Subject,
    Wanted,
    cells,
    check,
    draw,
    ending_of,
    library_of,
    of_data,
    of_run,
    on_others,
    search,
    write,
    write_page,
)
from vitkit.runtimes import run_of
from vitkit.system.console.messages import say
from vitkit.system.console.text import as_word, counted, readable
from vitkit.system.errors import BadSettings
from vitkit.system.storage.files import check_can_be_made, check_replaceable, write_json
from vitkit.verbs.arguments import Model, ModelHints, name_of, word_of
from vitkit.verbs.computing import classifier_of
from vitkit.verbs.definition import alone, result, verb
from vitkit.verbs.made_model import MadeModel
from vitkit.weights import Classifier, Hints, check_savable

DURATION = re.compile(r"\s*([0-9]*\.?[0-9]+)\s*(ms|s|m|min|h)?\s*")
SECONDS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
NAME = "faster"  # of what is written, if nobody says
WRITTEN = (".json", ".png", ".svg", ".html")


@dataclass(frozen=True)
class Faster:
    """Find the fastest model that loses no more accuracy than you allow, and write it. The search
    covers every runtime and precision of this machine, fewer blocks, smaller images and merged
    tokens. It measures accuracy on images that the model has not learned from. Run the same command
    again to continue the search."""

    model: Model
    data: Annotated[str, arg(metavar="DATA")] = ""
    """Images to measure accuracy on, from which the model has not learned: the test part of a data
    set with the model's classes. Default: the data set of the model's run."""
    lose: float = 0.5
    """Percentage points of accuracy that the model may lose, at 95 % confidence, if there are
    enough images to show it."""
    at_most: str = ""
    """Instead of --lose: find the most accurate model that takes no longer than this for an image,
    such as 15ms."""
    purpose: Annotated[Literal["latency", "throughput"], arg(name="for")] = "latency"
    """latency: one image at a time; throughput: batches of 32 images."""
    budget: str = "10m"
    """Approximate time of the search: 90s, 10m or 1h."""
    output: Annotated[Path | None, arg(aliases=["-o"])] = None
    """File to write, with the ending .onnx or .xml, or a directory for PyTorch, without an ending.
    The search is then limited to models of this format. Default: a file named faster, with the
    ending of the fastest model, in the directory of the run, or else in this folder."""
    report: tuple[Path, ...] = ()
    """Reports to write: .html is a page, .png or .svg its picture, .json has the numbers. Default:
    faster.html beside the model."""
    hints: ModelHints = field(default_factory=Hints)


@result
@dataclass(frozen=True)
class FasterModel(MadeModel):
    """The models for which no other is both faster and more accurate, and the one that was
    written."""

    settings: Faster
    line: Line
    chosen: Point
    path: Path
    """What was written."""
    classifier: Classifier
    """The chosen model, as PyTorch computes it."""
    sentences: tuple[str, ...]
    """What can be said of it."""
    reports: tuple[Path, ...]

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
        for point in self.line.shown:
            style = "bold" if point == self.chosen else ""
            table.add_row(*cells(point), style=style)
        yield table
        yield from self.sentences
        yield f"wrote {self.path}"
        for path in self.reports:
            yield f"wrote {path}"
        word = as_word(self.path)
        precision = ""
        if self.chosen.library == "torch" and self.chosen.precision != "float32":
            precision = f" --precision {self.chosen.precision}"
        yield f"next: vitkit predict {word} IMAGE...{precision}, or vitkit serve {word}{precision}"
        if other := self.other():
            yield f"another model of the line: {other}"

    def other(self) -> str:
        """The command for a faster point of the line, or for a slower one; "" if there is no other."""
        best = self.line.best
        others = [point for point in best if point != self.chosen]
        if not others:
            return ""
        faster = [point for point in others if point.milliseconds < self.chosen.milliseconds]
        point = faster[0] if faster else others[-1]
        command = f"vitkit faster {word_of(self.settings.model)}"
        if self.settings.data:
            command += f" --data {as_word(self.settings.data)}"
        if self.settings.purpose != "latency":
            command += f" --for {self.settings.purpose}"
        if self.settings.output is not None:
            command += f" -o {as_word(self.settings.output)}"
        return f"{command} --at-most {readable(1.01 * point.milliseconds).replace(',', '')}ms ({point.name})"


@verb
@alone
def faster(settings: Faster) -> FasterModel:
    """Find the fastest model that loses no more accuracy than is allowed, on images that it has not
    learned from, and write it as a file.

    Raises ValueError for a model without such images, and for one that cannot be judged by them.
    """
    return faster_of(settings)


def faster_of(settings: Faster, typed: Sequence[str] = ()) -> FasterModel:
    """The fastest model, as `faster` finds it.

    typed: names of data sets that a person typed beside the settings: those of a command that ends with
    this search.
    """
    # What is wanted
    seconds = duration(settings.budget, "`budget`", "10m")
    most = None
    if settings.at_most:
        most = 1000 * duration(settings.at_most, "`at_most`", "15ms")
    if not 0 < settings.lose < 100:
        raise BadSettings(
            f"`lose` is {settings.lose:g}; it is in points of accuracy, above 0 and below 100, such as 0.5"
        )
    libraries = LIBRARIES
    if settings.output is not None:
        libraries = (library_of(settings.output),)
    for path in settings.report:
        if path.suffix.lower() not in WRITTEN:
            raise BadSettings(f"`report` is {path}; its name ends in {', '.join(WRITTEN)}")

    # Where it is written: found out before the search, not after it
    run_dir = run_of(settings.model)
    output = settings.output or (run_dir or Path()) / NAME
    check_can_be_made(output)
    reports = settings.report or (output.with_name(f"{output.stem}.html"),)
    for path in reports:
        check_replaceable(path)

    # The model, and the images
    classifier = classifier_of(settings.model, settings.hints)
    check(classifier)
    if settings.output is not None and not output.suffix:
        check_savable(classifier, output)
    subject = subject_of(settings, classifier, run_dir, typed)
    say(f"judging by {subject.where}")

    # The search
    found = search(subject, Wanted(settings.purpose, seconds, libraries))
    line = found.line
    chosen = choose(line, settings.lose / 100, most)

    # What is written
    if settings.output is None:
        output = output.with_name(f"{NAME}{ending_of(chosen.library)}")
    written = write(subject, found, chosen, output)
    sentences = tuple(_sentences(settings, found, chosen))
    for path in reports:
        _report(path, settings, line, chosen, list(sentences))
    return FasterModel(settings, line, chosen, output, written, sentences, tuple(reports))


def duration(text: str, option: str, example: str) -> float:
    """Seconds of a text such as 15ms, 90s, 10m or 1h. Raises ValueError for any other, and for none."""
    match = DURATION.fullmatch(text)
    if match is None or not match[2] or float(match[1]) == 0:
        raise BadSettings(f"{option} is {text!r}; it is a time such as {example}")
    return float(match[1]) * SECONDS[match[2]]


def subject_of(
    settings: Faster, classifier: Classifier, run_dir: Path | None, typed: Sequence[str] = ()
) -> Subject:
    """The model on the images that are named, or on those of its run. Raises ValueError without either."""
    if settings.data:
        return of_data(classifier, settings.data, run_dir)
    if run_dir is None:
        raise BadSettings(
            f"{name_of(settings.model)} is no run, so there are no images that it has not learned from: "
            "name some, sorted into folders of their classes, with `data`"
        )
    return of_run(classifier, run_dir, typed)


def choose(line: Line, lose: float, most: float | None) -> Point:
    """The fastest for which a loss below this share can be promised; or the most accurate within
    this many milliseconds. Raises ValueError if nothing is as fast."""
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


def _left_out(line: Line) -> str:
    """What there was no time for."""
    return (
        f"there was no time for {counted(len(line.left_out), 'part')} of the search, such as "
        f"{line.left_out[0]}; the same command continues"
    )


def _sentences(settings: Faster, found: Found, chosen: Point) -> Iterator[str]:
    """What can be said of the chosen model, and of those that could not be chosen."""
    line = found.line
    yield f"chosen: {chosen.name}, {chosen.times:.2f} times as fast as the whole model in PyTorch"
    loss = chosen.loss
    if loss.at_most == 0:
        yield "it computes the same numbers up to rounding, so it loses nothing"
    else:
        # Of a model that was chosen by its loss nothing tighter than what was asked is promised: it was
        # chosen among several, and the test of each holds for that limit
        how_much = f"loses less than {_points(settings.lose)}, as asked"
        if settings.at_most:
            how_much = f"loses {100 * loss.at_most:.2f} points at most"
        less = f"{100 * loss.lost:.1f} points less often"
        if loss.lost < 0:
            less = f"{-100 * loss.lost:.1f} points more often"
        yield (
            f"it {how_much}, at 95 % confidence, by {line.tested:,} of {line.where}: there it is right "
            f"{less} (a loss of {100 * loss.low:.1f} to {100 * loss.high:.1f})"
        )
        if not settings.at_most:
            by_chance = 100 * on_others(loss, settings.lose / 100, line.tested)
            yield (
                f"that is of all images of this kind: on {line.tested:,} others, it may lose up to "
                f"{by_chance:.1f} points by chance alone"
            )
    if not settings.at_most:
        yield from _not_promised(settings.lose, found)
    if line.left_out:
        yield _left_out(line)


def _not_promised(lose: float, found: Found) -> Iterator[str]:
    """What the next model of the line lacks, and how many images could promise it."""
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
    """So many points of accuracy, in words."""
    return f"{lose:g} point" if lose == 1 else f"{lose:g} points"


def _report(path: Path, settings: Faster, line: Line, chosen: Point, sentences: list[str]) -> None:
    """A page, a picture or the numbers."""
    ending = path.suffix.lower()
    if ending == ".html":
        write_page(path, line, chosen, sentences)
    elif ending == ".json":
        path.absolute().parent.mkdir(parents=True, exist_ok=True)
        values = line.to_json() | {"chosen": chosen.name, "lose": settings.lose}
        write_json(path, values)
    else:
        draw(path, line, chosen)
