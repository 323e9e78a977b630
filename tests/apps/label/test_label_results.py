"""What `vitkit label` prints when it ends, and what it asks of a review's findings."""

from pathlib import Path

import pytest

from vitkit.apps.label import Checked, Labelled
from vitkit.apps.label.estimate import Estimate
from vitkit.apps.label.function import LabelCall, _checks, _photographs
from vitkit.apps.label.session import LabelProgress
from vitkit.data import open_splits
from vitkit.evaluation import Finding

SESSION = LabelCall("photos", None, "Ti/16")
ENDED = LabelProgress(
    photographs=1200,
    seen=1200,
    labelled=1010,
    set_aside=7,
    unreadable=5,
    left=178,
    classes=(("ant", 1000), ("bee", 10), ("fly", 0)),
    estimate=Estimate(0.914, 0.85, 0.96, 40, 0.021),
    agreement=(0.8123, 30),
)
UNREADABLE = ("a.jpg", "b.jpg", "c.jpg", "d.jpg", "e.jpg")


def test_what_was_labelled_is_counted_with_what_can_be_done_next():
    ended = Labelled(SESSION, Path("labels.csv"), Path("model"), ENDED, UNREADABLE)
    assert str(ended).splitlines() == [
        "1,010 of 1,200 photographs labelled",
        "  ant: 1,000",
        "  bee: 10",
        "  fly: 0",
        "7 left out, or marked as not sure",
        "5 photographs cannot be read: a.jpg, b.jpg, c.jpg, ...",
        "of the other 178 the model gets about 91% right (85% to 96%, by 40 that were drawn)",
        "50 more labels: about +2.1 points",
        "two people agree with kappa 0.81 on 30 photographs",
        "labels: labels.csv",
        "model: model; next: vitkit.predict('model', images)",
        "a better model of the same labels: vitkit.finetune('labels.csv')",
        "to go on labelling: vitkit.label('photos', model='Ti/16')",
    ]
    assert ended.rows()[1] == {"class": "bee", "photographs": 10}
    assert ended.made == "model"


def test_of_one_class_no_model_is_made_and_of_nothing_nothing_is_next():
    one = ENDED.__class__(**vars(ENDED) | {"classes": (("ant", 3),), "set_aside": 0})
    lines = str(Labelled(SESSION, Path("labels.csv"), None, one, ())).splitlines()
    assert not any(line.startswith(("model", "a better", "0 left")) for line in lines)
    with pytest.raises(ValueError, match="no model was made: two classes or more need labels"):
        _ = Labelled(SESSION, Path("labels.csv"), None, one, ()).made
    none = ENDED.__class__(**vars(ENDED) | {"labelled": 0, "estimate": None, "agreement": None})
    assert str(Labelled(SESSION, Path("l"), None, none, ())).splitlines()[-1] == (
        "7 left out, or marked as not sure"
    )


def test_decisions_on_a_review_are_counted():
    decided = Checked(SESSION, Path("changes.csv"), ENDED)
    first, path, _, again = str(decided).splitlines()
    assert first == "1,010 of 1,200 photographs decided: 1,010 of another class, 7 left out"
    assert path == "list: changes.csv"
    assert again == "to go on: vitkit.label('photos', model='Ti/16', check=True)"
    whole = ENDED.__class__(**vars(ENDED) | {"labelled": 1200, "classes": (), "set_aside": 0})
    assert str(Checked(SESSION, Path("changes.csv"), whole)) == (
        "1,200 of 1,200 photographs decided: 0 of another class, 0 left out"
    )


def test_all_that_was_found_in_a_photograph_is_one_question():
    parts = {"train": open_splits("digits").train}
    like = parts["train"].name(4)
    findings = [
        Finding("label", "train", 0, "0.png", "three", "may be an eight", None, "eight"),
        Finding("looks", "train", 1, "1.png", "one", "it is dark"),
        Finding("duplicate", "train", 0, "0.png", "three", "as 4.png", ("train", 4)),
        Finding("looks", "train", 2, "unprintable\x1b.png", "one", "it is dark"),
    ]
    first, second = _checks(parts, findings)
    assert first.reason == "may be an eight; as 4.png"
    assert (first.guess, first.beside) == ("eight", like)
    assert (second.reason, second.guess, second.beside) == ("it is dark", "", "")


def test_what_a_session_wrote_is_no_photograph(tmp_path):
    for name in ("a.png", "labels/plot.png", "other/b.png"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"")
    assert sorted(_photographs(tmp_path, (None,))) == ["a.png", "labels/plot.png", "other/b.png"]
    assert sorted(_photographs(tmp_path, (tmp_path / "labels", None))) == ["a.png", "other/b.png"]
    elsewhere = (tmp_path, tmp_path.parent / "elsewhere")
    assert len(_photographs(tmp_path, elsewhere)) == 3
