"""Corrupted images: the published formulas, the same draws everywhere, and the means."""

import json
import math
import shutil
import sys
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from pictures import photograph
from PIL import Image
from tables import answered

from vitkit import cli
from vitkit.data import Preprocessing, eval_batches, open_image, open_source
from vitkit.evaluation import COMMON
from vitkit.evaluation.benchmarks.corruptions import (
    check_can_corrupt,
    corrupt,
    corrupted,
    prepare_once,
    robustness,
)
from vitkit.evaluation.metrics.classification import accuracy
from vitkit.evaluation.reports.page import _curve
from vitkit.models import create, vit
from vitkit.weights import Classifier, save

pytestmark = pytest.mark.skipif(
    find_spec("imagecorruptions") is None, reason="needs the extra `corruptions`"
)
PREPROCESSING = Preprocessing(size=(32, 32), rule="shorter", resize=40)


def test_the_formulas_are_the_published_ones():
    image = np.asarray(Image.fromarray(photograph(40, 48, 3)).convert("RGB"))
    share = image / 255

    # Contrast and pixels have no random part: c of severities 3 and 2
    means = share.mean((0, 1), keepdims=True)
    expected = np.uint8(np.clip((share - means) * 0.2 + means, 0, 1) * 255)
    np.testing.assert_array_equal(corrupted(image, "contrast", 3, 0), expected)
    small = Image.fromarray(image).resize((24, 20), Image.Resampling.BOX)
    expected = np.asarray(small.resize((48, 40), Image.Resampling.BOX))
    np.testing.assert_array_equal(corrupted(image, "pixelate", 2, 0), expected)

    # Noise from the seed: 0.26 is severity 4's
    noise = np.random.RandomState(7).normal(size=image.shape, scale=0.26)
    expected = np.uint8(np.clip(share + noise, 0, 1) * 255)
    np.testing.assert_array_equal(corrupted(image, "gaussian_noise", 4, 7), expected)


QUICK = [name for name in COMMON if name != "glass_blur"]
COMPILED = pytest.param("glass_blur", marks=pytest.mark.slow)  # numba takes seconds for it


@pytest.mark.parametrize("corruption", [*QUICK, COMPILED, "speckle_noise", "spatter", "saturate"])
def test_a_draw_is_of_the_seed_alone(corruption):
    image = np.asarray(Image.fromarray(photograph(32, 48, 1)).convert("RGB"))
    np.random.seed(5)
    before = np.random.get_state()[1].tolist()
    first = corrupted(image, corruption, 3, 11)
    assert np.random.get_state()[1].tolist() == before
    assert first.shape == image.shape and first.dtype == np.uint8 and (first != image).any()
    np.random.seed(6)
    np.testing.assert_array_equal(corrupted(image, corruption, 3, 11), first)


def test_batches_are_the_same_with_any_number_of_workers(photographs):
    source = open_source(str(photographs))
    images, rest = corrupt(source, PREPROCESSING, "gaussian_noise", 2)
    assert [images[i][1] for i in range(40)] == [source[i][1] for i in range(40)]
    alone, helped = (
        [batch.images for batch in eval_batches(images, rest, 16, workers)] for workers in (0, 2)
    )
    assert all(bool((a == b).all()) for a, b in zip(alone, helped, strict=True))
    plain = next(iter(eval_batches(source, PREPROCESSING, 16, 0))).images
    noise = alone[0].float() - plain.float()
    assert not (noise[0] == noise[1]).all()  # each image its own
    assert 5 < noise.std() < 31  # 0.12 * 255, cut off at black and white


def test_a_corrupted_source_keeps_chunks_as_its_own_does(photographs):
    source = open_source(str(photographs))
    images, _ = corrupt(source, PREPROCESSING, "pixelate", 2)
    limited = images.keeping(1)
    assert (limited[3][0] == images[3][0]).all() and limited.name(3) == images.name(3)


@pytest.mark.parametrize("rule", ["native", "naflex"])
def test_images_at_their_own_proportions_keep_them(photographs, rule):
    source = open_source(str(photographs))
    native = Preprocessing(size=(64, 64), rule=rule, patch=(8, 8))
    images, rest = corrupt(source, native, "gaussian_noise", 2)
    for i in range(0, len(source), 10):
        plain = native.array(open_image(source[i][0], ""))
        assert rest.array(open_image(images[i][0], "")).shape == plain.shape
        assert plain.shape[1] != plain.shape[2]


def test_images_that_were_decoded_once_give_the_same_batches(photographs):
    source = open_source(str(photographs))
    rows = np.arange(len(source))[::-3]
    source = replace(source, rows=source.rows[rows], targets=source.targets[rows])
    kept = prepare_once(source, PREPROCESSING, workers=2)
    assert [kept.name(i) for i in range(len(kept))] == [source.name(i) for i in range(len(source))]
    bytes_needed = len(source) * 32 * 32 * 3
    assert prepare_once(source, PREPROCESSING, limit=bytes_needed - 1) is source

    images, rest = corrupt(source, PREPROCESSING, "snow", 3)
    expected = list(eval_batches(images, rest, 8, 0))
    shutil.rmtree(photographs)  # nothing is read again
    again, rest = corrupt(kept, PREPROCESSING, "snow", 3)
    for first, second in zip(eval_batches(again, rest, 8, 0), expected, strict=True):
        assert bool((first.images == second.images).all())
        assert bool((first.targets == second.targets).all())


def test_means_are_over_corruptions_and_severities():
    targets = np.arange(20) % 4
    shares = {"fog": (1.0, 0.8, 0.6, 0.4, 0.2), "snow": (0.5, 0.5, 0.5, 0.0, 0.0)}

    def ask(corruption, severity):
        table = np.zeros((20, 4), np.float32)
        right = round(20 * shares[corruption][severity - 1])
        table[np.arange(20), np.where(np.arange(20) < right, targets, (targets + 1) % 4)] = 5
        return answered(table, targets)

    clean = next(accuracy(ask("fog", 1)))
    found = robustness(clean, ("fog", "snow"), ask)
    values = [metric.value for metric in found.by_severity]
    assert values == pytest.approx([0.75, 0.65, 0.55, 0.2, 0.1])
    assert found.mean.value == pytest.approx(0.45) and found.clean.value == 1.0
    low, high = found.mean.interval
    assert low < 0.45 < high
    names = [metric.name for metric in found.metrics]
    assert names[0] == "corrupted/top1" and names[6] == "corrupted/fog/severity_1/top1"
    assert len(names) == 1 + 5 + 10

    # A curve has intervals, of its own points, only if all of these have one
    curve = _curve(found.clean, found.by_severity)
    assert list(curve.x) == [0, 1, 2, 3, 4, 5] and curve.y == pytest.approx(
        [100, 75, 65, 55, 20, 10]
    )
    ends = zip(curve.low[1:], curve.y[1:], curve.high[1:], strict=True)
    assert all(low < y < high for low, y, high in ends)
    without = replace(found.by_severity[2], interval=None)
    curve = _curve(None, [found.by_severity[0], without])
    assert (list(curve.x), curve.low, curve.high) == ([1, 2], (), ())

    # The mean of one is itself
    alone = robustness(clean, ("snow",), ask)
    cells = [(cell.value, cell.interval) for cell in alone.cells["snow"]]
    assert [(metric.value, metric.interval) for metric in alone.by_severity] == cells


def test_logits_that_are_not_finite_have_no_accuracy():
    def ask(corruption, severity):
        table = np.eye(4, dtype=np.float32)
        if severity == 4:
            table[0, 0] = np.nan
        return answered(table, np.arange(4))

    found = robustness(next(accuracy(ask("fog", 1))), ("fog",), ask)
    assert [math.isnan(metric.value) for metric in found.by_severity] == [False] * 3 + [True, False]
    assert math.isnan(found.mean.value) and found.mean.interval is None
    json.dumps([metric.to_json() for metric in found.metrics], allow_nan=False)


def test_the_command_shows_a_table_and_a_curve(photographs, tmp_path, capsys):
    model = create(vit("mu/16", image=(32, 32), classes=2), seed=3)
    torch.nn.init.normal_(model.head.weight)
    save(Classifier(model, PREPROCESSING, ("blue", "red")), tmp_path / "model")
    words = ["evaluate", str(tmp_path / "model"), str(photographs), "--device", "cpu"]
    words += ["--workers", "0", "--corruptions", "contrast", "jpeg_compression"]
    files = [str(tmp_path / "report.html"), str(tmp_path / "report.json")]
    assert cli.main([*words, "--report", *files]) == 0
    out = capsys.readouterr().out
    for text in ("top1 (%) at severity", "jpeg compression", "mean of 2", "not corrupted: "):
        assert text in out, text
    page = (tmp_path / "report.html").read_text()
    assert "Corrupted images" in page and "not compressed as JPEG" in page.replace("\n", " ")
    metrics = json.loads((tmp_path / "report.json").read_text())["metrics"]
    assert 0 <= metrics["corrupted/contrast/severity_5/top1"]["value"] <= 1

    assert cli.main([*words, "--against", str(tmp_path / "model")]) == 1
    assert "--corruptions measures one model" in capsys.readouterr().err


def test_images_that_are_too_small_are_a_sentence():
    with pytest.raises(ValueError, match="gets images of 28 x 28 pixels"):
        check_can_corrupt(Preprocessing(size=(28, 28)))


@pytest.mark.parametrize("size", [(16, 80), (8, 8), (80, 16)])
def test_of_images_at_their_own_proportions_a_side_may_be_shorter(size):
    check_can_corrupt(Preprocessing(size=(16, 496), rule="naflex", patch=(16, 16)))  # 31 patches
    image = np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8)
    for corruption in ("gaussian_noise", "fog", "pixelate", "jpeg_compression"):
        done = corrupted(image, corruption, 3, 0)
        assert done.shape == image.shape and (done != image).any()


def test_a_library_of_the_system_that_is_missing_is_a_sentence(tmp_path, monkeypatch):
    missing = "libxcb.so.1: cannot open shared object file"
    (tmp_path / "cv2.py").write_text(f"raise ImportError({missing!r})")
    monkeypatch.delitem(sys.modules, "cv2")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=rf"{missing}\. OpenCV needs .* libgl1") as error:
        check_can_corrupt(PREPROCESSING)
    assert "pip install" not in str(error.value)
