"""Every family through the one loop, by the command line on real images: two steps, saved, opened
again, used."""

import json
from dataclasses import replace

import pytest
from quick_ones import quick_ones
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


QUICK = "--length 2 --batch 8 --optim.warmup 0 --precision float32 --device cpu".split()
ALWAYS = ("LeNet-5",)


@pytest.fixture
def no_report(monkeypatch):
    """Runs whose page of curves nobody looks at: to draw it takes longer than to train them."""

    def hide():
        monkeypatch.setattr(
            "vitkit.training.reports.report.report", lambda run: run / "report.html"
        )

    return hide


@pytest.fixture
def photographs(shared, tmp_path):
    """Thirty-two of CIFAR-10's photographs, of two classes, in folders."""
    source = open_source(str(shared("data/cifar10_1k-val.parquet")))
    folder = tmp_path / "photographs"
    for name in ("cat", "ship"):
        (folder / name).mkdir(parents=True)
        of_class = [i for i in range(len(source)) if source.labels[source.targets[i]] == name]
        for i in of_class[:16]:
            (folder / name / f"{i}.png").write_bytes(source[i][0])
    return folder


@pytest.mark.parametrize("name", quick_ones(FAMILY, ALWAYS))
def test_a_model_is_trained_saved_and_used(name, photographs, tmp_path, capsys, no_report):
    run = tmp_path / "run"
    words = ["--model", name, *FAMILY[name].split(), "--data.source", photographs, *QUICK]
    train = ["train", "cifar10-laptop", *words, "--workdir"]

    status, out, err = say(capsys, *train, run)
    assert status == 0, out + err
    classifier = load(run, quiet=True)
    recipe = json.loads((run / "recipe.json").read_text())
    assert recipe["model"]["class"] == type(classifier.model.config).__name__
    assert classifier.labels == ("cat", "ship")
    assert classifier.model.head.weight.any()

    status, out, _ = say(capsys, "show", run)
    assert status == 0
    assert called(classifier.model.config)[:9] in out
    status, out, _ = say(capsys, "evaluate", run, photographs, "--json", "--device", "cpu")
    assert status == 0
    assert json.loads(out)["seen"]["value"] == 6
    status, out, _ = say(capsys, "predict", run, photographs / "cat", "--json", "--device", "cpu")
    assert status == 0
    assert len(out.splitlines()) == 16

    # To our own format and back to the same model; the others have no place for it
    status, out, _ = say(capsys, "convert", run, tmp_path / "again", "--to", "native")
    assert status == 0
    assert "every tensor is the same to the bit" in out
    status, out, _ = say(capsys, "compare", run, tmp_path / "again", photographs / "ship")
    assert status == 0
    assert "the same likeliest class for 16 of 16 images" in out
    for file_format, file in (("huggingface", "other"), ("torchvision", "other.pth")):
        status, _, err = say(capsys, "convert", run, tmp_path / file, "--to", file_format)
        assert status == 1
        assert f"{file_format} has no place for" in err

    # The same weights, with a new head
    no_report()
    status, out, _ = say(capsys, *train, tmp_path / "from", "--init", run)
    assert status == 0
    assert "newly made: a head of 2 classes" in out


def small_pretrained(name):
    """A small model of a family, with three classes."""
    config = named(name, classes=3, channels=3)
    if name == "R26+S/32":
        small = {"width": 48, "heads": 4, "depth": 2, "mlp": 96}
        config = replace(config, image=64, stem=Backbone((1, 1), 0.5), patch=4, **small)
    if name == "BiT-R50x1":
        backbone = replace(config.backbone, units=(1, 1), width=0.5)
        config = replace(config, image=64, backbone=backbone)
    return Classifier(create(config, seed=0), Preprocessing(size=config.image), ("a", "b", "c"))


@pytest.mark.parametrize(
    ("name", "image"),
    [
        pytest.param("R26+S/32", 96, marks=pytest.mark.slow),
        pytest.param("BiT-R50x1", 96, marks=pytest.mark.slow),
        ("LeNet-5", 32),
    ],
)
@pytest.mark.slow
def test_published_weights_are_fine_tuned(name, image, photographs, tmp_path, capsys, no_report):
    """With another head and, but for LeNet, at another size of images: BiT's rule for all."""
    no_report()
    save(small_pretrained(name), tmp_path / "model")
    words = "--preset bit --length 2 --batch 8 --micro-batch 8 --optim.warmup 1 --device cpu"
    finetune = ["finetune", tmp_path / "model", photographs, "--image", image, *words.split()]
    status, out, err = say(capsys, *finetune, "--workdir", tmp_path / "run")
    assert status == 0, out + err
    classifier = load(tmp_path / "run", quiet=True)
    assert classifier.labels == ("cat", "ship")
    assert classifier.model.config.image == (image, image)


@pytest.mark.slow
def test_a_run_of_another_family_is_not_continued_nor_begun_from(
    photographs, tmp_path, capsys, no_report
):
    no_report()
    words = "--length 1 --batch 8 --optim.warmup 0".split()
    train = ["train", "cifar10-laptop", "--data.source", photographs, *words]
    small = FAMILY["R50x1"].split()
    run = tmp_path / "run"
    status, _, _ = say(capsys, *train, "--model", "R50x1", *small, "--workdir", run)
    assert status == 0

    status, _, err = say(capsys, *train, "--model", "LeNet-5", "--workdir", run)
    assert status == 1
    assert "holds a run of another recipe" in err
    assert "data.preprocessing.mean: [0.5, 0.5, 0.5] -> [0.5]" in err  # LeNet-5's images are grey

    init = ["--init", run, "--workdir", tmp_path / "other"]
    status, _, err = say(capsys, *train, "--model", "BiT-R50x1", *small, *init)
    assert status == 1
    assert (
        "has another architecture than the recipe's model (backbone.norm_eps: 1e-06 -> 1e-05" in err
    )
    status, _, err = say(capsys, *train, "--model", "S/8", *init)
    assert status == 1
    assert "class: ResNetConfig -> ViTConfig" in err


def test_a_name_that_does_not_exist_is_refused(capsys):
    status, _, err = say(capsys, "train", "digits", "--model", "BiT-R50x9x")
    assert status == 1
    assert "no model 'BiT-R50x9x'" in err


def test_help_shows_the_settings_of_a_hybrids_resnet(capsys):
    status, out, _ = say(capsys, "train", "digits", "--model", "R50+B/32", "--help-all")
    assert status == 0
    assert "--model.stem.units" in out


@pytest.mark.parametrize("name", quick_ones(("R26+S/32", "BiT-R50x1", "LeNet-5"), ("LeNet-5",)))
def test_every_family_has_a_plan(name, capsys):
    status, out, _ = say(capsys, "plan", "cifar10", "--model", name, "--examples", "50000")
    assert status == 0
    assert "activations of 512 images" in out
    assert "It fits" in out
