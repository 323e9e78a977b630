"""Parameter counts and costs of every named model against the published ones."""

from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from vitkit.models import NAMES, VisionTransformer, cost, create, vit

# model: without head, 1000 classes, 1000 + hidden layer, 21843 + hidden layer, all at 224; then (side, 1000 classes at it)
COUNTS = {
    "Ti/16": (5_524_416, 5_717_416, 5_754_472, 9_777_171, (384, 5_790_376)),
    "S/32": (22_493_952, 22_878_952, 23_026_792, 31_051_347, (384, 22_915_432)),
    "S/16": (21_665_664, 22_050_664, 22_198_504, 30_223_059, (384, 22_196_584)),
    "B/32": (87_455_232, 88_224_232, 88_814_824, 104_843_091, (384, 88_297_192)),
    "B/16": (85_798_656, 86_567_656, 87_158_248, 103_186_515, (384, 86_859_496)),
    "B/8": (85_807_872, 86_576_872, 87_167_464, 103_195_731, (384, 87_744_232)),
    "L/32": (305_510_400, 306_535_400, 307_585_000, 328_949_075, (384, 306_632_680)),
    "L/16": (303_301_632, 304_326_632, 305_376_232, 326_740_307, (384, 304_715_752)),
    "H/14": (630_764_800, 632_045_800, 633_685_480, 660_385_363, (518, 633_470_440)),
    "g/14": (1_011_202_432, 1_012_611_432, 1_014_595_304, 1_043_963_091, None),
    "G/14": (1_842_775_680, 1_844_440_680, 1_847_211_240, 1_881_914_835, None),
}
GMACS = {  # side: GMAC
    "Ti/16": {224: 1.25, 384: 4.68, 512: 10.43},
    "S/32": {224: 1.14, 384: 3.44, 512: 6.37},
    "S/16": {224: 4.60, 384: 15.49, 512: 31.75},
    "B/32": {224: 4.41, 384: 13.04, 512: 23.65},
    "B/16": {224: 17.56, 384: 55.48, 512: 107.03},
    "B/8": {224: 78.15, 384: 294.04, 512: 657.97},
    "L/32": {224: 15.38, 384: 45.28, 512: 81.66},
    "L/16": {224: 61.55, 384: 191.07, 512: 361.99},
    "H/14": {224: 167.30, 518: 1016.72},
    "g/14": {224: 267.03, 518: 1595.2},
    "G/14": {224: 483.75, 518: 2822.3},
}


def parameters(config) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in VisionTransformer(config).parameters())


@pytest.mark.parametrize("name", COUNTS)
def test_published_parameter_counts(name):
    bare, classes, hidden, large, higher = COUNTS[name]
    config = vit(name)
    assert parameters(replace(config, classes=0)) == bare
    assert parameters(config) == classes
    assert parameters(replace(config, representation=config.width)) == hidden
    assert parameters(replace(config, representation=config.width, classes=21_843)) == large
    if higher:
        assert parameters(replace(config, image=higher[0])) == higher[1]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("pool", ["token", "gap", "map", "none"])
def test_the_formula_counts_what_is_built(name, pool):
    config = vit(name, pool=pool, representation=64)
    assert cost(config).parameters == parameters(config)


@pytest.mark.parametrize("name", GMACS)
def test_published_macs(name):
    for side, expected in GMACS[name].items():
        assert cost(vit(name), (side, side)).macs / 1e9 == pytest.approx(
            expected, abs=0.006 if expected < 1000 else 0.06
        )


@pytest.mark.parametrize("pool", ["gap", "map", "none"])
def test_macs_are_those_that_torch_counts(pool):
    config = vit("Ti/16", pool=pool, classes=7, representation=32)
    with FlopCounterMode(display=False) as counter:
        create(config).eval()(torch.zeros(1, 3, 224, 224))
    assert counter.get_total_flops() == pytest.approx(2 * cost(config).macs, rel=1e-6)


def test_the_last_block_saves_about_six_percent_of_b16():
    counted = {}
    for read in ("token", "gap"):
        with torch.device("meta"):
            model = VisionTransformer(vit("B/16", pool=read, class_token=True))
        with FlopCounterMode(display=False) as counter:
            model(torch.zeros(1, 3, 224, 224, device="meta"))
        counted[read] = counter.get_total_flops()
    assert 0.06 < 1 - counted["token"] / counted["gap"] < 0.07


def test_tokens():
    assert [cost(vit(name)).tokens for name in ("B/8", "B/16", "B/32", "H/14")] == [785, 197, 50, 257]
    assert cost(vit("H/14"), (518, 518)).tokens == 1370
    assert cost(vit("B/16", pool="gap")).tokens == 196


def test_names_that_do_not_exist_are_one_sentence():
    with pytest.raises(ValueError, match=r"no model 'B-16'; did you mean 'B/16'\?"):
        vit("B-16")
    with pytest.raises(ValueError, match="no setting 'widht'; did you mean 'width'"):
        vit("B/16", widht=3)
    with pytest.raises(ValueError, match="cannot be cut into patches of 14"):
        vit("H/14", image=384)
    with pytest.raises(ValueError, match="768 cannot be split among 7 heads"):
        vit("B/16", heads=7)
