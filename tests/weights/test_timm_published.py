"""timm's models beyond the plain ViT, by their published names at a small width: read, each equal to
timm's own answer, or refused with the reason."""

import json

import pytest
import torch
from other_libraries import assert_same_outputs, assert_same_state, randomised
from safetensors.torch import save_file

from vitkit.weights import load
from vitkit.weights.proof import convert_weights

timm = pytest.importorskip("timm")
SMALL = {"img_size": 64, "embed_dim": 48, "depth": 2, "num_heads": 4, "num_classes": 7}
PATCH_14 = {**SMALL, "img_size": 56}
# timm's name -> its arguments here, and whether vitkit writes it for timm too
PUBLISHED = {
    "vit_medium_patch16_gap_240": (SMALL, True),
    "vit_base_patch16_rpn_224": (SMALL, True),
    "vit_base_patch16_224_miil": (SMALL, True),
    "vit_so150m2_patch16_reg1_gap_256": ({**SMALL, "mlp_ratio": 2}, True),
    "vit_giant_patch14_dinov2": ({**PATCH_14, "mlp_ratio": 4}, True),
    "vit_giant_patch14_reg4_dinov2": ({**PATCH_14, "mlp_ratio": 4}, True),
    "vit_base_patch16_clip_224": (SMALL, True),
    "vit_base_patch16_clip_quickgelu_224": (SMALL, True),
    "vit_small_patch16_dinov3": (SMALL, False),
    "vit_small_patch16_dinov3_qkvb": (SMALL, False),
    "vit_huge_plus_patch16_dinov3": (SMALL, False),
}


def published(name, folder, **arguments):
    """A small model of this name with random weights, and its repository."""
    model = randomised(timm.create_model(name, **arguments))
    save_file(model.state_dict(), folder / "model.safetensors")
    described = {"architecture": name, "global_pool": model.global_pool, "model_args": {}}
    (folder / "config.json").write_text(json.dumps(described))
    return model


@pytest.mark.parametrize("name", PUBLISHED)
def test_it_is_read_and_written_for_timm(name, tmp_path):
    arguments, is_written = PUBLISHED[name]
    theirs = published(name, tmp_path, **arguments)
    side = arguments["img_size"]
    classifier = load(tmp_path, heads=4, image=(side, side))
    assert_same_outputs(theirs, classifier.model, (side, side))
    has_biases = any(key.endswith(("qkv.bias", "q_bias")) for key in theirs.state_dict())
    assert classifier.model.config.qkv_bias == has_biases

    if not is_written:
        with pytest.raises(ValueError, match="timm has no place for rotary-dinov3 positions"):
            convert_weights(classifier, tmp_path / "back", "timm")
        return
    proof = convert_weights(classifier, tmp_path / "back", "timm")
    assert proof.largest < 1e-5
    assert_same_state(load(tmp_path / "back", quiet=True).model, classifier.model)


def test_a_bare_file_of_the_one_model_with_norms_after_the_branches_is_read(tmp_path, capsys):
    theirs = published("vit_base_patch16_rpn_224", tmp_path, **SMALL)
    (tmp_path / "config.json").unlink()
    classifier = load(tmp_path / "model.safetensors", heads=4)
    assert_same_outputs(theirs, classifier.model, (64, 64))
    assert "norms: after attention and MLP, as in timm's" in capsys.readouterr().err


def test_dinov2s_own_giant_is_read(tmp_path):
    """Its layers of the MLP have other names than timm's."""
    theirs = randomised(
        timm.create_model("vit_giant_patch14_dinov2", **{**PATCH_14, "mlp_ratio": 4})
    )
    state = {}
    for name, tensor in theirs.state_dict().items():
        state[name.replace("mlp.fc1", "mlp.w12").replace("mlp.fc2", "mlp.w3")] = tensor
    save_file(state, tmp_path / "dinov2_vitg14.safetensors")
    classifier = load(tmp_path / "dinov2_vitg14.safetensors", heads=4, quiet=True)
    assert classifier.model.config.swiglu
    assert_same_outputs(theirs, classifier.model, (56, 56))


REFUSED = {
    "eva02_tiny_patch14_224": "biases of q and v only",
    "eva02_base_patch14_224": "a norm within the MLP",
    "eva_giant_patch14_224": "biases of q and v only",
    "beit_base_patch16_224": "a table of biases for offsets",
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_models_are_refused_with_the_reason(name, tmp_path):
    with torch.device("meta"):
        state = timm.create_model(name, depth=1, embed_dim=64, num_heads=4).state_dict()
    zeros = {key: torch.zeros(tensor.shape) for key, tensor in state.items()}
    save_file(zeros, tmp_path / "m.safetensors")
    with pytest.raises(ValueError, match=REFUSED[name]):
        load(tmp_path / "m.safetensors", quiet=True)
