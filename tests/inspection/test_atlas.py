"""Every figure of every sort of model: nothing breaks, and what has no meaning is left out with a
sentence."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from inspected import FAMILY, GRID, IMAGES, classifier, small

from vitkit.inspection import attention_distance, class_relevance, raw_attention, rollout
from vitkit.inspection.catalogue import FIGURES, Subject
from vitkit.inspection.plots import LIGHT
from vitkit.models import Backbone, LeNetConfig, ResNetConfig
from vitkit.verbs import Figure

IMAGES_OF_SIZES = torch.cat([IMAGES, IMAGES.flip(2)])
KINDS = {kind.name: kind for kind in FIGURES}
OF_ATTENTION = {"distance", "entropy", "rollout", "relevance", "attention", "norms", "occlusion"}
OF_AN_ANSWER = {"rollout", "relevance", "attention", "occlusion"}
MODELS = FAMILY | {
    "no head": replace(small(), classes=0),
    "ResNet": ResNetConfig(Backbone((1, 1)), (64, 96), classes=5),
    "axial ResNet": ResNetConfig(Backbone((1, 1), mixer="axial"), (64, 96), classes=5),
}
WITHOUT = {
    "corner": {"positions"},
    "no pooling": OF_AN_ANSWER,
    "no head": {"relevance", "occlusion"},
    "ResNet": OF_ATTENTION | {"positions"},
    "axial ResNet": OF_ATTENTION | {"positions"},
}
"""What has no meaning, by model."""
DRAWN = ("axial", "ResNet")  # drawing takes longer than computing


def test_the_command_names_them_all():
    assert Figure.__args__ == tuple(KINDS)
    for kind in FIGURES:
        assert kind.title and kind.text.endswith(".")


@pytest.mark.parametrize("name", MODELS)
def test_every_figure_of_every_model(name):
    own = classifier(MODELS[name])
    subject = Subject(own, IMAGES_OF_SIZES, ("one", "two"))
    left_out = set()
    for kind in FIGURES:
        try:
            plate = kind.make(subject)
        except ValueError as error:
            left_out.add(kind.name)
            assert len(str(error).split()) > 10
            continue
        if name in DRAWN:
            plate.draw(LIGHT)
        for array in plate.arrays.values():
            assert array.dtype != object  # no pickle is needed to write it
    assert left_out == WITHOUT.get(name, set())


def test_of_another_size_than_the_model_was_made_for():
    own = classifier(small())
    images = torch.cat([IMAGES_OF_SIZES, IMAGES_OF_SIZES], 2)  # 128 x 96
    subject = Subject(own, images, ("one",))
    for kind in FIGURES:
        plate = kind.make(subject)
        if kind.name == "rollout":
            assert plate.arrays["rollout"].shape == (1, 8, 6)


def test_a_subject_says_what_is_looked_at():
    own = classifier(small())
    subject = Subject(own, IMAGES_OF_SIZES, ("one", "two"), target=2, layer=0, patch=(1, 2))
    relevance = KINDS["relevance"].make(subject).arrays
    np.testing.assert_allclose(relevance["relevance"], class_relevance(own, IMAGES, 2))
    attention = KINDS["attention"].make(subject).arrays
    assert list(attention) == ["mean_of_the_heads", "head_1", "head_2"]
    expected = raw_attention(own, IMAGES, 0, 1, (1, 2))
    np.testing.assert_allclose(attention["head_2"], expected)
    np.testing.assert_allclose(
        KINDS["rollout"].make(subject).arrays["rollout"], rollout(own, IMAGES)
    )
    # What is said of the model is the mean of all images
    distance = KINDS["distance"].make(subject).arrays
    assert distance["images"] == 4
    expected = attention_distance(own, IMAGES_OF_SIZES).plain
    np.testing.assert_allclose(distance["plain"], expected, rtol=1e-6)
    similarity = KINDS["similarity"].make(subject).arrays
    assert similarity["similarity"].shape == (2, *GRID)
    np.testing.assert_allclose(similarity["similarity"][:, 1, 2], 1, rtol=1e-6)


def test_lenet_has_what_a_network_of_convolutions_has():
    own = classifier(LeNetConfig(channels=3, classes=5))
    subject = Subject(
        own, torch.zeros(4, 3, 32, 32, dtype=torch.uint8), ("one",)
    )  # of one position
    made = set()
    for kind in FIGURES:
        try:
            kind.make(subject)
        except ValueError:
            continue
        made.add(kind.name)
    assert made == {"filters", "similarity", "alignment"}
