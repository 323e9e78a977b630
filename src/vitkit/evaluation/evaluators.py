"""Evaluators: they measure how good a model is on images, as metrics with a unit."""

from typing import Literal

from vitkit.data import TargetKind
from vitkit.evaluation.benchmarks.labels import align
from vitkit.evaluation.evaluator import Eval, Evaluator, Part, Subject, collect
from vitkit.evaluation.metrics.answers import Answers, answers, answers_of_logits
from vitkit.evaluation.metrics.classification import Accuracy, Classification
from vitkit.evaluation.metrics.metric import Metric, Unit
from vitkit.evaluation.metrics.other_targets import Errors, MeanAveragePrecision
from vitkit.evaluation.probes.features import Features, features
from vitkit.evaluation.probes.fewshot import Fewshot
from vitkit.evaluation.probes.neighbours import Neighbours

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
