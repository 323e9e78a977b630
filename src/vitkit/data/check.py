"""Look at every image once, before hours are spent on a data set that is damaged."""

from dataclasses import dataclass

from vitkit.data.engine.workers import in_order
from vitkit.data.images import BadImage, open_image
from vitkit.data.sources import Source
from vitkit.system.progress import bar, silent

CHUNK = 64  # images between two updates of the progress bar


def check_images(source: Source, workers: int, progress: bool = True) -> list[tuple[int, str]]:
    """Decode every image, in `workers` processes.

    Returns the index of each image that cannot be used, and a sentence that names it. Raises
    OSError if the network or the disk fails.
    """
    source.prepare()
    chunk_starts = range(0, len(source), CHUNK)
    workers = min(
        workers, len(chunk_starts) // 4
    )  # a process takes longer to start than to do less
    chunks = in_order(_Check(source), chunk_starts, workers)
    shown = bar("checking images") if progress else silent
    broken = []
    for broken_in_chunk in shown(chunks, len(chunk_starts)):
        broken += broken_in_chunk
    return broken


@dataclass(frozen=True, eq=False)
class _Check:
    """First index of a chunk -> what is broken in it. Works in a worker."""

    source: Source

    def __getitem__(self, start: int) -> list[tuple[int, str]] | Exception:
        broken = []
        for index in range(start, min(start + CHUNK, len(self.source))):
            try:
                open_image(self.source[index][0], self.source.name(index)).pixels()
            except BadImage as error:
                broken.append((index, str(error)))
            except OSError as error:  # of the network or the disk: it does not concern the image
                return error
        return broken
