"""A GPU computes what the CPU computes: models, gradients, training, resuming, prediction.

    python -m pytest tests/test_device.py

Everything is compared with the CPU, which other tests compare with the references. Without a GPU
both sides run on the CPU: that keeps this file working, so it is slow there.
"""

import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from margins import at_most
from models.networks import FAMILY, batch_for, random_model
from runs import Eventful, events, losses, same, weights

from vitkit.cli.entry import main
from vitkit.data import Augmentation
from vitkit.models import VisionTransformer, create, vit
from vitkit.models.attention import fused
from vitkit.objectives import MaskedAutoencoder, MaskedPatches, SelfDistillation, Supervised
from vitkit.system.errors import Interrupted
from vitkit.system.machine import autocast, pick_device
from vitkit.training import run_recipe

DEVICE = pick_device(os.environ.get("VITKIT_TEST_DEVICE", "auto"))
COMPARED = list(FAMILY)
if DEVICE.type == "cpu":
    pytestmark = pytest.mark.slow
    COMPARED = ["ViT", "hybrid", "axial ViT"]  # with themselves


def loss_and_gradients(model, images):
    """A loss that depends on every logit, and the gradient of every parameter, on the CPU."""
    model.zero_grad()
    loss = model(images).float().square().mean()
    loss.backward()
    gradients = {}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            gradients[name] = parameter.grad.cpu().clone()  # the model may move later
    return loss.detach().cpu(), gradients


def relative_error(ours, reference):
    """‖ours − reference‖ / ‖reference‖."""
    return float((ours - reference).norm() / reference.norm().clamp(min=1e-6))


@pytest.mark.parametrize("name", COMPARED)
def test_logits_and_gradients_are_those_of_the_cpu(name):
    model = random_model(FAMILY[name])
    images = batch_for(FAMILY[name])
    loss, gradients = loss_and_gradients(model, images)
    on_device, on_device_gradients = loss_and_gradients(model.to(DEVICE), images.to(DEVICE))
    torch.testing.assert_close(on_device, loss, rtol=1e-4, atol=1e-5)
    assert on_device_gradients.keys() == gradients.keys()
    whole = torch.cat([g.flatten() for g in gradients.values()])
    theirs = torch.cat([g.flatten() for g in on_device_gradients.values()])
    at_most(relative_error(theirs, whole), 1e-3)


@pytest.mark.parametrize("name", FAMILY)
def test_bfloat16_is_close_to_float32(name):
    model = random_model(FAMILY[name]).to(DEVICE)
    images = batch_for(FAMILY[name]).to(DEVICE)
    with torch.inference_mode():
        exact = model(images)
        with autocast(DEVICE, "bfloat16"):
            rounded = model(images).float()
    at_most(relative_error(rounded, exact), 0.05)


@pytest.mark.parametrize("name", ["ViT", "hybrid", "axial ViT"])
def test_a_compiled_model_gives_the_same_gradients(name):
    config = FAMILY[name]
    if DEVICE.type == "cpu" and name == "ViT":
        config = replace(config, depth=1)  # the second block's loops are the first one's
    model = random_model(config).to(DEVICE)
    images = batch_for(config).to(DEVICE)
    loss, gradients = loss_and_gradients(model, images)
    # What is vitkit's is the graph; minutes of C++ compilation of its loops add little on a CPU
    if DEVICE.type == "cpu" and name != "ViT":
        model.compile(backend="aot_eager", dynamic=False)
    else:
        model.compile(dynamic=False)
    compiled_loss, compiled_gradients = loss_and_gradients(model, images)
    torch.testing.assert_close(compiled_loss, loss, rtol=1e-4, atol=1e-5)
    for name, gradient in gradients.items():
        torch.testing.assert_close(compiled_gradients[name], gradient, rtol=1e-2, atol=1e-4)


def test_gradients_of_confident_attention_are_finite():
    """cuDNN gives NaN for 64 tokens whose logits are all far below zero."""
    q, k, v = torch.randn(3, 2, 3, 64, 64).to(DEVICE, torch.bfloat16).mul(0.1).unbind()
    q[..., 0] = 1.0
    k[..., 0] = -120 * 64**0.5
    for tensor in (q, k, v):
        tensor.requires_grad_()
    fused(q, k, v).float().square().sum().backward()
    assert q.grad.isfinite().all()
    assert k.grad.isfinite().all()


def test_recomputing_blocks_gives_the_same_gradients_in_less_memory():
    side = 32
    if DEVICE.type == "cuda":  # where memory is measured
        side = 224
    config = vit("S/16", image=(side, side), classes=10)
    images = torch.randn(16, 3, side, side, device=DEVICE)
    results = []
    peaks = []
    for recompute in (False, True):
        model = create(config, DEVICE, seed=0).train()
        model.recompute = recompute
        if DEVICE.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        results.append(loss_and_gradients(model, images))
        if DEVICE.type == "cuda":
            peaks.append(torch.cuda.max_memory_allocated())
    for name, gradient in results[0][1].items():
        torch.testing.assert_close(results[1][1][name], gradient, rtol=1e-4, atol=1e-6)
    if peaks:
        at_most(peaks[1], 0.6 * peaks[0])


# Runs


OBJECTIVES = {
    "supervised": Supervised(label_smoothing=0.1),
    "mixup": Supervised(mixup=0.5, cutmix=0.5),
    "masked": MaskedPatches(),
    "autoencoder": MaskedAutoencoder(width=16, depth=1, heads=2),
    "distillation": SelfDistillation(
        outputs=64, hidden=32, bottleneck=16, local_views=2, local_size=4
    ),
}
RUN_OBJECTIVES = list(OBJECTIVES)
if DEVICE.type == "cpu":
    RUN_OBJECTIVES = ["mixup", "distillation"]  # with themselves


@pytest.mark.parametrize("objective", RUN_OBJECTIVES)
def test_a_run_has_the_loss_curve_of_the_cpu(objective, tiny, quiet, tmp_path):
    # Without dropout, whose random numbers are the device's own
    model = replace(tiny.model, dropout=0.0, stochastic_depth=0.0)
    recipe = replace(tiny, model=model, objective=OBJECTIVES[objective])
    run_recipe(recipe, tmp_path / "cpu", "cpu", quiet)
    run_recipe(recipe, tmp_path / "device", DEVICE, quiet)
    torch.testing.assert_close(
        losses(tmp_path / "device"), losses(tmp_path / "cpu"), rtol=1e-2, atol=1e-2
    )


@pytest.mark.parametrize(
    ("precision", "compiled"), [("float32", False), ("bfloat16", False), ("float32", True)]
)
# Of PyTorch's own compiler, about the inputs of a compiled block
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_a_run_that_was_interrupted_ends_with_the_same_bits(
    precision, compiled, tiny, quiet, tmp_path, monkeypatch
):
    compilations = []
    own_compile = VisionTransformer.compile
    backend = "inductor"
    if DEVICE.type == "cpu":
        backend = "aot_eager"  # the same graph, without C++ of its loops

    def counted(model, **settings):
        compilations.append(model)
        own_compile(model, backend=backend, **settings)

    monkeypatch.setattr(VisionTransformer, "compile", counted)
    recipe = replace(tiny, precision=precision, compile=compiled, objective=Eventful())
    run_recipe(recipe, tmp_path / "whole", DEVICE, quiet)

    with events(stop=[17]), pytest.raises(Interrupted):
        run_recipe(recipe, tmp_path / "resumed", DEVICE, quiet)
    run_recipe(recipe, tmp_path / "resumed", DEVICE, quiet)
    assert len(compilations) == 3 * compiled

    # A GPU's attention in float32 adds up gradients in an order that is not always the same
    if DEVICE.type == "cuda" and precision == "float32":
        whole = losses(tmp_path / "whole")
        torch.testing.assert_close(losses(tmp_path / "resumed"), whole, rtol=1e-2, atol=1e-2)
        return
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "resumed"))


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_deterministic_run_that_was_interrupted_ends_with_the_same_bits(
    precision, tiny, quiet, tmp_path
):
    """Also where a GPU's attention adds up gradients in an order that varies: of more tokens than one
    block of its kernel."""
    side = 8
    if DEVICE.type == "cuda":
        side = 32  # 257 tokens, with patches of 2 x 2
    recipe = replace(
        tiny,
        model=replace(tiny.model, image=(side, side), patch=2),
        data=replace(tiny.data, preprocessing=replace(tiny.data.preprocessing, size=(side, side))),
        objective=Eventful(),
        precision=precision,
        deterministic=True,
    )
    run_recipe(recipe, tmp_path / "whole", DEVICE, quiet)

    with events(stop=[17]), pytest.raises(Interrupted):
        run_recipe(recipe, tmp_path / "resumed", DEVICE, quiet)
    run_recipe(recipe, tmp_path / "resumed", DEVICE, quiet)
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "resumed"))


def test_images_that_stay_on_the_device_train_as_decoded_ones_do(tiny, quiet, tmp_path):
    augmentation = Augmentation(crop="pad_crop", pad=1, rand_augment=(1, 5))
    data = replace(tiny.data, augmentation=augmentation)
    for name, gigabytes, workers in (("decoded", 0.0, 2), ("on the device", 1.0, 0)):
        changed = replace(data, keep_decoded=gigabytes, workers=workers)
        run_recipe(replace(tiny, data=changed), tmp_path / name, DEVICE, quiet)
    torch.testing.assert_close(
        losses(tmp_path / "decoded"), losses(tmp_path / "on the device"), rtol=0, atol=0
    )


def test_one_rank_of_torchrun_trains_as_one_process_does(tmp_path):
    """Its agent and its rank are new processes, as a user's are."""
    words = ["train", "digits", "--device", DEVICE.type, "--length", "8", "--log-every", "1"]
    words += ["--optim.warmup", "2", "--model.depth", "2", "--workdir"]
    assert main([*words, str(tmp_path / "alone")]) == 0
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"]
    command = [sys.executable, *torchrun, "-m", "vitkit", *words, str(tmp_path / "torchrun")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    torch.testing.assert_close(
        losses(tmp_path / "torchrun"), losses(tmp_path / "alone"), rtol=1e-5, atol=1e-6
    )
