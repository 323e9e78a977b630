"""The cross-entropy of pixels: equal to a slow computation, whatever a mask ignores and however a batch is divided."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from vitkit.data import IGNORED, Masks, Preprocessing, Source, masked_of
from vitkit.data.masks.legend import legend_of_names
from vitkit.data.sources.stores import Arrays
from vitkit.evaluation import MeanIoU, Part, Subject
from vitkit.evaluation.evaluators import USUAL
from vitkit.evaluation.metrics.segmentation import measure_masks
from vitkit.models import create, vit
from vitkit.objectives import Segmentation
from vitkit.objectives.segmentation import class_weights, pixel_counts
from vitkit.runtimes import map_runtime
from vitkit.system.errors import BadData, BadSettings
from vitkit.weights import Classifier, over_patches

K = 3
CONFIG = over_patches(vit("mu/16", image=(16, 16), patch=4, depth=2, classes=K), blocks=2)


@pytest.fixture
def learner():
    model = create(CONFIG, seed=0)
    torch.nn.init.normal_(model.head.weight, generator=torch.Generator().manual_seed(1))
    return Segmentation().learner(model, Preprocessing(size=(16, 16)))


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(4, 3, 16, 16, generator=generator).clamp(-1, 1)
    targets = torch.randint(0, K, (4, 16, 16), generator=generator).to(torch.uint8)
    targets[0, :5] = IGNORED
    targets[3] = IGNORED
    return images, targets, torch.arange(4)


@pytest.fixture(scope="module")
def source():
    """Six images of two sizes' worth of noise with masks in memory."""
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (6, 20, 28, 3), dtype=np.uint8)
    masks = random.integers(0, K - 1, (6, 20, 28), dtype=np.uint8)
    masks[:, :3] = IGNORED
    masks[0, 5, 5] = K - 1
    legend = legend_of_names(["a", "b", "c"], "here", None)
    targets = Masks(Arrays("masks", masks), np.arange(6), legend)
    return Source(Arrays("images", images), np.arange(6), targets, legend.labels, "mask")


def test_the_loss_is_the_mean_over_pixels_and_ignored_ones_have_none(learner, batch):
    images, targets, keys = batch
    loss = learner(images, targets, keys)
    logits = learner.model(images)
    total = 0.0
    for image, target in zip(logits, targets.long(), strict=True):
        likelihood = image.log_softmax(0)
        for k in range(K):
            total -= likelihood[k][target == k].sum().item()
    assert loss.item() == pytest.approx(total / targets.numel(), rel=1e-5)

    # What is ignored has no gradient
    logits = logits.detach().requires_grad_()
    F.cross_entropy(logits, targets.long(), ignore_index=IGNORED).backward()
    assert not logits.grad[3].any() and not logits.grad[0, :, :5].any()
    nothing = torch.full_like(targets, IGNORED)
    assert learner(images, nothing, keys).item() == 0


def test_the_loss_does_not_depend_on_how_a_batch_is_divided(learner, batch):
    images, targets, keys = batch
    whole = learner(images, targets, keys)
    parts = [learner(images[i : i + 1], targets[i : i + 1], keys[i : i + 1]) for i in range(4)]
    assert whole.item() == pytest.approx(sum(part.item() for part in parts) / 4, rel=1e-5)


def test_pixels_of_rare_classes_count_more_and_their_mean_weight_is_1(source):
    counts = pixel_counts(source)
    assert counts.tolist() == [
        sum(int((source.mask(i, (20, 28)) == k).sum()) for i in range(6)) for k in range(K)
    ]
    assert counts[2] == 1
    for rare in (0.25, 1.0):
        weights = class_weights(counts, rare)
        assert weights.dtype == np.float32 and weights[2] > weights[0]
        assert (counts * weights).sum() / counts.sum() == pytest.approx(1, rel=1e-5)
    balanced = class_weights(counts, 1.0) * counts
    assert np.allclose(balanced, balanced[0])
    assert np.isfinite(class_weights(np.array([5, 0]), 1.0)).all()
    made = Segmentation(rare=0.5).learner(create(CONFIG, seed=0), Preprocessing())
    made.prepare(source)
    assert np.array_equal(made.weights.numpy(), class_weights(counts, 0.5))


def test_images_without_masks_and_other_powers_are_refused():
    with pytest.raises(BadData, match=r"`data\.masks`"):
        Segmentation().head("class", 3)
    assert Segmentation().head("mask", 3) == 3 and Segmentation().activation() == "softmax"
    with pytest.raises(BadSettings, match="rare is 2"):
        Segmentation(rare=2.0)


@pytest.mark.slow
def test_the_evaluator_of_a_run_measures_as_evaluate_does(source):
    assert USUAL["mask"] == (MeanIoU(),) and MeanIoU().judges("mask")
    assert not MeanIoU().judges("class")
    model = create(CONFIG, seed=0)
    torch.nn.init.normal_(model.head.weight, generator=torch.Generator().manual_seed(1))
    native = Preprocessing(size=(16, 16), rule="native", patch=(4, 4))
    classifier = Classifier(model, native, source.labels)
    evaluator = MeanIoU(each_class=True, boundary=True)
    found = {m.name: m for m in evaluator.measure(Subject(classifier), Part(source, ()))}
    runtime = map_runtime(classifier, "cpu", "float32")
    expected = {m.name: m for m in measure_masks(runtime, masked_of(source)).metrics()}
    of_images = {name for name in expected if name.startswith("image_")}
    assert found.keys() == expected.keys() - of_images and "iou/c" in found
    for name in found:
        metric = expected[name]
        assert found[name].value == pytest.approx(metric.value, abs=1e-9), name
        assert found[name].interval == metric.interval
    quick = [m.name for m in MeanIoU().measure(Subject(classifier), Part(source, ()))]
    assert quick[0] == "miou" and "boundary_iou" not in quick and "iou/a" not in quick
