"""What `vitkit doctor` finds: a fact, and what to do about it."""

from typing import NamedTuple


class Finding(NamedTuple):
    """A fact about what was examined, and what to do about it if it could be better."""

    name: str
    value: str
    advice: str = ""
