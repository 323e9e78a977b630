"""Verbs that examine this machine, runs, images and models, and measure the speed of a model."""

from typing import NamedTuple


class Finding(NamedTuple):
    """A fact from an examination, with advice if something could be better."""

    name: str
    value: str
    advice: str = ""
