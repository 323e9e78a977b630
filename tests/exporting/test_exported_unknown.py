"""Exported files say which images are unknown, as their model does."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from pictures import photograph
from PIL import Image
from served import Running

from vitkit.apps.serve.http.body import Limits as RequestLimits
from vitkit.apps.serve.http.server import StartSettings
from vitkit.apps.serve.http.service import Settings
from vitkit.cli.entry import main
from vitkit.data import Preprocessing
from vitkit.evaluation import fit_unknown, last_token
from vitkit.exporting import Agreement, trial_on, write_export
from vitkit.exporting.bounds import LEAST, wrong
from vitkit.models import create, vit
from vitkit.prediction import predict_items
from vitkit.runtimes import Export, Exported, open_runtime
from vitkit.runtimes.exported import FILES, ExportedLimits
from vitkit.weights import Classifier, save

LABELS = ("ant", "unknown", "wasp")
onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """A folder of photographs."""
    folder = tmp_path_factory.mktemp("images")
    for i in range(20):
        Image.fromarray(photograph(40, 50, 100 + i)).save(folder / f"{i:02}.png")
    return folder


@pytest.fixture(scope="module")
def classifier(images):
    """A model with limits that some of the images are beyond, and some not."""
    network = create(vit("mu/8", image=(16, 24), classes=3), seed=0).eval()
    torch.nn.init.normal_(network.head.weight, generator=torch.Generator().manual_seed(0))
    bare = Classifier(network, Preprocessing(size=(16, 24)), LABELS)
    with torch.inference_mode():
        learned = bare.features(bare.batch([photograph(40, 50, i) for i in range(90)]))
        unknown = fit_unknown(learned, torch.arange(90) % 3, network.head(learned))
        new = bare.features(bare.batch([np.array(Image.open(f)) for f in sorted(images.iterdir())]))
        excess = unknown.excess(new, network.head(new)).sort().values

    # The limits move into the widest gap between the new images
    gaps = excess[6:16] - excess[5:15]
    middle = 5 + int(gaps.argmax())
    moved = unknown.limit + (excess[middle] + excess[middle + 1]) / 2
    return replace(bare, unknown=replace(unknown, limit=moved))


@pytest.fixture(scope="module")
def expected(classifier, images):
    """What the model says."""
    answers = list(predict_items(classifier, images, device="cpu", workers=0))
    unknown = [answer.unknown for answer in answers]
    assert 5 <= sum(unknown) <= 15
    return answers


@pytest.fixture(scope="module")
def file(classifier, tmp_path_factory):
    path = tmp_path_factory.mktemp("exported") / "insects.onnx"
    write_export(classifier, path, Export())
    return path


@pytest.mark.parametrize(
    "ending, precision, pictures",
    [
        (".onnx", "float32", False),
        pytest.param(".onnx", "float16", False, marks=pytest.mark.slow),
        pytest.param(".onnx", "float32", True, marks=pytest.mark.slow),
        (".xml", "float32", False),
        pytest.param(".pt2", "float32", False, marks=pytest.mark.slow),
    ],
)
@pytest.mark.slow
def test_a_file_says_unknown_of_the_same_images(
    classifier, images, expected, tmp_path, ending, precision, pictures
):
    if ending == ".xml":
        pytest.importorskip("openvino")
    path = tmp_path / f"insects{ending}"
    agreement = write_export(classifier, path, Export(FILES[ending], precision, pictures))
    assert agreement.same_unknown == 1
    assert agreement.unknown == agreement.models_unknown
    if ending == ".pt2":
        return  # vitkit opens none that it has not just written
    given = list(predict_items(open_runtime(path), images, workers=0))
    assert [answer.unknown for answer in given] == [answer.unknown for answer in expected]
    assert [answer.possible for answer in given] == [answer.possible for answer in expected]


@pytest.mark.slow
@pytest.mark.parametrize("ending", [".onnx", ".xml", ".pt2"])
def test_a_head_on_several_blocks_is_compared_by_the_last_in_files_too(images, tmp_path, ending):
    if ending == ".xml":
        pytest.importorskip("openvino")
    config = vit("mu/8", image=(16, 24), depth=3, classes=3, pool="token-gap", read_blocks=3)
    network = create(config, seed=0).eval()
    torch.nn.init.normal_(network.head.weight, generator=torch.Generator().manual_seed(0))
    bare = Classifier(network, Preprocessing(size=(16, 24)), LABELS)
    told_by = last_token(bare)
    assert told_by[0] > 0
    with torch.inference_mode():
        learned = bare.features(bare.batch([photograph(40, 50, i) for i in range(90)]))
        unknown = fit_unknown(learned, torch.arange(90) % 3, network.head(learned), told_by=told_by)
        new = bare.features(bare.batch([np.array(Image.open(f)) for f in sorted(images.iterdir())]))
        excess = unknown.excess(new, network.head(new)).sort().values
    unknown = replace(unknown, limit=unknown.limit + (excess[9] + excess[10]) / 2)  # half of them
    own = replace(bare, unknown=unknown)
    data = tmp_path / "data"
    for i, file in enumerate(sorted(images.iterdir())):
        copied = data / LABELS[i % 3] / file.name
        copied.parent.mkdir(parents=True, exist_ok=True)
        copied.write_bytes(file.read_bytes())
    trial = trial_on(str(data), LABELS)
    agreement = write_export(own, tmp_path / f"insects{ending}", Export(FILES[ending]), trial)
    assert agreement.same_unknown == 1 and 0 < agreement.unknown < 1


@pytest.mark.slow
def test_every_command_says_it_of_a_file(file, images, expected, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    count = sum(answer.unknown for answer in expected)

    # Lines of JSON, a table, rows, a contact sheet
    assert main(["predict", str(file), str(images), "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["unknown"] for line in lines] == [answer.unknown for answer in expected]
    words = ["predict", str(file), str(images), "--to", "rows.csv", "--sheet", "sheet.png"]
    assert main(words) == 0
    assert Path("rows.csv").read_text().count(",yes,") == count

    # Folders: that of unknown images is not that of the class of this name
    assert main(["sort", str(file), str(images), "--into", "sorted", "--sure", "0"]) == 0
    folders = {path.name: len(list(path.iterdir())) for path in Path("sorted").iterdir()}
    assert folders["unknown"] == count and set(folders) <= {"unknown", "unknown-2", "ant", "wasp"}
    assert sum(folders.values()) == 20

    # The server
    plan = StartSettings("file", lambda: open_runtime(file), Settings(RequestLimits()))
    server = Running(plan)
    for answer in expected[:4]:
        (given,) = server.post(Path(answer.name).read_bytes(), "image/png").predictions
        assert (given["unknown"], tuple(given["possible"])) == (answer.unknown, answer.possible)
    server.end()


def test_captions_below_pictures_say_unknown(classifier, images, expected, tmp_path, monkeypatch):
    captions = []
    sheet = "vitkit.inspection.contact_sheet"
    monkeypatch.setattr(sheet, lambda tiles, path: captions.extend(tile.caption for tile in tiles))
    looks = "vitkit.prediction.attention.captioned"
    monkeypatch.setattr(looks, lambda pixels, caption: captions.append(caption) or pixels)
    model = str(save(classifier, tmp_path / "model"))
    words = ["predict", model, str(images), "--precision", "float32", "--device", "cpu"]
    monkeypatch.chdir(tmp_path)
    assert main([*words, "--sheet", "sheet.png"]) == 0
    assert main([*words, "--attention", "looks"]) == 0
    assert len(captions) == 40
    for caption, answer in zip(captions, expected + expected, strict=True):
        assert caption.startswith(f"unknown ({answer.label}?)") == answer.unknown


@pytest.mark.slow
def test_a_file_of_before_limits_has_none(classifier, file, images, expected, tmp_path):
    # As an earlier version wrote it, and this one writes a model without limits
    old = tmp_path / "old.onnx"
    write_export(replace(classifier, unknown=None), old, Export())
    assert "unknown" not in json.loads(open_runtime(old).exported.to_json())
    answers = list(predict_items(open_runtime(old), images, workers=0))
    assert [answer.label for answer in answers] == [answer.label for answer in expected]
    assert {answer.unknown for answer in answers} == {None}

    # A file whose metadata have thresholds, without the output for them
    model = onnx.load(old)
    described = replace(open_runtime(old).exported, limits=ExportedLimits((0.1,), 0.05, 0.95))
    model.metadata_props[0].value = described.to_json()
    onnx.save(model, old)
    with pytest.raises(ValueError, match="lacks the output for unknown images"):
        list(predict_items(open_runtime(old), images, workers=0))

    # Other programs read what the second output is
    values = json.loads(open_runtime(file).exported.to_json())["unknown"]
    assert values["output"] == "strangeness" and values["above"] == 0
    assert Exported.from_json(open_runtime(file).exported.to_json()).limits.rejected == 0.05
    for wrong_limits in (3, {"least": [2], "rejected": 0.05, "coverage": 0.95}, {"least": [0.1]}):
        values = json.loads(open_runtime(file).exported.to_json()) | {"unknown": wrong_limits}
        with pytest.raises(ValueError, match="its metadata describes no model"):
            Exported.from_json(json.dumps(values))


def test_a_file_that_says_unknown_of_others_is_refused():
    agreement = Agreement("a", 100, 100, 1.0, 0.0, 0.0, 1.0, unknown=0.2, models_unknown=0.05)
    assert wrong(replace(agreement, same_unknown=0.92), "int8", "softmax", LEAST["int8"]) == ""
    fault = wrong(replace(agreement, same_unknown=0.85), "int8", "softmax", LEAST["int8"])
    assert fault.startswith("it agrees with the model on whether an image is unknown for 85.0% of")
    assert wrong(replace(agreement, same_unknown=0.85), "int8", "softmax", 0) == ""
