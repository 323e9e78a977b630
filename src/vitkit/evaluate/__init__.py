"""Evaluators: what a model is worth on images, as metrics with a unit."""

from typing import Literal

from vitkit.data import Target
from vitkit.evaluate.accuracy import Accuracy
from vitkit.evaluate.collect import collect
from vitkit.evaluate.errors import Errors
from vitkit.evaluate.evaluator import Eval, Evaluator, Part, Subject
from vitkit.evaluate.labels import align
from vitkit.evaluate.metric import Metric, Unit
from vitkit.evaluate.neighbours import Neighbours
from vitkit.evaluate.precision import MeanAveragePrecision

EvaluatorName = Literal["accuracy", "precision", "errors", "neighbours"]
"""Those that a finished model can be measured by, as the command line calls them."""

EVALUATORS: dict[EvaluatorName, Evaluator] = {
    "accuracy": Accuracy(),
    "precision": MeanAveragePrecision(),
    "errors": Errors(),
    "neighbours": Neighbours(),
}

USUAL: dict[Target, tuple[Evaluator, ...]] = {
    "class": (Accuracy(),),
    "classes": (MeanAveragePrecision(),),
    "number": (Errors(),),
    "none": (),
}
"""What measures a model that was trained on such targets, unless somebody says otherwise."""

__all__ = [
    "EVALUATORS",
    "USUAL",
    "Accuracy",
    "Errors",
    "MeanAveragePrecision",
    "Eval",
    "Evaluator",
    "EvaluatorName",
    "Metric",
    "Neighbours",
    "Part",
    "Subject",
    "Unit",
    "align",
    "collect",
]
