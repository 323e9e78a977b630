"""Names to configurations and back, and what is refused, with which sentence."""

from dataclasses import dataclass, replace
from typing import Literal

import pytest

from vitkit.models import NAMES, Backbone, ResNetConfig, ViTConfig, called, named, vit
from vitkit.system.values import check_settings


@pytest.mark.parametrize(
    ("name", "units", "patch", "stride"),
    [
        ("R50+B/32", (3, 4, 6, 3), 1, 32),
        ("R50+B/16", (3, 4, 9), 1, 16),  # the layers of stage 4 go to stage 3
        ("R50+B/64", (3, 4, 6, 3), 2, 64),
        ("R101x2+L/48", (3, 4, 26), 3, 48),
        ("R+Ti/16", (), 8, 32),  # a /16 by name only
    ],
)
def test_hybrids_by_their_names(name, units, patch, stride):
    config = named(name)
    assert (config.stem.units, config.patch, config.tiling.stride) == (units, patch, (stride,) * 2)


def test_b_is_half_of_B():
    assert named("b/32") == named("B/32", width=384, mlp=1536, heads=6)


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"b/32"}))  # which has S/32's shape
def test_a_model_is_called_by_its_name(name):
    expected = name
    if name.startswith(("Axial-R", "Local-R", "Augmented-R", "BN-R")):
        expected += "x1"
    assert called(named(name)).replace("ViT-", "") == expected


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("B/16x8", {"patch": (16, 8)}),
        ("B/16 (stride 8)", {"stride": 8}),
        ("B/16x8 (stride 8x4)", {"patch": (16, 8), "stride": (8, 4)}),
        ("Axial-B/16 (stride 8)", {"stride": 8}),
        ("R50+B/48x32", {"patch": (3, 2)}),
        ("R50+B/32 (stride 16)", {"patch": 2, "stride": 1}),  # on the map of R50+B/16
        ("R+Ti/16 (stride 8)", {"stride": 4}),  # in the pixels that its name counts
    ],
)
def test_a_name_says_rectangles_and_overlap(name, settings):
    config = named(name)
    assert {setting: getattr(config, setting) for setting in settings} == settings
    assert called(config).replace("ViT-", "") == name


@pytest.mark.parametrize(
    "name", ["S/16", "B/16x8 (stride 8x4)", "R26x2+S/32", "Axial-B/16", "Axial-R50+B/32"]
)
def test_a_name_that_is_printed_is_read_again(name):
    config = named(name)
    assert named(called(config)) == config


@pytest.mark.parametrize(
    "name", ["B/16 (stride 0)", "B/0x8", "R50+B/32 (stride 8)", "Axial-R50+ViT-B/32", "B/16x"]
)
def test_a_name_that_says_what_is_not_possible_is_refused(name):
    with pytest.raises(ValueError, match="no (model|hybrid) "):
        named(name)


def test_a_shape_without_a_name_is_described():
    assert (
        called(named("R101x2+L/48", depth=3))
        == "R101x2+ViT of width 1024, depth 3, mlp 4096, heads 16, patch 48"
    )


def test_names_that_do_not_exist_come_with_the_nearest_that_does():
    with pytest.raises(ValueError, match=r"no model 'B-16'; did you mean 'B/16'\?"):
        vit("B-16")
    with pytest.raises(ValueError, match="no setting 'widht'; did you mean 'width'"):
        vit("B/16", widht=3)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: vit("H/14", image=384), "cannot be cut into patches of 14"),
        (lambda: vit("B/16", heads=7), "768 cannot be split among 7 heads"),
        (lambda: named("R50+B/20"), "no hybrid 'R50+B/20'"),
        (lambda: named("R34+B/32"), "no hybrid 'R34"),
        (lambda: named("R34"), "no model 'R34'"),
        (lambda: named("R50x1", widht=2), "no setting 'widht'"),
        (lambda: Backbone(width=0.3), "19 channels in the root, which GroupNorm cannot split"),
        (lambda: Backbone(units=(3, 0)), "every stage has at least one residual unit"),
        (lambda: Backbone(padding="valid"), "padding is 'valid'; it is one of same, even"),
        (lambda: ResNetConfig({"widht": 2}), "a Backbone has no setting 'widht'"),
        (lambda: ViTConfig(stem="R50"), "'R50' is not a Backbone, nor its settings"),
        (lambda: Backbone(mixer="local", width=0.5), "32 channels in the root, which local attention cannot split"),
        (lambda: ResNetConfig(image=(0, 3)), "an image of 0 x 3 pixels"),
        (lambda: named("R50+B/32", image=240), "240 x 240 pixels cannot be cut into patches of 32 x 32"),
        (lambda: named("Axial-B/16", pool="token"), "no place in its rows and columns for 1 tokens"),
        (lambda: named("Axial-B/16", positions="relative"), "relative positions are made for attention among all tokens"),
        (lambda: named("B/16", positions="relative", inject="stem"), "relative positions act within attention"),
        (lambda: named("B/16", positions="sincos", inject="every"), "sincos positions have no parameters to differ by"),
        (lambda: named("B/16", inject="often"), "inject is 'often'; it is one of stem, every, shared"),
        (lambda: named("B/16", width=36, heads=6, positions="rotary"), "a head's width of 6 cannot be split between the x"),
        (lambda: named("B/16", width=30, heads=5, positions="sincos"), "a width of 30 cannot be split between the x"),
        (lambda: named("B/16", positions="sincos", prefix_positions=1), "sincos positions have no table with rows"),
        (lambda: named("B/16", prefix_positions=2), "prefix_positions is 2; it is at least 0, and at most 1"),
        (lambda: named("B/16", prefix_positions=-1), "prefix_positions is -1; it is at least 0"),
        (lambda: named("B/16", pool="token-gap", norm="pooled"), 'pool is "token-gap" with norm "pooled"'),
        (lambda: named("B/16", pool="token-quarters", representation=8), "its head reads 5 states of 768 as they are"),
        (lambda: named("B/16", pool="token-gap", class_token=False), "but class_token is False"),
    ],
)  # fmt: skip
def test_what_is_impossible_is_refused_with_a_sentence(make, sentence):
    with pytest.raises(ValueError, match=sentence.replace("+", r"\+")):
        make()


def test_choices_are_checked_where_annotations_are_strings():
    @dataclass
    class Choosing:
        colour: "Literal['red', 'blue'] | None" = None

    check_settings(Choosing())
    check_settings(Choosing("blue"))
    with pytest.raises(ValueError, match="colour is 'green'; it is one of red, blue"):
        check_settings(Choosing("green"))


def test_a_position_grid_is_for_rotary_positions():
    config = vit("mu/8", image=32, positions="rotary", position_grid=(2, 3))
    assert replace(config, image=64).position_grid == (2, 3)
    with pytest.raises(ValueError, match=r"position_grid is \(2, 3\), which is for rotary"):
        ViTConfig(position_grid=(2, 3))
    with pytest.raises(ValueError, match="a height and a width in patches"):
        replace(config, position_grid=(0, 3))
    with pytest.raises(ValueError, match=r"it is 2 values, each a whole number, or None$"):
        replace(config, position_grid=(2, 3, 4))
