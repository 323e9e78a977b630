"""Verbs that examine this machine, runs, images and models, and measure the speed of a model."""

from typing import NamedTuple


class Finding(NamedTuple):
    """A fact about what was examined, and what to do about it if it could be better."""

    name: str
    value: str
    advice: str = ""
