"""The held-out images of a run that has ended, opened again for its report."""

import numpy as np

from vitkit.data import Columns, Source, fingerprint, open_splits, subset
from vitkit.training.division import divide
from vitkit.training.recipe import Data
from vitkit.training.record.reading import Recorded


def open_part(run: Recorded, name: str) -> Source:
    """A part of a run's own data, "test" for example, without its broken images: the examples in the
    order in which the run had them.

    Raises ValueError for images that are not there any more, or are others now, and for a part that
    belongs to an evaluator; OSError.
    """
    settings = run.recipe["data"]
    if name not in run.data["counts"]:
        raise ValueError(f"the images of {name} are not the run's own")
    data = Data(
        source=settings["source"],
        columns=Columns(**settings["columns"]),
        parts=settings["parts"],
        hold_out=settings["hold_out"],
        split_seed=settings["split_seed"],
    )
    splits = open_splits(data.source, data.columns, data.split_seed)
    part = divide(splits, data)[name]
    if fingerprint(part) != run.data["fingerprint"][name]:
        raise ValueError(f"{data.source!r} has changed since the run")

    # Without those that the run left out
    broken = [index for index, _ in run.data["skipped"].get(name, [])]
    return subset(part, np.setdiff1d(np.arange(len(part)), broken))
