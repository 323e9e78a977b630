"""Exported files: what they say of themselves, what is refused, and what a bad one costs."""

import json
import logging
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from margins import at_most
from pictures import photograph
from PIL import Image

from vitkit.cli.entry import main
from vitkit.data import Preprocessing, open_image
from vitkit.evaluation.probes.features import arithmetic
from vitkit.exporting import write_export
from vitkit.models import create, vit
from vitkit.prediction import predict_items
from vitkit.runtimes import Export, Exported, features_on, open_file, open_runtime, precision_of
from vitkit.runtimes.exported import inverted
from vitkit.runtimes.graphs.graph import PictureResize
from vitkit.runtimes.graphs.int8 import (
    GROUP,
    Spread,
    is_of_one_token,
    of_one_token_in_onnx,
    of_one_token_in_openvino,
    spread_in_onnx,
    spread_in_openvino,
)
from vitkit.runtimes.libraries import NO_DIGEST, core, with_digest
from vitkit.weights import Classifier, activate_array, save

LABELS = ("ant", "bee", "wasp")
onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")


@pytest.fixture(scope="module")
def classifier():
    model = create(vit("mu/8", image=(16, 24), classes=3), seed=0)
    torch.nn.init.normal_(model.head.weight, generator=torch.Generator().manual_seed(0))
    preprocessing = Preprocessing(size=(16, 24), rule="shorter", resize=28, interpolation="bicubic")
    return Classifier(model, preprocessing, LABELS, origin={"data": "insects"})


@pytest.fixture(scope="module")
def in_float32(classifier, tmp_path_factory):
    """A file for ONNX Runtime, and how far it agrees."""
    path = tmp_path_factory.mktemp("exported") / "insects.onnx"
    return path, write_export(classifier, path, Export())


@pytest.fixture(scope="module")
def file(in_float32):
    path, _ = in_float32
    return path


@pytest.fixture(scope="module")
def deep(classifier):
    """The last block is int8 in part alone: with so many blocks, most of the weights are."""
    model = create(vit("mu/8", image=(16, 24), classes=3, depth=5), seed=0)
    torch.nn.init.normal_(model.head.weight, generator=torch.Generator().manual_seed(0))
    return replace(classifier, model=model)


@pytest.fixture(scope="module")
def for_openvino(deep, tmp_path_factory):
    """A file for OpenVINO, in int8, and how far it agrees."""
    pytest.importorskip("openvino")
    path = tmp_path_factory.mktemp("exported") / "insects.xml"
    return path, write_export(deep, path, Export(to="openvino", precision="int8"))


@pytest.fixture(scope="module")
def in_int8(classifier, tmp_path_factory):
    """A file for ONNX Runtime, in int8, and how far it agrees."""
    path = tmp_path_factory.mktemp("exported") / "small.onnx"
    level = logging.getLogger().level
    agreement = write_export(classifier, path, Export(precision="int8", least=0.5))
    assert logging.getLogger().level == level
    return path, agreement


def photos(tmp_path, count=3):
    files = []
    for i in range(count):
        files.append(tmp_path / f"{i}.png")
        Image.fromarray(photograph(40, 50 + i, i)).save(files[-1])
    return files


def test_a_file_is_all_that_predict_needs(classifier, file, tmp_path):
    files = photos(tmp_path)
    runtime = open_runtime(file)
    assert runtime.labels == LABELS and runtime.preprocessing == classifier.preprocessing
    assert runtime.exported.origin == {"data": "insects"}
    for answer, expected in zip(
        predict_items(runtime, files), predict_items(classifier, files, device="cpu"), strict=True
    ):
        assert answer.labels == expected.labels
        np.testing.assert_allclose(answer.probabilities, expected.probabilities, atol=1e-6)


def test_the_command_line_takes_it_for_a_model(classifier, file, tmp_path, capsys):
    (image, *_) = photos(tmp_path)
    model = save(classifier, tmp_path / "model")
    answers = []
    for name in (file, model):
        assert main(["predict", str(name), str(image), "--json", "--device", "cpu"]) == 0
        answers.append(json.loads(capsys.readouterr().out))
    assert answers[0]["labels"] == answers[1]["labels"]


def test_what_was_measured_is_beside_it(file):
    written = json.loads((file.parent / "insects.onnx.json").read_text())
    assert written["agreement"]["same"] == 1 and written["agreement"]["images"] == 64
    assert written["agreement"]["photographs"] == 2
    assert "no evidence of its accuracy" in written["agreement"]["conclusion"]
    assert written["bytes"] == file.stat().st_size and written["precision"] == "float32"


def test_a_file_that_answers_otherwise_is_not_written(classifier, file, tmp_path, monkeypatch):
    """Here it is that of another model."""
    other = create(classifier.model.config, seed=1)
    torch.nn.init.normal_(other.head.weight)

    def of_another_model(classifier, exported, wanted, path, trial):
        shutil.copy(file, path)

    monkeypatch.setattr("vitkit.exporting.exporting.write", of_another_model)
    with pytest.raises(ValueError, match=r"was not written: .* of its answers are the model's"):
        write_export(replace(classifier, model=other.eval()), tmp_path / "insects.onnx", Export())
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_file_that_disagrees_is_not_written(classifier, file, tmp_path):
    """In float16 a weight of 1e5 is infinite."""
    wild = create(classifier.model.config, seed=1)
    torch.nn.init.normal_(wild.head.weight)
    with torch.no_grad():
        wild.blocks[0].mlp.expand.weight.mul_(1e7)
    path = tmp_path / "insects.onnx"
    path.write_bytes(file.read_bytes())
    with pytest.raises(ValueError, match=r"was not written: .* of its answers are the model's"):
        write_export(replace(classifier, model=wild.eval()), path, Export(precision="float16"))
    assert path.read_bytes() == file.read_bytes()
    assert [each.name for each in tmp_path.iterdir()] == ["insects.onnx"]


def test_onnx_runtime_has_no_bfloat16(file, classifier, capsys):
    with pytest.raises(ValueError, match="ONNX Runtime computes in float32"):
        open_runtime(file, precision="bfloat16")
    with pytest.raises(ValueError, match="ONNX Runtime computes in float32"):
        open_runtime(classifier, "onnx", "bfloat16")
    assert precision_of("onnx", "auto", torch.device("cpu")) == "float32"
    assert "computing in" not in capsys.readouterr().err


def test_somebody_elses_file_is_not_replaced(classifier, tmp_path):
    path = tmp_path / "own.onnx"
    path.write_bytes(b"somebody's")
    with pytest.raises(ValueError, match="is not as vitkit wrote it"):
        write_export(classifier, path, Export())


@pytest.mark.parametrize(
    ("wanted", "path", "sentence"),
    [
        (Export(), "model.xml", "does not end in .onnx"),
        (Export(to="torch", precision="int8"), "model.pt2", "is written in float32"),
        (Export(least=2.0), "model.onnx", "is a share from 0 to 1"),
    ],
)
def test_what_cannot_be_is_a_sentence(classifier, tmp_path, wanted, path, sentence):
    with pytest.raises(ValueError, match=sentence):
        write_export(classifier, tmp_path / path, wanted)


def test_a_model_without_classes_has_nothing_to_export(classifier, tmp_path):
    with pytest.raises(ValueError, match="no classification head"):
        write_export(replace(classifier, labels=()), tmp_path / "model.onnx", Export())


# Untrusted files


def changed(file, path, metadata):
    """The file with other metadata."""
    model = onnx.load(file)
    del model.metadata_props[:]
    if metadata is not None:
        entry = model.metadata_props.add()
        entry.key = "vitkit"
        entry.value = metadata
    onnx.save(model, path)
    return path


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("labels", "ant", "metadata has the labels"),
        ("labels", [1, 2, 3], "metadata has the labels"),
        ("activation", "run", "metadata has the activation"),
        ("precision", 8, "metadata has the precision"),
        ("weight_bits", 9, "metadata has the weight_bits"),
        ("preprocessing", {"size": [0, 1], "mean": [0] * 3, "std": [1] * 3}, "size is"),
        ("origin", "here", "metadata has the origin"),
        (
            "preprocessing",
            {"size": [16, 24], "mean": [10**400] * 3, "std": [1] * 3},
            "mean is .*; it is a list, each a finite number",
        ),
    ],
)
def test_metadata_is_checked(file, tmp_path, name, value, sentence):
    values = json.loads(open_file(file).exported.to_json())
    wrong = changed(file, tmp_path / "wrong.onnx", json.dumps(values | {name: value}))
    with pytest.raises(ValueError, match=sentence):
        open_file(wrong)


def test_a_file_that_names_too_few_classes_is_found(file, tmp_path):
    values = json.loads(open_file(file).exported.to_json())
    values["labels"] = ["ant", "bee"]
    wrong = changed(file, tmp_path / "wrong.onnx", json.dumps(values))
    runtime = open_file(wrong)
    with pytest.raises(ValueError, match="names 2 classes"):
        runtime.logits(np.zeros((1, 3, 16, 24), np.uint8))


def test_a_file_that_opens_and_cannot_be_computed_is_a_sentence(file, tmp_path):
    """By whatever its library raises: of another size than its network takes, and of a network that
    adds what cannot be added."""
    values = json.loads(open_file(file).exported.to_json())
    values["preprocessing"]["size"] = [16, 16]
    wrong = changed(file, tmp_path / "wrong.onnx", json.dumps(values))
    with pytest.raises(
        ValueError, match=r"^\S*wrong\.onnx cannot be computed by ONNX Runtime: [^\n]+$"
    ):
        open_file(wrong).logits(np.zeros((1, 3, 16, 16), np.uint8))
    model = onnx.load(file)
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    bias = weights["model.blocks.0.mlp.contract.bias"]
    bias.CopyFrom(onnx.numpy_helper.from_array(np.zeros(7, np.float32), bias.name))
    onnx.save(model, wrong)
    with pytest.raises(
        ValueError, match=r"wrong\.onnx cannot be (opened|computed) by ONNX Runtime: "
    ):
        open_file(wrong).logits(np.zeros((1, 3, 16, 24), np.uint8))


def test_files_that_are_not_ours_are_sentences(file, tmp_path):
    with pytest.raises(ValueError, match="vitkit did not write it"):
        open_file(changed(file, tmp_path / "bare.onnx", None))
    with pytest.raises(ValueError, match="there is no file"):
        open_file(tmp_path / "gone.onnx")
    damaged = tmp_path / "damaged.onnx"
    damaged.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(ValueError, match="cannot be opened by ONNX Runtime"):
        open_file(damaged)
    program = tmp_path / "program.pt2"
    program.write_bytes(b"anything")
    with pytest.raises(ValueError, match="could run any code while it is read"):
        open_file(program)
    with pytest.raises(ValueError, match="cannot be computed by the runtime 'compiled'"):
        open_file(file, "compiled")


def test_what_is_said_of_a_file_survives_json(file):
    exported = open_file(file).exported
    assert Exported.from_json(exported.to_json()) == exported


# The preprocessing inside


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("antialias", [True, False])
@pytest.mark.parametrize("rule", ["square", "shorter"])
def test_the_preprocessing_inside_is_the_usual_one(interpolation, antialias, rule):
    """To a level: Pillow and PyTorch compute with whole numbers. (By a ratio such as 2 / 3 many values
    lie just between two levels, and more differ.)"""
    for size, side in (((32, 48), 0), ((32, 32), 40)):
        preprocessing = Preprocessing(size, rule, side, interpolation, antialias)
        inside = PictureResize(preprocessing)
        for height, width in ((97, 131), (300, 201), (33, 57), (20, 20), (32, 47)):
            pixels = photograph(height, width, height)
            expected = preprocessing(open_image(pixels, "it")).float()
            given = inside(torch.from_numpy(pixels)[None])[0]
            assert given.shape == expected.shape
            difference = (given - expected).abs()
            assert difference.max() <= 1 and (difference > 0).float().mean() < 0.1


@pytest.fixture(scope="module")
def pictures(classifier, tmp_path_factory):
    path = tmp_path_factory.mktemp("pictures") / "pictures.onnx"
    write_export(classifier, path, Export(preprocessing=True))
    return path


@pytest.mark.slow
def test_pictures_of_any_size_go_in(classifier, pictures):
    runtime = open_file(pictures)
    for height, width in ((64, 80), (41, 200)):
        pixels = photograph(height, width, width)
        (answer,) = predict_items(classifier, [pixels], device="cpu")
        (probabilities,) = runtime.logits(pixels[None])
        assert probabilities.sum() == pytest.approx(1, abs=1e-5)
        assert LABELS[probabilities.argmax()] == answer.labels[0]
        assert probabilities.max() == pytest.approx(answer.probabilities[0], abs=0.01)


@pytest.mark.parametrize("activation", ["softmax", "sigmoid", "none"])
def test_logits_of_a_files_probabilities_make_them_again(activation):
    generator = np.random.default_rng(0)
    given = activate_array(generator.normal(0, 6, (5, 7)).astype(np.float32), activation)
    again = activate_array(inverted(given, activation), activation)
    np.testing.assert_allclose(again, given, rtol=1e-4, atol=1e-7)


@pytest.mark.slow
def test_commands_take_a_file_that_prepares_images(classifier, pictures, tmp_path, capsys):
    """Whole pictures of different sizes go in, one at a time: the file's own resize is measured."""
    model = save(classifier, tmp_path / "model")
    for i, name in enumerate(LABELS * 3):
        (tmp_path / "photos" / name).mkdir(parents=True, exist_ok=True)
        image = Image.fromarray(photograph(40 + i, 90 - 3 * i, i))
        image.save(tmp_path / "photos" / name / f"{i}.png")
    photos = str(tmp_path / "photos")

    answers = []
    for name in (pictures, model):
        sheet = ["--sheet", str(tmp_path / f"{len(answers)}.png")]
        assert main(["predict", str(name), photos, "--json", "--device", "cpu", *sheet]) == 0
        answers.append([json.loads(line) for line in capsys.readouterr().out.splitlines()[:9]])
    for given, expected in zip(*answers, strict=True):
        assert given["labels"] == expected["labels"]
        assert given["probabilities"] == pytest.approx(expected["probabilities"], abs=0.01)

    measured = []
    for name in (pictures, model):
        assert main(["evaluate", str(name), photos, "--json", "--device", "cpu"]) == 0
        measured.append(json.loads(capsys.readouterr().out))
    assert measured[0]["top1"] == measured[1]["top1"]
    assert measured[0]["loss"]["value"] == pytest.approx(measured[1]["loss"]["value"], abs=0.01)
    assert main(["evaluate", str(pictures), photos, "--corruptions", "fog"]) == 1
    assert "prepares images itself" in " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
def test_int8_is_calibrated(in_int8, in_float32):
    path, agreement = in_int8
    _, exact = in_float32
    assert 10 * exact.largest < agreement.largest  # it is rounded, and not by much
    at_most(agreement.largest, 0.2)
    nodes = onnx.load(path).graph.node
    rounded = {node.output[0] for node in nodes if node.op_type == "DequantizeLinear"}
    readers = {node.op_type for node in nodes if rounded & set(node.input)}
    assert readers == {"MatMul"}  # what comes out of a dense layer is not rounded again
    assert open_file(path).exported.precision == "int8"


@pytest.mark.slow
def test_no_processor_saturates_int8_products(in_int8):
    """Without VNNI, ONNX Runtime adds two products of uint8 and int8 in 16 bits."""
    path, _ = in_int8
    assert open_file(path).exported.weight_bits == 7
    weights = []
    for tensor in onnx.load(path).graph.initializer:
        values = onnx.numpy_helper.to_array(tensor)
        if values.dtype == np.int8 and values.ndim == 2:  # not the zeros of their scales
            weights.append(values.astype(int))
    largest = max(np.abs(each).max() for each in weights)
    assert weights and 2 * 255 * largest < 2**15


@pytest.mark.slow
def test_int8_that_would_be_wrong_on_this_processor_is_refused(
    classifier, file, tmp_path, monkeypatch
):
    """Files of before had weights of eight bits, and were measured on another processor."""
    values = json.loads(open_file(file).exported.to_json()) | {"precision": "int8"}
    del values["weight_bits"]
    earlier = changed(file, tmp_path / "earlier.onnx", json.dumps(values))
    values |= {"weight_bits": 7}
    now = changed(file, tmp_path / "now.onnx", json.dumps(values))

    monkeypatch.setattr("vitkit.runtimes.libraries.has_vnni", lambda: True)
    open_file(earlier)
    monkeypatch.setattr("vitkit.runtimes.libraries.has_vnni", lambda: False)
    open_file(now)
    with pytest.raises(ValueError, match="computes wrongly on this processor"):
        open_file(earlier)


@pytest.mark.slow
def test_openvinos_int8_needs_no_images(deep, for_openvino, tmp_path):
    """Weights are int8 in the file, and inputs become int8 when they are computed with; but not the
    projection of patches, and what is computed of one token alone."""
    openvino = pytest.importorskip("openvino")
    pytest.importorskip("nncf")
    path, agreement = for_openvino
    at_most(agreement.largest, 0.3)
    at_most(agreement.cost, 0.001)
    kinds = [stored_as(node) for node in openvino.Core().read_model(path).get_ordered_ops()]
    products = [kind for kind in kinds if kind is not None]
    assert products == ["f32", *["u8"] * 27, *["f32"] * 4]  # patches, five blocks, and the head
    compiled = openvino.Core().compile_model(path, "CPU")
    assert int(compiled.get_property("DYNAMIC_QUANTIZATION_GROUP_SIZE")) == GROUP
    exact = 4 * sum(parameter.numel() for parameter in deep.model.parameters())
    assert path.with_suffix(".bin").stat().st_size < exact / 2
    with pytest.raises(ValueError, match="images calibrate int8"):
        write_export(deep, path, Export(to="openvino", calibrated=True))


def stored_as(node):
    """In which numbers the weights of an operation are stored; None if it has none."""
    if node.get_type_name() not in ("MatMul", "Convolution"):
        return None
    weight = node.input_value(1).get_node()
    while weight.get_type_name() != "Constant":
        weight = weight.input_value(0).get_node()
    return weight.get_element_type().to_string()


def with_a_giant(classifier):
    """With a second block, and between the two layers of the first one's MLP a number that is always
    1000 and changes nothing: the bias behind it takes it back."""
    model = create(vit("mu/8", image=(16, 24), classes=3, depth=2), seed=0)
    torch.nn.init.normal_(model.head.weight, generator=torch.Generator().manual_seed(0))
    mlp = model.blocks[0].mlp
    with torch.no_grad():
        mlp.contract.weight.mul_(10)
        mlp.expand.weight[5] = 0
        mlp.expand.bias[5] = 1000  # GELU leaves it as it is
        mlp.contract.bias.sub_(1000 * mlp.contract.weight[:, 5])
    return replace(classifier, model=model)


@pytest.mark.slow
def test_a_giant_among_the_numbers_does_not_round_the_others_away(
    classifier, tmp_path, monkeypatch
):
    wanted = Export(precision="int8", least=0.0)
    # A peak among 128 numbers is at most 11 times their root mean square
    monkeypatch.setattr("vitkit.runtimes.graphs.int8.COARSE", 8)
    with_care = write_export(with_a_giant(classifier), tmp_path / "small.onnx", wanted)
    monkeypatch.setattr("vitkit.runtimes.graphs.int8.COARSE", 1e9)
    without = write_export(with_a_giant(classifier), tmp_path / "small.onnx", wanted)
    assert with_care.mean < without.mean / 3


@pytest.mark.slow
def test_both_libraries_find_the_same_giant(classifier, tmp_path):
    pytest.importorskip("openvino")
    giant = with_a_giant(classifier)
    write_export(giant, tmp_path / "small.onnx", Export())
    write_export(giant, tmp_path / "small.xml", Export(to="openvino"))
    images = [np.full((1, 3, 16, 24), level, np.uint8) for level in (20, 200)]
    one = spread_in_onnx(tmp_path / "small.onnx", images)
    other = spread_in_openvino(core().read_model(tmp_path / "small.xml"), images)
    assert len(one.layers) == len(other.layers) == 13
    np.testing.assert_allclose(one.peaks, other.peaks, rtol=1e-4)
    np.testing.assert_allclose(one.squares, other.squares, rtol=1e-4)
    assert one.peaks.argmax() == 5 and one.peaks[5] == 1000
    onnx_model = onnx.load(tmp_path / "small.onnx")
    assert of_one_token_in_onnx(onnx_model) == one.layers[9:]  # the last block's, and the head
    assert of_one_token_in_openvino(core().read_model(tmp_path / "small.xml")) == other.layers[9:]


def test_what_stays_exact_has_giants_or_one_token():
    shapes = ((-1, 50, 200), (-1, 1, 200), (-1, 200), (-1, 3, 1, 64))
    assert [is_of_one_token(shape) for shape in shapes] == [False, True, True, True]
    spread = Spread(["qkv", "contract", "contract 2"])
    flat = np.ones((1, 50, 200))
    giant = flat.copy()
    giant[0, 7, 7] = 200
    spread.add([flat, giant, flat])
    spread.add([flat, flat, flat])
    assert spread.with_giants() == ["contract"]


# As a Classifier, for what takes one


@pytest.mark.slow
def test_features_of_another_runtime_are_the_same(classifier):
    pytest.importorskip("openvino")
    images = classifier.batch([photograph(40, 50, i) for i in range(3)])
    computed = features_on(classifier, "openvino", "float32")
    torch.testing.assert_close(
        computed.features(images), classifier.features(images), atol=1e-5, rtol=1e-5
    )
    assert arithmetic(computed) != arithmetic(classifier)  # in the cache they are others


@pytest.mark.slow
def test_evaluate_takes_a_file_for_a_model(classifier, file, tmp_path, capsys):
    pytest.importorskip("openvino")
    model = save(classifier, tmp_path / "model")
    for name in LABELS:
        (tmp_path / "photos" / name).mkdir(parents=True)
    for i in range(9):
        image = Image.fromarray(photograph(40, 50, i))
        image.save(tmp_path / "photos" / LABELS[i % 3] / f"{i}.png")
    found = []
    for words in ([file], [model], [model, "--runtime", "openvino"]):
        name, *others = map(str, words)
        command = ["evaluate", name, str(tmp_path / "photos"), "--json", "--device", "cpu", *others]
        assert main(command) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0]["top1"] == found[1]["top1"] == found[2]["top1"]
    assert found[0]["loss"]["value"] == pytest.approx(found[1]["loss"]["value"], abs=1e-5)

    refused = ["evaluate", str(file), str(tmp_path / "photos")]
    assert main([*refused, "--evals", "neighbours"]) == 1
    assert "gives logits alone" in " ".join(capsys.readouterr().err.split())
    assert main([*refused, "--calibrate", str(tmp_path / "calibrated")]) == 1
    assert "calibrate the model, and export that" in " ".join(capsys.readouterr().err.split())


FORGOTTEN_ELSEWHERE = """
import faulthandler, os, pathlib, signal, sys, threading
faulthandler.enable()  # it gives signals a stack, as test runners and servers do
signal.signal(signal.SIGTERM, lambda number, frame: print("asked to end"))

from vitkit.runtimes.libraries import open_file

opened = [open_file(pathlib.Path(sys.argv[1]))]
thread = threading.Thread(target=opened.clear)
thread.start()
thread.join()
os.kill(os.getpid(), signal.SIGTERM)
"""


@pytest.mark.slow
def test_weights_that_are_no_file_are_a_sentence(for_openvino, tmp_path):
    """A pipe would be read for ever, and of links in a circle OpenVINO ends the process."""
    for make in (os.mkfifo, lambda path: path.symlink_to(path.name), Path.mkdir, lambda path: None):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        shutil.copy(for_openvino[0], folder / "model.xml")
        make(folder / "model.bin")
        with pytest.raises(ValueError, match=r"model\.bin"):
            open_file(folder / "model.xml")


@pytest.mark.slow
def test_a_damaged_pair_is_refused(for_openvino, tmp_path):
    """OpenVINO may end the process over one."""
    files = [for_openvino[0], for_openvino[0].with_suffix(".bin")]
    path = tmp_path / "insects.xml"
    for damaged in (None, *files):
        for file in files:
            content = bytearray(file.read_bytes())
            if file == damaged:
                content[len(content) // 2] ^= 1
            (tmp_path / file.name).write_bytes(content)
        if damaged is None:
            open_file(path)
            continue
        with pytest.raises(ValueError, match=r"insects\.bin beside it is damaged"):
            open_file(path)

    # It is written in its own place, whatever a class is called
    text = files[0].read_text()
    label = open_file(files[0]).labels[0]
    text = text.replace(f"{label}&quot;", f"{NO_DIGEST}&quot;")
    path.write_text(re.sub(r'(<vitkit_digest value=)"\w+"', rf'\1"{NO_DIGEST}"', text))
    shutil.copy(files[1], tmp_path)
    path.write_bytes(with_digest(path))
    assert open_file(path).labels[0] == NO_DIGEST

    # Files of before said nothing of it
    path.write_text(re.sub(r"<vitkit_digest[^>]*>", "", files[0].read_text()))
    open_file(path)


@pytest.mark.slow
def test_signals_are_received_after_a_model_was_forgotten_by_another_thread(for_openvino):
    """OpenVINO's plugin frees a stack for signals where it is itself forgotten."""
    path, _ = for_openvino
    words = [sys.executable, "-c", FORGOTTEN_ELSEWHERE, path]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, "asked to end\n")


@pytest.mark.slow
def test_openvino_answers_each_thread_with_its_own_images(for_openvino):
    """A server computes predictions and maps of one file in different threads."""
    path, _ = for_openvino
    runtime = open_file(path)
    generator = np.random.default_rng(0)
    shape = (2, 3, *runtime.preprocessing.size)
    asked = [generator.integers(0, 256, shape, dtype=np.uint8) for _ in range(2)]
    expected = [runtime.logits(images) for images in asked]
    assert not np.allclose(*expected, atol=1e-3)

    def ask(number):
        return [np.array_equal(runtime.logits(asked[number]), expected[number]) for _ in range(300)]

    with ThreadPoolExecutor(2) as threads:
        assert all(all(each) for each in threads.map(ask, (0, 1)))
