"""What `vitkit inspect` writes: figures, their numbers, and the page."""

import io
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from vitkit.commands.app import short_name
from vitkit.data import Picture
from vitkit.inspection.atlas import FigureKind
from vitkit.inspection.explorer import write_explorer
from vitkit.inspection.page import Block, paragraph, section, themed_figure
from vitkit.inspection.plates import Plate, Subject
from vitkit.inspection.themes import THEMES, write_figure
from vitkit.system.files import MARK, write_where_said
from vitkit.system.progress import bar
from vitkit.system.text import printable

if TYPE_CHECKING:
    from vitkit.commands.inspect import Inspect

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
    command: "Inspect", kinds: Sequence[FigureKind], subject: Subject, folder: Path
) -> list[Drawn]:
    """Compute each figure and write it. One that has no meaning for the model is left out with a
    sentence. Raises ValueError if somebody asked for it by name; OSError."""
    every = []
    for kind in bar("drawing figures")(kinds, len(kinds)):
        try:
            plate = kind.make(subject)
        except ValueError as error:
            if kind.name in command.figures:
                raise ValueError(f"{kind.name} cannot be drawn: {error}") from error
            print(printable(f"left out {kind.name}: {error}"), file=sys.stderr)
            every.append(Drawn(kind, None, str(error)))
            continue
        files = _write(command, kind, plate, folder)
        every.append(Drawn(kind, plate, files=files))
    return every


def _write(command: "Inspect", kind: FigureKind, plate: Plate, folder: Path) -> list[Path]:
    """Write a figure, and its numbers if they are wanted."""
    figure = plate.draw(THEMES[command.theme])
    files = [write_figure(figure, folder / f"{kind.name}.{command.format}")]
    if command.arrays:
        path = folder / f"{kind.name}.npz"
        about = {"made": np.array(MARK.encode()), "model": np.array(command.model)}
        buffer = io.BytesIO()
        np.savez(buffer, **about, **plate.arrays)  # the mark first: see files.MARK
        write_where_said(path, buffer.getvalue())
        files.append(path)
    return files


def write_page(
    command: "Inspect",
    path: Path,
    subject: Subject,
    pictures: Sequence[Picture],
    drawn: Sequence[Drawn],
) -> Path:
    """Write the page: the photographs, whose attention can be explored, and the figures."""
    sections = []
    has_maps = any(each.kind.name == "rollout" and each.plate is not None for each in drawn)
    for each in drawn:
        if has_maps and each.kind.name in ON_THE_PAGE_ALREADY:
            continue
        sections.append(section(each.kind.title, *_blocks(each)))
    title = f"Inside {short_name(command.model)}"
    return write_explorer(path, title, subject.classifier, pictures, sections)


def _blocks(drawn: Drawn) -> list[Block]:
    """What a figure shows, and the figure; or why there is none."""
    if drawn.plate is None:
        return [paragraph(f"Left out: {drawn.why_not}.")]
    return [paragraph(drawn.kind.text), themed_figure(drawn.plate.draw, drawn.kind.title)]
