"""Another task for a loaded model: what is new, what is resampled, what stays."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vitkit.models import Backbone, ResNetConfig, named, vit
from vitkit.models.positions import resample
from vitkit.weights import adopt, load, save

CONFIG = vit("mu/8", image=(32, 32), classes=7, representation=24, gelu="erf")


def test_a_new_head_is_zero_and_straight(random_classifier):
    before = random_classifier(CONFIG)
    after, sentences = adopt(before, labels=["ant", "bee"])
    assert sentences == [
        "dropped: the head of 7 classes, and its hidden layer of 24",
        "newly made: a head of 2 classes, all zeros",
    ]
    assert after.labels == ("ant", "bee")
    assert after.model.config == replace(CONFIG, classes=2, representation=0)
    x = torch.randn(2, 3, 32, 32)
    assert torch.equal(after.model(x), torch.zeros(2, 2))
    assert torch.equal(after.model.encode(x), before.model.encode(x))
    assert all(parameter.requires_grad for parameter in after.model.parameters())


def test_the_weights_are_not_copied(random_classifier):
    before = random_classifier(CONFIG)
    after, _ = adopt(before, labels=["ant", "bee"])
    old, new = (model.blocks[0].mlp.expand.weight for model in (before.model, after.model))
    assert old.data_ptr() == new.data_ptr()


def test_the_same_labels_keep_the_head(random_classifier):
    before = random_classifier(CONFIG)
    after, sentences = adopt(before, labels=before.labels)
    assert sentences == []
    assert torch.equal(after.model.head.weight, before.model.head.weight)


def test_two_heads_are_both_new(random_classifier):
    distilled = vit("mu/8", image=(32, 32), classes=7, pool="distilled", registers=1)
    after, _ = adopt(random_classifier(distilled), labels=("a", "b"))
    assert torch.equal(after.model(torch.randn(1, 3, 32, 32)), torch.zeros(1, 2))


@pytest.mark.parametrize(
    "config",
    [
        vit("R+mu/16", image=64, classes=3),
        vit("mu/8", image=32, positions="learned2d"),
        vit("mu/8", image=32, positions="learned", inject="every", depth=2),
        vit("mu/8", image=32, positions="sincos-moco"),
        vit("mu/8", image=32, positions="rotary"),
        vit("Axial-mu/8", image=32),
        ResNetConfig(Backbone((1, 1), 0.5), 32),
        ResNetConfig(Backbone((1, 1), mixer="axial"), 32),
        ResNetConfig(Backbone((1, 1), mixer="augmented"), 32),
    ],
)
def test_every_family_at_another_size_and_with_another_head(config, random_classifier):
    """A model made for another size computes what the model itself computes at that size."""
    before = random_classifier(config)
    x = torch.randn(2, 3, 64, 96)
    after, _ = adopt(before, image=(64, 96))
    assert after.model.config.image == after.preprocessing.size == (64, 96)
    with torch.no_grad():
        torch.testing.assert_close(after.model(x), before.model(x), atol=1e-5, rtol=1e-5)
        other, sentences = adopt(before, labels=tuple("ab"))
        assert sentences == [
            f"dropped: the head of {config.classes:,} classes",
            "newly made: a head of 2 classes, all zeros",
        ]
        assert torch.equal(other.model(x), torch.zeros(2, 2))
        torch.testing.assert_close(other.model.features(x), before.model.features(x))


def test_sizes_that_have_no_meaning_are_refused(random_classifier):
    relative = random_classifier(vit("mu/8", image=32, positions="relative"))
    with pytest.raises(ValueError, match="of 4 x 4 patches have no meaning on 8 x 4"):
        adopt(relative, image=(64, 32))
    lenet = random_classifier(named("LeNet-5"))
    with pytest.raises(ValueError, match="LeNet-5 takes images of 32 x 32 pixels, not 64 x 32"):
        adopt(lenet, image=(64, 32))


def test_lenet_keeps_its_hidden_layer(random_classifier):
    lenet = random_classifier(named("LeNet-5"))
    after, _ = adopt(lenet, labels=("a", "b"))
    assert torch.equal(after.model.representation.weight, lenet.model.representation.weight)


def test_rotary_positions_say_over_which_extent_they_go(random_classifier):
    _, sentences = adopt(
        random_classifier(vit("mu/8", image=32, positions="rotary")), image=(64, 32)
    )
    assert sentences == [
        "rotary positions from 4 x 4 to 8 x 4 patches, over the extent of the 4 x 4 that they were "
        "trained on"
    ]


def test_the_preprocessing_follows_another_size(random_classifier, tmp_path):
    before = random_classifier(replace(CONFIG, registers=2))
    before = replace(before, preprocessing=replace(before.preprocessing, resize=36))
    after, sentences = adopt(before, image=(64, 48))
    assert sentences == [
        "resampled: the position table from 4 x 4 to 8 x 6 patches, as google does"
    ]
    x = torch.randn(2, 3, 64, 48)
    with torch.inference_mode():
        torch.testing.assert_close(after.model(x), before.model(x))
    assert after.preprocessing.size == (64, 48)
    assert after.preprocessing.resize == 72
    other, _ = adopt(before, image=(64, 48), method="timm")
    assert other.model.config.resample == "timm"
    assert not torch.equal(other.model(x), after.model(x))
    assert load(save(after, tmp_path / "m"), quiet=True).model.config.image == (64, 48)


def test_a_size_or_method_that_cannot_be_is_a_sentence(random_classifier):
    before = random_classifier(CONFIG)
    with pytest.raises(ValueError, match="cannot be cut into patches of 8 x 8"):
        adopt(before, image=(30, 30))
    with pytest.raises(ValueError, match="resample is 'best'; it is one of google"):
        adopt(before, image=(64, 64), method="best")


sides = st.integers(1, 64)


@settings(max_examples=40, deadline=None)
@given(sides, sides, sides, sides)
def test_methods_are_those_of_their_origins(h, w, h2, w2):
    """timm's own resampling, and torch's interpolation as Hugging Face and torchvision call it."""
    import torch.nn.functional as F
    from timm.layers import resample_abs_pos_embed

    random = np.random.default_rng(0)
    table = torch.from_numpy(random.normal(size=(1, 1 + h * w, 3)).astype(np.float32))
    theirs = resample_abs_pos_embed(table, [h2, w2], [h, w], num_prefix_tokens=1)
    ours = resample(table, (h, w), (h2, w2), "timm")
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)

    image = table[:, 1:].reshape(1, h, w, 3).permute(0, 3, 1, 2)
    for method, corners in {"huggingface": False, "torchvision": True}.items():
        theirs = F.interpolate(image, size=(h2, w2), mode="bicubic", align_corners=corners)
        theirs = theirs.permute(0, 2, 3, 1).flatten(1, 2)
        ours = resample(table, (h, w), (h2, w2), method)[:, 1:]
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
