"""Of a test with many parameters, those that run among the quick tests."""

from collections.abc import Collection

import pytest


def quick_ones(names: Collection[str], quick: Collection[str]) -> list:
    """All names as parameters of a test; those that are not quick make it a slow one."""
    parameters = []
    for name in names:
        marks = () if name in quick else pytest.mark.slow
        parameters.append(pytest.param(name, marks=marks))
    return parameters
