"""A head of zeros, as the published files of ImageNet-21k have it: every image has the same answer.
Whoever asks for answers is told to train a head; whoever trains one, or wants features, is not kept
from it."""

import io

import numpy as np
import pytest
import timm
import torch
import transformers
from other_libraries import TIMM, TRANSFORMERS, randomised
from PIL import Image
from safetensors.torch import save_file

import vitkit
from vitkit import cli
from vitkit.data import Preprocessing
from vitkit.inspection import class_relevance
from vitkit.models import create, vit
from vitkit.weights import Classifier, Hints, adopt, load, load_with_account, no_answer, save
from vitkit.weights.proof import convert_weights

WHY = "head is all zeros, published without its head or not trained yet"
NOTE = "head: all zeros, so every image has the same answer"


def zeroed(model: torch.nn.Module, *heads: str) -> torch.nn.Module:
    """The model with random weights, and zeros in these layers."""
    randomised(model)
    for head in heads:
        torch.nn.init.zeros_(model.get_submodule(head).weight)
        torch.nn.init.zeros_(model.get_submodule(head).bias)
    return model


@pytest.fixture
def google(tmp_path):
    """As imagenet21k/ViT-B_16.npz: a hidden layer before the head, whose kernel and bias are zeros."""
    config = vit("mu/8", image=(32, 32), depth=1, classes=5, representation=16)
    model = zeroed(create(config, seed=0), "head")
    classifier = Classifier(model, Preprocessing((32, 32)), tuple("abcde"))
    convert_weights(classifier, tmp_path / "model.npz", "google", approximate=True)
    with np.load(tmp_path / "model.npz") as arrays:
        assert not arrays["head/kernel"].any() and arrays["pre_logits/kernel"].any()
    return tmp_path / "model.npz"


@pytest.fixture
def photograph(tmp_path):
    colours = np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)
    path = tmp_path / "photographs" / "one.png"
    path.parent.mkdir()
    Image.fromarray(colours).save(path)
    return path


@pytest.fixture
def run(capsys):
    def run(*words):
        status = cli.main([str(word) for word in words])
        return status, " ".join("".join(capsys.readouterr()).split())

    return run


def test_it_is_found_in_every_librarys_files(google, tmp_path):
    theirs = zeroed(timm.create_model("vit_tiny_patch16_224", **TIMM), "head")
    save_file(theirs.state_dict(), tmp_path / "timm.safetensors")
    distilled = timm.create_model("deit_tiny_distilled_patch16_224", **TIMM)
    zeroed(distilled, "head", "head_dist")
    save_file(distilled.state_dict(), tmp_path / "distilled.safetensors")
    config = transformers.ViTConfig(**TRANSFORMERS, num_labels=5)
    hugging = transformers.ViTForImageClassification(config)
    zeroed(hugging, "classifier").save_pretrained(tmp_path / "huggingface")

    sources = (google, "timm.safetensors", "distilled.safetensors", "huggingface")
    for source in sources:
        classifier, account = load_with_account(
            tmp_path / source, Hints(image=(32, 32), heads=4, statistics="half")
        )
        assert WHY in no_answer(classifier), source
        assert len([line for line in account if line.startswith(NOTE)]) == 1, source


def test_a_head_that_answers_is_none(tmp_path):
    model = randomised(create(vit("mu/8", image=(32, 32), depth=1, classes=3)))
    classifier = Classifier(model, Preprocessing((32, 32)), tuple("abc"))
    assert no_answer(classifier) == ""
    with torch.no_grad():
        model.head.weight.zero_()[2, 5] = 1e-30  # one number depends on the image
    assert no_answer(classifier) == ""
    assert no_answer(classifier.for_inference()) == ""
    with torch.no_grad():
        model.head.weight.zero_()  # the bias is none of the image's
    assert model.head.bias.any()
    assert WHY in no_answer(classifier)
    assert WHY in no_answer(classifier.for_inference())
    headless, _ = adopt(classifier, labels=())
    assert "no classification head" in no_answer(headless)


def test_every_command_that_answers_refuses_it_and_says_what_to_do(
    google, photograph, tmp_path, run
):
    folder = photograph.parent
    (folder / "a").mkdir()
    (folder / "b").mkdir()
    for name in "ab":
        (folder / name / "1.png").write_bytes(photograph.read_bytes())
    heads = ("--image", 32, 32)
    for words in (
        ("predict", google, photograph, *heads),
        ("sort", google, photograph, "--into", tmp_path / "sorted", *heads),
        ("serve", google, *heads),
        ("export", google, "-o", tmp_path / "m.onnx", *heads),
        ("export", google, "-o", tmp_path / "m.html", "--to", "page", *heads),
        ("evaluate", google, folder, "--workers", 0, *heads),
        ("bench", google, *heads),
        ("faster", google, "--data", folder, "-o", tmp_path / "faster", *heads),
    ):
        status, text = run(*words)
        assert status == 1, words
        assert WHY in text and "vitkit finetune" in text, words
    assert not (tmp_path / "sorted").exists() and not (tmp_path / "m.onnx").exists()


def test_python_refuses_it_too(google, photograph):
    classifier = load(google, image=32, quiet=True)
    image = Image.open(io.BytesIO(photograph.read_bytes()))
    for ask in (
        lambda: vitkit.predict(classifier, image),
        lambda: classifier.predict(image),
        lambda: list(vitkit.prediction.predict(classifier, image)),
        lambda: class_relevance(classifier, classifier.batch(image)),
    ):
        with pytest.raises(ValueError, match=WHY):
            ask()
    assert classifier.features(classifier.batch(image)).shape == (1, 16)


def test_what_needs_no_answer_is_done(google, photograph, tmp_path, run):
    heads = ("--image", 32, 32)
    status, text = run("show", google, *heads)
    assert status == 0
    assert WHY in text and "next: vitkit finetune" in text and "vitkit predict" not in text
    status, text = run("compare", google, google, photograph, *heads)
    assert status == 0
    assert "the logits are the same" in text and WHY in text
    assert "the same likeliest class" not in text
    status, text = run("convert", google, tmp_path / "converted", "--to", "native", *heads)
    assert status == 0
    output = ("-o", tmp_path / "figures", "--no-page")
    status, _ = run("inspect", google, photograph, *output, *heads)
    assert status == 0


def test_a_new_head_is_of_zeros_until_it_is_trained(google, tmp_path):
    classifier = load(google, image=32, labels=["ant", "bee"], quiet=True)
    assert WHY in no_answer(classifier)
    save(classifier, tmp_path / "new")
    assert load(tmp_path / "new", quiet=True).labels == ("ant", "bee")
    with torch.no_grad():
        classifier.model.head.weight.normal_()
    assert no_answer(classifier) == ""
