"""Inspect the images of a data set before training: which are damaged, how many channels and bits they
have, and the mean and standard deviation of each channel.

Legend: C channels.
"""

from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from vitkit.data.images.pictures import picture_for_people
from vitkit.data.images.preprocessing import Preprocessing
from vitkit.data.loading.workers import in_order, ranges, worth_starting
from vitkit.data.sources.source import Source
from vitkit.data.sources.stores import Arrays
from vitkit.system.console.progress import bar, silent
from vitkit.system.errors import BadData, BadImage, BadSettings

CHUNK = 64  # images between two updates of the progress bar
LOOKED_AT = 8  # number of evenly spread images whose channels are inspected
MEASURED = 1000  # number of evenly spread images whose values are measured
DIGITS = 5  # significant digits of a mean, equal on every machine


def check_images(
    source: Source,
    workers: int,
    progress: bool = True,
    preprocessing: Preprocessing | None = None,
) -> list[tuple[int, str]]:
    """Decode every image, and its mask if it has one, in `workers` processes.

    Returns the index of each image that cannot be used, and a sentence that names it. Images of one
    array are checked by their first. Raises OSError if the network or the disk fails.

    preprocessing: decodes images into its channels; None decodes them into their own.
    """
    source.prepare()
    is_array = isinstance(source.store, Arrays) and source.store.one_represents_all
    if is_array and source.target_kind != "mask":
        first = range(min(1, len(source)))
        if not _check(source, preprocessing, first):
            return []
    chunks = _chunks(source)
    task = partial(_check, source, preprocessing)
    workers = min(worth_starting(workers, len(ranges(len(source), CHUNK))), len(chunks))
    results = in_order(task, chunks, workers)
    show = bar("checking images") if progress else silent
    broken = []
    for broken_in_chunk in show(results, len(chunks)):
        broken += broken_in_chunk
    return broken


def _chunks(source: Source) -> list[range]:
    """Ranges of examples, each of which one process checks: CHUNK examples, or the examples of one chunk
    if the source is read in chunks."""
    chunks = source.chunks()
    if chunks is None:
        return ranges(len(source), CHUNK)
    starts = [0, *(np.flatnonzero(np.diff(chunks[0])) + 1).tolist(), len(source)]
    return [range(start, stop) for start, stop in pairwise(starts)]


def _check(
    source: Source, preprocessing: Preprocessing | None, indices: range
) -> list[tuple[int, str]]:
    """The index of each of these images that cannot be used, and the reason. Raises OSError if the network
    or the disk fails, which is not the image's fault."""
    broken = []
    for index in indices:
        try:
            picture = source.picture(index)
            if preprocessing is None:
                picture_for_people(picture)
            else:
                preprocessing.decode(picture)
            if source.target_kind == "mask":
                source.mask(index, picture.size)
        except (
            BadImage,
            BadData,
        ) as error:  # BadData: a mask of another size, or with a value without a class
            broken.append((index, str(error)))
    return broken


class Seen(NamedTuple):
    """The content of some of the images."""

    channels: int
    """C, the largest number of channels."""
    colours: bool
    """Whether all images can be converted to RGB: photographs, grey images, and images with alpha."""
    many_bits: bool
    """Whether any image has more than 8 bits per channel."""


def look_at(source: Source) -> Seen:
    """Inspect the channels and bits of some images of a source; unreadable images are skipped."""
    channels = 1
    colours = True
    many_bits = False
    source = source.a_few()
    for i in _spread(len(source), LOOKED_AT):
        try:
            picture = source.picture(i)
            own_channels = picture.channels
            own_colours = picture.colours_are_known
            own_many_bits = picture.many_bits
            picture.stored(own_channels)  # raises BadImage if the header is damaged
        except BadImage:
            continue
        channels = max(channels, own_channels)
        colours = colours and own_colours
        many_bits = many_bits or own_many_bits
    return Seen(channels, colours, many_bits)


def measured(source: Source, preprocessing: Preprocessing) -> Preprocessing:
    """The preprocessing with the mean and standard deviation of each channel, measured on up to MEASURED
    images at their stored size. The deviation of a constant channel is 1. Unreadable images are skipped.
    Raises VitkitError if all are."""
    sums = np.zeros((3, preprocessing.channels))  # count, sum, sum of squares
    error = None
    source = source.a_few()
    indices = _spread(len(source), MEASURED)
    for i in bar("measuring the channels")(indices, len(indices)):
        try:
            picture = source.picture(i)
            pixels = preprocessing.decode(picture).reshape(-1, preprocessing.channels)
        except BadImage as bad:
            error = bad
            continue
        pixels = pixels.astype(np.float64)
        if preprocessing.values == "uint8":
            pixels /= 255
        sums += [np.full(pixels.shape[1], len(pixels)), pixels.sum(0), np.square(pixels).sum(0)]
    count, total, squares = sums
    if not count.all():
        raise BadSettings(f"the mean of the images cannot be measured: {error or 'there are none'}")
    mean = total / count
    std = np.sqrt(np.maximum(squares / count - mean**2, 0))
    std[std < 1e-6] = 1
    return replace(preprocessing, mean=_rounded(mean), std=_rounded(std))


def _spread(count: int, most: int) -> list[int]:
    """At most `most` evenly spread indices."""
    return np.linspace(0, count - 1, min(count, most)).astype(int).tolist()


def _rounded(values: np.ndarray) -> tuple[float, ...]:
    """Round to DIGITS significant digits."""
    return tuple(float(f"{value:.{DIGITS}g}") for value in values)
