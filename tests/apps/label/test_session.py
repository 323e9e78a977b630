"""Sessions without a page: which questions come, whose they are, and that every photograph is asked about once."""

import json

import numpy as np
import pytest
from pictures import make_photographs

from vitkit.apps.label.answers import JOURNAL, LABELS
from vitkit.apps.label.questions import BETWEEN, GIVEN_OUT, RANDOM
from vitkit.apps.label.saving import save_model, sort_into
from vitkit.apps.label.session import LabelSession

CLASSES = ("cat", "dog", "bird")


def photographs(count=90, seed=0):
    """Names, features and classes of photographs of three kinds."""
    draws = np.random.default_rng(seed)
    of = np.arange(count) % 3
    x = 2 * np.eye(3, 8)[of] + 0.3 * draws.normal(size=(count, 8))
    names = [f"{i:03}.jpg" for i in range(count)]
    return names, x, dict(zip(names, np.array(CLASSES)[of], strict=True))


@pytest.fixture
def sat(tmp_path, clock):
    names, x, _ = photographs()
    session = LabelSession(names, tmp_path, clock=clock)
    session.see(names, x)
    return session


def right(session, question, by="a"):
    """Answer rightly."""
    _, _, class_of = photographs()
    if question.how == "screen":
        others = [name for name in question.photographs if class_of[name] != question.label]
        return session.say(by, question.number, "class", others=others)
    return session.say(by, question.number, "class", class_of[question.photographs[0]])


def test_features_stay_when_photographs_arrive(tmp_path):
    names, x, _ = photographs(3)
    session = LabelSession(names[:2], tmp_path)
    session.see(names[:2], x[:2])
    session.arrive(names)
    session.see(names[2:], x[2:])
    seen, features = session.features()
    assert seen == names
    np.testing.assert_allclose(features, x, atol=0.01)


def test_a_session_to_its_end(sat, tmp_path):
    _, _, class_of = photographs()
    kinds = []
    asked = []
    while (question := sat.ask("a")) is not None:
        assert sat.ask("a").photographs == question.photographs  # until it is answered
        kinds.append(question.how)
        asked += question.photographs
        right(sat, question)
    assert sorted(asked) == sorted(class_of)
    assert sat.labels() == class_of
    assert "screen" in kinds
    assert len(kinds) < 40
    assert len((tmp_path / LABELS).read_text().splitlines()) == 91

    # Between two screens there are single ones, of which some are random
    singles = "".join(kind[0] for kind in kinds).strip("s").split("s")
    assert all(len(run) >= BETWEEN for run in singles[:-1])
    alone = [kind for kind in kinds if kind != "screen"]
    assert all(kind == "random" for kind in alone[RANDOM - 1 :: RANDOM])

    # And all of it is there again
    again = LabelSession(list(class_of), tmp_path)
    assert again.labels() == class_of


def test_each_person_has_questions_of_their_own(sat, clock):
    first, second = sat.ask("a"), sat.ask("b")
    assert set(first.photographs).isdisjoint(second.photographs)
    with pytest.raises(ValueError, match="already answered, or was given to another person"):
        sat.say("b", first.number, "class", "cat")
    clock.now += GIVEN_OUT + 1
    third = sat.ask("b")
    assert third.photographs in (first.photographs, second.photographs)


def test_two_people_are_asked_some_of_the_same(sat):
    for _ in range(12):
        for by in ("a", "b"):
            question = sat.ask(by)
            if question is not None:
                right(sat, question, by)
    agreed, count = sat.progress().agreement
    assert count >= 1
    assert agreed == 1


def test_an_answer_is_taken_back_and_asked_again(sat):
    question = sat.ask("a")
    right(sat, question)
    sat.ask("a")
    assert sat.undo("a").photographs == question.photographs
    assert sat.ask("a").photographs == question.photographs
    assert not sat.labels()
    assert sat.undo("a") is None


def test_a_screen_that_is_taken_back_is_a_screen_again(sat):
    question = sat.ask("a")
    while question.how != "screen":
        right(sat, question)
        question = sat.ask("a")
    before = sat.labels()
    out = question.photographs[1]
    sat.say("a", question.number, "class", others=[out])
    assert sat.labels().keys() - before.keys() == set(question.photographs) - {out}
    assert out in sat.answers.refused
    sat.undo("a")
    again = sat.ask("a")
    assert (again.how, again.label) == ("screen", question.label)
    assert set(again.photographs) == set(question.photographs)
    assert sat.labels() == before


def test_what_was_taken_out_is_not_shown_as_that_class_again(sat):
    refused = set()
    for _ in range(60):
        question = sat.ask("a")
        if question is None:
            break
        if question.how == "screen":
            assert not any((name, question.label) in refused for name in question.photographs)
            refused |= {(name, question.label) for name in question.photographs[:2]}
            sat.say("a", question.number, "class", others=question.photographs[:2])
        else:
            right(sat, question)
    assert refused


def test_left_out_and_not_sure(sat):
    first = sat.ask("a")
    sat.say("a", first.number, "leave out")
    second = sat.ask("a")
    sat.say("a", second.number, "not sure")
    assert sat.progress().set_aside == 2
    asked = []
    while (question := sat.ask("a")) is not None:
        asked += question.photographs
        right(sat, question)
    assert set(asked).isdisjoint((*first.photographs, *second.photographs))


def test_photographs_that_come_and_go(tmp_path):
    names, x, _ = photographs()
    session = LabelSession(names[:30], tmp_path)
    question = session.ask("a")  # nothing is seen yet, and a person need not wait
    right(session, question)
    assert session.unseen()[0] == question.photographs[0]
    session.see(names[:30], x[:30])
    session.arrive(names)
    assert session.progress().photographs == 90
    assert session.unseen() == names[30:]
    session.see(names[30:], x[30:])
    gone = session.ask("a")
    session.lose(gone.photographs[0], "it is not there any more")
    assert session.ask("a").photographs != gone.photographs
    assert session.unreadable() == {gone.photographs[0]: "it is not there any more"}
    while (question := session.ask("a")) is not None:
        right(session, question)
    assert len(session.labels()) == 89


def test_classes(sat, tmp_path):
    question = sat.ask("a")
    sat.say("a", question.number, "class", "  a \x1b[2J  cat ")
    (name,) = sat.classes()
    assert "\x1b" not in name
    assert name.startswith("a ")
    sat.rename("a", name, "cat")
    assert sat.classes() == ["cat"]
    question = sat.ask("a")
    for label, words in (
        ("", "needs a name"),
        (" \n ", "needs a name"),
        ("x" * 201, "201 characters"),
    ):
        with pytest.raises(ValueError, match=words):
            sat.say("a", question.number, "class", label)
    with pytest.raises(ValueError, match="no class 'lion'"):
        sat.rename("a", "lion", "cat")
    known = LabelSession(["1.jpg"], tmp_path / JOURNAL / "..", classes=("fox", "cat"))
    assert known.classes() == ["fox", "cat"]


def test_it_says_how_good_the_model_is(tmp_path):
    names, x, class_of = photographs(600)
    session = LabelSession(names, tmp_path)
    session.see(names, x)
    while session.progress().estimate is None:
        question = session.ask("a")
        if question.how == "screen":
            session.say("a", question.number, "class")
        else:
            session.say("a", question.number, "class", class_of[question.photographs[0]])
    estimate = session.progress().estimate
    assert estimate.share > 0.9

    # By what it took random photographs for before it was told what they are
    drawn = [answer for answer in session.answers.standing if answer.how == "random"]
    assert estimate.photographs == sum(answer.learned > 0 for answer in drawn)
    learned = [answer.learned for answer in drawn]
    assert learned == sorted(learned)
    assert learned[-1] < len(session.labels())
    again = LabelSession(names, tmp_path)
    again.see(names, x)
    assert again.progress().estimate == estimate

    # And what is called otherwise now was right all the same
    for label in session.classes():
        again.rename("a", label, f"{label} (new)")
    assert again.progress().estimate == estimate
    assert estimate.high == pytest.approx(1, abs=0.02)


def test_a_table_that_cannot_be_written_is_said(sat, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("vitkit.apps.label.session.write_labels", full)
    right(sat, sat.ask("a"))
    assert "No space left" in sat.problem
    assert len(sat.labels()) == 1  # the journal has it
    monkeypatch.undo()
    right(sat, sat.ask("a"))
    assert not sat.problem


@pytest.mark.parametrize("name", ["\x1b[31mred.jpg", "a\nb.jpg", "a\x7f.jpg", "a\x9b.jpg"])
def test_a_name_of_control_characters_is_not_asked_about(name, tmp_path):
    """It would stand raw in labels.csv."""
    session = LabelSession([name, "größe 1.jpg"], tmp_path)
    assert "control characters" in session.unreadable()[name]
    assert session.ask("a").photographs == ("größe 1.jpg",)


def test_a_name_that_is_no_text_is_not_asked_about(tmp_path):
    name = b"caf\xe9.jpg".decode("utf-8", "surrogateescape")
    session = LabelSession([name, "1.jpg"], tmp_path)
    assert "not UTF-8" in session.unreadable()[name]
    assert session.ask("a").photographs == ("1.jpg",)
    session.recover(name)
    assert name in session.unreadable()


def test_a_photograph_that_is_back_is_asked_about_again(sat):
    names, _, _ = photographs()
    for name in names:
        sat.lose(name, "it is not there any more")
    assert sat.ask("a") is None
    assert sat.progress().left == 0
    sat.recover(names[5])
    assert sat.ask("a").photographs == (names[5],)
    assert sat.progress().left == 1


def test_known_classes_are_renamed_too(tmp_path):
    names, x, _ = photographs()
    session = LabelSession(names, tmp_path, classes=("cat,dgo", "fox"))
    session.see(names, x)
    session.rename("a", "dgo", "dog")
    assert session.classes() == ["cat", "dog", "fox"]
    assert LabelSession(names, tmp_path, classes=("cat", "dgo")).classes() == ["cat", "dog"]


def test_a_screen_of_a_class_that_is_renamed(sat):
    question = sat.ask("a")
    while question.how != "screen":
        right(sat, question)
        question = sat.ask("a")
    sat.rename("b", question.label, "renamed")
    sat.say("a", question.number, "class")
    assert question.label not in sat.classes()
    assert sat.labels()[question.photographs[0]] == "renamed"


def test_a_model_needs_two_classes(sat):
    right(sat, sat.ask("a"))
    with pytest.raises(ValueError, match="two classes or more"):
        save_model(sat, None, None, "float32", "")


def test_a_journal_names_no_file_outside_of_the_photographs(tmp_path):
    """It may be a stranger's, who would have a private file linked into a folder that is sent back."""
    root = make_photographs(tmp_path)
    (tmp_path / "secret.jpg").write_bytes(b"private")
    session = tmp_path / "session"
    session.mkdir()
    names = ["red/0.jpg", "../secret.jpg", str(tmp_path / "secret.jpg")]
    lines = []
    for number, name in enumerate(names, 1):
        said = {"number": number, "by": "a", "how": "typed", "decision": "class", "label": "cat"}
        lines.append(json.dumps(said | {"photographs": [name]}))
    (session / JOURNAL).write_text("\n".join(lines) + "\n")
    opened = LabelSession(["red/0.jpg", "blue/0.jpg"], session)
    assert not any(opened.has(name) for name in names[1:])
    sort_into(opened, root, tmp_path / "sorted")
    assert [path.name for path in (tmp_path / "sorted").rglob("*.jpg")] == ["0.jpg"]


@pytest.mark.parametrize("classes", [("cat", "cat"), ("cat,dog", "Cat")])
def test_two_classes_of_one_name_are_refused(tmp_path, classes):
    with pytest.raises(
        ValueError, match=r"`classes` names 'cat' and '[cC]at', which are one class"
    ):
        LabelSession(["1.jpg"], tmp_path, classes)


def test_screens_of_a_class_with_many_labels_are_still_worth_it(tmp_path, clock):
    """Each of three classes has 80 photographs; screens come until the last of them."""
    names, x, class_of = photographs(240)
    session = LabelSession(names, tmp_path, clock=clock)
    session.see(names, x)
    before = []
    while (question := session.ask("a")) is not None:
        if question.how == "screen":
            labels = list(session.labels().values())
            before.append(labels.count(question.label))
            others = [name for name in question.photographs if class_of[name] != question.label]
            session.say("a", question.number, "class", others=others)
        else:
            session.say("a", question.number, "class", class_of[question.photographs[0]])
    assert max(before) > 48  # twice as many as a screen shows
    assert len(before) >= 9
