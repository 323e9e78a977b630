"""Commands for models with one output for an image refuse one that classifies every pixel, and name `vitkit segment`."""

from types import SimpleNamespace

import pytest
from served import make_model_of_masks

import vitkit
from vitkit.apps.label.function import FeatureModel
from vitkit.prediction.functions import common
from vitkit.system.errors import VitkitError
from vitkit.weights import Hints

MODEL = make_model_of_masks()


@pytest.mark.parametrize(
    "asked",
    [
        lambda photos, folder: vitkit.predict(MODEL, photos),
        lambda photos, folder: vitkit.batch(MODEL, photos, into=folder / "answers"),
        lambda photos, folder: vitkit.sort(MODEL, photos, into=folder / "sorted"),
        lambda photos, folder: vitkit.watch(MODEL, photos),
        lambda photos, folder: vitkit.teach(MODEL, folder / "taught", add=[photos]),
        pytest.param(
            lambda photos, folder: vitkit.bench(MODEL), marks=pytest.mark.slow
        ),  # it imports what compiles
        lambda photos, folder: vitkit.faster(MODEL, data=photos),
        lambda photos, folder: vitkit.compare(MODEL, MODEL, photos),
        lambda photos, folder: FeatureModel(photos, MODEL, Hints(), "auto", "cpu").load(),
    ],
    ids=["predict", "batch", "sort", "watch", "teach", "bench", "faster", "compare", "label"],
)
def test_they_refuse_it_in_one_sentence(asked, photographs, tmp_path):
    with pytest.raises(VitkitError, match=r"classifies every pixel.*vitkit\.segment\("):
        asked(str(photographs), tmp_path)


@pytest.mark.parametrize("name", ["predict", "sort", "watch"])
def test_they_refuse_the_file_that_its_run_keeps(name, photographs, tmp_path, monkeypatch):
    """`train` keeps an ONNX file, which is opened before the model."""
    kept = SimpleNamespace(exported=SimpleNamespace(segments=True))
    monkeypatch.setattr(common, "runtime_of_run", lambda *given: kept)
    given = {"into": tmp_path / "sorted"} if name == "sort" else {}
    with pytest.raises(VitkitError, match=r"classifies every pixel.*vitkit\.segment\("):
        getattr(vitkit, name)("run", str(photographs), **given)
