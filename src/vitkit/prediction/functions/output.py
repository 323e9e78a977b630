"""Output of predictions: a value for Python, and rows, files, folders and pictures on the way."""

import signal
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any

from vitkit.prediction.functions.common import Request, answers_of, answers_to_names
from vitkit.prediction.functions.terminal import UNKNOWN, AnswerTable, ImageCounter, number
from vitkit.prediction.items import Item
from vitkit.prediction.predictions import Answered, Prediction, least_open
from vitkit.prediction.rows import RowsFile, as_json
from vitkit.prediction.sorting import Sorter
from vitkit.runtimes import Runtime
from vitkit.system.console.messages import live_output, say
from vitkit.system.console.text import as_word, counted, printable_name
from vitkit.system.errors import BadSettings
from vitkit.system.functions.arguments import status_of
from vitkit.system.functions.results import Rows
from vitkit.system.functions.steps import IMAGES, step
from vitkit.system.processes.signals import signals_are_ours
from vitkit.weights import Activation

if TYPE_CHECKING:
    from vitkit.inspection import Tile
    from vitkit.prediction.attention import LookPictures
    from vitkit.prediction.regions import RegionsFile
    from vitkit.weights import Classifier


@dataclass(frozen=True, repr=False)
class Predictions(Rows, Sequence[Prediction]):
    """A model's predictions for images, in the order of the images."""

    answers: tuple[Prediction, ...]
    """One prediction per image: its most likely classes, or an error."""
    labels: tuple[str, ...]
    """The model's classes."""
    activation: Activation
    unreadable: int
    """Number of images that could not be read."""
    path: Path | None
    """The file or folder that the predictions were written to."""
    notes: tuple[str, ...]
    """Sentences about the written files and the next step."""
    written: tuple[dict[str, str], ...] = ()
    """For each prediction, the files that were written for its image, by kind."""
    json: bool = False
    """Whether the result is printed as JSON lines."""
    ok_if_unreadable: bool = False
    """Whether the exit status is 0 even if images could not be read."""

    @classmethod
    def of(
        cls, taking: "Taking", path: Path | None, notes: tuple[str, ...], ok_if_unreadable: bool
    ) -> "Predictions":
        """The result that holds all predictions collected by `taking`."""
        return cls(
            tuple(taking.kept),
            tuple(taking.runtime.labels),
            taking.runtime.activation,
            taking.progress.unreadable,
            path,
            notes,
            tuple(taking.kept_extra),
            taking.json,
            ok_if_unreadable,
        )

    def __len__(self) -> int:
        return len(self.answers)

    def __getitem__(self, i):
        return self.answers[i]

    @property
    def status(self) -> int:
        """The exit status of the command: 3 if images could not be read, unless `ok_if_unreadable`."""
        return status_of(self.unreadable, self.ok_if_unreadable)

    def rows(self) -> list[dict]:
        """One row per image, with the columns of CSV and JSON lines: the image's name, its most
        likely class with the probability, all listed classes, and the error."""
        rows = []
        for answer, extra in zip(self.answers, self.written, strict=True):
            row: dict[str, object] = {"name": answer.name, "label": answer.label}
            row |= {"probability": answer.probability}
            row |= {"labels": answer.labels, "probabilities": answer.probabilities}
            row |= {"truth": answer.truth, "error": answer.error}
            if answer.unknown is not None:
                row |= {"unknown": answer.unknown, "possible": answer.possible}
            rows.append(row | extra)
        return rows

    def shown(self) -> Iterator[str]:
        """The predictions (unless the command line has printed them already), the unreadable
        images, and the notes about written files."""
        if self.answers and self.json:
            yield "\n".join(map(as_json, self.answers, self.written))
        elif self.answers:
            text = StringIO()
            AnswerTable(self.labels, self.activation, text).print(self.answers)
            yield text.getvalue().rstrip("\n")
            errors = [answer.error for answer in self.answers if answer.error is not None]
            yield from (f"not classified: {error}" for error in errors[:LISTED])
            if len(errors) > LISTED:
                yield f"not classified: {len(errors) - LISTED:,} more"
        yield from self.notes


@contextmanager
def _termination_as_interrupt() -> Iterator[None]:
    """A block in which SIGTERM acts like Ctrl-C, so that a service that is stopped still completes the
    file that it is writing."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or not signals_are_ours():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def take_answers(
    asked: Request,
    items: Sequence[Item] | None,
    taking: "Taking",
    limit: int = 0,
    written_to: Sequence[Path] = (),
) -> None:
    """Classify images, or those named on standard input, and pass each batch to `taking`."""
    if items is None:
        batches = answers_to_names(asked, taking.runtime, None, limit, written_to)
    else:
        batches = answers_of(asked, taking.runtime, items)
    with taking:
        taking.take_all(batches)


def _regions_file(runtime: Runtime, path: Path) -> "RegionsFile":
    """The file of regions. Raises BadSettings for a model that has none."""
    from vitkit.prediction.attention import Looking, LookingFile
    from vitkit.prediction.regions import RegionsFile

    assert isinstance(runtime, Looking | LookingFile), "called with looking=True"
    if not runtime.is_anomaly_map:
        raise BadSettings(
            "`regions` are of a model of good images, which says where an image is unlike them, and this is a "
            "classifier; `attention` draws what it looks at"
        )
    return RegionsFile(path, runtime.labels)


LISTED = 50  # largest number of unreadable images that are listed
TILES = 400  # largest number of images on a contact sheet


class Taking:
    """Processes the predictions of each batch, as a context manager: the output file is complete when the
    block ends. `conclude` reports what was done.

    The command line prints rows as they come and does not keep them; a Python call keeps them.
    """

    def __init__(
        self,
        runtime: Runtime,
        total: int | None,
        top: int,
        *,
        to: Path | None = None,
        attention: Path | None = None,
        regions: Path | None = None,
        sheet: Path | None = None,
        sorter: Sorter | None = None,
        json: bool = False,
    ):
        """total: number of images; None if unknown. Opens the output file; raises VitkitError and
        OSError if it cannot be written."""
        self.runtime = runtime
        self.progress = ImageCounter(total)
        self.to = to
        self.attention = attention
        self.sheet = sheet
        self.sorter = sorter
        self.json = json
        self.live = live_output()
        self.kept: list[Prediction] = []
        """All predictions; only in a Python call."""
        self.kept_extra: list[dict[str, str]] = []
        """The extra columns of each prediction in `kept`."""
        self.errors: list[str] = []
        """Messages of the first LISTED unreadable images."""
        self.tiles: list[Tile] = []
        self.files = ExitStack()
        self.table = None
        self.rows = None
        self.looks = None

        extra = []
        if attention is not None:
            from vitkit.prediction.attention import Looking, LookingFile, LookPictures

            assert isinstance(runtime, Looking | LookingFile), "called with looking=True"
            self.looks = LookPictures(attention, runtime)
            extra.append("attention")
        self.regions = None
        if regions is not None:
            self.regions = _regions_file(runtime, regions)
        if sorter is not None:
            extra.append("sorted_to")
        if least_open(runtime) is not None:
            extra += ["unknown", "possible"]
        if to is not None:
            self.rows = RowsFile(to, min(top, len(runtime.labels)), extra)
        elif self.live is not None and not json:
            page = get_terminal_size().lines - 5
            self.table = AnswerTable(runtime.labels, runtime.activation, self.live, max(page, 10))

    def take_all(self, batches: Generator[Answered, None, None]) -> None:
        """Process every batch."""
        with closing(batches):
            for answered in batches:
                self.take(answered)

    def __enter__(self) -> "Taking":
        if self.rows is not None:
            self.files.enter_context(_termination_as_interrupt())
            self.files.enter_context(self.rows)
        return self

    def __exit__(self, *ended: Any) -> None:
        self.progress.wipe()
        self.files.__exit__(*ended)

    def take(self, answered: Answered) -> None:
        """Print, write and draw the predictions of a batch. Raises OSError."""
        predictions = answered.predictions
        if predictions:
            self.progress.wipe()
        extra: list[dict[str, str]] = [{} for _ in predictions]
        if self.looks is not None:
            self._draw_looks(self.looks, answered, extra)
        if self.regions is not None:
            self._add_regions(self.regions, answered)
        if self.sorter is not None:
            predictions = self._sort(self.sorter, predictions, extra)
        if self.rows is not None:
            self.rows.write(predictions, extra)
        if self.table is not None:
            self.table.print(predictions)
        if self.live is None:
            self.kept += predictions
            self.kept_extra += extra
        elif self.json:
            # One line of JSON for each, for the program that reads standard output
            for prediction, more in zip(predictions, extra, strict=True):
                print(as_json(prediction, more), file=self.live)
            self.live.flush()
        if self.sheet is not None:
            self._add_tiles(answered)

        # Count them
        errors = [each.error for each in predictions if each.error is not None]
        self.errors += errors[: LISTED - len(self.errors)]
        self.progress.count(len(predictions), len(errors))

    def _draw_looks(
        self, looks: "LookPictures", answered: Answered, extra: list[dict[str, str]]
    ) -> None:
        """Draw the attention picture of each readable image."""
        for place, row in enumerate(answered.prepared.rows):
            if answered.predictions[row].error is not None:
                continue
            image = self.runtime.preprocessing.image_of(answered.prepared.images, place)
            if looks.looking.is_anomaly_map:
                image = looks.whole(answered.items[row])
            answer = self._caption(answered.predictions[row])
            path = looks.draw(answered.items[row].name, image, place, answer)
            extra[row]["attention"] = str(path)

    def _add_regions(self, regions: "RegionsFile", answered: Answered) -> None:
        """Collect the regions of each readable image."""
        from vitkit.prediction.attention import Looking, LookingFile

        runtime = self.runtime
        assert isinstance(runtime, Looking | LookingFile) and runtime.maps is not None
        for place, row in enumerate(answered.prepared.rows):
            if answered.predictions[row].error is None:
                regions.add(answered.items[row], runtime.maps[place], runtime.of_model)

    def _sort(
        self, sorter: Sorter, predictions: list[Prediction], extra: list[dict[str, str]]
    ) -> list[Prediction]:
        """File the images in folders. Returns the predictions, with an error for each image whose
        file has disappeared."""
        filed = []
        for prediction, more in zip(predictions, extra, strict=True):
            path = Path(prediction.name)
            if prediction.error is None and not path.is_file():
                sentence = f"{prediction.name} is not a file that could be filed any more"
                prediction = replace(prediction, error=sentence)
            elif prediction.error is None:
                more["sorted_to"] = str(sorter.file(path, prediction))
            filed.append(prediction)
        return filed

    def _caption(self, prediction: Prediction) -> str:
        """The prediction as a caption: "ants 97.0%", or "unknown (ants?)"."""
        label = printable_name(prediction.labels[0])
        if prediction.unknown:
            return UNKNOWN.format(label)
        return f"{label} {number(prediction.probabilities[0], self.runtime.activation)}"

    def _add_tiles(self, answered: Answered) -> None:
        """Keep the readable images, as the model received them, for the contact sheet."""
        from vitkit.inspection import Tile

        activation = self.runtime.activation
        for place, row in enumerate(answered.prepared.rows):
            prediction = answered.predictions[row]
            if prediction.error is not None or len(self.tiles) == TILES:
                continue
            right = None  # the true class is unknown
            if prediction.truth is not None and activation != "none":
                # One class, whose name may have commas, or the names of several
                names = {prediction.truth, *prediction.truth.split(", ")}
                right = prediction.labels[0] in names and not prediction.unknown
            image = self.runtime.preprocessing.image_of(answered.prepared.images, place)
            pixels = image.transpose(1, 2, 0)
            self.tiles.append(Tile(pixels, self._caption(prediction), right))

    def conclude(self, model: "str | Classifier") -> tuple[str, ...]:
        """Log a summary and the unreadable images; returns sentences about the written files and the next
        command."""
        good = self.progress.done - self.progress.unreadable
        next_command = step("predict", model, IMAGES, to="answers.csv")

        # What could not be read
        if not self.json:
            for sentence in self.errors:
                say(f"not classified: {sentence}")
        more = self.progress.unreadable - len(self.errors)
        if more > 0 and not self.json:
            say(f"not classified: {more:,} more; `to=FILE` lists them all")
        if not self.progress.done:
            say("there was no image to classify")
        elif self.progress.done > 1:
            say(self.progress.summary())

        # What was written
        written = []
        if self.sorter is not None:
            written.append(self.sorter.summary())
            written += self.sorter.renamed()
            next_command = f"look through {as_word(self.sorter.directory)}"
        if self.attention is not None and good:
            written.append(f"wrote {counted(good, 'picture')} into {self.attention}")
            next_command = f"look at {as_word(self.attention)}"
        if self.regions is not None:
            written.append(self.regions.write())
            next_command = f"open {as_word(self.regions.path)}"
        if self.rows is not None and self.to is not None:
            written.append(f"wrote {self.to}: {counted(self.rows.count, 'row')}")
            next_command = f"open {as_word(self.to)}"
        if self.tiles and self.sheet is not None:
            written.append(self._draw_sheet(self.sheet, good))
            next_command = f"open {as_word(self.sheet)}"
        if self.json:  # standard output carries JSON only
            for sentence in written:
                say(sentence)
            return ()
        if good:
            written.append(f"next: {next_command}")
        return tuple(written)

    def _draw_sheet(self, sheet: Path, good: int) -> str:
        """Draw the contact sheet, and return a sentence about it."""
        from vitkit.inspection import contact_sheet

        contact_sheet(self.tiles, sheet)
        text = f"wrote {sheet}"
        if good > len(self.tiles):
            text += f" with the first {len(self.tiles)} of {good:,} images; `limit` spreads them"
        return text
