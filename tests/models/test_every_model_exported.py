"""What every model promises of exported files: the same answers in other runtimes."""

import numpy as np
import pytest
from networks import FAMILY, random_model
from tracing import traced_once

from vitkit.data import Preprocessing
from vitkit.exporting import Trial
from vitkit.runtimes import Export, described, open_file, write
from vitkit.weights import Classifier

NOTHING = Trial("", (), ())
ENDINGS = {"onnx": "onnx", "openvino": "xml", "torch": "pt2"}


@pytest.fixture(scope="module", params=FAMILY)
def classifier(request):
    """A model, of which every format is written."""
    config = FAMILY[request.param]
    labels = tuple(f"class {k}" for k in range(config.classes))
    preprocessing = Preprocessing(size=config.image, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.25))
    with traced_once():
        yield Classifier(random_model(config), preprocessing, labels)


@pytest.mark.slow  # an exporter takes some seconds; of one model: tests/exporting
@pytest.mark.parametrize("to", ENDINGS)
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
