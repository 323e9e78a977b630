"""Images to calibrate a file with, or to fit early exits to."""

from collections.abc import Sequence

from vitkit.data import Source, part_of, parts_at
from vitkit.prediction.items import DataSetItems, Item, spread, words_of_model

CALIBRATED = 300  # images to calibrate with, at most


def to_calibrate(data: str) -> Sequence[Item]:
    """Images of a data set, whose name a person typed, to calibrate with, or to fit on: of its training
    part, or of all."""
    parts = parts_at(data, typed=True).sources
    source = parts.get("train") or part_of(parts, None, data)
    return spread(items_of_source(source, ()), CALIBRATED)


def items_of_source(source: Source, labels: Sequence[str]) -> list[Item]:
    """All items of a data set."""
    return DataSetItems(source, words_of_model(source.labels, labels)).items()
