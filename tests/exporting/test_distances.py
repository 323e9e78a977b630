"""A wrong file of a model of good images is noticed, though its probabilities are nearly all 0 or 1."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from margins import at_most

from vitkit.data import Preprocessing
from vitkit.exporting.agreement import Agreement
from vitkit.exporting.bounds import wrong
from vitkit.exporting.distances import classifier_with_map, distances
from vitkit.inspection import logits_and_patch_logits
from vitkit.models import create, vit
from vitkit.runtimes import Exported, FileRuntime, eager
from vitkit.system.errors import BadWeights
from vitkit.weights import Classifier


@pytest.fixture
def classifier():
    config = vit("mu/16", image=(32, 32), patch=8, classes=2, depth=2, pool="memory", memory=20)
    model = create(config, seed=0)
    with torch.no_grad():
        model.head.weight.copy_(torch.tensor([[0.0], [400.0]]))
        model.head.bias.copy_(torch.tensor([0.0, -400 * 0.3]))
    return Classifier(model.eval(), Preprocessing(size=(32, 32)), ("good", "unlike"))


def file_with(classifier, tmp_path, change=lambda logits: logits, pictures=False):
    """A file whose logits are changed."""

    def compute(images):
        if pictures:
            images = np.ascontiguousarray(images.transpose(0, 3, 1, 2))
        logits, of_patches = logits_and_patch_logits(classifier, torch.from_numpy(images))
        maps = change(of_patches).softmax(-1)[..., 1]
        logits = change(logits)
        return [(logits.softmax(-1) if pictures else logits).numpy(), maps.numpy()]

    exported = Exported(
        classifier.preprocessing, classifier.labels, "softmax", takes_pictures=pictures
    )
    return FileRuntime(tmp_path / "a.onnx", exported, "none", compute, "float32")


def images():
    return np.random.default_rng(0).integers(0, 256, (6, 3, 32, 32), dtype=np.uint8)


def test_distances_differ_where_probabilities_do_not(classifier, tmp_path):
    same = file_with(classifier, tmp_path)
    assert classifier_with_map(eager(classifier, "cpu"), same) is not None
    assert classifier_with_map(same, same) is None
    found = distances(classifier, same, images(), ()).differences
    at_most(max(found), 1e-6)

    # Scores of 400 times the distance: all probabilities of these images are 1, of this file too
    nearer = file_with(classifier, tmp_path, lambda logits: logits * 0.8)
    logits, _ = logits_and_patch_logits(classifier, torch.from_numpy(images()))
    at_most(abs(logits.softmax(-1) - (0.8 * logits).softmax(-1)).max().item(), 1e-6)
    found = distances(classifier, nearer, images(), ()).differences
    assert found.scores > 0.01
    broken = file_with(classifier, tmp_path, lambda logits: logits * np.nan)
    assert np.isnan(distances(classifier, broken, images(), ()).differences).all()


def test_a_map_that_is_too_low_is_noticed(classifier, tmp_path):
    """A saturated probability says only that a distance is large; one that is not says how large."""
    lower = file_with(classifier, tmp_path, lambda logits: logits * 0.01)
    assert distances(classifier, lower, images(), ()).differences.maps > 0.1


@pytest.mark.parametrize(
    ("scores", "maps", "precision", "resizes", "is_wrong"),
    [
        (1e-6, 9e-5, "float32", False, False),
        (1e-6, 2e-4, "float32", False, True),
        (2e-4, 1e-6, "float32", False, True),
        (1e-6, 2e-4, "float32", True, False),
        (1e-6, 2e-4, "float16", False, False),
        (np.nan, 1e-6, "int8", False, True),
    ],
)
def test_what_is_accepted(scores, maps, precision, resizes, is_wrong):
    agreement = Agreement("", 50, 50, 1.0, 0.0, 0.0, 1.0, scores=scores, maps=maps, resizes=resizes)
    assert bool(wrong(agreement, precision, "softmax", 0.9)) == is_wrong
    assert not wrong(agreement, precision, "softmax", 0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda maps: maps * np.nan, "has values from nan to nan"),
        (lambda maps: maps + 0.5, "and probabilities are from 0 to 1"),
        (lambda maps: maps[:, 0], "lacks the anomaly map"),
        (lambda maps: maps[:1], "lacks the anomaly map"),
    ],
)
def test_a_map_that_is_none_is_a_sentence(classifier, tmp_path, change, words):
    right = file_with(classifier, tmp_path)
    logits, maps = right.logits_and_anomaly_map(images())
    assert maps.shape == (6, 4, 4) and logits.shape == (6, 2)

    def compute(given):
        logits, maps = right.compute(given)
        return [logits, change(maps)]

    with pytest.raises(BadWeights, match=words):
        replace(right, compute=compute).logits_and_anomaly_map(images())
