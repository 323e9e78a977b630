"""Transformers' own models are read, in the names of versions 4 and 5; and it reads what vitkit
saves."""

import json

import pytest
import transformers
from other_libraries import TRANSFORMERS, assert_same_outputs, randomised
from safetensors.torch import load_file, save_file

from vitkit.models import vit
from vitkit.weights import load, save
from vitkit.weights.formats.shapes import IMAGENET

NAMES = tuple(f"name {i}" for i in range(7))
KINDS = {
    "ViTForImageClassification": {},
    "DeiTForImageClassification": {},
    "DeiTForImageClassificationWithTeacher": {},
    "ViTModel": {"hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-5},
    "DeiTModel": {},
}
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


def logits_of(output):
    return output.logits


def class_token_of(output):
    return output.last_hidden_state[:, 0]


def pooled(output):
    return output.pooler_output


def rename_as_transformers_5(file):
    """A file with the names that Transformers 5 has in memory."""
    renamed = {}
    for name, tensor in load_file(file).items():
        for older, newer in NEWER.items():
            name = name.replace(older, newer)
        renamed[name] = tensor
    assert any("q_proj" in name for name in renamed)
    save_file(renamed, file)


CASES = [(kind, False) for kind in KINDS] + [("ViTModel", True), ("DeiTModel", True)]


@pytest.mark.parametrize(("kind", "pooler"), CASES)
def test_transformers_models_are_read(kind, pooler, tmp_path):
    config_class = transformers.ViTConfig
    if kind.startswith("DeiT"):
        config_class = transformers.DeiTConfig
    labels = dict(enumerate(NAMES))
    config = config_class(**TRANSFORMERS, num_labels=7, id2label=labels, **KINDS[kind])
    if kind.endswith("Model"):
        theirs = getattr(transformers, kind)(config, add_pooling_layer=pooler)
        read = pooled if pooler else class_token_of
        labels = ()
    else:
        theirs = getattr(transformers, kind)(config)
        read = logits_of
        labels = NAMES
    randomised(theirs).save_pretrained(tmp_path)

    classifier = load(tmp_path, quiet=True)
    assert_same_outputs(theirs, classifier.model, read=read)
    assert classifier.labels == labels
    assert classifier.model.config.eps == config.layer_norm_eps

    rename_as_transformers_5(tmp_path / "model.safetensors")
    assert_same_outputs(theirs, load(tmp_path, quiet=True).model, read=read)


def test_a_sharded_model_is_read(tmp_path):
    config = transformers.ViTConfig(**TRANSFORMERS)
    theirs = transformers.ViTForImageClassification(config)
    theirs.save_pretrained(tmp_path, max_shard_size="50KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    assert_same_outputs(theirs, load(tmp_path, quiet=True).model, read=logits_of)


def test_a_shard_outside_of_the_folder_is_not_read(tmp_path):
    config = transformers.ViTConfig(**TRANSFORMERS)
    transformers.ViTForImageClassification(config).save_pretrained(tmp_path, max_shard_size="50KB")
    file = tmp_path / "model.safetensors.index.json"
    index = json.loads(file.read_text())
    index["weight_map"] = {name: f"../{shard}" for name, shard in index["weight_map"].items()}
    file.write_text(json.dumps(index))
    with pytest.raises(ValueError, match="names a file outside of its folder"):
        load(tmp_path)


def test_a_vit_mae_is_read_with_its_decoder_beside_it(tmp_path, capsys):
    decoder = {
        "decoder_hidden_size": 16,
        "decoder_num_hidden_layers": 1,
        "decoder_num_attention_heads": 2,
        "decoder_intermediate_size": 32,
    }
    config = transformers.ViTMAEConfig(**TRANSFORMERS, **decoder)
    theirs = transformers.ViTMAEForPreTraining(config)
    theirs.decoder.initialize_weights(16)  # its positions
    theirs.save_pretrained(tmp_path)
    classifier = load(tmp_path)
    assert "kept for more pre-training: its decoder, 19 tensors" in capsys.readouterr().err
    assert classifier.origin["objective"]["heads"] == 2
    assert classifier.model.config.classes == 0
    assert classifier.preprocessing.mean == IMAGENET["mean"]


SAVED = {
    "plain": {},
    "distilled": {"pool": "distilled", "registers": 1, "gelu": "erf"},
    "no head": {"classes": 0},
    "no square": {"image": (16, 40)},
}


@pytest.mark.parametrize("name", SAVED)
def test_transformers_opens_what_vitkit_saves_without_a_warning(name, random_classifier, tmp_path):
    """No tensor is missing, unexpected or of another shape, by Transformers' own account."""
    config = vit("mu/8", **{"image": (16, 16), "classes": 3, "depth": 2, **SAVED[name]})
    path = save(random_classifier(config), tmp_path / "model")
    kind = json.loads((path / "config.json").read_text())["architectures"][0]
    arguments = {}
    if kind.endswith("Model"):
        arguments["add_pooling_layer"] = False
    model_class = getattr(transformers, kind)
    _, report = model_class.from_pretrained(path, output_loading_info=True, **arguments)
    for key in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not report[key], (key, report[key])
