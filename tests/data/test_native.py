"""Images at their own proportions: their grids, batches of several sizes, and the answers to these."""

import numpy as np
import pytest
import torch
from PIL import Image

from vitkit.data import Preprocessing, eval_batches, from_dataset, open_image
from vitkit.data.images.native import grid_of
from vitkit.models import create, vit
from vitkit.weights import Classifier

NATIVE = Preprocessing(size=(16, 16), rule="native", patch=(4, 4))  # 16 patches
SIZES = [(30, 30), (20, 60), (60, 20), (30, 31), (15, 45), (200, 4), (29, 60)]


def pictures():
    random = np.random.default_rng(0)
    return [Image.fromarray(random.integers(0, 256, (*size, 3), dtype=np.uint8)) for size in SIZES]


@pytest.mark.parametrize(
    ("size", "grid"),
    [
        ((224, 224), (14, 14)),
        ((480, 640), (12, 16)),
        ((640, 480), (16, 12)),
        ((333, 500), (11, 17)),
        ((1080, 1920), (10, 18)),
        ((1, 10_000), (1, 196)),
    ],
)
def test_a_grid_has_the_picture_s_proportions_and_about_as_many_patches(size, grid):
    assert grid_of(size, 196, (16, 16)) == grid
    assert 166 < grid[0] * grid[1] <= 196


def test_a_grid_of_patches_that_are_no_squares_has_the_picture_s_proportions():
    rows, columns = grid_of((400, 400), 200, (16, 8))
    assert rows * 16 == columns * 8


def test_no_proportion_is_changed_by_more_than_a_few_percent():
    for ratio in np.linspace(1, 3, 50):
        rows, columns = grid_of((1_000, round(1_000 * ratio)), 196, (16, 16))
        assert columns / rows == pytest.approx(ratio, rel=0.06)


def test_the_whole_image_is_seen():
    picture = open_image(encoded(pictures()[1]), "picture")
    array = NATIVE.array(picture)
    assert array.shape == (3, 8, 28)  # 20 x 60: 2 x 7 patches of 4 x 4
    assert NATIVE.visible(picture) == (0, 0, 20, 60)
    left, right = np.zeros((40, 80, 3), np.uint8), np.zeros((40, 80, 3), np.uint8)
    left[:, :5] = right[:, -5:] = 255  # what a crop cuts off
    assert NATIVE(left).float().mean() > 10 and NATIVE(right).float().mean() > 10
    assert not Preprocessing(size=(16, 16), rule="shorter")(left).any()


def encoded(image):
    import io

    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


@pytest.fixture(scope="module")
def classifier():
    config = vit("mu/4", image=(16, 16), patch=4, classes=3, depth=2, head_bias=0.0)
    model = create(config, seed=0)
    torch.nn.init.normal_(model.head.weight, generator=torch.Generator().manual_seed(0))
    return Classifier(model, NATIVE, ("a", "b", "c"))


def test_a_batch_of_several_sizes_is_answered_as_each_image_alone(classifier):
    images = pictures()
    alone = torch.cat([classifier.logits(classifier.batch(image)) for image in images])
    batch = classifier.batch(images)
    assert batch.shape == (len(images), *NATIVE.row_shape) and batch.dtype == torch.uint8
    torch.testing.assert_close(classifier.logits(batch), alone, atol=1e-6, rtol=1e-5)
    features = torch.cat([classifier.features(classifier.batch(image)) for image in images])
    torch.testing.assert_close(classifier.features(batch), features, atol=1e-6, rtol=1e-5)
    assert len({tuple(row.tolist()) for row in alone}) == len(images)
    for number, image in enumerate(images):
        expected = NATIVE.array(open_image(encoded(image), "picture"))
        assert np.array_equal(NATIVE.image_of(batch.numpy(), number), expected)


def test_images_of_one_size_are_an_ordinary_batch(classifier):
    same = [pictures()[0], pictures()[3]]
    assert classifier.batch(same).shape == (2, 3, 16, 16)
    deployed = classifier.for_inference()
    torch.testing.assert_close(
        deployed.logits(deployed.batch(pictures())), classifier.logits(classifier.batch(pictures()))
    )


@pytest.mark.parametrize("workers", [0, 2])
def test_evaluation_batches_hold_every_image_once(classifier, workers):
    source = from_dataset(
        [(image, i % 3) for i, image in enumerate(pictures())], labels=tuple("abc")
    )
    batches = list(eval_batches(source, NATIVE, 4, workers))
    assert [len(batch.images) for batch in batches] == [4, 4]
    assert torch.cat([batch.indices[batch.real] for batch in batches]).tolist() == list(range(7))
    logits = torch.cat([classifier.logits(batch.images)[batch.real] for batch in batches])
    expected = classifier.logits(classifier.batch(pictures()))
    torch.testing.assert_close(logits, expected, atol=1e-6, rtol=1e-5)


def test_images_of_many_bits_keep_them(classifier):
    exact = Preprocessing(size=(16, 16), rule="native", patch=(4, 4), values="float32")
    bytes_of = [NATIVE.array(open_image(encoded(image), "")) for image in pictures()[:2]]
    floats = [array.astype(np.float32) / 255 for array in bytes_of]
    together = exact.together(floats)
    assert together.dtype == np.float32
    assert np.array_equal(exact.image_of(together, 1), floats[1])


def test_what_is_saved_says_it_and_nothing_else_changes():
    assert Preprocessing.from_json(NATIVE.to_json()) == NATIVE
    assert "patch" not in Preprocessing().to_json()
    assert str(NATIVE) == "whole, at most 16 patches of 4 x 4, bilinear, mean 0.5, std 0.5"


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"resize": 300}, 'resize is 300, but nothing is cut off if rule is "native"'),
        ({"size": (224, 220)}, "patches of 16 x 16 do not cover it"),
        ({"rule": "naflex", "size": (8192, 8192)}, "which has 262,144 patches; .* at most 65,535"),
        ({"size": (8192, 8192)}, "which has 262,144 patches; .* at most 65,025"),
        ({"size": (8192, 8193)}, "it is a height and a width from 1 to 8192 pixels"),
        ({"patch": (0, 16)}, r"patch is \(0, 16\)"),
    ],
)
def test_what_cannot_be_is_said(settings, sentence):
    with pytest.raises(ValueError, match=sentence):
        Preprocessing(**{"rule": "native", **settings})


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (vit("mu/8", image=(16, 16), classes=3), "patches of 8 x 8 pixels, not of 4 x 4"),
        (vit("mu/4", image=(16, 16), patch=4, stride=2, classes=3), "patches overlap"),
        (
            vit("mu/4", image=(16, 16), patch=4, positions="relative", classes=3),
            "relative positions",
        ),
        (vit("mu/4", image=(16, 16), patch=4, pool="none", classes=3), "answers for every token"),
        (vit("R+mu/16", image=(32, 32), classes=3), "is no plain Vision Transformer"),
    ],
)
def test_a_model_that_cannot_read_them_says_why(config, sentence):
    with pytest.raises(ValueError, match=sentence):
        Classifier(create(config, seed=0), NATIVE, ("a", "b", "c"))
