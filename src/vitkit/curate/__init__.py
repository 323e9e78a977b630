"""For people who look after a data set: what is in it, what is there twice, and shards.

Training does not need this room.
"""

from vitkit.curate.duplicates import Pair
from vitkit.curate.jobs import Packed, Packing
from vitkit.curate.pack import pack
from vitkit.curate.stats import (
    Survey,
    class_counts,
    count_other_class,
    identical_files,
    near_duplicates,
    repeats,
    survey,
)

__all__ = [
    "Packed",
    "Packing",
    "Pair",
    "Survey",
    "class_counts",
    "count_other_class",
    "identical_files",
    "near_duplicates",
    "pack",
    "repeats",
    "survey",
]
