"""The evaluators by name, and those that measure a model by default."""

from typing import Literal

from vitkit.data import TargetKind
from vitkit.evaluation.evaluator import Evaluator
from vitkit.evaluation.metrics.classification import Accuracy, Classification
from vitkit.evaluation.metrics.defects import Defects
from vitkit.evaluation.metrics.mean_iou import MeanIoU
from vitkit.evaluation.metrics.other_targets import Errors, MeanAveragePrecision
from vitkit.evaluation.probes.fewshot import Fewshot
from vitkit.evaluation.probes.neighbours import Neighbours

EvaluatorName = Literal[
    "accuracy", "classification", "defects", "precision", "errors", "masks", "neighbours", "fewshot"
]
"""Names, on the command line, of the evaluators that can measure a finished model."""

EVALUATORS: dict[EvaluatorName, Evaluator] = {
    "accuracy": Accuracy(),
    "classification": Classification(),
    "defects": Defects(),
    "precision": MeanAveragePrecision(),
    "errors": Errors(),
    "masks": MeanIoU(),
    "neighbours": Neighbours(),
    "fewshot": Fewshot(),
}

USUAL: dict[TargetKind, tuple[Evaluator, ...]] = {
    "class": (Accuracy(),),
    "classes": (MeanAveragePrecision(),),
    "number": (Errors(),),
    "mask": (MeanIoU(),),
    "none": (),
}
"""The default evaluators for each kind of targets."""
