"""`vitkit suite`: a model on every task of VTAB, of the robustness suite, or of one's own."""

import json
import re
import sys
from contextlib import nullcontext, redirect_stdout
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from tyro.conf import Positional, arg

from vitkit.commands.shard import read_shard
from vitkit.system.console.text import as_word, printable
from vitkit.verbs import Device, Model, ModelHints, Precision, pick_precision
from vitkit.weights import Hints

TASK_WIDTH = 16  # characters of a task's name that a narrow terminal leaves


@dataclass
class RunSuite:
    """Measure a model on many tasks, and print each accuracy with the means over groups and over
    all. The same command goes on with a suite that was interrupted, and tries failed tasks anew."""

    suite: Annotated[
        Positional[str],
        arg(metavar="SUITE", help="vtab, robustness, or a TOML file (docs/evaluation.md)."),
    ]
    model: Model
    data: str = ""
    """Folder with the images of each task, in folders or files of the tasks' names. Default: the
    folder of the TOML file."""
    from_hub: bool = False
    """Read tasks of VTAB that are not in the folder from the Hugging Face hub, which downloads
    gigabytes. Their images are not VTAB's own selection, and the table says so."""
    protocol: Literal["features", "paper", "light"] = "features"
    """features: linear probe, few-shot and neighbours on the frozen model, seconds a task. paper:
    fine-tuning as in the ViT paper, 2,500 steps of 512 images, the same for all tasks. light: VTAB's
    sweep of two learning rates and two lengths, chosen for each task on its validation images. The
    robustness suite has none: the model answers as it is."""
    tasks: tuple[str, ...] = ()
    """Names of the tasks, or of their groups, to run now. Default: all."""
    rates: tuple[float, ...] = ()
    """Other learning rates than the protocol's; of several the best is chosen for each task."""
    steps: tuple[int, ...] = ()
    """Another number of steps than the protocol's; of several the best is chosen."""
    batch: int = 0
    """Another number of images a step than the protocol's."""
    seeds: int = 1
    """Fine-tuning runs of each task, whose mean is taken."""
    shard: str = ""
    """Of several processes that share a suite: which one this is, 1/4 to 4/4 for four."""
    workdir: Path | None = None
    """Directory of the results. Default: runs/SUITE-PROTOCOL-MODEL, of robustness without the
    protocol."""
    precision: Precision = "float32"
    """Of measurements without training. They are float32 unless told, so that they do not depend on
    the machine; runs of the protocols paper and light are float32 as the paper's."""
    device: Device = "auto"
    json: bool = False
    """Print the table as one line of JSON."""
    hints: ModelHints = field(default_factory=Hints)


def suite(command: RunSuite) -> int:
    """Run the suite, print its table, and write it."""
    from vitkit.suites import markdown, run_suite
    from vitkit.system.processes.ranks import on_rank_0, process_group
    from vitkit.system.storage.files import whole

    shard = read_shard(command.shard)
    chosen, folder = _suite(command)
    workdir = command.workdir or Path("runs") / _name(command, chosen)
    # What is printed meanwhile is for people: with --json the standard output is JSON alone
    spoken = nullcontext()
    if command.json:
        spoken = redirect_stdout(sys.stderr)
    with process_group(command.device) as device, spoken:
        outcome = run_suite(
            chosen,
            command.model,
            folder,
            workdir,
            _protocol(command, chosen),
            command.tasks,
            command.seeds,
            command.hints,
            command.device,
            shard,
            command.from_hub,
            pick_precision(command.precision, device),
        )
        if not on_rank_0():
            return 0

    with whole(workdir / "table.md") as new:
        new.write_text(markdown(outcome), "utf-8")
    if command.json:
        print(json.dumps(_plain(outcome), allow_nan=False))
        return 0
    _print(command, outcome)
    print(f"wrote {workdir / 'table.md'} and {workdir / 'results.parquet'}")
    print(_next(command, chosen))
    return 0


def _suite(command: RunSuite):
    """The suite, and the folder of its images. Raises ValueError if either is not known."""
    from vitkit.suites import ROBUSTNESS, VTAB, read_suite

    if command.from_hub and command.suite != "vtab":
        raise ValueError(f"--from-hub is for tasks of vtab, and the suite is {command.suite}")
    known = {"vtab": VTAB, "robustness": ROBUSTNESS}
    if command.suite in known:
        chosen = known[command.suite]
        if not command.data:
            raise ValueError(
                f"where are the images? --data DIR has a folder for each task; {chosen.hint}"
            )
        return chosen, command.data
    path = Path(command.suite)
    if path.suffix != ".toml":
        raise ValueError(
            f"there is no suite {command.suite!r}; give {', '.join(known)}, or a TOML file of tasks"
        )
    return read_suite(path), command.data or str(path.parent)


def _name(command: RunSuite, chosen) -> str:
    """What the results are called: the suite, the protocol if it has several, and the model."""
    path = Path(command.model)
    model = path.stem
    if path.name == "model" and path.parent.name:
        model = path.parent.name
    parts = [chosen.name.lower(), command.protocol, model]
    if not chosen.learns:
        parts.remove(command.protocol)
    return re.sub(r"[^\w.-]+", "-", "-".join(parts))


def _protocol(command: RunSuite, chosen):
    """The protocol, with what the command changes of it. Raises ValueError for changes of a protocol
    that does not train."""
    from vitkit.suites import FINE_TUNING

    changes = {}
    for name in ("rates", "steps", "batch"):
        value = {"rates": command.rates, "steps": command.steps, "batch": command.batch}[name]
        if value:
            changes[name] = value
    if not chosen.learns and (changes or command.seeds != 1):
        raise ValueError(
            f"--rates, --steps, --batch and --seeds are for fine-tuning, and {chosen.name} measures a "
            "model as it is; leave them out"
        )
    if command.protocol == "features":
        if changes or command.seeds != 1:
            raise ValueError(
                "--rates, --steps, --batch and --seeds are for fine-tuning; give --protocol paper "
                "or light, or leave them out"
            )
        return "features"
    return replace(FINE_TUNING[command.protocol], **changes)


def _print(command: RunSuite, outcome) -> None:
    """Print the table and what it lacks."""
    from vitkit.suites import cells, columns, lines, sentences

    title = (
        f"{command.model} on {outcome.suite.name}, protocol {command.protocol}: top-1 in percent"
    )
    if not outcome.suite.learns:
        title = f"{command.model} on {outcome.suite.name}, in percent"
    print(title)
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
    Console().print(table)
    for sentence in sentences(outcome):
        print(printable(sentence), file=sys.stderr)
    if outcome.suite.hint and len(outcome.metrics) < len(outcome.suite.tasks):
        print(outcome.suite.hint, file=sys.stderr)


def _plain(outcome) -> dict:
    """The table as plain values."""
    from vitkit.suites import lines, sentences

    rows = []
    for line in lines(outcome):
        values = {metric.name: metric.to_json() for metric in line.values if metric is not None}
        rows.append({"name": line.name, "group": line.group, "mean": line.is_mean, **values})
    return {"suite": outcome.suite.name, "lines": rows, "remarks": sentences(outcome)}


def _next(command: RunSuite, chosen) -> str:
    """What to run next."""
    if not chosen.learns:
        return (
            f"next: vitkit evaluate {as_word(command.model)} DATA --as NAME --report report.html, "
            "for all about one of them"
        )
    if command.protocol == "features":
        return "next: the same with --protocol paper, which fine-tunes the model on every task"
    return "next: vitkit evaluate WORKDIR/TASK/seed-0 DATA, for the report of one task"
