"""The journal of answers: what is in it is there again, whatever happened to the process."""

import csv
import json

import pytest
from sklearn.metrics import cohen_kappa_score

from vitkit.apps.label.answers import (
    JOURNAL,
    LABELS,
    Answer,
    CurrentAnswers,
    Journal,
    kappa,
    write_labels,
)
from vitkit.apps.label.checking import Check, Checking


def said(number, decision, label="", *photographs, by="a", how="typed", others=(), renamed=""):
    return Answer(number, by, how, decision, label, photographs, tuple(others), renamed)


def labels_of(answers):
    return {photograph: label.label for photograph, label in answers.labels.items()}


ANSWERS = [
    said(1, "class", "cat", "1.jpg"),
    said(2, "class", "dog", "2.jpg"),
    said(3, "class", "cat", "3.jpg", "4.jpg", how="screen", others=["5.jpg"]),
    said(4, "not sure", "", "6.jpg"),
    said(5, "leave out", "", "7.jpg"),
    said(6, "rename", "kitten", renamed="cat"),
    said(7, "class", "dog", "6.jpg", by="b"),
]
LABELLED = {"1.jpg": "kitten", "2.jpg": "dog", "3.jpg": "kitten", "4.jpg": "kitten", "6.jpg": "dog"}


def test_answers_are_there_again(tmp_path):
    journal = Journal(tmp_path)
    for answer in ANSWERS:
        journal.add(answer)
    for answers in (journal.answers, Journal(tmp_path).answers):
        assert labels_of(answers) == LABELLED
        assert answers.set_aside == {"7.jpg": "leave out"}
        assert answers.refused == {"5.jpg": {"kitten"}}
        assert answers.classes() == ["kitten", "dog"]
        assert answers.last == 7


def test_answers_are_taken_back_one_by_one(tmp_path):
    journal = Journal(tmp_path)
    states = [labels_of(journal.answers)]
    for answer in ANSWERS[:6]:
        journal.add(answer)
        states.append(labels_of(journal.answers))
    journal.add(ANSWERS[6])
    for state in reversed(states[:-1]):
        assert journal.take_back("a").by == "a"
        assert labels_of(journal.answers) == state | {"6.jpg": "dog"}
    assert journal.take_back("a") is None
    assert labels_of(Journal(tmp_path).answers) == {"6.jpg": "dog"}
    assert Journal(tmp_path).answers.last == 7  # numbers do not come twice


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_a_line_that_was_not_written_whole_is_left_out(tmp_path, cut):
    journal = Journal(tmp_path)
    for answer in ANSWERS[:3]:
        journal.add(answer)
    file = tmp_path / JOURNAL
    file.write_bytes(file.read_bytes()[:-cut])
    again = Journal(tmp_path)
    assert labels_of(again.answers) == {"1.jpg": "cat", "2.jpg": "dog"}
    again.add(ANSWERS[2])
    assert len(Journal(tmp_path).answers.standing) == 3


@pytest.mark.parametrize("line", ["{", "[]", '{"number": 1}', '{"undo": [1]}', "\xff"])
def test_another_line_is_refused(tmp_path, line):
    (tmp_path / JOURNAL).write_text(f"{line}\n", "latin-1")
    with pytest.raises(ValueError, match="line 1 is not an answer") as error:
        Journal(tmp_path)
    assert LABELS in str(error.value)


def test_a_full_disk_leaves_the_journal_whole(tmp_path, monkeypatch):
    journal = Journal(tmp_path)
    journal.add(ANSWERS[0])

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        journal.add(ANSWERS[1])
    monkeypatch.undo()
    assert labels_of(journal.answers) == {"1.jpg": "cat"}
    journal.add(ANSWERS[2])
    assert labels_of(Journal(tmp_path).answers) == labels_of(journal.answers)


def test_people_who_do_not_agree():
    answers = CurrentAnswers(
        [
            said(1, "class", "cat", "1.jpg", by="a"),
            said(2, "class", "dog", "1.jpg", by="b"),
            said(3, "class", "cat", "2.jpg", by="a"),
            said(4, "class", "cat", "2.jpg", by="b"),
            said(5, "class", "dog", "3.jpg", by="b"),
            said(6, "class", "dog", "3.jpg", by="a"),
            said(7, "class", "dog", "4.jpg", by="a"),
        ]
    )
    (difference,) = answers.differences()
    assert difference.photograph == "1.jpg"
    assert [(label.label, label.by) for label in difference.labels] == [("cat", "a"), ("dog", "b")]
    agreed, count = answers.agreement()
    assert count == 3
    assert agreed == pytest.approx(cohen_kappa_score(["cat", "cat", "dog"], ["dog", "cat", "dog"]))
    assert answers.labels["1.jpg"].label == "dog"  # the last word
    answers = answers.without(answers.standing[1])
    assert not answers.differences()
    assert answers.labels["1.jpg"].label == "cat"


def test_kappa():
    first, second = list("aabbccab"), list("abbbccaa")
    assert kappa(first, second) == pytest.approx(cohen_kappa_score(first, second))
    assert kappa(["a", "a"], ["a", "a"]) == 1


def test_table_of_labels(tmp_path):
    answers = CurrentAnswers(
        [said(1, "class", 'a "cat", or so', "b,1.jpg"), said(2, "class", "dog", "a.jpg", by="b")]
    )
    write_labels(tmp_path / LABELS, "photographs", answers)
    with (tmp_path / LABELS).open(newline="") as file:
        assert list(csv.reader(file)) == [
            ["path", "label", "how", "by"],
            ["photographs/a.jpg", "dog", "typed", "b"],
            ["photographs/b,1.jpg", 'a "cat", or so', "typed", "a"],
        ]


def test_bytes_of_a_name_that_are_no_text(tmp_path):
    name = b"caf\xe9.jpg".decode("utf-8", "surrogateescape")
    journal = Journal(tmp_path)
    journal.add(said(1, "class", "cat", name))
    assert json.loads((tmp_path / JOURNAL).read_text())["photographs"] == [name]
    assert labels_of(Journal(tmp_path).answers) == {name: "cat"}


def test_a_line_that_fits_in_part_is_not_written(tmp_path):
    resource = pytest.importorskip("resource", reason="needs limits of a process, as Unix has")
    journal = Journal(tmp_path)
    journal.add(ANSWERS[0])
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = (tmp_path / JOURNAL).stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            journal.add(ANSWERS[2])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (tmp_path / JOURNAL).stat().st_size == size
    journal.add(ANSWERS[1])
    assert len(Journal(tmp_path).answers.standing) == 2


def test_classes_keep_their_order(tmp_path):
    answers = CurrentAnswers(
        [
            said(1, "class", "cat", "1.jpg"),
            said(2, "class", "dog", "2.jpg"),
            said(3, "class", "cat", "3.jpg"),
        ]
    )
    assert answers.classes() == ["cat", "dog"]
    answers.add(said(4, "class", "dog", "1.jpg", by="b"))
    assert answers.classes() == ["cat", "dog"]
    answers.add(said(5, "rename", "kitten", renamed="cat"))
    assert answers.classes() == ["kitten", "dog"]
    answers.add(said(6, "rename", "kitten", renamed="dog"))
    assert answers.classes() == ["kitten"]


def test_a_class_of_one_and_no_class_of_another():
    answers = CurrentAnswers(
        [said(1, "class", "cat", "1.jpg"), said(2, "not sure", "", "1.jpg", by="b")]
    )
    assert labels_of(answers) == {"1.jpg": "cat"}
    assert not answers.set_aside
    answers.add(said(3, "leave out", "", "1.jpg", by="c"))
    assert not answers.labels
    assert answers.set_aside == {"1.jpg": "leave out"}
    assert labels_of(answers.without(answers.standing[-1])) == {"1.jpg": "cat"}


def test_decisions_about_labels_are_counted(tmp_path):
    checks = [Check(f"{number}.jpg", "train", "ant", "odd", guess="bee") for number in range(4)]
    checking = Checking(checks, ("ant", "bee"), tmp_path, "heading")
    for decision, label in (("class", "bee"), ("class", "ant"), ("leave out", "")):
        question = checking.ask("me")
        checking.say("me", question.number, decision, label)
    progress = checking.progress()
    assert (progress.photographs, progress.seen, progress.labelled) == (4, 4, 3)
    assert (progress.set_aside, progress.unreadable, progress.left) == (1, 0, 1)
    assert progress.classes == (("bee", 1),)
    assert progress.estimate is None and progress.agreement is None
