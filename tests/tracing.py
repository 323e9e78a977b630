"""A model's graph is traced once for all files of a module's tests."""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy

import pytest

from vitkit.runtimes.graphs import writing


@contextmanager
def traced_once() -> Iterator[None]:
    """A block of exports of one model, of which those that take the same graph share one trace: it is a
    third of an export's time."""
    programs = {}
    trace = writing.traced

    def traced(graph, exported):
        if repr(graph) not in programs:
            programs[repr(graph)] = trace(graph, exported)
        return copy(programs[repr(graph)])  # what writes a .pt2 file takes its examples away

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing, "traced", traced)
        yield
