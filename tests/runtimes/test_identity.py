"""What decides answers: the same for the same numbers, and another for anything that changes one."""

import shutil
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
import torch
from served import make_classifier

from vitkit.exporting import write_export
from vitkit.prediction import merging
from vitkit.runtimes import (
    LIBRARIES,
    Export,
    Exported,
    FileRuntime,
    RuntimeName,
    compiled,
    digest_of_classifier,
    eager,
    identity_of,
    open_file,
    open_runtime,
)
from vitkit.weights import load, save

MODEL = make_classifier()


def test_all_that_decides_an_answer_is_in_the_digest():
    digests = {
        digest_of_classifier(each)
        for each in (
            MODEL,
            make_classifier(seed=1),
            replace(MODEL, labels=MODEL.labels[::-1]),
            replace(MODEL, activation="sigmoid"),
            replace(MODEL, preprocessing=replace(MODEL.preprocessing, std=(0.5, 0.5, 0.49))),
        )
    }
    assert len(digests) == 5


def test_where_a_model_came_from_is_not(tmp_path):
    saved = save(replace(MODEL, origin={"init": "somewhere"}), tmp_path / "model")
    assert digest_of_classifier(load(saved)) == digest_of_classifier(MODEL)


def test_what_computes_a_model_is_said_beside_its_digest():
    whole = identity_of(eager(MODEL, "cpu"))
    assert whole.model == digest_of_classifier(MODEL)
    assert whole.computed == "PyTorch in float32"
    assert identity_of(eager(MODEL, "cpu", "bfloat16")).computed == "PyTorch in bfloat16"
    assert identity_of(eager(merging(MODEL, 1), "cpu")) == whole  # less work has its own entry


def test_packed_weights_of_a_quantised_model_count():
    digests = set()
    for seed in (0, 0, 1):
        model = make_classifier(seed)
        for block in model.model.blocks:
            block.extra = Packed(seed)
        digests.add(digest_of_classifier(model))
    assert len(digests) == 2


class Packed(torch.nn.Module):
    """What PyTorch's quantised layers do: their weights are no tensors."""

    def __init__(self, seed: int):
        super().__init__()
        self.seed = seed

    def get_extra_state(self):
        return (self.seed, "packed")

    def set_extra_state(self, state):
        self.seed, _ = state


def test_the_weights_beside_a_file_of_openvino_count(tmp_path):
    path = tmp_path / "a.xml"
    exported = Exported(MODEL.preprocessing, MODEL.labels, MODEL.activation)
    runtime = FileRuntime(path, exported, "OpenVINO", np.copy, "float32")
    identities = []
    for graph, weights in ((b"<net/>", b"1"), (b"<net/>", b"2"), (b"<net />", b"2")):
        path.write_bytes(graph)
        path.with_suffix(".bin").write_bytes(weights)
        identities.append(identity_of(runtime))
    assert len(set(identities)) == 3
    assert identities[0].computed == "OpenVINO in float32"


@pytest.mark.slow
def test_a_compiled_model_is_that_model_computed_otherwise():
    identity = identity_of(compiled(MODEL, "cpu"))
    assert identity == (digest_of_classifier(MODEL), "PyTorch, compiled, in float32")


@pytest.mark.slow
@pytest.mark.parametrize("library", ["onnx", "openvino"])
def test_an_exported_file_is_its_bytes(tmp_path, library):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("openvino")
    pytest.importorskip("onnxscript")
    endings = {"onnx": ".onnx", "openvino": ".xml"}
    path = tmp_path / f"a{endings[library]}"
    write_export(MODEL, path, Export(to=library))
    first = identity_of(open_file(path))
    shutil.copytree(tmp_path, tmp_path / "copy")
    copied = tmp_path / "copy" / path.name
    assert identity_of(open_file(copied)) == first
    assert first.computed.endswith(" in float32")

    # The weights change, which OpenVINO has in a file beside
    weights = copied if library == "onnx" else copied.with_suffix(".bin")
    content = bytearray(weights.read_bytes())
    content[len(content) // 2] ^= 1
    weights.write_bytes(content)
    assert identity_of(replace(open_file(path), path=copied)).model != first.model


@pytest.mark.slow
def test_a_model_that_is_exported_in_passing_is_that_model():
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    identity = identity_of(open_runtime(MODEL, "onnx"))
    assert identity == (digest_of_classifier(MODEL), "ONNX Runtime in float32")


def test_every_library_can_be_asked_for():
    assert set(get_args(RuntimeName)) == {"auto", "compiled", *LIBRARIES}
