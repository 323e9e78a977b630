"""Deletion and insertion: of a model whose answer is known, and of the real one."""

import numpy as np
import pytest
import torch
from inspected import FAMILY, GRID, IMAGES, N, classifier

from vitkit.data import Preprocessing
from vitkit.inspection import occlusion_curves, rollout
from vitkit.models import Backbone, LeNetConfig, ResNetConfig
from vitkit.weights import Classifier


class Bright(torch.nn.Module):
    """Its one output is the share of white in a 16 x 16 corner."""

    def __init__(self):
        super().__init__()
        self.config = LeNetConfig(channels=3, classes=1)
        self.one = torch.nn.Parameter(torch.ones(()))

    def forward(self, images):
        return self.one * (images[:, :, :16, :16].mean((1, 2, 3))[:, None] + 1) / 2


def test_by_hand_a_model_that_sees_one_patch():
    own = Classifier(Bright(), Preprocessing(size=(64, 96)), ("white",), activation="none")
    image = torch.zeros(1, 3, 64, 96, dtype=torch.uint8)
    image[..., :16, :16] = 255
    mean = round(255 / N) / 255  # what the patch becomes when it is covered
    maps = torch.zeros(1, *GRID)
    maps[0, 0, 0] = 1
    found = occlusion_curves(own, image, maps, steps=N, orders=3)
    deletion = [1] + [mean] * N
    np.testing.assert_allclose(found.deletion[0], deletion, atol=1e-6)
    np.testing.assert_allclose(found.insertion[0], [mean] + [1] * N, atol=1e-6)
    area = (1 + mean) / 2 / N + mean * (N - 1) / N
    np.testing.assert_allclose(found.area(found.deletion), [area], rtol=1e-5)
    np.testing.assert_allclose(found.shares, np.arange(N + 1) / N)

    # The opposite map covers it last; a random order in between
    worst = occlusion_curves(own, image, -maps, steps=N, orders=3)
    np.testing.assert_allclose(worst.deletion[0], [1] * N + [mean], atol=1e-6)
    assert found.gain[0] > 0 > worst.gain[0]
    torch.testing.assert_close(found.random_deletion, worst.random_deletion)  # the same orders


def test_each_image_has_its_class_and_its_order():
    own = classifier(FAMILY["hybrid"])
    maps = rollout(own, IMAGES)  # of patches of 32 pixels
    found = occlusion_curves(own, IMAGES, maps, steps=3)
    probabilities = own.probabilities(own.logits(IMAGES)).double()
    torch.testing.assert_close(found.classes, probabilities.argmax(-1))
    torch.testing.assert_close(found.deletion[:, 0], probabilities.max(-1).values)
    torch.testing.assert_close(found.insertion[:, -1], probabilities.max(-1).values)
    torch.testing.assert_close(found.deletion[:, -1], found.insertion[:, 0])
    alone = occlusion_curves(own, IMAGES[:1], maps[:1], int(found.classes[0]), steps=3)
    torch.testing.assert_close(alone.deletion, found.deletion[:1])
    # A ResNet has no map of its own, but may be asked about another's
    resnet = classifier(ResNetConfig(Backbone((1, 1)), (64, 96), classes=5))
    assert occlusion_curves(resnet, IMAGES, maps, steps=1, orders=1).deletion.shape == (2, 2)


def test_what_does_not_fit_is_refused():
    own = classifier(FAMILY["token"])
    maps = torch.rand(2, *GRID)
    for arguments, words in (
        ((maps[:1],), "there is one"),
        ((torch.rand(2, 5, 6),), "multiples of h and w"),
        ((maps, 5), "5 classes are numbered 0 to 4"),
        ((maps, None, 25), "1 to 24 steps"),
        ((maps, None, 2, 0), "at least one order"),
    ):
        with pytest.raises(ValueError, match=words):
            occlusion_curves(own, IMAGES, *arguments)
    with pytest.raises(ValueError, match="no head with an output for an image"):
        occlusion_curves(classifier(FAMILY["no pooling"]), IMAGES, maps)


@pytest.mark.slow
def test_rollout_of_the_real_model_is_worth_something(real):
    own, images, _ = real
    found = occlusion_curves(own, images[:2], rollout(own, images[:2]), steps=5, orders=2)
    assert found.gain.mean() > 0
