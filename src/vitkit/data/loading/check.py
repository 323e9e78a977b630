"""Look at every image once, before hours are spent on a data set that is damaged."""

from functools import partial

from vitkit.data.images.display import picture_for_people
from vitkit.data.images.files import BadImage, open_image
from vitkit.data.images.preprocessing import Preprocessing
from vitkit.data.loading.workers import in_order, ranges, worth_starting
from vitkit.data.sources.source import Source
from vitkit.system.console.progress import bar, silent

CHUNK = 64  # images between two updates of the progress bar


def check_images(
    source: Source,
    workers: int,
    progress: bool = True,
    preprocessing: Preprocessing | None = None,
) -> list[tuple[int, str]]:
    """Decode every image, in `workers` processes, into the channels that a preprocessing has; without
    one into its own.

    Returns the index of each image that cannot be used, and a sentence that names it. Raises
    OSError if the network or the disk fails.
    """
    source.prepare()
    chunks = ranges(len(source), CHUNK)
    results = in_order(
        partial(_check, source, preprocessing), chunks, worth_starting(workers, len(chunks))
    )
    shown = bar("checking images") if progress else silent
    broken = []
    for broken_in_chunk in shown(results, len(chunks)):
        broken += broken_in_chunk
    return broken


def _check(source: Source, preprocessing: Preprocessing, indices: range) -> list[tuple[int, str]]:
    """The index of each of these images that cannot be used, and why.

    Raises OSError if the network or the disk fails, which is not the image's fault.
    """
    broken = []
    for index in indices:
        try:
            picture = open_image(source[index][0], source.name(index))
            if preprocessing is None:
                picture_for_people(picture)
            else:
                preprocessing.decode(picture)
        except BadImage as error:
            broken.append((index, str(error)))
    return broken
