"""What the user says of a file that does not say it: every hint has its effect, and is told."""

import re
from dataclasses import fields

import pytest
import torch
from safetensors.torch import save_file

import vitkit
from vitkit.models import vit
from vitkit.system.errors import BadSettings
from vitkit.system.functions.parameters import docstrings
from vitkit.system.functions.types import Messages
from vitkit.weights import STATISTICS, Hints, Overrides, format_of, load, load_as, load_for, save
from vitkit.weights.destination import tensors_in
from vitkit.weights.proof import convert_weights


@pytest.fixture
def bare(random_classifier, tmp_path):
    """`bare(config, name)`: timm's names in a file that describes nothing."""

    def make(config, name="weights.safetensors"):
        tensors = tensors_in(format_of("timm", config), random_classifier(config))
        if name.endswith(".pth"):
            torch.save(tensors, tmp_path / name)
        else:
            save_file(tensors, tmp_path / name)
        return tmp_path / name

    return make


SMALL = vit("mu/8", image=(32, 32), classes=3, gelu="erf")


def test_a_guess_is_the_first_that_is_told_and_what_the_user_says_is_none(bare, capsys):
    """Mean and deviation cost points of accuracy, and here only a name tells them."""
    for name, statistics, other in (
        ("deit.safetensors", "ImageNet's mean", "half"),
        ("renamed.safetensors", "mean and deviation 0.5", "imagenet"),
    ):
        load(bare(SMALL, name))
        first = capsys.readouterr().err.splitlines()[0]
        assert "GUESSED" in first and statistics in first and f"`statistics={other!r}`" in first
        classifier = load_as(bare(SMALL, name), Hints(statistics=other))
        assert classifier.preprocessing.mean == STATISTICS[other]["mean"]
        err = capsys.readouterr().err
        assert "GUESSED" not in err and f"preprocessing: statistics {other}, as set" in err


@pytest.mark.parametrize(
    ("settings", "name", "statistics"),
    [
        ({"pool": "distilled", "registers": 1}, "m.safetensors", "imagenet"),
        ({"layer_scale": 1e-5}, "m.safetensors", "imagenet"),
        ({"classes": 0}, "m.pth", "imagenet"),
        ({"layer_scale": 1e-5, "pool": "gap"}, "m.safetensors", "half"),
        ({}, "m.pth", "half"),
    ],
)
def test_statistics_are_guessed_by_what_such_models_have(settings, name, statistics, bare):
    file = bare(vit("mu/8", image=(32, 32), **settings), name)
    assert load(file, quiet=True).preprocessing.mean == STATISTICS[statistics]["mean"]


@pytest.mark.parametrize(
    ("hints", "words"),
    [
        (Hints(resize=40), "shorter side to 40, centre of 32 x 32, bicubic"),
        (Hints(crop="whole"), "32 x 32, bicubic"),
        (Hints(crop="native"), "whole, at most 16 patches of 8 x 8, bicubic"),
        (Hints(tokens=42), "whole, at most 42 patches of 8 x 8, bicubic"),
        (Hints(resize=48, interpolation="bilinear"), "shorter side to 48, centre of 32 x 32, bili"),
        (Hints(image=64), "shorter side to 64, centre of 64 x 64, bicubic"),
        (Hints(image=(64, 32), resize=64), "shorter side to 64, centre of 64 x 32, bicubic"),
    ],
)
def test_the_preprocessing_can_be_said(hints, words, bare):
    preprocessing = load_as(bare(SMALL), hints, quiet=True).preprocessing
    assert str(preprocessing).startswith(words)


def test_a_centre_is_cut_out_of_whole_images_too(bare):
    file = bare(SMALL)
    whole = load_as(file, Hints(crop="whole"), quiet=True).preprocessing
    assert (whole.rule, whole.resize) == ("square", 0)
    centre = load_as(file, Hints(crop="centre", resize=36), quiet=True).preprocessing
    assert (centre.rule, centre.resize) == ("shorter", 36)
    with pytest.raises(ValueError, match="nothing is cropped"):
        Hints(crop="whole", resize=36)


def test_a_model_that_reads_whole_images_can_crop_again(bare, tmp_path):
    native = load_as(bare(SMALL), Hints(tokens=20), quiet=True)
    assert native.model.config.image == (32, 32)  # its positions stay where they were learned
    folder = save(native, tmp_path / "native")
    assert load(folder, quiet=True).preprocessing == native.preprocessing
    for crop, rule in (("centre", "shorter"), ("whole", "square")):
        cropped = load_as(folder, Hints(crop=crop), quiet=True).preprocessing
        assert (cropped.rule, cropped.size) == (
            rule,
            (32, 32),
        )  # the model's size, not that of 20 patches


@pytest.mark.parametrize(
    ("hints", "sentence"),
    [
        ({"crop": "native", "resize": 40}, 'nothing is cropped if crop is "native"'),
        ({"tokens": 0}, "it is a number of patches, from 1 to 16,384"),
        ({"tokens": 64, "crop": "centre"}, "leave out crop and resize"),
    ],
)
def test_what_does_not_go_with_whole_images_is_said(hints, sentence):
    with pytest.raises(ValueError, match=sentence):
        Hints(**hints)


@pytest.mark.parametrize("to", ["huggingface", "timm", "torchvision", "google"])
def test_other_formats_refuse_whole_images_in_a_sentence(to, bare, tmp_path):
    native = load_as(bare(SMALL), Hints(crop="native"), quiet=True)
    with pytest.raises(
        ValueError, match=f"{to} has no place for images in their own aspect ratios"
    ):
        convert_weights(native, tmp_path / "out.npz", to)
    proof = convert_weights(native, tmp_path / "native", "native")
    assert load(proof.path, quiet=True).preprocessing.is_native


def test_the_size_of_images_is_the_tables_where_it_can_be(bare, capsys):
    """8 x 2 patches fit a table of 16; 8 x 8 do not, so there it is resampled."""
    file = bare(SMALL)
    classifier = load_as(file, Hints(image=(64, 16)), quiet=True)
    assert classifier.model.config.image == (64, 16)
    table = classifier.model.positions.table
    assert torch.equal(table, load(file, quiet=True).model.positions.table)

    larger = load_as(file, Hints(image=64))
    assert larger.model.config.grid == (8, 8)
    assert "resampled: the position table from 4 x 4 to 8 x 8 patches" in capsys.readouterr().err
    with pytest.raises(ValueError, match="choose multiples of 8"):
        load(file, image=(36, 36), quiet=True)


def test_heads_are_told_and_can_be_said(bare, capsys):
    """Also at the width of a published model: MoCo v3's S has 12, not 6."""
    file = bare(vit("S/16", depth=1, image=(32, 32), heads=12, classes=2))
    assert load(file).model.config.heads == 6
    err = capsys.readouterr().err
    assert "heads: 6, as in ViT-S; the file does not state it (MoCo v3's has 12" in err
    assert load(file, heads=12).model.config.heads == 12
    assert "heads:" not in capsys.readouterr().err


def test_heads_that_the_file_denies_are_refused(random_classifier, tmp_path):
    path = save(random_classifier(SMALL), tmp_path / "m")
    with pytest.raises(ValueError, match="has 2 attention heads, not 4; leave out `heads`"):
        load(path, heads=4, quiet=True)
    classifier, _ = load_for(path, vit("mu/8", heads=4))
    assert classifier.model.config.heads == 2


def test_pooling_can_be_said_where_nothing_tells_it(bare):
    file = bare(SMALL)
    config = load_as(file, Hints(pool="gap"), quiet=True).model.config
    assert (config.pool, config.has_class_token) == ("gap", True)
    without_token = bare(vit("mu/8", image=(32, 32), pool="gap"), "gap.safetensors")
    assert load_as(without_token, Hints(pool="corner"), quiet=True).model.config.pool == "corner"
    with pytest.raises(ValueError, match="no class token"):
        load_as(without_token, Hints(pool="token"), quiet=True)
    map_head = bare(vit("mu/8", image=(32, 32), pool="map"), "map.safetensors")
    with pytest.raises(ValueError, match="its weights determine its pooling"):
        load_as(map_head, Hints(pool="gap"), quiet=True)


def test_labels_come_from_a_file_of_lines(bare, tmp_path):
    names = tmp_path / "names.txt"
    names.write_text("fox\ndog \ncat\n", "utf-8")
    file = bare(SMALL)
    assert load_as(file, Hints(labels=names), quiet=True).labels == ("fox", "dog", "cat")
    for text, sentence in (
        ("fox\ndog\n", "has 2 lines for a head of 3 classes"),
        ("fox\n\ncat\n", "line 2 of .* is empty"),
    ):
        names.write_text(text)
        with pytest.raises(ValueError, match=sentence):
            load_as(file, Hints(labels=names), quiet=True)
    names.write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="not UTF-8"):
        load_as(file, Hints(labels=names), quiet=True)
    with pytest.raises(ValueError, match="does not exist"):
        load_as(file, Hints(labels=tmp_path / "none"), quiet=True)


def test_wrong_hints_are_refused():
    for wrong in ({"image": (1, 2, 3)}, {"image": 0}, {"heads": 0}):
        with pytest.raises(ValueError, match="image|heads"):
            Hints(**wrong)
    with pytest.raises(ValueError, match="at most 16,384 pixels"):
        Hints(image=(100_000_000,))


def test_patches_overlap_as_the_user_says(bare, capsys):
    file = bare(SMALL)
    own = load_as(file, Hints(), quiet=True)
    side = own.model.config.tiling.size[0]
    dense = load_as(file, Hints(stride=side // 2))
    rows, columns = own.model.config.grid
    assert dense.model.config.grid == (2 * rows - 1, 2 * columns - 1)
    assert "cut by the same projection" in capsys.readouterr().err
    assert dense.preprocessing == own.preprocessing
    other = load_as(file, Hints(stride=side // 2, image=2 * side), quiet=True)
    assert other.model.config.grid == (3, 3)
    assert other.preprocessing.size == (2 * side, 2 * side)
    with pytest.raises(ValueError, match=f"a stride of {side + 1} leaves pixels between"):
        load_as(file, Hints(stride=side + 1), quiet=True)
    two = load_as(file, Hints(stride=(side // 2, side)), quiet=True)
    assert two.model.config.stride == (side // 2, side)
    for wrong in (0, 8.0, (8,), (8, 0)):
        with pytest.raises(
            ValueError, match="^`stride` is .*; it is a number of pixels, .* or two"
        ):
            Hints(stride=wrong)


def test_overrides_are_the_hints():
    """The keyword arguments of the functions, which describe the fields, have the same names."""
    names = {field.name for field in fields(Hints)}
    assert names == Overrides.__annotations__.keys() - Messages.__annotations__.keys()
    assert names <= docstrings(Overrides).keys()


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"crop": "center"}, "crop is 'center'; it is one of centre, whole, native"),
        ({"statistics": "ImageNet"}, "statistics is 'ImageNet'; it is one of"),
        ({"interpolation": "cubic"}, "interpolation is 'cubic'; it is one of"),
        ({"pool": "mean"}, "pool is 'mean'; it is one of"),
        ({"heads": "3"}, "heads is '3'; it takes a whole number"),
        ({"heads": 3.0}, "heads is 3.0; it takes a whole number"),
        ({"tokens": "3"}, "tokens is '3'; it takes a whole number"),
        ({"image": "32"}, "image is '32'; it takes a whole number"),
        ({"part": 3}, "part is 3; it takes text"),
        ({"resize": -1}, "`resize` is -1"),
        ({"quiet": "no"}, "quiet is 'no'; it takes True or False"),
    ],
)
def test_functions_refuse_a_wrong_override_by_one_sentence_before_anything_is_read(wrong, sentence):
    for function in (
        lambda **settings: vitkit.load("nowhere", **settings),
        lambda **settings: vitkit.predict("nowhere", "nowhere.png", **settings),
        lambda **settings: vitkit.convert("nowhere", "there", to="timm", **settings),
        lambda **settings: vitkit.evaluate("nowhere", "nowhere", **settings),
        lambda **settings: vitkit.probe("nowhere", "nowhere", **settings),
    ):
        with pytest.raises(BadSettings, match=f"^{re.escape(sentence)}"):
            function(**wrong)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"preprocessing": {"size": 32}}, "preprocessing is of type dict"),
        ({"labels": "abc"}, "labels is 'abc', one string"),
        ({"labels": [1, 2, 3]}, "labels holds 1, which is not a string"),
        ({"new_head": "yes"}, "new_head is 'yes'; it takes True or False"),
        ({"new_head": True}, "new_head is for other classes"),
    ],
)
def test_load_refuses_wrong_values_before_anything_is_read(wrong, sentence):
    with pytest.raises(BadSettings, match=sentence):
        load("nowhere", **wrong)


def test_overrides_of_a_loaded_model_are_refused(random_classifier, tmp_path):
    classifier = random_classifier(SMALL)
    for function in (
        lambda **settings: vitkit.convert(classifier, tmp_path / "there", to="timm", **settings),
        lambda **settings: vitkit.show(classifier, **settings),
        lambda **settings: vitkit.probe(classifier, "digits", **settings),
    ):
        with pytest.raises(BadSettings, match="already loaded"):
            function(crop="whole")
