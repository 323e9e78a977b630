"""The findings of an examination."""

from typing import NamedTuple


class Fact(NamedTuple):
    """A fact from an examination, with advice if something could be better."""

    name: str
    value: str
    advice: str = ""
