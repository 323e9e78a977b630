"""Look at every image once, before hours are spent on a data set that is damaged."""

from dataclasses import dataclass

from vitkit.data.engine.workers import in_order
from vitkit.data.images import BadImage, open_image
from vitkit.data.sources import Source
from vitkit.system.progress import bar, silent

CHUNK = 64  # images between two updates of the progress bar


def check_images(source: Source, workers: int, progress: bool = True) -> list[tuple[int, str]]:
    """Decode every image, in `workers` processes: the index of each that cannot be used, and a sentence that names it."""
    chunks = range(0, len(source), CHUNK)
    workers = min(
        workers, len(chunks) // 4
    )  # a process for less than that takes longer to start than to do it
    shown = bar("checking images") if progress else silent
    source.prepare()
    return [
        bad
        for found in shown(in_order(_Check(source), chunks, workers), len(chunks))
        for bad in found
    ]


@dataclass(frozen=True, eq=False)
class _Check:
    """First index of a chunk -> what is bad in it."""

    source: Source

    def __getitem__(self, start: int) -> list[tuple[int, str]] | Exception:
        bad = []
        for index in range(start, min(start + CHUNK, len(self.source))):
            try:
                open_image(self.source[index][0], self.source.name(index)).pixels()
            except BadImage as error:
                bad.append((index, str(error)))
            except OSError as error:  # of the network or the disk: no word on the image
                return error
        return bad
