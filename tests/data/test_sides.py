"""Classes of the left and the right are known by their names, however these are written."""

import pytest

from vitkit.data import sided


@pytest.mark.parametrize(
    "labels",
    (
        ["Left lung"], ["lung_right"], ["left-lung"], ["lung.left"], ["leftLung"], ["LeftLung"], ["LEFT_LUNG"],
        ["lungLeft"], ["lung (left)"], ["left1"], ["leftlung"], ["lungleft", "lungright"], ["L4", "R4"],
        ["lung L", "lung R"], ["lungL", "lungR"], ["ctx-lh-bankssts", "ctx-rh-bankssts"], ["linke Hand", "rechte Hand"],
        ["main gauche", "main droite"], ["Clockwise", "counter-clockwise"],
    ),
)  # fmt: skip
def test_names_of_sides(labels):
    assert sided([*labels, "heart"]) == labels


@pytest.mark.parametrize(
    "labels",
    (
        ["bright", "cleft", "copyright"], ["L4", "S1"], ["links", "chain"], ["road", "car", "l"], ["r", "lrl"],
        ["west", "wall"], ["", "0", "_"], ["1", "2"],
    ),
)  # fmt: skip
def test_other_names(labels):
    assert sided(labels) == []
