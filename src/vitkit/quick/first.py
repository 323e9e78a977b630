"""The first model of a folder of photographs, seconds after the command: a head in closed form on the
features of a pre-trained model."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from vitkit.data import is_elsewhere
from vitkit.evaluation import Features, Metric, Probing, fit_unknown, remembered, write_memory
from vitkit.quick.candidates import (
    CLOSED_FORM,
    Candidate,
    candidate,
    main_metric,
    solved,
    with_head,
)
from vitkit.quick.reading import Reading
from vitkit.quick.sentences import left_out_sentences, test_sentences
from vitkit.quick.work import Work, described, features_of
from vitkit.system.processes.ranks import from_rank_0
from vitkit.training import MODEL
from vitkit.weights import Classifier, save


@dataclass(frozen=True)
class First:
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


def closed_form(work: Work, reading: Reading, is_saved: bool) -> First:
    """The model with the head that is solved for, and how good it is, which is said. It is saved if no
    model is."""
    photographs = work.photographs
    asked, bare, learned, whole = reading

    # Each image answered by a fit without it
    left_out = main_metric(asked, "left_out", whole.left_out, learned.y)
    classifier = described(work, with_head(bare, whole, asked), CLOSED_FORM, left_out)
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
        given = features_of(work, bare, photographs.test)
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
    return First(asked, bare, classifier, left_out, held_out, test_logits, test)


def _save_first(work: Work, first: Classifier, learned: Features) -> None:
    """Save the model with the solved head, and what it has learned from, for `vitkit teach`."""
    folder = work.run_dir / MODEL
    source = work.photographs.learned
    save(first.to("cpu"), folder)
    is_here = not is_elsewhere(source)  # else every image would have to be fetched again
    if is_here and work.photographs.target_kind == "class":
        memory = remembered(source, learned, first.labels, work.plan.precision)
        write_memory(folder, memory, first)
