"""Hybrids and BiT ResNets in other code's names: read by their shapes alone, and written for it."""

import json
from functools import partial

import numpy as np
import pytest
import torch
from margins import at_most
from other_libraries import assert_same_outputs, assert_same_state, randomised, shapes_written
from safetensors.torch import save_file

from vitkit.models import DIALECTS, Backbone, ResNetConfig, build, named
from vitkit.weights import Classifier, format_of, load
from vitkit.weights.formats import cannot
from vitkit.weights.formats.timm import resnets, vit
from vitkit.weights.proof import convert_weights

timm = pytest.importorskip("timm")
SMALL = {"embed_dim": 48, "depth": 2, "num_heads": 4, "mlp_ratio": 2, "num_classes": 7}
HYBRIDS = {
    "vit_tiny_r_s16_p8_224": ((), 8, 64),
    "vit_small_r26_s32_224": ((2, 2, 2, 2), 1, 64),
    "vit_base_r50_s16_224": ((3, 4, 9), 1, 48),
    "vit_large_r50_s32_224": ((3, 4, 6, 3), 1, 96),
}


LARGE = ("vit_small_r26_s32_224", "vit_base_r50_s16_224", "vit_large_r50_s32_224")


def in_timm(directory):
    """timm's model of a directory that vitkit wrote."""
    return timm.create_model(f"local-dir:{directory}", pretrained=True).eval()


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if n in LARGE else ()) for n in HYBRIDS]
)
def test_timms_hybrids_are_read_and_written(name, tmp_path):
    units, patch, side = HYBRIDS[name]
    image = (side, side)
    theirs = randomised(timm.create_model(name, img_size=side, **SMALL))
    save_file(theirs.state_dict(), tmp_path / "m.safetensors")

    # Read
    classifier = load(tmp_path / "m.safetensors", heads=4, quiet=True)
    config = classifier.model.config
    assert config.stem == Backbone(units, **DIALECTS["timm"])
    assert (config.patch, config.image, config.gelu) == (patch, image, "erf")
    assert_same_outputs(theirs, classifier.model, image, tolerance=1e-4)

    # Written
    proof = convert_weights(classifier, tmp_path / "back", "timm")
    assert proof.library
    at_most(proof.largest, 1e-4)
    again = in_timm(tmp_path / "back")
    assert_same_state(again, theirs)
    json_file = json.loads((tmp_path / "back" / "config.json").read_text())
    first_conv = json_file["pretrained_cfg"]["first_conv"]
    assert f"{first_conv}.weight" in theirs.state_dict()


@pytest.mark.slow
def test_timms_bit_is_read_and_written(tmp_path):
    theirs = randomised(timm.create_model("resnetv2_50x1_bit", num_classes=7))
    torch.save({"module." + key: t for key, t in theirs.state_dict().items()}, tmp_path / "m.pth")
    classifier = load(tmp_path / "m.pth", quiet=True)
    backbone = Backbone((3, 4, 6, 3), order="pre", **DIALECTS["timm_bit"])
    assert classifier.model.config == ResNetConfig(backbone, classes=7)
    assert_same_outputs(theirs, classifier.model, (65, 65), tolerance=1e-4)
    proof = convert_weights(classifier, tmp_path / "back", "timm")
    at_most(proof.largest, 1e-4)
    at_most(proof.pixels, 2)
    assert_same_state(in_timm(tmp_path / "back"), theirs)


def test_a_bit_that_timm_has_no_name_for_is_read_and_not_written(tmp_path):
    from timm.layers import StdConv2d
    from timm.models.resnetv2 import ResNetV2

    convolution = partial(StdConv2d, eps=1e-8)
    theirs = ResNetV2((1, 2), (256, 512), 5, stem_type="fixed", conv_layer=convolution)
    randomised(theirs)
    save_file(theirs.state_dict(), tmp_path / "small.safetensors")
    classifier = load(tmp_path / "small.safetensors", image=(40, 40), quiet=True)
    assert_same_outputs(theirs, classifier.model, (40, 40), tolerance=1e-4)
    missing = cannot("timm", classifier.model.config)
    assert missing == ["a ResNet of other depth or width than its own"]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("resnetv2_50", "it is a ResNetV2 with BatchNorm"),
        ("vit_small_resnet26d_224", "it has a stem that is not a BiT ResNet: patch_embed.backbone"),
    ],
)
def test_timms_other_resnets_are_refused(name, sentence, tmp_path):
    with torch.device("meta"):
        state = timm.create_model(name).state_dict()
    zeros = {key: torch.zeros([1] * tensor.ndim) for key, tensor in state.items()}
    save_file(zeros, tmp_path / "m.safetensors")
    with pytest.raises(ValueError, match=sentence):
        load(tmp_path / "m.safetensors", quiet=True)


NAMED = ["R+Ti/16", "R26+S/32", "R50+L/16", "BiT-R50x1", "BiT-R152x4"]
MORE_NAMED = [
    "R26+B/32", "R50+B/16", "R50+B/32", "R50+L/32",
    "BiT-R50x3", "BiT-R101x1", "BiT-R101x3", "BiT-R152x2",
]  # fmt: skip


@pytest.mark.parametrize(
    "name", NAMED + [pytest.param(name, marks=pytest.mark.slow) for name in MORE_NAMED]
)
def test_named_models_have_timms_names_and_shapes(name):
    """Every tensor of timm's model has a rule that gives it its shape, and no other; on meta."""
    config = named(name)
    format = format_of("timm", config)
    assert not format.cannot(config)
    if config.kind == "resnet":
        timm_name, arguments = resnets.architecture(config)
    else:
        timm_name, arguments = vit.architecture(config)
        arguments["weight_init"] = "skip"
    with torch.device("meta"):
        theirs = timm.create_model(timm_name, num_classes=1000, **arguments)
        state = build(config).state_dict()
    shapes = {key: tensor.shape for key, tensor in theirs.state_dict().items()}
    assert shapes_written(format, config, state) == shapes


def test_the_published_names_of_bit(random_classifier, tmp_path):
    """Its authors' own file, key by key: a, b and c, units of two digits, a head that is a 1 x 1
    convolution."""
    config = ResNetConfig(Backbone((1, 2), 0.5, "pre", **DIALECTS["bit"]), (32, 48), classes=7)
    classifier = random_classifier(config)
    convert_weights(classifier, tmp_path / "bit.npz", "google")
    with np.load(tmp_path / "bit.npz") as arrays:
        shapes = {key.removeprefix("resnet/"): arrays[key].shape for key in arrays}
        np.savez(tmp_path / "bare.npz", **arrays)  # without vitkit's description
    assert shapes["root_block/standardized_conv2d/kernel"] == (7, 7, 3, 32)
    assert shapes["block2/unit01/a/proj/standardized_conv2d/kernel"] == (1, 1, 128, 256)
    assert shapes["block2/unit02/b/standardized_conv2d/kernel"] == (3, 3, 64, 64)
    assert shapes["block2/unit02/c/group_norm/gamma"] == (64,)
    assert shapes["group_norm/gamma"] == (256,)
    assert shapes["head/conv2d/kernel"] == (1, 1, 256, 7)
    assert shapes["head/conv2d/bias"] == (7,)
    # A root, three units of three convolutions and norms, two shortcuts, the last norm and the head
    assert len(shapes) == 1 + 3 * 9 + 2 + 2 + 2
    again = load(tmp_path / "bare.npz", image=(32, 48), quiet=True)
    assert again.model.config == config
    assert_same_state(again.model, classifier.model)


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda a: a.pop("block2/unit1/gn1/scale"), "missing: block2/unit1/gn1/scale"),
        (
            lambda a: a.update({"block3/unit9/conv1/kernel": np.zeros((1, 1, 2, 2))}),
            "unknown tensors: block3/unit9/conv1",
        ),
        (lambda a: a.update({"conv_root/kernel": np.zeros((7, 7, 3))}), "it should have 4 axes"),
        (
            lambda a: a.update({"conv_root/kernel": np.zeros((7, 7, 3, 48))}),
            "48 channels in the root",
        ),
        (
            lambda a: a.update({"block1/unit1/conv2/kernel": np.zeros((3, 3, 32, 33))}),
            "block1/unit1/conv2/kernel",
        ),
    ],
)
@pytest.mark.parametrize("name", ["hybrid_stage3", "resnet_bit"])
def test_what_is_missing_or_too_much_is_named(name, spoil, sentence, shared, tmp_path):
    with np.load(shared(f"reference/{name}.weights.npz")) as file:
        arrays = {key.removeprefix("params/"): file[key] for key in file}
    spoil(arrays)
    np.savez(tmp_path / "m.npz", **arrays)
    with pytest.raises(ValueError, match=sentence):
        load(tmp_path / "m.npz", image=(64, 64), quiet=True)


def test_a_hybrid_in_another_dialect_says_what_would_differ(random_classifier, tmp_path):
    classifier = random_classifier(named("R+mu/16", image=64, classes=7))
    sentence = (
        "the ResNet's norm_eps: 1e-06 here, 1e-05 there; "
        "the ResNet's standardise: std here, variance there"
    )
    with pytest.raises(ValueError, match=sentence):
        convert_weights(classifier, tmp_path / "m", "timm")
    proof = convert_weights(classifier, tmp_path / "m", "timm", approximate=True)
    assert 0 < proof.largest < 0.05
    assert isinstance(load(tmp_path / "m", quiet=True), Classifier)
