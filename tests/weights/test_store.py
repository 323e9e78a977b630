"""A saved model opens again with the same bits and everything that it needs; a file that is not one
is a sentence."""

import json
import os
import stat
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from other_libraries import edit
from safetensors.torch import load_file, save_file

from vitkit.data import Preprocessing
from vitkit.models import ViTConfig, create, vit
from vitkit.weights import Classifier, load, save
from vitkit.weights.files.directory import load_state_dict
from vitkit.weights.proof import convert_weights

CONFIG = vit(
    "mu/8",
    image=(16, 24),
    classes=3,
    pool="map",
    representation=8,
    gelu="erf",
    eps=1e-5,
    resample="timm",
)
PREPARE = Preprocessing(
    size=(16, 24), rule="shorter", resize=32, interpolation="bicubic", mean=(0.4, 0.5, 0.6)
)


@pytest.fixture
def saved(tmp_path):
    classifier = Classifier(
        create(CONFIG, seed=0),
        PREPARE,
        ("ant", "bee", "Käfer"),
        "sigmoid",
        {"data": "photos"},
    )
    return classifier, save(classifier, tmp_path / "model")


def test_a_saved_model_opens_with_the_same_bits_and_all_that_belongs_to_it(saved, same_model):
    before, path = saved
    after = load(path)
    same_model(before, after)
    assert after.origin == before.origin
    assert not after.model.training
    assert all(parameter.requires_grad for parameter in after.model.parameters())
    images = torch.randn(2, 3, 16, 24)
    assert torch.equal(before.model.eval()(images), after.model(images))


def test_a_model_without_a_head_is_saved_too(tmp_path):
    headless = create(replace(CONFIG, classes=0), seed=0)
    save(Classifier(headless, PREPARE, ()), tmp_path / "model")
    features = load(tmp_path / "model").model(torch.zeros(1, 3, 16, 24))
    assert features.shape == (1, 8)


@pytest.mark.slow
def test_a_class_token_without_a_position_costs_no_compiler(tmp_path):
    """torch.cat of tensors on meta imports one, which takes longer than to load the model."""
    config = replace(CONFIG, pool="token", representation=0, prefix_positions=0)
    path = save(Classifier(create(config, seed=0), PREPARE, ("a", "b", "c")), tmp_path / "model")
    code = (
        "import sys, vitkit\n"
        f"vitkit.load({str(path)!r}, quiet=True)\n"
        "assert 'torch._dynamo' not in sys.modules and 'sympy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
def test_a_model_from_before_the_activation_was_saved_has_that_of_its_loss(saved, loss):
    _, path = saved
    edit(path, "vitkit", activation=None)
    edit(path, "vitkit", "origin", objective={"loss": loss})
    assert load(path).activation == loss


@pytest.mark.parametrize(
    ("within", "fields", "sentence"),
    [
        (["model"], {"width": 64}, "its tensors do not fit the model: stem.project.weight"),
        (["model"], {"heads": 0}, "heads is 0"),
        (["model"], {"heads": 5}, "cannot be split among 5 heads"),
        (["model"], {"tint": 1}, "settings that this version does not know: tint"),
        ([], {"preprocessing": None}, "'preprocessing' is missing"),
        (["preprocessing"], {"std": [0, 0, 0]}, "std is"),
        ([], {"activation": "tanh"}, "activation is 'tanh'; it is one of softmax"),
    ],
)
def test_a_config_that_does_not_fit_is_a_sentence(saved, within, fields, sentence):
    _, path = saved
    edit(path, "vitkit", *within, **fields)
    with pytest.raises(ValueError, match=sentence):
        load(path)


def test_an_error_names_what_the_user_gave(saved):
    _, path = saved
    edit(path, "vitkit", labels=["ant", "bee"])
    with pytest.raises(ValueError) as directory:
        load(path)
    assert str(directory.value).startswith(f"{path} cannot be loaded: it names 2 classes")
    with pytest.raises(ValueError) as file:
        load(path / "model.safetensors")
    assert str(file.value).startswith(f"{path / 'model.safetensors'} cannot be loaded: it names")


def test_an_error_names_a_short_name_too(tmp_path, monkeypatch):
    """Also one that the message happens to begin with: "it has vitkit's names"."""
    monkeypatch.chdir(tmp_path)
    save_file({"stem.project.weight": torch.zeros(2)}, "it")
    with pytest.raises(ValueError, match="^it cannot be loaded: it has vitkit's names"):
        load("it")


@pytest.mark.parametrize("content", [b"", b"\x00" * 100, b"\xff" * 8 + b"{}", b"PK\x03\x04"])
def test_a_file_that_holds_no_weights_is_a_sentence(saved, content):
    _, path = saved
    (path / "model.safetensors").write_bytes(content)
    with pytest.raises(ValueError, match="cannot be loaded"):
        load(path)


def test_a_tensor_too_few_or_too_many_is_named(saved):
    _, path = saved
    tensors = load_file(path / "model.safetensors")
    save_file({**tensors, "extra": torch.zeros(2)}, path / "model.safetensors")
    with pytest.raises(ValueError, match="unknown tensors: extra$"):
        load(path)
    tensors.pop("norm.bias")
    save_file(tensors, path / "model.safetensors")
    with pytest.raises(ValueError, match="missing: norm.bias$"):
        load(path)


def test_a_directory_without_a_model_and_an_unfinished_run_are_sentences(tmp_path):
    with pytest.raises(ValueError, match="holds no model; a model directory has config.json"):
        load(tmp_path)
    names = ("a.bin", "b.ckpt", "c.npz", "d.pt", "e.pth", "f.pth.tar", "g.safetensors")
    for name in (*names, "notes.txt"):
        (tmp_path / name).touch()
    with pytest.raises(ValueError, match=rf"several files of weights \({', '.join(names)}\): name"):
        load(tmp_path)
    for name in names:
        (tmp_path / name).unlink()
    (tmp_path / "recipe.json").write_text("{}")
    with pytest.raises(ValueError, match="is a run that has not finished; continue it"):
        load(tmp_path)


# What saving may replace: an earlier model, and nothing of anybody else's


TINY = vit("mu/8", image=(16, 16), classes=3, depth=1, width=16, mlp=16, heads=2)


@pytest.fixture
def classifier(random_classifier):
    return random_classifier(TINY)


def contents(folder):
    """Every file below a folder, with what is in it."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def names(folder):
    return {path.name for path in folder.iterdir()}


OURS = {"config.json", "model.safetensors", "preprocessor_config.json", "README.md"}


def test_an_earlier_model_is_replaced_and_leaves_nothing_behind(classifier, tmp_path):
    path = tmp_path / "model"
    save(classifier, path)
    other = replace(classifier, labels=("x", "y", "z"))
    save(other, path)
    assert load(path, quiet=True).labels == ("x", "y", "z")
    assert names(path) == OURS
    assert names(tmp_path) == {"model"}


@pytest.fixture
def clone(classifier, tmp_path):
    """A clone of somebody's repository, with a model in it."""
    path = tmp_path / "clone"
    save(classifier, path)
    (path / ".git" / "objects").mkdir(parents=True)
    (path / ".git" / "objects" / "ab").write_bytes(b"history")
    (path / "train.py").write_text("print('mine')")
    (path / "README.md").write_text("# My model\n\nMy own words.")
    return path


@pytest.mark.parametrize("format", ["native", "huggingface"])
def test_everything_else_in_a_directory_stays(format, classifier, clone):
    before = contents(clone)
    other = replace(classifier, labels=("x", "y", "z"))
    convert_weights(other, clone, format)
    after = contents(clone)
    assert load(clone, quiet=True).labels == ("x", "y", "z")
    for name in (".git/objects/ab", "train.py", "README.md"):
        assert after[name] == before[name]
    assert names(clone.parent) == {"clone"}


def test_a_card_of_vitkit_is_written_anew(classifier, clone):
    save(classifier, clone.parent / "other")
    (clone / "README.md").write_bytes((clone.parent / "other" / "README.md").read_bytes())
    save(replace(classifier, origin={"data": "elsewhere"}), clone)
    assert "elsewhere" in (clone / "README.md").read_text()


@pytest.mark.parametrize(
    ("names_there", "sentence"),
    [
        (["photo.jpg"], "holds other files .photo.jpg. and no model"),
        (["config.json"], "config.json does not belong to a model"),
        (["package.json", "config.json"], "config.json does not belong to a model"),
        (["model.safetensors"], "does not belong to a model"),
        (["model.safetensors/"], "model.safetensors is a directory"),
        (["README.md/"], "README.md is a directory"),
    ],
)
def test_a_directory_of_somebody_is_refused(names_there, sentence, classifier, tmp_path):
    path = tmp_path / "theirs"
    path.mkdir()
    for name in names_there:
        if name.endswith("/"):
            (path / name).mkdir()
        else:
            (path / name).write_text('{"my": 1}')
    before = contents(path)
    with pytest.raises(ValueError, match=sentence):
        save(classifier, path)
    assert contents(path) == before
    assert names(tmp_path) == {"theirs"}


def test_a_description_that_would_stay_is_refused(classifier, tmp_path):
    path = tmp_path / "model"
    save(classifier, path)
    with pytest.raises(ValueError, match=r"preprocessor_config.json describes an earlier model"):
        convert_weights(classifier, path, "timm")


def test_a_file_is_not_replaced_by_a_directory(classifier, tmp_path):
    path = tmp_path / "notes"
    path.write_text("mine")
    with pytest.raises(ValueError, match="notes is a file"):
        save(classifier, path)
    assert path.read_text() == "mine"


def test_a_file_that_holds_no_weights_is_not_replaced(classifier, tmp_path):
    path = tmp_path / "photos.npz"
    path.write_bytes(b"my photographs")
    with pytest.raises(ValueError, match="contains no model of vitkit"):
        convert_weights(classifier, path, "google")
    assert path.read_bytes() == b"my photographs"

    # Earlier weights are
    path.unlink()
    convert_weights(classifier, path, "google")
    convert_weights(classifier, path, "google")


def test_what_fails_leaves_what_was_there(classifier, clone, monkeypatch):
    """The disk is full when the weights are written."""
    before = contents(clone)

    def full(*_, **__):
        raise OSError("No space left on device")

    monkeypatch.setattr("vitkit.weights.destination.write_safetensors", full)
    with pytest.raises(OSError, match="No space left"):
        save(classifier, clone)
    assert contents(clone) == before
    assert names(clone.parent) == {"clone"}


@pytest.mark.skipif(os.name == "nt", reason="there is no umask")
@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_files_have_the_permissions_of_the_users_umask(mask, classifier, tmp_path):
    before = os.umask(mask)
    try:
        save(classifier, tmp_path / "model")
        convert_weights(classifier, tmp_path / "model.safetensors", "timm")
    finally:
        os.umask(before)
    files = [*(tmp_path / "model").iterdir(), tmp_path / "model.safetensors"]
    for file in files:
        assert stat.S_IMODE(file.stat().st_mode) == 0o666 & ~mask, file


def test_a_directory_with_only_a_card_of_its_owner_takes_a_model(classifier, tmp_path):
    path = tmp_path / "new"
    path.mkdir()
    (path / "README.md").write_text("To come.")
    save(classifier, path)
    assert (path / "README.md").read_text() == "To come."
    assert json.loads((path / "config.json").read_text())
    with torch.inference_mode():
        load(path, quiet=True).model(torch.zeros(1, 3, 16, 16))


def test_a_card_with_notes_of_its_owner_stays(classifier, tmp_path):
    path = save(classifier, tmp_path / "model")
    card = (path / "README.md").read_text() + "\nMy notes.\n"
    (path / "README.md").write_text(card)
    save(classifier, path)
    assert (path / "README.md").read_text() == card


def test_a_link_is_written_through_and_stays(classifier, tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    for _ in range(2):
        save(classifier, tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert names(tmp_path / "real") == OURS
    assert names(tmp_path) == {"link", "real"}
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="is a broken link"):
        save(classifier, tmp_path / "dangling")


def test_the_working_directory_is_a_directory_too(classifier, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save(classifier, ".")
    assert names(tmp_path) == OURS


def test_a_directory_keeps_its_permissions(classifier, tmp_path):
    path = tmp_path / "private"
    path.mkdir(mode=0o700)
    for _ in range(2):
        save(classifier, path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o700


def test_weights_of_another_program_are_not_replaced(classifier, tmp_path):
    """They may be the only copy of a download, or have the state of an optimiser beside them."""
    file = tmp_path / "checkpoint.pth"
    tensors = load_state_dict(
        convert_weights(classifier, tmp_path / "ours.safetensors", "timm").path
    )
    torch.save({"model": tensors, "optimizer": {"step": 99}}, file)
    clone = tmp_path / "clone"
    save(classifier, clone)
    save_file(load_file(clone / "model.safetensors"), clone / "model.safetensors")
    before = contents(tmp_path)
    with pytest.raises(ValueError, match=r"checkpoint.pth exists and contains no model"):
        convert_weights(classifier, file, "timm")
    with pytest.raises(ValueError, match=r"config.json does not belong to a model of"):
        save(classifier, clone)
    assert contents(tmp_path) == before


def test_a_link_to_a_file_is_written_through_too(classifier, tmp_path):
    convert_weights(classifier, tmp_path / "real.npz", "google")
    before = (tmp_path / "real.npz").read_bytes()
    (tmp_path / "link.npz").symlink_to(tmp_path / "real.npz")
    convert_weights(replace(classifier, labels=("x", "y", "z")), tmp_path / "link.npz", "google")
    assert (tmp_path / "link.npz").is_symlink()
    assert (tmp_path / "real.npz").read_bytes() != before
    (tmp_path / "dangling.npz").symlink_to(tmp_path / "nowhere.npz")
    with pytest.raises(ValueError, match="is a broken link"):
        convert_weights(classifier, tmp_path / "dangling.npz", "google")


def test_a_place_that_takes_no_files_is_said(classifier, tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ValueError, match=r"deeper cannot be written: .*file takes no new files"):
        convert_weights(classifier, tmp_path / "file" / "deeper", "native")


def test_a_run_is_opened_by_the_model_in_it(random_classifier, tmp_path):
    config = ViTConfig(image=(8, 8), patch=4, width=8, depth=1, heads=1, mlp=8, classes=3)
    classifier = random_classifier(config)
    save(classifier, tmp_path / "run" / "model")
    opened = load(tmp_path / "run", quiet=True)
    assert torch.equal(opened.model.head.weight, classifier.model.head.weight)
    assert opened.preprocessing == classifier.preprocessing

    unfinished = tmp_path / "unfinished"
    unfinished.mkdir()
    with pytest.raises(ValueError, match="unfinished holds no model; a model directory has"):
        load(unfinished)
    (unfinished / "recipe.json").write_text("{}")
    with pytest.raises(ValueError, match="unfinished is a run that has not finished; continue it"):
        load(unfinished)
    for name in ("a.npz", "b.npz"):
        (tmp_path / "several").mkdir(exist_ok=True)
        (tmp_path / "several" / name).write_bytes(b"")
    with pytest.raises(ValueError, match=r"several files of weights \(a.npz, b.npz\): name one"):
        load(tmp_path / "several")
