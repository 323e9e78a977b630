"""Look at every image once, before hours are spent on a data set that is damaged."""

import time
from dataclasses import dataclass

from vitkit.data.images import BadImage, open_image
from vitkit.data.sources import Source
from vitkit.data.workers import in_order

CHUNK = 64  # images between two updates of the progress bar
PATIENCE = 2.0  # seconds before there is one


def check_images(source: Source, workers: int, progress: bool = True) -> list[tuple[int, str]]:
    """Decode every image, in `workers` processes: the index of each that cannot be used, and a sentence that names it."""
    chunks = range(0, len(source), CHUNK)
    workers = min(workers, len(chunks) // 4)  # a process for less than that takes longer to start than to do it
    source.prepare()
    return [bad for found in _shown(in_order(_Check(source), chunks, workers), len(chunks), progress) for bad in found]


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


def _shown(chunks, total: int, progress: bool):
    """The same chunks, under a progress bar once they have taken a while."""
    began, done = time.monotonic(), 0
    for chunk in chunks:
        yield chunk
        done += 1
        if progress and time.monotonic() - began > PATIENCE:
            break
    else:
        return
    from rich.console import Console
    from rich.progress import track

    yield from track(
        chunks, "checking images", total=total, completed=done, console=Console(stderr=True), transient=True
    )
