"""A frozen model on one task: what its features are worth, in closed form and without training.

The images are computed on once, and kept in the cache: a task takes seconds, and the next time less.
"""

from dataclasses import dataclass, field

import numpy as np
import torch

from vitkit.data import Columns, Source, merge_parts, open_parts
from vitkit.evaluation import (
    FIXED,
    SHARE,
    Metric,
    draw,
    features,
    interval,
    known_classes,
    predictions,
    probe,
    share_right,
    shot_notes,
    voted,
)
from vitkit.system.console.saying import say
from vitkit.system.console.text import printable
from vitkit.system.machine import Precision, autocast
from vitkit.system.processes.ranks import on_rank_0, process_group
from vitkit.weights import Hints, load_as


@dataclass(frozen=True)
class Frozen:
    """Linear probe and neighbours, which know all images but the test part, and few-shot accuracy,
    which draws from the training part. Equal values measure the same."""

    model: str
    """The model."""
    weights: str
    """A digest of its weights."""
    data: str
    """The images."""
    digest: str
    """By which changed images are noticed."""
    columns: Columns = field(default_factory=Columns)
    """Which columns hold the images and the labels."""
    hints: Hints = field(default_factory=Hints)
    """What the model's file does not say."""
    shots: tuple[int, ...] = (5, 10)
    """Images of each class for the few-shot accuracy."""
    seeds: int = 3
    """How often these are drawn."""
    k: int = 20
    """Neighbours that vote."""
    precision: Precision = "float32"
    """Of the matrix products below the head."""

    def measure(self, device: str) -> list[Metric]:
        """The accuracy of each: `linear`, and `left_out`, which is the probe's on the images that it
        learns from, each answered by a fit without it; `5-shot`, `10-shot`; `neighbours`. Raises
        ValueError for images that nothing can be learned from, and for features that are not
        finite."""
        train, learned, test = self._images()
        known = known_classes(learned)

        # The features, once; the training images are the first of those learned from
        with process_group(device) as own_device:
            loaded = load_as(self.model, self.hints, quiet=True)
            classifier = loaded.to(own_device).for_inference()
            with autocast(own_device, self.precision):
                x, y = features(classifier, learned)
                x_test, y_test = features(classifier, test)

        # The linear probe, which does not know classes without an image
        number = np.full(len(learned.labels), -1)
        number[known] = np.arange(len(known))
        fitted = probe("linear", x, number[y], len(known))
        predicted = known[fitted.logits(torch.tensor(x_test)).argmax(1).numpy()]
        left_out = known[fitted.left_out.argmax(1).numpy()]
        metrics = [_accuracy("linear", predicted, y_test), _accuracy("left_out", left_out, y)]

        # A few training images of each class
        for shots in self.shots:
            right = []
            for seed in range(self.seeds):
                rows = draw(train.targets, shots, seed)
                answers = predictions(x[rows], y[rows], x_test, len(test.labels), (FIXED,))
                right.append(answers[0] == y_test)
            right = np.stack(right)
            metrics.append(Metric(f"{shots}-shot", float(right.mean()), SHARE, interval(right)))
        if on_rank_0():
            for sentence in shot_notes(train, test, max(self.shots)):
                say(printable(f"{self.data}: {sentence}"))

        near = voted(torch.tensor(x), torch.tensor(y), self.k, torch.tensor(x_test)).numpy()
        return [*metrics, _accuracy("neighbours", near, y_test)]

    def _images(self) -> tuple[Source, Source, Source]:
        """The training images; the same and those of the validation part; and the test images."""
        sources = open_parts(self.data, self.columns).sources
        train = sources["train"]
        learned = train
        if "val" in sources:
            learned = merge_parts(train, sources["val"])
        return train, learned, sources["test"]


def _accuracy(name: str, predicted: np.ndarray, classes: np.ndarray) -> Metric:
    """The share of answers that are right, of classes (N,) each."""
    return share_right(name, int((predicted == classes).sum()), len(classes))
