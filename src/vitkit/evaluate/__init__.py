"""Evaluators: they measure how good a model is on images, as metrics with a unit."""

from typing import Literal

from vitkit.data import TargetKind
from vitkit.evaluate.accuracy import Accuracy
from vitkit.evaluate.answers import Answers, answers, answers_of_logits
from vitkit.evaluate.classification import Classification
from vitkit.evaluate.collect import collect
from vitkit.evaluate.errors import Errors
from vitkit.evaluate.evaluator import Eval, Evaluator, Part, Subject
from vitkit.evaluate.features import Features, features
from vitkit.evaluate.fewshot import Fewshot
from vitkit.evaluate.labels import align
from vitkit.evaluate.metric import Metric, Unit
from vitkit.evaluate.neighbours import Neighbours
from vitkit.evaluate.precision import MeanAveragePrecision

EvaluatorName = Literal[
    "accuracy", "classification", "precision", "errors", "neighbours", "fewshot"
]
"""The names, on the command line, of evaluators that can measure a finished model."""

EVALUATORS: dict[EvaluatorName, Evaluator] = {
    "accuracy": Accuracy(),
    "classification": Classification(),
    "precision": MeanAveragePrecision(),
    "errors": Errors(),
    "neighbours": Neighbours(),
    "fewshot": Fewshot(),
}

USUAL: dict[TargetKind, tuple[Evaluator, ...]] = {
    "class": (Accuracy(),),
    "classes": (MeanAveragePrecision(),),
    "number": (Errors(),),
    "none": (),
}
"""What measures a model by default, for each kind of targets."""

__all__ = [
    "EVALUATORS",
    "USUAL",
    "Accuracy",
    "Answers",
    "Classification",
    "Errors",
    "MeanAveragePrecision",
    "Eval",
    "Evaluator",
    "EvaluatorName",
    "Features",
    "Fewshot",
    "Metric",
    "Neighbours",
    "Part",
    "Subject",
    "Unit",
    "align",
    "answers",
    "answers_of_logits",
    "collect",
    "features",
]
