"""VitClassifier: scikit-learn's own checks, images of every sort, and the answers of `vitkit
probe`."""

import io
import json
import pickle
from pathlib import Path

import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from margins import at_least
from pictures import encoded, photograph
from PIL import Image
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import vitkit
from vitkit import VitClassifier
from vitkit.cli.entry import main
from vitkit.data import Preprocessing, open_source
from vitkit.evaluation import compute_features
from vitkit.models import create, vit
from vitkit.weights import Classifier, called_in, load, save

WEIGHTS = "weights/vit_tiny_patch16_224.augreg_in21k_ft_in1k.safetensors"


@parametrize_with_checks([VitClassifier(), VitClassifier(method="prototype")])
def test_scikit_learns_own_checks(estimator, check):
    """On features every one of them, with no failure expected."""
    if check.func.__name__ == "check_array_api_input":
        pytest.skip("scipy would have to be started for arrays of other libraries")
    check(estimator)


@pytest.fixture
def model(tmp_path) -> str:
    """A small model in a folder: the path."""
    network = create(vit("mu/16", image=(32, 32), classes=3), seed=0).eval()
    classifier = Classifier(network, Preprocessing(size=(32, 32)), ("a", "b", "c"))
    return str(save(classifier, tmp_path / "model"))


@pytest.fixture
def paths(photographs) -> tuple[list[str], list[str]]:
    """Photographs, reddish and bluish, and the names of their classes."""
    files = sorted(map(str, photographs.rglob("*.jpg")))
    return files, [Path(file).parent.name for file in files]


def test_images_of_every_sort_have_the_same_answers(model, paths):
    files, y = paths
    pixels = [np.array(Image.open(file)) for file in files]
    same_size = np.stack([image[:, :30] for image in pixels])
    fitted = VitClassifier(model, precision="float32").fit(files, y)
    assert fitted.score(files, y) == 1
    expected = fitted.predict_proba(files)
    assert fitted.classes_.tolist() == ["blue", "red"]
    np.testing.assert_allclose(expected.sum(1), 1)

    kinds = {
        "paths": [Path(file) for file in files],
        "bytes": [Path(file).read_bytes() for file in files],
        "Pillow images": [Image.open(file) for file in files],
        "arrays": pixels,
        "floats": [image / 255 for image in pixels],
        "tensors": [torch.from_numpy(image).permute(2, 0, 1) for image in pixels],
        "mixed": [files[0], pixels[1], Image.open(files[2]), *files[3:]],
        "array of strings": np.array(files),
        "objects": np.array([*pixels, None], dtype=object)[:-1],
        "one column": np.array(files)[:, None],
        "Series": pd.Series(files, index=range(100, 100 + len(files))),
        "DataFrame": pd.DataFrame({"path": files}),
    }
    for kind, x in kinds.items():
        np.testing.assert_allclose(fitted.predict_proba(x), expected, atol=1e-5, err_msg=kind)
    cut = fitted.predict_proba(list(same_size))
    np.testing.assert_allclose(fitted.predict_proba(same_size), cut)
    channels_first = torch.from_numpy(same_size).permute(0, 3, 1, 2)
    np.testing.assert_allclose(fitted.predict_proba(channels_first), cut)


def test_the_fitted_classifier_is_an_ordinary_one(model, paths, tmp_path):
    files, y = paths
    fitted = VitClassifier(model, precision="float32").fit(files, np.array(y))
    saved = load(save(fitted.classifier_, tmp_path / "fitted"), quiet=True)
    logits = saved.logits(saved.batch(files))
    torch.testing.assert_close(
        logits.softmax(1).double(), torch.from_numpy(fitted.predict_proba(files)), atol=1e-3, rtol=0
    )
    answers = vitkit.predict(saved, files[:2], device="cpu")
    assert [answer.labels[0] for answer in answers] == fitted.predict(files[:2]).tolist()
    assert saved.unknown is not None  # as `vitkit probe` saves it
    assert VitClassifier(model, method="prototype").fit(files, y).classifier_.unknown is None


def test_a_fitted_classifier_of_a_classifier_is_loaded_without_a_note(
    model, paths, tmp_path, capfd
):
    files, y = paths
    begun = load(model, quiet=True)
    fitted = VitClassifier(begun, method="prototype", precision="float32").fit(files, y)
    saved = load(save(fitted.classifier_, tmp_path / "fitted"))
    assert saved.origin["init"] == called_in(begun.origin)
    assert "not what was written" not in "".join(capfd.readouterr())


def test_it_works_within_scikit_learn(model, paths):
    files, y = paths
    estimator = VitClassifier(model)
    assert cross_val_score(estimator, files, y, cv=2).tolist() == [1, 1]
    search = GridSearchCV(estimator, {"method": ["linear", "prototype"], "image": [None, 48]}, cv=2)
    search.fit(np.array(files), y)
    assert search.best_score_ == 1 and len(search.cv_results_["params"]) == 4
    opened = make_pipeline(
        FunctionTransformer(lambda x: [Image.open(file) for file in x]), estimator
    )
    assert opened.fit(files, y).score(files, y) == 1
    of_features = make_pipeline(StandardScaler(), VitClassifier())
    x = compute_features(load(model, quiet=True), open_source(str(Path(files[0]).parents[1]))).x
    assert cross_val_score(of_features, x, y, cv=2).tolist() == [1, 1]


SLOW = pytest.param("loky", marks=pytest.mark.slow)  # its processes import everything anew


@pytest.mark.parametrize("backend", [SLOW, "threading", "multiprocessing"])
@pytest.mark.slow
def test_several_jobs(backend, model, paths):
    files, y = paths
    with joblib.parallel_backend(backend, n_jobs=2):
        assert cross_val_score(VitClassifier(model), files * 4, y * 4, cv=2).tolist() == [1, 1]


@pytest.mark.parametrize("given", ["a path", "a Classifier"])
def test_clones_and_pickles_answer_the_same(given, model, paths):
    files, y = paths
    if given == "a Classifier":
        model = load(model, quiet=True)
    estimator = VitClassifier(model, method="prototype")
    assert clone(estimator).get_params()["method"] == "prototype"
    estimator.fit(files, y)
    again = pickle.loads(pickle.dumps(estimator))
    np.testing.assert_array_equal(again.predict_proba(files), estimator.predict_proba(files))
    with pytest.raises(NotFittedError):
        clone(estimator).predict(files)
    if given == "a Classifier":
        assert model.labels == ("a", "b", "c")  # it stays as it was
        assert not model.model.head.weight.any()


@pytest.mark.parametrize("labels", [[3, 7], [False, True], ["an ant", "a bee"], [0.0, 2.0]])
def test_classes_keep_their_type(labels, model, paths):
    files, y = paths
    y = [labels[name == "red"] for name in y]
    fitted = VitClassifier(model).fit(files, y)
    assert fitted.predict(files[:1])[0] == y[0]
    assert fitted.classifier_.labels == tuple(map(str, sorted(labels)))
    y = ["new"] * 5 + y[5:]
    assert len(fitted.fit(files, y).classes_) == len(set(map(str, y)))  # a new fit forgets


def test_what_is_wrong_is_said(model, paths, tmp_path):
    files, y = paths
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(encoded(photograph(40, 40))[:300])
    pixels = np.zeros((len(files), 8, 8, 3), np.uint8)
    with_model = VitClassifier(model)
    for x, message in {
        "photos": "the images are one str; give a list",
        b"bytes": "the images are one bytes; give a list",
        5: "the images are a int; give a list of paths",
        frozenset(files): "the images are a frozenset; give a list",
    }.items():
        with pytest.raises(ValueError, match=message):
            with_model.fit(x, y)
    for x, message in [
        ([], "there are no images"),
        ([*files[1:], "nothing.jpg"], "of 40 images 1 are no file, the first is 'nothing.jpg'"),
        ([*files[1:], str(broken)], r"broken\.jpg cannot be decoded"),
        ([*files[1:], None], r"image 39 is a NoneType; an image is one of paths"),
        (pixels - 1.0, r"image 0 has values from -1 to -1; floats go from 0 to 1"),
        ([*files[1:], pixels], r"image 39 is 40 images in one array"),
        (pixels[None], r"are an array of uint8 \(1, 40, 8, 8, 3\); give a list"),
        (np.zeros((40, 64), np.uint8), r"X is uint8 \(40, 64\), and a model .* leave out model"),
        (files[1:], "inconsistent numbers of samples"),
    ]:
        with pytest.raises(ValueError, match=message):
            with_model.fit(x, y)
    with pytest.raises(ValueError, match="all of y is one class, 'ant'; a classifier needs two"):
        with_model.fit(files, ["ant"] * len(files))
    with pytest.raises(ValueError, match="method is 'svm'; it is one of linear"):
        VitClassifier(model, method="svm").fit(files, y)
    with pytest.raises(ValueError, match="precision is 'fp16'; it is one of auto"):
        VitClassifier(model, precision="fp16").fit(files, y)
    with pytest.raises(ValueError, match="y holds None; give a class for each image"):
        with_model.fit(files, [None, *y[1:]])
    with pytest.raises(ValueError, match="to be loaded is a VisionTransformer; give a path"):
        VitClassifier(load(model, quiet=True).model).fit(files, y)
    objects = np.array([Path(file) for file in files], dtype=object)
    for images in (files, pixels, list(pixels), np.array(files), objects, pd.Series(files)):
        with pytest.raises(ValueError, match="X is images, and there is no model"):
            VitClassifier().fit(images, y)


def photographs_of(source, rows) -> tuple[list[bytes], list[str]]:
    """The files of photographs, and the names of their classes."""
    images = [source[int(row)][0] for row in rows]
    return images, [source.labels[source.targets[row]] for row in rows]


@pytest.mark.slow
def test_real_photographs_have_the_accuracy_of_vitkit_probe(shared, tmp_path, capsys):
    parts = {}
    for part, count in (("train", 12), ("test", 8)):
        source = open_source(str(shared(f"data/ants_bees-{part}.parquet")))
        parts[part] = photographs_of(source, np.linspace(0, len(source) - 1, count).astype(int))
        for number, (image, label) in enumerate(zip(*parts[part], strict=True)):
            (tmp_path / part / label).mkdir(parents=True, exist_ok=True)
            (tmp_path / part / label / f"{number}.jpg").write_bytes(image)
    opened = [Image.open(io.BytesIO(image)) for image in parts["test"][0]]
    command = ["probe", str(shared(WEIGHTS)), str(tmp_path), "--json"]
    assert main(command) == 0
    metrics = json.loads(capsys.readouterr().out)
    fitted = VitClassifier(shared(WEIGHTS)).fit(*parts["train"])
    assert fitted.left_out_score_ == pytest.approx(metrics["left_out/top1"]["value"])
    accuracy = fitted.score(opened, parts["test"][1])
    assert accuracy == pytest.approx(metrics["test/top1"]["value"])
    at_least(accuracy, 0.75)


@pytest.mark.slow
def test_accuracy_on_ants_and_bees(shared):
    """Of every third photograph."""
    parts = {}
    for part in ("train", "test"):
        source = open_source(str(shared(f"data/ants_bees-{part}.parquet")))
        parts[part] = photographs_of(source, range(0, len(source), 3))
    fitted = VitClassifier(shared(WEIGHTS), precision="auto").fit(*parts["train"])
    at_least(fitted.score(*parts["test"]), 0.9)
