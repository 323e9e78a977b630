"""Google's files: the official code's own answers, every spelling of names, and written back as
they were."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from other_libraries import assert_same_state

from vitkit.models import DIALECTS, Backbone, ResNetConfig, vit
from vitkit.models import layers as dense
from vitkit.system import matmul
from vitkit.weights import format_of, load
from vitkit.weights.destination import tensors_in
from vitkit.weights.formats.google.names import image_part
from vitkit.weights.formats.google.vit import open_elsewhere
from vitkit.weights.proof import convert_weights

SMALL = {"image": (32, 32), "width": 48, "depth": 2, "heads": 4, "classes": 7}
PLAIN = vit("mu/8", **SMALL, mlp=80)
MAP = vit("mu/8", **SMALL, mlp=192, pool="map")

# Made by the official code: shared/reference
CASES = [
    "vit_token", "vit_token_pre_logits", "vit_gap", "vit_nonsquare", "big_vision_tok",
    "big_vision_gap_sincos", "big_vision_map_rep", "big_vision_scan", "hybrid_stem_only",
    "hybrid_stage3", "hybrid_stage4", "resnet_bit", "resnet_bit_paper",
]  # fmt: skip


def loaded(shared, name):
    size = json.loads(shared(f"reference/{name}.json").read_text())["image"]
    return load(shared(f"reference/{name}.weights.npz"), image=tuple(size), quiet=True)


@pytest.mark.parametrize("name", CASES)
def test_the_official_codes_answers(name, shared, monkeypatch):
    """Logits and representation within 1e-5, whichever library computes the products."""
    monkeypatch.setattr(dense, "LEAST_WORK", 0)
    expected = np.load(shared(f"reference/{name}.expected.npz"))
    model = loaded(shared, name).model
    images = torch.from_numpy(expected["images"]).permute(0, 3, 1, 2)
    # Both sides are float32; in float64 it is 1e-5 for all (tests/models)
    tolerance = 2e-5 if name == "hybrid_stage4" else 1e-5
    for library in (matmul.NONE, matmul.ALL):
        monkeypatch.setattr(matmul, "_in_use", library)
        with torch.inference_mode():
            answers = {"logits": model(images), "representation": model.features(images)}
        for answer in answers.keys() & set(expected):  # big_vision's ResNets: no representation
            theirs = torch.from_numpy(expected[answer])
            torch.testing.assert_close(answers[answer], theirs, atol=tolerance, rtol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_every_array_is_written_back_under_its_name(name, shared, tmp_path):
    convert_weights(loaded(shared, name), tmp_path / "again.npz", "google")
    original = shared(f"reference/{name}.weights.npz")
    with np.load(original) as before, np.load(tmp_path / "again.npz") as after:
        assert set(before) == set(after)
        for key in before:
            assert before[key].dtype == after[key].dtype, key
            np.testing.assert_array_equal(before[key], after[key], err_msg=key)


def arrays_of(classifier):
    """The arrays of a file of Google's, without vitkit's description."""
    tensors = tensors_in(format_of("google", PLAIN), classifier)
    return {name: tensor.numpy() for name, tensor in tensors.items()}


@pytest.mark.parametrize(
    ("config", "prefix", "rest", "norms", "mlp", "attention"),
    [
        (PLAIN, "", ["", "Transformer/posembed_input"], (0, 2), 3, 1),
        (MAP, "params/", ["params", "params/MAPHead_0"], (0, 1), 0, 0),
    ],
    ids=["paper", "big_vision"],
)
def test_layers_have_the_names_of_the_official_code(
    config, prefix, rest, norms, mlp, attention, random_classifier
):
    """Flax numbers the layers of a block: all together in the paper's code, by kind in big_vision."""

    def of(block: str, norms: tuple, mlp: int, attention: int) -> list[str]:
        layers = [f"LayerNorm_{number}" for number in norms]
        layers += [f"MlpBlock_{mlp}/Dense_{number}" for number in (0, 1)]
        for part in ("query", "key", "value", "out"):
            layers.append(f"MultiHeadDotProductAttention_{attention}/{part}")
        return [f"{prefix}{block}/{layer}" for layer in layers]

    expected = [*rest, *(f"{prefix}{x}" for x in ("Transformer/encoder_norm", "embedding", "head"))]
    for number in range(config.depth):
        expected += of(f"Transformer/encoderblock_{number}", norms, mlp, attention)
    if config.pool == "map":
        expected += of("MAPHead_0", (0,), 0, 0)
    names = arrays_of(random_classifier(config))
    assert {name.rpartition("/")[0] for name in names} == set(expected)


def test_computed_positions_are_on_the_grid_of_patches_that_are_no_squares(
    random_classifier, tmp_path
):
    config = replace(PLAIN, patch=(8, 16), pool="gap", positions="sincos")
    classifier = random_classifier(config)
    np.savez(tmp_path / "model.npz", **arrays_of(classifier))
    again = load(tmp_path / "model.npz", quiet=True)
    assert again.model.config.image == (224, 224) and again.model.config.grid == (28, 14)
    assert_same_state(again.model, classifier.model)


def test_a_rectangle_of_a_square_and_one_is_told(random_classifier, tmp_path, capsys):
    """10 x 5 patches of big_vision, which has no row for the class token, are as many as 7 x 7 and a
    token's. The paper's files always have one."""
    config = replace(PLAIN, patch=16, pool="token", prefix_positions=0)
    classifier = random_classifier(replace(config, image=(160, 80)))
    np.savez(tmp_path / "model.npz", **arrays_of(classifier))
    assert load(tmp_path / "model.npz").model.config.grid == (7, 7)
    err = capsys.readouterr().err
    assert err.count("read as 7 x 7 patches and 1 of 1 tokens") == 1
    assert "if they are 10 x 5 patches and 0 of 1 tokens: `image=(160, 80)`" in err
    right = load(tmp_path / "model.npz", image=(160, 80))
    assert "read as" not in capsys.readouterr().err
    assert_same_state(right.model, classifier.model)

    papers = random_classifier(replace(config, image=(112, 112), prefix_positions=None))
    np.savez(tmp_path / "paper.npz", **arrays_of(papers))
    load(tmp_path / "paper.npz")
    assert "read as" not in capsys.readouterr().err


def test_where_nothing_is_left_out_nothing_is_said(random_classifier):
    arrays = arrays_of(random_classifier(MAP))
    image, notes = image_part(arrays, "params/")
    assert len(image) == len(arrays) and notes == []


def test_googles_code_computes_a_hybrid_in_its_own_dialect(random_classifier, tmp_path):
    config = vit("R+mu/4", image=(32, 32), classes=3)
    other = replace(config, stem=replace(config.stem, **DIALECTS["timm"]))
    elsewhere = open_elsewhere(random_classifier(other), tmp_path)
    assert elsewhere.model.config == config
    assert open_elsewhere(random_classifier(config), tmp_path) is None


def test_a_whole_training_state_is_read(random_classifier, tmp_path, capsys):
    classifier = random_classifier(PLAIN)
    state = {f"opt/target/{name}": array for name, array in arrays_of(classifier).items()}
    np.savez(tmp_path / "state.npz", **state, **{"opt/state/step": np.array(3)})
    again = load(tmp_path / "state.npz")
    assert "left out: 1 arrays beside the image model, under opt/state" in capsys.readouterr().err
    assert_same_state(again.model, classifier.model)


def test_a_training_state_of_todays_big_vision_is_read(random_classifier, tmp_path, capsys):
    """params/ beside the optimiser's opt/ and the clock of the training."""
    classifier = random_classifier(MAP)
    state = arrays_of(classifier)
    for name, array in list(state.items()):
        state[name.replace("params/", "opt/0/0/mu/")] = np.zeros_like(array)
    state |= {"opt/1/count": np.array(7), "chrono/accum_train_time": np.array(1.5)}
    np.savez(tmp_path / "checkpoint.npz", **state)
    again = load(tmp_path / "checkpoint.npz")
    assert "arrays beside the image model, under chrono/accum_train_time, opt/0" in (
        capsys.readouterr().err
    )
    assert_same_state(again.model, classifier.model)


def test_a_bit_with_numbered_layers_is_read(random_classifier, tmp_path):
    """As TensorFlow numbers layers of one kind."""
    bit = random_classifier(
        ResNetConfig(Backbone((1, 2), 0.5, "pre", **DIALECTS["bit"]), 32, classes=7)
    )
    arrays = {
        name: t.numpy()
        for name, t in tensors_in(format_of("google", bit.model.config), bit).items()
    }
    assert "resnet/root_block/standardized_conv2d/kernel" in arrays
    numbered = {}
    for number, (name, array) in enumerate(arrays.items()):
        for kind in ("standardized_conv2d", "group_norm"):
            name = name.replace(f"/{kind}/", f"/{kind}_{number // 2}/")
        numbered[name] = array
    np.savez(tmp_path / "numbered.npz", **numbered)
    assert_same_state(load(tmp_path / "numbered.npz", image=(32, 32), quiet=True).model, bit.model)

    numbered["resnet/root_block/standardized_conv2d_99/kernel"] = arrays[
        "resnet/root_block/standardized_conv2d/kernel"
    ]
    np.savez(tmp_path / "twice.npz", **numbered)
    with pytest.raises(ValueError, match="two arrays of the same layer"):
        load(tmp_path / "twice.npz", image=(32, 32), quiet=True)


def test_an_image_tower_beside_a_text_tower_is_read(random_classifier, tmp_path):
    classifier = random_classifier(MAP)
    towers = {"params/txt/head/bias": np.zeros(3), "params/t": np.zeros(1)}
    for name, array in arrays_of(classifier).items():
        towers[f"params/img/{name.removeprefix('params/')}"] = array
    np.savez(tmp_path / "towers.npz", **towers)
    assert_same_state(load(tmp_path / "towers.npz", quiet=True).model, classifier.model)


def test_arrays_of_no_known_kind_beside_the_image_tower_are_refused(random_classifier, tmp_path):
    """Also if their names begin with those of arrays that may be there (params/t, params/b)."""
    towers = {"params/block9/y": np.zeros(3), "params/transformer_extra/x": np.zeros(3)}
    for name, array in arrays_of(random_classifier(MAP)).items():
        towers[f"params/img/{name.removeprefix('params/')}"] = array
    np.savez(tmp_path / "towers.npz", **towers)
    with pytest.raises(
        ValueError, match="unknown tensors: params/block9/y, params/transformer_extra/x"
    ):
        load(tmp_path / "towers.npz")


def test_an_early_map_head_and_bfloat16_as_raw_bytes_are_read(random_classifier, tmp_path, capsys):
    classifier = random_classifier(MAP)
    early = {}
    for name, array in arrays_of(classifier).items():
        bfloat16 = torch.from_numpy(array).bfloat16().view(torch.uint16).numpy()
        early[name.replace("MAPHead_0/", "")] = bfloat16.view("V2")
    np.savez(tmp_path / "early.npz", **early)
    again = load(tmp_path / "early.npz")
    assert "widened from bfloat16 to float32" in capsys.readouterr().err
    assert_same_state(again.model, classifier.model.bfloat16().float())


def test_a_table_that_is_no_square_asks_for_the_size(shared):
    file = shared("reference/vit_nonsquare.weights.npz")
    with pytest.raises(ValueError, match="15 patches.*set the size in pixels"):
        load(file)
    with pytest.raises(ValueError, match="has 15 patches, but 16 x 40 pixels make 2 x 5"):
        load(file, image=(16, 40))


def test_what_a_file_of_big_visions_does_not_say_is_told(
    shared, random_classifier, tmp_path, capsys
):
    """The mean of the patches or the first of them, and the size of computed positions."""
    load(shared("reference/big_vision_gap_sincos.weights.npz"), quiet=False)
    err = capsys.readouterr().err
    assert 'does not distinguish it from pool_type "0"' in err and "`pool='corner'`" in err
    assert "for 224 x 224 pixels, which the file does not state" in err
