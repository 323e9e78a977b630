"""Models of every pixel are fine-tuned from the closed form on, and kept only if held-out images tell them apart."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from pictures import encoded
from processes import together

import vitkit
from vitkit.data import Columns, Preprocessing
from vitkit.evaluation import SegmentationScores
from vitkit.finetuning.segmentation import fine_tuning, run
from vitkit.finetuning.segmentation.choice import Candidate, best, gain, has_learned_masks
from vitkit.finetuning.segmentation.directory import RECORD, check_own, continued
from vitkit.finetuning.segmentation.fine_tuning import (
    RUN,
    START,
    Tuning,
    data_of,
    recipe_of,
    with_steps,
)
from vitkit.finetuning.segmentation.first_model import HELD_OUT, first_model, folds_with
from vitkit.finetuning.segmentation.request import MaskRequest, held_out_of, read_parts
from vitkit.models import create, vit
from vitkit.system.errors import BadSettings
from vitkit.system.machine import Picked
from vitkit.training import remove_run
from vitkit.training.choices import about_mirroring
from vitkit.weights import Classifier, dense, load, save

COLOURS = np.array([[200, 60, 60], [60, 60, 200]])
CONFIG = vit("mu/16", image=(16, 16), patch=4, depth=3, classes=2)


def scores_of(right, groups=None):
    """The scores of images with 100 pixels of each of two classes, of which so many are right."""
    right = np.array(right)
    truth = np.full_like(right, 100)
    predicted = right + (100 - right)[:, ::-1]
    nothing = np.zeros_like(right)
    return SegmentationScores(("a", "b"), truth, predicted, right, nothing, nothing, groups)


def candidate(name, scores):
    return Candidate(name, None, scores)


def test_a_gain_is_kept_if_it_is_more_than_its_standard_error():
    random = np.random.default_rng(0)
    first = scores_of(random.integers(70, 90, (30, 2)))
    noise = random.integers(-6, 7, (30, 2))
    same = scores_of(first.right + noise - noise.mean(0).round().astype(int))
    better = scores_of(np.minimum(first.right + 5 + noise, 100))
    one, two, three = (
        candidate(name, scores)
        for name, scores in (("first", first), ("same", same), ("better", better))
    )
    assert best([one, two]) is one and best([one, two, three]) is three
    worse = candidate("worse", scores_of(first.right - 5))
    assert best([one, worse]) is one
    own = gain(first, better)
    assert own.value == pytest.approx(np.mean(better.iou()) - np.mean(first.iou()))
    assert 0 < own.standard_error < own.value
    assert gain(first, first).value == 0 == gain(first, first).standard_error


def test_images_of_one_group_are_one_observation():
    random = np.random.default_rng(1)
    right = random.integers(70, 90, (20, 2))
    change = np.repeat(random.integers(-9, 10, (4, 2)), 5, axis=0)
    groups = np.repeat(np.arange(4), 5)
    alone = gain(scores_of(right), scores_of(right + change)).standard_error
    together_ = gain(scores_of(right, groups), scores_of(right + change, groups)).standard_error
    assert together_ > 1.3 * alone


def test_held_out_images_are_a_fold_of_their_own():
    groups = np.arange(20) // 2
    held_out = np.array([2, 3, 10, 11])
    folds = folds_with(held_out, 20, groups)
    assert np.array_equal(np.flatnonzero(folds == HELD_OUT), held_out)
    assert set(folds.tolist()) == {0, 1, 2, 3, 4}
    assert all(len(set(folds[groups == group])) == 1 for group in range(10))
    assert set(folds_with(np.zeros(0, np.int64), 20, None)) == {0, 1, 2, 3, 4}


def test_the_recipe_begins_with_the_closed_form_and_divides_as_it_does(tmp_path):
    classifier = Classifier(create(CONFIG, seed=0), Preprocessing(size=(16, 16)), ("a", "b"))
    start = dense(classifier, ("x", "left-y"), 2)
    data = data_of("photos", "masks", None, 3, Columns())
    recipe = recipe_of(start, tmp_path, data, 0.25, "float32", on_gpu=False)
    assert not any(about_mirroring(recipe, start.labels))
    same = replace(start, labels=("x", "bright"))
    mirrored = recipe_of(same, tmp_path, data, 0.25, "float32", on_gpu=False)
    assert mirrored.data.augmentation.flip and not any(about_mirroring(mirrored, same.labels))
    [sentence] = about_mirroring(mirrored, start.labels)
    assert "images are mirrored, and left-y may not be the same" in sentence
    assert recipe.init == str(tmp_path) and recipe.init_head and recipe.objective.rare == 0.25
    assert recipe.data.parts == "select" and recipe.data.hold_out == 0.2
    assert recipe.data.augmentation.resize == 32 and not recipe.data.augmentation.flip
    assert recipe.data.augmentation.size == recipe.training_preprocessing.size == (24, 24)
    assert recipe.data.preprocessing.is_native and recipe.data.ignore == 3
    ready = with_steps(recipe, 40, False)
    assert ready.length.n == 40 == ready.evaluate_every.n and ready.optim.warmup.n == 4


@pytest.fixture(autouse=True)
def few_steps(monkeypatch):
    """24 at most, instead of hundreds."""
    monkeypatch.setattr(fine_tuning, "FEWEST", 20)
    monkeypatch.setattr(fine_tuning, "EPOCHS", 2)


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    """Photographs of a rectangle in front of noise, with masks, and a small pre-trained model."""
    folder = tmp_path_factory.mktemp("scenes")
    random = np.random.default_rng(0)
    for number in range(36):
        mask = np.zeros((32, 48), np.uint8)
        top, left = random.integers(0, 14, 2)
        mask[top : top + 16, left : left + 20] = 1
        pixels = np.clip(COLOURS[mask] + random.normal(0, 60, (32, 48, 3)), 0, 255)
        part = "train" if number < 30 else "test"
        for kind, content in (("photos", pixels.astype(np.uint8)), ("masks", mask)):
            file = folder / kind / part / f"{number}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(encoded(content, "PNG"))
    classifier = Classifier(create(CONFIG, seed=0), Preprocessing(size=(16, 16)), ("a", "b"))
    save(classifier, folder / "pretrained")
    return folder


def make(scenes, run_dir, **settings):
    return vitkit.finetune(
        str(scenes / "pretrained"), str(scenes / "photos"), masks=str(scenes / "masks"),
        workdir=run_dir, device="cpu", tokens=100, **{"minutes": 30, **settings},
    )  # fmt: skip


class Killed(BaseException):
    """Ends a command as a signal does."""


def same_weights(one, other) -> bool:
    ours, theirs = (load(path, quiet=True).model.state_dict() for path in (one, other))
    return all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.slow
def test_fine_tuning_is_chosen_by_held_out_images_and_continues_when_killed(
    scenes, tmp_path, monkeypatch, capsys
):
    made = make(scenes, tmp_path / "run")
    assert capsys.readouterr().err.count("the masks have 2 values") == 1
    written = json.loads((tmp_path / "run/masks.json").read_text())
    assert list(written["held_out"]) == ["closed form", "fine-tuned", "average of both"]
    assert made.masks.chosen == written["chosen"] and "mean IoU on held-out images" in str(made)
    assert f"kept: {made.masks.chosen}" in str(made)
    assert made.classifier.origin["head"] == made.masks.chosen
    assert "held out, fine-tuned" in made.path.read_text()
    counts = json.loads((tmp_path / "run/fine-tuned/data.json").read_text())["counts"]
    assert counts == {
        "train": 24,
        "val": 6,
    }  # as the closed form without them; the test images stay apart
    again = vitkit.evaluate(made, scenes / "photos", masks=scenes / "masks", device="cpu")
    assert again["miou"] == pytest.approx(made.accuracy, abs=0.002)  # bfloat16 or not

    # A killed run continues with the same bits
    import vitkit.training.loop as loop

    advance = loop.advance

    def killed(recipe, state, *rest, **more):
        if state.step == 9:
            raise Killed
        advance(recipe, state, *rest, **more)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "advance", killed)
        with pytest.raises(Killed):
            make(scenes, tmp_path / "killed")
    assert load(tmp_path / "killed", quiet=True).origin["head"] == "closed form"
    capsys.readouterr()
    make(scenes, tmp_path / "killed")
    assert "continuing at step 6" in capsys.readouterr().err
    for part in ("fine-tuned", "model"):
        assert same_weights(tmp_path / "run" / part, tmp_path / "killed" / part)

    # Other minutes begin again, and none at all leave the closed form
    shutil.copytree(tmp_path / "run", tmp_path / "other")
    make(scenes, tmp_path / "other", minutes=0)
    assert not (tmp_path / "other/fine-tuned").exists()
    assert not same_weights(tmp_path / "other", tmp_path / "other" / START)  # of all images


@pytest.mark.slow
def test_several_processes_make_one_model(scenes, tmp_path, monkeypatch):
    # Where a CPU has instructions for bfloat16, its rounding would hide an error
    monkeypatch.setattr(run, "pick_precision", lambda *_: Picked("float32"))

    def act():
        make(scenes, tmp_path / "two", quiet=True)

    assert together(2, act) == [0, 0]
    make(scenes, tmp_path / "one", quiet=True)
    ours, theirs = (
        load(tmp_path / name / "fine-tuned", quiet=True).model.state_dict()
        for name in ("one", "two")
    )
    for name, weight in ours.items():
        # Adam enlarges the rounding of small gradients; a weight moves by some 1e-2
        torch.testing.assert_close(weight, theirs[name], rtol=1e-3, atol=5e-4)


@pytest.mark.slow
def test_too_little_time_and_too_few_images_leave_the_closed_form(scenes, tmp_path, capsys):
    made = make(scenes, tmp_path / "short", minutes=1e-4)
    said = capsys.readouterr().err
    assert "too long for 0 seconds" in said and made.masks.chosen == "closed form"
    assert not (tmp_path / "short/fine-tuned").exists()
    for kind in ("photos", "masks"):
        for part, numbers in (("train", range(8)), ("test", range(30, 32))):
            (tmp_path / kind / part).mkdir(parents=True)
            for number in numbers:
                name = f"{kind}/{part}/{number}.png"
                shutil.copy(scenes / name, tmp_path / name)
    shutil.copytree(scenes / "pretrained", tmp_path / "pretrained")
    make(tmp_path, tmp_path / "few")
    assert "nothing is fine-tuned: fewer than 5 images" in capsys.readouterr().err
    with pytest.raises(BadSettings, match="`minutes` is -1"):
        make(scenes, tmp_path / "never", minutes=-1)


@pytest.mark.slow
def test_held_out_images_have_no_part_in_the_model_that_is_compared(scenes, tmp_path):
    """Other masks of these images leave its weights and settings as they are, and change those of the model of all
    images."""
    published = load(scenes / "pretrained", quiet=True)
    shutil.copytree(scenes / "masks", tmp_path / "masks")
    made = []
    for masks in (scenes / "masks", tmp_path / "masks"):
        request = MaskRequest("", str(scenes / "photos"), str(masks), None, None, Columns(), 100, 2)
        parts = read_parts(request).parts
        held_out, numbers = held_out_of(parts)
        assert len(held_out) == len(numbers) == 6
        device = torch.device("cpu")
        made.append(first_model(published, parts["train"], numbers, 100, device, "float32"))
        for i in numbers.tolist():
            random = np.random.default_rng(i)
            content = random.integers(0, 2, (32, 48)).astype(np.uint8)
            name = parts["train"].images.name(i)
            (tmp_path / "masks/train" / name.rpartition("/")[2]).write_bytes(
                encoded(content, "PNG")
            )
    one, other = made
    states = [each.without_held_out.model.state_dict() for each in made]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert [each.miou for each in one.tried] == [each.miou for each in other.tried]
    assert one.left_out == other.left_out and len(one.best.counts) == 24
    states = [each.classifier.model.state_dict() for each in made]
    assert not all(torch.equal(states[0][name], states[1][name]) for name in states[0])


@pytest.mark.slow
def test_a_closed_form_of_a_backbone_that_learned_masks_says_so(scenes, tmp_path):
    published = load(scenes / "pretrained", quiet=True)
    tuned = dense(published, ("background", "object"), 2, 100)
    for head, expected in (("closed form", False), ("fine-tuned", True)):
        save(replace(tuned, origin={"head": head}), tmp_path / head)
        made = vitkit.finetune(
            str(tmp_path / head), str(scenes / "photos"), masks=str(scenes / "masks"), minutes=0,
            tokens=100, workdir=tmp_path / f"{head} again", device="cpu",
        )  # fmt: skip
        assert made.classifier.origin["head"] == "closed form"
        assert has_learned_masks(made.classifier) == expected


def test_images_of_one_group_and_held_out_ones_compare_nothing(scenes):
    request = MaskRequest(
        "", str(scenes / "photos"), str(scenes / "masks"), None, None, Columns(), 100
    )
    parts = read_parts(request).parts
    train = parts["train"]
    for groups in (np.arange(30) // 15, np.zeros(30, np.int64)):
        images = replace(train.images, groups=groups)
        assert held_out_of({"train": replace(train, images=images)})[0] is None


def tree(folder):
    """The contents of all files in a folder but those of locks, by their paths."""
    files = (file for file in folder.rglob("*") if file.is_file() and file.name != "LOCK")
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


@pytest.mark.parametrize(
    "mine",
    (
        "fine-tuned/notes.txt", "fine-tuned/model/model.safetensors", "closed-form/notes.txt", "masks.json",
        "report.html", "model/notes.txt", "fine-tuned",
    ),
)  # fmt: skip
@pytest.mark.parametrize("minutes", (0, 30))
def test_files_of_the_user_in_the_run_directory_stay(scenes, tmp_path, mine, minutes):
    file = tmp_path / "run" / mine
    file.parent.mkdir(parents=True)
    file.write_text('{"images": [], "annotations": [], "categories": []}')
    before = tree(tmp_path)
    for _ in range(2):  # the first call may have left a lock
        with pytest.raises(vitkit.BadRun, match="choose another `workdir`"):
            make(scenes, tmp_path / "run", minutes=minutes)
        assert tree(tmp_path) == before


def test_what_a_run_wrote_is_removed_and_other_files_and_runs_stay(tmp_path):
    plan = {"init": "weights", "data": "photos", "masks": "masks", "minutes": 2}
    (tmp_path / RECORD).write_text(json.dumps(plan | {"tuning": {"steps": 30}}))
    run = tmp_path / RUN
    (run / "checkpoints/step-20").mkdir(parents=True)
    (run / "LOCK").touch()
    recipe = {"name": "finetune-masks", "init": f"elsewhere/{START}"}
    (run / "recipe.json").write_text(json.dumps(recipe))
    (run / "notes.txt").write_text("mine")
    check_own(tmp_path)
    assert continued(tmp_path, plan).tuning == Tuning(30) and (run / "checkpoints/step-20").exists()
    assert continued(tmp_path, plan | {"minutes": 3}).tuning is None
    assert [file.name for file in run.iterdir()] == ["notes.txt"]
    (run / "notes.txt").unlink()
    remove_run(run)
    assert not run.exists()

    # A run of another recipe
    run.mkdir()
    (run / "recipe.json").write_text(json.dumps(recipe | {"name": "mine"}))
    with pytest.raises(vitkit.BadRun, match="is not from this run"):
        check_own(tmp_path)


@pytest.mark.slow
def test_other_images_begin_again(scenes, tmp_path, capsys):
    for kind in ("photos", "masks"):
        shutil.copytree(scenes / kind, tmp_path / kind)
    shutil.copytree(scenes / "pretrained", tmp_path / "pretrained")
    (tmp_path / "photos/train/29.png").rename(tmp_path / "later.png")
    first = make(tmp_path, tmp_path / "run")
    (tmp_path / "later.png").rename(tmp_path / "photos/train/29.png")
    capsys.readouterr()
    second = make(tmp_path, tmp_path / "run")
    said = capsys.readouterr().err
    assert "begins again: other than in the earlier call are images, digests" in said
    data = json.loads((tmp_path / "run/fine-tuned/data.json").read_text())
    assert data["counts"] == {"train": 24, "val": 6}
    written = json.loads((tmp_path / "run/masks.json").read_text())
    assert written["metrics"]["miou"]["value"] == second.accuracy
    assert second.masks.held_out != first.masks.held_out
