"""From a folder of photographs to a model. A head in closed form comes first, seconds after the
command; then all weights are fine-tuned for as long as held-out images gain and there is time; the
best on held-out images is kept.

The paper fine-tunes from a head of zeros (Section 3.2), and so does this: a solved head has a small
loss at once, so nothing would push the features to where they could be better.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

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
    targets_of,
    with_head,
)
from vitkit.studies.pace import (
    for_few_pixels,
    seconds_of_a_step,
    steps_within,
    time_text,
    with_steps,
)
from vitkit.studies.photographs import Photographs, look, open_photographs
from vitkit.studies.plan import Plan, earlier_plan, write_plan
from vitkit.studies.said import left_out_sentences, test_sentences
from vitkit.system.files import write_json
from vitkit.system.machine import autocast, pick_precision
from vitkit.system.ranks import from_rank_0
from vitkit.system.text import counted
from vitkit.training import Recipe, train
from vitkit.training.data import Say
from vitkit.training.earlier import MODEL
from vitkit.training.record import to_json
from vitkit.training.run import locked
from vitkit.training.stop import Ends
from vitkit.weights import Classifier, adopt, save
from vitkit.weights.store import load_for

RUN = "fine-tuned"  # the directory of the fine-tuning, in the study's directory
ANSWER = "answer.json"  # there: what each candidate reached
MANY = 100  # held-out images: if all are answered rightly, there is nothing to gain


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


@dataclass(frozen=True)
class _Work:
    """What every step of the study reads."""

    recipe: Recipe
    """As it was given: its precision may be "auto", and its spans 0."""
    tuning: Recipe
    """The same for the fine-tuning, which may be at a smaller image size."""
    run_dir: Path
    photographs: Photographs
    plan: Plan
    device: torch.device
    say: Say
    began: float

    def seconds(self) -> str:
        """How long it has taken so far."""
        return f"{time.monotonic() - self.began:.1f} s"


@dataclass(frozen=True)
class _First:
    """The first model: a head in closed form."""

    asked: Probing
    bare: Classifier
    """The pre-trained model with a head of zeros."""
    classifier: Classifier
    """With the head that all images to learn from give."""
    left_out: Metric
    held_out: Candidate | None
    """How good its answers to the held-out images are, each by a fit without it; with a model that has
    learned from none of them. None if nothing is held out."""
    test_logits: Tensor | None
    """Of the images to test on, (N, K), if there are some;"""
    test: Metric | None
    """and how good they are."""


def answer(
    recipe: Recipe,
    run_dir: Path,
    minutes: float,
    device: torch.device,
    say: Say,
    keep_size: bool = False,
) -> Answer:
    """Make the best model for the recipe's images that the minutes allow, and save it in
    `run_dir`/model; returns it, with what it and the others reached. A model is there from the first
    seconds on. The same call continues one that was killed.

    The recipe is that of the fine-tuning. Its spans may be 0: then they follow from the time. Images
    of few pixels are fine-tuned at a smaller size than the recipe's, unless `keep_size`.

    Raises ValueError for images that no classifier can be made of, and for a directory of another
    run; Interrupted after SIGTERM.
    """
    if not minutes > 0:
        raise ValueError(f"--minutes is {minutes:g}; it is a time above 0")
    began = time.monotonic()
    with locked(run_dir):
        # What there is
        photographs = open_photographs(recipe.data)
        _check(photographs, recipe)
        plan = earlier_plan(run_dir, recipe, photographs, minutes)
        for sentence in look(photographs):
            say(sentence)

        # What is decided once
        if plan is None:
            precision = from_rank_0(lambda: pick_precision(recipe.precision, device)).precision
            images = fingerprint(photographs.learned)
            plan = Plan(None, precision, minutes, to_json(recipe), images)
            write_plan(run_dir, plan)
        tuning = replace(recipe, precision=plan.precision)
        if not keep_size:
            tuning = for_few_pixels(tuning, photographs.train)

        # The models, and the best of them
        work = _Work(recipe, tuning, run_dir, photographs, plan, device, say, began)
        earlier = from_rank_0(lambda: _earlier_choice(run_dir))
        first = _closed_form(work, is_saved=bool(earlier))
        steps, more = _steps(work, first)
        if not steps:
            return _end(work, _only(work, first, more))
        tried = _tried(work, first, steps)
        return _end(work, _best_of(work, first, tried, earlier, more))


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


def _closed_form(work: _Work, is_saved: bool) -> _First:
    """The head that is solved for, and how good it is, which is said. It is saved if no model is."""
    photographs = work.photographs
    asked = question(photographs.target_kind, photographs.labels)
    bare = _pretrained(work, work.recipe, asked.labels)

    # A head on features, and each image answered by a fit without it
    learned = _features(work, bare, photographs.learned)
    whole = solved(asked, learned)
    left_out = main_metric(asked, "left_out", whole.left_out, learned.y)
    classifier = _described(work, with_head(bare, whole, asked), CLOSED_FORM, left_out)
    if asked.kind == "class":
        unknown = fit_unknown(torch.tensor(learned.x), torch.tensor(learned.y), whole.left_out)
        classifier = replace(classifier, unknown=unknown)
    if not is_saved:
        from_rank_0(lambda: _save_first(work, classifier, learned))
        work.say(f"after {work.seconds()} a first model is in {work.run_dir / MODEL}")
    for sentence in left_out_sentences(asked, left_out, learned):
        work.say(sentence)

    # On the images to test on
    test_logits = None
    test = None
    if photographs.test is not None:
        given = _features(work, bare, photographs.test)
        test_logits = whole.logits(torch.tensor(given.x))
        test = main_metric(asked, photographs.test_name, test_logits, given.y)
        for sentence in test_sentences(asked, test, learned, given):
            work.say(sentence)

    # How good it is on the held-out images, each by a fit without it; and the head that has learned
    # from none of them, for the average
    held_out = None
    if photographs.held_out is not None:
        count = len(photographs.train)
        alone = solved(asked, Features(learned.x[:count], learned.y[:count]))
        averaged = with_head(bare, alone, asked)
        logits = whole.left_out[count:]
        held_out = candidate(CLOSED_FORM, averaged, asked, logits, learned.y[count:])
    return _First(asked, bare, classifier, left_out, held_out, test_logits, test)


def _tried(work: _Work, first: _First, steps: int) -> list[Candidate]:
    """The solved head, the fine-tuned model, and the average of both, on the held-out images."""
    held_out = work.photographs.held_out
    tuned = _fine_tuned(work, steps).to(work.device)
    resized, _ = adopt(first.held_out.classifier, image=work.tuning.model.image)
    tried = [first.held_out]
    for name, each in ((FINE_TUNED, tuned), (AVERAGE, average(resized, tuned))):
        logits = _answers(work, each, held_out)
        tried.append(candidate(name, each, first.asked, logits, targets_of(held_out)))
    return tried


def _best_of(
    work: _Work, first: _First, tried: list[Candidate], earlier: str, minutes: float
) -> Answer:
    """The best model on held-out images, saved in the place of the first unless it is that."""
    # What each held-out image counts
    photographs = work.photographs
    weights = None
    if work.recipe.objective.class_weights == "balanced":
        targets = photographs.held_out.targets
        counts = np.bincount(targets, minlength=len(photographs.labels))
        weights = balanced_weights(counts)[targets]

    # The best by them
    reached = replace(_only(work, first, minutes), candidates=tuple(tried))
    chosen = from_rank_0(lambda: best(tried, weights).name)
    if chosen == CLOSED_FORM:
        return reached
    picked = {each.name: each for each in tried}[chosen]
    final = _described(work, picked.classifier, chosen, picked.held_out)
    if chosen != earlier:  # else it is there, and its owner may have edited it
        from_rank_0(lambda: _save_other(work, final))
    reached = replace(reached, chosen=chosen, classifier=final)
    if photographs.test is None:
        return reached

    # On the images to test on
    logits = _answers(work, picked.classifier, photographs.test)
    metric = main_metric(first.asked, photographs.test_name, logits, targets_of(photographs.test))
    return replace(reached, test=reached.test | {chosen: metric}, test_logits=logits)


def _only(work: _Work, first: _First, minutes: float) -> Answer:
    """What came of it if nothing is fine-tuned."""
    candidates = ()
    if first.held_out is not None:
        candidates = (first.held_out,)
    test = {}
    if first.test is not None:
        test = {CLOSED_FORM: first.test}
    return Answer(
        CLOSED_FORM,
        first.classifier,
        candidates,
        first.left_out,
        work.photographs,
        minutes,
        test,
        first.test_logits,
    )


def _pretrained(work: _Work, recipe: Recipe, labels: Sequence[str]) -> Classifier:
    """The pre-trained model with a head of zeros for these classes, for the recipe's images."""
    published, _ = load_for(recipe.init, recipe.model)
    config = recipe.model
    fitted, _ = adopt(
        published, labels=labels, image=config.image, channels=config.channels, new_head=True
    )
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


def _steps(work: _Work, first: _First) -> tuple[int, float]:
    """How many steps to fine-tune for, 0 if that would make nothing better, which is said; and for
    how many minutes one would do it next."""
    recipe = work.tuning
    photographs = work.photographs
    minutes = work.plan.minutes
    more = 5 * minutes

    # Where it could gain nothing
    if first.held_out is None:
        work.say(
            "nothing can be held out to choose by, so nothing is fine-tuned: more images would help"
        )
        return 0, more
    scores = first.held_out.scores
    if (scores == 1).all() and len(scores) >= MANY:
        work.say("every held-out image is answered rightly: fine-tuning could gain nothing")
        return 0, more

    # As the caller says, or as an earlier call decided
    if recipe.length.n:
        return round(recipe.length.steps(recipe.batch, len(photographs.train))), more
    if work.plan.steps is not None:
        return work.plan.steps, more

    # What fits into the time
    model = first.bare.model
    if recipe.model.image != work.recipe.model.image:
        model = _pretrained(work, recipe, first.asked.labels).model
    step = from_rank_0(lambda: seconds_of_a_step(model, recipe, work.device))
    counts = (len(photographs.train), len(photographs.held_out))
    steps, enough = steps_within(minutes, step, recipe, *counts)
    if not steps:
        work.say(
            f"a training step takes {step:.1f} s here, too long for {time_text(minutes)}: "
            f"--minutes {enough} would do, or smaller weights, or a GPU"
        )
        return 0, enough
    write_plan(work.run_dir, work.plan._replace(steps=steps))
    return steps, more


def _fine_tuned(work: _Work, steps: int) -> Classifier:
    """The fine-tuned model; continues the run if it was interrupted."""
    recipe = with_steps(work.tuning, steps, len(work.photographs.held_out))
    time_allowed = None
    text = ""
    if not work.recipe.length.n:
        time_allowed = 60 * work.plan.minutes
        text = f", {time_text(work.plan.minutes)} at most"
    size = ""
    if recipe.model.image != work.recipe.model.image:
        height, width = recipe.model.image
        size = f" at {height} x {width} pixels, enough for such small images,"
    work.say(
        f"now fine-tuning{size} for {counted(steps, 'step')}{text}; Ctrl-C ends it and keeps the "
        "better model"
    )
    end = Ends(by_a_person=True, after=time_allowed)
    return train(recipe, work.run_dir / RUN, work.device.type, ends=end)


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
