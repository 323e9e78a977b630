"""What `inspect` writes: figures, their numbers, and the page."""

import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from vitkit.data import Picture
from vitkit.inspection import (
    THEMES,
    FigureKind,
    Plate,
    Subject,
    figure_section,
    missing_section,
    write_explorer,
    write_figure,
)
from vitkit.system.console.progress import bar
from vitkit.system.console.saying import say
from vitkit.system.console.text import printable
from vitkit.system.storage.files import MARK, write_where_said
from vitkit.verbs.arguments import word_of

if TYPE_CHECKING:
    from vitkit.verbs.inspection.inspect import Inspect


ON_THE_PAGE_ALREADY = ("rollout", "attention")  # it shows them layer by layer


@dataclass(frozen=True, eq=False)
class Drawn:
    """A figure, or why there is none."""

    kind: FigureKind
    plate: Plate | None
    why_not: str = ""
    """A sentence, if there is none."""
    files: list[Path] = field(default_factory=list)
    """What was written of it."""


def draw_all(
    settings: "Inspect", kinds: Sequence[FigureKind], subject: Subject, folder: Path
) -> list[Drawn]:
    """Compute each figure and write it. One that has no meaning for the model is left out with a
    sentence. Raises ValueError if somebody asked for it by name; OSError."""
    every = []
    for kind in bar("drawing figures")(kinds, len(kinds)):
        try:
            plate = kind.make(subject)
            figure = plate.draw(THEMES[settings.theme])
        except ValueError as error:
            if kind.name in settings.figures:
                raise ValueError(f"{kind.name} cannot be drawn: {error}") from error
            every.append(Drawn(kind, None, str(error)))
            continue
        files = [write_figure(figure, folder / f"{kind.name}.{settings.format}")]
        if settings.arrays:
            files.append(_write_arrays(settings, plate, folder / f"{kind.name}.npz"))
        every.append(Drawn(kind, plate, files=files))
    _print_left_out(every)
    return every


def _print_left_out(drawn: Sequence[Drawn]) -> None:
    """A sentence for each reason why figures are left out."""
    names_by_reason = {}
    for each in drawn:
        if each.plate is None:
            names_by_reason.setdefault(each.why_not, []).append(each.kind.name)
    for reason, names in names_by_reason.items():
        say(printable(f"left out {', '.join(names)}: {reason}"))


def _write_arrays(settings: "Inspect", plate: Plate, path: Path) -> Path:
    """Write the numbers of a figure, and return their path."""
    about = {"made": np.array(MARK.encode()), "model": np.array(word_of(settings.model))}
    buffer = io.BytesIO()
    np.savez(buffer, **about, **plate.arrays)  # the mark first: see files.MARK
    write_where_said(path, buffer.getvalue())
    return path


def write_page(
    model: str,
    path: Path,
    subject: Subject,
    pictures: Sequence[Picture],
    drawn: Sequence[Drawn],
) -> Path:
    """Write the page about a model: the photographs, whose attention can be explored, and the figures."""
    sections = []
    has_maps = any(each.kind.name == "rollout" and each.plate is not None for each in drawn)
    for each in drawn:
        if has_maps and each.kind.name in ON_THE_PAGE_ALREADY:
            continue
        if each.plate is None:
            sections.append(missing_section(each.kind, each.why_not))
        else:
            sections.append(figure_section(each.kind, each.plate))
    title = f"Inside {model}"
    return write_explorer(path, title, subject.classifier, pictures, sections)
