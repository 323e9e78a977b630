"""What every model promises of exported files: the same answers in other runtimes."""

from functools import cache
from itertools import product

import numpy as np
import pytest
import torch
from networks import FAMILY, batch_for, random_model
from torch.export import Dim, ExportedProgram
from tracing import traced_once

from vitkit.data import Preprocessing
from vitkit.exporting import Trial
from vitkit.models import for_inference
from vitkit.runtimes import Export, described, open_file, write
from vitkit.weights import Classifier

pytestmark = pytest.mark.slow  # an exporter takes some seconds; of one model: tests/exporting

NOTHING = Trial("", (), ())
ENDINGS = {"onnx": "onnx", "openvino": "xml", "torch": "pt2"}
# Models that are written for PyTorch too, which reads the graph that the others are translated from
FOR_PYTORCH = ("ViT", "axial ResNet", "hybrid", "RMSNorm and MAP", "DINOv3")
# Models whose graph has no operator that another one's graph lacks: no exporter has anything else to translate
TRANSLATED_AS = {
    "hybrid of a root": "hybrid",
    "BiT": "ResNet",
    "token and quarters": "token and mean",
    "two blocks": "token and mean",
    "pyramid": "token and mean",
    "no biases of q, k, v": "ViT",
    "rectangles": "ViT",
    "rectangles that overlap": "ViT",
    "norm after": "axial ViT",
    "normalised queries and keys": "ViT",
    "no positions": "MAP",
    "learned2d": "DINOv3",
    "learned, every block": "ViT",
    "learned2d, shared": "DINOv3",
    "sincos": "sincos-mae",
    "sincos-1d": "sincos-mae",
    "sincos, shared": "sincos-mae",
    "sincos-moco": "sincos-mae",
}


@pytest.fixture(scope="module")
def classifier(request):
    """A model, whose graph is traced once for all formats."""
    config = FAMILY[request.param]
    labels = tuple(f"class {k}" for k in range(config.classes))
    preprocessing = Preprocessing(size=config.image, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.25))
    with traced_once():
        yield Classifier(random_model(config), preprocessing, labels)


@pytest.mark.parametrize(
    ("classifier", "to"),
    [
        (name, to)
        for name, to in product(FAMILY, ENDINGS)
        if name not in TRANSLATED_AS and (to != "torch" or name in FOR_PYTORCH)
    ],
    indirect=["classifier"],
)
def test_it_answers_the_same_in_any_batch(to, classifier, tmp_path):
    for package in {"onnx": ("onnxscript", "onnxruntime"), "openvino": ("openvino",)}.get(to, ()):
        pytest.importorskip(package)
    file = tmp_path / f"model.{ENDINGS[to]}"
    wanted = Export(to=to)
    write(classifier, described(classifier, wanted), wanted, file, NOTHING)

    runtime = open_file(file, trusted=True)
    generator = np.random.default_rng(0)
    for count in (1, 3):
        images = generator.integers(
            0, 256, (count, 3, *classifier.preprocessing.size), dtype=np.uint8
        )
        expected = classifier.logits(classifier.batch(list(images.transpose(0, 2, 3, 1)))).numpy()
        scale = max(float(np.abs(expected).max()), 1.0)
        np.testing.assert_allclose(runtime.logits(images), expected, atol=2e-5 * scale)


@pytest.mark.parametrize("name", TRANSLATED_AS)
def test_its_graph_has_only_operators_of_one_that_is_written(name):
    program = traced(name)
    assert operators(program) <= operators(traced(TRANSLATED_AS[name]))
    model = for_inference(random_model(FAMILY[name]))
    with torch.inference_mode():
        for count in (1, 5):
            x = batch_for(FAMILY[name], count)
            torch.testing.assert_close(program.module()(x), model(x), atol=1e-5, rtol=1e-5)


@cache
def traced(name: str) -> ExportedProgram:
    """The graph of a model, for any batch."""
    config = FAMILY[name]
    shapes = {"images": {0: Dim("batch", min=1, max=64)}}
    model = for_inference(random_model(config))
    return torch.export.export(model, (batch_for(config),), dynamic_shapes=shapes)


def operators(program: ExportedProgram) -> set[str]:
    """The names of what a graph computes."""
    return {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
