"""What is damaged, and what is then done with it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random


@dataclass(frozen=True)
class Subject:
    """A thing on the disk, the files of it that are damaged, and its use."""

    name: str
    make: Callable[[Path], None]
    """Writes it, whole, into an empty folder."""
    use: Callable[[Path], None]
    """Uses it; raises AssertionError for a wrong answer."""
    damage: tuple[str, ...] = ("*",)
    """Patterns of the files that may be damaged."""
    replaced: bool = True
    """Whether a file may also be gone, or a pipe, a device, a link in a circle ... in its place."""
    alone: bool = False
    """Whether its files have nothing to do with one another: only the damaged one is used."""
    change: Callable[[Path, Random], None] | None = None
    """What is done to the chosen file, if it is not damaged as any file may be."""

    def files(self, folder: Path) -> list[Path]:
        """The files that may be damaged, in a fixed order."""
        matching = {path for pattern in self.damage for path in folder.glob(pattern)}
        return sorted(path for path in matching if path.is_file())
