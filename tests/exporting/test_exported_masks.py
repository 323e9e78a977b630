"""A model of every pixel as a file: the same logits for images of every size, and the same masks."""

import numpy as np
import pytest
import torch
from pictures import photograph

import vitkit
from vitkit.data import Preprocessing
from vitkit.models import create, vit
from vitkit.runtimes import open_file
from vitkit.system.errors import BadSettings, Unsupported
from vitkit.weights import Classifier, dense


@pytest.fixture
def model():
    config = vit("mu/16", image=(32, 32), patch=8, depth=2, classes=0)
    plain = Classifier(create(config, seed=0), Preprocessing(size=(32, 32)), ())
    made = dense(plain, ("background", "cell", "edge"), blocks=2, tokens=64)
    with torch.no_grad():
        made.model.head.weight.normal_(generator=torch.Generator().manual_seed(0))
    return made


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["onnx", "xml"])
def test_a_file_gives_the_logits_of_images_of_every_size(model, tmp_path, ending):
    pytest.importorskip("onnxruntime" if ending == "onnx" else "openvino")
    path = tmp_path / f"model.{ending}"
    written = vitkit.export(model, output=path, limit=8)
    assert "segment" in str(written) and written.agreement.unit == "pixel"
    file = open_file(path)
    for height, width in ((8, 8), (64, 40), (24, 120)):
        images = np.random.default_rng(0).integers(0, 256, (2, 3, height, width), dtype=np.uint8)
        expected = model.logits(torch.from_numpy(images)).numpy()
        assert expected.shape == (2, 3, height, width)
        np.testing.assert_allclose(
            file.logits(images), expected, atol=1e-4 * np.abs(expected).max()
        )
    pictures = [photograph(50, 70), photograph(33, 20)]
    for one, other in zip(
        vitkit.segment(str(path), *pictures),
        vitkit.segment(model, *pictures, precision="float32"),
        strict=True,
    ):
        assert (one.mask == other.mask).mean() > 0.999
    with pytest.raises(BadSettings, match=r"classifies every pixel.*segment"):
        vitkit.predict(str(path), pictures[0])


@pytest.mark.parametrize("settings", [{"preprocessing": True}, {"precision": "int8"}, {"merge": 2}])
def test_what_is_for_one_answer_is_refused(model, tmp_path, settings):
    with pytest.raises(Unsupported, match=f"`{next(iter(settings))}"):
        vitkit.export(model, output=tmp_path / "model.onnx", **settings)
