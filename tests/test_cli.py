"""The command line as its user types it."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from margins import at_most
from PIL import Image

import vitkit
from vitkit.cli import entry
from vitkit.cli.entry import main
from vitkit.cli.help import EVERYDAY
from vitkit.cli.table import COMMANDS
from vitkit.data import Preprocessing
from vitkit.models import create, vit
from vitkit.system.functions.parameters import options
from vitkit.system.span import Span
from vitkit.weights import Classifier, save

PATHS = os.environ | {"PYTHONPATH": str(Path(vitkit.__file__).parents[1])}


def say(capsys, *words) -> tuple[int, str, str]:
    """Runs `vitkit WORDS`: its exit status, what it printed, and what it printed as errors."""
    try:
        status = main(list(map(str, words)))
    except SystemExit as end:  # how the parser ends: after help, or for a wrong command line
        status = end.code
    printed = capsys.readouterr()
    return status, printed.out, printed.err


QUICK = (
    "--length 8 --batch 16 --optim.warmup 2 --log-every 4 --device cpu "
    "--model.width 24 --model.depth 1 --model.mlp 48 --model.heads 2"
).split()
SIZES = (
    "--data.preprocessing.resize 32 --data.preprocessing.size 32 32 "
    "--model.image 32 32 --model.patch 8"
).split()


def train_words(photographs, run):
    """A short training on photographs."""
    return ("train", "scratch", "--data.source", photographs, "--workdir", run, *QUICK, *SIZES)


@pytest.mark.slow
def test_the_whole_way_of_a_folder(photographs, tmp_path, capsys, monkeypatch):
    # Train
    run = tmp_path / "run"
    train = train_words(photographs, run)
    status, out, _ = say(capsys, *train)
    assert status == 0
    assert "8 of 40 images, 20% of every class, were set aside" in out
    assert "32 training images, 8 test, 2 classes, 32 x 32" in out
    assert f"next: vitkit evaluate {run}" in out
    assert (run / "report.html").read_text().count("<img class=drawing") == 6

    # Evaluate, on the images that were held out
    status, out, _ = say(capsys, "evaluate", run, photographs, "--json", "--device", "cpu")
    assert status == 0
    metrics = json.loads(out)
    assert metrics["seen"]["value"] == 8  # not the 32 that it was trained on
    last_line = (run / "metrics.jsonl").read_text().splitlines()[-1]
    assert metrics["top1"] == json.loads(last_line)["metrics"]["test/top1"]

    # The same folder, spelled otherwise
    folder = f"{photographs.parent}/./{photographs.name}/"
    _, out, _ = say(capsys, "evaluate", run, folder, "--json", "--device", "cpu")
    assert json.loads(out) == metrics

    # The same images elsewhere, and other ones under the same name
    copy = tmp_path / "copy" / photographs.name
    shutil.copytree(photographs, copy)
    _, out, _ = say(capsys, "evaluate", run, copy, "--json", "--device", "cpu")
    assert json.loads(out) == metrics
    (copy / "red" / "0.jpg").unlink()
    _, out, _ = say(capsys, "evaluate", run, copy, "--device", "cpu")
    assert "39 images of" in out
    assert "has changed since, so it may know some of them" in " ".join(out.split())

    # Predict
    red = photographs / "red" / "0.jpg"
    status, out, _ = say(capsys, "predict", run, red, photographs / "blue", "--json")
    answers = [json.loads(line) for line in out.splitlines()]
    assert status == 0
    assert len(answers) == 21
    assert set(answers[0]["labels"]) == {"red", "blue"}
    at_most(abs(sum(answers[0]["probabilities"]) - 1), 1e-5)

    # A name is printed as it is, though rich would read it as markup
    monkeypatch.setenv("COLUMNS", "400")
    odd_name = red.rename(red.with_name("[bold]0.jpg"))
    _, out, _ = say(capsys, "predict", run, odd_name)
    assert "[bold]0.jpg" in out.replace("\n", "")
    odd_name.rename(red)

    # Train again
    status, out, _ = say(capsys, *train)
    assert status == 0
    assert "this run is finished after 8 steps" in out


@pytest.mark.slow
def test_without_labels_then_with_them(photographs, tmp_path, capsys):
    """Masked patches, shown in the report; then a head."""
    # Pre-train without labels
    masked = tmp_path / "masked"
    words = ("train", "paper.masked_patches", "--data.source", photographs, "--workdir", masked)
    sizes = "--data.preprocessing.resize 36 --data.preprocessing.size 32 32 --model.image 32 32"
    options = "--micro-batch 8 --precision float32"
    status, out, _ = say(capsys, *words, *QUICK, *sizes.split(), *options.split())
    assert status == 0
    assert f"next: vitkit finetune {masked} DATA" in out
    assert "test/baseline" in out
    page = (masked / "report.html").read_text()
    assert "Inputs and predictions of the objective" in page
    assert page.count("<img class=photographs") == 1

    # It has no head
    status, _, err = say(capsys, "predict", masked, photographs)
    assert status == 1
    assert "no classification head" in err

    # Fine-tune with labels
    tuned = tmp_path / "tuned"
    options = "--preset none --length 4 --optim.warmup 1 --device cpu"
    words = ("finetune", masked, photographs, "--workdir", tuned)
    assert say(capsys, *words, *options.split())[0] == 0
    status, out, _ = say(capsys, "evaluate", tuned, photographs, "--json", "--device", "cpu")
    assert status == 0
    assert json.loads(out)["seen"]["value"] == 8


@pytest.mark.slow
def test_a_broken_image_stops_a_run_before_it_starts_or_is_listed(photographs, tmp_path, capsys):
    broken = photographs / "red" / "3.jpg"
    broken.write_bytes(broken.read_bytes()[:400])
    train = train_words(photographs, tmp_path / "run")
    status, _, err = say(capsys, *train)
    assert status == 1
    assert "1 broken image in" in err
    assert "red/3.jpg" in err
    assert "--data.on-bad-image skip" in err
    status, out, _ = say(capsys, *train, "--data.on-bad-image", "skip")
    assert status == 0
    assert "left out: " in out and "red/3.jpg" in out
    skipped = json.loads((tmp_path / "run" / "data.json").read_text())["skipped"]
    assert sum(map(len, skipped.values())) == 1
    assert "red/3.jpg" in (tmp_path / "run" / "report.html").read_text()

    status, _, err = say(capsys, "evaluate", tmp_path / "run", photographs, "--split", "train")
    assert status == 1
    assert "red/3.jpg" in err
    options = "--split train --json --on-bad-image skip"
    status, out, err = say(capsys, "evaluate", tmp_path / "run", photographs, *options.split())
    assert (status, json.loads(out)["seen"]["value"]) == (0, 31)
    assert "left out: " in err

    status, _, err = say(capsys, "predict", tmp_path / "run", broken, photographs / "red" / "4.jpg")
    assert status == 3
    assert "not classified: " in err and "red/3.jpg" in err


@pytest.mark.slow
def test_a_run_that_could_not_begin_leaves_nothing_to_trust(photographs, tmp_path, capsys):
    train = train_words(photographs, tmp_path / "run")
    assert say(capsys, *train, "--optim.warmup", "99")[0] == 1
    assert say(capsys, *train, "--seed", "3")[0] == 0
    (photographs / "red" / "7.jpg").rename(photographs / "red" / "x.jpg")
    assert "has changed since this run began" in say(capsys, *train, "--seed", "3")[2]


@pytest.mark.slow
def test_predictions_are_drawn_into_a_contact_sheet(photographs, tmp_path, capsys):
    sheet = tmp_path / "p.png"
    say(capsys, "train", "digits", "--workdir", tmp_path / "run", *QUICK)
    status, out, _ = say(
        capsys, "predict", tmp_path / "run", "digits", "--limit", 12, "--sheet", sheet
    )
    assert status == 0
    assert f"wrote {sheet}" in out
    with Image.open(sheet) as picture:
        assert picture.width > 1000


@pytest.mark.slow
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
        (["train", "digits", "--length", "soon"], 2, "'soon'; it takes a duration"),
        (["train", "scratch"], 1, "no images are given: set --data.source"),
        (["train", "nowhere.py:mine"], 1, "no file 'nowhere.py'"),
        (
            ["evaluate", "nowhere", "digits"],
            1,
            "there is nothing at nowhere, and it is not the name of a model",
        ),
        (
            ["train", "digits", "--model.pool", "none"],
            1,
            "a label needs one for the image: use another pool",
        ),
        (["models", "B-16"], 1, "no model 'B-16'; did you mean 'B/16'?"),
        (["models", "B/17x"], 1, "no model 'B/17x'; did you mean 'B/16'?"),
        (["data"], 2, "data stats DATA"),
        (["data", "stat"], 2, "no command 'data stat'; did you mean 'data stats'?"),
        (["train", "digits", "--device", "abacus"], 1, "no device 'abacus' on this machine"),
    ],
)
def test_mistakes_are_one_sentence(words, status, sentence, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    actual_status, out, err = say(capsys, *words)
    printed = " ".join((out + err).split())
    assert actual_status == status
    assert sentence in printed
    assert "Traceback" not in printed


@pytest.mark.parametrize("words", [[], ["--help"], ["train"], ["--version"]])
def test_help_names_the_program(words, capsys):
    status, out, _ = say(capsys, *words)
    assert "vitkit" in out
    assert status == (2 if words == ["train"] else 0)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_every_command_is_in_the_overview_and_explains_itself(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    overview = say(capsys, "--help")[1]
    assert f"  {command.name} {command.words}".rstrip() in overview
    assert len(command.summary.split()) >= 4 and command.summary in overview
    settings = command.load_function()
    assert len(settings.__doc__.split()) >= 6
    status, out, _ = say(capsys, *command.name.split(), "--help")
    assert status == 0
    assert f"usage: vitkit {command.name}" in out


@pytest.mark.parametrize("command", ["train", "plan"])
def test_help_of_a_recipe_has_two_levels(command, capsys):
    status, out, _ = say(capsys, command, "digits", "--help")
    assert status == 0
    assert f"usage: vitkit {command} digits" in out
    assert "--length DURATION" in out and "(90epochs)" in out
    assert "--model.width" not in out and "lists all 1" in out
    status, out, _ = say(capsys, command, "digits", "--help-all")
    assert status == 0
    assert f"usage: vitkit {command} digits" in out
    assert "--model.width" in out and "(default: 64)" in out


@pytest.mark.parametrize("name", EVERYDAY)
def test_the_first_level_of_help_is_short_and_has_no_name_that_is_not_there(name):
    (command,) = [command for command in COMMANDS if command.name == name]
    names = {option.name for option in options(command.load_function())}
    entries = [entry for of_title in EVERYDAY[name].values() for entry in of_title]
    assert {entry.split()[0] for entry in entries} <= names
    assert len(entries) <= 13


@pytest.mark.parametrize("width", [60, 120])
@pytest.mark.parametrize("words", [[], ["train"], *[[c.name, "--help"] for c in COMMANDS]])
def test_help_fits_into_the_terminal(words, width, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    _, out, _ = say(capsys, *" ".join(words).split())
    for line in out.splitlines():
        assert len(line) <= width or line.startswith("usage:"), line


def test_the_line_ends_of_a_docstring_are_not_those_of_help(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    _, out, _ = say(capsys, "finetune", "--help-all")
    after = out.split("--patience FLOAT")[1].splitlines()[:2]  # beside the name, or below it
    assert any("which one is missing." in line for line in after)


def test_help_of_data_lists_its_commands(capsys):
    status, out, _ = say(capsys, "data", "--help")
    assert status == 0
    assert "data stats DATA" in out and "data pack DATA DEST" in out
    assert "evaluate" not in out


def test_the_warm_up_follows_the_length(capsys):
    from vitkit.cli.recipe import first_recipe

    named, _ = first_recipe("train", "digits --length 30epochs".split())
    assert (named.length.n, named.optim.warmup) == (30, Span(1, "epochs"))  # as 3 of 90
    assert "the warm-up is 1 epochs, the same share of `length`" in capsys.readouterr().err
    named, _ = first_recipe("train", "digits --length 60steps".split())
    assert named.optim.warmup == Span(2, "steps")
    named, _ = first_recipe("train", "digits --length=5epochs --optim.warmup 1epoch".split())
    assert named.optim.warmup == Span(3, "epochs")  # which tyro replaces
    capsys.readouterr()
    first_recipe("train", "digits --length 90epochs".split())
    assert capsys.readouterr().err == ""


def test_help_of_plan_names_its_own_options(capsys):
    assert "--gpus N" in say(capsys, "plan", "--help")[1]


@pytest.mark.parametrize("words", [["--evals=neighbours"], ["--evals", "neighbours"]])
def test_evaluators_are_named_in_both_ways_of_giving_an_option(words, capsys):
    _, out, _ = say(capsys, "train", "digits", *words, "--help-all")
    assert "--evals.0.evaluator.k" in out  # a setting of neighbours
    assert "--evals.1" not in out


@pytest.mark.parametrize("words", [["--model=BiT-R50x1"], ["--model", "BiT-R50x1"]])
def test_a_model_is_named_in_both_ways_of_giving_an_option(words, capsys):
    _, out, _ = say(capsys, "train", "scratch", *words, "--help-all")
    assert "--model.backbone" in out


def test_help_of_finetune_without_a_model_shows_its_own_options(capsys):
    status, out, _ = say(capsys, "finetune", "--help")
    assert status == 0
    for option in ("--preset", "--minutes", "--batch", "--workdir", "--device"):
        assert option in out, option


def test_ctrl_c_in_a_destructor_is_raised_again(monkeypatch, request):
    """Python would print that it was ignored, and go on."""
    # A shell starts what is in the background with SIGINT ignored, and then nothing is raised
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))

    class Closing:
        def __del__(self):
            raise KeyboardInterrupt

    monkeypatch.setattr(sys, "unraisablehook", entry._interrupt_again)
    closing = Closing()
    with pytest.raises(KeyboardInterrupt):
        del closing
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            time.sleep(0.01)


def test_help_of_finetune_is_there_for_a_model_that_is_not(capsys):
    status, out, _ = say(capsys, "finetune", "NOSUCH", "digits", "--help")
    assert status == 0
    assert out.startswith("Without the values of this run, because there is nothing at NOSUCH")
    assert "--preset" in out
    assert say(capsys, "finetune", "NOSUCH", "digits")[0] == 1


def test_help_of_finetune_names_what_follows_from_model_and_data(tmp_path, capsys):
    config = vit("mu/16", image=(32, 32), classes=3, width=24, heads=2, mlp=48)
    classifier = Classifier(create(config), Preprocessing(size=(32, 32)), ("a", "b", "c"))
    model = save(classifier, tmp_path / "model")
    status, out, _ = say(capsys, "finetune", model, "digits", "--help-all")
    assert status == 0
    assert "--model.width" in out and "(default: 24)" in out
    out = say(capsys, "finetune", model, "digits", "--preset", "none", "--help")[1]
    assert "Length of the run (449steps)" in " ".join(out.split())


def test_a_recipe_of_ones_own(tmp_path, capsys):
    mine = tmp_path / "mine.py"
    mine.write_text(
        "from dataclasses import replace\nfrom vitkit.recipes import recipe\n"
        "def smaller():\n    return replace(recipe('digits'), name='smaller')\nnothing = 3\n"
    )
    status, _, _ = say(capsys, "train", f"{mine}:smaller", "--workdir", tmp_path / "run", *QUICK)
    assert status == 0
    assert json.loads((tmp_path / "run" / "recipe.json").read_text())["name"] == "smaller"
    page = (tmp_path / "run" / "report.html").read_text()
    assert "<figure" in page.partition("Most confident mistakes")[2]
    assert "has no function 'nothing'" in say(capsys, "train", f"{mine}:nothing")[2]


@pytest.mark.parametrize("words", [[], ["--help"], ["--version"], ["tran"], ["data", "stat"]])
def test_help_is_there_at_once(words):
    """Nothing but the standard library, the table and what imports names lazily is imported for it."""
    code = (
        "import sys; before = set(sys.modules); from vitkit.cli import main; "
        f"main({words}); names = {{name.partition('.')[0] for name in set(sys.modules) - before}}; "
        "print(*sorted(names - sys.stdlib_module_names))"
    )
    outcome = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=PATHS
    )
    assert "vitkit" in outcome.stdout + outcome.stderr
    assert outcome.stdout.splitlines()[-1] == "lazy_loader vitkit"


def test_python_m_vitkit():
    outcome = subprocess.run(
        [sys.executable, "-m", "vitkit"], capture_output=True, text=True, check=True
    )
    assert "usage: vitkit COMMAND" in outcome.stdout


ONE_MILLION = ("plan", "scratch", "--examples", 1281167)


@pytest.mark.slow
def test_plan_says_whether_a_run_fits(capsys):
    options = "--gpus 8 --batch 1024 --memory 24"
    status, out, _ = say(capsys, *ONE_MILLION, *options.split())
    assert status == 0
    for words in ("It fits.", "activations of 64 images", "3.18 exaFLOPs", "--nproc-per-node 8"):
        assert words in out, words
    status, out, _ = say(capsys, *ONE_MILLION, "--micro-batch", 256, "--memory", 4)
    assert status == 0
    assert "It does not fit. Change one: --micro-batch" in out


@pytest.mark.slow
def test_plan_knows_the_papers_data(capsys):
    """1,567 exaFLOPs in Table 6, and 680 TPUv3-core-days in Table 2."""
    status, out, err = say(capsys, "plan", "paper.jft.L16.14ep", "--gpus", 64)
    assert status == 0 and "303,000,000 images of 18,291 classes" in err
    for words in ("1,035,645 steps of 4,096",
                  "1,567 exaFLOPs", "680 to 919 TPUv3-core-days"):  # fmt: skip
        assert words in out, words


def test_plan_needs_no_examples_for_a_length_in_steps(capsys):
    status, out, _ = say(capsys, "plan", "scratch", "--length", "1000steps")
    assert status == 0
    assert "1,000 steps of 256 in" in out


@pytest.mark.slow
def test_plan_follows_channels_and_patches(capsys):
    """Of 12 bands; and half the stride has about four times the tokens."""
    words = ("plan", "cifar10", "--examples", "50000", "--classes", "10")
    costs = []
    for settings in (
        "--model.channels 12",
        "--model.patch 4 4",
        "--model.patch 4 --model.stride 2",
    ):
        status, out, _ = say(capsys, *words, *settings.split())
        assert status == 0, out
        (exaflops,) = re.findall(r"([\d.]+) exaFLOPs", out)
        costs.append(float(exaflops))
    assert costs[0] > costs[1]
    at_most(abs(costs[2] / costs[1] - 4), 1)


def test_plan_says_what_it_cannot_count(capsys):
    status, _, err = say(capsys, "plan", "scratch")
    assert status == 1
    assert "the number of training images is unknown; give it with --examples" in err
    status, _, err = say(capsys, *ONE_MILLION, "--gpus", 3)
    assert status == 1
    assert "a batch of 256 cannot be shared equally by 3 GPUs" in err
