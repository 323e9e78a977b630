"""Public functions: arguments are read by their types, results show themselves, messages go to one place."""

from __future__ import annotations

import inspect
import pickle
import random
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Unpack

import numpy as np
import pytest
import torch
from rich.table import Table

import vitkit
from vitkit.cli.spelling import as_command
from vitkit.cli.table import COMMANDS
from vitkit.system.console.messages import Progress, heard_by, progress_of, say
from vitkit.system.errors import BadData, BadSettings, BadWeights, VitkitError, WrongArgument
from vitkit.system.functions.override import override_all
from vitkit.system.functions.parameters import parameters
from vitkit.system.functions.public import alone, public
from vitkit.system.functions.results import ModelResult, Rows
from vitkit.system.functions.steps import DATA, IMAGES, step, steps_as
from vitkit.system.functions.types import Default, Messages, PathLike, Several, SpanLike
from vitkit.system.span import Span


class Group(Messages, total=False):
    """Options that several functions share."""

    heads: int | None
    """Number of heads."""
    crop: Annotated[float, Default(1.0)]
    """Share of the image."""


@dataclass(frozen=True, repr=False)
class Counted(Rows):
    """The arguments of a call."""

    given: dict

    def rows(self):
        return [{"image": image, "times": 1} for image in self.given["images"]]

    def shown(self):
        table = Table("image", "[b]")
        for image in self.given["images"]:
            table.add_row(image, "1")
        yield table
        yield "counted [all] of them"


@public
def count(
    model: Any,
    *images: Any,
    times: Several[int] = (1,),
    order: Literal["as-given", "by-name"] = "as-given",
    sides: Several[Literal[1, 2]] = (),
    to: PathLike | None = None,
    length: SpanLike | None = None,
    **group: Unpack[Group],
) -> Counted:
    """Count the images.

    Args:
        model: What counts.
        images: What is counted.
        times: How often.
        order: In which order, as in `sides=1`.
        sides: Which sides.
        to: Where to.
        length: How long.
    """
    say("counting")
    progress_of("counting", 1, 2)
    return Counted(locals())


def given(*args, **named):
    return count(*args, **named, quiet=True).given


def test_arguments_are_converted_to_their_types():
    values = given("m", "a.jpg", Path("b.jpg"), times=[2, 3], to="x.csv", length="3epochs")
    assert values["images"] == ("a.jpg", "b.jpg") and values["times"] == (2, 3)
    assert values["to"] == Path("x.csv") and values["length"] == Span(3, "epochs")
    assert given("m", ["a.jpg", "b.jpg"])["images"] == ("a.jpg", "b.jpg")
    assert given("m", times=2)["times"] == (2,)
    assert given("m", length=3)["length"] == Span(3, "steps")
    assert given("m", length=Span(3, "epochs"))["length"] == Span(3, "epochs")
    assert given("m", heads=3)["group"] == {"heads": 3}
    assert given("a.jpg", model="m", images=["b.jpg"])["images"] == ("a.jpg", ["b.jpg"])
    assert given("m", images=["a.jpg", "b.jpg"])["images"] == ("a.jpg", "b.jpg")
    image = np.zeros((2, 2))
    assert given("m", image)["images"][0] is image


def test_numbers_of_numpy_are_numbers():
    values = given("m", times=np.int64(2), crop=np.float32(0.5))
    assert type(values["times"][0]) is int and type(values["group"]["crop"]) is float


def test_a_result_that_made_a_model_stands_for_it():
    class Made(ModelResult):
        made = "runs/a"

        def shown(self):
            yield "made"

    assert given(Made(), Made())["model"] == "runs/a"
    assert given("m", Made())["images"] == ("runs/a",)


@pytest.mark.parametrize(
    ("words", "values", "sentence"),
    [
        (("m",), {"time": 1}, "has no setting 'time'; did you mean times"),
        (("m",), {"head": 3}, "has no setting 'head'; did you mean heads"),
        ((), {}, "needs model"),
        ((None,), {}, "needs model, which is None"),
        (("m",), {"progress": True}, "progress is True"),
        (("m",), {"times": "3"}, "times is '3'; it takes a whole number"),
        (("m",), {"heads": 2.5}, "heads is 2.5; it takes a whole number or None"),
        (("m",), {"heads": True}, "heads is True; it takes a whole number"),
        (("m",), {"length": 0.5}, "length is 0.5; it takes a duration .such as"),
    ],
)
def test_what_is_no_argument_is_a_sentence(words, values, sentence):
    with pytest.raises(TypeError, match=sentence):
        count(*words, **values)


@pytest.mark.parametrize(
    ("path", "what"),
    [
        ("x" * 300, "is longer"),
        ("a\0b", "contains a character"),
        ("\ud800", "contains a character"),
    ],
)
def test_a_path_that_no_file_can_have_is_a_sentence(path, what):
    """Wherever a function takes a path, or a name that may be one."""
    network = vitkit.create("mu/8", image=16, classes=2)
    classifier = vitkit.Classifier(network, vitkit.Preprocessing(size=(16, 16)), ("a", "b"))
    calls = [
        lambda: count("m", to=path),
        lambda: vitkit.load(path),
        lambda: vitkit.save(classifier, path),
        lambda: vitkit.stats(path),
        lambda: vitkit.evaluate(path, "digits"),
        lambda: vitkit.data.open_source(path),
        lambda: vitkit.train("scratch", "digits", workdir=path),
    ]
    for call in calls:
        with pytest.raises(
            VitkitError, match=f", which {what}[^\n]*; give another name$"
        ) as raised:
            call()
        assert len(str(raised.value)) < 400


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: vitkit.load(""), "at '', which is empty; give another name"),
        (lambda: vitkit.predict("", "a.jpg"), "vitkit.predict needs model, which is empty"),
        (lambda: vitkit.evaluate("m", ""), "vitkit.evaluate needs data, which is empty"),
        (lambda: vitkit.stats(""), "vitkit.stats needs source, which is empty"),
        (lambda: vitkit.sort("m", "a.jpg", into=""), "`into` is '', which is empty"),
        (lambda: vitkit.predict("m", "a.jpg", to=""), "`to` is '', which is empty"),
        (lambda: vitkit.data.open_source(""), "the data set is '', which is empty"),
    ],
)
def test_an_empty_name_is_not_the_folder_of_the_program(call, sentence):
    with pytest.raises((BadSettings, BadData, BadWeights), match=sentence):
        call()


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (
            lambda: vitkit.predict("m", "a.jpg", top=0),
            "`top` is 0; it is a number of classes, at least 1",
        ),
        (
            lambda: vitkit.predict("m", "a.jpg", limit=-2),
            "`limit` is -2; it is a number of images, or 0",
        ),
        (lambda: vitkit.sort("m", "a.jpg", into="x", limit=-2), "`limit` is -2"),
        (lambda: vitkit.segment("m", "a.jpg", limit=-2), "`limit` is -2"),
        (lambda: vitkit.watch("m", ".", limit=-2), "`limit` is -2"),
        (lambda: vitkit.compare("m", "n", "a.jpg", limit=-2), "`limit` is -2"),
        (lambda: vitkit.evaluate("m", "digits", limit=-2), "`limit` is -2"),
    ],
)
def test_a_number_that_is_too_small_is_named_alone(call, sentence):
    with pytest.raises(BadSettings, match=sentence):
        call()


IMAGES_AND_LABELS = [(np.zeros((8, 8, 3), np.uint8), i % 2) for i in range(40)]


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (vitkit.data.from_dataset(IMAGES_AND_LABELS), "of type Source"),
        (IMAGES_AND_LABELS, "a list of 40 values"),
        (np.zeros((40, 8, 8, 3)), "of type ndarray"),
        (vitkit.Preprocessing(size=(16, 16)), "of type Preprocessing"),
    ],
)
def test_an_object_of_the_program_that_is_no_name_is_refused_by_its_type(value, kind):
    """Before anything is loaded: there is no model "m"."""
    of_data = [
        lambda: vitkit.evaluate("m", value),
        lambda: vitkit.probe("m", value),
        lambda: vitkit.features("m", value, output="x.npz"),
        lambda: vitkit.export("m", "x.onnx", data=value),
        lambda: vitkit.finetune("m", value),
        lambda: vitkit.train("scratch", value),
        lambda: vitkit.stats(value),
    ]
    for call in of_data:
        with pytest.raises(
            WrongArgument, match=rf" is {kind}; it takes the path.*file.py:function"
        ):
            call()
    others = [
        lambda: vitkit.predict("m", "a.jpg", top=value),
        lambda: vitkit.predict("m", "a.jpg", to=value),
        lambda: vitkit.predict("m", "a.jpg", crop=value),
        lambda: vitkit.train(value, "digits"),
        lambda: vitkit.train("scratch", "digits", optim__lr=value),
        lambda: vitkit.finetune(value),
        lambda: vitkit.data.open_source(value),
    ]
    for call in others:
        with pytest.raises(BadSettings, match=f" is {kind}[;,]"):
            call()


def test_a_callback_is_for_functions_that_train():
    with pytest.raises(vitkit.WrongArgument, match="doctor has no setting 'track'"):
        vitkit.doctor(track=print)


def test_too_many_positions():
    with pytest.raises(TypeError, match="takes nothing by position; the other settings by name"):
        vitkit.doctor("photos/")


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"order": "by_name"}, "order is 'by_name'; it is one of as-given, by-name"),
        ({"sides": ("1", "2")}, "sides is '1'; it is one of 1, 2"),
    ],
)
def test_a_choice_that_there_is_none_of(values, sentence):
    with pytest.raises(vitkit.BadSettings, match=sentence):
        count("m", **values)


def test_a_result_is_text_html_and_a_table():
    pytest.importorskip("pandas")
    counted = count("m", "a.jpg", quiet=True)
    assert "a.jpg" in str(counted) and str(counted).endswith("counted [all] of them")
    assert "a.jpg" in counted._repr_html_() and "<pre" in counted._repr_html_()
    assert counted.to_frame()["times"].tolist() == [1]


def test_messages_go_to_whoever_listens(capsys):
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


def test_the_next_step_is_a_call_in_a_program_and_a_command_in_a_terminal():
    def next_steps():
        return (
            step("predict", "runs/a", IMAGES, to="answers.csv"),
            step("evaluate", Path("a b/ü"), DATA, named=DATA),
            step("review", "photos", "runs/a"),
            step("teach", object(), undo=True),
            step("list_models", published=True),
            step("evaluate", "runs/a", DATA, on_bad_image="skip"),
        )

    assert next_steps() == (
        "vitkit.predict('runs/a', images, to='answers.csv')",
        "vitkit.evaluate('a b/ü', data, named=data)",
        "vitkit.review('photos', 'runs/a')",
        "vitkit.teach(model, undo=True)",
        "vitkit.list_models(published=True)",
        "vitkit.evaluate('runs/a', data, on_bad_image='skip')",
    )
    with steps_as(as_command):
        assert next_steps() == (
            "vitkit predict runs/a IMAGE... --to answers.csv",
            "vitkit evaluate 'a b/ü' DATA --as DATA",
            "vitkit data review photos runs/a",
            "vitkit teach MODEL --undo",
            "vitkit models --published",
            "vitkit evaluate runs/a DATA --on-bad-image skip",
        )


def test_random_numbers_of_the_program_go_on():
    @public
    def drawing(**messages: Unpack[Messages]) -> None:
        random.seed(3)
        np.random.seed(3)
        torch.manual_seed(3)

    def drawn():
        return random.random(), np.random.random(), torch.rand(1).item()

    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    expected = drawn()
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])
    drawing()
    assert drawn() == expected


def test_what_must_be_alone_waits(capsys):
    order = []

    @public
    @alone
    def slow(model: str, **messages: Unpack[Messages]) -> None:
        order.append(model)
        time.sleep(0.2)
        order.append(model)

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(slow, ["a", "b"]))
    assert order in (list("aabb"), list("bbaa"))
    assert "waiting for it to end" in capsys.readouterr().err


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_a_command_is_a_plain_function(command):
    """With one description: its signature, and a text for each parameter in its docstring."""
    function = getattr(vitkit, command.function)
    assert function is command.load_function() and inspect.isfunction(function)
    assert inspect.signature(function).return_annotation is not inspect.Signature.empty
    untold = [each.name for each in parameters(function) if not each.help]
    assert set(untold) <= {"recipe"}  # stands for the settings of a recipe
    assert pickle.loads(pickle.dumps(function)) is function
    if command.name == "finetune":  # its settings follow from a model
        return
    values = dict.fromkeys(required(function), "digits")
    with pytest.raises(TypeError, match="has no setting 'no_such_setting'"):
        function(**values, no_such_setting=1, quiet=True)


def required(function):
    for name, each in inspect.signature(function).parameters.items():
        if each.default is each.empty and each.kind in (
            each.POSITIONAL_OR_KEYWORD,
            each.KEYWORD_ONLY,
        ):
            yield name


def test_a_program_is_told_every_step_of_a_run(tmp_path):
    told = []
    vitkit.train(
        "digits", length="3steps", batch=16, workdir=tmp_path / "run", device="cpu",
        data__workers=0, model__width=24, model__depth=1, model__mlp=48, model__heads=2,
        progress=told.append,
    )  # fmt: skip
    steps = [each for each in told if isinstance(each, Progress) and each.stage == "training"]
    assert [(each.done, each.total) for each in steps] == [(1, 3), (2, 3), (3, 3)]


@dataclass(frozen=True)
class Part:
    """A part whose fields must go together."""

    width: int = 6
    heads: int = 3

    def __post_init__(self):
        if self.width % self.heads:
            raise vitkit.BadSettings(f"{self.width} is not divisible by {self.heads}")


@dataclass(frozen=True)
class Whole:
    """A value with a part."""

    part: Part = Part()
    least: int = 0
    most: int = 5

    def __post_init__(self):
        if self.least > self.most:
            raise vitkit.BadSettings(f"{self.least} is more than {self.most}")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"part__width": 8, "part__heads": 4}, Whole(Part(8, 4))),
        ({"part.width": 8, "least": 7, "part.heads": 4, "most": 9}, Whole(Part(8, 4), 7, 9)),
        ({"part__heads": 5, "part": Part(10, 2)}, Whole(Part(10, 5))),
    ],
)
def test_the_order_of_settings_does_not_matter(settings, expected):
    for items in (list(settings.items()), list(settings.items())[::-1]):
        assert override_all("train", Whole(), dict(items)) == expected


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"part__width": 8}, "8 is not divisible by 3"),
        ({"part__widht": 8}, "vitkit.train has no setting 'part__widht'; did you mean part__width"),
        ({"most__width": 8}, "vitkit.train has no setting 'most__width'"),
        ({"part__width": "8"}, "part__width is '8'; it takes a whole number"),
    ],
)
def test_wrong_settings_of_a_part_are_refused(settings, sentence):
    with pytest.raises(vitkit.BadSettings, match=sentence):
        override_all("train", Whole(), settings)
