"""Verbs: arguments become settings, results show themselves, and nobody is told twice."""

import inspect
import pickle
import pydoc
import random
import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Annotated, Literal

import numpy as np
import pytest
import torch
from rich.table import Table
from tyro.conf import Positional, arg

import vitkit
from vitkit.commands import COMMANDS
from vitkit.system.console.messages import Progress, heard_by, progress_of, say
from vitkit.verbs import result, verb
from vitkit.verbs.definition import alone, calls_for_commands


@dataclass(frozen=True)
class Hints:
    """What may be said of a model."""

    heads: int | None = None
    crop: float = 1.0


@dataclass(frozen=True)
class Count:
    """Count some images."""

    model: Annotated[Positional[str], arg(metavar="MODEL")]
    images: Annotated[Positional[tuple[str, ...]], arg(metavar="IMAGE...")] = ()
    times: tuple[int, ...] = (1,)
    hints: Annotated[Hints, arg(name="")] = field(default_factory=Hints)
    order: Literal["as-given", "by-name"] = "as-given"
    sides: tuple[Literal[1, 2], ...] = ()


@result
@dataclass(frozen=True)
class Counted:
    """How many there are."""

    settings: Count

    def rows(self):
        return [
            {"image": image, "times": times} for image in self.settings.images for times in (1, 2)
        ]

    def shown(self):
        table = Table("image", "[b]")
        for image in self.settings.images:
            table.add_row(image, "1")
        yield table
        yield "counted [all] of them"


@verb
def count(settings: Count) -> Counted:
    """Count the images."""
    say("counting")
    progress_of("counting", 1, 2)
    return Counted(settings)


def test_arguments_become_settings():
    settings = count("m", "a.jpg", "b.jpg", times=[2, 3], quiet=True).settings
    assert settings == Count("m", ("a.jpg", "b.jpg"), (2, 3))
    assert count("m", ["a.jpg", "b.jpg"], quiet=True).settings.images == ("a.jpg", "b.jpg")
    assert count(model="m", images=("a.jpg",), quiet=True).settings.images == ("a.jpg",)


def test_parts_without_a_name_stand_beside_the_others():
    assert count("m", heads=3, quiet=True).settings.hints == Hints(heads=3)
    both = count("m", heads=3, hints=Hints(crop=0.9), quiet=True).settings.hints
    assert both == Hints(3, 0.9)


@pytest.mark.parametrize(
    ("words", "values", "sentence"),
    [
        (("m",), {"time": 1}, "has no setting 'time'; did you mean times"),
        (("m", "a.jpg"), {"model": "n", "images": "b.jpg"}, "takes nothing by position"),
        ((), {}, "needs model"),
        (("m",), {"hints__head": 3}, "has no setting 'hints__head'; did you mean hints"),
    ],
)
def test_what_is_no_setting_is_a_sentence(words, values, sentence):
    with pytest.raises(TypeError, match=sentence):
        count(*words, **values)


def test_a_result_is_text_html_and_a_table():
    pytest.importorskip("pandas")
    counted = count("m", "a.jpg", quiet=True)
    assert "a.jpg" in str(counted) and str(counted).endswith("counted [all] of them")
    assert "a.jpg" in counted._repr_html_() and "<pre" in counted._repr_html_()
    assert counted.to_frame()["times"].tolist() == [1, 2]


def test_what_is_told_goes_to_whoever_listens(capsys):
    told = []
    count("m", progress=told.append)
    assert told == ["counting", Progress("counting", 1, 2)]
    count("m", quiet=True)
    assert capsys.readouterr() == ("", "")
    count("m")
    assert capsys.readouterr() == ("", "counting\n")
    with heard_by(told.append):
        count("m")
    assert len(told) == 4


@pytest.mark.parametrize(
    ("sentence", "code"),
    [
        ("next: vitkit predict runs/a IMAGE... --to answers.csv",
         "next: vitkit.predict('runs/a', images, to='answers.csv')"),
        ("next: vitkit predict 'a b/ü' IMAGE..., or vitkit evaluate 'a b/ü' DATA",
         "next: vitkit.predict('a b/ü', images), or vitkit.evaluate('a b/ü', data)"),
        ("next: vitkit teach MODEL --undo", "next: vitkit.teach(model, undo=True)"),
        ("  vitkit data review photos runs/a   labels that may be wrong",
         "  vitkit.review('photos', 'runs/a')   labels that may be wrong"),
        ("next: vitkit train digits, or vitkit models --published, the weights",
         "next: vitkit.train('digits'), or vitkit.list_models(published=True), the weights"),
        ("next: torchrun --nproc-per-node 2 -m vitkit train RECIPE",
         "next: torchrun --nproc-per-node 2 -m vitkit train RECIPE"),
        ("next: open report.html", "next: open report.html"),
    ],
)  # fmt: skip
def test_what_is_next_is_a_call_in_python(sentence, code):
    assert calls_for_commands(sentence) == code


def test_help_shows_every_setting():
    signature = str(inspect.signature(count))
    assert signature.startswith("(model: 'str | Path | Classifier | MadeModel', images:")
    assert "heads: int | None = None" in signature  # a setting of a part without a name
    assert "quiet=False, progress=None" in signature
    shown = pydoc.plain(pydoc.render_doc(count))
    assert (
        re.search(r"count\(\s*model:", shown) and "Count the images." in shown and "crop:" in shown
    )


@pytest.mark.parametrize(
    ("values", "error", "sentence"),
    [
        ({"order": "by_name"}, ValueError, "order is 'by_name'; it is one of as-given, by-name"),
        ({"sides": ("1", "2")}, ValueError, r"sides is \('1', '2'\); it is one of 1, 2"),
        ({"times": "3"}, TypeError, r"times is \('3',\); it takes a whole number"),
        ({"heads": 2.5}, TypeError, "heads is 2.5; it takes a whole number or None"),
        ({"heads": True}, TypeError, "heads is True; it takes a whole number"),
        ({"hints": {"heads": 2}}, TypeError, "hints is {'heads': 2}"),
        ({"model": None}, TypeError, "needs model, which is None"),
        ({"progress": True}, TypeError, "progress is True"),
    ],
)
def test_values_are_checked_before_anything_happens(values, error, sentence):
    with pytest.raises(error, match=sentence):
        count(**{"model": "m"} | values)


def test_numbers_of_numpy_are_numbers():
    settings = count("m", times=np.int64(2), crop=np.float32(0.5), quiet=True).settings
    assert settings.times == (2,) and type(settings.times[0]) is int
    assert type(settings.hints.crop) is float


def test_a_verb_is_sent_to_another_process():
    assert pickle.loads(pickle.dumps(vitkit.predict)) is vitkit.predict


def test_random_numbers_of_the_program_go_on():
    @verb
    def drawing(settings: Count) -> Counted:
        random.seed(3)
        np.random.seed(3)
        torch.manual_seed(3)
        return Counted(settings)

    def drawn():
        return random.random(), np.random.random(), torch.rand(1).item()

    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    expected = drawn()
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])
    drawing("m")
    assert drawn() == expected


def test_what_must_be_alone_waits(capsys):
    order = []

    @verb
    @alone
    def slow(settings: Count) -> Counted:
        order.append(settings.model)
        time.sleep(0.2)
        order.append(settings.model)
        return Counted(settings)

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(slow, ["a", "b"]))
    assert order in (list("aabb"), list("bbaa"))
    assert "waiting for it to end" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command", [each for each in COMMANDS if not each.action], ids=lambda each: each.name
)
def test_a_command_is_its_verb(command):
    """The settings of the command are the arguments of the function of its name, with the same
    defaults."""
    by_name = getattr(vitkit, command.verb)
    assert by_name is command.load_verb() and by_name.settings is command.load_settings()
    parameters = inspect.signature(by_name).parameters
    assert list(parameters)[-2:] == ["quiet", "progress"]
    assert by_name.__doc__


def test_a_program_is_told_every_step_of_a_run(tmp_path):
    told = []
    vitkit.train(
        "digits", length="3steps", batch=16, workdir=tmp_path / "run", device="cpu",
        data__workers=0, model__width=24, model__depth=1, model__mlp=48, model__heads=2,
        progress=told.append,
    )  # fmt: skip
    steps = [each for each in told if isinstance(each, Progress) and each.stage == "training"]
    assert [(each.done, each.total) for each in steps] == [(1, 3), (2, 3), (3, 3)]
