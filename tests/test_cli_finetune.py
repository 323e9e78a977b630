"""`vitkit finetune` as somebody with a folder of photographs types it."""

import json
import shutil

import pytest
import torch
from pictures import encoded, photograph
from test_cli import say

import vitkit
from vitkit.data import Preprocessing
from vitkit.models import create, vit
from vitkit.recipes.finetuning import FAMILY
from vitkit.weights import Classifier, save

FAST = "--length 2steps --batch 4 --micro-batch 4 --data.workers 0 --device cpu".split()


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working directory without a network."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return tmp_path


@pytest.fixture
def model(here):
    config = vit("mu/16", image=(32, 32), classes=3)
    classifier = Classifier(create(config, seed=0), Preprocessing(size=(32, 32)), ("a", "b", "c"))
    return save(classifier, here / "weights")


@pytest.mark.slow  # below the command line: test_answer.py
def test_a_folder_and_nothing_else(model, photographs, here, capsys):
    """Without a network the weights that are there are taken, under a published name."""
    _, _, err = say(capsys, "finetune", photographs)
    assert "no pre-trained weights: the Hugging Face hub cannot be reached" in err
    assert f"it is model.safetensors at https://huggingface.co/{FAMILY[-1]} (23 MB)" in err
    tiny = FAMILY[-1].partition("/")[2]
    shutil.copy(model / "model.safetensors", here / f"{tiny}.safetensors")

    status, out, err = say(capsys, "finetune", photographs.name, *FAST)
    assert status == 0, err
    assert f"beginning with {tiny}.safetensors, which is in this directory" in err
    run = here / "runs" / photographs.name
    for text in ("a first model is in", "held out", "closed form", "kept", "vitkit data review"):
        assert text in out, text
    assert vitkit.load(run, quiet=True).labels == ("blue", "red")
    page = (run / "report.html").read_text()
    assert f"vitkit finetune {tiny}.safetensors {photographs.name} --minutes " in page
    words = ("evaluate", run, photographs, "--json", "--device", "cpu")
    status, out, _ = say(capsys, *words)
    reached = json.loads((run / "answer.json").read_text())
    said = reached["test"][reached["chosen"]]["value"]
    assert status == 0 and json.loads(out)["top1"]["value"] == said

    # The same command continues, and says so
    status, out, _ = say(capsys, "finetune", photographs.name, *FAST)
    assert status == 0 and "this run is finished" in out


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.slow
def test_weights_in_the_hubs_cache_are_found(cached, here, model, photographs, capsys):
    if cached:
        name = FAMILY[-1]
        repository = here / "hub" / f"models--{name.replace('/', '--')}"
        snapshot = repository / "snapshots" / "0123abc"
        shutil.copytree(model, snapshot)
        (repository / "refs").mkdir()
        (repository / "refs" / "main").write_text("0123abc")
    status, _, err = say(capsys, "finetune", photographs, *FAST)
    if cached:
        assert status == 0, err
        assert "which is in the cache" in err
    else:
        assert status == 1


def test_words_in_the_other_order_and_words_that_are_missing(model, photographs, here, capsys):
    status, _, err = say(capsys, "finetune", photographs, model, "--minutes", -1)
    assert status == 1 and "--minutes is -1" in err
    assert f"took {photographs} {model} for vitkit finetune {model} {photographs}" in err
    assert "DATA is missing" in say(capsys, "finetune")[2]
    status, _, err = say(capsys, "finetune", model)
    assert status == 1 and "the photographs are missing" in err


@pytest.mark.slow  # below the command line: test_learned_targets.py
@pytest.mark.parametrize("kind", ["number", "classes"])
def test_several_classes_an_image_and_numbers(kind, model, here, capsys):
    torch.manual_seed(0)
    lines = []
    for i in range(24):
        (here / f"{i}.png").write_bytes(encoded(photograph(40, 40, i), "PNG"))
        label = [["cat"], ["cat", "dog"], []][i % 3]
        if kind == "number":
            label = i / 10
        lines.append(json.dumps({"file_name": f"{i}.png", "label": label}))
    (here / "manifest.jsonl").write_text("\n".join(lines))
    words = ("finetune", model, "manifest.jsonl", "--workdir", "run")
    status, out, err = say(capsys, *words, *FAST)
    assert status == 0, err
    activation = vitkit.load(here / "run", quiet=True).activation
    assert activation == {"classes": "sigmoid", "number": "none"}[kind]

    # Solved, fine-tuned, and the better one kept, as for one class each
    words = {"classes": "a mean average precision of", "number": "a mean error of"}[kind]
    assert f"in cross-validation it has {words}" in out
    metric = {"classes": "held_out/map", "number": "held_out/mae"}[kind]
    answer = json.loads((here / "run" / "answer.json").read_text())
    assert list(answer["candidates"]) == ["closed form", "fine-tuned", "average of both"]
    assert answer["chosen"] in answer["candidates"] and metric.partition("/")[2] in out


@pytest.mark.slow
def test_the_vtab_preset_knows_its_tasks_and_asks_about_others(model, photographs, here, capsys):
    def fed(images, run, *more):
        """What was said, and what training images went through."""
        words = ("--preset", "vtab", "--image", "32", *FAST, "--workdir", here / run, *more)
        status, _, err = say(capsys, "finetune", model, images, *words)
        assert status == 0, err
        values = json.loads((here / run / "recipe.json").read_text())["data"]["augmentation"]
        return err, (values["crop"], values["flip"], values["auto"])

    err, (*_, auto) = fed(photographs, "asked")
    assert "is not a task of VTAB by its name, so the model is asked" in err and not auto
    err, augmentation = fed(photographs, "as-it-is", "--data.augmentation.no-auto")
    assert "VTAB" not in err and augmentation == ("resize_crop", True, False)
    err, augmentation = fed(photographs.rename(here / "kitti"), "task")
    assert "kitti is a task of VTAB: not cropped" in err
    assert augmentation == ("none", True, False)
