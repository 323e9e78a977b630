"""What pre-training added to a model travels with it: MAE's decoder, and mask embeddings."""

import re
from dataclasses import replace

import pytest
import torch
import transformers
from other_libraries import TRANSFORMERS, assert_same_state, randomised
from safetensors.torch import load_file, save_file

from vitkit.data import uniforms
from vitkit.models import vit
from vitkit.objectives import MaskedAutoencoder, MaskedPatches
from vitkit.objectives.autoencoder import HIDDEN
from vitkit.training.state.start import take_pretraining
from vitkit.weights import load, save
from vitkit.weights.formats.shapes import IMAGENET
from vitkit.weights.proof import convert_weights

DECODER = {
    "decoder_hidden_size": 16,
    "decoder_num_hidden_layers": 2,
    "decoder_num_attention_heads": 2,
    "decoder_intermediate_size": 64,
}
OBJECTIVE = MaskedAutoencoder(width=16, depth=2, heads=2)


class Run:
    """What of a recipe says where a run begins."""

    init = "mae"
    objective = OBJECTIVE


def continued(classifier, objective=OBJECTIVE):
    """The learner of a run that begins with a model, and what is said about it."""
    said = []
    learner = objective.learner(classifier.model, classifier.preprocessing)
    run = Run()
    run.objective = objective
    take_pretraining(learner, classifier, run, said.append)
    return learner.eval(), " ".join(said)


@pytest.fixture(scope="module")
def mae(tmp_path_factory):
    """A small ViT-MAE of Transformers with its decoder, and its directory."""
    folder = tmp_path_factory.mktemp("mae")
    config = transformers.ViTMAEConfig(**TRANSFORMERS, **DECODER, norm_pix_loss=True)
    model = transformers.ViTMAEForPreTraining(config)
    randomised(model)
    model.decoder.initialize_weights(16)  # its positions, which are computed and not learned
    with torch.no_grad():
        model.decoder.mask_token.normal_()
    model.save_pretrained(folder)
    return model, folder


@pytest.mark.parametrize("through", ["as it is", "saved by vitkit"])
def test_pretraining_goes_on_with_transformers_own_loss(mae, through, tmp_path):
    theirs, folder = mae
    if through == "saved by vitkit":
        folder = save(load(folder, quiet=True), tmp_path / "model")
    classifier = load(folder, quiet=True)
    assert classifier.origin["objective"]["heads"] == 2 and classifier.labels == ()
    assert classifier.preprocessing.mean == IMAGENET["mean"]
    learner, said = continued(classifier)
    assert "are loaded too" in said and "decoder, enter, mask, predict" in said

    images = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    keys = torch.arange(3)
    with torch.inference_mode():
        expected = theirs(images, noise=uniforms(keys, 16, HIDDEN)).loss
        torch.testing.assert_close(learner(images, None, keys), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("objective", "reason"),
    [
        (replace(OBJECTIVE, heads=4), "it has 2 attention heads; give `objective.heads=2`"),
        (replace(OBJECTIVE, depth=1), "only one of the two has decoder.blocks.1"),
        (replace(OBJECTIVE, width=32), "enter.bias is .16,. there, .32,. here|decoder.blocks"),
    ],
)
def test_a_decoder_of_another_shape_is_made_anew_and_it_is_said(mae, objective, reason):
    _, said = continued(load(mae[1], quiet=True), objective)
    assert "so they are new" in said
    assert re.search(reason, said)


def test_maes_own_names_are_read(mae, tmp_path, capsys):
    """As facebookresearch/mae saves them."""
    theirs, folder = mae
    classifier = load(folder, quiet=True)
    convert_weights(classifier, tmp_path / "encoder.safetensors", "timm", approximate=True)
    state = load_file(tmp_path / "encoder.safetensors")
    for name, tensor in classifier.pretraining.items():
        name = name.replace("enter.", "decoder_embed.").replace("predict.", "decoder_pred.")
        name = name.replace("decoder.norm", "decoder_norm").replace(
            "decoder.blocks", "decoder_blocks"
        )
        for ours, maes in {"attention": "attn", "attn.out": "attn.proj", "expand": "fc1",
                           "contract": "fc2"}.items():  # fmt: skip
            name = name.replace(ours, maes)
        state["mask_token" if name == "mask" else name] = tensor
    state["decoder_pos_embed"] = theirs.decoder.decoder_pos_embed.detach().clone()
    state["projector.weight"] = torch.zeros(2, 2)
    torch.save({"model": state}, tmp_path / "mae.pth")
    again = load(tmp_path / "mae.pth", heads=4).pretraining
    assert "left out: projector.weight, beside the model" in capsys.readouterr().err
    assert again.keys() == classifier.pretraining.keys()
    assert all(torch.equal(again[name], classifier.pretraining[name]) for name in again)


def test_a_decoder_with_other_positions_is_left_out_and_it_is_said(mae, tmp_path, capsys):
    state = load_file(mae[1] / "model.safetensors")
    state["decoder.decoder_pos_embed"] += 0.1
    (tmp_path / "config.json").write_bytes((mae[1] / "config.json").read_bytes())
    save_file(state, tmp_path / "model.safetensors")
    assert load(tmp_path).pretraining == {}
    assert "a decoder with other positions than MAE's" in capsys.readouterr().err


MASKED = {
    "ViTForMaskedImageModeling": ("ViTConfig", {**TRANSFORMERS, "encoder_stride": 8}),
    "Dinov2Model": ("Dinov2Config", {k: v for k, v in TRANSFORMERS.items() if k != "intermediate_size"}),
    "DINOv3ViTModel": ("DINOv3ViTConfig", {**TRANSFORMERS, "num_register_tokens": 2}),
}  # fmt: skip


@pytest.mark.parametrize("name", MASKED)
def test_a_mask_embedding_travels(name, tmp_path):
    config_class, settings = MASKED[name]
    theirs = randomised(
        getattr(transformers, name)(getattr(transformers, config_class)(**settings))
    )
    theirs.save_pretrained(tmp_path / "theirs")
    tokens = [value for key, value in theirs.state_dict().items() if key.endswith("mask_token")]

    # Into a run of masked patches
    classifier = load(tmp_path / "theirs", quiet=True)
    learner, said = continued(classifier, MaskedPatches())
    assert torch.equal(learner.mask, tokens[0].flatten())
    assert "the modules of its pre-training are loaded too: mask" in said

    # And back to Transformers, whose DINOv2 and DINOv3 have a place for it
    path = save(classifier, tmp_path / "ours")
    assert torch.equal(load(path, quiet=True).pretraining["mask"], tokens[0].flatten())
    if name != "ViTForMaskedImageModeling":
        again = getattr(transformers, name).from_pretrained(path)
        assert torch.equal(again.embeddings.mask_token, tokens[0])


def test_what_is_left_of_an_earlier_model_is_not_taken_for_the_new_ones(
    random_classifier, tmp_path, capsys
):
    classifier = random_classifier(vit("mu/8", image=(16, 16), classes=0, depth=1))
    kept = replace(classifier, pretraining={"mask": torch.ones(32)})
    path = save(kept, tmp_path / "model")
    assert_same_state(load(path, quiet=True).model, kept.model)
    file = (path / "pretraining.safetensors").read_bytes()

    other = replace(classifier, origin={"other": 1})
    save(other, path)
    assert not (path / "pretraining.safetensors").exists()

    # As if the process had been killed in between
    (path / "pretraining.safetensors").write_bytes(file)
    assert load(path).pretraining == {}
    assert "pretraining.safetensors, which was written for other weights" in capsys.readouterr().err
