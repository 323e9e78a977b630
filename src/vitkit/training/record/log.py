"""The log of a run: metrics.jsonl, optional trackers, and a progress bar with the speed of the training."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Column

from vitkit.evaluation import Metric
from vitkit.system.console.messages import bars_are_shown, console_of_listener, progress_of, say_on
from vitkit.system.processes.ranks import on_rank_0
from vitkit.system.storage.files import write_whole
from vitkit.training.record.metrics import read_lines, to_line
from vitkit.training.record.trackers import FunctionTracker, Tracker, first_line

TEXT_WIDTH = 82  # columns of the longest text beside the bar
SLOW_DATA = 0.1  # share of the time spent waiting for data from which it is shown
# Number of first steps of a call that are shown immediately: they give a loss and a speed
EARLY = 2


class Pace(NamedTuple):
    """The speed of a run."""

    images_per_second: float
    data_wait: float
    """Share of the time spent waiting for data."""
    seconds_left: float
    """Estimated time until the last step."""


class Work(NamedTuple):
    """Operations of a training step and of the devices, in 10^12; 0 if unknown."""

    of_image: float = 0.0
    """Operations of a step for each of its images, counted as in Table 6."""
    most: float = 0.0
    """Peak operations per second of all devices of the run."""

    def rates(self, images_per_second: float) -> dict[str, float]:
        """The operations per second, in 10^12 ("tflops"), and their share of the peak ("mfu"), as far as
        they are known."""
        rates = {}
        if self.of_image:
            rates["tflops"] = images_per_second * self.of_image
        if self.of_image and self.most:
            rates["mfu"] = rates["tflops"] / self.most
        return rates


UNKNOWN_WORK = Work()


class Meter:
    """Measures the speed of the training since a step, without evaluations and checkpoints."""

    def __init__(self, step: int):
        self.step = step
        """The step at which the measurement begins."""
        self.since = time.perf_counter()
        """The time at which the measurement begins."""
        self.waited = 0.0
        """Seconds spent waiting for data."""
        self.paused = 0.0
        """Seconds spent on evaluation and checkpoints."""

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """A context whose time counts as waiting for data."""
        began = time.perf_counter()
        yield
        self.waited += time.perf_counter() - began

    @contextmanager
    def pausing(self) -> Iterator[None]:
        """A context whose time does not count as training."""
        began = time.perf_counter()
        yield
        self.paused += time.perf_counter() - began

    def pace(self, step: int, images: int, total: int) -> Pace:
        """The speed up to `step`. images: number of images of a step. total: the last step of the run."""
        steps = step - self.step
        seconds = max(time.perf_counter() - self.since - self.paused, 1e-9)
        seconds_left = (total - step) * seconds / max(steps, 1)
        return Pace(steps * images / seconds, self.waited / seconds, seconds_left)


class Log:
    """Writes a JSON line for each event, and shows the progress of the run.

    A log that is opened at a step drops the lines of later steps: a run that was killed after its last
    checkpoint repeats these steps, and writes their lines again.
    """

    def __init__(
        self,
        run_dir: Path,
        step: int,
        total: int,
        trackers: Sequence[Tracker] = (),
        console: Console | None = None,
        work: Work = UNKNOWN_WORK,
    ):
        self.say = say_on(console)
        """Prints a message above the bar."""
        self.console = console or console_of_listener()
        self.work = work
        self.total = total
        self.trackers = list(trackers)
        """The trackers of rank 0, which get the same numbers."""

        # The file, which only rank 0 writes; all ranks read its lines
        self.path = run_dir / "metrics.jsonl"
        lines, damaged = read_lines(self.path)
        past = [line for line in lines if line["step"] <= step]
        path = Path(os.devnull)
        if on_rank_0():
            path = self.path
            write_whole(self.path, "".join(map(to_line, past)).encode())
        self.file = path.open("a", buffering=1)  # line by line
        evaluations = [line for line in past if line["event"] == "evaluation"]
        self.evaluated = {(line["step"], line["evaluator"]) for line in evaluations}
        """The evaluations so far: (step, title of the evaluator)."""

        # The bar with a text after it, in one line of a terminal; hidden without a terminal
        width = min(max(self.console.width - TEXT_WIDTH, 4), 30)
        in_one_line = Column(no_wrap=True, overflow="ellipsis")
        self.bar = Progress(
            BarColumn(bar_width=width),
            TextColumn("{task.fields[text]}", table_column=in_one_line),
            console=self.console,
            transient=True,
            auto_refresh=self.console.is_terminal,
            disable=not self.console.is_terminal,
        )
        self.task = self.bar.add_task("", total=total, completed=step, text="the first step")
        self.bar.start()

        # The speed
        self.meter = Meter(step)
        self.began_at = step
        self.shown_at = 0.0
        """Time at which the bar's numbers were last updated, in seconds of time.perf_counter()."""
        self.shown_step = -1
        """The step whose numbers were shown last."""
        if damaged:
            self.say(f"{damaged:,} damaged lines of {self.path} are left out")

    def __call__(self, event: str, step: int, **values: float | int | str | list) -> None:
        """Write `values` as a line of this event and step, and send the numbers to the trackers."""
        self.file.write(to_line({"event": event, "step": step, **values}))
        numbers = {name: x for name, x in values.items() if isinstance(x, int | float)}
        self._draw(step, numbers)

    def evaluation(
        self, step: int, evaluator: str, metrics: Sequence[Metric], primary: str = ""
    ) -> None:
        """Write the metrics of an evaluator, which is given by its title. `primary` is the name of the
        primary metric, if it is among them."""
        line = {"event": "evaluation", "step": step, "evaluator": evaluator}
        if primary:
            line["primary"] = primary
        line["metrics"] = {metric.name: metric for metric in metrics}
        self.file.write(to_line(line))
        self.evaluated.add((step, evaluator))
        self._draw(step, {metric.name: metric.value for metric in metrics})

    def _draw(self, step: int, numbers: dict[str, float]) -> None:
        if numbers:
            self.to_trackers(lambda tracker: tracker.scalars(step, numbers))

    def to_trackers(self, send: Callable[[Tracker], None]) -> None:
        """Call `send` with each tracker. A tracker that fails, because its server is gone or a disk is full,
        is removed, and the training continues. An exception of the program's own function is raised."""
        for tracker in tuple(self.trackers):
            try:
                send(tracker)
            except Exception as error:  # libraries raise errors of many classes
                if isinstance(tracker, FunctionTracker):
                    raise
                self.trackers.remove(tracker)
                kind = type(tracker).__name__
                self.say(f"{kind} failed and is left out; the run continues: {first_line(error)}")

    def training(self, step: int, images: int, loss: float, norm: float, lr: float) -> None:
        """Write a point of the training curve, with the speed since the last point. images: number of
        images of a step."""
        pace = self.meter.pace(step, images, self.total)
        self.meter = Meter(step)
        values = {
            "loss": loss,
            "norm": norm,
            "lr": lr,
            "images_per_second": pace.images_per_second,
            "data_wait": pace.data_wait,
            **self.work.rates(pace.images_per_second),
        }
        rounded = {name: float(f"{value:.6g}") for name, value in values.items()}
        self("training", step, **rounded)
        self._show(step, pace, loss, f"  lr {lr:.2e}")

    def at(self, step: int, images: int, loss: float) -> None:
        """Move the bar, and update its numbers about once a second. The first two steps are shown
        immediately, without a terminal as lines. The first one, which includes starting the device and
        compiling code, does not count for the speed.

        images: number of images of a step. loss: loss of the last step that was read.
        """
        seconds = time.perf_counter() - self.shown_at
        on_terminal = self.console.is_terminal
        if step != self.shown_step and (self.is_early(step) or (on_terminal and seconds > 1)):
            self._show(step, self.meter.pace(step, images, self.total), loss)
        elif on_terminal:
            self.bar.update(self.task, completed=step)
        if self._is_first(step):
            self.meter = Meter(step)
        if not bars_are_shown():
            progress_of("training", step, self.total)

    def _show(self, step: int, pace: Pace, loss: float, rate: str = "") -> None:
        """Show the numbers of a step beside the bar; without a terminal as a line, together with the
        learning rate."""
        self.shown_at = time.perf_counter()
        self.shown_step = step
        numbers = f"{step:,}/{self.total:,}  loss {loss:.4f}"
        speed = ""
        if not self._is_first(step):
            speed = f"  {self._speed(pace)}"
        self.bar.update(self.task, completed=step, total=self.total, text=f"{numbers}{speed}")
        if not self.console.is_terminal:
            self.say(f"{numbers}{rate}{speed}")

    def _speed(self, pace: Pace) -> str:
        """The remaining time and the speed as text, the most important first: a narrow terminal cuts off
        the end."""
        speed = f"{clock(pace.seconds_left)} left  {pace.images_per_second:,.0f} images/s"
        rates = self.work.rates(pace.images_per_second)
        if "mfu" in rates:
            speed += f"  {rates['tflops']:,.3g} TFLOP/s  MFU {100 * rates['mfu']:.2g}%"
        if pace.data_wait >= SLOW_DATA:
            speed += f"  data wait {pace.data_wait:.0%}"
        return speed

    def is_early(self, step: int) -> bool:
        """Whether a step is one of the first ones, which are shown immediately."""
        return step <= self.began_at + EARLY

    def _is_first(self, step: int) -> bool:
        return step == self.began_at + 1

    def metrics(self, step: int, metrics: Sequence[Metric]) -> None:
        """Print the metrics, without those that have no better direction, such as counts."""
        texts = []
        for metric in metrics:
            if metric.unit.better != "neither":
                texts.append(f"{metric.name} {metric.text()}")
        self.say(f"step {step:,}: {', '.join(texts)}")

    def evaluating(self, name: str, batches) -> Iterator:
        """Yields the batches, and shows their number in the progress bar."""
        for number, batch in enumerate(batches, 1):
            text = f"evaluating {name:.20}, batch {number:,} of {len(batches):,}"
            self.bar.update(self.task, text=text)
            yield batch
        self.bar.update(self.task, text="")

    def close(self) -> None:
        """Close the files and remove the bar."""
        self.bar.stop()
        self.file.close()
        self.to_trackers(lambda tracker: tracker.close())


def clock(seconds: float) -> str:
    """A duration as text: 1:02:03, or 4:05 below an hour."""
    minutes, seconds = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d}"
    return f"{minutes}:{seconds:02d}"
