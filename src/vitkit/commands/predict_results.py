"""Where the answers of `vitkit predict` go: to the terminal, into a file, folders and pictures."""

import sys
from contextlib import ExitStack
from pathlib import Path
from shutil import get_terminal_size
from types import TracebackType
from typing import TYPE_CHECKING

from vitkit.commands.predict_progress import Progress
from vitkit.commands.predict_table import AnswerTable, number
from vitkit.system.console.text import as_word, counted, printable, printable_name

if TYPE_CHECKING:
    from vitkit.commands.predict import Predict
    from vitkit.inspection import Tile
    from vitkit.prediction import Answered, Prediction
    from vitkit.runtimes import Runtime

LISTED = 50  # unreadable images, by name
TILES = 400  # pictures of a contact sheet, at most


class Results:
    """Takes the answers of each batch, in a `with`: when the block ends, the file that they go to is
    whole. `conclude` says what was done."""

    def __init__(self, command: "Predict", runtime: "Runtime", progress: Progress):
        """Opens the file; raises ValueError and OSError if it cannot be written."""
        self.command = command
        self.runtime = runtime
        self.progress = progress
        self.errors: list[str] = []
        """What is wrong with the first unreadable images."""
        self.tiles: list[Tile] = []
        self.files = ExitStack()
        self.table = None
        self.rows = None
        self.sorter = None
        self.looks = None

        from vitkit.prediction import limits_of

        extra = []
        if command.attention is not None:
            from vitkit.prediction import LookPictures

            self.looks = LookPictures(command.attention)
            extra.append("attention")
        if command.sort_into is not None:
            self.sorter = _sorter(command, runtime)
            extra.append("sorted_to")
        if limits_of(runtime) is not None:
            extra += ["unknown", "possible"]
        if command.to is not None:
            from vitkit.prediction import RowsFile

            top = min(command.top, len(runtime.labels))
            self.rows = RowsFile(command.to, top, extra)
        elif not command.json:
            page = get_terminal_size().lines - 5
            self.table = AnswerTable(runtime.labels, runtime.activation, sys.stdout, max(page, 10))

    def __enter__(self) -> "Results":
        if self.rows is not None:
            self.files.enter_context(self.rows)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.progress.wipe()
        self.files.__exit__(kind, error, traceback)

    def take(self, answered: "Answered") -> None:
        """Do with the answers of a batch what the command says. Raises OSError."""
        predictions = answered.predictions
        if predictions:
            self.progress.wipe()
        extra = [{} for _ in predictions]
        if self.looks is not None:
            self._draw_looks(answered, extra)
        if self.sorter is not None:
            predictions = self._sort(predictions, extra)
        if self.rows is not None:
            self.rows.write(predictions, extra)
        if self.table is not None:
            self.table.print(predictions)
        if self.command.json:
            self._print_json(predictions, extra)
        if self.command.sheet is not None:
            self._add_tiles(answered)

        # Count them
        errors = [each.error for each in predictions if each.error is not None]
        self.errors += errors[: LISTED - len(self.errors)]
        self.progress.count(len(predictions), len(errors))

    def _draw_looks(self, answered: "Answered", extra: list[dict[str, str]]) -> None:
        """Draw what the model looked at in each image that it could read."""
        for place, row in enumerate(answered.prepared.rows):
            if answered.predictions[row].error is not None:
                continue
            image = answered.prepared.images[place]
            weights = self.runtime.maps[place].numpy()
            path = self.looks.draw(answered.items[row].name, image, weights)
            extra[row]["attention"] = str(path)

    def _sort(
        self, predictions: "list[Prediction]", extra: list[dict[str, str]]
    ) -> "list[Prediction]":
        """File the photographs. Returns the predictions, with an error for one that went away or is
        no file."""
        filed = []
        for prediction, more in zip(predictions, extra, strict=True):
            path = Path(prediction.name)
            if prediction.error is None and not path.is_file():
                sentence = f"{prediction.name} is no file that could be filed any more"
                prediction = prediction._replace(error=sentence)
            elif prediction.error is None:
                more["sorted_to"] = str(self.sorter.file(path, prediction))
            filed.append(prediction)
        return filed

    def _print_json(self, predictions: "list[Prediction]", extra: list[dict[str, str]]) -> None:
        """A line for each, for the program that reads it."""
        from vitkit.prediction import as_json

        for prediction, more in zip(predictions, extra, strict=True):
            print(as_json(prediction, more))
        sys.stdout.flush()

    def _add_tiles(self, answered: "Answered") -> None:
        """Keep the images that could be read, as the model got them, for the contact sheet."""
        from vitkit.inspection import Tile

        activation = self.runtime.activation
        for place, row in enumerate(answered.prepared.rows):
            prediction = answered.predictions[row]
            if prediction.error is not None or len(self.tiles) == TILES:
                continue
            value = number(prediction.probabilities[0], activation)
            caption = f"{printable_name(prediction.labels[0])} {value}"
            right = None  # nobody knows
            if prediction.truth is not None and activation != "none":
                # One class, whose name may have commas, or the names of several
                names = {prediction.truth, *prediction.truth.split(", ")}
                right = prediction.labels[0] in names
            pixels = answered.prepared.images[place].transpose(1, 2, 0)
            self.tiles.append(Tile(pixels, caption, right))

    def conclude(self) -> None:
        """Say what was done, list what could not be read, and draw the contact sheet."""
        command = self.command
        good = self.progress.done - self.progress.unreadable
        next_command = f"vitkit predict {as_word(command.model)} IMAGE... --to answers.csv"

        # What could not be read
        if not command.json:
            for sentence in self.errors:
                print(f"not classified: {printable(sentence)}", file=sys.stderr)
        more = self.progress.unreadable - len(self.errors)
        if more > 0 and not command.json:
            print(f"not classified: {more:,} more; --to FILE names them all", file=sys.stderr)
        if not self.progress.done:
            print("there was no image to classify", file=sys.stderr)
        elif self.progress.done > 1:
            print(self.progress.summary(), file=sys.stderr)

        # What was written; with --json, standard output is for the JSON alone
        terminal = sys.stderr if command.json else sys.stdout
        if self.sorter is not None:
            print(self.sorter.summary(), file=terminal)
            next_command = f"look through {as_word(command.sort_into)}"
        if self.looks is not None and good:
            print(f"wrote {counted(good, 'picture')} into {command.attention}", file=terminal)
            next_command = f"look at {as_word(command.attention)}"
        if self.rows is not None:
            print(f"wrote {command.to}: {counted(self.rows.count, 'row')}", file=terminal)
            next_command = f"open {as_word(command.to)}"
        if self.tiles:
            self._draw_sheet(terminal)
            next_command = f"open {as_word(command.sheet)}"
        if good and not command.json:
            print(f"next: {next_command}")

    def _draw_sheet(self, terminal) -> None:
        from vitkit.inspection import contact_sheet

        contact_sheet(self.tiles, self.command.sheet)
        text = f"wrote {self.command.sheet}"
        good = self.progress.done - self.progress.unreadable
        if good > len(self.tiles):
            text += f" with the first {len(self.tiles)} of {good:,} images; --limit spreads them"
        print(text, file=terminal)


def _sorter(command: "Predict", runtime: "Runtime"):
    """Files the photographs. Raises ValueError for a model whose outputs are no classes."""
    from vitkit.prediction import Sorter

    if runtime.activation == "none":
        raise ValueError(
            f"{command.model} answers with numbers, not with classes, so --sort-into has no folders"
        )
    return Sorter(command.sort_into, runtime.labels, command.sure, command.sort_by)
