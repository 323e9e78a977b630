"""Tools for people who look after a data set: statistics, duplicates, and shards.

Training does not need this room.
"""

from vitkit.system.lazy import lazily

_FILES = {
    "corrections": "LEAVE_OUT RELABEL Correction Move move moves moves_back read_corrections",
    "duplicates": "Pair different",
    "packing": "Packed Packing pack",
    "statistics": (
        "Survey class_counts count_other_class identical_files near_duplicates repeats survey"
    ),
}
__all__, __getattr__, __dir__ = lazily(__name__, _FILES)
