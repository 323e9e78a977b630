"""`vitkit suite`: a model, or several side by side, on VTAB, the robustness suite or the user's own
tasks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from json import dumps
from pathlib import Path
from typing import Any, Literal, Unpack

from rich.box import SIMPLE
from rich.markup import escape
from rich.table import Table

from vitkit.apps.suites.comparison import (
    SuiteComparison,
    compare_models,
    comparison_markdown,
    draw_comparison,
)
from vitkit.apps.suites.robustness import ROBUSTNESS
from vitkit.apps.suites.running import FINE_TUNING, FineTuning, Outcome, run_suite
from vitkit.apps.suites.table import cell, cells, columns, lines, markdown, sentences
from vitkit.apps.suites.task import Suite, read_suite
from vitkit.apps.suites.vtab import VTAB
from vitkit.inspection import write_figure
from vitkit.system.console.messages import say
from vitkit.system.console.text import printable
from vitkit.system.errors import BadSettings
from vitkit.system.functions.arguments import name_on_disk, pick_precision, read_shard, short_name
from vitkit.system.functions.public import alone, public
from vitkit.system.functions.results import Rows
from vitkit.system.functions.steps import DATA, Placeholder, step
from vitkit.system.functions.types import DataLike, DeviceLike, PathLike, Several
from vitkit.system.machine import PrecisionChoice
from vitkit.system.processes.ranks import on_rank_0, process_group
from vitkit.system.storage.files import as_utf8, whole
from vitkit.weights import ModelLike, Overrides, hints_of


@dataclass(frozen=True, eq=False, repr=False)
class SuiteTable(Rows):
    """A model on many tasks."""

    model: str
    """The first model."""
    protocol: str
    outcome: Outcome
    """The results of all tasks of the first model."""
    workdir: Path
    """Directory of the results: table.md and results.parquet; with several models also comparison.md
    and comparison.png."""
    comparison: SuiteComparison | None = None
    """The comparison of several models; None for one model."""
    json: bool = False
    """Whether the result is printed as JSON."""

    def rows(self) -> list[dict]:
        """One row per task, and one per mean."""
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
        table: dict[str, Any] = {"suite": self.outcome.suite.name, "lines": rows}
        table["remarks"] = sentences(self.outcome)
        if self.comparison is not None:
            table["comparison"] = _comparison_json(self.comparison)
        return table

    def shown(self) -> Iterator[str | Table]:
        """The table, or JSON."""
        if self.json:
            yield dumps(self.to_json(), allow_nan=False)
            return
        title = f"{self.model} on {self.outcome.suite.name}"
        if self.outcome.suite.learns:
            yield f"{title}, protocol {self.protocol}: top-1 in percent"
        else:
            yield f"{title}, in percent"
        yield _table(self.outcome)
        files = ["table.md", "results.parquet"]
        if self.comparison is not None:
            yield f"all models, {self.comparison.metric} in percent"
            yield _compared(self.comparison)
            for sentence in self.comparison.sentences:
                yield printable(sentence)
            files += ["comparison.md", "comparison.png"]
        yield f"wrote {', '.join(files[:-1])} and {files[-1]} in {self.workdir}"
        yield _next(self.model, self.protocol, self.outcome.suite)


@public
@alone
def suite(
    suite: str,
    model: ModelLike,
    *,
    against: Several[ModelLike] = (),
    data: DataLike = "",
    from_hub: bool = False,
    protocol: Literal["features", "paper", "light"] = "features",
    tasks: Several[str] = (),
    rates: Several[float] = (),
    steps: Several[int] = (),
    batch: int = 0,
    seeds: int = 1,
    shard: str = "",
    workdir: PathLike | None = None,
    precision: PrecisionChoice = "float32",
    device: DeviceLike = "auto",
    json: bool = False,
    **overrides: Unpack[Overrides],
) -> SuiteTable:
    """Measure a model on many tasks, and print the accuracy on each, with the means over groups and
    over all tasks. The same command continues an interrupted suite, and tries failed tasks
    again.

    Args:
        suite: vtab, robustness, or a TOML file (docs/evaluation.md).
        model: A run, a model directory, a file of weights (vitkit's, Hugging Face's, timm's,
            torchvision's or Google's), or the name of a published model.
        against: More models to measure in the same way. A table and a picture compare all of them by
            groups of tasks, as in the paper's Figure 2.
        data: Folder with the images of all tasks, in a folder or file named after each task. Default:
            the folder of the TOML file.
        from_hub: Read tasks of VTAB that are not in the folder from the Hugging Face hub, which downloads
            gigabytes. Their images are not VTAB's own selection, and the table says so. With a TOML
            file: fetch the tasks whose `data` is an address or hf:NAME.
        protocol: How a task is measured: features, paper or light. features: a linear probe, few-shot
            and nearest neighbours on the frozen model, which take seconds per task. paper: fine-tuning as
            in the ViT paper, 2,500 steps of 512 images, the same for all tasks. light: VTAB's sweep of
            two learning rates and two lengths, chosen for each task on its validation images. The
            robustness suite has no protocol, because it trains nothing.
        tasks: Names of the tasks, or of their groups, to run now. Default: all.
        rates: Learning rates to use instead of the protocol's; if there are several, the best is chosen
            for each task.
        steps: Numbers of steps to use instead of the protocol's; if there are several, the best is
            chosen for each task.
        batch: Images in a step, instead of the protocol's number.
        seeds: Fine-tuning runs of each task, over which the accuracy is averaged.
        shard: Which of several processes that share the suite this one is: 1/4 to 4/4 for four.
        workdir: Directory of the results. Default: runs/SUITE-PROTOCOL-MODEL, or runs/robustness-MODEL.
            The results of the models of `against` are beside it: in their own defaults, or in
            WORKDIR-MODEL.
        precision: Arithmetic of the matrix products in measurements without training. Default: float32,
            so that they do not depend on the machine. Runs of the protocols paper and light use float32,
            as in the paper.
        device: cpu, cuda, cuda:1 or mps; auto chooses the best one.
        json: Print the table as one line of JSON.
        **overrides: What the caller says about the model, and where messages go: `Overrides`.

    Raises:
        BadSettings: If the suite does not exist, or settings do not go together.
        BadData: If its images are missing.
    """
    hints = hints_of(overrides)
    part = read_shard(shard)
    chosen, folder = _suite(suite, data, from_hub)
    rules = _protocol(protocol, chosen, seeds, {"rates": rates, "steps": steps, "batch": batch})
    models = [name_on_disk(each, "suite") for each in (model, *against)]
    workdirs = _workdirs(models, chosen, protocol, workdir)
    outcomes = {}
    with process_group(device) as opened:
        arithmetic = pick_precision(precision, opened)
        for each, place in workdirs.items():
            if len(workdirs) > 1:
                say(f"{each}, in {place}")
            outcome = run_suite(
                chosen,
                each,
                folder,
                place,
                rules,
                tasks,
                seeds,
                hints,
                device,
                part,
                from_hub,
                arithmetic,
            )
            outcomes[each] = outcome
            if on_rank_0():
                with whole(place / "table.md") as new:
                    new.write_bytes(as_utf8(markdown(outcome)))
                if not json:
                    for sentence in _remarks(outcome):
                        say(sentence)

        # Comparison of several models
        first = workdirs[models[0]]
        comparison = None
        if len(outcomes) > 1:
            comparison = compare_models(
                {_model_name(name): each for name, each in outcomes.items()}
            )
            if on_rank_0():
                with whole(first / "comparison.md") as new:
                    new.write_bytes(as_utf8(comparison_markdown(comparison)))
                write_figure(draw_comparison(comparison), first / "comparison.png")
    return SuiteTable(models[0], protocol, outcomes[models[0]], first, comparison, json)


def _suite(name: str, data: str, from_hub: bool) -> tuple[Suite, str]:
    """The suite, and the folder of its images. Raises BadSettings for an unknown suite or a missing
    folder."""
    if from_hub and name == "robustness":
        raise BadSettings(
            f"`from_hub` is for tasks of vtab and of TOML files, and the suite is {name}"
        )
    known = {"vtab": VTAB, "robustness": ROBUSTNESS}
    if name in known:
        chosen = known[name]
        if not data:
            raise BadSettings(
                f"where are the images? `data=DIR` has a folder for each task; {chosen.hint}"
            )
        return chosen, data
    path = Path(name)
    if path.suffix != ".toml":
        raise BadSettings(
            f"there is no suite {name!r}; give {', '.join(known)}, or a TOML file of tasks"
        )
    return read_suite(path), data or str(path.parent)


def _workdirs(
    models: Sequence[str], chosen: Suite, protocol: str, given: Path | None
) -> dict[str, Path]:
    """The directory of the results of each model. Raises BadSettings if two models have the same
    name."""
    workdirs: dict[str, Path] = {}
    by_name: dict[str, str] = {}
    for model in models:
        name = _model_name(model)
        if name in by_name:
            raise BadSettings(
                f"two models are called {name!r}, {by_name[name]} and {model}: names in a "
                "table must differ; leave one out, or rename it"
            )
        by_name[name] = model
        workdir = Path("runs") / _directory_name(chosen, protocol, name)
        if given is not None:
            workdir = given
            if model != models[0]:
                workdir = workdir.with_name(_as_folder(f"{workdir.name}-{name}"))
        workdirs[model] = workdir
    return workdirs


def _model_name(model: str) -> str:
    """The name of a model in tables and folders: the name of its file, folder or run."""
    path = Path(model)
    if path.name == "model" and path.parent.name:
        return short_name(path.parent.name)
    return short_name(model)


def _directory_name(chosen: Suite, protocol: str, model: str) -> str:
    """The name of a directory of results: the suite, the protocol if the suite has several, and the
    model."""
    parts = [chosen.name.lower(), protocol, model]
    if not chosen.learns:
        parts.remove(protocol)
    return _as_folder("-".join(parts))


def _as_folder(name: str) -> str:
    """A name without characters that a folder's name should not have."""
    return re.sub(r"[^\w.-]+", "-", name)


def _protocol(
    name: str, chosen: Suite, seeds: int, asked: Mapping[str, Any]
) -> FineTuning | Literal["features"]:
    """The protocol with the settings that were given. Raises BadSettings for settings of training with a
    protocol that does not train."""
    changes = {setting: value for setting, value in asked.items() if value}
    if not chosen.learns and (changes or seeds != 1):
        raise BadSettings(
            f"`rates`, `steps`, `batch` and `seeds` are for fine-tuning, and {chosen.name} measures a "
            "model as it is; leave them out"
        )
    if name == "features":
        if changes or seeds != 1:
            raise BadSettings(
                "`rates`, `steps`, `batch` and `seeds` are for fine-tuning; give "
                "`protocol='paper'` or light, or leave them out"
            )
        return "features"
    return replace(FINE_TUNING[name], **changes)


def _remarks(outcome: Outcome) -> Iterator[str]:
    """Sentences about what the table lacks."""
    for sentence in sentences(outcome):
        yield printable(sentence)
    if outcome.suite.hint and len(outcome.metrics) < len(outcome.suite.tasks):
        yield outcome.suite.hint


def _table(outcome: Outcome) -> Table:
    """The table for a terminal: one row per task below the name of its group, and one per mean."""
    table = Table(box=SIMPLE, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("task", overflow="fold")
    names = columns(outcome)
    widths = [1] * len(names)  # numbers are never cut: "61.8 ± 1" would be read as another value
    for line in lines(outcome):
        longest = [max(map(len, text.split()), default=0) for text in cells(line, len(names))]
        widths = list(map(max, widths, longest))
    for name, width in zip(names, widths, strict=True):
        table.add_column(name, justify="right", overflow="fold", min_width=width)
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


def _compared(comparison: SuiteComparison) -> Table:
    """The comparison for a terminal: one row per mean, with the figures of all models."""
    table = Table(box=SIMPLE, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("", overflow="fold", min_width=16)
    for model in comparison.models:
        table.add_column(escape(printable(model)), justify="right", overflow="fold")
    for row in comparison.rows:
        name = row.name
        if row.group:
            name += f", {row.group}"
        table.add_row(escape(printable(name)), *map(cell, row.values))
    return table


def _comparison_json(comparison: SuiteComparison) -> dict:
    """The comparison as plain values: each row with one figure per model, or None."""
    rows = []
    for row in comparison.rows:
        values: dict[str, dict | None] = {}
        for model, metric in zip(comparison.models, row.values, strict=True):
            values[model] = None
            if metric is not None:
                values[model] = metric.to_json()
        rows.append({"name": row.name, "group": row.group, "values": values})
    return {
        "metric": comparison.metric,
        "rows": rows,
        "remarks": list(comparison.sentences),
    }


def _next(model: str, protocol: str, chosen: Suite) -> str:
    """A sentence with the next command."""
    if not chosen.learns:
        evaluate = step("evaluate", model, DATA, named=Placeholder("name"), report="report.html")
        return f"next: {evaluate}, for all about one of them"
    if protocol == "features":
        return "next: the same with `protocol='paper'`, which fine-tunes the model on every task"
    evaluate = step("evaluate", Placeholder("WORKDIR/TASK/seed-0"), DATA)
    return f"next: {evaluate}, for the report of one task"
