"""`vitkit inspect`: the paper's figures of a model, and others, as files and as one page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Unpack

import numpy as np

from vitkit.apps.inspect.drawing import (
    DrawnFigure,
    FigureFiles,
    draw_all,
    images_of,
    subject_of,
    write_page,
)
from vitkit.inspection import FIGURES
from vitkit.inspection.catalogue import FigureKind
from vitkit.system.console.messages import say
from vitkit.system.console.text import as_word, counted, printable
from vitkit.system.errors import BadSettings
from vitkit.system.functions.arguments import name_of, short_name, status_of
from vitkit.system.functions.public import public
from vitkit.system.functions.results import Rows
from vitkit.system.functions.steps import IMAGES, step
from vitkit.system.functions.types import DataLike, DeviceLike, PathLike, Several
from vitkit.system.machine import pick_device
from vitkit.system.storage.files import check_can_be_made, check_replaceable
from vitkit.weights import Classifier, Hints, ModelLike, Overrides, classifier_of, hints_of

Figure = Literal[
    "filters", "positions", "distance", "entropy", "rollout", "relevance", "norms", "colours",
    "attention", "similarity", "alignment", "occlusion",
]  # fmt: skip
ALL = "inspected"  # default output folder
PAGE = "inspect.html"


@dataclass(frozen=True, repr=False)
class Inspected(Rows):
    """Figures of a model, as files and as one page."""

    classifier: Classifier
    folder: Path
    """The output folder."""
    figures: tuple[DrawnFigure, ...]
    """Each figure with its numbers, or the reason why there is none."""
    path: Path | None
    """The page; None if it was not requested."""
    broken: int
    """Number of unreadable images, which the figures leave out."""
    model: str | Classifier
    """The model, as given by the caller."""
    of_images: bool
    """Whether images were given."""
    ok_if_unreadable: bool = False
    """Whether the exit status is 0 even if images could not be read."""

    @property
    def files(self) -> list[Path]:
        """All written files, the page first."""
        files = [path for drawn in self.figures for path in drawn.files]
        if self.path is not None:
            files.insert(0, self.path)
        return files

    @property
    def status(self) -> int:
        """The exit status of the command: 3 if images could not be read."""
        return status_of(self.broken, self.ok_if_unreadable)

    def arrays(self, figure: str) -> dict[str, np.ndarray]:
        """The numbers of a figure, such as "distance". Raises KeyError if it was not drawn."""
        for drawn in self.figures:
            if drawn.kind.name == figure and drawn.plate is not None:
                return dict(drawn.plate.arrays)
        raise KeyError(figure)

    def rows(self) -> list[dict]:
        """One row per figure: its name, its file, and why there is none."""
        return [
            {
                "figure": drawn.kind.name,
                "file": str(drawn.files[0]) if drawn.files else None,
                "why_not": drawn.why_not,
            }
            for drawn in self.figures
        ]

    def shown(self) -> Iterator[str]:
        """Sentences about the written files and the next command."""
        files = self.files
        names = ", ".join(path.name for path in files)
        yield printable(f"wrote {counted(len(files), 'file')} into {self.folder}: {names}")
        if self.of_images:
            yield f"next: open {as_word(files[0])}"
        else:
            yield f"next: {step('inspect', self.model, IMAGES)}"

    def _repr_html_(self) -> str:
        """The page, in a frame."""
        from html import escape

        if self.path is None:
            return f"<pre>{escape(str(self))}</pre>"
        page = escape(self.path.read_text(), quote=True)
        return f'<iframe srcdoc="{page}" style="width:100%;height:40em;border:0"></iframe>'


@public
def inspect(
    model: ModelLike,
    *images: DataLike,
    figures: Several[Figure] = (),
    output: PathLike | None = None,
    limit: int = 128,
    shown: int = 8,
    class_name: Annotated[str, "NAME"] = "",
    layer: int = 0,
    patch: tuple[int, int] | None = None,
    against: ModelLike = "",
    format: Literal["png", "svg"] = "png",
    theme: Literal["light", "dark"] = "light",
    arrays: bool = False,
    page: bool = True,
    device: DeviceLike = "auto",
    ok_if_unreadable: bool = False,
    **overrides: Unpack[Overrides],
) -> Inspected:
    """Draw what a model has learned and what it looks at: the paper's Figures 6, 7, 10, 11 and 14,
    and others, as files and as one page. Without images, draw the figures that need none: filters
    and positions.

    Args:
        model: A run, a model directory, a file of weights (vitkit's, Hugging Face's, timm's,
            torchvision's or Google's), or the name of a published model.
        images: Image files, folders of images, patterns ('**/*.jpg'), web addresses, data sets (their
            test part), or digits.
        figures: Figures to draw. Default: filters, positions, distance, entropy, rollout, relevance,
            norms and colours. On request: attention, similarity, alignment and occlusion.
        output: Folder to write to. Default: inspected/NAME, after the model.
        limit: Largest number of images to average over, chosen evenly from all; 0 is all.
        shown: Photographs to show, chosen evenly from these images.
        class_name: Class for relevance and occlusion. Default: the most likely class of each
            photograph.
        layer: Layer that the figure attention shows, counted from 1; 0 is the last.
        patch: Row and column, counted from 1, of the patch whose attention the figure attention shows,
            and with which the figure similarity compares the others. Default: the tokens that the
            model's head reads, and the middle patch.
        against: Another model, whose layers the figure alignment compares with those of MODEL.
        format: File format of the figures.
        theme: Colours of the files of figures; the page has both.
        arrays: Also write the numbers of each figure, as .npz.
        page: Write the page inspect.html, on which the attention of the photographs can be explored.
        device: cpu, cuda, cuda:1 or mps; auto chooses the best one.
        ok_if_unreadable: End with the exit status 0, and not 3, if images could not be read; they are
            still named.
        **overrides: Settings that the file of the model does not give, or that you want to change:
            `Overrides`.

    Raises:
        BadSettings: If a figure that was asked for by name has no meaning for the model, or if none
            of the images can be read.
        BadWeights: If a model cannot be read.
    """
    # Checks before the model is loaded
    hints = hints_of(overrides)
    if against and not images:
        raise BadSettings(
            "`against` compares what two models make of images, and there are none; give some"
        )
    kinds = _kinds(figures, model, images, with_alignment=bool(against))
    name = short_name(name_of(model))
    files = FigureFiles(output or Path(ALL) / (name or "model"), format, theme, arrays)
    _check_numbers(limit, shown, layer)
    _check_files(files, kinds, page)

    # The models, the images, and the subject
    place = pick_device(device)
    models = [classifier_of(model, hints).to(place).for_inference()]
    if against:
        models.append(classifier_of(against, Hints()).to(place).for_inference())
    given = images_of(images, models, limit, shown, files.folder)
    subject = subject_of(models, given, class_name, layer, patch)

    # The figures, as files and on the page
    drawn = draw_all(kinds, subject, files, name_of(model), required=figures)
    path = None
    if page:
        path = write_page(name, files.folder / PAGE, subject, given.shown, drawn)
    inspected = Inspected(
        classifier=models[0],
        folder=files.folder,
        figures=tuple(drawn),
        path=path,
        broken=given.broken,
        model=model,
        of_images=bool(images),
        ok_if_unreadable=ok_if_unreadable,
    )
    if not inspected.files:
        raise BadSettings(f"nothing was drawn of {name}; the sentences above say why")
    if not images:
        say("the figures of attention need images, such as your own photographs")
    return inspected


def _kinds(
    figures: tuple[str, ...],
    model: str | Classifier,
    images: tuple[str, ...],
    with_alignment: bool,
) -> list[FigureKind]:
    """The figures to draw, in the table's order. Raises BadSettings if one needs images and there are
    none."""
    kinds = []
    for kind in FIGURES:
        asked = kind.name in figures
        if kind.name == "alignment" and with_alignment:
            asked = True
        if asked and kind.needs_images and not images:
            raise BadSettings(
                f"{kind.name} is drawn of images, and there are none; {step('inspect', model, IMAGES)} "
                "takes files, folders, patterns and data sets"
            )
        has_its_images = bool(images) or not kind.needs_images
        by_default = kind.by_default and not figures and has_its_images
        if asked or by_default:
            kinds.append(kind)
    return kinds


def _check_numbers(limit: int, shown: int, layer: int) -> None:
    """Raises BadSettings if a number is out of range."""
    for name, value, least in (("limit", limit, 0), ("shown", shown, 1), ("layer", layer, 0)):
        if value < least:
            raise BadSettings(f"`{name}` is {value}; it is at least {least}")


def _check_files(files: FigureFiles, kinds: list[FigureKind], page: bool) -> None:
    """Raises BadSettings if the figures or the page cannot be written."""
    folder = files.folder
    if folder.exists() and not folder.is_dir():
        raise BadSettings(f"`output` is {folder}, which is a file; give a folder")
    check_can_be_made(folder / PAGE)
    paths = [files.figure(kind) for kind in kinds]
    if files.arrays:
        paths += [files.numbers(kind) for kind in kinds]
    if page:
        paths.append(folder / PAGE)
    for path in paths:
        check_replaceable(path)
