"""Early exit: an image has the answer of the first exit that is sure, and no other image changes it."""

import numpy as np
import pytest
import torch

from vitkit.data import Preprocessing
from vitkit.models import EarlyExit, Exit, create, states_at, vit
from vitkit.prediction import exiting, fit_exits, merging
from vitkit.weights import Classifier

SMALL = vit("mu/8", image=(32, 48), classes=5, depth=4, width=24, heads=3, mlp=48)


@pytest.fixture(scope="module")
def model():
    network = create(SMALL, seed=0).eval()
    torch.nn.init.normal_(network.head.weight, generator=torch.Generator().manual_seed(0))
    return network


IMAGES = torch.randn(8, 3, 32, 48, generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def test_each_image_has_the_answer_of_its_first_sure_exit(model):
    generator = torch.Generator().manual_seed(2)
    exits = []
    for after in (1, 3):
        weight = torch.eye(24) + 0.3 * torch.randn(24, 24, generator=generator)
        exits.append(Exit(after, weight, torch.zeros(24)))
    early, late, features = states_at(model, IMAGES, (1, 3))
    given = [model.head(exits[0](early)), model.head(exits[1](late)), model.head(features)]
    chances = [logits.softmax(-1).amax(-1) for logits in given]
    sure = float(chances[0].sort().values[4])  # some images leave at the first exit

    logits, blocks = EarlyExit(model, exits, sure).answer(IMAGES)
    for i in range(len(IMAGES)):
        expected = 2
        if chances[0][i] >= sure:
            expected = 0
        elif chances[1][i] >= sure:
            expected = 1
        assert blocks[i] == (1, 3, 4)[expected]
        torch.testing.assert_close(logits[i], given[expected][i], atol=1e-5, rtol=1e-5)
    assert len(set(blocks.tolist())) > 1


@torch.no_grad()
def test_fitted_exits_foretell_the_features(model):
    """What is linear in the states is found; a sure exit never taken leaves the model's answers."""
    labels = tuple("abcde")
    classifier = Classifier(model, Preprocessing(size=(32, 48)), labels)
    images = np.random.default_rng(0).integers(0, 256, (60, 3, 32, 48), dtype=np.uint8)
    exits = fit_exits(classifier, images, (2, 3))
    normalised = classifier.preprocessing.normalise(torch.from_numpy(images))
    *states, features = states_at(model, normalised, (2, 3))
    for each, x in zip(exits, states, strict=True):
        missed = (each(x) - features).square().mean()
        assert missed < 0.5 * (features - features.mean(0)).square().mean()
    never = exiting(classifier, exits, 1.0).logits(torch.from_numpy(images))
    torch.testing.assert_close(never, classifier.logits(torch.from_numpy(images)))
    assert merging(classifier, 2).logits(torch.from_numpy(images)).shape == (60, 5)


def test_what_cannot_exit_is_a_sentence(model):
    with pytest.raises(ValueError, match="after 4 blocks is not possible"):
        EarlyExit(model, [Exit(4, torch.eye(24), torch.zeros(24))], 0.5)
    with pytest.raises(ValueError, match="above 0, up to 1"):
        EarlyExit(model, [], 0.0)
    classifier = Classifier(model, Preprocessing(size=(32, 48)), tuple("abcde"), "sigmoid")
    with pytest.raises(ValueError, match="early exit needs one class an image"):
        exiting(classifier, [], 0.5)
    with pytest.raises(ValueError, match="10 images at least"):
        fit_exits(classifier, np.zeros((3, 3, 32, 48), np.uint8))
