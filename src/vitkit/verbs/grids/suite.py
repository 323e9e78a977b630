"""A model on every task of VTAB, of the robustness suite, or of one's own."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

from rich.box import SIMPLE
from rich.markup import escape
from rich.table import Table
from tyro.conf import Positional, arg

from vitkit.suites import (
    FINE_TUNING,
    ROBUSTNESS,
    VTAB,
    Outcome,
    cells,
    columns,
    lines,
    markdown,
    read_suite,
    run_suite,
    sentences,
)
from vitkit.system.console.messages import say
from vitkit.system.console.text import as_word, printable
from vitkit.system.processes.ranks import on_rank_0, process_group
from vitkit.system.storage.files import as_utf8, whole
from vitkit.verbs.arguments import (
    Device,
    Model,
    ModelHints,
    Precision,
    name_on_disk,
    pick_precision,
    read_shard,
)
from vitkit.verbs.definition import alone, result, verb
from vitkit.weights import Hints

TASK_WIDTH = 16  # characters of a task's name that a narrow terminal leaves


@dataclass(frozen=True)
class RunSuite:
    """Measure a model on many tasks, and print the accuracy on each, with the means over groups and
    over all tasks. The same command continues an interrupted suite, and tries failed tasks
    again."""

    suite: Annotated[
        Positional[str],
        arg(metavar="SUITE", help="vtab, robustness, or a TOML file (docs/evaluation.md)."),
    ]
    model: Model
    data: str = ""
    """Folder with the images of all tasks, in a folder or file named after each task. Default: the
    folder of the TOML file."""
    from_hub: bool = False
    """Read tasks of VTAB that are not in the folder from the Hugging Face hub, which downloads
    gigabytes. Their images are not VTAB's own selection, and the table says so. With a TOML file:
    fetch the tasks whose `data` is an address or hf:NAME."""
    protocol: Literal["features", "paper", "light"] = "features"
    """How a task is measured: features, paper or light. features: a linear probe, few-shot and
    nearest neighbours on the frozen model, which take seconds per task. paper: fine-tuning as in
    the ViT paper, 2,500 steps of 512 images, the same for all tasks. light: VTAB's sweep of two
    learning rates and two lengths, chosen for each task on its validation images. The robustness
    suite has no protocol, because it trains nothing."""
    tasks: tuple[str, ...] = ()
    """Names of the tasks, or of their groups, to run now. Default: all."""
    rates: tuple[float, ...] = ()
    """Learning rates to use instead of the protocol's; if there are several, the best is chosen for
    each task."""
    steps: tuple[int, ...] = ()
    """Numbers of steps to use instead of the protocol's; if there are several, the best is chosen
    for each task."""
    batch: int = 0
    """Images in a step, instead of the protocol's number."""
    seeds: int = 1
    """Fine-tuning runs of each task, over which the accuracy is averaged."""
    shard: str = ""
    """Which of several processes that share the suite this one is: 1/4 to 4/4 for four."""
    workdir: Path | None = None
    """Directory of the results. Default: runs/SUITE-PROTOCOL-MODEL, or runs/robustness-MODEL."""
    precision: Precision = "float32"
    """Arithmetic of the matrix products in measurements without training. Default: float32, so that
    they do not depend on the machine. Runs of the protocols paper and light use float32, as in the
    paper."""
    device: Device = "auto"
    json: bool = False
    """Print the table as one line of JSON."""
    hints: ModelHints = field(default_factory=Hints)


@result
@dataclass(frozen=True, eq=False)
class SuiteTable:
    """A model on many tasks."""

    settings: RunSuite
    outcome: Outcome
    """The result of each task, and the means."""
    workdir: Path
    """Directory of the results: table.md and results.parquet."""

    def rows(self) -> list[dict]:
        """A row for each task, and for each mean."""
        rows = []
        for line in lines(self.outcome):
            values = {metric.name: metric.value for metric in line.values if metric is not None}
            rows.append({"task": line.name, "group": line.group, "mean": line.is_mean, **values})
        return rows

    def to_json(self) -> dict:
        """The table as plain values, each with its interval."""
        rows = []
        for line in lines(self.outcome):
            values = {metric.name: metric.to_json() for metric in line.values if metric is not None}
            rows.append({"name": line.name, "group": line.group, "mean": line.is_mean, **values})
        return {"suite": self.outcome.suite.name, "lines": rows, "remarks": sentences(self.outcome)}

    def shown(self) -> Iterator[str | Table]:
        """The table, or JSON."""
        if self.settings.json:
            yield json.dumps(self.to_json(), allow_nan=False)
            return
        title = f"{self.settings.model} on {self.outcome.suite.name}"
        if self.outcome.suite.learns:
            yield f"{title}, protocol {self.settings.protocol}: top-1 in percent"
        else:
            yield f"{title}, in percent"
        yield _table(self.outcome)
        yield f"wrote {self.workdir / 'table.md'} and {self.workdir / 'results.parquet'}"
        yield _next(self.settings, self.outcome.suite)


@verb
@alone
def suite(settings: RunSuite) -> SuiteTable:
    """Measure a model on many tasks: VTAB, robustness, or your own. An interrupted suite
    continues. Raises ValueError if the suite does not exist, or if its images are missing."""
    shard = read_shard(settings.shard)
    chosen, folder = _suite(settings)
    workdir = settings.workdir or Path("runs") / _name(settings, chosen)
    with process_group(settings.device) as device:
        outcome = run_suite(
            chosen,
            settings.model,
            folder,
            workdir,
            _protocol(settings, chosen),
            settings.tasks,
            settings.seeds,
            settings.hints,
            settings.device,
            shard,
            settings.from_hub,
            pick_precision(settings.precision, device),
        )
        if on_rank_0():
            with whole(workdir / "table.md") as new:
                new.write_bytes(as_utf8(markdown(outcome)))
            if not settings.json:
                for sentence in _remarks(outcome):
                    say(sentence)
    return SuiteTable(settings, outcome, workdir)


def _suite(settings: RunSuite):
    """The suite, and the folder of its images. Raises ValueError if either is not known."""
    if settings.from_hub and settings.suite == "robustness":
        raise ValueError(
            f"--from-hub is for tasks of vtab and of TOML files, and the suite is {settings.suite}"
        )
    known = {"vtab": VTAB, "robustness": ROBUSTNESS}
    if settings.suite in known:
        chosen = known[settings.suite]
        if not settings.data:
            raise ValueError(
                f"where are the images? --data DIR has a folder for each task; {chosen.hint}"
            )
        return chosen, settings.data
    path = Path(settings.suite)
    if path.suffix != ".toml":
        raise ValueError(
            f"there is no suite {settings.suite!r}; give {', '.join(known)}, or a TOML file of tasks"
        )
    return read_suite(path), settings.data or str(path.parent)


def _name(settings: RunSuite, chosen) -> str:
    """What the results are called: the suite, the protocol if it has several, and the model."""
    path = Path(name_on_disk(settings.model, "suite"))
    model = path.stem
    if path.name == "model" and path.parent.name:
        model = path.parent.name
    parts = [chosen.name.lower(), settings.protocol, model]
    if not chosen.learns:
        parts.remove(settings.protocol)
    return re.sub(r"[^\w.-]+", "-", "-".join(parts))


def _protocol(settings: RunSuite, chosen):
    """The protocol, with what the command changes of it. Raises ValueError for changes of a protocol
    that does not train."""
    asked = {"rates": settings.rates, "steps": settings.steps, "batch": settings.batch}
    changes = {name: value for name, value in asked.items() if value}
    if not chosen.learns and (changes or settings.seeds != 1):
        raise ValueError(
            f"--rates, --steps, --batch and --seeds are for fine-tuning, and {chosen.name} measures a "
            "model as it is; leave them out"
        )
    if settings.protocol == "features":
        if changes or settings.seeds != 1:
            raise ValueError(
                "--rates, --steps, --batch and --seeds are for fine-tuning; give --protocol paper "
                "or light, or leave them out"
            )
        return "features"
    return replace(FINE_TUNING[settings.protocol], **changes)


def _remarks(outcome: Outcome) -> Iterator[str]:
    """What the table lacks."""
    for sentence in sentences(outcome):
        yield printable(sentence)
    if outcome.suite.hint and len(outcome.metrics) < len(outcome.suite.tasks):
        yield outcome.suite.hint


def _table(outcome: Outcome) -> Table:
    """A row for each task, below the name of its group, and for each mean."""
    table = Table(box=SIMPLE, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("task", overflow="fold", min_width=TASK_WIDTH)
    names = columns(outcome)
    for name in names:
        table.add_column(name, justify="right", overflow="fold")
    group = ""
    in_means = False
    for line in lines(outcome):
        heading = escape(printable(line.group))
        name = escape(printable(line.name))
        if line.is_mean and not in_means:
            table.add_section()
            in_means = True
        elif not in_means and line.group != group:
            table.add_section()
            if heading:
                table.add_row(f"[bold]{heading}[/]")
            group = line.group
        if line.is_mean and line.group:
            name += f", {heading}"
        table.add_row(name, *cells(line, len(names)))
    return table


def _next(settings: RunSuite, chosen) -> str:
    """What to run next."""
    if not chosen.learns:
        return (
            f"next: vitkit evaluate {as_word(settings.model)} DATA --as NAME --report report.html, "
            "for all about one of them"
        )
    if settings.protocol == "features":
        return "next: the same with --protocol paper, which fine-tunes the model on every task"
    return "next: vitkit evaluate WORKDIR/TASK/seed-0 DATA, for the report of one task"
