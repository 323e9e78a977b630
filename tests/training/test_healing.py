"""Damaged files of a run: the same command ends with the bits of an undisturbed run, or says which
file is damaged."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from runs import read_json, same, weights

from vitkit.evaluation import Accuracy, Eval
from vitkit.recipes import Optim
from vitkit.system.span import Span
from vitkit.training import run_recipe
from vitkit.training.record.metrics import read_metrics
from vitkit.training.state.checkpoints import read_earlier, read_sealed, write_sealed
from vitkit.training.state.start import license_of
from vitkit.weights import load

STATE = "checkpoints/step-00000006/state.json"  # of the newest checkpoint of the paused run


@pytest.fixture(scope="module")
def short(tiny):
    """Twelve steps, with a checkpoint after each sixth."""
    return replace(tiny, length=Span(12), evaluate_every=Span(12), save_every=Span(6), keep=3)


@pytest.fixture(scope="module")
def finished(short, quiet, tmp_path_factory):
    """The directory of a run that was never disturbed."""
    run_dir = tmp_path_factory.mktemp("finished") / "run"
    run_recipe(short, run_dir, "cpu", quiet)
    return run_dir


@pytest.fixture
def copied(finished, tmp_path):
    """The same run, which a test may change."""
    return Path(shutil.copytree(finished, tmp_path / "copied"))


@pytest.fixture
def paused(copied):
    """The same run, as if it had been killed after its sixth step."""
    shutil.rmtree(copied / "model")
    (copied / "finished.json").unlink()
    shutil.rmtree(copied / "checkpoints" / "step-00000012")
    (copied / "LAST").write_text("step-00000006")
    return copied


@pytest.fixture
def bare(copied):
    """The finished run, whose checkpoints were removed to save space."""
    shutil.rmtree(copied / "checkpoints")
    (copied / "LAST").unlink()
    return copied


def weights_of(run_dir):
    return (run_dir / "model" / "model.safetensors").read_bytes()


def change(path, **values):
    """Change values of a JSON file."""
    path.write_text(json.dumps(read_json(path) | values))


def records(run, recipe: str, data: str):
    """What a checkpoint repeats of them counts."""
    (run / "recipe.json").write_text(recipe)
    (run / "data.json").write_text(data)


DAMAGE = {
    "LAST is not text": lambda run: (run / "LAST").write_bytes(b"\xff\xfe\x00"),
    "LAST is empty": lambda run: (run / "LAST").write_bytes(b""),
    "records are cut": lambda run: records(run, '{"name": "ti', '{"sou'),
    "records are lists": lambda run: records(run, "[]", "[]"),
    "records have other values": lambda run: (
        change(run / "recipe.json", batch=51),
        change(run / "data.json", counts={"train": 3}),
    ),
    "a record is gone": lambda run: (run / "recipe.json").unlink(),
    "a line of metrics has no step": lambda run: prepend(
        run / "metrics.jsonl", b'{"event": "training"}\n'
    ),
    "a checkpoint says another step": lambda run: change(run / STATE, step=4),
    "a checkpoint says a far step": lambda run: change(run / STATE, step=4000),
    "a checkpoint is not JSON": lambda run: (run / STATE).write_bytes(b"\xff"),
    "a checkpoint has another name": lambda run: (run / STATE).parent.rename(
        run / "checkpoints" / "step-00000009"
    ),
    "a folder is called as a checkpoint is": lambda run: (
        run / "checkpoints" / "step-tomorrow"
    ).mkdir(),
}


def prepend(path, line: bytes):
    path.write_bytes(line + path.read_bytes())


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_run_ends_with_the_same_bits(damage, short, paused, finished, quiet):
    DAMAGE[damage](paused)
    run_recipe(short, paused, "cpu", quiet)
    assert weights_of(paused) == weights_of(finished)
    assert read_json(paused / "data.json")["source"] == "digits"
    assert read_json(paused / "recipe.json")["batch"] == short.batch


def test_damaged_lines_of_metrics_are_counted_aloud(short, paused, capsys):
    prepend(paused / "metrics.jsonl", b"{\n\x00\n")
    run_recipe(short, paused, "cpu")
    assert f"2 damaged lines of {paused / 'metrics.jsonl'} are left out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        *[("model.safetensors", damage) for damage in ("cut", "changed", "gone")],
        ("config.json", "cut"),
        ("preprocessor_config.json", "gone"),
    ],
)
def test_a_damaged_model_is_saved_again_from_the_last_checkpoint(
    file, damage, short, copied, quiet
):
    path = copied / "model" / file
    data = path.read_bytes()
    if damage == "gone":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(data[: len(data) // 2])
    else:
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))

    run_recipe(short, copied, "cpu", quiet)
    assert path.read_bytes() == data
    load(copied, quiet=True)
    assert (copied / "model.earlier").is_dir()  # nothing is thrown away


def test_a_run_that_was_killed_before_it_said_that_it_is_finished_keeps_its_model(
    short, copied, capsys
):
    """Between model/ and finished.json. What a kill while model/ was written has left goes."""
    (copied / "finished.json").unlink()
    (copied / "model.new").mkdir()
    (copied / "model" / "README.md").write_text("my own words")
    run_recipe(short, copied, "cpu")
    assert not list(copied.glob("model?*"))
    assert (copied / "model" / "README.md").read_text() == "my own words"
    assert "kept as" not in capsys.readouterr().err


def test_a_model_that_is_replaced_is_kept_and_it_is_said(short, finished, copied, capsys):
    (copied / "model" / "model.safetensors").write_bytes(b"")
    (copied / "finished.json").unlink()
    run_recipe(short, copied, "cpu")
    assert f"kept as {copied / 'model.earlier'}" in capsys.readouterr().err
    assert weights_of(copied) == weights_of(finished)


def test_what_its_owner_edited_is_no_damage(short, copied, capsys):
    (copied / "model" / "README.md").write_text("my own words")
    config = copied / "model" / "config.json"
    config.write_text(config.read_text().replace('"0": "0"', '"0": "zero"'))
    assert run_recipe(short, copied, "cpu").labels[0] == "zero"
    out = capsys.readouterr().err
    assert f"{copied / 'model'}: config.json was edited since the run saved it" in out
    assert "this run is finished" in out
    assert not (copied / "model.earlier").exists()
    assert (copied / "model" / "README.md").read_text() == "my own words"


def test_settings_that_no_weight_depends_on_may_change_when_a_run_continues(
    short, paused, finished, capsys
):
    """Another evaluator, on images of its own too, another time, another name."""
    evals = (Eval(Accuracy(), every=Span(5)), Eval(Accuracy(), data="digits"))
    changed = replace(short, name="renamed", evals=evals, evaluate_every=Span(4))
    run_recipe(changed, paused, "cpu")
    out = " ".join(capsys.readouterr().err.split())
    assert "changed since this run began, and no weight depends on it: " in out
    assert "evals.0.every: 12 steps -> 5 steps; evals.1; " in out
    assert "name: unnamed -> renamed" in out
    assert same(weights(paused), weights(finished))
    steps = {line["step"] for line in read_metrics(paused / "metrics.jsonl") if "metrics" in line}
    assert {8, 10} <= steps
    assert "digits/top1" in (paused / "metrics.jsonl").read_text()

    # And back: the images of an evaluator that is gone are forgotten
    (paused / "finished.json").unlink()
    run_recipe(short, paused, "cpu")


SOMEBODYS = ["data.json", "recipe.json", "model", "metrics.jsonl", "checkpoints", "report.html"]


@pytest.mark.parametrize("name", SOMEBODYS)
def test_a_directory_of_somebody_is_not_a_run(name, short, quiet, tmp_path):
    (tmp_path / name).write_text('{"port": 80}')
    with pytest.raises(ValueError, match=f"holds {name}, which is not from a run"):
        run_recipe(short, tmp_path, "cpu", quiet)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    with pytest.raises(ValueError, match="is a file, and a run is a directory"):
        run_recipe(short, tmp_path / name, "cpu", quiet)


def test_a_finished_run_without_checkpoints_is_finished(short, bare, capsys):
    written = (bare / "model" / "model.safetensors").stat().st_mtime_ns
    run_recipe(short, bare, "cpu")
    assert "this run is finished after 12 steps" in capsys.readouterr().err
    assert (bare / "model" / "model.safetensors").stat().st_mtime_ns == written


@pytest.mark.parametrize("lost", ["", "recipe.json", "finished.json"])
def test_another_recipe_does_not_overwrite_a_finished_model(lost, short, bare, quiet):
    if lost:
        (bare / lost).unlink()
    model = weights_of(bare)
    with pytest.raises(ValueError, match=r"another recipe \(seed: 0 -> 1\)"):
        run_recipe(replace(short, seed=1), bare, "cpu", quiet)
    assert weights_of(bare) == model


def test_a_model_of_which_no_file_says_the_recipe_is_not_overwritten(short, bare, quiet):
    (bare / "recipe.json").unlink()
    (bare / "finished.json").unlink()
    with pytest.raises(ValueError, match="whose recipe is unknown"):
        run_recipe(short, bare, "cpu", quiet)


def test_a_damaged_model_without_checkpoints_is_trained_again_and_it_is_said(
    short, bare, finished, capsys
):
    (bare / "model" / "model.safetensors").write_bytes(b"")
    run_recipe(short, bare, "cpu")
    assert "there is no checkpoint, so it is trained again" in " ".join(
        capsys.readouterr().err.split()
    )
    assert weights_of(bare) == weights_of(finished)


def test_weights_that_are_not_finite_are_not_saved(short, quiet, tmp_path):
    """One step whose update overflows: its loss and gradient are finite, its weights are not."""
    diverging = Optim(lr=1e30, weight_decay=1e30, warmup=Span(0))
    recipe = replace(short, optim=diverging, length=Span(1), average=0.0)
    with pytest.raises(FloatingPointError, match="the trained weights are not finite"):
        run_recipe(recipe, tmp_path, "cpu", quiet)
    assert not (tmp_path / "model").exists()


def test_a_setting_that_earlier_code_did_not_have_counts_as_its_default(
    short, paused, finished, quiet
):
    """Of the recipe, of its parts, and of the preprocessing. A run whose value is not the default
    is another recipe."""
    for path in paused.glob("checkpoints/*/state.json"):
        values = read_sealed(path)
        del values["recipe"]["tune"], values["recipe"]["data"]["parts"]
        del values["recipe"]["data"]["preprocessing"]["antialias"]
        write_sealed(path, values)
    with pytest.raises(ValueError, match=r"another recipe \(data.parts: given -> final\)"):
        run_recipe(replace(short, data=replace(short.data, parts="final")), paused, "cpu", quiet)
    run_recipe(short, paused, "cpu", quiet)
    assert same(weights(paused), weights(finished))


def test_without_checkpoints_the_records_beside_them_count(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "recipe.json").write_text('{"batch": 8}')
    (tmp_path / "data.json").write_text('{"labels": ["a"]}')
    assert read_earlier(tmp_path) == ({"batch": 8}, {"labels": ["a"]}, True)


def test_a_licence_that_is_lost_with_the_weights_is_said(tiny, tmp_path):
    said = []
    recipe = replace(tiny, init=str(tmp_path / "gone"))
    assert license_of(recipe, tmp_path, said.append) is None
    assert "gone cannot be read any more" in said[0]
