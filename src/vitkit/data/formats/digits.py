"""The 1,797 handwritten digits that come with scikit-learn: the data set of the first run, and of
most tests."""

import numpy as np

from vitkit.data.sources.row_labels import as_row_labels
from vitkit.data.sources.source import TEST_SHARE, stratified
from vitkit.data.sources.stores import Arrays
from vitkit.data.sources.tables import Columns, Table


def read_digits(where: str, columns: Columns) -> Table | None:
    """ "digits": 8 by 8 pixels, levels 0 to 16 made 0 to 255.

    A fifth, always the same, is the test part.
    """
    if where != "digits":
        return None
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = (digits.images * (255 / 16)).round().astype(np.uint8)
    parts = np.full(len(images), "train", dtype=object)
    _, test_rows = stratified(digits.target, TEST_SHARE, seed=0)
    parts[test_rows] = "test"
    row_labels = as_row_labels(digits.target.astype(np.int64), where, columns.target)
    return Table(Arrays("digits", images), row_labels, parts, tuple("0123456789"), ())
