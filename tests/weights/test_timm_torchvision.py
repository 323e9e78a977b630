"""timm's and torchvision's own models, with random weights, are read by their names and shapes
alone."""

import json
from dataclasses import replace

import pytest
import timm
import torch
from other_libraries import TIMM, assert_same_outputs, randomised
from safetensors.torch import save_file

from vitkit.data import Preprocessing
from vitkit.models import named, vit
from vitkit.weights import load
from vitkit.weights.formats import cannot
from vitkit.weights.formats.shapes import IMAGENET
from vitkit.weights.formats.timm.config import config_json, written_preprocessing
from vitkit.weights.formats.timm.description import _pool
from vitkit.weights.formats.timm.vit import architecture, directory
from vitkit.weights.proof import convert_weights

VARIANTS = {
    "plain": {},
    "no head": {"num_classes": 0},
    "gap": {"global_pool": "avg"},
    "gap with the norm before": {"global_pool": "avg", "fc_norm": False, "class_token": False},
    "map": {"global_pool": "map", "class_token": False},
    "map beside a class token": {"global_pool": "map"},
    "map beside registers": {
        "global_pool": "map",
        "class_token": False,
        "reg_tokens": 4,
        "no_embed_class": True,
    },
    "DeiT III": {"no_embed_class": True, "init_values": 1e-4},
    "registers": {"reg_tokens": 4, "no_embed_class": True, "init_values": 1e-4},
    "registers with positions": {"reg_tokens": 3},
    "patch 14": {"img_size": 70, "patch_size": 14},
    "rectangles": {"patch_size": (8, 4)},
    "no biases of q, k, v": {"qkv_bias": False},
}


WORDS = {
    "Ti/16": "tiny_patch16", "S/16": "small_patch16", "S/32": "small_patch32", "B/8": "base_patch8",
    "B/16": "base_patch16", "B/32": "base_patch32", "L/14": "large_patch14", "L/16": "large_patch16",
    "L/32": "large_patch32", "H/14": "huge_patch14", "g/14": "giant_patch14",
    "G/14": "gigantic_patch14", "R+Ti/16": "tiny_r_s16_p8", "R26+S/32": "small_r26_s32",
    "R50+B/16": "base_r50_s16", "R50+L/32": "large_r50_s32",
}  # fmt: skip


@pytest.mark.parametrize("name", WORDS)
def test_published_sizes_have_timms_names(name):
    theirs, _ = architecture(named(name))
    assert theirs == f"vit_{WORDS[name]}_224" and timm.is_model(theirs)


@pytest.mark.parametrize("changes", [{"width": 2.0}, {"units": (1, 1)}])
def test_timm_has_few_hybrids(changes):
    config = named("R50+L/32")
    assert cannot("timm", config) == []
    other = replace(config, stem=replace(config.stem, **changes))
    assert cannot("timm", other) == ["a ResNet stem that none of its hybrids has"]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({}, None),
        ({"swiglu": True}, None),
        ({"branch_norm": "after"}, None),
        ({"embedding_norm": True}, None),
        ({"pool": "distilled", "registers": 1}, None),
        ({"norm": "pooled", "pool": "gap"}, None),
        ({"registers": 1, "prefix_positions": 2}, None),
        ({"registers": 1, "prefix_positions": 0, "pool": "gap"}, None),
        ({"swiglu": True, "embedding_norm": True}, "more than one of SwiGLU"),
        ({"branch_norm": "after", "embedding_norm": True}, "more than one of SwiGLU"),
        ({"pool": "distilled", "registers": 1, "swiglu": True}, "more than one of SwiGLU"),
        ({"swiglu": True, "pool": "map"}, "a SwiGLU MLP beside attention pooling"),
        ({"branch_norm": "after", "layer_scale": 0.1}, "LayerScale in blocks with norms after"),
        ({"representation": 8}, "a representation layer"),
        ({"norm": "pooled"}, "a norm after a pooling other than the mean"),
        ({"registers": 1, "prefix_positions": 0}, "a distillation token that no head reads"),
        ({"pool": "distilled", "registers": 2}, "more registers than the distillation token"),
    ],
)
def test_what_timms_vit_cannot_express(settings, reason):
    reasons = cannot("timm", vit("mu/8", image=(32, 32), **settings))
    assert len(reasons) == (reason is not None)
    assert reason is None or reasons[0].startswith(reason)


@pytest.mark.parametrize(
    ("name", "settings"),
    [("mu/8", {}), ("R+mu/4", {}), ("mu/8", {"pool": "distilled", "registers": 1})],
    ids=["ViT", "hybrid", "DeiT"],
)
def test_a_config_says_of_layers_what_timm_says(name, settings, random_classifier):
    classifier = random_classifier(vit(name, image=(32, 32), classes=3, **settings))
    config = directory(classifier)["config.json"]
    theirs = timm.get_pretrained_cfg(config["architecture"])
    ours = config["pretrained_cfg"]
    assert ours["fixed_input_size"] == theirs.fixed_input_size
    assert ours["pool_size"] == theirs.pool_size
    assert ours["first_conv"] == theirs.first_conv
    layers = theirs.classifier
    assert ours["classifier"] == (list(layers) if isinstance(layers, tuple) else layers)


def timm_model(**arguments):
    from timm.models.vision_transformer import VisionTransformer

    return randomised(VisionTransformer(**{**TIMM, **arguments}))


@pytest.mark.parametrize("name", VARIANTS)
def test_timm_models_are_read(name, tmp_path):
    arguments = VARIANTS[name]
    theirs = timm_model(**arguments)
    save_file(theirs.state_dict(), tmp_path / "m.safetensors")
    classifier = load(tmp_path / "m.safetensors", heads=4, quiet=True)
    side = arguments.get("img_size", 32)
    assert_same_outputs(theirs, classifier.model, (side, side))
    config = classifier.model.config
    assert (config.gelu, config.resample) == ("erf", "timm")
    assert config.norm == ("pooled" if name == "gap" else "tokens")


@pytest.mark.parametrize("prefix", [{"class_token": True}, {"registers": 4, "prefix_positions": 0}])
def test_attention_pooling_is_written_as_timm_computes_it(prefix, random_classifier, tmp_path):
    """It sees the patches alone, not the tokens before them."""
    config = vit("mu/8", image=(32, 32), classes=3, pool="map", gelu="erf", **prefix)
    proof = convert_weights(random_classifier(config), tmp_path / "m", "timm")
    assert proof.library.startswith("timm") and proof.largest < 1e-5 < proof.scale


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ({"global_pool": "max"}, "global_pool is 'max'"),
        ({"global_pool": "avgmax"}, "global_pool is 'avgmax'"),
        ({"model_args": {"global_pool": "prr"}}, "global_pool is 'prr'"),
        ({"model_args": {"pool_include_prefix": True}}, "pool_include_prefix"),
    ],
)
def test_a_pooling_of_timms_that_vitkit_has_not_is_refused(said, sentence, tmp_path):
    save_file(timm_model(fc_norm=True).state_dict(), tmp_path / "model.safetensors")
    config = {"architecture": "vit_base_patch16_224", "pretrained_cfg": {}, **said}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=sentence):
        load(tmp_path, heads=4, quiet=True)


@pytest.mark.parametrize("pooling", ["token", "avg", ""])
def test_the_pooling_that_config_json_says_is_read(pooling, tmp_path):
    theirs = timm_model(global_pool=pooling, fc_norm=pooling != "")
    save_file(theirs.state_dict(), tmp_path / "model.safetensors")
    config = {"architecture": "vit_base_patch16_224", "global_pool": pooling}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert_same_outputs(theirs, load(tmp_path, heads=4, quiet=True).model)


def test_two_readings_of_a_position_table_are_told(tmp_path, capsys):
    """5 x 3 patches and a class token have as many rows as 4 x 4 patches without one."""
    theirs = timm_model(img_size=(40, 24))
    save_file(theirs.state_dict(), tmp_path / "m.safetensors")
    assert load(tmp_path / "m.safetensors", heads=4).model.config.grid == (4, 4)
    err = capsys.readouterr().err
    assert "read as 4 x 4 patches and 0 of 1 tokens before them" in err
    assert "`image=(40, 24)`" in err
    classifier = load(tmp_path / "m.safetensors", heads=4, image=(40, 24))
    assert "read as" not in capsys.readouterr().err
    assert_same_outputs(theirs, classifier.model, (40, 24))

    # With a row for every token there is one reading
    save_file(timm_model().state_dict(), tmp_path / "square.safetensors")
    load(tmp_path / "square.safetensors", heads=4)
    err = capsys.readouterr().err
    assert "read as" not in err and "pooling: the class token; the file does not state it" in err


def test_a_distilled_deit_is_read(tmp_path):
    from timm.models.deit import VisionTransformerDistilled

    theirs = randomised(VisionTransformerDistilled(**TIMM))
    torch.save({"model": theirs.state_dict()}, tmp_path / "deit.pth")
    classifier = load(tmp_path / "deit.pth", heads=4, quiet=True)
    assert classifier.model.config.pool == "distilled"
    assert classifier.preprocessing.mean == IMAGENET["mean"]
    assert_same_outputs(theirs, classifier.model)


def test_a_timm_repository_is_read_as_its_config_says(tmp_path):
    import timm

    arguments = {"img_size": [32, 64], "depth": 2, "act_layer": "gelu_tanh", "init_values": 1e-4}
    theirs = randomised(timm.create_model("vit_tiny_patch16_224", num_classes=5, **arguments))
    save_file(theirs.state_dict(), tmp_path / "model.safetensors")
    config = {
        "architecture": "vit_tiny_patch16_224",
        "num_classes": 5,
        "label_names": list("abcde"),
        "model_args": arguments,
        "pretrained_cfg": {
            "input_size": [3, 32, 64],
            "mean": [0.1, 0.2, 0.3],
            "std": [0.5, 0.5, 0.5],
            "crop_pct": 0.9,
            "interpolation": "bilinear",
            "crop_mode": "squash",
        },
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    classifier = load(tmp_path, quiet=True)
    assert classifier.labels == tuple("abcde")
    assert classifier.model.config.gelu == "tanh"
    assert classifier.model.config.layer_scale == 1e-4
    assert classifier.preprocessing == Preprocessing(
        size=(32, 64), rule="square", resize=71, interpolation="bilinear", mean=(0.1, 0.2, 0.3)
    )
    assert_same_outputs(theirs, classifier.model, (32, 64))


@pytest.mark.parametrize(
    "written",
    [
        {"input_size": [3, 224, 224]},
        {"input_size": [3, 224, 224], "mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]},
        {"input_size": [3, 384, 384], "crop_pct": 1.0, "crop_mode": None},
        {"input_size": [3, 224, 224], "crop_pct": 0.9, "interpolation": "bilinear"},
    ],
)
def test_fields_that_config_json_leaves_out_have_timms_defaults(written):
    from timm.data import resolve_data_config
    from timm.data.transforms_factory import transforms_imagenet_eval

    timms = resolve_data_config(pretrained_cfg=written)
    preprocessing, notes = written_preprocessing({"pretrained_cfg": written}, (224, 224))
    assert notes == []
    assert preprocessing.rule == "shorter"
    assert preprocessing.interpolation == timms["interpolation"]
    assert preprocessing.mean == tuple(timms["mean"])
    assert preprocessing.std == tuple(timms["std"])
    resize = transforms_imagenet_eval(timms["input_size"][1:], timms["crop_pct"]).transforms[0]
    assert preprocessing.resize == resize.size

    # timm's oldest repositories have the same fields at the top
    at_the_top = {"architecture": "vit_base_patch16_224", **written}
    assert written_preprocessing(at_the_top, (224, 224)) == (preprocessing, notes)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("crop_mode", "border"),
        ("crop_mode", "middle"),
        ("interpolation", "random"),
        ("interpolation", "lanczos"),
        ("interpolation", "nearest"),
        ("crop_pct", 1.1),
        ("crop_pct", -0.9),
    ],
)
def test_what_no_preprocessing_does_is_refused_by_its_field(field, value):
    written = {"input_size": [3, 224, 224], field: value}
    with pytest.raises(ValueError, match=f"its {field} is {value!r}; "):
        written_preprocessing({"pretrained_cfg": written}, (224, 224))


@pytest.mark.parametrize("rule", ["shorter", "square"])
@pytest.mark.parametrize("size", [(224, 224), (256, 192), (192, 256), (232, 232)])
def test_timms_config_json_gives_the_preprocessing_back(rule, size):
    """Also where the quotient of two numbers, rounded, would lead to another side."""
    config = vit("mu/8", image=size)
    for resize in range(max(size), 2 * max(size)):
        written = Preprocessing(size=size, rule=rule, resize=resize, mean=(0.4, 0.5, 0.6))
        json = config_json(config, written, (), {}, {})
        read, notes = written_preprocessing(json, size)
        assert read.resize == resize or (rule, resize, read.resize) == ("square", max(size), 0)
        assert replace(read, resize=resize) == written
        assert bool(notes) == (size[0] != size[1] and read.resize > 0)


def test_dinos_teacher_is_read_without_its_projection_head(tmp_path, capsys):
    theirs = timm_model(num_classes=0)
    state = {f"module.backbone.{name}": t for name, t in theirs.state_dict().items()}
    state["module.head.mlp.0.weight"] = torch.zeros(4, 4)
    state["module.head.mlp.2.weight"] = torch.zeros(4, 4)
    state["module.head.last_layer.weight_g"] = torch.zeros(4, 1)
    torch.save({"student": {}, "teacher": state, "epoch": 3}, tmp_path / "dino.pth")
    classifier = load(tmp_path / "dino.pth", heads=4)
    left_out = "module.head.mlp.*.weight (2 times), module.head.last_layer.weight_g"
    assert f"left out: {left_out}" in capsys.readouterr().err
    assert classifier.model.config.classes == 0
    assert classifier.preprocessing.std == IMAGENET["std"]
    assert_same_outputs(theirs, classifier.model)


def test_of_a_projection_head_every_layer_is_left_out(tmp_path, capsys):
    """iBOT's has a second last layer, for patches."""
    theirs = timm_model(num_classes=0)
    head = {
        f"head.{layer}": torch.zeros(4, 4) for layer in ("mlp.0.weight", "last_layer2.weight_v")
    }
    torch.save(theirs.state_dict() | head, tmp_path / "ibot.pth")
    classifier = load(tmp_path / "ibot.pth", heads=4)
    assert "left out: head.mlp.0.weight, head.last_layer2.weight_v" in capsys.readouterr().err
    assert classifier.model.config.classes == 0


def test_an_mae_is_read_without_its_decoder(tmp_path):
    theirs = timm_model(num_classes=0)
    decoder = {"mask_token": torch.zeros(1, 1, 8), "decoder_pred.bias": torch.zeros(3)}
    torch.save({"model": theirs.state_dict() | decoder}, tmp_path / "m.pth")
    assert_same_outputs(theirs, load(tmp_path / "m.pth", heads=4, quiet=True).model)


def test_dinov2s_registers_have_no_positions(tmp_path):
    """Its table has a row for the class token, none for the registers, and one for each patch."""
    theirs = timm_model(num_classes=0, reg_tokens=4, init_values=1.0)
    with torch.no_grad():
        theirs.pos_embed[:, 1:5] = 0
    state = theirs.state_dict()
    state["register_tokens"] = state.pop("reg_token")
    state["pos_embed"] = torch.cat([state["pos_embed"][:, :1], state["pos_embed"][:, 5:]], 1)
    state["mask_token"] = torch.zeros(1, 48)
    save_file(state, tmp_path / "dinov2.safetensors")
    classifier = load(tmp_path / "dinov2.safetensors", heads=4, quiet=True)
    config = classifier.model.config
    assert (config.registers, config.prefix_positions) == (4, 1)
    assert config.layer_scale == 1e-5  # DINOv2's, of a file that does not say it
    assert_same_outputs(theirs, classifier.model)


def old_name(name):
    """As torchvision's first version of the MLP has it."""
    return name.replace(".mlp.0.", ".mlp.linear_1.").replace(".mlp.3.", ".mlp.linear_2.")


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("arguments", [{}, {"representation_size": 24}])
def test_torchvision_models_are_read(old, arguments, tmp_path):
    from torchvision.models import VisionTransformer

    theirs = randomised(VisionTransformer(32, 8, 2, 4, 48, 80, num_classes=7, **arguments))
    state = theirs.state_dict()
    if old:
        state = {old_name(name): tensor for name, tensor in state.items()}
    torch.save(state, tmp_path / "m.pth")
    assert_same_outputs(theirs, load(tmp_path / "m.pth", heads=4, quiet=True).model)


@pytest.mark.parametrize(
    ("positions", "arguments", "tensors", "expected"),
    [
        ("learned", {}, ["attn_pool.latent"], "map"),
        ("rotary-axial", {}, ["attn_pool.latent"], "tokens before the patches"),
        ("learned", {"pool_include_prefix": True}, [], "tokens before the patches"),
        ("rotary-axial", {"global_pool": "token"}, [], "token"),
        ("learned", {}, ["head_dist.weight"], "distilled"),
    ],
)
def test_attention_pooling_of_timms_eva_code_reads_every_token(
    positions, arguments, tensors, expected
):
    config = {"model_args": arguments}
    present = dict.fromkeys(tensors)
    if " " in expected:
        with pytest.raises(ValueError, match=expected):
            _pool(present, config, None, 1, positions)
    else:
        assert _pool(present, config, None, 1, positions)[0] == expected
    assert _pool({}, {"model_args": {"pool_include_prefix": True}}, None, 0, positions)
