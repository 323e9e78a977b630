"""From a folder of photographs to a model. A closed-form head is ready in seconds
(`first_model.py`); then all weights are fine-tuned while held-out images improve and time is left
(`fine_tuning.py`); the best candidate on held-out images is kept.
"""

import math
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from vitkit.data import fingerprint
from vitkit.evaluation import Metric
from vitkit.evaluation.probes.teaching import remove_memory
from vitkit.finetuning.candidates import (
    AVERAGE,
    CLOSED_FORM,
    FINE_TUNED,
    Candidate,
    average,
    best,
    candidate,
    image_weights,
    kept_quality,
    main_metric,
    targets_of,
)
from vitkit.finetuning.fine_tuning import Tuning, fine_tuned, for_few_pixels, tuning_for
from vitkit.finetuning.first_model import First, closed_form
from vitkit.finetuning.folder import Photographs, look, open_photographs
from vitkit.finetuning.head_inputs import read, settle_reading
from vitkit.finetuning.plan import (
    RunInputs,
    RunPlan,
    answers,
    earlier_plan,
    same_place,
    with_origin,
    write_plan,
)
from vitkit.finetuning.proportions import chosen_proportions, with_crop, with_own_proportions
from vitkit.finetuning.record import write_record
from vitkit.recipes import Recipe, Say, check_numbers, check_packages
from vitkit.system.errors import BadData, BadSettings
from vitkit.system.machine import pick_precision
from vitkit.system.processes.ranks import from_rank_0
from vitkit.system.storage.files import parse_json, write_json
from vitkit.training import locked, to_json
from vitkit.training.state.checkpoints import MODEL
from vitkit.weights import Classifier, adopt, save

ANSWER = "answer.json"  # in the run directory: the results of the candidates


@dataclass(frozen=True)
class FolderResult:
    """The result for a folder of photographs."""

    chosen: str
    """Name of the saved model."""
    classifier: Classifier
    """That model."""
    candidates: tuple[Candidate, ...]
    """All candidates, as measured on held-out images; empty if nothing could be held out."""
    left_out: Metric
    """Leave-one-out quality of the closed form."""
    held_out: Metric | None
    """Cross-fitted quality of the saved model on held-out images. None if nothing could be held out."""
    photographs: Photographs
    """The images."""
    minutes: float
    """Suggested minutes for the next call."""
    test: dict[str, Metric] = field(default_factory=dict)
    """Metric on the test images, by model name, for each tested model."""
    test_logits: Tensor | None = None
    """Logits of the chosen model for the test images, (N, K)."""


def answer(
    recipe: Recipe,
    run_dir: Path,
    minutes: float,
    device: torch.device,
    say: Say,
    keep_size: bool = False,
    portable: bool = False,
    native: bool | None = None,
) -> FolderResult:
    """Make the best model for the recipe's images that the time allows, and save it in `run_dir`/model;
    returns it with the results of all candidates. A first model is saved within seconds. A repeated
    call continues one that was killed.

    recipe: of the fine-tuning; spans of 0 are derived from `minutes`. keep_size: do not fine-tune images
    of few pixels at a smaller size. portable: limit the head to features that other libraries support.
    native: False forbids the use of uncropped images where most are not square.

    Raises VitkitError if no classifier can be made of the images, and for a directory of another
    run; Interrupted after SIGTERM.
    """
    if not 0 < minutes < math.inf:
        raise BadSettings(f"`minutes` is {minutes:g}; give a time above 0, such as 5")
    check_numbers(recipe)
    check_packages(recipe)
    began = time.monotonic()
    with locked(run_dir):
        # The data
        photographs = open_photographs(recipe.data)
        _check(photographs, recipe)
        plan = earlier_plan(run_dir, recipe, photographs, minutes, portable)
        for sentence in look(photographs):
            say(sentence)

        # Decisions that are made once
        if plan is None:
            precision = from_rank_0(lambda: pick_precision(recipe.precision, device)).precision
            images = fingerprint(photographs.learned)
            plan = RunPlan(
                None,
                precision,
                minutes,
                to_json(recipe),
                images,
                portable=portable,
                native=native,
            )
            write_plan(run_dir, plan)
        begun_on = plan.recipe["data"]["source"]
        if not same_place(begun_on, recipe.data.source):
            say(f"{run_dir} was begun on {begun_on}: {recipe.data.source} has the same images")
        tuned = with_crop(replace(recipe, precision=plan.precision))
        if not keep_size:
            tuned = for_few_pixels(tuned, photographs.train)

        # The candidates, and the best of them
        work = RunInputs(recipe, tuned, run_dir, photographs, plan, device, say, began)
        if plan.native:
            work = with_own_proportions(work)
        earlier = from_rank_0(lambda: _earlier_choice(run_dir))
        reading = read(work)
        work = settle_reading(work, reading)
        first = closed_form(work, reading, is_saved=bool(earlier))

        # The closed form on uncropped images, if most are not square and it is better; a finished
        # run keeps its decision
        whole = None
        if not earlier:
            work, whole = chosen_proportions(work, reading)
        if whole is not None:
            work = settle_reading(work, whole)
            first = closed_form(work, whole, is_saved=False)
        tuning = tuning_for(work, first)
        if not tuning.steps:
            return _record_result(work, _without_fine_tuning(work, first, tuning.next_minutes))
        tried = _held_out_candidates(work, first, tuning)
        return _record_result(work, _best_of(work, first, tried, earlier, tuning.next_minutes))


def _check(photographs: Photographs, recipe: Recipe) -> None:
    """Raises VitkitError if the images cannot train a classifier."""
    source = recipe.data.source
    if photographs.target_kind == "none":
        raise BadData(
            f"{source} has no classes: put its photographs into a folder a class, such as "
            f"{source}/cats and {source}/dogs, or say which column of a manifest has them with "
            "`data.columns.label`"
        )
    if photographs.target_kind == "class" and len(photographs.labels) < 2:
        raise BadData(
            f"{source} has one class, {', '.join(photographs.labels)}; a classifier needs at "
            "least two: add a folder with photographs of something else"
        )


def _held_out_candidates(work: RunInputs, first: First, tuning: Tuning) -> list[Candidate]:
    """The closed form, the fine-tuned model, and the average of both if their heads have the same feature
    set, measured on the held-out images."""
    held_out = work.photographs.held_out
    assert (
        held_out is not None and first.held_out is not None
    )  # fine-tuning requires held-out images
    tuned = fine_tuned(work, tuning).to(work.device)
    models = {FINE_TUNED: tuned}
    resized, _ = adopt(first.held_out.classifier, image=work.tuning.model.image)
    if resized.model.config == tuned.model.config:  # the same architecture and feature set
        models[AVERAGE] = average(resized, tuned)
    tried = [first.held_out]
    for name, each in models.items():
        logits = answers(work, each, held_out)
        y = targets_of(held_out)
        tried.append(candidate(name, each, first.asked, logits, y, held_out.groups))
    return tried


def _best_of(
    work: RunInputs, first: First, tried: list[Candidate], earlier: str, minutes: float
) -> FolderResult:
    """The result with the best candidate on held-out images, which replaces the first model on disk."""
    photographs = work.photographs
    held_out = photographs.held_out
    assert held_out is not None  # fine-tuning requires held-out images
    weights = image_weights(first.asked, targets_of(held_out))
    reached = replace(_without_fine_tuning(work, first, minutes), candidates=tuple(tried))
    groups = held_out.groups
    chosen = from_rank_0(lambda: best(tried, weights, groups).name)
    if chosen == CLOSED_FORM:
        return reached
    picked = {each.name: each for each in tried}[chosen]
    kept = kept_quality(first.asked, tried, picked, targets_of(held_out), groups)
    final = with_origin(work, picked.classifier, chosen, kept)
    if chosen != earlier:  # else it is already saved, and its owner may have edited it
        from_rank_0(lambda: _save_other(work, final))
    reached = replace(reached, chosen=chosen, classifier=final, held_out=kept)
    if photographs.test is None:
        return reached

    # On the test images
    logits = answers(work, picked.classifier, photographs.test)
    test = photographs.test
    metric = main_metric(first.asked, photographs.test_name, logits, targets_of(test), test.groups)
    return replace(reached, test=reached.test | {chosen: metric}, test_logits=logits)


def _without_fine_tuning(work: RunInputs, first: First, minutes: float) -> FolderResult:
    """The result if nothing is fine-tuned."""
    candidates: tuple[Candidate, ...] = ()
    held_out = None
    if first.held_out is not None:
        candidates = (first.held_out,)
        held_out = first.held_out.held_out
    test = {}
    if first.test is not None:
        test = {CLOSED_FORM: first.test}
    return FolderResult(
        CLOSED_FORM,
        first.classifier,
        candidates,
        first.left_out,
        held_out,
        work.photographs,
        minutes,
        test,
        first.test_logits,
    )


def _earlier_choice(run_dir: Path) -> str:
    """The name of the model that an earlier call chose; "" if none did, or if the model was deleted."""
    if not (run_dir / MODEL).is_dir():
        return ""
    try:
        return str(parse_json((run_dir / ANSWER).read_bytes())["chosen"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _save_other(work: RunInputs, final: Classifier) -> None:
    """Replace the first model on disk by another one."""
    folder = work.run_dir / MODEL
    save(final.to("cpu"), folder)
    remove_memory(folder)


def _record_result(work: RunInputs, reached: FolderResult) -> FolderResult:
    """Record the result, and return it."""
    candidates = {
        each.name: {"held_out": each.held_out.to_json(), "loss": each.loss}
        for each in reached.candidates
    }
    values = {
        "chosen": reached.chosen,
        "candidates": candidates,
        "test": {name: metric.to_json() for name, metric in reached.test.items()},
        "seconds": round(time.monotonic() - work.began, 1),
    }
    from_rank_0(lambda: write_json(work.run_dir / ANSWER, values))
    measured = measured_by(reached)
    from_rank_0(
        lambda: write_record(
            work, reached.chosen, reached.classifier, measured, reached.test_logits
        )
    )
    return reached


def measured_by(reached: FolderResult) -> Metric | None:
    """The accuracy of the chosen model on the test images, or else on the held-out images; None
    without either."""
    metric = reached.test.get(reached.chosen)
    if metric is None and reached.candidates:
        metric = reached.held_out
    return metric
