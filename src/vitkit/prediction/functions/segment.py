"""`vitkit segment`: the class of every pixel of images, as masks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Unpack, cast

import numpy as np
from rich.table import Table

from vitkit.data import open_image
from vitkit.prediction.functions.common import Answering, Request, images_of, request
from vitkit.prediction.given import ImageLike
from vitkit.prediction.items import Item
from vitkit.prediction.segmentation.writing import (
    REGIONS,
    SHARES,
    MaskFolder,
    check_mask_folder,
)
from vitkit.runtimes import (
    Runtime,
    RuntimeName,
    check_runtime_of_pixels,
    check_segments,
    class_map,
    is_exported,
    map_runtime,
)
from vitkit.runtimes.given import any_runtime_of_file
from vitkit.system.console.messages import brief
from vitkit.system.console.progress import bar
from vitkit.system.console.text import counted, printable_name
from vitkit.system.errors import BadImage, BadSettings
from vitkit.system.functions.arguments import check_folder, check_limit, name_of, status_of
from vitkit.system.functions.public import public
from vitkit.system.functions.results import Rows
from vitkit.system.functions.steps import DATA, step
from vitkit.system.functions.types import Default, DeviceLike, PathLike
from vitkit.system.machine import PrecisionChoice
from vitkit.weights import ModelLike, Overrides, classifier_with_head

SHOWN = 20  # rows of the table that is printed
NAMED = 3  # classes that a row names


class Segmenting(Overrides, total=False):
    """How pixels are classified."""

    runtime: Annotated[RuntimeName, Default("auto")]
    """Library that computes the masks: auto and torch are PyTorch for a model; a file of `vitkit.export` is
    computed by the library that it was written for."""
    precision: Annotated[PrecisionChoice, Default("auto")]
    """Arithmetic of the matrix products. auto is bfloat16 if the CPU or GPU has instructions for it."""
    device: Annotated[DeviceLike, Default("auto")]
    """cpu, cuda, cuda:1 or mps; auto chooses the best one."""
    ok_if_unreadable: Annotated[bool, Default(False)]
    """Let the command end with the exit status 0, and not 3, if images could not be read; they are still
    named."""


@dataclass(frozen=True)
class Segmentation:
    """The classes of an image's pixels."""

    name: str
    labels: tuple[str, ...]
    """The classes that pixels of the image have, the most frequent first."""
    shares: tuple[float, ...]
    """The share of the pixels of each of these classes; together 1."""
    size: tuple[int, int] | None = None
    """Height and width of the image; None if it could not be read."""
    mask: np.ndarray | None = None
    """The number of every pixel's class, uint8 (height, width); None if it was written to a file instead."""
    file: Path | None = None
    """The file of the mask."""
    error: str | None = None
    """Why the image could not be read."""


@dataclass(frozen=True, repr=False)
class Segmentations(Rows, Sequence[Segmentation]):
    """The masks of images, in the order of the images."""

    answers: tuple[Segmentation, ...]
    labels: tuple[str, ...]
    """The model's classes; their numbers in masks are their places here."""
    path: Path | None
    """The folder that the masks were written to."""
    following: str = ""
    """What one would do next."""
    ok_if_unreadable: bool = False

    def __len__(self) -> int:
        return len(self.answers)

    def __getitem__(self, i):
        return self.answers[i]

    @property
    def unreadable(self) -> int:
        """Number of images that could not be read."""
        return sum(answer.error is not None for answer in self.answers)

    @property
    def status(self) -> int:
        """The exit status of the command: 3 if images could not be read, unless `ok_if_unreadable`."""
        return status_of(self.unreadable, self.ok_if_unreadable)

    def rows(self) -> list[dict]:
        """One row per image: its name, the share of each of the model's classes, and the error."""
        rows = []
        for answer in self.answers:
            shares = dict(zip(answer.labels, answer.shares, strict=True))
            row: dict[str, object] = {"name": answer.name}
            row |= {label: shares.get(label, 0.0) for label in self.labels}
            rows.append(row | {"error": answer.error})
        return rows

    def shown(self) -> Iterator[str | Table]:
        """The most frequent classes of the images, the unreadable ones, and what was written."""
        good = [answer for answer in self.answers if answer.error is None]
        if good:
            table = Table("image", "share of the pixels")
            for answer in good[:SHOWN]:
                named = list(zip(answer.labels, answer.shares, strict=True))[:NAMED]
                words = [f"{printable_name(label)} {share:.1%}" for label, share in named]
                table.add_row(printable_name(answer.name), ", ".join(words))
            yield table
            if len(good) > SHOWN:
                yield f"and {counted(len(good) - SHOWN, 'image')} more"
        for answer in self.answers:
            if answer.error is not None:
                yield f"not classified: {answer.error}"
        if self.path is not None:
            yield (
                f"wrote {counted(len(good), 'mask')} to {self.path}, {SHARES} (share of each class) and "
                f"{REGIONS} (regions, as COCO has them)"
            )
        if self.following:
            yield f"next: {self.following}"


@public
def segment(
    model: ModelLike,
    *images: ImageLike,
    to: PathLike | None = None,
    overlays: bool = True,
    smallest: int = 16,
    limit: int = 0,
    **segmenting: Unpack[Segmenting],
) -> Segmentations:
    """Classify every pixel of images, with a model of `vitkit.finetune(..., masks=...)`.

    A broken image has an `error`, and the others are classified all the same.

    Args:
        model: A run or a model directory whose model classifies every pixel, or a file of `vitkit.export`
            made of one (.onnx or .xml).
        images: Image files, folders of images, patterns ('**/*.jpg'), web addresses, or data sets (their
            test part). In a program also bytes, Pillow images, arrays and tensors.
        to: Write into this folder: a mask for each image (a PNG whose pixels are the numbers of classes), the
            image under the colours of its mask, shares.csv, and regions.json as COCO has it. Default: print
            the shares of the classes.
        overlays: Whether to write the images under the colours of their masks.
        smallest: Pixels of the smallest region in regions.json.
        limit: Largest number of images, chosen evenly from all; 0 is all.
        **segmenting: How pixels are classified: `Segmenting`.

    Raises:
        BadSettings: If settings do not go together, or something that was given is not an image.
        Unsupported: If the model has one output for an image.
    """
    settings = request(model, images, cast(Answering, segmenting))
    check_limit(limit)
    if smallest < 1:
        raise BadSettings(f"`smallest` is {smallest}; it is a number of pixels, at least 1")
    if to is not None:
        check_folder("`to`", to, images)
        check_mask_folder(to)
    runtime = runtime_of(settings)
    labels = tuple(runtime.labels)
    items = images_of(settings, (), limit, [to] if to else [])
    if items is None:
        raise BadSettings("masks of names from the standard input are not written; give the names")
    answers = []
    with ExitStack() as stack:
        folder = None
        if to is not None:
            folder = stack.enter_context(MaskFolder(to, labels, overlays, smallest))
        for item in bar("classifying pixels")(items, len(items)):
            answers.append(segmented(runtime, item, labels, folder))
    following = ""
    if to is None:
        following = step("segment", model, *images, to="masks")
    else:
        following = step("evaluate", model, DATA, masks="masks/")
    return Segmentations(tuple(answers), labels, to, following, settings.ok_if_unreadable)


def runtime_of(settings: Request) -> Runtime:
    """What computes the masks. Raises Unsupported for a model with one output for an image."""
    name = name_of(settings.model)
    with brief(not settings.verbose):
        if isinstance(settings.model, str) and is_exported(settings.model):
            opened = any_runtime_of_file(
                settings.model,
                settings.hints,
                settings.runtime,
                settings.precision,
                settings.device,
            )
            if not opened.exported.segments:
                raise BadSettings(
                    f"{name} has one output for an image; {step('predict', settings.model, DATA)} prints it"
                )
            return opened
        classifier = classifier_with_head(settings.model, settings.hints)
    check_segments(classifier, name)
    check_runtime_of_pixels(settings.runtime, name)
    return map_runtime(classifier, settings.device, settings.precision)


def segmented(
    runtime: Runtime, item: Item, labels: tuple[str, ...], folder: MaskFolder | None
) -> Segmentation:
    """The classes of an image's pixels, written to the folder if there is one."""
    try:
        picture = open_image(item.read(), item.name)
        mask = class_map(runtime, picture)
        pixels = None
        if folder is not None and folder.overlays:
            pixels = picture.pixels()
    except (BadImage, OSError) as error:
        return Segmentation(item.name, (), (), error=str(error))
    counts = np.bincount(mask.reshape(-1), minlength=len(labels))[: len(labels)]
    order = [number for number in np.argsort(-counts, kind="stable").tolist() if counts[number]]
    shares = tuple(float(counts[number]) / mask.size for number in order)
    of_image = Segmentation(
        item.name, tuple(labels[number] for number in order), shares, mask.shape, mask
    )
    if folder is None:
        return of_image
    file = folder.add(item.name, mask, pixels)
    return Segmentation(item.name, of_image.labels, shares, mask.shape, None, file)
