"""What `vitkit probe` saves: the model with its new head, and what other commands need of it."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from vitkit.data import Source
from vitkit.evaluation import Features, Metric, Probe, Probing, with_probe
from vitkit.system.console.text import as_word
from vitkit.weights import Classifier

if TYPE_CHECKING:
    from vitkit.commands.probe import FitProbe


@dataclass(frozen=True, eq=False)
class Fitted:
    """A probe, and all that it was fitted to."""

    probing: Probing
    probe: Probe
    source: Source
    """The images to learn from."""
    learned: Features
    """Their features and targets."""
    precision: str
    """In which they were computed."""
    metrics: list[Metric]
    """What it reaches."""
    held_out: str | None
    """The fingerprint of a test part that was made, by which `vitkit evaluate` knows it again."""
    parts: tuple[str, ...]
    """Fingerprints of the parts of the data that it learned from, so that `vitkit evaluate` can say
    so."""


def save_probe(command: "FitProbe", classifier: Classifier, fitted: Fitted) -> str:
    """Put the head on a model and save it; returns a sentence about it. A linear head of images of
    one class each goes with what it learned from, for `vitkit teach`, and with limits by which images
    are unknown."""
    from vitkit.data import is_elsewhere
    from vitkit.evaluation import fit_unknown, remembered, write_memory
    from vitkit.weights import save

    # The left-out answers of the other methods are no exact ones
    learned = fitted.learned
    memory = None
    unknown = None
    if command.method == "linear" and fitted.probing.kind == "class":
        x, classes = torch.tensor(learned.x), torch.tensor(learned.y)
        unknown = fit_unknown(x, classes, fitted.probe.left_out)
        if not is_elsewhere(fitted.source):
            labels = fitted.probing.labels
            memory = remembered(fitted.source, learned, labels, fitted.precision)

    headless = replace(classifier.to("cpu"), origin=_origin(command, fitted), unknown=unknown)
    probing = fitted.probing
    probed = with_probe(headless, fitted.probe, probing.labels, probing.activation)
    saved = save(probed, command.to)
    if memory is None:
        return f"wrote {saved}"
    write_memory(saved, memory, probed)
    return f"wrote {saved}; vitkit teach {as_word(saved)} changes what it knows"


def _origin(command: "FitProbe", fitted: Fitted) -> dict:
    """Where the model comes from."""
    origin = {
        "init": command.model,
        "head": f"{command.method} probe, temperature {fitted.probe.temperature:.3g}",
        "data": command.data,
        "metrics": {metric.name: metric.text() for metric in fitted.metrics},
        "split_seed": 0,
        "learned": list(fitted.parts),
    }
    if fitted.held_out:
        origin["held_out"] = fitted.held_out
    return origin
