"""The evaluator of models that classify every pixel, in a run: the mean IoU of whole images.

Legend: K classes, h w pixels of an image.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from vitkit.data import Source, TargetKind, subset
from vitkit.evaluation.evaluator import Part, Subject
from vitkit.evaluation.metrics.metric import Metric
from vitkit.evaluation.metrics.segmentation import PixelCounts, SegmentationScores, count_pixels
from vitkit.runtimes import likeliest
from vitkit.system.console.progress import bar, silent
from vitkit.system.errors import BadImage, BadSettings
from vitkit.system.processes.ranks import from_every_rank, on_rank_0, world
from vitkit.system.values import check_settings
from vitkit.weights import Classifier, evaluating

OF_IMAGES = "image_"  # names of metrics that are means over images; a run has enough others


@dataclass(frozen=True)
class MeanIoU:
    """The mean IoU over classes, Dice and the accuracy of pixels, of masks that are predicted for whole images, as
    `vitkit evaluate` measures them."""

    each_class: bool = False
    """Measure the IoU of each class too."""
    boundary: bool = False
    """Measure the boundary IoU too, which may take longer than the model."""
    most: int = 0
    """Number of images, evenly chosen, that are measured at most; 0 is all."""

    def __post_init__(self):
        check_settings(self)
        if self.most < 0:
            raise BadSettings(f"most is {self.most}; it is a number of images, or 0 for all")

    def judges(self, target_kind: TargetKind) -> bool:
        """Whether images have masks."""
        return target_kind == "mask"

    def measure(self, subject: Subject, part: Part) -> Iterator[Metric]:
        """Yields the metrics. The ranks share the images, and each calls the model equally often. Raises BadImage
        and BadData for images and masks that cannot be read."""
        source = part.source
        if 0 < self.most < len(source):
            source = subset(source, np.arange(self.most) * len(source) // self.most)
        rank, world_size = world()
        rounds = -(-len(source) // world_size)
        own = [min(rank + number * world_size, len(source) - 1) for number in range(rounds)]
        shown = bar("evaluating masks") if on_rank_0() else silent
        counts = []
        with evaluating(subject.classifier.model), torch.no_grad():
            for i in shown(own, rounds):
                counts.append(self._counts(subject.classifier, source, i))
        of_ranks: list[list[PixelCounts]] = from_every_rank(counts)
        in_order = [of_ranks[i % world_size][i // world_size] for i in range(len(source))]
        scores = SegmentationScores.of(source.labels, in_order, source.groups)
        for metric in scores.metrics(self.each_class):
            if not metric.name.startswith(OF_IMAGES):
                yield metric

    def _counts(self, classifier: Classifier, source: Source, i: int) -> PixelCounts:
        """The counts of an image, of which the model sees all."""
        picture = source.picture(i)
        truth = source.mask(i, picture.size)
        preprocessing = classifier.preprocessing
        if not preprocessing.is_native and (preprocessing.rule != "square" or preprocessing.resize):
            raise BadImage(
                f"the preprocessing ({preprocessing}) cuts off parts of {picture.name}, so their pixels would have no "
                'class: give it the rule "native"'
            )
        prepared: Any = torch.from_numpy(preprocessing.array(picture)[None]).to(classifier.device)
        [logits] = classifier.model(preprocessing.normalise(prepared)).float().cpu()
        predicted = likeliest(np.asarray(logits), picture.size)
        return count_pixels(truth, predicted, len(source.labels), self.boundary)
