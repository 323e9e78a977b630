"""Decisions on photographs that have classes: who is asked about which, and what the list says."""

import pytest

from vitkit.apps.label.checking import Check, Checking
from vitkit.apps.label.questions import GIVEN_OUT

CHECKS = (
    Check("cat/1.jpg", "train", "cat", "its label is probably wrong", "dog"),
    Check("dog/2.jpg", "train", "dog", "the same picture again", beside="dog/3.jpg"),
)


@pytest.fixture
def checking(tmp_path, clock):
    return Checking(CHECKS, ("cat", "dog"), tmp_path, "# of photos", clock)


def test_what_somebody_left_is_asked_again(checking, clock):
    left = checking.ask("a")
    other = checking.ask("b")
    assert {*left.photographs, *other.photographs} == {"cat/1.jpg", "dog/2.jpg"}
    checking.say("b", other.number, "class", "dog")
    assert checking.ask("b") is None  # the other photograph is somebody's
    clock.now += GIVEN_OUT + 1
    assert checking.ask("b").photographs == left.photographs
    with pytest.raises(ValueError, match="already answered, or was given to another person"):
        checking.say("b", other.number, "class", "dog")


def test_the_list_has_what_is_not_to_stay(checking):
    first = checking.ask("a")
    assert (first.label, first.guesses) == ("cat", (("dog", 1.0),))
    checking.say("a", first.number, "class", "dog")
    second = checking.ask("a")
    assert second.beside == "dog/3.jpg"
    checking.say("a", second.number, "leave out")
    heading, *lines = checking.file.read_text().splitlines()
    assert heading == "# of photos"
    assert [line.split("\t")[0] for line in lines] == ["cat/1.jpg", "dog/2.jpg"]
    assert checking.ask("a") is None

    # What is taken back is asked again, and leaves the list
    checking.undo("a")
    assert checking.ask("a").photographs == ("dog/2.jpg",)
    assert len(checking.file.read_text().splitlines()) == 2


def test_a_class_that_the_data_does_not_have_is_refused(checking):
    question = checking.ask("a")
    with pytest.raises(ValueError, match="the data set has no class 'bird'"):
        checking.say("a", question.number, "class", "bird")
