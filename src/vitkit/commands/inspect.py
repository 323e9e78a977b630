"""`vitkit inspect`: the paper's figures of a model, and others, as files and as one page."""

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import arg

from vitkit.commands.app import short_name
from vitkit.system.console.text import as_word, counted, printable
from vitkit.system.machine import pick_device
from vitkit.system.storage.files import check_can_be_made, check_replaceable
from vitkit.verbs import Device, Images, Model, ModelHints
from vitkit.weights import Hints

if TYPE_CHECKING:
    from vitkit.inspection import FigureKind

Figure = Literal[
    "filters", "positions", "distance", "entropy", "rollout", "relevance", "norms", "colours",
    "attention", "similarity", "alignment", "occlusion",
]  # fmt: skip
ALL = "inspected"  # the folder of what was not given one
PAGE = "inspect.html"


@dataclass
class Inspect:
    """Draw what a model has learned and what it looks at: the paper's Figures 6, 7, 10, 11 and 14,
    and others, as files and as one page. Without images, the figures that need none: filters and
    positions."""

    model: Model
    images: Images = ()
    figures: tuple[Figure, ...] = ()
    """Figures to draw: filters, positions, distance, entropy, rollout, relevance, norms, colours,
    which are drawn if none is named, and attention, similarity, alignment, occlusion."""
    output: Annotated[Path | None, arg(aliases=["-o"])] = None
    """Folder to write to. Default: inspected/NAME, after the model."""
    limit: int = 128
    """Largest number of images to average over, chosen evenly from all; 0 is all."""
    shown: int = 8
    """Photographs to show, chosen evenly from those."""
    class_name: Annotated[str, arg(name="class", metavar="NAME")] = ""
    """Class that relevance and occlusion are for. Default: each photograph's likeliest."""
    layer: int = 0
    """Layer that `attention` shows, counted from 1; 0 is the last."""
    patch: tuple[int, int] | None = None
    """Row and column, counted from 1, of the patch that looks in `attention`, and that others are
    compared with in `similarity`. Default: what the model's head reads, and the middle."""
    against: Annotated[str, arg(metavar="MODEL")] = ""
    """Another model, whose layers `alignment` compares with this one's."""
    format: Literal["png", "svg"] = "png"
    """How figures are written."""
    theme: Literal["light", "dark"] = "light"
    """Colours of the figures' files; the page has both."""
    arrays: bool = False
    """Write the numbers of each figure too, as .npz."""
    page: bool = True
    """Write the page inspect.html, on which the attention of the photographs can be explored."""
    device: Device = "auto"
    hints: ModelHints = field(default_factory=Hints)


def inspect(command: Inspect) -> int:
    """`vitkit inspect`. Returns 1 if an image was broken; the others are looked at all the same."""
    from vitkit.commands.inspect_output import draw_all, write_page
    from vitkit.commands.inspect_subject import images_of, subject_of
    from vitkit.weights import load_as

    # What cannot be done is refused before the model is loaded
    if command.against and not command.images:
        raise ValueError(
            "--against compares what two models make of images, and there are none; give some"
        )
    kinds = _kinds(command)
    folder = command.output or Path(ALL) / (short_name(command.model) or "model")
    _check(command, folder, kinds)

    # The model, the images, and what is looked at
    device = pick_device(command.device)
    models = [load_as(command.model, command.hints).to(device).for_inference()]
    if command.against:
        models.append(load_as(command.against, Hints()).to(device).for_inference())
    given = images_of(command, models, folder)
    subject = subject_of(command, models, given)

    # The figures, each as a file, and all on a page
    drawn = draw_all(command, kinds, subject, folder)
    written = [path for plate in drawn for path in plate.files]
    if command.page:
        written.insert(0, write_page(command, folder / PAGE, subject, given.shown, drawn))
    if not written:
        raise ValueError(f"nothing was drawn of {command.model}; the sentences above say why")
    _conclude(command, folder, written)
    return int(given.broken > 0)


def _kinds(command: Inspect) -> "list[FigureKind]":
    """The figures to draw, in the table's order. Raises ValueError for one that needs images, if
    there are none."""
    from vitkit.inspection import FIGURES

    kinds = []
    for kind in FIGURES:
        asked = kind.name in command.figures
        if kind.name == "alignment" and command.against:
            asked = True
        if asked and kind.needs_images and not command.images:
            raise ValueError(
                f"{kind.name} is drawn of images, and there are none; vitkit inspect "
                f"{as_word(command.model)} IMAGE... takes files, folders, patterns and data sets"
            )
        has_its_images = bool(command.images) or not kind.needs_images
        by_default = kind.by_default and not command.figures and has_its_images
        if asked or by_default:
            kinds.append(kind)
    return kinds


def _check(command: Inspect, folder: Path, kinds: "list[FigureKind]") -> None:
    """Raises ValueError for settings that mean nothing, and for files that cannot be written."""
    for name, value, least in (
        ("limit", command.limit, 0),
        ("shown", command.shown, 1),
        ("layer", command.layer, 0),
    ):
        if value < least:
            raise ValueError(f"--{name} is {value}; it is at least {least}")
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"--output is {folder}, which is a file; give a folder")
    check_can_be_made(folder / PAGE)
    names = [f"{kind.name}.{command.format}" for kind in kinds]
    if command.arrays:
        names += [f"{kind.name}.npz" for kind in kinds]
    if command.page:
        names.append(PAGE)
    for name in names:
        check_replaceable(folder / name)


def _conclude(command: Inspect, folder: Path, written: list[Path]) -> None:
    """Say what was written, and what to do next."""
    names = ", ".join(path.name for path in written)
    print(printable(f"wrote {counted(len(written), 'file')} into {folder}: {names}"))
    if not command.images:
        print("the figures of attention need images, such as your own photographs", file=sys.stderr)
        print(f"next: vitkit inspect {as_word(command.model)} IMAGE...")
        return
    print(f"next: open {as_word(written[0])}")
