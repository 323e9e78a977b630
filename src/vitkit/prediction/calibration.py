"""Images for calibrating an exported file and for fitting early exits."""

from collections.abc import Sequence

from vitkit.data import Source, part_of, parts_at
from vitkit.prediction.items import DataSetItems, Item, spread, words_of_model

CALIBRATED = 300  # largest number of images to calibrate with


def to_calibrate(data: str) -> Sequence[Item]:
    """Images of a data set for calibrating or fitting, at most CALIBRATED: of its training part if it
    has one, else of all its images. data: the data set's name or path."""
    parts = parts_at(data, typed=True).sources
    source = parts.get("train") or part_of(parts, None, data)
    return spread(items_of_source(source, ()), CALIBRATED)


def items_of_source(source: Source, labels: Sequence[str]) -> list[Item]:
    """All items of a data set."""
    return DataSetItems(source, words_of_model(source.labels, labels)).items()
