"""What computes the answers to images."""

from typing import TYPE_CHECKING

from vitkit.runtimes import is_exported
from vitkit.system.console.saying import say
from vitkit.system.console.text import counted
from vitkit.system.machine import pick_device
from vitkit.verbs.arguments import word_of
from vitkit.verbs.computing import (
    any_runtime_of_file,
    classifier_with_head,
    precision_of,
    runtime_of_file,
    runtime_of_model,
)
from vitkit.verbs.prediction.settings import Answering

if TYPE_CHECKING:
    from vitkit.runtimes import Runtime
    from vitkit.weights import Classifier


def runtime_of(settings: Answering, looking: bool = False, in_batches: bool = False) -> "Runtime":
    """What computes the answers. An exported file needs no PyTorch.

    looking: it shows what the model looks at, too. in_batches: a file that takes whole pictures, one
    at a time, is refused.
    """
    if isinstance(settings.model, str) and is_exported(settings.model):
        if looking:
            raise ValueError(
                f"--attention draws what a model looks at, and {settings.model} gives its answers alone; "
                "give the model that it was exported from"
            )
        if settings.merge or settings.exit:
            raise ValueError(
                f"--merge and --exit change what a model computes, and {settings.model} is an exported "
                "file; give the model"
            )
        open_runtime = any_runtime_of_file
        if in_batches:
            open_runtime = runtime_of_file
        return open_runtime(
            settings.model, settings.hints, settings.runtime, settings.precision, settings.device
        )
    classifier = classifier_with_head(settings.model, settings.hints)
    if looking and (settings.merge or settings.exit):
        raise ValueError("--attention draws the whole model's; leave out --merge and --exit")
    if settings.merge:
        classifier = _merging(settings, classifier)
    if settings.exit:
        classifier = _exiting(settings, classifier)
    device = pick_device(settings.device)
    precision = precision_of(settings.runtime, settings.precision, device)
    if not looking:
        return runtime_of_model(classifier, settings.runtime, precision, settings.device)
    from vitkit.prediction import Looking
    from vitkit.runtimes import eager

    if settings.runtime not in ("auto", "torch"):
        raise ValueError(
            f"--attention is computed by PyTorch; leave out --runtime {settings.runtime}"
        )
    return Looking(eager(classifier, device, precision))


def _merging(settings: Answering, classifier: "Classifier") -> "Classifier":
    """The model with tokens merged, which is said."""
    from vitkit.models import tokens_left
    from vitkit.runtimes import merging

    merged = merging(classifier, settings.merge)
    left = tokens_left(merged.model.config, settings.merge)
    most = counted(settings.merge, "token")
    _say_less(settings, f"{most} at most merged in every block, {left:,} left in the last", "merge")
    return merged


def _exiting(settings: Answering, classifier: "Classifier") -> "Classifier":
    """The model with early exits, which is said."""
    from vitkit.exporting import prepared_images, to_calibrate
    from vitkit.runtimes import exiting, fit_exits

    images, _ = prepared_images(classifier.preprocessing, to_calibrate(settings.calibrate))
    exits = fit_exits(classifier, images)
    early = exiting(classifier, exits, settings.exit)
    _say_less(settings, f"images end early that are sure by {settings.exit:g}", "exit")
    return early


def _say_less(settings: Answering, what: str, option: str) -> None:
    """Say which work is left out, and what measures it."""
    value = getattr(settings, option)
    say(
        f"{what}, so the answers differ a little from the model's; vitkit bench "
        f"{word_of(settings.model)} --{option} {value:g} --data DATA says how much"
    )
