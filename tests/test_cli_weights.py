"""Models between formats, and fine-tuning, as their user types it: on the real ViT-Ti/16 where it
is there."""

import json
from dataclasses import replace

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from test_cli import say

from vitkit import load
from vitkit.cli.table import COMMANDS
from vitkit.data import Preprocessing
from vitkit.data.images.readers import Encoded
from vitkit.models import create, vit
from vitkit.system.functions.parameters import options
from vitkit.weights import Classifier, format_of, save
from vitkit.weights.destination import tensors_in

TI16 = "weights/vit_tiny_patch16_224.augreg_in21k_ft_in1k.safetensors"


@pytest.fixture
def model(tmp_path):
    config = vit("Ti/16", depth=2, width=24, heads=2, mlp=32, image=(32, 32), classes=3)
    network = create(config)
    torch.nn.init.normal_(network.head.weight)
    labels = ("fox", "dog", "cat")
    origin = {"note": "made here"}
    classifier = Classifier(network, Preprocessing(size=(32, 32)), labels, origin=origin)
    return save(classifier, tmp_path / "m")


def test_show_says_what_a_model_is(model, capsys):
    status, out, _ = say(capsys, "show", model)
    assert status == 0
    for words in (
        "3 (fox, dog, cat)", "class_token │ True", "inject │ stem", "softmax", "origin: note",
        "made here", "32 x 32", f"next: vitkit predict {model}",
    ):  # fmt: skip
        assert words in " ".join(out.split()), words
    status, out, err = say(capsys, "show", model, "--json")
    assert (status, err) == (0, "")
    description = json.loads(out)
    assert description["labels"] == ["fox", "dog", "cat"]
    assert description["model"]["width"] == 24
    network = load(model, quiet=True).model
    assert description["parameters"] == sum(p.numel() for p in network.parameters())


def test_a_size_without_weights_is_shown_and_drawn(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, out, _ = say(capsys, "show", "B/16", "--draw", "b16.svg")
    assert status == 0 and "none; this is a size" in out
    assert "wrote b16.svg" in out and "vitkit models B/16 --published" in out
    assert "ViT-B/16" in (tmp_path / "b16.svg").read_text()
    status, out, _ = say(capsys, "show", "R50x1", "--image", "160", "--channels", "1", "--json")
    description = json.loads(out)
    assert status == 0 and "labels" not in description
    assert (description["model"]["image"], description["model"]["channels"]) == ([160, 160], 1)
    status, _, err = say(capsys, "show", "B/16", "--statistics", "clip")
    assert status == 1 and "without weights, so --statistics has no meaning" in err

    # A run of that name is a run
    save(Classifier(create("mu/16", classes=2), Preprocessing(), ("a", "b")), tmp_path / "B" / "16")
    assert "2 (a, b)" in say(capsys, "show", "B/16")[1]


def test_the_part_that_is_read_is_said_and_can_be_chosen(model, tmp_path, capsys):
    """Also without -v: an average and what it averages are two models."""
    classifier = load(model, quiet=True)
    state = tensors_in(format_of("timm", classifier.model.config), classifier)
    file = tmp_path / "checkpoint.pth"
    torch.save({"model": state, "model_ema": dict(state)}, file)
    photograph = tmp_path / "photograph.png"
    Image.new("RGB", (40, 40)).save(photograph)
    for command in (("show", file), ("predict", file, photograph)):
        status, _, err = say(capsys, *command, "--heads", "2")
        assert status == 0
        assert "part: model_ema, by its name the average of model (otherwise: --part model)" in (
            " ".join(err.split())
        )
    status, _, err = say(capsys, "show", file, "--heads", "2", "--part", "model")
    assert status == 0 and "read: model, as set" in err and "part: model_ema" not in err
    status, _, err = say(capsys, "show", file, "--heads", "2", "--part", "nets")
    assert status == 1 and "no part 'nets'; its parts are model and model_ema" in " ".join(
        err.split()
    )
    status, _, err = say(capsys, "show", "B/16", "--part", "model")
    assert status == 1 and "without weights, so --part has no meaning" in err


DESTINATIONS = {"timm": "a.safetensors", "huggingface": "b", "native": "c", "google": "d.npz"}


@pytest.mark.parametrize("form", DESTINATIONS)
def test_a_converted_model_is_the_same(form, model, photographs, tmp_path, capsys):
    dest = tmp_path / DESTINATIONS[form]
    status, out, _ = say(capsys, "convert", model, dest, "--to", form)
    assert status == 0, out
    assert f"wrote {dest}; read back, every tensor is the same to the bit" in out
    reasons = {
        "native": "only vitkit reads this format",
        "google": "Google's code computes what vitkit computes",
    }
    if form in reasons:
        assert f"logits were not compared: {reasons[form]}" in out
    else:
        assert "logits differ by" in out
    image = photographs / "red" / "1.jpg"
    status, out, _ = say(capsys, "compare", model, dest, image, "--json")
    assert status == 0
    comparison = json.loads(out)
    assert comparison["same"]
    # The same weights at another address in memory: some processors then round the last bit otherwise
    assert comparison["layers"]["logits"]["largest"] < 1e-5


def test_compare_ends_with_1_where_two_models_differ(model, photographs, tmp_path, capsys):
    changed = load(model, quiet=True)
    with torch.no_grad():
        changed.model.blocks[1].mlp.expand.bias += 1
    other = save(changed, tmp_path / "other")
    status, out, _ = say(capsys, "compare", model, other, photographs, "--limit", 3, "--json")
    assert status == 1
    comparison = json.loads(out)
    assert comparison["images"] == 3
    assert not comparison["same"]
    layers = comparison["layers"]
    assert layers["block 1"]["largest"] == 0
    assert layers["block 2"]["largest"] > 0


@pytest.mark.slow
def test_finetune_from_a_folder(model, photographs, tmp_path, capsys):
    (photographs / "red" / "0.jpg").rename(photographs / "red" / "z.jpg")
    run = tmp_path / "run"
    options = (
        "--length 6steps --optim.warmup 2 --data.workers 0 --device cpu "
        "--rates 0.003 0.01 --seeds 2"
    )
    words = ("finetune", model, photographs, "--workdir", run)
    status, out, err = say(capsys, *words, *options.split())
    assert status == 0, err
    for sentence in ("val/top1", "chosen", "± ", f"next: vitkit predict {run}"):
        assert sentence in out, sentence
    outcome = json.loads((run / "transfer.json").read_text())
    assert set(outcome["selection"]) == {"0.003", "0.01"}
    assert set(outcome["runs"]) == {"0", "1"}
    assert {metric["metric"] for metric in outcome["runs"].values()} == {"test/top1"}
    assert load(run, quiet=True).labels == ("blue", "red")
    status, out, _ = say(capsys, "predict", run, photographs / "blue" / "3.jpg", "--json")
    assert status == 0 and json.loads(out)["labels"][0] in ("blue", "red")


def test_every_command_that_takes_a_model_takes_what_is_said_of_it():
    for command in COMMANDS:
        names = {option.name for option in options(command.load_function())}
        takes_a_model = "MODEL" in command.words or "ONE" in command.words
        assert ({"heads", "statistics", "labels"} <= names) == takes_a_model, command.name


@pytest.mark.slow
def test_what_is_said_of_a_bare_file_reaches_every_command(photographs, tmp_path, capsys):
    """Heads of an odd width, a table that is no square, names, and the statistics."""
    network = create(vit("mu/8", width=48, heads=6, image=(32, 16), classes=2), seed=0)
    torch.nn.init.normal_(network.head.weight)
    classifier = Classifier(network, Preprocessing(size=(32, 16)), ("a", "b"))
    file = tmp_path / "bare.safetensors"
    save_file(tensors_in(format_of("timm", network.config), classifier), file)
    names = tmp_path / "names.txt"
    names.write_text("blue\nred\n")

    said = ("--heads", 6, "--image", 32, 16, "--statistics", "imagenet", "--resize", 40)
    image = photographs / "red" / "2.jpg"
    status, out, err = say(capsys, "predict", *said, "--labels", names, file, image)
    assert status == 0 and "next: vitkit predict" in out, err
    assert say(capsys, "evaluate", file, photographs, *said, "--labels", names)[0] == 0
    assert say(capsys, "compare", file, file, image, *said)[0] == 0
    assert say(capsys, "convert", file, tmp_path / "m", "--to", "timm", *said)[0] == 0
    status, out, _ = say(capsys, "show", file, *said, "--json")
    description = json.loads(out)
    assert (description["model"]["heads"], description["model"]["image"]) == (6, [32, 16])
    assert description["preprocessing"]["resize"] == 40

    # Fine-tuning: the run's own recipe has it, and the weights are read so
    words = ("finetune", file, photographs, "--workdir", tmp_path / "run", *said)
    options = "--preset none --length 2steps --optim.warmup 0 --data.workers 0 --device cpu"
    status, _, err = say(capsys, *words, *options.split())
    assert status == 0, err
    recipe = json.loads((tmp_path / "run" / "recipe.json").read_text())
    assert recipe["model"]["heads"] == 6 and recipe["data"]["preprocessing"]["resize"] == 40
    assert recipe["data"]["preprocessing"]["mean"] == [0.485, 0.456, 0.406]
    status, _, err = say(capsys, *words, "--labels", names)
    assert status == 1 and "leave it out" in err


def test_a_stride_is_one_number_or_two(model, photographs, capsys):
    """Before the names of images too, as --image."""
    image = photographs / "blue" / "3.jpg"
    for numbers, every in ((["8"], "8 x 8"), (["8", "16"], "8 x 16")):
        words = ("predict", "-v", "--stride", *numbers, model, image, "--device", "cpu")
        status, _, err = say(capsys, *words)
        assert status == 0 and f"patches of 16 x 16 pixels every {every}, cut by" in err
    status, _, err = say(capsys, "predict", model, image, "--stride", "8", "4", "2")
    assert status == 1 and "--stride is (8, 4, 2); it is a number of pixels, at least 1, or" in err


def test_finetune_help_is_about_this_model_and_this_data(model, capsys):
    status, out, _ = say(capsys, "finetune", model, "digits", "--preset", "pets", "--help-all")
    assert status == 0
    assert "--model.image" in out and "384 384" in out and "--tune.lora" in out
    status, out, _ = say(capsys, "finetune", model, "digits", "--preset", "none", "--help-all")
    assert status == 0 and "ten epochs" in out
    assert say(capsys, "finetune")[0] == 2
    status, _, err = say(capsys, "finetune", model, "nowhere")
    assert status == 1 and "there is no folder, file or data set 'nowhere'" in err


@pytest.mark.slow
def test_the_real_model_at_another_size(shared, tmp_path, capsys):
    """64 pixels in place of 224: the position table is resampled to 4 x 4 and training goes on from
    there."""
    for name, colour in (("red", (200, 30, 30)), ("blue", (30, 30, 200))):
        (tmp_path / "p" / name).mkdir(parents=True)
        for i in range(5):
            Image.new("RGB", (70 + i, 64), colour).save(tmp_path / "p" / name / f"{i}.png")
    words = ("finetune", shared(TI16), tmp_path / "p", "--workdir", tmp_path / "run")
    options = (
        "--preset none --image 64 --length 12 --optim.warmup 2 --batch 8 --micro-batch 8 "
        "--device cpu"
    )
    status, out, err = say(capsys, *words, *options.split())
    assert status == 0, err
    assert "resampled: the position table from 14 x 14 to 4 x 4 patches" in out
    assert "test/top1 100.00 %" in out
    tuned = load(tmp_path / "run", quiet=True)
    assert tuned.model.config.image == (64, 64)
    assert tuned.preprocessing.size == (64, 64)


def test_compare_says_what_else_differs_and_leaves_broken_images_out(
    model, photographs, tmp_path, capsys
):
    save(replace(load(model, quiet=True), activation="sigmoid"), tmp_path / "other")
    broken = photographs / "red" / "1.jpg"
    broken.write_bytes(broken.read_bytes()[:-60])
    files = [broken, photographs / "red" / "2.jpg"]
    status, out, err = say(capsys, "compare", model, tmp_path / "other", *files)
    assert status == 3
    assert "their activation differs: softmax; sigmoid" in out and "of 1 images" in out
    assert "left out: " in err and "1.jpg" in err
    status, _, err = say(capsys, "compare", model, model, files[1], "--tolerance", "nan")
    assert status == 1 and "--tolerance is nan" in err


def test_models_without_heads_are_compared_by_their_features(photographs, tmp_path, capsys):
    headless = create(vit("mu/16", image=(32, 32), classes=0))
    save(Classifier(headless, Preprocessing(size=(32, 32)), ()), tmp_path / "m")
    image = photographs / "red" / "2.jpg"
    status, out, _ = say(capsys, "compare", tmp_path / "m", tmp_path / "m", image)
    assert status == 0
    assert "the features are the same" in out
    assert "likeliest class" not in out


def test_compare_decodes_an_image_once_for_both_models(model, photographs, monkeypatch, capsys):
    decoded = []
    decode = Encoded.pixels

    def counting(picture, *arguments):
        decoded.append(picture.name)
        return decode(picture, *arguments)

    monkeypatch.setattr(Encoded, "pixels", counting)
    files = [photographs / "red" / "1.jpg", photographs / "red" / "2.jpg"]
    assert say(capsys, "compare", model, model, *files)[0] == 0
    assert decoded == list(map(str, files))


def test_predict_says_what_it_cannot_do_before_it_begins(model, photographs, tmp_path, capsys):
    image = photographs / "red" / "2.jpg"
    (tmp_path / "d.png").mkdir()
    sentences = {
        ("predict", model, image, "--sheet", tmp_path / "s"): "give the name of a PNG file",
        ("predict", model, image, "--sheet", tmp_path / "s.txt"): "give the name of a PNG file",
        ("predict", model, image, "--sheet", tmp_path / "d.png"): "a directory",
        ("predict", model / "config.json", image): "give the directory that it is in",
    }
    for words, sentence in sentences.items():
        status, out, err = say(capsys, *words)
        assert (status, out) == (1, "")
        assert sentence in err.replace("\n", " ")
    status, out, err = say(capsys, "predict", model)
    assert (status, out) == (2, "") and "IMAGE is missing" in err


def test_a_regression_shows_all_its_numbers_and_has_no_accuracy(
    model, photographs, tmp_path, capsys
):
    regression = replace(load(model, quiet=True), activation="none")
    with torch.no_grad():
        regression.model.head.weight.zero_()[0, 0] = 1e-6
        regression.model.head.bias.copy_(torch.tensor([2.0, -1.5, -3.25]))
    save(regression, tmp_path / "numbers")
    status, out, _ = say(capsys, "predict", tmp_path / "numbers", photographs / "red" / "2.jpg")
    assert status == 0 and "-1.5" in out and "-3.25" in out
    status, out, err = say(capsys, "evaluate", tmp_path / "numbers", photographs)
    assert (status, out) == (1, "")
    assert "outputs are numbers, not classes" in err


def test_an_answer_for_every_token_is_none_for_an_image(photographs, tmp_path, capsys):
    network = create(vit("mu/8", image=(32, 32), classes=2, pool="none"))
    torch.nn.init.normal_(network.head.weight)
    save(Classifier(network, Preprocessing(size=(32, 32)), ("a", "b")), tmp_path / "m")
    image = photographs / "red" / "2.jpg"
    for words in (("predict", tmp_path / "m"), ("compare", tmp_path / "m", tmp_path / "m")):
        status, _, err = say(capsys, *words, image)
        assert status == 1 and "for every token" in err
