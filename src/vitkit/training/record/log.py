"""What a run writes down while it trains: metrics.jsonl always, TensorBoard if the recipe asks for
it, and a bar on the terminal."""

import json
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Column
from torch import Tensor

from vitkit.evaluation import Metric, number_of, plain_number
from vitkit.system.console.saying import console_of_listener
from vitkit.system.console.text import printable
from vitkit.system.processes.ranks import on_rank_0
from vitkit.training.record.meter import Meter, Pace

TEXT_WIDTH = 72  # columns of the longest text beside the bar
SLOW_DATA = 0.1  # share of the time spent waiting for data from which it is worth saying


class Log:
    """Writes one JSON line an event, and shows how far the run is.

    A log that is opened at a step forgets the lines of later steps: a run that was killed after its
    last checkpoint does those steps again, and writes their lines again.
    """

    def __init__(
        self,
        run_dir: Path,
        step: int,
        total: int,
        tensorboard: bool = False,
        console: Console | None = None,
    ):
        self.console = console or console_of_listener()
        self.total = total

        # The file, on rank 0 only; all ranks read what it holds
        self.path = run_dir / "metrics.jsonl"
        lines, damaged = _read(self.path)
        past = [line for line in lines if line["step"] <= step]
        writes = on_rank_0()
        if writes:
            new = self.path.with_suffix(".new")
            new.write_text("".join(map(to_line, past)), "utf-8")
            new.replace(self.path)
        path = self.path if writes else Path(os.devnull)
        self.file = path.open("a", buffering=1)  # line by line
        self.evaluated = {
            (line["step"], line["evaluator"]) for line in past if line["event"] == "evaluation"
        }
        """At which steps evaluators have measured: (step, title of the evaluator)."""

        # TensorBoard, the bar, and the clock
        self.board = None
        if tensorboard and writes:
            self.board = _tensorboard(run_dir, step)
        self.bar = _bar(self.console)
        self.task = self.bar.add_task("", total=total, completed=step, text="the first step")
        self.bar.start()
        self.meter = Meter(step)
        self.began_at = step
        self.shown_at = 0.0
        """When the bar's numbers were last brought up to date, in seconds of a clock."""
        self.said_step = -1
        """The step that the last line without a terminal was about."""
        if damaged:
            self.say(f"{damaged:,} damaged lines of {self.path} are left out")

    def say(self, text: str) -> None:
        """Print a sentence for the person who watches, above the bar."""
        self.bar.console.print(printable(text), highlight=False, markup=False, soft_wrap=True)

    def __call__(self, event: str, step: int, **values: float | int | str | list) -> None:
        """Write `values` as a line of this event and step."""
        self._write({"event": event, "step": step, **values})
        numbers = {name: x for name, x in values.items() if isinstance(x, int | float)}
        self._draw(step, numbers)

    def evaluation(
        self, step: int, evaluator: str, metrics: Sequence[Metric], primary: str = ""
    ) -> None:
        """Write what an evaluator measured, which is named by its title. `primary` is the name of
        the metric by which runs are compared, if it is among them."""
        line = {"event": "evaluation", "step": step, "evaluator": evaluator}
        if primary:
            line["primary"] = primary
        line["metrics"] = {metric.name: metric for metric in metrics}
        self._write(line)
        self.evaluated.add((step, evaluator))
        self._draw(step, {metric.name: metric.value for metric in metrics})

    def _write(self, line: dict) -> None:
        self.file.write(to_line(line))

    def _draw(self, step: int, numbers: dict[str, float]) -> None:
        """Numbers for TensorBoard, if it is on."""
        if self.board:
            for name, value in numbers.items():
                self.board.add_scalar(name, value, step)

    def training(self, step: int, images: int, loss: float, norm: float, lr: float) -> None:
        """Write a point of the training curve, with the speed; `images` is those of one step."""
        # To the file, in six digits
        pace = self.meter.read(step, images, self.total)
        values = {
            "loss": loss,
            "norm": norm,
            "lr": lr,
            "images_per_second": pace.images_per_second,
            "data_wait": pace.data_wait,
        }
        rounded = {name: float(f"{value:.6g}") for name, value in values.items()}
        self("training", step, **rounded)

        self._show(step, pace, loss, f"  lr {lr:.2e}")

    def at(self, step: int, images: int, loss: Tensor) -> None:
        """Move the bar, and about once a second its numbers: `images` are those of one step, and
        the loss is the step's. The first step is shown at once, without a terminal as a line."""
        now = time.perf_counter()
        is_first = step == self.began_at + 1
        on_terminal = self.console.is_terminal
        if is_first or (on_terminal and now - self.shown_at > 1):  # item() waits for a GPU
            self._show(step, self.meter.so_far(step, images, self.total), loss.item())
        elif on_terminal:
            self.bar.update(self.task, completed=step)

    def _show(self, step: int, pace: Pace, loss: float, rate: str = "") -> None:
        """The numbers of a step beside the bar; without a terminal as a line, which has the learning
        rate too."""
        self.shown_at = time.perf_counter()
        numbers = f"{step:,}/{self.total:,}  loss {loss:.4f}"
        speed = f"{pace.images_per_second:,.0f} images/s"
        if pace.data_wait >= SLOW_DATA:
            speed += f"  data wait {pace.data_wait:.0%}"
        text = f"{numbers}  {speed}  {clock(pace.seconds_left)} left"
        self.bar.update(self.task, completed=step, total=self.total, text=text)
        if not self.console.is_terminal and step != self.said_step:
            self.said_step = step
            self.say(f"{numbers}{rate}  {speed}  {clock(pace.seconds_left)} left")

    def metrics(self, step: int, metrics: Sequence[Metric]) -> None:
        """Print what was measured, without what is neither good nor bad, such as counts."""
        texts = []
        for metric in metrics:
            if metric.unit.better != "neither":
                texts.append(f"{metric.name} {metric.text()}")
        self.say(f"step {step:,}: {', '.join(texts)}")

    def evaluating(self, name: str, batches) -> Iterator:
        """The same batches, while the bar says how many of them are done."""
        for number, batch in enumerate(batches, 1):
            text = f"evaluating {name:.20}, batch {number:,} of {len(batches):,}"
            self.bar.update(self.task, text=text)
            yield batch
        self.bar.update(self.task, text="")

    def close(self) -> None:
        """Close the files and remove the bar."""
        self.bar.stop()
        self.file.close()
        if self.board:
            self.board.close()


def _bar(console: Console) -> Progress:
    """A bar with a text after it, in one line of a terminal; nothing elsewhere."""
    width = min(max(console.width - TEXT_WIDTH, 4), 30)
    return Progress(
        BarColumn(bar_width=width),
        TextColumn("{task.fields[text]}", table_column=Column(no_wrap=True, overflow="ellipsis")),
        console=console,
        transient=True,
        auto_refresh=console.is_terminal,
        disable=not console.is_terminal,
    )


def _tensorboard(run_dir: Path, step: int):
    """TensorBoard's writer, which forgets the events of later steps."""
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(run_dir / "tensorboard", purge_step=step + 1)


def to_line(line: dict) -> str:
    """A line of metrics.jsonl. It is always valid JSON: a number that is not finite is null, and
    "notes" say which it was."""
    values = {}
    notes = {}  # of numbers that JSON does not have, by name
    for name, value in line.items():
        if name == "metrics":
            value = {key: metric.to_json() for key, metric in value.items()}
        elif isinstance(value, float):
            value, note = plain_number(value)
            if note:
                notes[name] = note
        values[name] = value
    if notes:
        values["notes"] = notes
    return json.dumps(values, allow_nan=False) + "\n"


def read_metrics(path: Path) -> list[dict]:
    """Every whole line of a metrics.jsonl; a damaged one, or a last one that was cut off by a kill,
    is left out.

    The "metrics" of an evaluation are a dict of Metric by name; numbers that were not finite are
    NaN or infinite again.
    """
    lines, _ = _read(path)
    return lines


def _read(path: Path) -> tuple[list[dict], int]:
    """The whole lines of a metrics.jsonl, and how many others are damaged."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return [], 0
    lines = []
    damaged = 0
    for line in data.split(b"\n")[:-1]:  # what follows the last newline was cut off
        try:
            lines.append(_from_json(line))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            damaged += 1
    return lines, damaged


def _from_json(line: bytes) -> dict:
    """The line that `to_line` wrote. Raises one of several errors if it is damaged."""
    values = json.loads(line)
    if not isinstance(values["event"], str) or not isinstance(values["step"], int):
        raise ValueError("an event has a name and a step")
    if values["event"] == "evaluation" and not isinstance(values["evaluator"], str):
        raise ValueError("an evaluation says what measured")
    for name, note in values.pop("notes", {}).items():
        values[name] = number_of(values[name], note)
    if "metrics" in values:
        metrics = values["metrics"].items()
        values["metrics"] = {name: Metric.from_json(name, saved) for name, saved in metrics}
    return values


def last_metrics(run_dir: Path) -> dict[str, Metric]:
    """Every metric of a run at its latest evaluation, by name; empty before the first."""
    metrics = {}
    for line in read_metrics(run_dir / "metrics.jsonl"):
        metrics |= line.get("metrics", {})
    return metrics


def primary_lines(run_dir: Path) -> list[dict[str, Metric]]:
    """What a run's first evaluator measured, at each of its evaluations."""
    lines = read_metrics(run_dir / "metrics.jsonl")
    return [line["metrics"] for line in lines if "primary" in line]


def lines_of(run_dir: Path, name: str) -> list[dict[str, Metric]]:
    """A metric by its name, at each evaluation that has measured it."""
    lines = read_metrics(run_dir / "metrics.jsonl")
    return [{name: line["metrics"][name]} for line in lines if name in line.get("metrics", {})]


def primary_metric(run_dir: Path) -> Metric | None:
    """The metric by which a run is compared with others, at its latest evaluation; None if nothing
    is measured.

    It is the first metric of the recipe's first evaluator, on the last part that it measures: the
    test part, if there is one.
    """
    for line in reversed(read_metrics(run_dir / "metrics.jsonl")):
        if "primary" in line:
            return line["metrics"][line["primary"]]
    return None


def clock(seconds: float) -> str:
    """1:02:03, or 4:05 below an hour."""
    minutes, seconds = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d}"
    return f"{minutes}:{seconds:02d}"
