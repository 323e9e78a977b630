"""Every architecture of timm and Transformers that resembles a Vision Transformer: the same numbers as the
library's own, or a refusal that names it; and what config.json and a file's name say beyond the tensors."""

import json
import re
import sys
from pathlib import Path

import pytest
import torch
from other_libraries import TRANSFORMERS, assert_same_outputs, edit, randomised
from safetensors.torch import save_file

from vitkit.models import vit
from vitkit.weights import load
from vitkit.weights.formats.timm.architectures import architecture_called
from vitkit.weights.proof import check_reading
from vitkit.weights.published import all_published

timm = pytest.importorskip("timm")
pytest.importorskip("transformers")
SMALL = {"img_size": 64, "embed_dim": 48, "depth": 2, "num_heads": 4, "num_classes": 7}
# Each stands for a kind: rotations of two sorts, an activation, heads, pixels beyond patches, RMSNorm
QUICK = (
    "vit_small_patch16_rope_224",
    "vit_medium_patch16_rope_reg1_gap_256",
    "vit_base_patch16_siglip_gap_224",
    "deit_tiny_distilled_patch16_224",
    "test_vit4",
)
REFUSED = (
    "vit_pe_core_tiny_patch16_384",
    "vit_small_patch16_rope_ape_224",
    "vit_small_patch16_rope_mixed_224",
    "eva02_tiny_patch14_224",
    "hiera_tiny_224",
    "test_vit3",
)


@pytest.fixture(scope="module")
def script():
    """benchmarks/library_architectures.py, which wrote the file of architectures."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
        import library_architectures

        yield library_architectures
    del sys.modules["library_architectures"]


@pytest.mark.parametrize("name", QUICK)
def test_an_architecture_computes_what_timm_computes(name, script):
    assert script.check_timm(name).result == "equal"


@pytest.mark.parametrize("name", REFUSED)
def test_another_architecture_is_refused_by_its_name(name, script):
    outcome = script.check_timm(name)
    assert outcome.result == "refused" and f"timm's {name} by " in outcome.detail


SIZES = "7b tiny wee xsmall little small medium mediumd betwixt base so150m so150m2 large so400m huge giant giantopt gigantic"


def family(name):
    """An architecture's name without sizes of any kind: vit_patch_siglip_gap."""
    words = [word for word in name.split("_") if word not in SIZES.split() and not word.isdigit()]
    return "_".join(re.sub(r"^(patch|reg)\d+$", r"\1", word) for word in words)


@pytest.mark.slow
def test_every_architecture_of_timm_is_the_same_or_refused(script):
    """The settings of each are those of timm's function. The narrowest of every family computes the same;
    `python benchmarks/library_architectures.py timm` computes with all."""
    names = script.of_timm()
    known = {name: architecture_called(name) for name in names}
    assert [name for name in names if script.described(name) != known[name]] == []
    refused = [name for name in names if known[name].refused]
    outcomes = [script.check_timm(name) for name in refused]
    assert [
        each
        for each in outcomes
        if each.result != "refused" or f"timm's {each.name} by " not in each.detail
    ] == []

    narrowest = {}
    for name in sorted(set(names) - set(refused), key=lambda name: (known[name].width, name)):
        narrowest.setdefault(family(name), name)
    outcomes = [script.check_timm(name) for name in narrowest.values()]
    assert [each for each in outcomes if each.result != "equal"] == []
    assert len(narrowest) > 30

    # Each published model is one that is read
    rows = [row.name.removeprefix("timm/") for row in all_published() if row.library == "timm"]
    of_patches = {name.partition(".")[0] for name in rows if not name.startswith("resnetv2")}
    assert of_patches <= set(names) - set(refused) and len(names) - len(refused) > 180


@pytest.mark.slow
def test_every_published_model_of_transformers_is_the_same_and_other_types_are_refused(script):
    """Of models that differ in size alone, the smallest: `python benchmarks/library_architectures.py
    transformers` computes with all."""
    types = [script.check_type(name) for name in script.of_transformers()]
    assert [outcome for outcome in types if outcome.result == "DIFFERS"] == []
    results = {outcome.name: outcome.result for outcome in types}

    smallest = {}
    for row in sorted(script.on_hub(), key=lambda row: vit(row.shape).width):
        smallest.setdefault((row.kind, row.family, row.own), row)
    for row in smallest.values():
        assert script.check_published(row).result == "equal", row.name
    assert {row.kind for row in smallest.values()} == {row.kind for row in script.on_hub()}
    assert results["hiera"] == results["beit"] == results["qwen3_vl_vision"] == "refused"


# What config.json says


@pytest.fixture
def saved(tmp_path):
    """Saves one of timm's models with random numbers, small, as timm does; returns the model."""

    def save(name="vit_tiny_patch16_224", **arguments):
        from timm.models import save_for_hf

        model = randomised(timm.create_model(name, **{**SMALL, **arguments}))
        save_for_hf(model, tmp_path, safe_serialization=True)
        return model

    return save


def test_no_positions_are_read_as_none(saved, tmp_path):
    theirs = saved(pos_embed="none")
    classifier = load(tmp_path, quiet=True)
    assert classifier.model.config.positions == "none"
    assert_same_outputs(theirs, classifier.model, (64, 64))


@pytest.mark.parametrize(
    ("argument", "value"),
    [("scale_attn_norm", True), ("final_norm", False), ("norm_layer", "simplenorm"), ("rope_type", "mixed"),
     ("attn_layer", "diff"), ("pos_embed", "overlap"), ("something_new", [1])],
)  # fmt: skip
def test_an_argument_that_may_change_the_model_is_refused(argument, value, saved, tmp_path):
    saved()
    edit(tmp_path, "model_args", **{argument: value})
    with pytest.raises(
        ValueError, match=f"model_args contain {argument}: .*which vitkit cannot read"
    ):
        load(tmp_path, quiet=True)


def test_arguments_without_effect_on_what_is_computed_are_no_reason_to_refuse(saved, tmp_path):
    theirs = saved(drop_rate=0.1, qk_norm=False, dynamic_img_size=True)
    edit(
        tmp_path,
        "model_args",
        drop_path_rate=0.2,
        qk_norm=False,
        norm_layer="layernorm",
        act_layer=None,
    )
    assert_same_outputs(theirs, load(tmp_path, quiet=True).model, (64, 64))


@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm"])
def test_normalised_queries_and_keys_are_read_and_written(norm, saved, tmp_path):
    from vitkit.weights.proof import convert_weights

    theirs = saved(qk_norm=True, norm_layer=norm, qkv_bias=False, reg_tokens=4, init_values=0.1)
    classifier = load(tmp_path, quiet=True)
    config = classifier.model.config
    assert config.qk_norm and config.rms_norm == (norm == "rmsnorm")
    assert_same_outputs(theirs, classifier.model, (64, 64))
    assert convert_weights(classifier, tmp_path / "back", "timm").largest < 1e-5


@pytest.mark.parametrize(
    "name",
    [
        "vit_small_patch16_rope_224",
        "vit_medium_patch16_rope_reg1_gap_256",
        "vit_small_patch16_dinov3",
    ],
)
@pytest.mark.parametrize("image", [(96, 96), (64, 128)])
def test_rotary_positions_on_another_grid_are_timms(name, image, saved, tmp_path):
    theirs = saved(name, img_size=96)
    classifier = load(tmp_path, image=image, quiet=True)
    theirs.set_input_size(img_size=image)
    assert classifier.model.config.image == image
    assert_same_outputs(theirs, classifier.model, image)


def test_an_architecture_that_vitkit_does_not_know_is_guessed_and_said(saved, tmp_path, capsys):
    theirs = saved()
    edit(tmp_path, architecture="vit_of_tomorrow_patch16_224")
    classifier = load(tmp_path)
    said = capsys.readouterr().err
    assert "GUESSED: vitkit does not know timm's architecture vit_of_tomorrow_patch16_224" in said
    assert_same_outputs(theirs, classifier.model, (64, 64))


REAL = {"embed_dim": 768, "depth": 1, "num_heads": 12}  # the width that the name tells


def test_its_name_tells_what_a_bare_file_is(saved, tmp_path, capsys):
    theirs = saved("vit_base_patch32_siglip_256", **REAL)
    file = tmp_path / "vit_base_patch32_siglip_256.v2_webli.safetensors"
    (tmp_path / "model.safetensors").rename(file)
    classifier = load(file)
    assert (
        "architecture: timm's vit_base_patch32_siglip_256, by its name" in capsys.readouterr().err
    )
    assert classifier.model.config.gelu == "tanh"
    assert_same_outputs(theirs, classifier.model, (64, 64))

    other = tmp_path / "vit_pe_core_tiny_patch16_384.fb.safetensors"
    file.rename(other)
    with pytest.raises(ValueError, match="name of timm's vit_pe_core_tiny.*rename it"):
        load(other)


@pytest.mark.parametrize(
    ("file", "is_it"),
    [("vit_tiny_patch16_224.safetensors", True), ("vit_base_patch16_siglip_gap_224.safetensors", False),
     ("vit_base_patch16_rpn_224.safetensors", False), ("vit_base_patch32_siglip_256.safetensors", False)],
)  # fmt: skip
@pytest.mark.parametrize(
    "changes", [{}, {"global_pool": "avg"}, {"global_pool": "avg", "class_token": False}]
)
def test_tensors_go_before_a_files_name(file, is_it, changes, saved, tmp_path, capsys):
    theirs = saved("vit_tiny_patch16_224", embed_dim=192, num_heads=3, **changes)
    (tmp_path / "model.safetensors").rename(tmp_path / file)
    classifier = load(tmp_path / file)
    said = capsys.readouterr().err
    assert ("by its name" in said) == (is_it and changes.get("class_token", True))
    assert_same_outputs(theirs, classifier.model, (64, 64))


def test_a_bare_file_whose_positions_nothing_tells_is_refused(saved, tmp_path):
    saved("vit_small_patch16_rope_224")
    bare = (tmp_path / "model.safetensors").rename(tmp_path / "weights.safetensors")
    with pytest.raises(ValueError, match="no table of positions.*put timm's config.json beside it"):
        load(bare, heads=4)


def test_the_types_of_transformers_with_timms_names_are_refused(saved, tmp_path):
    saved()
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3_vl_vision"}))
    with pytest.raises(ValueError, match="it is qwen3_vl_vision by its config.json"):
        load(tmp_path, quiet=True)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "hiera"}))
    save_file({"encoder.stages.0.weight": torch.zeros(2)}, tmp_path / "model.safetensors")
    with pytest.raises(
        ValueError, match="names of no Vision Transformer.*config.json calls it hiera"
    ):
        load(tmp_path, quiet=True)


@pytest.mark.parametrize(
    "name", ["vit_small_patch16_rope_224", "vit_medium_patch16_rope_reg1_gap_256"]
)
def test_norms_of_queries_and_keys_go_with_rotations(name, saved, tmp_path):
    """Whose pairs are neighbours in timm: the norms have another order then, too."""
    theirs = saved(name, qk_norm=True)
    assert_same_outputs(theirs, load(tmp_path, quiet=True).model, (64, 64))


def test_a_gate_with_another_activation_is_refused(saved, tmp_path):
    saved("vit_giant_patch14_dinov2", img_size=56, act_layer="relu", mlp_ratio=4)
    with pytest.raises(ValueError, match="act_layer is 'relu'; the gate of a SwiGLU has silu"):
        load(tmp_path, quiet=True)


@pytest.mark.parametrize("name", ["vit_small_patch16_dinov3", "vit_base_patch16_lingbot"])
def test_attention_pooling_of_timms_eva_code_is_refused(name, saved, tmp_path):
    """It reads the tokens before the patches too."""
    saved(name, global_pool="map")
    with pytest.raises(ValueError, match="pool_include_prefix"):
        load(tmp_path, quiet=True)


def test_a_bare_dinov3_with_a_head_reads_the_mean(saved, tmp_path, capsys):
    theirs = saved("vit_small_patch16_dinov3")
    bare = (tmp_path / "model.safetensors").rename(tmp_path / "best.safetensors")
    classifier = load(bare, heads=4, image=64)
    assert "pooling: the mean of the patches, timm's default for DINOv3" in capsys.readouterr().err
    assert_same_outputs(theirs, classifier.model, (64, 64))


def test_a_bare_rope_ape_is_a_guess_and_said(saved, tmp_path, capsys):
    saved("vit_small_patch16_rope_ape_224")
    bare = (tmp_path / "model.safetensors").rename(tmp_path / "best.safetensors")
    load(bare, heads=4)
    assert (
        "GUESSED: positions are only added, as in DeiT III, and not also rotary"
        in capsys.readouterr().err
    )
    saved("vit_pe_core_tiny_patch16_384")
    bare = (tmp_path / "model.safetensors").rename(tmp_path / "best.safetensors")
    with pytest.raises(ValueError, match="like Perception Encoders"):
        load(bare, heads=4)


# The library's own reading


def test_a_directory_is_compared_with_its_librarys_own_reading(saved, tmp_path):
    saved("vit_base_patch16_siglip_224", class_token=False, global_pool="map")
    reading = check_reading(tmp_path)
    assert reading.library.startswith("timm ") and reading.largest < 1e-5 < reading.scale
    assert check_reading(tmp_path / "model.safetensors") is None


def test_a_wrong_reading_is_found(saved, tmp_path):
    """As of an architecture that appears after this version, with another activation."""
    from timm.models import register_model

    def vit_of_tomorrow_patch16_224(**arguments):
        make = timm.models.vision_transformer._create_vision_transformer
        return make("vit_tiny_patch16_224", act_layer="silu", **arguments)

    register_model(vit_of_tomorrow_patch16_224)
    saved()
    edit(tmp_path, architecture="vit_of_tomorrow_patch16_224")
    with pytest.raises(ValueError, match="vitkit and timm .* differently: the logits differ by"):
        check_reading(tmp_path)


def test_a_head_of_zeros_is_no_proof_of_the_rest(saved, tmp_path, monkeypatch):
    """Its logits are zeros in every library, whatever the encoder computes."""
    from vitkit.weights import proof
    from vitkit.weights.proof import convert_weights

    saved()
    classifier = load(tmp_path, labels=("a", "b"), quiet=True)
    converted = convert_weights(classifier, tmp_path / "same", "timm")
    assert converted.largest < 1e-5 < 0.01 < converted.scale
    assert not load(tmp_path / "same", quiet=True).model.head.weight.any()

    # An encoder that computes something else is found
    real = proof.load

    def another(path, **settings):
        found = real(path, **settings)
        if path.name == "other":
            found.model.blocks[0].mlp.gelu = torch.nn.ReLU()
        return found

    monkeypatch.setattr(proof, "load", another)
    with pytest.raises(ValueError, match="the logits of timm .* differ by"):
        convert_weights(classifier, tmp_path / "other", "timm")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_reading_is_compared_in_float32(dtype, tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(**TRANSFORMERS, num_labels=3)
    model = randomised(transformers.ViTForImageClassification(config)).to(dtype)
    model.save_pretrained(tmp_path)
    reading = check_reading(tmp_path)
    assert reading.largest < 1e-5 < 0.01 < reading.scale


def test_what_the_library_does_not_compute_is_not_compared(saved, tmp_path):
    """Patches leave pixels out here, and timm takes images of its own size alone."""
    saved("vit_so400m_patch14_siglip_gap_384", img_size=62)
    assert load(tmp_path, quiet=True).model.config.image == (56, 56)
    assert check_reading(tmp_path) is None
    # A config.json of another head: timm draws a new one, which is no defect of vitkit
    saved()
    edit(tmp_path, num_classes=9)
    with pytest.raises(ValueError, match="Either its config.json belongs to other weights"):
        check_reading(tmp_path)
