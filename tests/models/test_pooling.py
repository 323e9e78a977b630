"""The table of poolings: everything else asks it."""

import ast
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
import torch

import vitkit
from vitkit.models import NESTED, POOLS, FeatureSet, ViTConfig, create, vit

SRC = Path(vitkit.__file__).parent


def test_the_table_and_the_configuration_name_the_same_poolings():
    assert tuple(POOLS) == get_args(get_type_hints(ViTConfig)["pool"])


def test_what_a_pooling_joins_is_written_in_the_table_alone():
    """Names with a hyphen, which mean nothing else. Transformers' DINOv2 has one of these heads."""
    names = {name for name in POOLS if "-" in name}
    written = set()
    for file in SRC.rglob("*.py"):
        text = file.read_text("utf-8")
        if not any(name in text for name in names):  # which is faster than parsing
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Constant) and node.value in names:
                written.add(file.relative_to(SRC).as_posix())
    assert names and written == {"models/pooling.py", "weights/formats/huggingface/dino.py"}


@pytest.mark.parametrize("name", POOLS)
def test_a_pooling_is_as_wide_as_the_table_says(name):
    classes = 0
    registers = 0
    memory = 0
    if name == "distilled":
        classes = 3
        registers = 1
    if name == "memory":
        memory = 5
    config = vit(
        "mu/16",
        image=(8, 8),
        patch=2,
        depth=1,
        pool=name,
        memory=memory,
        classes=classes,
        registers=registers,
    )
    model = create(config, seed=0)
    with torch.inference_mode():
        y = model.features(torch.zeros(1, 3, 8, 8))
    assert y.shape[-1] == config.pooled_width
    if name != "memory":  # whose state is the anomaly score
        assert config.pooled_width == config.pooling.states * config.width
    assert (y.ndim == 2) == config.pools


def test_numbers_of_a_feature_set():
    states = {"token": 1, "token-gap": 2, "token-gap-quarters": 6, "token-pyramid": 22}
    assert {pool.name: pool.states for pool in NESTED} == states
    assert FeatureSet("token-pyramid", 3).numbers(8) == 3 * 22 * 8


def test_the_states_of_a_pooling_have_places_in_a_wider_one():
    widest = POOLS["token-pyramid"]
    assert POOLS["token-quarters"].places_in(widest) == [0, 2, 3, 4, 5]
    assert POOLS["token-quarters"].places_in(POOLS["token-gap-quarters"]) == [0, 2, 3, 4, 5]
    assert widest.places_in(widest) == list(range(22))
    with pytest.raises(KeyError):
        POOLS["distilled"].places_in(widest)


def test_what_a_pooling_is_for_others():
    alone = [pool.name for pool in POOLS.values() if pool.extends_class_token]
    assert alone == ["token", "token-gap", "token-quarters", "token-gap-quarters", "token-pyramid"]
    several = [pool.name for pool in POOLS.values() if pool.can_read_blocks]
    assert several == ["token", "gap", *alone[1:], "corner", "memory", "patches"]
    read = {pool.name: pool.tokens_read for pool in POOLS.values() if pool.tokens_read}
    assert read == {"token": 1, "distilled": 2}
