"""`vitkit finetune DATA`: from a folder of photographs to a model, in seconds and then in
minutes."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from vitkit.evaluation import Metric, answers_of_logits
from vitkit.quick import (
    CLOSED_FORM,
    RUN,
    Answer,
    OtherPlan,
    answer,
    guess,
    question,
    read_plan,
    targets_of,
)
from vitkit.recipes import few_pixels
from vitkit.system.console.text import as_word, counted, printable
from vitkit.system.errors import Interrupted
from vitkit.system.machine import pick_precision
from vitkit.system.processes.ranks import from_rank_0, on_rank_0, process_group
from vitkit.training import default_run_dir
from vitkit.training import report as report_of_run

if TYPE_CHECKING:
    import torch

    from vitkit.commands.finetune import Finetune


def earlier_model(data: str, workdir: Path | None, minutes: float) -> str:
    """The weights that an earlier call on these images, for as long, began with; empty if there was
    none."""
    for run_dir in _run_dirs(data, workdir):
        plan = read_plan(run_dir)
        if plan is None:
            return ""
        if plan.minutes == minutes and isinstance(plan.recipe.get("init"), str):
            return plan.recipe["init"]
    return ""


def _run_dirs(data: str, workdir: Path | None) -> Iterator[Path]:
    """Where the model for these images may be made: in the given directory, or in those that are
    called after the images, with numbers."""
    if workdir is not None:
        yield workdir
        return
    first = default_run_dir(data, "")
    yield first
    for number in itertools.count(2):
        yield first.with_name(f"{first.name}-{number}")


def finetune_quick(command: "Finetune") -> int:
    """Make the model, say what it reached and why it was chosen, and write the report."""

    def say(sentence: str) -> None:
        if on_rank_0():
            print(printable(sentence), flush=True)

    recipe = command.recipe
    keep_size = bool(command.hints.image)
    with process_group(command.device, command.patience) as device:
        for run_dir in _run_dirs(command.data, command.workdir):
            try:
                reached = answer(recipe, run_dir, command.minutes, device, say, keep_size)
                break
            except OtherPlan as error:
                if command.workdir is not None:
                    raise OtherPlan(f"{error}; choose another --workdir, or remove it") from None
                say(f"{error}: a new one is made beside it")
            except Interrupted:
                if (run_dir / "model").exists():
                    say(f"{run_dir / 'model'} holds the first model; the same command continues")
                raise
        page = _report(command, reached, run_dir, device)
    if on_rank_0():
        _print(reached)
        _print_if_guessing(command, reached)
        _print_next(command, reached, run_dir, page)
    return 0


def _report(
    command: "Finetune", reached: Answer, run_dir: Path, device: "torch.device"
) -> Path | None:
    """The page about the chosen model: its mistakes on the images to test on, for images of one
    class each; else how it was trained. None if there is nothing to measure on."""
    from vitkit.evaluation import report, write_report

    source = reached.photographs.test
    if reached.photographs.target_kind != "class":
        if source is not None and on_rank_0():
            _print_other_targets(reached)
        if not (run_dir / RUN).exists():
            return None
        return from_rank_0(lambda: report_of_run(run_dir / RUN))
    if source is None:
        return None
    given = answers_of_logits(reached.classifier, source, reached.test_logits)
    precision = pick_precision(command.recipe.precision, device).precision
    facts = {
        "command": f"vitkit finetune {as_word(command.model)} {as_word(command.data)}",
        "model": f"{reached.chosen}, from {command.model}",
        "preprocessing": str(reached.classifier.preprocessing),
        "computed in": f"{precision} on {device}",
    }
    title = f"{counted(len(source), 'image')} of {command.data} ({reached.photographs.test_name})"
    page = run_dir / "report.html"
    if on_rank_0():
        write_report(page, report(given, source, str(run_dir), title, facts), source)
    return page


def _print_other_targets(reached: Answer) -> None:
    """What the model reaches on images to test on that have several classes, or a number."""
    photographs = reached.photographs
    source = photographs.test
    asked = question(photographs.target_kind, photographs.labels)
    print(f"on {counted(len(source), 'image')} to test on ({photographs.test_name}):")
    for metric in asked.quality(photographs.test_name, reached.test_logits, targets_of(source)):
        print(f"  {metric.name} {metric.text()}")


def _print(reached: Answer) -> None:
    """What each candidate reached, and why one was chosen."""
    held_out = reached.photographs.held_out
    if held_out is None or not reached.candidates:
        return
    is_balanced = reached.left_out.name.endswith("/balanced_accuracy")
    first = ""
    if is_balanced:
        first = "balanced accuracy"
    columns = [first, f"{len(held_out):,} held out"]
    if reached.test:
        columns.append(f"{len(reached.photographs.test):,} of {reached.photographs.test_name}")
    table = Table(*columns, "")
    for each in reached.candidates:
        row = [each.name, short(each.held_out)]
        if reached.test:
            row.append(short(reached.test.get(each.name)))
        remark = ""
        if each.name == reached.chosen and len(reached.candidates) > 1:
            remark = "kept"
        table.add_row(*row, remark)
    Console().print(table)
    if len(reached.candidates) > 1:
        what = "answers more of the held-out images rightly"
        if is_balanced:
            what += ", where classes count alike"
        if reached.photographs.target_kind != "class":
            what = "answers the held-out images better"
        why = f"it {what}, by more than chance gives"
        if reached.chosen == CLOSED_FORM:
            why = f"no other {what}, by more than chance gives"
        print(f"{reached.chosen} is kept: {why}")


def _print_if_guessing(command: "Finetune", reached: Answer) -> None:
    """Say so if the chosen model is not clearly better than a guess, and what may help."""
    photographs = reached.photographs
    metric = reached.test.get(reached.chosen)
    source = photographs.test
    if metric is None and reached.candidates:
        by_name = {each.name: each for each in reached.candidates}
        metric = by_name[reached.chosen].held_out
        source = photographs.held_out
    if metric is None:
        return
    is_balanced = metric.name.endswith("/balanced_accuracy")
    asked = question(photographs.target_kind, photographs.labels, is_balanced)
    blind = guess(asked, targets_of(source))
    if blind is None or not blind.explains(metric):
        return
    height, width = reached.classifier.preprocessing.size
    remedies = [f"more time (--minutes {reached.minutes:g})"]
    larger = 2 * max(height, width)
    if not few_pixels(source, larger):  # there is more to see
        remedies.append(f"larger images (--image {larger})")
    print(
        f"this model is not clearly better than a guess: {short(metric)}, and {blind.words}. Is what "
        f"tells the classes apart visible in {width} x {height} pixels, and are the labels right? Then "
        f"try {', '.join(remedies)}, or other weights"
    )


def short(metric: Metric | None) -> str:
    """A metric without its interval; empty for one that was not measured."""
    if metric is None:
        return ""
    return metric.unit.text(metric.value)


def _print_next(command: "Finetune", reached: Answer, run_dir: Path, page: Path | None) -> None:
    """Where the model is, and what one would want next."""
    if page is None:
        print(f"wrote {run_dir / 'model'}")
    else:
        print(f"wrote {run_dir / 'model'} and {page}")
    word = as_word(run_dir)
    data = as_word(command.data)
    print("next:")
    print(f"  vitkit predict {word} IMAGE...   what it says of other photographs")
    if reached.photographs.target_kind == "class":
        print(f"  vitkit data review {data} --model {word}   labels that may be wrong")
    model = as_word(command.model)
    print(f"  vitkit finetune {model} {data} --minutes {reached.minutes:g}   with more time")
