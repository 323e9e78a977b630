"""What tests of labelling share."""

import pytest


class Clock:
    """A clock that stands until a test sets it."""

    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()
