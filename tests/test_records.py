"""Records that commands read again, with each value changed to one of another type: a stranger may have
written them. What reads them ends in a sentence, or leaves the value out; never in a traceback."""

import contextlib
import copy
import io
import json
import math
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from fuzzing.attempt import attempts
from pictures import encoded
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import vitkit
from vitkit.apps.label.answers import JOURNAL, Answer, Journal
from vitkit.apps.label.session import LabelSession
from vitkit.cli.entry import main
from vitkit.data import Preprocessing
from vitkit.evaluation.probes import teaching
from vitkit.models import create, vit
from vitkit.system.storage.records import record_of
from vitkit.training import report as write_report
from vitkit.training.state.checkpoints import read_sealed, write_sealed
from vitkit.weights import Classifier, save
from vitkit.weights.origins import checked_origin

OTHERS = (None, "abc", 7, [1], {"a": 1}, 10**30, -1, math.nan, True, [[]], "", 0.5)
SOME = 16  # changes of a record that a quick test tries
FEW = {"quick plan": 6}  # after each of which a model is fine-tuned


# The values of records, and ways to change them


def places(values: Any, path: tuple = ()) -> Iterator[tuple]:
    """Where the values of a record are: the first three of each list."""
    if isinstance(values, dict):
        items = list(values.items())[:100]
    elif isinstance(values, list):
        items = list(enumerate(values))[:3]
    else:
        return
    for name, value in items:
        yield (*path, name)
        yield from places(value, (*path, name))


def changed(values: Any, path: tuple, other: Any) -> Any:
    values = copy.deepcopy(values)
    inner = values
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = other
    return values


def changes(values: Any) -> list[tuple[tuple, Any]]:
    """Every place with every other value, and without it."""
    return [(path, other) for path in places(values) for other in OTHERS]


class Opened(NamedTuple):
    """A record: its values, and how others are written in their place."""

    values: Any
    write: Callable[[Any], None]


def as_json(path: Path) -> Opened:
    return Opened(json.loads(path.read_text()), lambda values: path.write_text(json.dumps(values)))


def as_lines(path: Path) -> Opened:
    values = [json.loads(line) for line in path.read_text().splitlines()]
    return Opened(
        values, lambda lines: path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    )


def as_sealed(path: Path) -> Opened:
    """Whose checksum a stranger writes anew."""
    return Opened(read_sealed(path), lambda values: write_sealed(path, values))


def as_memory(path: Path) -> Opened:
    with safe_open(path, "np") as opened:
        values = json.loads(opened.metadata()["taught"])
    x = load_file(path)["features"]

    def write(values: Any) -> None:
        text = json.dumps(values)
        metadata = {"taught": text, "checksum": teaching._checksum(text, x)}
        save_file({"features": x}, path, metadata)

    return Opened(values, write)


def as_exported(path: Path) -> Opened:
    """The metadata of an ONNX file."""
    onnx = pytest.importorskip("onnx")
    model = onnx.load(path)
    (entry,) = [each for each in model.metadata_props if each.key == "vitkit"]

    def write(values: Any) -> None:
        entry.value = json.dumps(values)
        onnx.save(model, path)

    return Opened(json.loads(entry.value), write)


# What makes and reads them


def quietly(action: Callable[[], Any]) -> None:
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        action()


def photographs(folder: Path) -> Path:
    for number, colour in enumerate(("blue", "red")):
        (folder / "photos" / colour).mkdir(parents=True)
        for i in range(12):
            pixels = np.full((16, 16, 3), 40, np.uint8)
            pixels[..., 2 * number] = 255
            pixels[i, 3] = 200
            (folder / "photos" / colour / f"{i:02}.png").write_bytes(encoded(pixels, "PNG"))
    return folder / "photos"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with photographs, a model, runs, a taught model and others."""
    folder = tmp_path_factory.mktemp("made")
    photographs(folder)
    network = create(vit("mu/8", image=(16, 16), depth=1, classes=2), seed=0)
    torch.nn.init.normal_(network.head.weight, std=0.1)
    save(Classifier(network, Preprocessing(size=(16, 16)), ("blue", "red")), folder / "start")
    train = (
        "train scratch photos --workdir run --length 4 --model.image 16 16 "
        "--data.preprocessing.size 16 16 --model.patch 8 --batch 4 --model.width 8 --model.depth 1 "
        "--model.mlp 8 --model.heads 1 --device cpu --data.workers 0 --keep 2 --save-every 2"
    ).split()
    with contextlib.chdir(folder):
        assert main(train) == 0
        quietly(lambda: vitkit.finetune("start", "photos", minutes=0.001, device="cpu"))
        quietly(lambda: vitkit.teach("start", "taught", add=("photos",), device="cpu"))
        for words in (
            "probe start photos --to head --device cpu",
            "data pack photos packed --workers 0",
            "batch start photos --into parts --device cpu",
            "export start -o start.onnx",
        ):
            assert main(words.split()) == 0
        journal_of(folder)
        shutil.copytree("run", "stopped")
        shutil.rmtree("stopped/model")
        Path("stopped/finished.json").unlink()
    folder.joinpath("train.txt").write_text("\n".join(train))
    return folder


def journal_of(folder: Path) -> None:
    (folder / "labels").mkdir()
    journal = Journal(folder / "labels")
    answers = [
        Answer(1, "a", "typed", "class", "blue", ("blue/00.png",)),
        Answer(2, "a", "random", "class", "red", ("red/00.png",), (), "", "blue", 0.7, 5),
        Answer(3, "a", "screen", "class", "red", ("red/01.png",), ("blue/01.png",)),
        Answer(4, "a", "typed", "rename", "crimson", renamed="red"),
        Answer(5, "b", "typed", "leave out", "", ("red/02.png",)),
    ]
    for answer in answers:
        journal.add(answer)
    journal.take_back("b")


def run(*words: str) -> Callable[[], None]:
    """What a command does; its errors are raised."""

    def act() -> None:
        said = io.StringIO()
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            status = main(list(words))
        assert "Traceback" not in said.getvalue()
        assert status in (0, 1, 2, 3), said.getvalue()

    return act


def sit() -> None:
    """Open a session, ask, answer, and look how far it is."""
    shutil.copytree("labels", "copied", dirs_exist_ok=True)
    names = [f"{colour}/{i:02}.png" for colour in ("blue", "red") for i in range(12)]
    session = LabelSession(names, Path("copied"))
    session.see(names, np.random.default_rng(0).normal(size=(len(names), 8)).astype(np.float32))
    question = session.ask("a")
    assert all(name in names for name in question.photographs)
    session.progress()
    session.differences()
    session.head()
    session.undo("a")
    session.classes()
    for name, label in session.labels().items():
        assert len(name) > 1 and len(label) > 1, (name, label)  # no letters of a text


def reported(folder: str) -> Callable[[], None]:
    """The page of a run, without the figures of its model, which take seconds."""
    return lambda: write_report(folder)


def continued() -> None:
    words = Path("train.txt").read_text().splitlines()
    words[words.index("run")] = "again"
    shutil.rmtree("again", ignore_errors=True)
    shutil.copytree("stopped", "again")
    run(*words)()


RECORDS = {
    "journal": ("labels/" + JOURNAL, as_lines, sit),
    "origin": ("head/config.json", as_json, run("evaluate", "head", "photos", "--device", "cpu")),
    "origin shown": ("head/config.json", as_json, run("show", "head", "--json")),
    "memory": ("taught/taught.safetensors", as_memory, run("teach", "taught", "--device", "cpu")),
    "exported": ("start.onnx", as_exported, run("predict", "start.onnx", "photos/red/00.png")),
    "begun": ("run/begun.json", as_json, reported("run")),
    "data": ("run/data.json", as_json, reported("run")),
    "metrics": ("run/metrics.jsonl", as_lines, reported("run")),
    "recipe": ("run/recipe.json", as_json, reported("run")),
    "quick begun": ("runs/photos/begun.json", as_json, run("report", "runs/photos")),
    "quick data": ("runs/photos/data.json", as_json, run("report", "runs/photos")),
    "quick plan": (
        "runs/photos/plan.json",
        as_json,
        run("finetune", "start", "photos", "--minutes", "0.001", "--device", "cpu"),
    ),
    "compared": ("run/data.json", as_json, run("report", "run", "runs/photos")),
    "machine": ("run/machine.json", as_json, reported("run")),
    "checkpoint": ("stopped/checkpoints/step-00000004/state.json", as_sealed, continued),
    "parts": (
        "parts/_answers.json",
        as_json,
        run("batch", "start", "photos", "--into", "parts", "--device", "cpu"),
    ),
    "packed": (
        "packed/pack.json",
        as_json,
        run("data", "pack", "photos", "packed", "--workers", "0"),
    ),
}


def tried(name: str, folder: Path, count: int | None) -> list[str]:
    """What came of the changes of a record: those that ended as they must not. count: how many."""
    file, opener, act = RECORDS[name]
    path = folder / file
    before = path.read_bytes()
    opened = opener(path)
    chosen = changes(opened.values)
    if count is not None and count < len(chosen):
        chosen = random.Random(0).sample(chosen, count)
    wrong = []

    def try_one(number: int) -> None:
        place, other = chosen[number]
        opened.write(changed(opened.values, place, other))
        act()

    with contextlib.chdir(folder):
        try:
            for number, outcome in attempts(try_one, range(len(chosen))):
                if not outcome.right:
                    wrong.append(f"{chosen[number]}: {outcome}")
        finally:
            path.write_bytes(before)
    return wrong


@pytest.mark.slow
@pytest.mark.parametrize("name", RECORDS)
def test_a_record_with_a_value_of_another_type_is_a_sentence(name, made):
    assert not tried(name, made, FEW.get(name, SOME))


def test_an_origin_is_left_out_where_it_is_not_as_written():
    right = {"data": "photos", "split_seed": 3, "learned": ["a"], "objective": {"heads": 2}, "x": 1}
    assert checked_origin(right) == (right, ())
    kept, notes = checked_origin({"data": 3, "split_seed": "0", "learned": "abc", "init": "start"})
    assert kept == {"init": "start"}
    assert notes[0] == "'data' of its origin is 3, which is invalid, and left out"
    assert len(notes) == 3


def test_what_earlier_versions_of_the_estimator_wrote_is_no_damage():
    begun = {"format": "timm", "file": "vit.safetensors"}
    assert checked_origin({"init": begun}) == ({"init": "vit.safetensors"}, ())
    assert checked_origin({"init": {"init": begun}}) == ({"init": ""}, ())


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"others": "abc"}, "others is 'abc', which is not what was written"),
        ({"photographs": [1]}, "photographs is 1"),
        ({"number": True}, "number is True"),
        ({"sure": math.nan}, "sure is nan"),
        ({"decision": "perhaps"}, "decision is 'perhaps'"),
        ({"number": -1}, "it lacks a number above 0"),
        ({"label": ""}, "it lacks a class"),
        ({"photographs": [], "others": []}, "it lacks a photograph"),
        ({"more": 1}, "'more' is no part of it"),
    ],
)
def test_a_journal_is_read_strictly(values, sentence, tmp_path):
    answer = {"number": 1, "by": "a", "how": "typed", "decision": "class", "label": "cat"}
    answer |= {"photographs": ["1.jpg"]}
    assert record_of(Answer, answer).photographs == ("1.jpg",)
    (tmp_path / JOURNAL).write_text(json.dumps(answer | values) + "\n")
    with pytest.raises(ValueError, match="line 1 is not an answer") as raised:
        Journal(tmp_path)
    assert sentence in str(raised.value)


@pytest.mark.slow
def test_a_run_of_steps_that_says_how_long_it_took_has_a_page(made):
    """As a quick run's begun.json has it."""
    with contextlib.chdir(made):
        shutil.copytree("run", "solved")
        begun = json.loads(Path("solved/begun.json").read_text())
        Path("solved/begun.json").write_text(json.dumps(begun | {"seconds": 3.0}))
        assert " in 0:03" in write_report("solved").read_text()


@pytest.mark.slow
def test_the_right_values_are_read(made):
    with contextlib.chdir(made):
        for file, _, act in RECORDS.values():
            assert Path(file).is_file(), file
            act()
