"""Options and steps that predict, sort, watch and batch share: the model, the images, the runtime."""

import sys
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from vitkit.prediction.batches import from_sequence, from_stream, names_from
from vitkit.prediction.items import Item, items_of, pictures, spread
from vitkit.prediction.predictions import BATCH, Answered, answers, check_settings
from vitkit.runtimes import (
    Runtime,
    RuntimeName,
    is_exported,
    precision_of,
    runtime_of_run,
    takes_pictures,
)
from vitkit.runtimes.given import (
    any_runtime_of_file,
    check_file_has_one_answer,
    runtime_of_file,
    runtime_of_model,
)
from vitkit.system.console.messages import brief, say
from vitkit.system.console.text import counted, printable
from vitkit.system.errors import BadSettings
from vitkit.system.functions.arguments import name_of
from vitkit.system.functions.steps import in_a_program
from vitkit.system.functions.types import DataLike, Default, DeviceLike, with_defaults
from vitkit.system.machine import PrecisionChoice, pick_device
from vitkit.weights import Hints, ModelLike, Overrides, classifier_with_head, hints_of

if TYPE_CHECKING:
    from vitkit.weights import Classifier

INPUT = "-"  # read names from standard input


class Answering(Overrides, total=False):
    """How images are answered."""

    top: Annotated[int, Default(5)]
    """Classes to name for each image."""
    workers: Annotated[int, Default(-1)]
    """Processes that read and decode images; -1 follows the CPU quota."""
    merge: Annotated[int, Default(0)]
    """Merge this many tokens in every block: less work, and slightly different answers. `vitkit.bench`
    with `merge` measures the difference."""
    exit: Annotated[float, Default(0.0)]
    """Classify an image after half of the blocks, or later, as soon as a class has this
    probability: less work, and slightly different answers. `vitkit.bench` with `exit` measures the
    difference."""
    calibrate: Annotated[DataLike, Default("")]
    """Images for the fitting of `exit`, 300 at most, such as training images; they need no
    labels."""
    runtime: Annotated[RuntimeName, Default("auto")]
    """Library that computes the answers: torch, compiled, onnx (ONNX Runtime) or openvino. auto
    is PyTorch for a model, or the library that `vitkit.bench` has found to be the fastest
    on this machine; for an exported file, it is the library for which the file was written."""
    precision: Annotated[PrecisionChoice, Default("auto")]
    """Arithmetic of the matrix products. auto is bfloat16 if the CPU or GPU has instructions for it."""
    device: Annotated[DeviceLike, Default("auto")]
    """cpu, cuda, cuda:1 or mps; auto chooses the best one."""
    ok_if_unreadable: Annotated[bool, Default(False)]
    """Let the command end with the exit status 0, and not 3, if images could not be read; they are still
    named."""
    verbose: Annotated[bool, Default(False)]
    """Log what the model is, how it prepares images, and in which precision it computes."""


@dataclass(frozen=True)
class Request:
    """A model, images and prediction settings, with all defaults filled in (`Answering` describes
    them)."""

    model: "str | Classifier"
    images: tuple[Any, ...]
    top: int
    workers: int
    merge: int
    exit: float
    calibrate: str
    runtime: RuntimeName
    precision: PrecisionChoice
    device: str
    ok_if_unreadable: bool
    verbose: bool
    hints: Hints


def request(model: ModelLike, images: tuple[Any, ...], answering: Answering) -> Request:
    """The request of a call. Raises BadSettings if settings contradict each other."""
    values = with_defaults(Answering, answering)
    asked = Request(model, images, hints=hints_of(answering), **values)
    check_request(asked)
    return asked


def check_request(settings: Request) -> None:
    """Raises VitkitError, before the model is loaded, if settings contradict each other."""
    check_settings(settings.top, BATCH, settings.workers)
    if not len(settings.images):
        takes = "IMAGE... is files, folders, patterns and data sets, or - for names from the standard input"
        if in_a_program():
            takes = "give files, folders, patterns, data sets, arrays or Pillow images"
        raise BadSettings(f"there is no image to classify; {takes}")
    names = [image for image in settings.images if isinstance(image, str)]
    if INPUT in names and len(names) > 1:
        raise BadSettings("- reads the names of all images from the standard input: give it alone")
    if settings.merge and settings.exit:
        raise BadSettings("`merge` and `exit` are alternative approximations; give one of them")
    if settings.merge < 0:
        raise BadSettings(f"`merge` is {settings.merge}; it is a number of tokens, from 0 on")
    if not 0 <= settings.exit <= 1:
        raise BadSettings(f"`exit` is {settings.exit:g}; it is a probability, such as 0.9")
    if not settings.exit:
        if settings.calibrate:
            raise BadSettings(f"`calibrate={settings.calibrate!r}` goes with `exit`")
        return
    if not settings.calibrate:
        raise BadSettings(
            "`exit` needs `calibrate=DATA`: images like those to classify, without labels"
        )
    if settings.runtime not in ("auto", "torch"):
        raise BadSettings(
            f"`exit` is computed by PyTorch, as how far an image goes depends on the image; leave out "
            f"`runtime={settings.runtime!r}`"
        )


# The images and their predictions


def images_of(
    settings: Request,
    labels: Sequence[str],
    limit: int = 0,
    written_to: Sequence[Path] = (),
    files_only: bool = False,
) -> Sequence[Item] | None:
    """The images to classify; None if their names come through standard input.

    limit: the largest number, chosen evenly from all; 0 is all. written_to: output folders, whose images
    are left out. files_only: raise VitkitError for images that are not files on this machine.
    """
    images = settings.images
    if all(isinstance(image, str) for image in images):
        if tuple(images) == (INPUT,):
            return None
        found = pictures(images, labels, written_to)
        if files_only and not found.are_files():
            raise BadSettings(
                "only image files on this machine can be sorted, and "
                f"{printable(' '.join(images))} includes other images"
            )
        return spread(found, limit)
    if files_only:
        raise BadSettings(
            "only image files on this machine can be sorted, and these images are in memory"
        )
    from vitkit.prediction.in_memory import as_items

    if len(images) == 1:  # a value of a Python call, such as an array or an iterator
        (images,) = images
    items = as_items(images, labels)
    if isinstance(items, Sequence):
        return spread(items, limit)
    return list(islice(items, limit or None))  # the first ones of an iterator


def answers_of(
    settings: Request, runtime: Runtime, items: Sequence[Item]
) -> Generator[Answered, None, None]:
    """The predictions for these images, in batches."""
    batches = from_sequence(items, runtime.preprocessing, batch_for(runtime), settings.workers)
    return answers(runtime, batches, settings.top)


def answers_to_names(
    settings: Request,
    runtime: Runtime,
    names: Iterable[list[str]] | None = None,
    limit: int = 0,
    written_to: Sequence[Path] = (),
) -> Generator[Answered, None, None]:
    """The predictions for images whose names come in lists; by default through standard input.

    limit: classify only the first ones; 0 is all.
    """
    batch = batch_for(runtime)
    if names is None:
        names = names_from(sys.stdin.fileno(), batch)
    items = _items_in_batches(names, batch, limit, written_to)
    batches = from_stream(items, runtime.preprocessing, settings.workers)
    return answers(runtime, batches, settings.top)


def batch_for(runtime: Runtime) -> int:
    """The number of images per batch."""
    if takes_pictures(runtime) or getattr(runtime, "one_by_one", False):
        return 1
    return BATCH


def _items_in_batches(
    names: Iterable[list[str]], batch: int, limit: int, written_to: Sequence[Path]
) -> Iterator[list[Item]]:
    """The items of a stream of lists of names (possibly empty), in batches. The name of a folder is
    expanded to its images."""
    count = 0
    for some in names:
        items = chain.from_iterable(items_of(name, written_to) for name in some)
        chunk = []
        for item in items:
            chunk.append(item)
            count += 1
            if len(chunk) == batch or count == limit:
                yield chunk
                chunk = []
            if count == limit:
                return
        yield chunk


# The runtime


def runtime_of(settings: Request, looking: bool = False, in_batches: bool = False) -> Runtime:
    """The runtime that computes the predictions. An exported file needs no PyTorch.

    looking: record attention maps as well. in_batches: refuse an exported file that takes only single
    images of any size.
    """
    with brief(not settings.verbose):
        return _open_runtime(settings, looking, in_batches)


def _open_runtime(settings: Request, looking: bool, in_batches: bool) -> Runtime:
    """The runtime of `runtime_of`, while messages with details are logged."""
    if isinstance(settings.model, str) and is_exported(settings.model):
        if settings.merge or settings.exit:
            raise BadSettings(
                f"`merge` and `exit` change what a model computes, and {settings.model} is an exported "
                "file; give the model"
            )
        open_runtime = any_runtime_of_file
        if in_batches:
            open_runtime = runtime_of_file
        opened = open_runtime(
            settings.model, settings.hints, settings.runtime, settings.precision, settings.device
        )
        check_file_has_one_answer(settings.model, opened)
        if not looking:
            return opened
        if not opened.exported.has_anomaly_map:
            raise BadSettings(
                f"`attention` and `regions` show where a model looks, and {settings.model} does not say it; give the "
                "model that it was exported from, or export a model of good images again"
            )
        from vitkit.prediction.attention import LookingFile

        return LookingFile(opened)
    if not (looking or settings.merge or settings.exit or in_batches):
        kept = runtime_of_run(
            settings.model, settings.hints, settings.runtime, settings.precision, settings.device
        )
        if kept is not None:
            check_file_has_one_answer(name_of(settings.model), kept)
            return kept
    classifier = classifier_with_head(settings.model, settings.hints)
    if looking and (settings.merge or settings.exit):
        raise BadSettings("`attention` needs the whole model; leave out `merge` and `exit`")
    if classifier.unknown is not None and (settings.merge or settings.exit):
        say("no image is rejected as unknown: the rejection thresholds belong to the whole model")
    if settings.merge:
        classifier = _with_merging(settings, classifier)
    if settings.exit:
        classifier = _with_exits(settings, classifier)
    device = pick_device(settings.device)
    precision = precision_of(settings.runtime, settings.precision, device)
    if not looking:
        return runtime_of_model(classifier, settings.runtime, precision, settings.device)
    from vitkit.prediction.attention import Looking
    from vitkit.runtimes import eager

    if settings.runtime not in ("auto", "torch"):
        raise BadSettings(
            f"`attention` is computed by PyTorch; leave out `runtime={settings.runtime!r}`"
        )
    return Looking(eager(classifier, device, precision))


def _with_merging(settings: Request, classifier: "Classifier") -> "Classifier":
    """The model with tokens merged; logs how many."""
    from vitkit.models import ViTConfig, tokens_left
    from vitkit.prediction.approximations import merging

    merged = merging(classifier, settings.merge)
    config = merged.model.config
    assert isinstance(config, ViTConfig)  # `merging` refuses a model without tokens
    left = tokens_left(config, settings.merge)
    most = counted(settings.merge, "token")
    _log_approximation(
        settings, f"{most} at most merged in every block, {left:,} left in the last", "merge"
    )
    return merged


def _with_exits(settings: Request, classifier: "Classifier") -> "Classifier":
    """The model with early exits; logs their threshold."""
    from vitkit.prediction.approximations import exiting, fit_exits
    from vitkit.prediction.batches import prepared_images
    from vitkit.prediction.calibration import to_calibrate

    images, _ = prepared_images(classifier.preprocessing, to_calibrate(settings.calibrate))
    exits = fit_exits(classifier, images)
    early = exiting(classifier, exits, settings.exit)
    _log_approximation(settings, f"images exit early at a probability of {settings.exit:g}", "exit")
    return early


def _log_approximation(settings: Request, what: str, option: str) -> None:
    """Log which approximation is used, and how to measure its effect."""
    value = getattr(settings, option)
    say(
        f"{what}, so the answers differ a little from the model's; bench "
        f"with `{option}={value:g}` and `data=DATA` says how much"
    )
