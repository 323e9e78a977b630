"""For people who look after a data set: what is in it, what is there twice, and shards.

Training does not need this room.
"""

from vitkit.system.lazy import lazily

_FILE_OF = {
    "Packed": "packing",
    "Packing": "packing",
    "Pair": "duplicates",
    "Survey": "statistics",
    "class_counts": "statistics",
    "count_other_class": "statistics",
    "identical_files": "statistics",
    "near_duplicates": "statistics",
    "pack": "packing",
    "repeats": "statistics",
    "survey": "statistics",
}
__all__ = [*_FILE_OF]
__getattr__ = lazily(__name__, _FILE_OF)
