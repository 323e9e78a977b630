"""From a folder of photographs to a model. A head in closed form comes first, seconds after the
command; then all weights are fine-tuned for as long as held-out images gain and there is time; the
best on held-out images is kept.

The paper fine-tunes from a head of zeros (Section 3.2), and so does this: a solved head has a small
loss at once, so nothing would push the features to where they could be better.
"""

import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitkit.data import Source, fingerprint, is_elsewhere
from vitkit.evaluate import Features, Metric, features
from vitkit.evaluate.memory import remove_memory, write_memory
from vitkit.evaluate.probing import Probing
from vitkit.evaluate.teach import remembered
from vitkit.evaluate.unknown import fit_unknown
from vitkit.objectives.supervised import balanced_weights
from vitkit.studies.candidates import (
    AVERAGE,
    CLOSED_FORM,
    FINE_TUNED,
    Candidate,
    answers_of,
    average,
    best,
    candidate,
    main_metric,
    question,
    solved,
    with_head,
)
from vitkit.studies.pace import seconds_of_a_step
from vitkit.studies.photographs import Photographs, look, look_alikes, open_photographs
from vitkit.system.files import write_json
from vitkit.system.machine import autocast, pick_precision
from vitkit.system.ranks import from_rank_0
from vitkit.system.span import Span
from vitkit.system.text import counted
from vitkit.training import Recipe, train
from vitkit.training.data import Say
from vitkit.training.earlier import MODEL, Occupied
from vitkit.training.record import differences, to_json
from vitkit.training.run import locked
from vitkit.training.stop import Ends
from vitkit.weights import Classifier, adopt, save
from vitkit.weights.store import load_for

RUN = "fine-tuned"  # the directory of the fine-tuning, in the study's directory
PLAN = "plan.json"  # there: what was decided before the fine-tuning, which continues by it
ANSWER = "answer.json"  # there: what each candidate reached
FEWEST_EVALUATIONS = 4  # during the fine-tuning,
MOST_EVALUATIONS = 10  # so that it can end early,
EVALUATING = 0.05  # and the share of the time that they may take
EPOCHS = 20  # at most, however much time there is
FEWEST = 200  # steps that it may always have
MANY = 100  # held-out images: if all are answered rightly, there is nothing to gain
COMPARED = 10_000  # images to learn from that are compared with each other
TOO_FEW = 25  # steps that make nothing better
MEANS = {"classes": "mean average precision", "number": "mean error"}  # the main metric


@dataclass(frozen=True)
class Answer:
    """What came of a folder of photographs."""

    chosen: str
    """The name of the model that is saved."""
    classifier: Classifier
    """That model."""
    candidates: tuple[Candidate, ...]
    """All that were tried, as they did on held-out images; none if nothing could be held out."""
    left_out: Metric
    """How good the closed form's answers to each image by a fit without it are."""
    photographs: Photographs
    """The images."""
    minutes: float
    """For how long one would fine-tune next."""
    test: dict[str, Metric] = field(default_factory=dict)
    """By the names of the models that were tested, what they reached on images to test on."""
    test_logits: Tensor | None = None
    """What the chosen one answered to those: (N, K)."""


class OtherPlan(Occupied):
    """The directory was begun with other settings, or on other images."""


class Plan(NamedTuple):
    """What is decided by the machine and the clock, and must stay when a run is continued; and what
    it was decided for."""

    steps: int | None
    """Of the fine-tuning; None as long as that is not decided."""
    precision: str
    minutes: float
    recipe: dict
    """The recipe of the call, as plain values."""
    images: str
    """Fingerprint of the images to learn from."""


@dataclass(frozen=True)
class _Work:
    """What every step of the study reads."""

    recipe: Recipe
    """As it was given: its precision may be "auto", and its spans 0."""
    run_dir: Path
    photographs: Photographs
    plan: Plan
    device: torch.device
    say: Say
    began: float

    def seconds(self) -> str:
        """How long it has taken so far."""
        return f"{time.monotonic() - self.began:.1f} s"


def answer(recipe: Recipe, run_dir: Path, minutes: float, device: torch.device, say: Say) -> Answer:
    """Make the best model for the recipe's images that the minutes allow, and save it in
    `run_dir`/model; returns it, with what it and the others reached. A model is there from the first
    seconds on. The same call continues one that was killed.

    The recipe is that of the fine-tuning. Its spans may be 0: then they follow from the time.

    Raises ValueError for images that no classifier can be made of, and for a directory of another
    run; Interrupted after SIGTERM.
    """
    if not minutes > 0:
        raise ValueError(f"--minutes is {minutes:g}; it is a time above 0")
    began = time.monotonic()
    with locked(run_dir):
        photographs = open_photographs(recipe.data)
        _check(photographs, recipe)
        plan = _earlier_plan(run_dir, recipe, photographs, minutes)
        for sentence in look(photographs):
            say(sentence)
        if plan is None:
            precision = from_rank_0(lambda: pick_precision(recipe.precision, device)).precision
            images = fingerprint(photographs.learned)
            plan = Plan(None, precision, minutes, to_json(recipe), images)
            _write(run_dir, plan)
        return _of_photographs(_Work(recipe, run_dir, photographs, plan, device, say, began))


def _check(photographs: Photographs, recipe: Recipe) -> None:
    """Raises ValueError for images that teach nothing."""
    source = recipe.data.source
    if photographs.target_kind == "none":
        raise ValueError(
            f"{source} has no classes: put its photographs into a folder a class, such as "
            f"{source}/cats and {source}/dogs, or say which column of a manifest has them with "
            "--data.columns.label"
        )
    if photographs.target_kind == "class" and len(photographs.labels) < 2:
        raise ValueError(
            f"{source} has one class, {', '.join(photographs.labels)}; a classifier tells two or "
            "more apart: add a folder with photographs of something else"
        )


def _of_photographs(work: _Work) -> Answer:
    """The closed form, the fine-tuning, and the best of both and their average."""
    photographs = work.photographs
    asked = question(photographs.target_kind, photographs.labels)
    bare = _pretrained(work, asked.labels)

    # The first answer: a head on features, and each image answered by a fit without it
    learned = _features(work, bare, photographs.learned)
    whole = solved(asked, learned)
    left_out = main_metric(asked, "left_out", whole.left_out, learned.y)
    first = _described(work, with_head(bare, whole, asked), CLOSED_FORM, left_out)
    if asked.kind == "class":
        unknown = fit_unknown(torch.tensor(learned.x), torch.tensor(learned.y), whole.left_out)
        first = replace(first, unknown=unknown)
    earlier = from_rank_0(lambda: _earlier_choice(work.run_dir))
    if not earlier:
        from_rank_0(lambda: _save_first(work, first, learned))
        work.say(f"after {work.seconds()} a first model is in {work.run_dir / MODEL}")
    _say_left_out(work, asked, left_out, learned)
    test = {}
    test_logits = None
    if photographs.test is not None:
        given = _features(work, bare, photographs.test)
        test_logits = whole.logits(torch.tensor(given.x))
        test[CLOSED_FORM] = main_metric(asked, photographs.test_name, test_logits, given.y)
        _say_test(work, asked, test[CLOSED_FORM], len(given.y))
        _say_look_alikes(work, learned, given)

    # The same on the images that are not held out, to compare with
    tried = []
    if photographs.held_out is not None:
        count = len(photographs.train)
        alone = solved(asked, Features(learned.x[:count], learned.y[:count]))
        logits = alone.logits(torch.tensor(learned.x[count:]))
        compared = with_head(bare, alone, asked)
        tried.append(candidate(CLOSED_FORM, compared, asked, logits, learned.y[count:]))

    # The fine-tuning, if it makes sense
    steps, minutes = _steps(work, bare, tried)
    reached = Answer(
        CLOSED_FORM, first, tuple(tried), left_out, photographs, minutes, test, test_logits
    )
    if not steps:
        return _end(work, reached)
    tuned = _fine_tuned(work, steps).to(work.device)
    held_out = photographs.held_out
    for name, each in ((FINE_TUNED, tuned), (AVERAGE, average(tried[0].classifier, tuned))):
        logits = _answers(work, each, held_out)
        tried.append(candidate(name, each, asked, logits, learned.y[count:]))

    # The best of them
    weights = None
    if work.recipe.objective.class_weights == "balanced":
        counts = np.bincount(held_out.targets, minlength=len(photographs.labels))
        weights = balanced_weights(counts)[held_out.targets]
    chosen = from_rank_0(lambda: best(tried, weights).name)
    final = first
    if chosen != CLOSED_FORM:
        picked = {each.name: each for each in tried}[chosen]
        final = _described(work, picked.classifier, chosen, picked.held_out)
        if chosen != earlier:  # else it is there, and its owner may have edited it
            from_rank_0(lambda: _save_other(work, final))
        if photographs.test is not None:
            test_logits = _answers(work, picked.classifier, photographs.test)
            test[chosen] = main_metric(asked, photographs.test_name, test_logits, given.y)
    reached = replace(
        reached,
        chosen=chosen,
        classifier=final,
        candidates=tuple(tried),
        test=test,
        test_logits=test_logits,
    )
    return _end(work, reached)


def _pretrained(work: _Work, labels: Sequence[str]) -> Classifier:
    """The pre-trained model with a head of zeros for these classes, for the recipe's images."""
    recipe = work.recipe
    published, _ = load_for(recipe.init, recipe.model)
    fitted, _ = adopt(published, labels=labels, image=recipe.model.image, new_head=True)
    return replace(fitted.to(work.device), preprocessing=recipe.data.preprocessing)


def _earlier_choice(run_dir: Path) -> str:
    """The name of the model that an earlier call ended with; empty if none did, or it is gone."""
    if not (run_dir / MODEL).is_dir():
        return ""
    try:
        return str(json.loads((run_dir / ANSWER).read_bytes())["chosen"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _save_first(work: _Work, first: Classifier, learned: Features) -> None:
    """Save the model with the solved head, and what it has learned from, for `vitkit teach`."""
    folder = work.run_dir / MODEL
    source = work.photographs.learned
    save(first.to("cpu"), folder)
    is_here = not is_elsewhere(source)  # else every image would have to be fetched again
    if is_here and work.photographs.target_kind == "class":
        memory = remembered(source, learned, first.labels, work.plan.precision)
        write_memory(folder, memory, first)


def _save_other(work: _Work, final: Classifier) -> None:
    """Save another model in the place of the first."""
    folder = work.run_dir / MODEL
    save(final.to("cpu"), folder)
    remove_memory(folder)


def _features(work: _Work, classifier: Classifier, source: Source) -> Features:
    """The features of images, from the cache if they are there."""
    with autocast(work.device, work.plan.precision):
        found = features(classifier.for_inference(), source)
    broken = np.flatnonzero(~np.isfinite(found.x).all(1))
    if len(broken):
        raise ValueError(
            f"{work.recipe.init} gives NaN or infinity for {len(broken):,} of {len(found.x):,} "
            f"images, {source.name(broken[0])} for example, so nothing can be fitted to them"
        )
    return found


def _answers(work: _Work, classifier: Classifier, source: Source) -> Tensor:
    with autocast(work.device, work.plan.precision):
        return answers_of(classifier, source)


def _say_left_out(work: _Work, asked: Probing, metric: Metric, learned: Features) -> None:
    """Say how good the solved head is, and what makes it look better than it is."""
    if asked.kind == "class":
        how_good = f"{metric.text()} of the images are answered right by fits without them"
    else:
        how_good = f"fits without an image answer it with a {MEANS[asked.kind]} of {metric.text()}"
    work.say(f"its head is solved for, not trained: {how_good}")
    repeated = 0
    if len(learned.x) <= COMPARED:
        repeated = int(look_alikes(learned.x).sum())
    if repeated:
        work.say(
            f"{repeated:,} of the images to learn from look the same as another of them, so this is "
            "too good: vitkit data review shows them"
        )


def _say_test(work: _Work, asked: Probing, metric: Metric, count: int) -> None:
    """Say how good the solved head is on images to test on."""
    if asked.kind == "class":
        work.say(f"it is right on {metric.text()} of the {count:,} images to test on")
        return
    work.say(f"on the {count:,} images to test on it has a {MEANS[asked.kind]} of {metric.text()}")


def _say_look_alikes(work: _Work, learned: Features, given: Features) -> None:
    """Say how many images to test on are also learned from, for all that the model can see."""
    alike = int(look_alikes(learned.x, given.x).sum())
    if alike:
        work.say(
            f"{alike:,} of them look the same as one to learn from, so that is too good: vitkit data "
            "review shows them"
        )


def _described(work: _Work, classifier: Classifier, name: str, metric: Metric) -> Classifier:
    """The classifier with where it comes from."""
    origin = {
        "recipe": work.recipe.name,
        "init": work.recipe.init,
        "head": name,
        "data": work.recipe.data.source,
        "metrics": {metric.name: metric.text()},
        "split_seed": work.recipe.data.split_seed,
    }
    if work.photographs.made_fingerprint:
        origin["held_out"] = work.photographs.made_fingerprint
    return replace(classifier, origin=origin)


# The fine-tuning


def _earlier_plan(
    run_dir: Path, recipe: Recipe, photographs: Photographs, minutes: float
) -> Plan | None:
    """The plan of an earlier call; None if there is none. Raises OtherPlan for another one's."""
    plan = from_rank_0(lambda: read_plan(run_dir))
    if plan is None:
        return None
    changed = differences(plan.recipe, to_json(recipe))
    if plan.minutes != minutes:
        changed.append(f"minutes: {plan.minutes:g}, now {minutes:g}")
    if plan.images != fingerprint(photographs.learned):
        changed.append("its images have changed")
    if changed:
        raise OtherPlan(f"{run_dir} was begun otherwise ({'; '.join(changed[:5])})")
    return plan


def read_plan(run_dir: Path) -> Plan | None:
    """The plan in a directory; None if there is none, or it is damaged."""
    try:
        return Plan(**json.loads((run_dir / PLAN).read_bytes()))
    except (OSError, TypeError, ValueError):
        return None


def _write(run_dir: Path, plan: Plan) -> None:
    from_rank_0(lambda: write_json(run_dir / PLAN, plan._asdict()))


def _steps(work: _Work, classifier: Classifier, tried: list[Candidate]) -> tuple[int, float]:
    """How many steps to fine-tune for, 0 if that would make nothing better, which is said; and for
    how many minutes one would do it next."""
    recipe = work.recipe
    photographs = work.photographs
    more = 5 * work.plan.minutes

    # Where it could gain nothing
    if photographs.held_out is None:
        work.say(
            "nothing can be held out to choose by, so nothing is fine-tuned: more images would help"
        )
        return 0, more
    if tried and (tried[0].scores == 1).all() and len(tried[0].scores) >= MANY:
        work.say("every held-out image is answered rightly: fine-tuning could gain nothing")
        return 0, more

    # As the caller says, or as an earlier call decided
    if recipe.length.n:
        return round(recipe.length.steps(recipe.batch, len(photographs.train))), more
    if work.plan.steps is not None:
        return work.plan.steps, more

    # What fits into the time, beside the evaluations
    timed = replace(recipe, precision=work.plan.precision)
    step = from_rank_0(lambda: seconds_of_a_step(classifier.model, timed, work.device))
    evaluations = max(
        FEWEST_EVALUATIONS * _evaluation_in_steps(work) * step,
        EVALUATING * 60 * work.plan.minutes,
    )
    steps = int((60 * work.plan.minutes - evaluations) / step)
    if steps < TOO_FEW:
        enough = math.ceil((evaluations + FEWEST * step) / 60)
        work.say(
            f"a training step takes {step:.1f} s here, too long for {time_text(work.plan.minutes)}: "
            f"--minutes {enough} would do, or smaller weights, or a GPU"
        )
        return 0, enough
    epochs = Span(EPOCHS, "epochs").steps(recipe.batch, len(photographs.train))
    steps = min(steps, max(FEWEST, int(epochs)))
    _write(work.run_dir, work.plan._replace(steps=steps))
    return steps, more


def _evaluation_in_steps(work: _Work) -> float:
    """What an evaluation on the held-out images takes, in training steps: a forward pass takes a
    third of one."""
    return len(work.photographs.held_out) / (3 * work.recipe.batch)


def _fine_tuned(work: _Work, steps: int) -> Classifier:
    """The fine-tuned model; continues the run if it was interrupted."""
    affordable = int(EVALUATING * steps / _evaluation_in_steps(work))
    evaluations = min(max(affordable, FEWEST_EVALUATIONS), MOST_EVALUATIONS)
    recipe = _timed(replace(work.recipe, precision=work.plan.precision), steps, evaluations)
    time_allowed = None
    text = ""
    if not work.recipe.length.n:
        time_allowed = 60 * work.plan.minutes
        text = f", {time_text(work.plan.minutes)} at most"
    work.say(
        f"now fine-tuning for {counted(steps, 'step')}{text}; Ctrl-C ends it and keeps the better model"
    )
    end = Ends(by_a_person=True, after=time_allowed)
    return train(recipe, work.run_dir / RUN, work.device.type, ends=end)


def _timed(recipe: Recipe, steps: int, evaluations: int) -> Recipe:
    """The recipe for so many steps and evaluations; spans that were given stay."""
    if not recipe.optim.warmup.n:
        recipe = replace(recipe, optim=replace(recipe.optim, warmup=Span(steps // 10, "steps")))
    if not recipe.evaluate_every.n:
        recipe = replace(recipe, evaluate_every=Span(max(steps // evaluations, 1), "steps"))
    if not recipe.save_every.n:
        recipe = replace(recipe, save_every=Span(max(steps // 4, 1), "steps"))
    log_every = max(min(recipe.log_every, steps // 10), 1)
    return replace(recipe, length=Span(steps, "steps"), log_every=log_every)


def time_text(minutes: float) -> str:
    """A time as people say it: "2 minutes", or "30 seconds"."""
    if minutes < 1:
        return f"{60 * minutes:.0f} seconds"
    if minutes == 1:
        return "a minute"
    return f"{minutes:g} minutes"


def _end(work: _Work, reached: Answer) -> Answer:
    """Write down what was reached."""
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
    return reached
