"""The result of `vitkit finetune`: the model, its measurements, and what the command prints."""

import itertools
import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from vitkit.data import reading_arguments
from vitkit.evaluation import Metric, agreement, exchanged, groups_if_any, test_of
from vitkit.finetuning.candidates import CLOSED_FORM, question, targets_of
from vitkit.finetuning.first_model import guess
from vitkit.finetuning.from_folder import FolderResult, answer, measured_by
from vitkit.finetuning.functions import good_images
from vitkit.finetuning.good_images import GoodModel
from vitkit.finetuning.plan import OtherPlan, read_plan
from vitkit.finetuning.record import weakest_class, write_page
from vitkit.finetuning.segmentation.run import SegmentationResult
from vitkit.finetuning.segmentation.shown import shown_masks
from vitkit.models import ViTConfig
from vitkit.recipes import Recipe
from vitkit.recipes.table_4 import few_pixels
from vitkit.system.console.messages import say
from vitkit.system.console.text import counted, printable, some
from vitkit.system.errors import Interrupted
from vitkit.system.functions.results import Result, Rows
from vitkit.system.functions.steps import DATA, IMAGES, step
from vitkit.system.processes.ranks import from_rank_0, process_group
from vitkit.training import RUNS, Transfer, run_name, transfer_tables
from vitkit.weights import Classifier, Hints, MadeModel, format_of
from vitkit.weights.formats import formats_for


def earlier_model(data: str, workdir: Path | None, minutes: float) -> str:
    """The initial weights of an earlier call on these images with the same `minutes`; "" if there was
    none."""
    for run_dir in _run_dirs(data, workdir):
        plan = read_plan(run_dir)
        if plan is None:
            return ""
        if plan.minutes == minutes and isinstance(plan.recipe.get("init"), str):
            return plan.recipe["init"]
    return ""


def _run_dirs(data: str, workdir: Path | None) -> Iterator[Path]:
    """The possible run directories for these images: the given one, or those named after the images, with
    numbers."""
    if workdir is not None:
        yield workdir
        return
    name = run_name(data, "")
    yield RUNS / name
    for number in itertools.count(2):
        yield RUNS / f"{name}-{number}"


@dataclass(frozen=True, repr=False)
class Finetuned(Rows, MadeModel):
    """A classifier of your own images."""

    data: str
    """The training data."""
    workdir: Path | None
    """The requested directory; None if it was chosen by the command."""
    classifier: Classifier
    """The model."""
    run_dir: Path
    """The run directory: the model is in its folder `model/`."""
    path: Path | None
    """The page about the run; None if there were no images to measure the model on."""
    answer: FolderResult | None
    """The candidates and their results; None for a protocol."""
    transfer: Transfer | None
    """The chosen settings and the result of each seed; None for a quick run."""
    good: GoodModel | None = None
    """The model of good images and its threshold; None for a classifier."""
    fast: "Result | None" = None
    """The result of the search for a faster model; None if there was no search."""
    masks: SegmentationResult | None = None
    """The result for images with masks; None for others."""
    reading: dict[str, Any] = field(default_factory=dict)
    """The arguments of a call that reads the training data in the same way: `reading_arguments`."""

    @property
    def made(self) -> str:
        """The run's directory."""
        return str(self.run_dir)

    @property
    def accuracy(self) -> float | None:
        """The value of `metric`: the accuracy, for images with one class each; None for a model of good
        images."""
        if self.good is not None:
            return None
        return None if self.metric is None else self.metric.value

    @property
    def metric(self) -> Metric | None:
        """The accuracy of the model on the test images, or else on the held-out images; None if
        there were none. For images with masks the mean IoU, of a model of good images the area under the ROC
        curve."""
        if self.masks is not None:
            return self.masks.metric
        if self.good is not None:
            return good_images.main_metric(self.good)
        if self.transfer is not None:
            return next(iter(self.transfer.runs.values()))
        assert self.answer is not None  # the result is either a quick run's or a protocol's
        return measured_by(self.answer)

    def rows(self) -> list[dict]:
        """A row for each candidate of the quick way, or for each seed of a protocol; for a model of good
        images or of masks, a row for each metric."""
        if self.masks is not None:
            return self.masks.rows()
        if self.good is not None:
            return [
                {"part": part, "metric": metric.name, "value": metric.value}
                for part, metrics in (("left out", self.good.figures), ("test", self.good.test))
                for metric in metrics
            ]
        if self.transfer is not None:
            seeds = self.transfer.runs.items()
            return [{"seed": seed, metric.name: metric.value} for seed, metric in seeds if metric]
        rows = []
        assert self.answer is not None  # the result is either a quick run's or a protocol's
        for each in self.answer.candidates:
            row: dict[str, Any] = {"model": each.name, "kept": each.name == self.answer.chosen}
            for where, metric in (
                ("held_out", each.held_out),
                ("test", self.answer.test.get(each.name)),
            ):
                if metric is not None:
                    row[where] = metric.value
            rows.append(row)
        return rows

    def shown(self) -> Iterator[str | Table]:
        """The output: the candidates, their results, the files that were written, and the next
        command."""
        yield from self._own()
        if self.fast is not None:
            yield from self.fast.shown()

    def _own(self) -> Iterator[str | Table]:
        """The output of the command without the faster model."""
        if self.masks is not None:
            yield from shown_masks(self.masks, self.data, self.run_dir)
            return
        if self.good is not None:
            yield from good_images.shown(self.good, self.run_dir)
            return
        if self.transfer is not None:
            yield from transfer_tables(self.transfer)
            written = (self.run_dir / "model", self.run_dir / "transfer.json")
            yield f"wrote {written[0]}, {written[1]} and {self.path}"
            predict = step("predict", self.run_dir, IMAGES)
            yield f"next: {predict}, or {step('evaluate', self.run_dir, DATA)}"
            return
        assert self.answer is not None  # the result is either a quick run's or a protocol's
        yield from _other_targets(self.answer)
        yield from _candidates(self.answer)
        if sentence := weakest_class(self.run_dir):
            yield printable(sentence)
        yield from _guessing(self.answer)
        yield from _next(self, self.answer)


def finetune_quick(
    recipe: Recipe,
    data: str,
    workdir: Path | None,
    minutes: float,
    portable: bool,
    hints: Hints,
    device: str,
    patience: float,
) -> Finetuned:
    """Make the model, and write the report."""
    keep_size = bool(hints.image)
    native = None
    if hints.crop or hints.resize:  # the caller has chosen the preprocessing
        native = False
    with process_group(device, patience) as opened:
        for run_dir in _run_dirs(data, workdir):
            try:
                reached = answer(recipe, run_dir, minutes, opened, say, keep_size, portable, native)
                break
            except OtherPlan as error:
                if workdir is not None:
                    raise OtherPlan(f"{error}; choose another `workdir`, or remove it") from None
                say(f"{error}: a new one is made beside it")
            except Interrupted:
                if (run_dir / "model").exists():
                    say(f"{run_dir / 'model'} holds the first model; the same command continues")
                raise
        page = from_rank_0(lambda: write_page(run_dir, typed=(recipe.data.source,)))
    of_data = recipe.data
    reading = reading_arguments(of_data.columns, of_data.groups, of_data.split_seed)
    return Finetuned(
        data, workdir, reached.classifier, run_dir, page, reached, None, reading=reading
    )


def finetune_good(
    recipe: Recipe,
    data: str,
    workdir: Path | None,
    normal: str,
    hints: Hints,
    device: str,
    patience: float,
    masks: str = "",
    given: Collection[str] = (),
) -> Finetuned:
    """Make a model of the good images of a data set, whose class is `normal`.

    masks: where images of its test part are defective.
    given: the names of settings of the recipe that the caller has chosen, with dots.
    """
    chosen = {name.removeprefix("data.preprocessing.") for name in given}
    keeps_rule = hints.crop or hints.resize or chosen & {"rule", "resize", "data.preprocessing"}
    keeps_size = bool(hints.image) or bool(chosen & {"size", "data.preprocessing"})
    if not keeps_rule:  # defects may be at the border, which a crop cuts off
        preprocessing = replace(recipe.data.preprocessing, rule="square", resize=0)
        recipe = replace(recipe, data=replace(recipe.data, preprocessing=preprocessing))
    with process_group(device, patience) as opened:
        for run_dir in _run_dirs(data, workdir):
            try:
                made = good_images.remember(recipe, run_dir, normal, opened, say, keeps_size, masks)
                break
            except OtherPlan as error:
                if workdir is not None:
                    raise OtherPlan(f"{error}; choose another `workdir`, or remove it") from None
    return Finetuned(data, workdir, made.classifier, run_dir, None, None, None, good=made)


def _other_targets(reached: FolderResult) -> Iterator[str]:
    """The metrics on test images that have several classes each, or a number."""
    photographs = reached.photographs
    source = photographs.test
    if source is None or photographs.target_kind == "class":
        return
    asked = question(photographs.target_kind, photographs.labels)
    assert reached.test_logits is not None  # there are test images
    yield f"on {counted(len(source), 'image')} to test on ({photographs.test_name}):"
    for metric in asked.quality(
        photographs.test_name, reached.test_logits, targets_of(source), source.groups
    ):
        yield f"  {metric.name} {metric.text()}"


def _candidates(reached: FolderResult) -> Iterator[str | Table]:
    """A table of the candidates' results, and the reason for the choice."""
    held_out = reached.photographs.held_out
    if held_out is None or not reached.candidates:
        return
    is_balanced = reached.left_out.name.endswith("/balanced_accuracy")
    first = ""
    if is_balanced:
        first = "balanced accuracy"
    columns = [first, f"{len(held_out):,} held out"]
    test = reached.photographs.test
    if test is not None and reached.test:
        columns.append(f"{len(test):,} of {reached.photographs.test_name}")
    if len(reached.candidates) > 1:
        columns.append("")  # marks the model that is kept
    table = Table(*columns)
    for each in reached.candidates:
        row = [each.name, short(each.held_out)]
        if reached.test:
            row.append(short(reached.test.get(each.name)))
        if len(reached.candidates) > 1:
            row.append("kept" if each.name == reached.chosen else "")
        table.add_row(*row)
    yield table
    if is_balanced:
        present = set(np.unique(held_out.target_array).tolist())
        missing = [label for k, label in enumerate(held_out.labels) if k not in present]
        if missing:
            yield f"none of the held-out images is of {some(missing)}, so their figures are of the other classes"
    if len(reached.candidates) > 1:
        yield _why(reached, held_out.groups)
    if reached.chosen != CLOSED_FORM and not reached.test:
        too_good = "the held-out images chose it, so that is a little too good"
        if reached.photographs.target_kind == "class" and reached.held_out is not None:
            too_good += f": {reached.held_out.text()} are answered right if for each image the others choose"
        yield too_good


def _why(reached: FolderResult, groups: np.ndarray | None) -> str:
    """The reason for the choice, with a comparison of the chosen model and the closed form on the
    held-out images. groups: of the held-out images."""
    others = [each for each in reached.candidates if each.name != CLOSED_FORM]
    picked = {each.name: each for each in others}.get(reached.chosen)
    rule = "by more than a standard error"
    if picked is None:
        sentence = f"{CLOSED_FORM} is kept: no other model is better on the held-out images {rule}"
        picked = max(others, key=lambda each: each.held_out.value)
    else:
        sentence = f"{reached.chosen} is kept: it is better on the held-out images {rule}"
    if reached.photographs.target_kind != "class":
        return sentence
    first = reached.candidates[0].scores == 1
    _, only_picked, only_first, _ = agreement(picked.scores == 1, first)
    p_value = exchanged(picked.scores == 1, first, groups)
    test = test_of(groups_if_any(len(first), groups))
    return (
        f"{sentence}. Only {picked.name} is right on {only_picked:,} of them, only {CLOSED_FORM} on "
        f"{only_first:,} ({test}, p = {p_value:.2g})"
    )


def _guessing(reached: FolderResult) -> Iterator[str]:
    """If the chosen model is not clearly better than a guess, a sentence with possible remedies."""
    photographs = reached.photographs
    metric = measured_by(reached)
    if metric is None:
        return
    source = photographs.held_out
    if reached.chosen in reached.test:
        source = photographs.test
    assert source is not None  # the images of the metric
    is_balanced = metric.name.endswith("/balanced_accuracy")
    asked = question(photographs.target_kind, photographs.labels, is_balanced)
    blind = guess(asked, targets_of(source))
    if blind is None or not blind.explains(metric):
        return
    preprocessing = reached.classifier.preprocessing
    height, width = preprocessing.size
    seen_in = f"{width} x {height} pixels"
    larger = 2 * max(height, width)
    remedy = f"larger images (`image={larger}`)"
    if preprocessing.is_native:
        seen_in = f"{preprocessing.patches:,} patches of {preprocessing.patch[0]} pixels"
        larger = round(2 * math.sqrt(height * width))
        remedy = f"more patches (`tokens={4 * preprocessing.patches}`)"
    remedies = [f"more time (`minutes={reached.minutes:g}`)"]
    if not few_pixels(source, larger):  # the images have more detail to offer
        remedies.append(remedy)
    yield (
        f"this model is not clearly better than a guess: {short(metric)}, and {blind.words}. Are "
        f"the differences between the classes visible in {seen_in}, and are the labels right? Then "
        f"try {', '.join(remedies)}, or other weights"
    )


def short(metric: Metric | None) -> str:
    """A metric as text, without its interval; empty if it was not measured."""
    if metric is None:
        return ""
    return metric.unit.text(metric.value)


def openers(classifier: Classifier) -> Iterator[str]:
    """Sentences about which other libraries can open the model directory."""
    config = classifier.model.config
    preprocessing = classifier.preprocessing
    others = [format.name for format in formats_for(config, preprocessing.rule)]
    if "huggingface" in others and "timm" in others:
        yield "Transformers opens it too, and timm after a conversion: its README.md says how"
    elif "huggingface" in others:
        yield "Transformers opens it too: its README.md says how"
    elif preprocessing.rule == "naflex":
        closest = format_of("huggingface", config, preprocessing.rule)
        assert (
            closest is not None
        )  # the format can store every Vision Transformer, except for some settings
        lacking = ", ".join(closest.cannot(config))
        yield (
            f"Transformers does not open it, whose models of whole images have no place for {lacking}, nor "
            "does timm, whose models crop; `crop='centre'` makes a model that timm opens"
        )
    elif preprocessing.is_native:
        yield (
            "Transformers and timm do not open it, because it reads images at their own proportions; "
            "`portable` with `crop='centre'` makes a model that both open"
        )
    elif isinstance(config, ViTConfig) and config.reads != config.headless().reads:
        yield (
            "Transformers and timm do not open it, because of what its head reads: its README.md has the "
            "lines that compute the same with timm, and `portable` makes a model that both open"
        )


def _next(finetuned: Finetuned, reached: FolderResult) -> Iterator[str]:
    """Sentences about the written files and the next commands."""
    if finetuned.path is None:
        yield f"wrote {finetuned.run_dir / 'model'}"
    else:
        yield f"wrote {finetuned.run_dir / 'model'} and {finetuned.path}"
    yield from openers(finetuned.classifier)
    run_dir = finetuned.run_dir
    yield "next:"
    yield f"  {step('predict', run_dir, IMAGES)}   what it says of other photographs"
    if reached.photographs.target_kind == "class":
        review = step("review", finetuned.data, run_dir, **finetuned.reading)
        yield f"  {review}   labels that may be wrong"
    if reached.photographs.held_out is not None:  # else nothing is fine-tuned, however long
        changes = f"`minutes={reached.minutes:g}`"
        if finetuned.workdir is not None:
            changes += " and another `workdir`"
        yield f"  the same command with {changes}   more time"
