"""Weights fitted to a configuration: another stride of patches, and biases that it has."""

from dataclasses import replace

import pytest
import torch

from vitkit.models import named, vit
from vitkit.models.positions import resample
from vitkit.weights import at_stride, create, fitted_to, save

CONFIG = vit("mu/16", image=(64, 48), classes=3, depth=2)


def test_another_stride_is_the_same_projection_on_a_finer_grid(random_classifier):
    classifier = random_classifier(CONFIG)
    dense, sentences = at_stride(classifier, 8)
    old = classifier.model.state_dict()
    new = dense.model.state_dict()
    assert dense.model.config == replace(CONFIG, stride=8)
    for name in old:
        if name != "positions.table":
            assert new[name] is old[name] or torch.equal(new[name], old[name]), name
    expected = resample(old["positions.table"], (4, 3), (7, 5), CONFIG.resample)
    assert torch.equal(new["positions.table"], expected)
    assert sentences == [
        "patches of 16 x 16 pixels every 8 x 8, cut by the same projection",
        "resampled: the position table from 4 x 3 to 7 x 5 patches, as google does",
    ]
    assert dense.preprocessing == classifier.preprocessing


def test_its_own_stride_is_the_same_model(random_classifier):
    classifier = random_classifier(CONFIG)
    for stride in (None, 16, (16, 16)):
        same, sentences = at_stride(classifier, stride)
        assert same is classifier and sentences == []


def test_the_preprocessing_follows_a_size_that_fits(random_classifier):
    classifier = random_classifier(CONFIG)
    dense, _ = at_stride(classifier, 12)
    assert dense.model.config.image == dense.preprocessing.size == (64, 40)


def test_a_hybrids_stride_is_in_pixels(random_classifier, tmp_path):
    """Its configuration has it in positions of the feature map, of 4 pixels each."""
    config = vit("R+mu/8", image=64, classes=3)
    classifier = random_classifier(config)
    dense, sentences = at_stride(classifier, 8)
    assert dense.model.config == replace(config, stride=2)
    assert sentences[0].startswith("patches of 16 x 16 pixels every 8 x 8")
    fitted, _ = fitted_to(classifier, replace(config, stride=2), ("a", "b", "c"))
    save(classifier, tmp_path / "model")
    created = create("R+mu/8", stride=2, image=64, classes=3, weights=tmp_path / "model")
    images = torch.randn(2, 3, 64, 64)
    assert torch.equal(fitted.model.features(images), dense.model.features(images))
    assert torch.equal(created.eval()(images), dense.model(images))


def test_a_resnet_has_no_stride(random_classifier):
    classifier = random_classifier(named("BN-R50", image=(64, 64), classes=3))
    with pytest.raises(ValueError, match="a ResNet has no patches"):
        at_stride(classifier, 8)


def test_weights_follow_a_configurations_stride_size_and_channels(random_classifier):
    classifier = random_classifier(CONFIG)
    wanted = replace(CONFIG, stride=8, image=(40, 40), channels=1, classes=2, resample="timm")
    fitted, sentences = fitted_to(classifier, wanted, ("x", "y"))
    assert fitted.model.config == wanted
    table = classifier.model.positions.table
    assert torch.equal(fitted.model.positions.table, resample(table, (4, 3), (4, 4), "timm"))
    assert "resampled: the position table from 4 x 3 to 4 x 4 patches, as timm does" in sentences
    assert "newly made: a head of 2 classes, all zeros" in sentences


def test_the_head_is_new_even_for_the_same_labels(random_classifier):
    classifier = random_classifier(CONFIG)
    assert classifier.model.head.weight.any()
    fitted, _ = fitted_to(classifier, CONFIG, classifier.labels)
    assert not fitted.model.head.weight.any()


def test_a_new_head_reads_what_the_configuration_says(random_classifier):
    classifier = random_classifier(replace(CONFIG, representation=24))
    wanted = replace(CONFIG, pool="token-quarters", classes=2)
    fitted, sentences = fitted_to(classifier, wanted, ("x", "y"))
    assert fitted.model.config == wanted and fitted.model.head.weight.shape == (2, 5 * CONFIG.width)
    assert 'the new head reads "token-quarters" (pooling), not "token"' in sentences
    old = classifier.model.state_dict()
    for name, weight in fitted.model.state_dict().items():
        if name.startswith("head."):
            assert not weight.any()
        else:
            assert torch.equal(weight, old[name]), name
    x = torch.randn(2, 3, 64, 48)
    torch.testing.assert_close(fitted.model.features(x)[:, :32], classifier.model.encode(x)[:, 0])


def test_weights_without_biases_get_zeros_where_they_are_asked_for(random_classifier):
    classifier = random_classifier(replace(CONFIG, qkv_bias=False))
    fitted, sentences = fitted_to(classifier, CONFIG, ("a", "b", "c"))
    assert fitted.model.config == CONFIG
    images = torch.randn(2, 3, 64, 48)
    assert torch.equal(fitted.model.features(images), classifier.model.features(images))
    assert "newly made: biases of queries, keys and values, all zeros" in sentences


def test_create_takes_published_weights_at_another_stride(random_classifier, tmp_path):
    classifier = random_classifier(CONFIG)
    save(classifier, tmp_path / "model")
    settings = {"classes": 3, "depth": 2, "weights": tmp_path / "model"}
    dense = create("mu/16", stride=8, **settings)
    expected, _ = at_stride(classifier, 8)
    assert dense.config == expected.model.config
    images = torch.randn(2, 3, 64, 48)
    assert torch.equal(dense.eval()(images), expected.model(images))
    other = create("mu/16", stride=8, image=(40, 40), **settings)
    assert other.config.grid == (4, 4)
