"""Fine-tuning recipes against Table 4 and BiT-HyperRule, and a real run of them."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from pictures import make_photographs

from vitkit.data import (
    Augmentation,
    Preprocessing,
    open_splits,
    splits_at,
    square_before_crop,
    subset,
)
from vitkit.models import create, vit
from vitkit.recipes import PRESETS, TABLE_4, choose_pretrained, finetune, finetuning
from vitkit.weights import Classifier, Hints, Published, save

PAPER = {  # Table 4: steps and learning rates; App. B.1.1: what is held out
    "imagenet": (20_000, (0.003, 0.01, 0.03, 0.06), 0.01),
    "cifar100": (10_000, (0.001, 0.003, 0.01, 0.03), 0.02),
    "cifar10": (10_000, (0.001, 0.003, 0.01, 0.03), 0.02),
    "pets": (500, (0.001, 0.003, 0.01, 0.03), 0.1),
    "flowers": (500, (0.001, 0.003, 0.01, 0.03), 0.1),
    "vtab": (2_500, (0.01,), 0.2),
}


@pytest.fixture
def weights(tmp_path):
    small = {"depth": 1, "width": 24, "heads": 2, "mlp": 32, "image": (32, 32)}
    model = create(vit("Ti/16", classes=3, representation=16, **small))
    prepare = Preprocessing(size=(32, 32), rule="shorter", resize=40, mean=(0.4, 0.5, 0.6))
    return str(save(Classifier(model, prepare, ("a", "b", "c")), tmp_path / "weights"))


@pytest.mark.parametrize("preset", PAPER)
def test_table_4(weights, preset):
    recipe = finetune(weights, "digits", preset)
    assert (int(recipe.length.n), TABLE_4[preset].rates, recipe.data.hold_out) == PAPER[preset]
    assert (recipe.length.unit, recipe.batch) == ("steps", 512)
    optim = recipe.optim
    assert (optim.name, optim.momentum, optim.schedule) == ("sgd", 0.9, "cosine")
    assert (optim.weight_decay, optim.clip) == (0, 1)
    assert optim.warmup.n == (100 if recipe.length.n == 500 else 500)
    assert recipe.model.image == recipe.data.preprocessing.size == (384, 384)
    assert (recipe.model.patch, recipe.model.classes, recipe.model.representation) == (16, 0, 0)
    assert recipe.data.preprocessing.rule == "square"
    assert recipe.data.preprocessing.mean == (0.4, 0.5, 0.6)
    # BiT's, and a flip. Of the digits the vtab preset knows nothing, so it asks the model
    asks = preset == "vtab"
    assert recipe.data.augmentation == Augmentation("resize_crop", resize=448, auto=asks)
    assert recipe.data.preprocessing.resize == 0
    assert recipe.data.parts == "final"


def test_a_part_of_a_checkpoint_is_to_be_written_first(weights):
    """A run keeps the name of a file: it would train from another part than it was planned for."""
    with pytest.raises(ValueError, match="convert .*`part='teacher'`"):
        finetune(weights, "digits", hints=Hints(part="teacher"))


def test_like_the_released_code(weights):
    """It never followed BiT: its Inception crop of 5 to 100 % of the area, and a flip."""
    for preset in PAPER:
        recipe = finetune(weights, "digits", preset, like="code")
        assert recipe.data.augmentation == Augmentation(crop="inception", area=(0.05, 1.0))
        ours = finetune(weights, "digits", preset)
        assert replace(recipe, data=ours.data) == ours
    for preset in ("quick", "none", "bit"):
        with pytest.raises(ValueError, match=f"for a row of .* and the preset is {preset}; leave"):
            finetune(weights, "digits", preset, like="code")


@pytest.mark.parametrize(
    ("name", "crop", "flip"),
    [
        ("cifar", "resize_crop", True),
        ("kitti", "none", True),
        ("dmlab", "none", True),
        ("smallnorb_azi", "resize_crop", False),
        ("dsprites_loc", "none", False),
        ("wds_vtab-dsprites_label_x_position", "none", False),  # the copy on the hub
        ("wds_vtab-clevr_count_all", "none", True),
    ],
)
def test_a_task_of_vtab_is_fed_by_bits_rule(weights, tmp_path, name, crop, flip):
    """No random crop where a label is a place, a distance or a count; no flip where a side counts."""
    folder = make_photographs(tmp_path).rename(tmp_path / name)
    augmentation = finetune(weights, str(folder), "vtab").data.augmentation
    assert (augmentation.crop, augmentation.flip, augmentation.auto) == (crop, flip, False)
    other = finetune(weights, str(folder), "cifar10").data.augmentation
    assert other == Augmentation("resize_crop", resize=448)


def test_photographs_of_ones_own_keep_the_models_preprocessing(weights):
    recipe = finetune(weights, "digits")
    assert (recipe.length.n, recipe.batch) == (449, 32)  # ten epochs of 1,438 images
    assert recipe.data.parts == "given"
    own = Preprocessing(size=(32, 32), rule="shorter", resize=40, mean=(0.4, 0.5, 0.6))
    assert recipe.data.preprocessing == own
    larger = finetune(weights, "digits", hints=Hints(image=64))
    assert larger.model.image == (64, 64)
    assert (larger.data.preprocessing.size, larger.data.preprocessing.resize) == ((64, 64), 80)


def test_a_distilled_model_stays_one(tmp_path):
    """It has no place for no classes, so the recipe has the data's."""
    model = create(vit("mu/8", image=(32, 32), classes=3, pool="distilled", registers=1))
    path = save(Classifier(model, Preprocessing(size=(32, 32)), ("a", "b", "c")), tmp_path / "deit")
    config = finetune(str(path), "digits").model
    assert (config.pool, config.classes) == ("distilled", 10)


def test_patches_of_14_get_the_multiple_below(tmp_path):
    """The paper's best model, H/14, at 384 pixels is one at 378."""
    config = vit("Ti/14", image=(28, 28), classes=3, depth=1, width=24, heads=2, mlp=32)
    path = save(
        Classifier(create(config), Preprocessing((28, 28)), ("a", "b", "c")), tmp_path / "m"
    )
    recipe = finetune(str(path), "digits", "pets")
    assert recipe.model.image == recipe.data.preprocessing.size == (378, 378)
    small = finetune(str(path), "digits", "bit")
    assert small.model.image == (126, 126)
    assert small.data.augmentation.resize == square_before_crop(126) > 126


def test_bits_rule(weights):
    recipe = finetune(weights, "digits", "bit")
    assert (recipe.length.n, recipe.optim.warmup.n) == (500, 100)
    assert (recipe.optim.lr, recipe.batch) == (0.003, 512)
    assert (recipe.optim.schedule, recipe.objective.mixup) == ("staircase", 0.0)
    assert (recipe.data.preprocessing.size, recipe.data.augmentation.resize) == ((128, 128), 160)
    assert (
        finetune(weights, "digits", "bit", hints=Hints(image=384)).data.augmentation.resize == 448
    )


def test_bits_rule_by_size(weights, shared):
    medium = finetune(weights, str(shared("data/cifar10-train.parquet")), "bit")
    assert (medium.length.n, medium.optim.warmup.n, medium.objective.mixup) == (10_000, 500, 0.1)
    large_images = finetune(weights, str(shared("data/ants_bees-train.parquet")), "bit")
    assert large_images.data.preprocessing.size == (384, 384)


@pytest.mark.parametrize(
    ("images", "on_gpu", "batch", "lr"),
    [
        (400, True, 8, 0.01),
        (400, False, 8, 0.01),
        (8_000, False, 32, 0.01),
        (8_000, True, 64, 0.01 * 2**0.5),
        (50_000, True, 512, 0.04),
    ],
)
def test_batches_are_as_large_as_a_gpu_and_an_epoch_allow(
    weights, monkeypatch, images, on_gpu, batch, lr
):
    """On a GPU, an epoch keeps 64 batches or more."""
    digits = splits_at("digits")
    many = subset(digits.train, np.resize(np.arange(len(digits.train)), images))
    monkeypatch.setattr(finetuning, "splits_at", lambda *_, **__: replace(digits, train=many))
    recipe = finetune(weights, "digits", "quick", on_gpu=on_gpu)
    assert (recipe.batch, recipe.optim.lr) == (batch, pytest.approx(lr))
    assert recipe.micro_batch <= 64


@pytest.mark.parametrize(
    ("minutes", "tflops", "cached", "size"),
    [
        (2, 0.2, (), "tiny"),
        (2, 700, (), "base"),  # a download of 1.2 GB takes the two minutes
        (2, 700, ("large",), "large"),
        (5, 700, (), "large"),
        (2, 8, ("large", "base"), "small"),
    ],
)
def test_weights_follow_from_the_device_the_minutes_and_the_download(
    monkeypatch, minutes, tflops, cached, size
):
    monkeypatch.setattr(finetuning, "_speed", lambda device: tflops * 1e12)
    here = property(lambda published: any(f"vit_{size}_" in published.name for size in cached))
    monkeypatch.setattr(Published, "is_here", here)
    monkeypatch.setattr(finetuning, "hub_answers", lambda: True)
    choice = choose_pretrained(minutes, torch.device("cpu"), "")
    assert f"vit_{size}_" in choice.model


def test_an_unknown_preset_is_a_sentence(weights):
    with pytest.raises(ValueError, match=f"no preset 'dogs'; there are {', '.join(PRESETS)}"):
        finetune(weights, "digits", "dogs")
    assert ("quick", "none", *TABLE_4, "bit") == PRESETS


@pytest.mark.parametrize("of_nothing", [False, True])
def test_images_to_measure_on_alone_teach_nothing(weights, monkeypatch, of_nothing):
    digits = open_splits("digits")
    train = subset(digits.train, []) if of_nothing else None
    monkeypatch.setattr(finetuning, "splits_at", lambda *_, **__: replace(digits, train=train))
    with pytest.raises(ValueError, match="digits has no images to learn from, only others to"):
        finetune(weights, "digits", hints=Hints(channels=5))
