"""Fine-tuning recipes against Table 4 and BiT-HyperRule, and a real run of them."""

import pytest

from vitkit.data import Preprocessing
from vitkit.models import create, vit
from vitkit.recipes.finetune import PRESETS, TABLE_4, finetune
from vitkit.weights import Classifier, save

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
    config = vit(
        "Ti/16", depth=1, width=24, heads=2, mlp=32, image=(32, 32), classes=3, representation=16
    )
    prepare = Preprocessing(size=(32, 32), rule="shorter", resize=40, mean=(0.4, 0.5, 0.6))
    return str(save(Classifier(create(config), prepare, ("a", "b", "c")), tmp_path / "weights"))


@pytest.mark.parametrize("preset", PAPER)
def test_table_4(weights, preset):
    found = finetune(weights, "digits", preset)
    assert (int(found.length.n), TABLE_4[preset].rates, found.data.hold_out) == PAPER[preset]
    assert (found.length.unit, found.batch) == ("steps", 512)
    optim = found.optim
    assert (optim.name, optim.momentum, optim.weight_decay, optim.clip, optim.schedule) == (
        "sgd",
        0.9,
        0,
        1,
        "cosine",
    )
    assert optim.warmup.n == (100 if found.length.n == 500 else 500)
    assert found.model.image == found.data.preprocessing.size == (384, 384)
    assert (found.model.patch, found.model.classes, found.model.representation) == (16, 0, 0)
    assert (found.data.preprocessing.rule, found.data.preprocessing.mean) == (
        "square",
        (0.4, 0.5, 0.6),
    )
    assert (found.data.augmentation.crop, found.data.augmentation.area) == (
        "inception",
        (0.05, 1.0),
    )
    assert found.data.parts == "final"


def test_photographs_of_ones_own_keep_the_models_preprocessing(weights):
    found = finetune(weights, "digits")
    assert (found.length.n, found.batch, found.data.parts) == (
        449,
        32,
        "given",
    )  # ten epochs of 1,438
    assert found.data.preprocessing == Preprocessing(
        size=(32, 32), rule="shorter", resize=40, mean=(0.4, 0.5, 0.6)
    )
    larger = finetune(weights, "digits", image=64)
    assert larger.model.image == (64, 64)
    assert (larger.data.preprocessing.size, larger.data.preprocessing.resize) == ((64, 64), 80)


def test_bits_rule(weights):
    found = finetune(weights, "digits", "bit")
    assert (found.length.n, found.optim.warmup.n, found.optim.lr, found.batch) == (
        500,
        100,
        0.003,
        512,
    )
    assert (found.optim.schedule, found.objective.mixup) == ("staircase", 0.0)
    assert (found.data.preprocessing.size, found.data.augmentation.resize) == ((128, 128), 160)
    assert finetune(weights, "digits", "bit", image=384).data.augmentation.resize == 448


def test_bits_rule_by_size(weights, shared):
    found = finetune(weights, str(shared("data/cifar10-train.parquet")), "bit")
    assert (found.length.n, found.optim.warmup.n, found.objective.mixup) == (10_000, 500, 0.1)
    assert finetune(
        weights, str(shared("data/ants_bees-train.parquet")), "bit"
    ).data.preprocessing.size == (384, 384)


def test_an_unknown_preset_is_a_sentence(weights):
    with pytest.raises(ValueError, match=f"no preset 'dogs'; there are {', '.join(PRESETS)}"):
        finetune(weights, "digits", "dogs")
