"""The real ViT-Ti/16 on 500 photographs: every runtime has the accuracy of PyTorch, 72.4 %."""

import json

import pytest

from vitkit.cli import main

REAL = "weights/vit_tiny_patch16_224.augreg_in21k_ft_in1k.safetensors"


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["onnx", "xml"])
def test_float32_has_the_same_predictions(ending, shared, tmp_path):
    pytest.importorskip("onnxscript")
    pytest.importorskip({"onnx": "onnxruntime", "xml": "openvino"}[ending])
    file = tmp_path / f"model.{ending}"
    words = ["export", shared(REAL), "-o", file, "--data", shared("data/imagenet_val500.parquet")]
    assert main([str(word) for word in words]) == 0
    measured = json.loads((tmp_path / f"model.{ending}.json").read_text())["agreement"]
    assert measured["images"] == 500 and measured["same"] == 1
    assert measured["accuracy"] == measured["models_accuracy"] == pytest.approx(0.724)
    assert measured["largest"] < 1e-3 and measured["cost"] == 0


@pytest.mark.slow
def test_int8_loses_little(shared, tmp_path):
    """Without an image to calibrate with. Some of 500 images, even between two classes, turn."""
    pytest.importorskip("nncf")
    file = tmp_path / "model.xml"
    words = ["export", shared(REAL), "-o", file, "--data", shared("data/imagenet_val500.parquet")]
    assert main([str(word) for word in [*words, "--precision", "int8"]]) == 0
    measured = json.loads((tmp_path / "model.xml.json").read_text())["agreement"]
    assert measured["images"] == 500 and measured["same"] > 0.98 and measured["cost"] < 0.001
    assert measured["accuracy"] >= 0.724 - 0.0061


@pytest.mark.slow
def test_calibrating_on_other_images_is_refused(shared, tmp_path, capsys):
    """By photographs of ants and bees alone int8 is right on 69.6 % of these."""
    pytest.importorskip("nncf")
    words = ["export", shared(REAL), "-o", tmp_path / "model.xml", "--precision", "int8"]
    words += ["--data", shared("data/imagenet_val500.parquet")]
    words += ["--calibrate", shared("data/ants_bees-train.parquet")]
    assert main([str(word) for word in words]) == 1
    assert "was not written" in " ".join(capsys.readouterr().err.split())
    assert not list(tmp_path.iterdir())
