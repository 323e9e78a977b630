"""Models that read images at their own proportions, as files: one network for every grid."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from margins import at_most
from tracing import traced_once

from vitkit.data import Preprocessing
from vitkit.exporting import check, write_export
from vitkit.models import RESAMPLE, create, vit
from vitkit.prediction import predict_items
from vitkit.runtimes import Export, open_file
from vitkit.runtimes.graphs.graph import PositionsOnAnyGrid
from vitkit.weights import Classifier

NATIVE = Preprocessing(size=(16, 16), rule="native", patch=(4, 4))
SIZES = [(30, 30), (20, 60), (60, 20), (15, 45), (30, 31)]


def classifier_of(**settings):
    config = vit("mu/4", image=(16, 16), patch=4, classes=3, depth=1, **settings)
    model = create(config, seed=0)
    torch.nn.init.normal_(model.head.weight, generator=torch.Generator().manual_seed(0))
    return Classifier(model, NATIVE, ("a", "b", "c"))


@pytest.mark.parametrize("method", RESAMPLE)
@pytest.mark.parametrize("grid", [(4, 4), (2, 7), (7, 2), (1, 16), (9, 9)])
def test_positions_are_those_of_the_model_on_every_grid(method, grid):
    positions = create(vit("mu/4", image=(16, 16), patch=4, resample=method), seed=0).positions
    torch.nn.init.normal_(positions.table, generator=torch.Generator().manual_seed(0))
    z = torch.zeros(1, 1 + grid[0] * grid[1], positions.table.shape[-1])
    expected = positions.add(z, grid)
    torch.testing.assert_close(
        PositionsOnAnyGrid(positions).add(z, grid), expected, atol=2e-5, rtol=1e-4
    )


@pytest.fixture(
    scope="module",
    params=[
        ("native", {"pool": "token-quarters"}),
        ("naflex", {"pool": "map", "resample": "siglip2"}),
    ],
    ids=lambda param: f"{param[0]}-{param[1]['pool']}",
)
def classifier(request):
    """A model, of which every format is written."""
    rule, settings = request.param
    with traced_once():
        yield replace(classifier_of(**settings), preprocessing=replace(NATIVE, rule=rule))


@pytest.mark.slow
@pytest.mark.parametrize("to", ["onnx", "openvino", "torch"])
def test_a_file_answers_images_of_every_shape(to, classifier, tmp_path):
    for package in {"onnx": ("onnxscript", "onnxruntime"), "openvino": ("openvino",)}.get(to, ()):
        pytest.importorskip(package)
    ending = {"onnx": "onnx", "openvino": "xml", "torch": "pt2"}[to]
    agreement = write_export(classifier, tmp_path / f"model.{ending}", Export(to=to))
    assert agreement.same == 1
    at_most(agreement.largest, 1e-4)
    if to == "torch":  # no runtime of vitkit's opens it
        return
    random = np.random.default_rng(0)
    images = [random.integers(0, 256, (*size, 3), dtype=np.uint8) for size in SIZES]
    file = open_file(tmp_path / f"model.{ending}", trusted=True)
    assert file.preprocessing == classifier.preprocessing
    theirs = [each.probabilities for each in predict_items(file, images, top=3)]
    ours = [each.probabilities for each in predict_items(classifier, images, top=3)]
    np.testing.assert_allclose(theirs, ours, atol=1e-4)


@pytest.mark.parametrize(
    ("settings", "wanted", "sentence"),
    [
        ({}, Export(preprocessing=True), "whose grid a file with the preprocessing inside cannot"),
        ({}, Export(to="page"), "a page prepares squares and crops"),
        ({}, Export(merge=1), "merges as many tokens of every image"),
        ({"positions": "rotary"}, Export(), "rotary positions cannot be exported for images at"),
    ],
)
def test_what_no_file_can_do_is_said_before_anything_is_computed(
    settings, wanted, sentence, tmp_path
):
    with pytest.raises(ValueError, match=sentence):
        check(classifier_of(**settings), tmp_path / "model.onnx", wanted)
