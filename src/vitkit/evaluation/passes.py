"""A pass over images, as evaluations make it: in batches of equal size, on every rank."""

from collections.abc import Iterable

from vitkit.data import Batch, Source, WholePictures, default_workers, eval_batches
from vitkit.system.console.progress import bar
from vitkit.system.processes.ranks import on_rank_0, world
from vitkit.weights import Classifier

BATCH = 64  # images of a forward pass, unless told


def batches_of(
    classifier: Classifier, source: Source, text: str, batch: int = BATCH, workers: int = -1
) -> Iterable[Batch]:
    """This rank's share of the images, under a progress bar. Other processes decode them while the
    model computes; -1 takes as many as the CPU quota allows."""
    rank, world_size = world()
    if getattr(classifier.model, "takes_pictures", False):
        return _whole_pictures(source, text, workers)
    rows = _rows(batch, len(source), world_size)
    if workers < 0:
        workers = default_workers(source)
        if rows >= len(source):  # while one batch is decoded there is nothing to compute
            workers = 0
    pin = classifier.device.type == "cuda"
    share = (rank, world_size)
    batches = eval_batches(source, classifier.preprocessing, rows, workers, share, pin=pin)
    if not on_rank_0():
        return batches
    return bar(text)(batches, len(batches))


def _whole_pictures(source: Source, text: str, workers: int) -> Iterable[Batch]:
    """The same for a model that prepares images itself: one image at a time."""
    if workers < 0:
        workers = default_workers(source)
    batches = WholePictures(source, workers, world())
    if not on_rank_0():
        return batches
    return bar(text)(batches, len(batches))


def _rows(batch: int, images: int, world_size: int) -> int:
    """Images of a forward pass on all ranks: `batch` at most, if each has one, and so that the passes
    are equally large. The last one is filled up with rows that nobody needs, 63 for 65 images in
    batches of 64, and computing them takes as long."""
    most = max(batch // world_size, 1) * world_size
    passes = max(-(-images // most), 1)
    return max(-(-images // (passes * world_size)), 1) * world_size
