"""Writes a model of the Pareto front to a file, and checks that it makes the candidate's predictions.

Legend: N images, K classes.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np

from vitkit.apps.faster.bodies import CPU, Body, Library, calibration, wanted
from vitkit.apps.faster.heads import head_of, with_head
from vitkit.apps.faster.pareto import Point
from vitkit.apps.faster.races import LIBRARIES
from vitkit.apps.faster.searching import Found
from vitkit.apps.faster.subjects import SearchSubject
from vitkit.data import subset
from vitkit.evaluation import tied_answers
from vitkit.exporting import check, write_export
from vitkit.prediction import DataSetItems, Item, prepared_images
from vitkit.runtimes import ENDINGS, Runtime, eager, open_file
from vitkit.system.errors import BadSettings
from vitkit.system.storage.files import whole_files
from vitkit.weights import Classifier, activate_array, save

TRIED = 300  # images that the file is checked on
LEAST_SAME = 0.97  # smallest share of equal predictions: int8 rounds differently in other batches
BATCH = 32


def ending_of(library: Library) -> str:
    """The suffix of a file for a library; "" for PyTorch, whose models are directories."""
    if library == "torch":
        return ""
    return ENDINGS[library]


def library_of(output: Path) -> Library:
    """The library that a file is for, by its suffix. Raises VitkitError for another suffix."""
    endings = {ending_of(library): library for library in LIBRARIES}
    library = endings.get(output.suffix.lower())
    if library is None:
        raise BadSettings(
            f"`output` is {output}; give the name of a file that ends in .onnx or .xml, or of a directory, "
            "without an ending"
        )
    return library


def write(subject: SearchSubject, found: Found, point: Point, output: Path) -> Classifier:
    """Write a model of the Pareto front, and return it as a PyTorch classifier.

    Raises VitkitError, with nothing written, for an output with another suffix than its format has, for a
    file that vitkit did not write, and for a file whose predictions differ from the candidate's.
    """
    if library_of(output) != point.library:
        raise BadSettings(
            f"`output` is {output}, and {point.name} is written under a name that ends in "
            f"{ending_of(point.library) or 'nothing, for a directory'}"
        )

    # The model, and its logits
    arithmetic, shape = found.candidates[point.name]
    body = Body(subject, arithmetic, shape.image, shape.merge)
    head = head_of(subject, body, shape, found.exact)
    x = body.read(body.states(subject.evaluated), shape, head.reads)
    classifier = with_head(subject, shape, head, x)
    if point.loss.at_most == 0:  # the same numbers up to rounding, so it is the model itself
        classifier = subject.classifier
        head = replace(head, weight=None, bias=None)
    origin = classifier.origin | {"faster": point.name}
    classifier = replace(classifier, origin=origin).to(CPU)
    tried = np.linspace(0, len(subject.evaluated) - 1, min(TRIED, len(subject.evaluated))).astype(
        int
    )
    expected = activate_array(head.logits(classifier, x[tried]).numpy(), classifier.activation)
    labels = subject.evaluated.labels
    items = DataSetItems(
        subset(subject.evaluated, tried), dict(zip(labels, labels, strict=True))
    ).items()

    # The file
    if point.library == "torch":
        same = _share(eager(classifier, CPU, arithmetic.of_pytorch), items, expected)
        _check(same, output)
        save(classifier, output)
        return classifier
    asked = wanted(arithmetic, shape.merge)
    check(classifier, output, asked)
    with whole_files(output.absolute().parent, last=output.name, named=output) as folder:
        path = folder / output.name
        write_export(classifier, path, asked, calibration(subject)._replace(items=items))
        _check(_share(open_file(path), items, expected), output)
    return classifier


def _share(runtime: Runtime, items: list[Item], expected: np.ndarray) -> float:
    """The share of images for which the runtime's most likely class equals, or is tied with, that of the
    expected probabilities, (N, K)."""
    parts = []
    for start in range(0, len(items), BATCH):
        images, _ = prepared_images(runtime.preprocessing, items[start : start + BATCH])
        parts.append(runtime.logits(images).argmax(1))
    answers = np.concatenate(parts)
    is_same = answers == expected.argmax(1)
    return float((is_same | tied_answers(expected, answers)).mean())


def _check(same: float, output: Path) -> None:
    """Raises VitkitError if too few predictions equal the candidate's."""
    if same < LEAST_SAME:
        raise BadSettings(
            f"{output} was not written: {same:.1%} of its answers agree with those of the candidate, and at least "
            f"{LEAST_SAME:.0%} have to"
        )
