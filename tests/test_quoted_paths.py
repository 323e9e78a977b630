"""A folder whose name has a blank, an apostrophe, brackets and an umlaut, through every function that takes a
model: a path stays one, and where a command is printed it can be pasted."""

import html
import re
import shlex
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from pictures import make_photographs
from quick_ones import quick_ones

import vitkit
from vitkit.apps.serve.functions import app, serve
from vitkit.cli.entry import main
from vitkit.data import Preprocessing
from vitkit.models import create, vit
from vitkit.weights import Classifier, load, save

HERE = "a b/ü's (1)"
MODEL = f"{HERE}/model"
PHOTOS = f"{HERE}/photos"
RUN = f"{HERE}/run"
QUOTE = """'"'"'"""  # an apostrophe within a word of a command


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """A folder with a model and photographs; the working folder is two above it."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / HERE
    make_photographs(folder)
    network = create(vit("mu/16", image=(32, 32), depth=2, classes=2), seed=0)
    torch.nn.init.normal_(network.head.weight)
    return save(
        Classifier(network, Preprocessing(size=(32, 32)), ("blue", "red")), folder / "model"
    )


def typed(line: str) -> list[str]:
    """A line's words, with the paths that its capitals stand for: HERE, MODEL, PHOTOS, RUN."""
    names = {"HERE": HERE, "MODEL": MODEL, "PHOTOS": PHOTOS, "RUN": RUN}
    return [
        re.sub("^(MODEL|PHOTOS|RUN|HERE)", lambda match: names[match[1]], word)
        for word in line.split()
    ]


TRAIN = (
    "train scratch PHOTOS --workdir RUN --length 2 --model.image 32 32 --data.preprocessing.size 32 32 "
    "--model.patch 16 --batch 4 --model.width 8 --model.depth 1 --model.mlp 8 --model.heads 1 "
    "--device cpu --data.workers 0"
)
FINETUNE = "finetune MODEL PHOTOS --workdir RUN --minutes 0.001 --device cpu"
COMMANDS = {
    "train": (
        TRAIN,
        "report RUN",
        "predict RUN PHOTOS",
        "doctor --run RUN --model MODEL --data PHOTOS",
    ),
    "init": (
        f"{TRAIN} --init MODEL --model.depth 2 --model.width 32 --model.mlp 128 --model.heads 2",
    ),
    "finetune": (
        FINETUNE,
        FINETUNE,
        "evaluate RUN PHOTOS",
        "predict RUN PHOTOS",
        "compare RUN RUN --output HERE/both.html",
        "export RUN -o HERE/run.onnx --data PHOTOS",
        "predict HERE/run.onnx PHOTOS/red/0.jpg",
        "bench HERE/run.onnx --seconds 0.01 --batch 1",
        "faster RUN --lose 50 -o HERE/fast",
    ),
    "teach": (
        "teach MODEL HERE/taught --add PHOTOS --device cpu",
        "teach HERE/taught --remove PHOTOS/red/1.jpg --device cpu",
        "teach HERE/taught --undo --device cpu",
        "teach HERE/taught HERE/taught-2 --remove PHOTOS/red/0.jpg --device cpu",
        "teach HERE/taught-2 --device cpu",
    ),
    "predict": (
        "predict MODEL PHOTOS",
        "predict MODEL PHOTOS --to HERE/rows.csv --attention HERE/looks --sheet HERE/sheet.png",
        "predict MODEL PHOTOS --json",
    ),
    "sort": ("sort MODEL PHOTOS --into HERE/sorted",),
    "watch": ("watch MODEL PHOTOS --limit 2",),
    "batch": ("batch MODEL PHOTOS --into HERE/parts",),
    "evaluate": (
        "evaluate MODEL PHOTOS --report HERE/report.html HERE/report.json",
        "evaluate MODEL PHOTOS --against MODEL",
        "evaluate MODEL PHOTOS --evals accuracy",
    ),
    "fewshot": ("fewshot MODEL PHOTOS --shots 1",),
    "probe": (
        "probe MODEL PHOTOS --to HERE/head",
        "evaluate HERE/head PHOTOS --calibrate HERE/calibrated",
        "teach HERE/head",
    ),
    "features": ("features MODEL PHOTOS -o HERE/features.npz",),
    "inspect": (
        "inspect MODEL PHOTOS/red --figures rollout --arrays",
        "inspect MODEL --figures filters",
    ),
    "show": ("show MODEL --draw HERE/model.svg", "show MODEL --json"),
    "compare": ("compare MODEL MODEL PHOTOS",),
    "convert": ("convert MODEL HERE/timm --to timm", "predict HERE/timm PHOTOS/red/0.jpg"),
    "bench": ("bench MODEL --seconds 0.01 --batch 1 --runtimes torch --precisions float32",),
    "review": ("data review PHOTOS MODEL --output HERE/review.html --exclude HERE/list.txt",),
    "suite": ("suite HERE/own.toml MODEL --data HERE/tasks --workdir HERE/suite",),
}
QUICK_ONES = ("sort", "features", "compare")


def check_printed(said: str) -> None:
    """Raises AssertionError unless a quoted path is a word of a command, once quoted, and a command has no
    path that is not quoted."""
    assert shlex.quote(shlex.quote(HERE))[:6] not in said  # quoted twice
    for line in said.splitlines():
        if QUOTE in line:
            assert re.search(
                r"(vitkit|open|look (at|through)|tensorboard|python -c) .*'.*a b/", line
            ), line
        for command in re.findall(
            r"(?:vitkit [a-z]+|next: open|next: look through|next: look at) [^:;]*", line
        ):
            assert "a b/" not in command or "'a b/" in command, line


@pytest.mark.parametrize("name", quick_ones(COMMANDS, QUICK_ONES))
def test_a_path_to_quote(name, tmp_path, capfd, monkeypatch):
    monkeypatch.setattr("vitkit.exporting.speed.measuring.STARTS", 1)
    if name == "suite":
        Path(HERE, "own.toml").write_text("[tasks.photos]\n")
        for part in ("train", "test"):
            shutil.copytree(PHOTOS, f"{HERE}/tasks/photos/{part}")
    for line in COMMANDS[name]:
        status = main(typed(line))
        said = "".join(capfd.readouterr())
        assert status == 0, f"{line!r}: {said}"
        check_printed(said)
    for path in Path(HERE).rglob("*.*"):
        if path.suffix in (".json", ".html", ".csv", ".md"):
            check_printed(html.unescape(path.read_text().replace('\\"', '"')))
    strangers = {path.name for path in tmp_path.iterdir()} - {"a b", "inspected"}
    assert not strangers
    if name == "inspect":
        assert Path("inspected/model/inspect.html").exists()


@pytest.mark.parametrize("written, key", [
    (lambda: vitkit.teach(MODEL, f"{HERE}/taught", add=[PHOTOS], device="cpu").path, "init"),
    (lambda: vitkit.probe(MODEL, PHOTOS, to=f"{HERE}/head", device="cpu").path, "init"),
])  # fmt: skip
def test_a_record_of_it_is_a_path(written, key):
    assert load(written(), quiet=True).origin[key] == MODEL


@pytest.mark.slow
def test_what_was_taught_is_remembered(place):
    """A second lesson of a model in such a folder, into another one, forgot the classes of the first."""
    vitkit.teach(MODEL, f"{HERE}/one", add=[f"{PHOTOS}/red", f"{PHOTOS}/blue"], device="cpu")
    moved = f"{PHOTOS}/red/0.jpg"
    two = f"{HERE}/two"
    lesson = vitkit.teach(f"{HERE}/one", two, remove=[moved], add=[f"green={moved}"], device="cpu")
    assert lesson.memory.classes == ("red", "blue", "green")
    again = vitkit.teach(f"{HERE}/two", device="cpu")
    assert again.memory.classes == ("red", "blue", "green")
    with pytest.raises(ValueError, match="two is taught already, and so is a b/ü's"):
        vitkit.teach(f"{HERE}/one", f"{HERE}/two", add=[PHOTOS], device="cpu")
    with pytest.raises(ValueError) as refused:
        vitkit.teach(MODEL, add=[PHOTOS], device="cpu")
    check_printed(str(refused.value))


def test_a_page_and_a_server_are_called_by_its_end(monkeypatch):
    names = []
    monkeypatch.setattr(app, "serve_page", lambda services, *_: "")
    monkeypatch.setattr(
        app, "_page", lambda services: names.extend(each.answering.served.name for each in services)
    )
    vitkit.app(f"{HERE}/model", f"{HERE}/model", device="cpu")
    assert names == ["model", "model"]
    monkeypatch.setattr(serve, "prepare_process", lambda: None)
    monkeypatch.setattr(serve, "Server", lambda plan, *_: _Server(plan.name, names))
    vitkit.serve(f"{HERE}/ü's", port=0)
    assert names[2:] == ["ü's"]


class _Server(NamedTuple):
    name: str
    names: list[str]

    def run(self):
        self.names.append(self.name)
