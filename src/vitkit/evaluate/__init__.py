"""Evaluators: what a model is worth on images, as metrics with a unit."""

from typing import Literal

from vitkit.data import Target
from vitkit.evaluate.accuracy import Accuracy
from vitkit.evaluate.collect import collect
from vitkit.evaluate.evaluator import Eval, Evaluator, Part, Subject
from vitkit.evaluate.labels import align
from vitkit.evaluate.metric import Metric, Unit
from vitkit.evaluate.neighbours import Neighbours

EvaluatorName = Literal["accuracy", "neighbours"]
"""Those that a finished model can be measured by, as the command line calls them."""

EVALUATORS: dict[EvaluatorName, Evaluator] = {"accuracy": Accuracy(), "neighbours": Neighbours()}

USUAL: dict[Target, tuple[Evaluator, ...]] = {
    "class": (Accuracy(),),
    "classes": (),
    "number": (),
    "none": (),
}
"""What measures a model that was trained on such targets, unless somebody says otherwise."""

__all__ = [
    "EVALUATORS",
    "USUAL",
    "Accuracy",
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
