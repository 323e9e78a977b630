"""What makes a model stands for it; and the names that people know from other libraries."""

import copy
from pathlib import Path

import pandas
import pytest
import torch
from pictures import make_photographs

import vitkit
from vitkit.data import Preprocessing
from vitkit.models import create, vit
from vitkit.weights import Classifier, MadeModel, save


@pytest.fixture
def model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_photographs(tmp_path)
    network = create(vit("mu/16", image=(32, 32), depth=1, classes=2), seed=0)
    torch.nn.init.normal_(network.head.weight)
    classifier = Classifier(network, Preprocessing(size=(32, 32)), ("blue", "red"))
    save(classifier, tmp_path / "model")
    return classifier


QUICK = {"device": "cpu", "quiet": True}
MADE = {
    "teach": lambda: vitkit.teach("model", "taught", add=["photos"], **QUICK),
    "probe": lambda: vitkit.probe("model", "photos", **QUICK),
    "saved probe": lambda: vitkit.probe("model", "photos", to="head", **QUICK),
    "finetune": lambda: vitkit.finetune("model", "photos", minutes=0.001, **QUICK),
    "convert": lambda: vitkit.convert("model", "timm", to="timm", quiet=True),
}
SLOW = {"finetune", "convert", "probe", "saved probe"}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in MADE],
)
def test_what_made_a_model_is_taken_for_it(name, model):
    made = MADE[name]()
    assert isinstance(made, MadeModel)
    assert sorted(made.labels) == ["blue", "red"]
    (answer,) = made.predict("photos/red/0.jpg", workers=0, **QUICK)
    assert answer == vitkit.predict(made, "photos/red/0.jpg", workers=0, **QUICK)[0]
    assert vitkit.show(model=made, quiet=True).classifier.labels == made.labels
    assert made.evaluate("photos", workers=0, **QUICK)["seen"] > 0
    compared = vitkit.compare(made, model, "photos/red/0.jpg", quiet=True)
    assert compared.first.labels == made.labels
    if name == "probe":
        with pytest.raises(TypeError, match=r"vitkit\.save\(made\.classifier"):
            Path(made)
    else:
        assert vitkit.load(made, quiet=True).labels == made.labels


@pytest.mark.slow
def test_it_is_exported_reported_and_compared_with(model):
    made = MADE["finetune"]()
    exported = made.export("made.onnx", quiet=True)
    assert exported.labels == made.labels
    assert exported.predict("photos/red/0.jpg", quiet=True)[0].label in made.labels
    assert vitkit.report(made, quiet=True).path.exists()
    other = MADE["teach"]()
    found = vitkit.evaluate(made, "photos", against=other, **QUICK)
    assert found.details.other == "taught"


def test_what_made_no_model_says_so(model):
    neighbours = vitkit.probe("model", "photos", method="neighbours", **QUICK)
    with pytest.raises(ValueError, match="neighbours makes no model"):
        neighbours.predict("photos/red/0.jpg")


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("classes", "classifier.labels"),
        ("id2label", "dict(enumerate(classifier.labels))"),
        ("transform", "classifier.batch(images)"),
        ("predict_proba", "classifier.predict(images)"),
        ("embed", "classifier.features("),
        ("save", "vitkit.save(classifier"),
        ("export", "vitkit.export(classifier"),
        ("eval", "classifier.model"),
    ],
)
def test_a_classifier_names_the_attribute_that_is_meant(name, right, model):
    with pytest.raises(AttributeError) as refused:
        getattr(model, name)
    assert right in str(refused.value)
    assert not hasattr(model, name)


def test_a_classifier_is_copied_and_has_no_others(model):
    assert copy.deepcopy(model).labels == model.labels
    with pytest.raises(AttributeError, match=r"a Classifier has no 'colour'$"):
        _ = model.colour


def test_predictions_are_a_table_of_pandas(model):
    Path("photos/red/broken.jpg").write_bytes(b"none")
    predictions = vitkit.predict(model, "photos/red", workers=0, **QUICK)
    for table in (pandas.DataFrame(predictions), predictions.to_frame()):
        assert {"name", "label", "probability"} <= set(table.columns)
        good = table[table.error.isna()]
        assert set(good.label) <= {"blue", "red"} and (good.probability >= 0.5).all()
        assert table.label.isna().sum() == 1


def test_models_are_listed_by_patterns():
    of_timm = vitkit.list_models("vit_tiny_*").rows()
    assert of_timm and all("/vit_tiny_" in row["name"] for row in of_timm)
    names = {row["model"] for row in vitkit.list_models("B/*").rows()}
    assert "B/16" in names and all(name.startswith("B/") for name in names)
    with pytest.raises(ValueError, match="no published weights have 'resnet9_\\*'"):
        vitkit.list_models("resnet9_*")
