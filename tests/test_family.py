"""Every family through the one loop, by the command line on real images: two steps, saved, opened again, used."""

import json
from dataclasses import replace

import pytest
from test_cli import say

from vitkit.data import Preprocessing, open_source
from vitkit.models import Backbone, called, create, named
from vitkit.weights import Classifier, load, save

SMALL = "--model.width 48 --model.heads 4 --model.depth 2 --model.mlp 96"
STEM = "--model.stem.units 1 1 --model.stem.width 0.5 --model.patch 4"
FAMILY = {
    "R26+S/32": f"{SMALL} {STEM}",
    "Axial-S/8": SMALL,
    "R50x1": "--model.backbone.units 1 1 --model.backbone.width 0.5",
    "BiT-R50x1": "--model.backbone.units 1 1 --model.backbone.width 0.5",
    "BN-R50": "--model.backbone.units 1 1 --model.backbone.width 0.5",
    "Axial-R50": "--model.backbone.units 1 1",
    "Local-R50": "--model.backbone.units 1 1",
    "Augmented-R50": "--model.backbone.units 1 1",
    "LeNet-5": "",
    "S/8": f"{SMALL} --model.positions relative --model.pool gap",
}


@pytest.fixture
def photographs(shared, tmp_path):
    """Thirty-two of CIFAR-10's photographs, of two classes, in folders."""
    source, folder = (
        open_source(str(shared("data/cifar10_1k-val.parquet"))),
        tmp_path / "photographs",
    )
    for name in ("cat", "ship"):
        (folder / name).mkdir(parents=True)
        chosen = [i for i in range(len(source)) if source.labels[source.targets[i]] == name][:16]
        for i in chosen:
            (folder / name / f"{i}.png").write_bytes(source[i][0])
    return folder


SLOW = ("R50x1", "Local-R50", "Augmented-R50")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if n in SLOW else ()) for n in FAMILY]
)
def test_two_steps_saved_and_used(name, photographs, tmp_path, capsys):
    run = tmp_path / "run"
    train = [
        "train",
        "cifar10-laptop",
        "--model",
        name,
        *FAMILY[name].split(),
        "--data.source",
        photographs,
    ]
    train += (
        "--length 2 --batch 8 --optim.warmup 0 --precision float32 --device cpu --workdir".split()
    )
    status, out, err = say(capsys, *train, run)
    assert status == 0, out + err
    found = load(run, quiet=True)
    ran = json.loads((run / "recipe.json").read_text())
    assert ran["model"]["class"] == type(found.model.config).__name__
    assert found.labels == ("cat", "ship") and found.model.head.weight.any()

    status, out, err = say(capsys, "show", run)
    assert status == 0 and called(found.model.config)[:9] in out
    status, out, _ = say(capsys, "evaluate", run, photographs, "--json", "--device", "cpu")
    assert status == 0 and json.loads(out)["seen"]["value"] == 6
    status, out, _ = say(capsys, "predict", run, photographs / "cat", "--json", "--device", "cpu")
    assert status == 0 and len(out.splitlines()) == 16
    status, out, _ = say(capsys, "convert", run, tmp_path / "again", "--to", "native")
    assert status == 0 and "every tensor is the same to the bit" in out
    status, out, _ = say(capsys, "compare", run, tmp_path / "again", photographs / "ship")
    assert status == 0 and "the same likeliest class for 16 of 16 images" in out
    for to, end in (("huggingface", ""), ("torchvision", ".pth")):
        status, _, err = say(capsys, "convert", run, tmp_path / f"other{end}", "--to", to)
        assert status == 1 and f"{to} has no place for" in err
    status, out, err = say(
        capsys, *train, tmp_path / "from", "--init", run
    )  # the same weights, with a new head
    assert status == 0 and "newly made: a head of 2 classes" in out


@pytest.mark.parametrize("name", ["R26+S/32", "BiT-R50x1", "LeNet-5"])
def test_published_weights_of_every_family_are_fine_tuned(name, photographs, tmp_path, capsys):
    """Another head and, where there is another, another size of images: BiT's rule for all."""
    config = named(name, classes=3, channels=3)
    if name == "R26+S/32":
        config = replace(
            config,
            image=64,
            width=48,
            heads=4,
            depth=2,
            mlp=96,
            stem=Backbone((1, 1), 0.5),
            patch=4,
        )
    if name == "BiT-R50x1":
        config = replace(
            config, image=64, backbone=replace(config.backbone, units=(1, 1), width=0.5)
        )
    saved = Classifier(create(config, seed=0), Preprocessing(size=config.image), ("a", "b", "c"))
    save(saved, tmp_path / "model")
    words = "--preset bit --length 2 --batch 8 --micro-batch 8 --optim.warmup 1 --device cpu --workdir".split()
    size = [] if name == "LeNet-5" else ["--image", "96"]
    status, out, err = say(
        capsys,
        "finetune",
        tmp_path / "model",
        photographs,
        *size or ["--image", "32"],
        *words,
        tmp_path / "run",
    )
    assert status == 0, out + err
    found = load(tmp_path / "run", quiet=True)
    assert found.labels == ("cat", "ship") and found.model.config.image == (
        (96, 96) if size else (32, 32)
    )


def test_a_run_of_another_family_is_not_continued_nor_begun_from(photographs, tmp_path, capsys):
    train = [
        "train",
        "cifar10-laptop",
        "--data.source",
        photographs,
        *"--length 1 --batch 8 --optim.warmup 0".split(),
    ]
    small = FAMILY["R50x1"].split()
    assert say(capsys, *train, "--model", "R50x1", *small, "--workdir", tmp_path / "run")[0] == 0
    status, _, err = say(capsys, *train, "--model", "LeNet-5", "--workdir", tmp_path / "run")
    assert (
        status == 1
        and "holds a run of another recipe" in err
        and "model.class: ResNetConfig -> LeNetConfig" in err
    )
    status, _, err = say(
        capsys,
        *train,
        "--model",
        "BiT-R50x1",
        *small,
        "--workdir",
        tmp_path / "b",
        "--init",
        tmp_path / "run",
    )
    assert (
        status == 1
        and "holds another model than the recipe's (backbone.norm_eps: 1e-06 -> 1e-05" in err
    )
    status, _, err = say(
        capsys, *train, "--model", "S/8", "--workdir", tmp_path / "c", "--init", tmp_path / "run"
    )
    assert status == 1 and "class: ResNetConfig -> ViTConfig" in err


def test_a_model_that_is_none_and_images_that_it_cannot_take(photographs, tmp_path, capsys):
    status, _, err = say(capsys, "train", "digits", "--model", "BiT-R50x9x")
    assert status == 1 and "no model 'BiT-R50x9x'" in err
    status, _, err = say(
        capsys, "train", "digits", "--model=LeNet-5", "--model.channels", "1", "--workdir", tmp_path
    )
    assert (
        status == 1
        and "the model's images have 1 channels, the data's 3: --model.channels 3" in err
    )
    status, out, _ = say(capsys, "train", "digits", "--model", "R50+B/32", "--help")
    assert status == 0 and "--model.stem.units" in out


@pytest.mark.parametrize("name", ["R26+S/32", "BiT-R50x1", "LeNet-5"])
def test_every_family_has_a_plan(name, capsys):
    status, out, _ = say(capsys, "plan", "cifar10", "--model", name, "--examples", "50000")
    assert status == 0 and "activations of 512 images" in out and "It fits" in out
