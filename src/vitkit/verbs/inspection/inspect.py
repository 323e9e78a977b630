"""The paper's figures of a model, and others, as files and as one page."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from tyro.conf import arg

from vitkit.inspection import FIGURES, FigureKind
from vitkit.system.console.messages import say
from vitkit.system.console.text import as_word, counted, printable
from vitkit.system.errors import BadSettings
from vitkit.system.machine import pick_device
from vitkit.system.storage.files import check_can_be_made, check_replaceable
from vitkit.verbs.arguments import (
    Device,
    Images,
    Model,
    ModelHints,
    OkIfUnreadable,
    name_of,
    short_name,
    status_of,
    word_of,
)
from vitkit.verbs.computing import classifier_of
from vitkit.verbs.definition import result, verb
from vitkit.verbs.inspection.drawing import Drawn, draw_all, images_of, subject_of, write_page
from vitkit.weights import Classifier, Hints

Figure = Literal[
    "filters", "positions", "distance", "entropy", "rollout", "relevance", "norms", "colours",
    "attention", "similarity", "alignment", "occlusion",
]  # fmt: skip
ALL = "inspected"  # the folder of what was not given one
PAGE = "inspect.html"


@dataclass(frozen=True)
class Inspect:
    """Draw what a model has learned and what it looks at: the paper's Figures 6, 7, 10, 11 and 14,
    and others, as files and as one page. Without images, draw the figures that need none: filters
    and positions."""

    model: Model
    images: Images = ()
    figures: tuple[Figure, ...] = ()
    """Figures to draw. Default: filters, positions, distance, entropy, rollout, relevance, norms
    and colours. On request: attention, similarity, alignment and occlusion."""
    output: Annotated[Path | None, arg(aliases=["-o"])] = None
    """Folder to write to. Default: inspected/NAME, after the model."""
    limit: int = 128
    """Largest number of images to average over, chosen evenly from all; 0 is all."""
    shown: int = 8
    """Photographs to show, chosen evenly from these images."""
    class_name: Annotated[str, arg(name="class", metavar="NAME")] = ""
    """Class for relevance and occlusion. Default: the most likely class of each photograph."""
    layer: int = 0
    """Layer that `attention` shows, counted from 1; 0 is the last."""
    patch: tuple[int, int] | None = None
    """Row and column, counted from 1, of the patch whose attention `attention` shows, and with
    which `similarity` compares the others. Default: the tokens that the model's head reads, and the
    middle patch."""
    against: Annotated[str, arg(metavar="MODEL")] = ""
    """Another model, whose layers `alignment` compares with those of MODEL."""
    format: Literal["png", "svg"] = "png"
    """File format of the figures."""
    theme: Literal["light", "dark"] = "light"
    """Colours of the files of figures; the page has both."""
    arrays: bool = False
    """Also write the numbers of each figure, as .npz."""
    page: bool = True
    """Write the page inspect.html, on which the attention of the photographs can be explored."""
    device: Device = "auto"
    ok_if_unreadable: OkIfUnreadable = False
    hints: ModelHints = field(default_factory=Hints)


@result
@dataclass(frozen=True)
class Inspected:
    """Figures of a model, as files and as one page."""

    settings: Inspect
    classifier: Classifier
    folder: Path
    """Where they were written."""
    figures: tuple[Drawn, ...]
    """Each figure with its numbers, or why there is none."""
    path: Path | None
    """The page; None if none was asked for."""
    broken: int
    """Images that could not be read; the others are looked at all the same."""

    @property
    def files(self) -> list[Path]:
        """All files that were written, the page first."""
        files = [path for drawn in self.figures for path in drawn.files]
        if self.path is not None:
            files.insert(0, self.path)
        return files

    @property
    def status(self) -> int:
        """The exit status of the command: 3 if images could not be read."""
        return status_of(self.broken, self.settings.ok_if_unreadable)

    def arrays(self, figure: str) -> dict[str, np.ndarray]:
        """The numbers of a figure, such as "distance". Raises KeyError if it was not drawn."""
        for drawn in self.figures:
            if drawn.kind.name == figure and drawn.plate is not None:
                return dict(drawn.plate.arrays)
        raise KeyError(figure)

    def rows(self) -> list[dict]:
        """A row for each figure: its name, its file, and why there is none."""
        return [
            {
                "figure": drawn.kind.name,
                "file": str(drawn.files[0]) if drawn.files else None,
                "why_not": drawn.why_not,
            }
            for drawn in self.figures
        ]

    def shown(self) -> Iterator[str]:
        """A sentence on the files that were written, and the next command."""
        files = self.files
        names = ", ".join(path.name for path in files)
        yield printable(f"wrote {counted(len(files), 'file')} into {self.folder}: {names}")
        if self.settings.images:
            yield f"next: open {as_word(files[0])}"
        else:
            yield f"next: vitkit inspect {word_of(self.settings.model)} IMAGE..."

    def _repr_html_(self) -> str:
        """The page, in a frame."""
        from html import escape

        if self.path is None:
            return f"<pre>{escape(str(self))}</pre>"
        page = escape(self.path.read_text(), quote=True)
        return f'<iframe srcdoc="{page}" style="width:100%;height:40em;border:0"></iframe>'


@verb
def inspect(settings: Inspect) -> Inspected:
    """Draw what a model has learned and what it looks at (Figures 6, 7, 10, 11 and 14, and others),
    as files and as one page. Raises ValueError for a figure that has no meaning for the model, if it
    was asked for by name."""
    # What cannot be done is refused before the model is loaded
    if settings.against and not settings.images:
        raise BadSettings(
            "`against` compares what two models make of images, and there are none; give some"
        )
    kinds = _kinds(settings)
    name = short_name(name_of(settings.model))
    folder = settings.output or Path(ALL) / (name or "model")
    _check(settings, folder, kinds)

    # The model, the images, and what is looked at
    device = pick_device(settings.device)
    models = [classifier_of(settings.model, settings.hints).to(device).for_inference()]
    if settings.against:
        models.append(classifier_of(settings.against, Hints()).to(device).for_inference())
    given = images_of(settings, models, folder)
    subject = subject_of(settings, models, given)

    # The figures, each as a file, and all on a page
    drawn = draw_all(settings, kinds, subject, folder)
    page = None
    if settings.page:
        page = write_page(name, folder / PAGE, subject, given.shown, drawn)
    inspected = Inspected(settings, models[0], folder, tuple(drawn), page, given.broken)
    if not inspected.files:
        raise BadSettings(f"nothing was drawn of {name}; the sentences above say why")
    if not settings.images:
        say("the figures of attention need images, such as your own photographs")
    return inspected


def _kinds(settings: Inspect) -> "list[FigureKind]":
    """The figures to draw, in the table's order. Raises ValueError for one that needs images, if
    there are none."""
    kinds = []
    for kind in FIGURES:
        asked = kind.name in settings.figures
        if kind.name == "alignment" and settings.against:
            asked = True
        if asked and kind.needs_images and not settings.images:
            raise BadSettings(
                f"{kind.name} is drawn of images, and there are none; vitkit inspect "
                f"{word_of(settings.model)} IMAGE... takes files, folders, patterns and data sets"
            )
        has_its_images = bool(settings.images) or not kind.needs_images
        by_default = kind.by_default and not settings.figures and has_its_images
        if asked or by_default:
            kinds.append(kind)
    return kinds


def _check(settings: Inspect, folder: Path, kinds: "list[FigureKind]") -> None:
    """Raises ValueError if settings mean nothing, or if files cannot be written."""
    for name, value, least in (
        ("limit", settings.limit, 0),
        ("shown", settings.shown, 1),
        ("layer", settings.layer, 0),
    ):
        if value < least:
            raise BadSettings(f"`{name}` is {value}; it is at least {least}")
    if folder.exists() and not folder.is_dir():
        raise BadSettings(f"`output` is {folder}, which is a file; give a folder")
    check_can_be_made(folder / PAGE)
    names = [f"{kind.name}.{settings.format}" for kind in kinds]
    if settings.arrays:
        names += [f"{kind.name}.npz" for kind in kinds]
    if settings.page:
        names.append(PAGE)
    for name in names:
        check_replaceable(folder / name)
