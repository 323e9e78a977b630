"""What a head may read, and what readings share."""

import numpy as np
import pytest
import torch

from vitkit.evaluation import Features, row_products
from vitkit.finetuning import question, solved
from vitkit.finetuning.head_inputs import (
    kinds_for,
    part_of,
    shared_products,
    widest_of,
)
from vitkit.models import NESTED, OF_THE_PAPER, FeatureSet, ViTConfig, create, vit


def features_of(kind, images, width=8):
    """Features that share a part, so that their mean is not 0."""
    random = np.random.default_rng(images)
    x = random.normal(size=(images, kind.numbers(width))) + 3 * random.normal(size=(images, 1)) + 9
    return Features(x.astype(np.float32), np.arange(images) % 3)


@pytest.mark.parametrize("pool", [pool.name for pool in NESTED])
def test_the_states_of_a_pooling_are_those_of_the_one_before_and_more(pool):
    config = vit("mu/16", image=(8, 8), patch=2, depth=2, pool="token-pyramid", read_blocks=2)
    kind = FeatureSet(pool, 1)
    own = ViTConfig(**{**vars(config), "pool": pool, "read_blocks": 1, "classes": 0})
    images = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    widest = create(ViTConfig(**{**vars(config), "classes": 0}), seed=0)
    with torch.inference_mode():
        every = Features(widest(images).numpy(), np.zeros(2))
        alone = create(own, seed=0)(images)
    assert alone.shape[1] == kind.numbers(config.width) == own.pooled_width
    part = part_of(every, FeatureSet("token-pyramid", 2), kind, config.width)
    torch.testing.assert_close(torch.from_numpy(part.x), alone, atol=2e-3, rtol=1e-3)  # as float16


KINDS = [
    [
        OF_THE_PAPER,
        FeatureSet("token-gap", 3),
        FeatureSet("token-gap-quarters", 3),
        FeatureSet("token-pyramid", 3),
    ],
    [
        OF_THE_PAPER,
        FeatureSet("token-gap", 3),
        FeatureSet("token-gap-quarters", 2),
        FeatureSet("token-pyramid", 1),
    ],
]


@pytest.mark.parametrize("kinds", KINDS)
def test_readings_share_the_products_of_what_they_share(kinds):
    widest = widest_of(kinds)
    every = features_of(widest, 30)
    products = shared_products(every, widest, kinds, 8)
    assert list(products) == [kind for kind in kinds if kind.numbers(8) > 30]
    asked = question("class", ("a", "b", "c"))
    for kind, own in products.items():
        part = part_of(every, widest, kind, 8)
        torch.testing.assert_close(own, row_products(torch.from_numpy(part.x)))
        given, computed = solved(asked, part, None, own), solved(asked, part)
        torch.testing.assert_close(given.left_out, computed.left_out, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(given.weight, computed.weight, rtol=1e-6, atol=1e-9)


def test_each_state_is_multiplied_once(monkeypatch):
    columns = []

    def counted(x):
        columns.append(x.shape[1])
        return row_products(x)

    monkeypatch.setattr("vitkit.finetuning.head_inputs.row_products", counted)
    kinds = KINDS[0]
    shared_products(features_of(kinds[-1], 30), kinds[-1], kinds, 8)
    assert sum(columns) == kinds[-1].numbers(8)


def test_so_much_is_read_as_can_be_solved_for():
    config = vit("Ti/16")
    assert list(kinds_for(config, 1_000)) == [OF_THE_PAPER] + [
        FeatureSet(pool.name, 12) for pool in NESTED[1:]
    ]
    blocks = {kind.pool: kind.blocks for kind in kinds_for(config, 2_000)}
    assert blocks == {"token": 1, "token-gap": 12, "token-gap-quarters": 12, "token-pyramid": 7}
    blocks = {kind.pool: kind.blocks for kind in kinds_for(config, 3_000)}
    assert blocks == {"token": 1, "token-gap": 5, "token-gap-quarters": 1}
    assert list(kinds_for(vit("Ti/16", pool="gap"), 1_000)) == []
