"""The record of a quick run: the files that every run has (docs/runs.md), so that `report` and `compare`
read a quick run like any other; and its page, made from these files.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from vitkit.data import Columns
from vitkit.evaluation import (
    Kept,
    Metric,
    answers_of_logits,
    class_scores,
    read_answers,
    report,
    weakest,
    write_answers,
    write_report,
)
from vitkit.finetuning.candidates import CLOSED_FORM
from vitkit.finetuning.fine_tuning import RUN
from vitkit.finetuning.plan import PLAN, RunInputs, RunPlan, read_plan
from vitkit.system.console.text import as_word, counted
from vitkit.system.errors import BadRun
from vitkit.system.functions.steps import changed_fields
from vitkit.system.storage.files import write_json, write_whole
from vitkit.system.storage.remote import is_address
from vitkit.training import is_run, open_part, read_run, to_json, to_line
from vitkit.training import report as report_of_run
from vitkit.training.data import group_setting
from vitkit.training.evaluation import ANSWERS
from vitkit.training.record.machine import BEGUN, OF_BEGUN
from vitkit.training.record.values import read_object
from vitkit.training.reports.answers import check_answered
from vitkit.weights import Classifier, load


def is_quick(run_dir: Path) -> bool:
    """Whether a directory holds a run of `vitkit finetune` with the quick preset."""
    return (run_dir / PLAN).is_file()


def check_recorded(run_dir: Path) -> None:
    """Raises VitkitError for a quick run whose results are not recorded."""
    if is_quick(run_dir) and not is_run(run_dir):
        raise BadRun(
            f"{run_dir} is unfinished, or was made by an earlier version, which did not record what a page "
            "needs; repeat the vitkit finetune command that made it, which continues and records it"
        )


def write_record(
    work: RunInputs,
    chosen: str,
    classifier: Classifier,
    measured: Metric | None,
    logits: Tensor | None,
) -> None:
    """Record the recipe that made the chosen model, its images and its results.

    measured: the metric on the test images, or else on the held-out images; None without either.
    logits: of the test images, (N, K), if there are some.
    """
    run_dir = work.run_dir
    photographs = work.photographs

    # Hardware, data and time
    data = work.recipe.data
    place = data.source
    if not is_address(place):
        place = str(Path(place).resolve())  # absolute, for commands that start in other folders
    record = {
        "source": data.source,
        "place": place,
        "split_seed": data.split_seed,
        "groups": group_setting(data),
        "target": photographs.target_kind,
        "labels": list(photographs.labels),
        "counts": photographs.counts,
        "fingerprint": photographs.fingerprints,
        "others": {},
        "notes": list(photographs.notes),
        "skipped": photographs.skipped,
        "made_fingerprint": photographs.made_fingerprint,
    }
    write_json(run_dir / "data.json", record)
    write_json(run_dir / BEGUN, _start_of(work))

    # Results: an evaluation, and the predictions for the test images
    steps = 0
    if chosen != CLOSED_FORM:
        steps = work.plan.steps or 0
    metrics = {}
    primary = ""
    if measured is not None:
        metrics = {measured.name: measured}
        primary = measured.name
    line = {"event": "evaluation", "step": steps, "evaluator": chosen, "primary": primary}
    write_whole(run_dir / "metrics.jsonl", to_line(line | {"metrics": metrics}).encode())
    if photographs.target_kind == "class" and photographs.test is not None:
        assert logits is not None  # of the test images
        given = answers_of_logits(classifier, photographs.test, logits)
        write_answers(run_dir / ANSWERS, Kept(given, photographs.test_name, steps))

    # The recipe comes last: a directory that has it has the other files. A fine-tuned model and the
    # closed-form head prepare images differently if these keep their proportions, or have few pixels
    recipe = work.recipe
    if chosen != CLOSED_FORM:
        recipe = replace(recipe, model=work.tuning.model, data=work.tuning.data)
    write_json(run_dir / "recipe.json", to_json(recipe))


def _start_of(work: RunInputs) -> dict:
    """Start, duration and hardware of the run. A call that continues a run keeps its date, and the longer
    duration."""
    earlier = read_object(work.run_dir / BEGUN, OF_BEGUN)
    date = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(time.time() - work.spent()))
    seconds = max(round(work.spent(), 1), earlier.get("seconds", 0.0))
    return {"date": earlier.get("date", date), "seconds": seconds, "device": str(work.device)}


def weakest_class(run_dir: Path) -> str | None:
    """A sentence about the class with the lowest accuracy on the test images; None without test
    images, or if every prediction is correct."""
    kept = read_answers(run_dir / ANSWERS)
    if kept is None or not kept.answers.finite.all():
        return None
    return weakest(class_scores(kept.answers))


def write_page(run_dir: Path, path: Path | None = None, typed: Sequence[str] = ()) -> Path | None:
    """Write the page about a quick run from its record: the mistakes of its model on the test
    images if they have one class each, else its fine-tuning. Returns the page's path; None if
    nothing was measured.

    path: the file to write; None is report.html in the directory. typed: names of data sets that a user
    typed, as `read_run` takes them. Raises VitkitError for a run without a record, and for images that
    have changed since, or may not be opened.
    """
    check_recorded(run_dir)
    run = read_run(run_dir, typed)
    kept = read_answers(run_dir / ANSWERS)
    if kept is None:
        if (run_dir / RUN).exists():
            return report_of_run(run_dir / RUN, path=path, typed=typed)
        return None
    source = open_part(run, kept.part)
    check_answered(kept, source)
    classifier = load(run_dir, quiet=True)
    init = str(run.recipe["init"])
    data = run.data["source"]
    chosen = run.lines[-1]["evaluator"]
    plan = read_plan(run_dir)
    if plan is None:
        raise BadRun(f"{run_dir / PLAN} is damaged, so it is not known how the model was made")
    facts = {
        "command": _command(init, data, plan, run.recipe["data"].get("columns", {})),
        "model": f"{chosen}, from {init}",
        "preprocessing": str(classifier.preprocessing),
        "computed in": f"{plan.precision} on {run.begun.get('device', 'an unknown device')}",
        "date": str(run.begun.get("date", "")),
    }
    title = f"{counted(len(source), 'image')} of {data} ({kept.part})"
    found = report(kept.answers, source, str(run_dir), title, facts)
    return write_report(path or run_dir / "report.html", found, source)


def _command(init: str, data: str, plan: RunPlan, columns: dict[str, Any]) -> str:
    """The command that makes such a model, without settings of the fine-tuning. columns: as recorded."""
    command = f"vitkit finetune {as_word(init)} {as_word(data)} --minutes {plan.minutes:g}"
    if plan.portable:
        command += " --portable"
    for name, value in changed_fields(Columns(**columns)).items():
        command += f" --data.columns.{name} {as_word(str(value))}"
    return command
