"""`vitkit predict`: what computes the answers."""

import sys
from typing import TYPE_CHECKING

from vitkit.runtimes import is_exported
from vitkit.system.console.text import as_word, counted
from vitkit.system.machine import pick_device
from vitkit.verbs import (
    any_runtime_of_file,
    classifier_with_head,
    precision_of,
    runtime_of_file,
    runtime_of_model,
)

if TYPE_CHECKING:
    from vitkit.commands.predict import Predict
    from vitkit.runtimes import Runtime
    from vitkit.weights import Classifier


def runtime_of(command: "Predict") -> "Runtime":
    """What computes the answers. An exported file needs no PyTorch."""
    if is_exported(command.model):
        if command.attention is not None:
            raise ValueError(
                f"--attention draws what a model looks at, and {command.model} gives its answers alone; "
                "give the model that it was exported from"
            )
        if command.merge or command.exit:
            raise ValueError(
                f"--merge and --exit change what a model computes, and {command.model} is an exported "
                "file; give the model"
            )
        open_runtime = any_runtime_of_file
        if command.parts is not None:  # in batches
            open_runtime = runtime_of_file
        return open_runtime(
            command.model, command.hints, command.runtime, command.precision, command.device
        )
    classifier = classifier_with_head(command.model, command.hints)
    if command.merge:
        classifier = _merging(command, classifier)
    if command.exit:
        classifier = _exiting(command, classifier)
    device = pick_device(command.device)
    precision = precision_of(command.runtime, command.precision, device)
    if command.attention is None:
        return runtime_of_model(classifier, command.runtime, precision, command.device)
    from vitkit.prediction import Looking
    from vitkit.runtimes import eager

    if command.runtime not in ("auto", "torch"):
        raise ValueError(
            f"--attention is computed by PyTorch; leave out --runtime {command.runtime}"
        )
    return Looking(eager(classifier, device, precision))


def _merging(command: "Predict", classifier: "Classifier") -> "Classifier":
    """The model with tokens merged, which the standard error says."""
    from vitkit.models import tokens_left
    from vitkit.runtimes import merging

    merged = merging(classifier, command.merge)
    left = tokens_left(merged.model.config, command.merge)
    most = counted(command.merge, "token")
    _say_less(command, f"{most} at most merged in every block, {left:,} left in the last", "merge")
    return merged


def _exiting(command: "Predict", classifier: "Classifier") -> "Classifier":
    """The model with early exits, which the standard error says."""
    from vitkit.exporting import prepared_images, to_calibrate
    from vitkit.runtimes import exiting, fit_exits

    images, _ = prepared_images(classifier.preprocessing, to_calibrate(command.calibrate))
    exits = fit_exits(classifier, images)
    early = exiting(classifier, exits, command.exit)
    _say_less(command, f"images end early that are sure by {command.exit:g}", "exit")
    return early


def _say_less(command: "Predict", what: str, option: str) -> None:
    """Say which work is left out, and what measures it."""
    value = getattr(command, option)
    print(
        f"{what}, so the answers differ a little from the model's; vitkit bench "
        f"{as_word(command.model)} --{option} {value:g} --data DATA says how much",
        file=sys.stderr,
    )
