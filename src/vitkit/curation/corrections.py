"""Corrections from the page of a review: photographs to move to another class, and those to leave out.
Files are moved, never deleted or replaced, and the same list can move them back.

A line of the list is NAME, DECISION, CLASS, LABEL and PART, separated by tabs: the photograph, "label" or
"leave out", its new class (empty for one to leave out), its present class, and its part of the data set
(train, val or test).
"""

from pathlib import Path
from typing import NamedTuple

from vitkit.system.console.text import counted
from vitkit.system.errors import BadData, Unavailable
from vitkit.system.storage.moving import check_moves, move_file

RELABEL = "label"
LEAVE_OUT = "leave out"


class Correction(NamedTuple):
    """A decision about a photograph."""

    path: Path
    """The file, as named in the data set."""
    label: str
    """The class whose folder contains the file."""
    other: str
    """The corrected class; empty for an image to leave out."""


class Move(NamedTuple):
    """A file, and its path after the move."""

    before: Path
    after: Path


def read_corrections(path: Path) -> list[Correction]:
    """Read a list. Raises VitkitError if it does not exist, or for a line without a decision; OSError if
    it cannot be read."""
    if not path.is_file():
        raise BadData(f"there is no file {path}; the page of vitkit data review saves one")
    corrections = []
    for line in path.read_text("utf-8").splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        name, decision, other, label = [*line.split("\t"), "", "", ""][:4]
        is_complete = (decision == RELABEL and other) or (decision == LEAVE_OUT and not other)
        if not is_complete or not label:
            raise BadData(
                f"{path}: no decision in the line {line!r}; lists to apply are saved by the page of "
                "vitkit data review"
            )
        corrections.append(Correction(Path(name), label, other))
    return corrections


def _left_out_folder(root: Path) -> Path:
    """The folder for photographs that are left out, beside that of the data set."""
    if root.name in ("", ".."):
        root = root.resolve()
    return root.with_name(f"{root.name}-left-out")


def moves(root: Path, corrections: list[Correction]) -> list[Move]:
    """The moves of all files that have not been moved yet: to the same place in the folder of the new
    class, or to a folder outside the data set. If a file of the same name exists there, the old class is
    added to the name.

    Raises VitkitError for a photograph that lies elsewhere, or for a class without a folder.
    """
    planned = []
    taken = set()
    for each in corrections:
        after = _destination(root, each)
        if not each.path.exists():
            continue
        if after.exists() or after in taken:
            after = _beside(after, each)
        taken.add(after)
        planned.append(Move(each.path, after))
    return planned


def moves_back(root: Path, corrections: list[Correction]) -> list[Move]:
    """The moves back of all files that were moved, if no other file has their old path."""
    planned = []
    for each in corrections:
        plain = _destination(root, each)
        moved = next((path for path in (_beside(plain, each), plain) if path.exists()), None)
        if moved is not None and not each.path.exists():
            planned.append(Move(moved, each.path))
    return planned


def _destination(root: Path, correction: Correction) -> Path:
    """The path after the move, even if another file has it."""
    # Its folders below that of the data set
    path = correction.path
    below = path.parent.resolve() / path.name
    if not below.is_relative_to(root.resolve()):
        raise BadData(
            f"{path} is not in {root}; only files of a folder can be moved, and no rows of a table"
        )
    parts = below.relative_to(root.resolve()).parts
    if correction.label not in parts[:-1]:
        raise BadData(
            f"{path} is in no folder {correction.label!r}; if a table gives the labels, change them there"
        )
    if not correction.other:
        return _left_out_folder(root).joinpath(*parts)

    # The folder of the new class, beside that of the old one
    place = parts.index(correction.label)
    beside = root.joinpath(*parts[:place])
    if correction.other not in _classes(root, beside):
        raise BadData(f"{beside} has no folder of the class {correction.other!r}")
    return beside.joinpath(correction.other, *parts[place + 1 :])


def _classes(root: Path, beside: Path) -> set[str]:
    """The classes with a folder in any part of the data set, since a part may lack some. beside: a folder
    of classes."""
    parts = [beside]
    if beside != root:
        parts = [folder for folder in beside.parent.iterdir() if folder.is_dir()]
    return {folder.name for part in parts for folder in part.iterdir() if folder.is_dir()}


def _beside(path: Path, correction: Correction) -> Path:
    """The path with the old class added to the name."""
    return path.with_stem(f"{path.stem}-from-{correction.label}")


def move(planned: list[Move]) -> None:
    """Move the files, one after another, possibly to another file system.

    Raises OSError before the first move if one of them would certainly fail; FileExistsError instead of
    replacing a file; and Unavailable, with the number of moved files, if a move fails. The same list then
    moves the others.
    """
    check_moves(planned)
    for number, (before, after) in enumerate(planned):
        try:
            after.parent.mkdir(parents=True, exist_ok=True)
            move_file(before, after)
        except OSError as error:
            reason = error.strerror or error
            raise Unavailable(
                f"{before} could not be moved to {after}: {reason}; {number:,} of "
                f"{counted(len(planned), 'file')} were moved before it, and the same command moves the others"
            ) from error
