"""A larger grid of patches is tried if the clock allows it, and kept if cross-validated predictions are better."""

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from pictures import encoded
from processes import together

import vitkit
from vitkit.data import Columns, Preprocessing
from vitkit.finetuning.segmentation import beginning, fine_tuning, grid, run
from vitkit.finetuning.segmentation.closed_form import FINER, Reading, ToLogits, Tried, counts_of
from vitkit.finetuning.segmentation.directory import RECORD, Decided, continued
from vitkit.finetuning.segmentation.fine_tuning import Tuning
from vitkit.finetuning.segmentation.first_model import FirstModel, first_model
from vitkit.finetuning.segmentation.grid import SHARE, Clock, Times, compared, larger_grid
from vitkit.finetuning.segmentation.request import MaskRequest, held_out_of, read_parts
from vitkit.models import create, vit
from vitkit.weights import Classifier, dense, load, save

COLOURS = np.array([[200, 60, 60], [60, 60, 200]])
CONFIG = vit("mu/16", image=(16, 16), patch=4, depth=2, classes=2)
PUBLISHED = Classifier(create(CONFIG, seed=0), Preprocessing(size=(16, 16)), ("a", "b"))
DEFAULT = 64  # patches
IDENTITY = ToLogits(torch.eye(2), torch.zeros(2))


# The clock


def test_the_time_of_a_larger_grid_grows_as_its_patches_or_faster():
    assert Times(first=30, image=1, larger=1.2).trying(2) == 60
    assert Times(first=30, image=1, larger=2.5).trying(2) == 75
    # Trying it takes at most a share of the minutes, and all of it fits
    times = Times(first=30, image=1, larger=2)
    assert Clock(9, spent=40, images=0).minutes_for(times, 2) == pytest.approx(60 / SHARE / 60)
    assert Clock(9, spent=40, images=200).minutes_for(times, 2) == pytest.approx(500 / 60)


@pytest.mark.parametrize(
    "minutes, spent, images, expected",
    [(6, 30, 10, 3), (5, 30, 10, 2), (3.5, 30, 10, 1.5), (2, 30, 10, 0), (5, 30, 130, 1.5), (20, 1e4, 10, 0)],
)  # fmt: skip
def test_the_largest_grid_that_fits_is_tried(minutes, spent, images, expected, monkeypatch, capsys):
    """An image takes as many seconds as it has multiples of the default patches, and the first model 30."""
    asked = []

    def seconds_of_image(classifier, *rest):
        asked.append(classifier.preprocessing.patches / DEFAULT)
        return asked[-1] * 1.0

    monkeypatch.setattr(grid, "seconds_of_image", seconds_of_image)
    first = model_of([], [], DEFAULT, np.arange(8))
    clock = Clock(minutes, spent, images)
    found = larger_grid(PUBLISHED, first, None, None, "float32", 30.0, clock)
    said = capsys.readouterr().err
    if expected:
        assert found / DEFAULT == pytest.approx(expected, rel=0.1)
        assert asked[-1] == found / DEFAULT and not said
    else:
        assert not found
        assert f"64 patches: trying 90 would take too long for {minutes:g} minutes" in said

    # Memory is too small for the larger ones
    def too_small(classifier, *rest):
        if classifier.preprocessing.patches > 1.7 * DEFAULT:
            raise torch.OutOfMemoryError("of a test")
        return 1.0

    monkeypatch.setattr(grid, "seconds_of_image", too_small)
    found = larger_grid(PUBLISHED, first, None, None, "float32", 30.0, Clock(99, 0, 0))
    assert found / DEFAULT == pytest.approx(1.5, rel=0.1)
    assert "patches of an image need too much memory" in capsys.readouterr().err
    few = first._replace(numbers=np.arange(4))
    assert not larger_grid(PUBLISHED, few, None, None, "float32", 30.0, Clock(99, 0, 0))


# The choice


def masks_of(count, size):
    """Masks of large regions, uint8 (size, size) each."""
    random = np.random.default_rng(0)
    coarse = random.integers(0, 2, (count, 4, 4)).astype(np.uint8)
    return list(coarse.repeat(size // 4, 1).repeat(size // 4, 2))


def model_of(masks, wrong, patches, numbers):
    """A first model whose predictions for these images are wrong in such a share of their pixels."""
    random = np.random.default_rng(1)
    maps = []
    counts = []
    for mask, share in zip(masks, wrong, strict=True):
        predicted = np.where(random.random(mask.shape) < share, 1 - mask, mask)
        maps.append(torch.from_numpy(np.stack([predicted == 0, predicted == 1])).half())
        counts.append(counts_of(mask, predicted, 2))
    classifier = dense(PUBLISHED, ("a", "b"), 1, patches)
    tried = Tried(Reading(1, 0.1), np.array(counts), maps)
    return FirstModel(classifier, classifier, tried, [tried], IDENTITY, numbers, masks)


def test_a_larger_grid_is_kept_if_it_is_better_by_more_than_its_standard_error():
    numbers = np.arange(12)
    coarse = masks_of(12, FINER * 8)
    fine = masks_of(12, FINER * 11 // 4 * 4)
    random = np.random.default_rng(2)
    noise = random.uniform(0, 0.05, 12)
    poor = model_of(coarse, 0.2 + noise, DEFAULT, numbers)
    good = model_of(fine, 0.1 + noise, 121, numbers)
    found = compared(poor, good, None)
    assert found.is_better and found.gain.value > 0.1 and found.images == 12
    assert (found.patches, found.default) == (121, 64)
    assert "images are read in 121 patches: with 121 instead of 64" in str(found)
    assert json.loads(json.dumps(found.to_json()))["is_better"] is True

    good = model_of(coarse, 0.1 + noise, DEFAULT, numbers)
    poor = model_of(fine, 0.2 + noise, 121, numbers)
    found = compared(good, poor, None)
    assert not found.is_better and found.gain.value < -0.1
    assert "images are read in 64 patches: with 121 instead of 64" in str(found)

    # Better in one image alone, which is no more than chance
    one = np.array([0.3, *[0.0] * 11])
    first = model_of(coarse, one, DEFAULT, numbers)
    found = compared(first, model_of(fine, 0 * one, 121, numbers), None)
    assert found.gain.value > 0 and found.gain.standard_error > 0.9 * found.gain.value


def test_the_same_images_are_compared_at_the_same_resolution():
    """Predictions that are right at their own resolution are as good at another, and each is that of its image."""
    coarse = masks_of(12, FINER * 8)
    fine = masks_of(12, FINER * 16)
    first = model_of(coarse, [0.0] * 12, DEFAULT, np.arange(12))
    kept = np.array([1, 3, 4, 7, 9, 11])  # memory limits how many a larger grid has
    larger = model_of([fine[i] for i in kept], [0.0] * 6, 256, kept)
    found = compared(first, larger, None)
    assert found.images == 6 and abs(found.gain.value) < 0.02
    groups = np.arange(12) // 2
    assert compared(first, larger, groups).gain.value == found.gain.value
    assert compared(first, larger, np.zeros(12, np.int64)).gain is None  # all show one thing

    # A class that no mask has counts in neither, wherever it is predicted
    counts = np.pad(larger.best.counts, ((0, 0), (0, 0), (0, 1)))
    stray = counts.copy()
    stray[0, 1, 2] = 1
    maps = [F.pad(each, (0, 0, 0, 0, 0, 1)) for each in first.best.maps]
    three = first._replace(
        best=first.best._replace(maps=maps), to_logits=ToLogits(torch.eye(3), torch.zeros(3))
    )
    for each in (counts, stray):
        found = compared(three, larger._replace(best=larger.best._replace(counts=each)), None)
        assert abs(found.gain.value) < 0.02
    few = larger._replace(numbers=np.array([1, 3, 4, 7, 20, 21]))
    found = compared(first, few, None)
    assert found.gain is None and not found.is_better and found.images == 4
    assert "64 patches: too few that do not belong together were kept" in str(found)


# The command


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    """Photographs of small squares in front of noise, with masks, and a small pre-trained model."""
    folder = tmp_path_factory.mktemp("scenes")
    random = np.random.default_rng(0)
    for number in range(36):
        mask = np.zeros((64, 64), np.uint8)
        for _ in range(6):
            top, left = random.integers(0, 58, 2)
            mask[top : top + 6, left : left + 6] = 1
        pixels = np.clip(COLOURS[mask] + random.normal(0, 20, (64, 64, 3)), 0, 255)
        part = "train" if number < 30 else "test"
        for kind, content in (("photos", pixels.astype(np.uint8)), ("masks", mask)):
            file = folder / kind / part / f"{number}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(encoded(content, "PNG"))
    save(PUBLISHED, folder / "pretrained")
    return folder


def make(scenes, run_dir, **settings):
    return vitkit.finetune(
        str(scenes / "pretrained"), str(scenes / "photos"), masks=str(scenes / "masks"),
        workdir=run_dir, device="cpu", **{"minutes": 30, **settings},
    )  # fmt: skip


class Killed(BaseException):
    """Ends a command as a signal does."""


def never(*_):
    raise AssertionError("this was decided before")


@pytest.mark.slow
def test_the_choice_is_recorded_and_a_killed_command_makes_the_same_one(
    scenes, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(beginning, "larger_grid", lambda *_: 196)
    monkeypatch.setattr(beginning, "tuning_for", lambda *_: Tuning(30, 0.01, 1.0))
    monkeypatch.setattr(fine_tuning, "FEWEST", 20)  # steps
    monkeypatch.setattr(fine_tuning, "EPOCHS", 1)
    made = make(scenes, tmp_path / "run")
    said = capsys.readouterr().err
    assert "images are read in 196 patches: with 196 instead of 64" in said
    written = json.loads((tmp_path / "run" / RECORD).read_text())
    assert written["grid"]["patches"] == 196 and written["grid"]["is_better"]
    assert written["grid"]["gain"] > written["grid"]["standard_error"]
    assert written["grid"]["images"] == 24  # not the held-out ones
    assert made.classifier.preprocessing.patches == 196
    assert "tokens=392" in str(made)
    start = load(tmp_path / "run/closed-form", quiet=True)
    assert start.preprocessing.patches == 196
    tuned = json.loads((tmp_path / "run/fine-tuned/recipe.json").read_text())
    assert tuned["data"]["preprocessing"]["size"] == [56, 56]

    # Killed while the larger grid is tried, and then in the fine-tuning
    second = beginning.first_model

    def killed(published, train, numbers, tokens, *rest):
        if tokens is not None:
            raise Killed
        return second(published, train, numbers, tokens, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(beginning, "first_model", killed)
        with pytest.raises(Killed):
            make(scenes, tmp_path / "killed")
    assert load(tmp_path / "killed", quiet=True).preprocessing.patches == 64
    monkeypatch.setattr(beginning, "larger_grid", never)
    with monkeypatch.context() as patch:
        patch.setattr(run, "fine_tuned", lambda *_: (_ for _ in ()).throw(Killed()))
        with pytest.raises(Killed):
            make(scenes, tmp_path / "killed")
    monkeypatch.setattr(beginning, "tuning_for", never)
    make(scenes, tmp_path / "killed")
    for part in ("fine-tuned", "model", "closed-form"):
        ours, theirs = (
            load(tmp_path / name / part, quiet=True).model.state_dict()
            for name in ("run", "killed")
        )
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.slow
def test_a_grid_that_is_no_better_is_not_kept(scenes, tmp_path, monkeypatch):
    monkeypatch.setattr(beginning, "larger_grid", lambda *_: 36)  # in fact a smaller one
    monkeypatch.setattr(beginning, "tuning_for", lambda *_: Tuning(0))
    made = make(scenes, tmp_path / "run")
    written = json.loads((tmp_path / "run" / RECORD).read_text())
    assert not written["grid"]["is_better"] and written["grid"]["patches"] == 36
    assert "36 of them were not better" in str(made) and "tokens=" not in str(made)
    assert made.classifier.preprocessing.patches == 64

    # Where none fits, the same command asks no clock again
    for decide in (lambda *_: 0, never):
        monkeypatch.setattr(beginning, "larger_grid", decide)
        make(scenes, tmp_path / "none")
        assert json.loads((tmp_path / "none" / RECORD).read_text())["grid"] == {"patches": 0}

    # Without a choice: a grid that the caller gives, and no time
    monkeypatch.setattr(beginning, "larger_grid", never)
    for settings in ({"tokens": 100}, {"image": (32, 32)}, {"minutes": 0}):
        make(scenes, tmp_path / "run", **settings)
        assert "grid" not in json.loads((tmp_path / "run" / RECORD).read_text())


def test_what_an_earlier_call_decided_is_read_from_the_record(tmp_path):
    plan = {"init": "weights", "data": "photos", "masks": "masks"}
    for content, expected in (
        ({}, Decided(None, None)),
        ({"grid": {"patches": 90, "is_better": True}}, Decided(90, None)),
        ({"tuning": {"steps": 30}}, Decided(0, Tuning(30))),
        ({"grid": {"patches": 90}, "tuning": {"steps": 30}}, Decided(90, Tuning(30))),
        ({"grid": {"patches": "many"}}, Decided(None, None)),
        ({"grid": {"patches": -5}}, Decided(0, None)),
    ):
        (tmp_path / RECORD).write_text(json.dumps(plan | content))
        assert continued(tmp_path, plan) == expected
        assert continued(tmp_path, plan | {"minutes": 3}) == Decided()
    assert Decided(90, Tuning(30)).to_json().keys() == {"grid", "tuning"}
    assert Decided(0, None).to_json() == {"grid": {"patches": 0}} and Decided().to_json() == {}

    # A record of a version that knew no list of images to leave out
    (tmp_path / RECORD).write_text(json.dumps(plan | {"grid": {"patches": 90}}))
    assert continued(tmp_path, plan | {"exclude": ""}) == Decided(90)
    assert continued(tmp_path, plan | {"exclude": "bad.txt"}) == Decided()


@pytest.mark.slow
def test_held_out_and_test_images_have_no_part_in_the_choice(scenes, tmp_path):
    request = MaskRequest("", str(scenes / "photos"), str(scenes / "masks"), None, None, Columns(), None, 2)  # fmt: skip
    parts = read_parts(request).parts
    _, numbers = held_out_of(parts)
    models = [
        first_model(PUBLISHED, parts["train"], numbers, patches, torch.device("cpu"), "float32")
        for patches in (None, 196)
    ]
    for model in models:
        assert not set(model.numbers) & set(numbers.tolist()) and len(model.masks) == 24
    found = compared(*models, None)
    assert found.images == 24
    assert found.gain == compared(*models, np.arange(30)).gain


@pytest.mark.slow
def test_several_processes_take_the_choice_of_the_first(scenes, tmp_path, monkeypatch):
    monkeypatch.setattr(beginning, "larger_grid", lambda *_: 196)
    monkeypatch.setattr(beginning, "tuning_for", lambda *_: Tuning(20, 0.01, 1.0))
    monkeypatch.setattr(fine_tuning, "FEWEST", 20)  # steps
    monkeypatch.setattr(fine_tuning, "EPOCHS", 1)

    def act():
        make(scenes, tmp_path / "two", quiet=True)

    assert together(2, act) == [0, 0]
    assert load(tmp_path / "two/fine-tuned", quiet=True).preprocessing.patches == 196
    assert json.loads((tmp_path / "two" / RECORD).read_text())["grid"]["is_better"]
