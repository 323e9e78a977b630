"""Models of Transformers: ViT and DeiT, DINOv2 and DINOv3, CLIP's and SigLIP's vision towers, I-JEPA. Each
is read with Transformers' own answer, also in the names of its version 5, and written back for it."""

import json

import pytest
import torch
import transformers
from other_libraries import TEXT, TRANSFORMERS, assert_same_outputs, assert_same_state, randomised
from quick_ones import quick_ones
from safetensors.torch import load_file, save_file

from vitkit.data import Preprocessing
from vitkit.models import vit
from vitkit.weights import load, save
from vitkit.weights.formats import cannot
from vitkit.weights.formats.huggingface import towers
from vitkit.weights.formats.huggingface.dino import DINOV2, DINOV3
from vitkit.weights.formats.huggingface.processors import OPENAI
from vitkit.weights.formats.huggingface.vit import VIT
from vitkit.weights.formats.shapes import IMAGENET
from vitkit.weights.proof import convert_weights

DINO = {name: value for name, value in TRANSFORMERS.items() if name != "intermediate_size"}
NAMES = {0: "red", 1: "green", 2: "blue"}
TOWERS = {"text_config": TEXT, "vision_config": TRANSFORMERS}


def logits(record):
    return record.logits


def pooled(record):
    return record.pooler_output


def mean(record):
    return record.last_hidden_state.mean(1)


def class_token(record):
    return record.last_hidden_state[:, 0]


# Transformers 4 -> 5
NEWER = {
    "encoder.layer.": "layers.",
    "attention.attention.query": "attention.q_proj",
    "attention.attention.key": "attention.k_proj",
    "attention.attention.value": "attention.v_proj",
    "attention.output.dense": "attention.o_proj",
    "intermediate.dense": "mlp.fc1",
    "output.dense": "mlp.fc2",
}
LABELLED = {**TRANSFORMERS, "id2label": NAMES}


# Class of the model, class of its config, settings, what to read; and whether vitkit writes it
CASES = {
    "ViT": ("ViTForImageClassification", "ViTConfig", LABELLED, logits),
    "DeiT": ("DeiTForImageClassification", "DeiTConfig", LABELLED, logits),
    "a distilled DeiT": (
        "DeiTForImageClassificationWithTeacher", "DeiTConfig", LABELLED, logits
    ),
    "ViT with a pooler": (
        "ViTModel", "ViTConfig",
        {**TRANSFORMERS, "hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-5}, pooled,
    ),
    "DeiT with a pooler": ("DeiTModel", "DeiTConfig", TRANSFORMERS, pooled),
    "ViT without a pooler": ("ViTModel", "ViTConfig", TRANSFORMERS, class_token),
    "DINOv2": ("Dinov2Model", "Dinov2Config", DINO, pooled),
    "DINOv2 with registers": (
        "Dinov2WithRegistersModel", "Dinov2WithRegistersConfig", DINO, pooled
    ),
    "DINOv2's giant": ("Dinov2Model", "Dinov2Config", {**DINO, "use_swiglu_ffn": True}, pooled),
    "DINOv2's classifier": (
        "Dinov2ForImageClassification", "Dinov2Config", {**DINO, "id2label": NAMES}, logits
    ),
    "a classifier with registers and SwiGLU": (
        "Dinov2WithRegistersForImageClassification",
        "Dinov2WithRegistersConfig",
        {**DINO, "use_swiglu_ffn": True, "id2label": NAMES},
        logits,
    ),
    "DINOv2 without biases": ("Dinov2Model", "Dinov2Config", {**DINO, "qkv_bias": False}, pooled),
    "DINOv3": ("DINOv3ViTModel", "DINOv3ViTConfig", {**TRANSFORMERS, "num_register_tokens": 4}, pooled),
    "DINOv3 without registers": (
        "DINOv3ViTModel", "DINOv3ViTConfig", {**TRANSFORMERS, "num_register_tokens": 0}, pooled
    ),
    "DINOv3 with SwiGLU": (
        "DINOv3ViTModel",
        "DINOv3ViTConfig",
        {**TRANSFORMERS, "num_register_tokens": 4, "use_gated_mlp": True, "hidden_act": "silu",
         "mlp_bias": False},
        pooled,
    ),
    "CLIP": ("CLIPVisionModel", "CLIPVisionConfig", TRANSFORMERS, pooled),
    "CLIP with erf": ("CLIPVisionModel", "CLIPVisionConfig", {**TRANSFORMERS, "hidden_act": "gelu"}, pooled),
    "SigLIP": ("SiglipVisionModel", "SiglipVisionConfig", TRANSFORMERS, pooled),
    "I-JEPA": ("IJepaModel", "IJepaConfig", TRANSFORMERS, mean),
    "I-JEPA's classifier": (
        "IJepaForImageClassification", "IJepaConfig", LABELLED, logits
    ),
    "ViT of rectangles": (
        "ViTForImageClassification", "ViTConfig",
        {**TRANSFORMERS, "patch_size": (8, 4), "id2label": NAMES}, logits,
    ),
    "DeiT of rectangles": ("DeiTModel", "DeiTConfig", {**TRANSFORMERS, "patch_size": [4, 8]}, pooled),
    "DINOv3 without biases": (
        "DINOv3ViTModel", "DINOv3ViTConfig",
        {**TRANSFORMERS, "num_register_tokens": 4, "query_bias": False, "value_bias": False}, pooled,
    ),
    "ViT with a ReLU": (
        "ViTForImageClassification", "ViTConfig",
        {**TRANSFORMERS, "hidden_act": "relu", "id2label": NAMES}, logits,
    ),
    "ViT without biases": (
        "ViTForImageClassification", "ViTConfig",
        {**TRANSFORMERS, "qkv_bias": False, "id2label": NAMES}, logits,
    ),
}  # fmt: skip


def saved(model_class, config, folder, **arguments):
    """A model of Transformers with random weights, saved by Transformers."""
    model = randomised(getattr(transformers, model_class)(config, **arguments))
    model.save_pretrained(folder)
    return model


# One of each library class and of each part that only some models have
AT_ONCE = (
    "ViT", "a distilled DeiT", "DINOv2's classifier", "a classifier with registers and SwiGLU", "DINOv3 with SwiGLU",
    "CLIP", "SigLIP", "I-JEPA's classifier", "ViT of rectangles", "ViT with a pooler",
)  # fmt: skip


@pytest.mark.parametrize("name", quick_ones(CASES, AT_ONCE))
def test_it_is_read_and_written_for_transformers(name, tmp_path):
    model_class, config_class, settings, read = CASES[name]
    arguments = {"add_pooling_layer": False} if read is class_token else {}
    config = getattr(transformers, config_class)(**settings)
    theirs = saved(model_class, config, tmp_path, **arguments)
    classifier = load(tmp_path, quiet=True)
    assert_same_outputs(theirs, classifier.model, read=read)
    assert classifier.model.config.eps == config.layer_norm_eps
    assert classifier.labels == (("red", "green", "blue") if "id2label" in settings else ())

    proof = convert_weights(classifier, tmp_path / "back", "huggingface")
    assert proof.library and proof.largest < 1e-5
    assert_same_state(load(tmp_path / "back", quiet=True).model, classifier.model)
    described = json.loads((tmp_path / "back" / "config.json").read_text())
    assert described["architectures"] == [model_class]

    _, report = getattr(transformers, model_class).from_pretrained(
        tmp_path / "back", output_loading_info=True, **arguments
    )
    for key in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not report[key], (key, report[key])

    if name in ("ViT", "a distilled DeiT", "ViT with a pooler"):
        rename_as_transformers_5(tmp_path / "model.safetensors")
        assert_same_outputs(theirs, load(tmp_path, quiet=True).model, read=read)


def test_dinov2_of_no_registers_is_read(tmp_path):
    """Its file has a tensor of them, (1, 0, D); and its positions are resampled as those with registers."""
    config = transformers.Dinov2WithRegistersConfig(**DINO | {"num_register_tokens": 0})
    theirs = saved("Dinov2WithRegistersModel", config, tmp_path)
    assert load_file(tmp_path / "model.safetensors")["embeddings.register_tokens"].shape == (
        1,
        0,
        48,
    )
    classifier = load(tmp_path, quiet=True)
    assert classifier.model.config.registers == 0
    assert_same_outputs(theirs, classifier.model, read=pooled)
    larger = load(tmp_path, image=(48, 64), quiet=True)
    assert_same_outputs(theirs, larger.model, (48, 64), read=pooled, tolerance=1e-4)


@pytest.mark.parametrize("family", [VIT, DINOV2, DINOV3, towers.TOWERS, towers.NAFLEX])
def test_absent_fields_mean_what_they_do_in_transformers(family):
    """Transformers leaves out of config.json what is as its own default."""
    for name in family.types:
        config = transformers.CONFIG_MAPPING[name]()
        config = getattr(config, "vision_config", config)
        for field, default in family.fields.values():
            expected = family.of_types.get(name, {}).get(field, default)
            assert getattr(config, field) == expected, f"{name}: {field}"


def rename_as_transformers_5(file):
    """A file with the names that Transformers 5 has in memory."""
    renamed = {}
    for name, tensor in load_file(file).items():
        for older, newer in NEWER.items():
            name = name.replace(older, newer)
        renamed[name] = tensor
    assert any("q_proj" in name for name in renamed)
    save_file(renamed, file)


def test_a_sharded_model_is_read_from_its_folder_alone(tmp_path):
    theirs = transformers.ViTForImageClassification(transformers.ViTConfig(**TRANSFORMERS))
    theirs.save_pretrained(tmp_path, max_shard_size="50KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    assert_same_outputs(theirs, load(tmp_path, quiet=True).model, read=logits)

    first = min(tmp_path.glob("model-*.safetensors"))
    first.rename(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match=f"names {first.name}, which does not exist; download it"):
        load(tmp_path)
    (tmp_path / "elsewhere").rename(first)

    file = tmp_path / "model.safetensors.index.json"
    index = json.loads(file.read_text())
    index["weight_map"] = {name: f"../{shard}" for name, shard in index["weight_map"].items()}
    file.write_text(json.dumps(index))
    with pytest.raises(ValueError, match="names a file outside of its folder"):
        load(tmp_path)


def test_transformers_opens_what_vitkit_saves_for_images_of_no_square(random_classifier, tmp_path):
    config = vit("mu/8", image=(16, 40), classes=3, depth=2)
    path = save(random_classifier(config), tmp_path / "model")
    model_class = transformers.AutoModelForImageClassification
    _, report = model_class.from_pretrained(path, output_loading_info=True)
    for key in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not report[key], (key, report[key])


@pytest.mark.parametrize("registers", [False, True])
def test_dinov2_at_another_size_than_its_table(registers, tmp_path):
    """Published files have tables for 518 pixels and processors for 224."""
    family = "Dinov2WithRegisters" if registers else "Dinov2"
    config = getattr(transformers, f"{family}Config")(**DINO)
    theirs = saved(f"{family}Model", config, tmp_path)
    ours = load(tmp_path, quiet=True).model
    assert_same_outputs(theirs, ours, (56, 56), read=pooled)


def test_names_of_transformers_5_are_read(tmp_path):
    theirs = saved("Dinov2Model", transformers.Dinov2Config(**DINO, use_swiglu_ffn=True), tmp_path)
    newer = {name: tensor.contiguous() for name, tensor in theirs.state_dict().items()}
    assert any(".gate_proj." in name for name in newer)
    save_file(newer, tmp_path / "model.safetensors")
    assert_same_outputs(theirs, load(tmp_path, quiet=True).model, read=pooled)


@pytest.mark.parametrize("family", ["CLIP", "Siglip"])
def test_the_vision_tower_beside_a_text_tower_is_read(family, tmp_path, capsys):
    config_class = getattr(transformers, f"{family}Config")
    theirs = saved(f"{family}Model", config_class(**TOWERS), tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    state["vision_model.embeddings.position_ids"] = torch.arange(17)[None]  # as older files have
    save_file(state, tmp_path / "model.safetensors")
    classifier = load(tmp_path)
    account = capsys.readouterr().err
    assert (
        "tensors beside the vision tower, such as logit_scale" in account or "logit_bias" in account
    )
    assert_same_outputs(theirs.vision_model, classifier.model, read=pooled)


def test_siglips_classifier_reads_the_mean(tmp_path, capsys):
    config = transformers.SiglipConfig(**TOWERS, id2label=NAMES)
    theirs = saved("SiglipForImageClassification", config, tmp_path)
    classifier = load(tmp_path)
    assert "its classifier reads the mean" in capsys.readouterr().err
    assert (classifier.model.config.pool, classifier.labels) == ("gap", ("red", "green", "blue"))
    assert_same_outputs(theirs, classifier.model, read=logits)


def test_pixels_that_patches_leave_out_are_told(tmp_path, capsys):
    """As SigLIP's so400m: 384 pixels are 27 patches of 14, and 6 more."""
    config = transformers.SiglipVisionConfig(**{**TRANSFORMERS, "image_size": 36})
    theirs = saved("SiglipVisionModel", config, tmp_path)
    transformers.SiglipImageProcessor(size={"height": 36, "width": 36}).save_pretrained(tmp_path)
    classifier = load(tmp_path)
    assert "patches of 8 do not cover 4 of 36 pixels" in capsys.readouterr().err
    assert (classifier.preprocessing.size, classifier.preprocessing.resize) == ((32, 32), 36)
    images = torch.randn(2, 3, 36, 36, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        ours = classifier.model(images[:, :, :32, :32])
        torch.testing.assert_close(ours, theirs(images).pooler_output, atol=1e-5, rtol=1e-5)


HALF = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}
CLIPS = {"mean": tuple(OPENAI["image_mean"]), "std": tuple(OPENAI["image_std"])}
# model_type -> the processor of published models, and what it means
PROCESSORS = {
    "clip": ("CLIPImageProcessor", {}, Preprocessing((224, 224), "shorter", 0, "bicubic", **CLIPS)),
    "siglip": ("SiglipImageProcessor", {}, Preprocessing((224, 224), "square", 0, "bicubic", **HALF)),
    "dinov2": (
        "BitImageProcessor",
        {"size": {"shortest_edge": 256}, "image_mean": list(IMAGENET["mean"]),
         "image_std": list(IMAGENET["std"])},
        Preprocessing((224, 224), "shorter", 256, "bicubic", **IMAGENET),
    ),
}  # fmt: skip


@pytest.mark.parametrize("model_type", PROCESSORS)
@pytest.mark.parametrize("written", [True, False])
def test_the_preprocessing_is_that_of_the_published_models(model_type, written, tmp_path):
    """As their file says, and without one the same."""
    from vitkit.weights.formats.huggingface.processors import preprocessing_of

    name, settings, expected = PROCESSORS[model_type]
    json_file = {}
    if written:
        getattr(transformers, name)(**settings).save_pretrained(tmp_path)
        json_file = json.loads((tmp_path / "preprocessor_config.json").read_text())
    preprocessing, notes = preprocessing_of(json_file, (224, 224), model_type)
    resize = preprocessing.resize or 224
    assert resize == (expected.resize or 224)
    assert preprocessing == Preprocessing(**{**vars(expected), "resize": preprocessing.resize})
    assert bool(notes) != written


REFUSED = {
    "clip": ("CLIPForImageClassification", "CLIPConfig", {}, "whose classifier reads the mean of states"),
    "theta": ("DINOv3ViTModel", "DINOv3ViTConfig", {**TRANSFORMERS, "rope_theta": 50.0}, "its rope_theta is 50"),
    "act": (
        "DINOv3ViTModel", "DINOv3ViTConfig", {**TRANSFORMERS, "use_gated_mlp": True},
        "its gated MLP has the activation 'gelu'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_stays_refused_names_the_reason(name, tmp_path):
    model_class, config_class, settings, reason = REFUSED[name]
    if name == "clip":
        settings = TOWERS
    saved(model_class, getattr(transformers, config_class)(**settings), tmp_path)
    with pytest.raises(ValueError, match=reason):
        load(tmp_path, quiet=True)


@pytest.mark.parametrize(
    ("settings", "reasons"),
    [
        ({}, []),
        ({"registers": 1}, []),  # DeiT's distillation token
        ({"registers": 2}, ["more than one register"]),
        ({"registers": 1, "pool": "gap"}, ["a register without a class token"]),
        ({"representation": 8}, ["a representation layer before the head"]),
        ({"representation": 8, "classes": 0}, []),
        (
            {"representation": 8, "classes": 0, "pool": "gap"},
            ["a representation layer after the mean"],
        ),
    ],
)
def test_what_its_vit_cannot_express(settings, reasons):
    assert cannot("huggingface", vit("mu/8", image=(32, 32), **settings)) == reasons


def test_a_mean_without_a_class_token_is_an_i_jepa_for_transformers(random_classifier, tmp_path):
    config = vit("mu/8", image=(32, 32), classes=3, pool="gap", depth=2)
    proof = convert_weights(random_classifier(config), tmp_path / "model", "huggingface")
    assert proof.largest < 1e-5
    described = json.loads((tmp_path / "model" / "config.json").read_text())
    assert described["architectures"] == ["IJepaForImageClassification"]


@pytest.mark.parametrize(
    "family, model_type",
    [
        (family, name)
        for family in (VIT, DINOV2, DINOV3, towers.TOWERS, towers.NAFLEX)
        for name in family.types
    ],
)
def test_what_a_config_leaves_out_is_what_transformers_takes_for_it(family, model_type):
    theirs = transformers.AutoConfig.for_model(model_type)
    theirs = getattr(theirs, "vision_config", theirs).to_dict()
    for name, default in family.fields.values():
        assert theirs[name] == family.of_types.get(model_type, {}).get(name, default), name
