"""Features: one row an image, whatever the batches and the ranks; and what the cache keeps."""

import os
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from processes import together

from vitkit.data import Preprocessing, open_source, subset
from vitkit.evaluation import compute_features
from vitkit.models import create, vit
from vitkit.system.errors import BadImage
from vitkit.system.processes.ranks import process_group
from vitkit.weights import Classifier, adopt, feature_settings

room = import_module("vitkit.evaluation.probes.features")  # the function of this name hides it


def classifier_for(side=8, seed=0, **changes):
    config = vit("mu/4", image=(side, side), depth=1, **changes)
    model = create(config, seed=seed).eval()
    labels = tuple(map(str, range(config.classes)))
    return Classifier(model, Preprocessing(size=(side, side)), labels)


@pytest.fixture(scope="module")
def digits():
    """A hundred digits: no multiple of a batch."""
    return subset(open_source("digits"), range(100))


@pytest.fixture
def classifier():
    return classifier_for(classes=10)


@pytest.fixture
def computed(monkeypatch):
    """How often features were computed, not taken from the cache."""
    calls = []
    compute = room._compute
    monkeypatch.setattr(room, "_compute", lambda *args: calls.append(1) or compute(*args))
    return calls


def cache_files():
    return sorted(Path(os.environ["VITKIT_CACHE"], "features").glob("*"))


def test_every_image_has_one_row_in_the_order_of_the_source(classifier, digits):
    x, y = compute_features(classifier, digits)
    assert x.shape == (100, 32) and x.dtype == np.float32
    assert y.tolist() == digits.targets.tolist()
    for i in (0, 63, 64, 99):
        image = torch.from_numpy(digits[i][0]).expand(1, 3, -1, -1)
        alone = classifier.features(image).numpy()[0]
        np.testing.assert_allclose(x[i], alone, rtol=1e-4, atol=1e-5)


def test_what_was_computed_once_is_read_from_the_cache(classifier, digits, computed):
    first, _ = compute_features(classifier, digits)
    again, _ = compute_features(classifier, digits)
    assert len(computed) == 1 and np.array_equal(first, again)

    # What features do not depend on: the head, the labels, the name of the data
    other_head, _ = adopt(classifier, labels=("cat", "dog"))
    relabelled = replace(digits, targets=np.zeros(100, np.int64), labels=("digit",))
    moved = replace(digits, store=replace(digits.store, title="elsewhere"))
    _, y = compute_features(other_head, relabelled)
    compute_features(classifier, moved)
    assert len(computed) == 1 and not y.any()


def test_other_weights_images_preprocessing_or_arithmetic_are_computed(
    classifier, digits, computed
):
    compute_features(classifier, digits)
    brighter = digits.store.array.copy()
    brighter[digits.rows[7], 0, 0] += 1
    changed = replace(digits, store=replace(digits.store, array=brighter))
    colder = replace(classifier.preprocessing, mean=(0.4, 0.5, 0.5))
    others = [
        (classifier_for(classes=10, seed=1), digits),
        (replace(classifier, preprocessing=colder), digits),
        (classifier, changed),
        (classifier, subset(digits, range(99, -1, -1))),
    ]
    rows = [compute_features(*each).x for each in others]
    with torch.autocast("cpu", torch.bfloat16):
        compute_features(classifier, digits)
    assert len(computed) == 6
    assert np.array_equal(rows[3][::-1], compute_features(classifier, digits).x)


def test_a_model_in_training_keeps_nothing(classifier, digits, computed):
    compute_features(classifier, digits, cached=False)
    compute_features(classifier, digits, cached=False)
    assert len(computed) == 2 and not cache_files()


def test_large_features_are_mapped_from_their_file(classifier, digits, monkeypatch):
    monkeypatch.setattr(room, "MAPPED", 1000)
    for _ in range(2):
        x, _ = compute_features(classifier, digits)
        assert isinstance(x, np.memmap) and not x.flags.writeable


def test_the_cache_is_bounded(classifier, digits, monkeypatch):
    """Of three sets of 12,928 bytes two fit; the one that was used least recently goes."""
    monkeypatch.setattr(room, "KEPT", 30_000)
    sets = [subset(digits, np.roll(range(100), shift)) for shift in range(3)]
    files = []
    for number, each in enumerate(sets[:2]):
        compute_features(classifier, each)
        files += set(cache_files()) - set(files)
        os.utime(files[-1], (number, number))
    compute_features(classifier, sets[0])  # now the second is the oldest
    compute_features(classifier, sets[2])
    assert files[0].exists() and not files[1].exists() and len(cache_files()) == 2


def test_what_cannot_be_kept_is_computed_all_the_same(classifier, digits, monkeypatch, capsys):
    monkeypatch.setattr(room, "KEPT", 100)
    x, _ = compute_features(classifier, digits)
    assert len(x) == 100 and not cache_files()
    assert "the features are not cached" in capsys.readouterr().err


def test_a_damaged_file_of_the_cache_is_computed_anew(classifier, digits, computed):
    first, _ = compute_features(classifier, digits)
    (file,) = cache_files()
    file.write_bytes(file.read_bytes()[:-100])
    again, _ = compute_features(classifier, digits)
    assert len(computed) == 2 and np.array_equal(first, again)


def test_what_has_no_features_is_a_sentence(classifier, digits, folder):
    with pytest.raises(ValueError, match="no images, so there are no features"):
        compute_features(classifier, subset(digits, []))
    with pytest.raises(ValueError, match="returns 4 x 32 numbers for an image"):
        compute_features(classifier_for(pool="none", classes=0, class_token=False), digits)
    broken = folder({"cat/1.jpg": 40, "cat/2.jpg": 0})
    with pytest.raises(BadImage, match=r"2\.jpg"):
        compute_features(classifier, open_source(str(broken)))
    with pytest.raises(ValueError, match="100 of 100 images are missing"):
        compute_features(classifier, digits, batches=[])


def save_features(path):
    with process_group("cpu"):
        rank = int(os.environ["RANK"])
        digits = subset(open_source("digits"), range(100))
        np.save(f"{path}-{rank}.npy", compute_features(classifier_for(classes=10), digits).x)


def test_three_ranks_have_the_features_of_one(classifier, digits, tmp_path, monkeypatch):
    """100 images are no multiple of three, nor of three batches."""
    monkeypatch.setattr(room, "BATCH", 7)
    alone, _ = compute_features(classifier, digits, cached=False)
    monkeypatch.setattr(room, "EXCHANGED", 1)  # after every batch
    assert together(3, save_features, tmp_path / "x") == [0, 0, 0]
    for rank in range(3):
        assert np.array_equal(np.load(tmp_path / f"x-{rank}.npy"), alone)
    assert len(cache_files()) == 1


def test_a_model_is_known_by_what_it_was_before_heads_read_several_blocks():
    """Or caches would be of no use, and what a model was taught would be forgotten."""
    config = vit("mu/8", image=(16, 16), depth=2, classes=2)
    classifier = Classifier(create(config, seed=0), Preprocessing(size=(16, 16)), ("a", "b"))
    assert "read_blocks" not in feature_settings(classifier)["config"]
    wider = create(replace(config, read_blocks=2), seed=0)
    assert feature_settings(replace(classifier, model=wider))["config"]["read_blocks"] == 2
