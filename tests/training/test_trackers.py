"""Where else a run is written: TensorBoard, Weights & Biases and MLflow, all offline, and a function."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace

import pytest

import vitkit
from vitkit.recipes import check_packages
from vitkit.system.span import Span
from vitkit.training import run_recipe
from vitkit.training.record.metrics import read_lines
from vitkit.training.record.trackers import TensorBoard, open_trackers


@pytest.fixture
def short(tiny):
    """A run of six steps that is measured after three and six, and makes mistakes."""
    return replace(tiny, length=Span(6), evaluate_every=Span(3), log_every=2)


def scalars_of(run_dir):
    """The numbers that metrics.jsonl holds: {(name, step): value}."""
    lines, _ = read_lines(run_dir / "metrics.jsonl")
    numbers = {}
    for line in lines:
        if line["event"] == "evaluation":
            for name, metric in line["metrics"].items():
                numbers[name, line["step"]] = metric.value
        else:
            for name, value in line.items():
                if name not in ("event", "step", "evaluator") and isinstance(value, int | float):
                    numbers[name, line["step"]] = value
    return numbers


def test_tensorboard_has_the_numbers_the_settings_and_the_mistakes(short, quiet, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    where = tmp_path / "board"
    run_recipe(replace(short, track=str(where)), tmp_path / "run", "cpu", quiet)
    events = EventAccumulator(str(where))
    events.Reload()
    written = {
        (name, point.step): point.value
        for name in events.Tags()["scalars"]
        for point in events.Scalars(name)
    }
    assert written == pytest.approx(scalars_of(tmp_path / "run"), rel=1e-5)
    assert {("loss", 6), ("lr", 4)} <= written.keys()
    (recipe,) = events.Tensors("recipe/text_summary")
    assert b"| optim.lr |" in recipe.tensor_proto.string_val[0]
    pictures = events.Tags()["images"]
    assert pictures and all(re.match(r"mistakes/\d\d .*, predicted as ", name) for name in pictures)


def test_a_function_of_the_program_follows_a_run(short, tmp_path):
    told = []

    def follow(step, values):
        told.append((step, values))

    vitkit.train(short, workdir=tmp_path, track=follow, device="cpu", quiet=True)
    numbers = {(name, step): value for step, values in told for name, value in values.items()}
    assert numbers == scalars_of(tmp_path)
    assert json.loads((tmp_path / "recipe.json").read_text())["track"] == ""


def test_what_a_function_raises_ends_the_run(short, tmp_path):
    def stop(step, values):
        raise KeyError("enough")

    with pytest.raises(KeyError, match="enough"):
        vitkit.train(short, workdir=tmp_path, track=stop, device="cpu", quiet=True)


def test_a_tracker_that_fails_does_not_end_the_run(short, tmp_path, monkeypatch):
    def full(self, step, values):
        raise OSError("no space left\non the disk")

    monkeypatch.setattr(TensorBoard, "scalars", full)
    told = []
    made = vitkit.train(
        short, workdir=tmp_path, track="tensorboard", device="cpu", progress=told.append
    )
    assert made.run.steps() == 6
    (sentence,) = [text for text in told if "failed and is left out" in str(text)]
    assert sentence == "TensorBoard failed and is left out; the run continues: no space left"


def test_one_that_cannot_begin_is_a_sentence(short, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="track='.*file/board'` cannot be opened: "):
        vitkit.train(
            short, workdir=tmp_path / "run", track=str(tmp_path / "file/board"), quiet=True
        )


@pytest.mark.parametrize(
    ("track", "sentence"),
    [("wandbb", "`track` is 'wandbb'; it is tensorboard, wandb, mlflow, or a directory")],
)
def test_what_is_no_tracker_is_refused(track, sentence, short, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=sentence):
        check_packages(replace(short, track=track))
    (tmp_path / "there").mkdir()
    check_packages(replace(short, track="there"))


def test_a_run_of_earlier_code_goes_on(short, quiet, tmp_path):
    """Which had a setting `tensorboard` in place of this one."""
    run_recipe(short, tmp_path, "cpu", quiet)
    file = tmp_path / "recipe.json"
    recipe = json.loads(file.read_text())
    del recipe["track"]
    file.write_text(json.dumps(recipe | {"tensorboard": True}))
    before = (tmp_path / "metrics.jsonl").read_text()
    run_recipe(short, tmp_path, "cpu", quiet)
    assert (tmp_path / "metrics.jsonl").read_text() == before
    assert "tensorboard" not in json.loads(file.read_text())


def digits(tmp_path, *words):
    """A short run by the command line, without an account: its result."""
    environment = {key: value for key, value in os.environ.items() if "WANDB" not in key}
    environment |= {"HOME": str(tmp_path), "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "vitkit", "train", "digits", "--length", "6", *words]
    return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)


@pytest.mark.slow
def test_wandb_without_an_account_keeps_the_run_here(tmp_path):
    pytest.importorskip("wandb")
    done = digits(tmp_path, "--track", "wandb", "--workdir", "run")
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = (tmp_path / "run/wandb").glob("offline-run-*")
    written = b"".join(file.read_bytes() for file in run.glob("run-*.wandb"))
    assert b"test/top1" in written and b"optim" in written
    assert list((run / "files/media/images").glob("mistakes_*.png"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_mlflow_keeps_the_run_here_and_continues_it(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    done = digits(tmp_path, "--track", "mlflow", "--workdir", "run", "--log-every", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    experiment = client.get_experiment_by_name("vitkit").experiment_id
    (run,) = client.search_runs([experiment])
    assert run.info.status == "FINISHED" and run.data.params["optim.name"]
    measured = {
        (name, point.step): point.value
        for name in run.data.metrics
        for point in client.get_metric_history(run.info.run_id, name)
    }
    assert measured == pytest.approx(scalars_of(tmp_path / "run"))
    assert client.list_artifacts(run.info.run_id, "mistakes")

    # A call that goes on with the run writes to the same one
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    begun = tmp_path / "run/begun.json"
    (again,) = open_trackers("mlflow", tmp_path / "run", begun, 6, {})
    again.scalars(7, {"loss": 1.0})
    again.close()
    (run,) = client.search_runs([experiment])
    assert run.data.metrics["loss"] == 1.0
