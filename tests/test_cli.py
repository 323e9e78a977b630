"""The command line as its user types it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

import vitkit
from vitkit.cli import main
from vitkit.commands import COMMANDS

PATHS = os.environ | {"PYTHONPATH": str(Path(vitkit.__file__).parents[1])}


def say(capsys, *words) -> tuple[int, str, str]:
    try:
        status = main(list(map(str, words)))
    except SystemExit as left:  # the parser's own way out: help, or a wrong command line
        status = left.code
    shown = capsys.readouterr()
    return status, shown.out, shown.err


QUICK = (
    "--length 8 --batch 16 --optim.warmup 2 --log-every 4 --model.width 24 --model.depth 1 --model.mlp 48 --model.heads 2 "
    "--device cpu"
).split()


SIZES = "--data.preprocessing.resize 32 --data.preprocessing.size 32 32 --model.image 32 32 --model.patch 8".split()


def test_the_whole_way_of_a_folder(photographs, tmp_path, capsys, monkeypatch):
    run = tmp_path / "run"
    train = ("train", "scratch", "--data.source", photographs, "--workdir", run, *QUICK, *SIZES)
    status, out, _ = say(capsys, *train)
    assert status == 0
    assert "8 of 40 images, 20% of every class, were set aside" in out
    assert "32 training images, 8 test, 2 classes, 32 x 32" in out
    assert f"next: vitkit evaluate {run}" in out
    assert (run / "report.html").read_text().count("data:image/png;base64,") == 1

    status, out, _ = say(capsys, "evaluate", run, photographs, "--json", "--device", "cpu")
    assert status == 0
    metrics = json.loads(out)
    assert metrics["seen"]["value"] == 8  # not the 32 that it was trained on
    recorded = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()][-1]
    assert metrics["top1"] == recorded["metrics"]["test/top1"]

    other = f"{photographs.parent}/./{photographs.name}/"  # the same folder, spelt otherwise
    assert (
        json.loads(say(capsys, "evaluate", run, other, "--json", "--device", "cpu")[1]) == metrics
    )
    monkeypatch.setenv("COLUMNS", "400")  # a name is not folded
    (photographs / "red" / "0.jpg").rename(photographs / "red" / "[bold]0.jpg")
    assert "[bold]0.jpg" in say(capsys, "predict", run, photographs / "red" / "[bold]0.jpg")[
        1
    ].replace("\n", "")
    (photographs / "red" / "[bold]0.jpg").rename(photographs / "red" / "0.jpg")

    status, out, _ = say(
        capsys, "predict", run, photographs / "red" / "0.jpg", photographs / "blue", "--json"
    )
    answers = [json.loads(line) for line in out.splitlines()]
    assert status == 0
    assert len(answers) == 21
    assert set(answers[0]["labels"]) == {"red", "blue"}
    assert sum(answers[0]["probabilities"]) == pytest.approx(1, abs=1e-5)

    status, out, _ = say(capsys, *train)
    assert status == 0
    assert "this run is finished after 8 steps" in out


def test_without_labels_then_with_them(photographs, tmp_path, capsys):
    """Masked patches, seen in the report, and a model that every command takes for one without a head."""
    first, small = (
        tmp_path / "masked",
        ["--data.preprocessing.size", "32", "32", "--model.image", "32", "32"],
    )
    words = (
        "train",
        "paper.masked_patches",
        "--data.source",
        photographs,
        "--workdir",
        first,
        *QUICK,
        *small,
    )
    words += ("--data.preprocessing.resize", 36, "--micro-batch", 8, "--precision", "float32")
    status, out, _ = say(capsys, *words)
    assert status == 0 and f"next: vitkit finetune {first} DATA" in out and "test/baseline" in out
    page = (first / "report.html").read_text()
    assert "What it sees, and makes of it" in page and page.count("data:image/png;base64,") == 2
    status, _, err = say(capsys, "predict", first, photographs)
    assert status == 1 and "no classification head" in err
    second = tmp_path / "tuned"
    words = (
        "finetune",
        first,
        photographs,
        "--workdir",
        second,
        "--length",
        4,
        "--optim.warmup",
        1,
        "--device",
        "cpu",
    )
    assert say(capsys, *words)[0] == 0
    status, out, _ = say(capsys, "evaluate", second, photographs, "--json", "--device", "cpu")
    assert status == 0 and json.loads(out)["seen"]["value"] == 8


def test_a_broken_image_stops_a_run_before_it_starts_or_is_listed(photographs, tmp_path, capsys):
    broken = photographs / "red" / "3.jpg"
    broken.write_bytes(broken.read_bytes()[:400])
    train = (
        "train",
        "scratch",
        "--data.source",
        photographs,
        "--workdir",
        tmp_path / "run",
        *QUICK,
        *SIZES,
    )
    status, _, err = say(capsys, *train)
    assert status == 1
    assert "1 broken image in" in err and "red/3.jpg" in err and "--data.on-bad-image skip" in err
    status, out, _ = say(capsys, *train, "--data.on-bad-image", "skip")
    assert status == 0
    assert "left out: " in out and "red/3.jpg" in out
    skipped = json.loads((tmp_path / "run" / "data.json").read_text())["skipped"]
    assert sum(map(len, skipped.values())) == 1
    assert "red/3.jpg" in (tmp_path / "run" / "report.html").read_text()

    status, _, err = say(capsys, "evaluate", tmp_path / "run", photographs, "--split", "train")
    assert status == 1
    assert "red/3.jpg" in err
    status, out, err = say(
        capsys,
        "evaluate",
        tmp_path / "run",
        photographs,
        "--split",
        "train",
        "--json",
        "--on-bad-image",
        "skip",
    )
    assert (status, json.loads(out)["seen"]["value"]) == (0, 31)
    assert "left out: " in err

    status, _, err = say(capsys, "predict", tmp_path / "run", broken, photographs / "red" / "4.jpg")
    assert status == 1
    assert "not classified: " in err and "red/3.jpg" in err


def test_a_run_that_could_not_begin_leaves_nothing_to_trust(photographs, tmp_path, capsys):
    train = (
        "train",
        "scratch",
        "--data.source",
        photographs,
        "--workdir",
        tmp_path / "run",
        *QUICK,
        *SIZES,
    )
    assert say(capsys, *train, "--optim.warmup", "99")[0] == 1
    assert say(capsys, *train, "--seed", "3")[0] == 0
    (photographs / "red" / "7.jpg").rename(photographs / "red" / "x.jpg")
    assert "has changed since this run began" in say(capsys, *train, "--seed", "3")[2]


def test_contact_sheet(photographs, tmp_path, capsys):
    say(capsys, "train", "digits", "--workdir", tmp_path / "run", *QUICK, "--model.heads", "2")
    status, out, _ = say(
        capsys,
        "predict",
        tmp_path / "run",
        "digits",
        "--limit",
        "12",
        "--sheet",
        tmp_path / "p.png",
    )
    assert status == 0
    assert f"wrote {tmp_path / 'p.png'}" in out
    with Image.open(tmp_path / "p.png") as picture:
        assert picture.width > 1000


def test_models_lists_every_name(capsys):
    from vitkit.models import NAMES

    status, out, _ = say(capsys, "models")
    assert status == 0
    for name in NAMES:
        assert name in out
    assert "86,567,656" in out and "17.56" in out
    assert "B/20" in say(capsys, "models", "B/20", "--image", "320")[1]


@pytest.mark.parametrize(
    ("words", "status", "sentence"),
    [
        (["tran"], 2, "no command 'tran'; did you mean 'train'?"),
        (["train", "dgits"], 1, "no recipe 'dgits'; did you mean digits?"),
        (["train", "digits", "--optm.lr", "1"], 2, "--optim.lr"),
        (["train", "digits", "--length", "soon"], 2, "'soon' is not a duration"),
        (["train", "scratch"], 1, "no images: say which with --data.source"),
        (["train", "nowhere.py:mine"], 1, "no file 'nowhere.py'"),
        (
            ["evaluate", "nowhere", "digits"],
            1,
            "there is nothing at nowhere, and it is no name of a model",
        ),
        (["train", "digits", "--model.pool", "none"], 1, "a label needs one: use another pool"),
        (["models", "B-16"], 1, "no model 'B-16'; did you mean 'B/16'?"),
        (["train", "digits", "--device", "abacus"], 1, "no device 'abacus' on this machine"),
    ],
)
def test_mistakes_are_one_sentence(words, status, sentence, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = say(capsys, *words)
    assert found[0] == status
    assert sentence in " ".join((found[1] + found[2]).split())
    assert "Traceback" not in found[1] + found[2]


@pytest.mark.parametrize("words", [[], ["--help"], ["train"], ["--version"]])
def test_help(words, capsys):
    status, out, _ = say(capsys, *words)
    assert "vitkit" in out
    assert status == (2 if words == ["train"] else 0)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_every_command_is_in_the_overview_and_explains_itself(command, capsys):
    overview = say(capsys, "--help")[1]
    assert f"  {command.name} {command.words}".rstrip() in overview
    assert len(command.summary.split()) >= 4 and command.summary in overview
    settings = command.load_settings()
    assert len(settings.__doc__.split()) >= 6
    status, out, _ = say(capsys, *command.name.split(), "--help")
    assert status == 0
    assert f"usage: vitkit {command.name}" in out


@pytest.mark.parametrize("command", ["train", "plan"])
def test_help_of_a_recipe_lists_every_setting_with_its_value(command, capsys):
    status, out, _ = say(capsys, command, "digits", "--help")
    assert status == 0
    assert f"usage: vitkit {command} digits" in out
    assert "--model.width" in out and "(default: 64)" in out


def test_help_of_finetune_names_what_follows_from_model_and_data(tmp_path, capsys):
    say(capsys, "train", "digits", "--workdir", tmp_path / "run", *QUICK)
    status, out, _ = say(capsys, "finetune", tmp_path / "run", "digits", "--help")
    assert status == 0
    assert "--model.width" in out and "(default: 24)" in out


def test_a_recipe_of_ones_own(tmp_path, capsys):
    mine = tmp_path / "mine.py"
    mine.write_text(
        "from dataclasses import replace\nfrom vitkit.recipes import recipe\n"
        "def smaller():\n    return replace(recipe('digits'), name='smaller')\nnothing = 3\n"
    )
    status, _, _ = say(capsys, "train", f"{mine}:smaller", "--workdir", tmp_path / "run", *QUICK)
    assert status == 0
    assert json.loads((tmp_path / "run" / "recipe.json").read_text())["name"] == "smaller"
    assert "has no function 'nothing'" in say(capsys, "train", f"{mine}:nothing")[2]


@pytest.mark.parametrize("words", [[], ["--help"], ["--version"], ["tran"], ["data", "stat"]])
def test_help_is_there_at_once(words):
    """Nothing but the standard library and the table is imported for it."""
    code = (
        f"import sys; from vitkit.cli import main; main({words}); "
        "names = {name.partition('.')[0] for name in sys.modules}; "
        "print(*names - sys.stdlib_module_names - {'__main__'})"
    )
    outcome = subprocess.run(
        [sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True, env=PATHS
    )
    assert "vitkit" in outcome.stdout + outcome.stderr
    assert outcome.stdout.splitlines()[-1] == "vitkit"


def test_python_m_vitkit():
    outcome = subprocess.run(
        [sys.executable, "-m", "vitkit"], capture_output=True, text=True, check=True
    )
    assert "usage: vitkit COMMAND" in outcome.stdout


def test_plan(capsys):
    status, out, _ = say(
        capsys,
        "plan",
        "scratch",
        "--examples",
        1281167,
        "--gpus",
        8,
        "--batch",
        1024,
        "--memory",
        24,
    )
    assert status == 0 and "It fits." in out
    assert (
        "activations of 64 images" in out
        and "3.18 exaFLOPs" in out
        and "torchrun --nproc-per-node 8" in out
    )
    status, out, _ = say(
        capsys, "plan", "scratch", "--examples", 1281167, "--micro-batch", 256, "--memory", 4
    )
    assert status == 0 and "It does not fit. Change one: --micro-batch" in out
    status, _, err = say(capsys, "plan", "scratch")
    assert status == 1 and "how many images? say --examples" in err
    status, _, err = say(capsys, "plan", "scratch", "--examples", 1000, "--gpus", 3)
    assert status == 1 and "a batch of 256 cannot be shared equally by 3 GPUs" in err
