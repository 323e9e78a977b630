"""examples/vit_in_one_file.py computes what vitkit computes, bit by bit on a CPU.

vitkit's side is `vitkit train digits` with the file's settings: images as they are (8 x 8, grey,
patches of 2), no RandAugment, no average of the weights, batches of 64. And it goes without its two
shortcuts, which round differently: its attention is computed by the formula (`unfused`) and not by
PyTorch's fused kernel, and its last block computes all tokens, not the class token alone. With them,
the logits are the same up to rounding.
"""

import ast
import sys
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from itertools import islice
from pathlib import Path

import pytest
import torch

from vitkit.data import Augmentation, Preprocessing, open_parts, train_batches
from vitkit.inspection import rollout
from vitkit.models import attention, create
from vitkit.models.pooling import Pool
from vitkit.recipes import Data, digits
from vitkit.system.span import Span
from vitkit.training import loop, run_recipe
from vitkit.weights import Classifier

FILE = Path(__file__).parents[1] / "examples" / "vit_in_one_file.py"
GREY = Preprocessing(size=(8, 8), mean=(0.5,), std=(0.5,))
# Its parameters, by vitkit's names
NAMES = {
    "embedding.": "stem.project.",
    "class_token": "cls",
    "positions": "positions.table",
    ".expand.": ".mlp.expand.",
    ".contract.": ".mlp.contract.",
}


@pytest.fixture(scope="module")
def one_file():
    """The file as a module."""
    spec = spec_from_file_location("vit_in_one_file", FILE)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def no_shortcuts(monkeypatch):
    """vitkit computes attention by the formula, and all tokens in its last block."""
    monkeypatch.setattr(attention, "unfused_is_faster", lambda q, k, bias: True)
    monkeypatch.setattr(Pool, "tokens_read", None)


def recipe_of(one_file, steps, warmup):
    """The recipe of vitkit with the file's settings."""
    shifts = Augmentation(crop="pad_crop", pad=one_file.SHIFT, flip=False)
    recipe = digits()
    return replace(
        recipe,
        model=replace(recipe.model, image=(8, 8), patch=2, channels=1),
        data=Data(source="digits", preprocessing=GREY, augmentation=shifts, workers=0),
        optim=replace(recipe.optim, warmup=Span(warmup)),
        length=Span(steps),
        batch=one_file.BATCH,
        average=0.0,
        log_every=1,
        evaluate_every=Span(steps),
        save_every=Span(steps),
    )


def by_vitkits_names(model):
    """The weights of the file's model, as vitkit's model of the same settings has them."""
    weights = {}
    for name, tensor in model.state_dict().items():
        for theirs, ours in NAMES.items():
            name = name.replace(theirs, ours)
        weights[name] = tensor
    return weights


def assert_same_bits(weights, others):
    assert weights.keys() == others.keys()
    for name, tensor in weights.items():
        assert torch.equal(tensor, others[name]), name


def both_models(one_file):
    """The file's model and vitkit's, with the same initial weights, but for a head that is not zero."""
    config = replace(recipe_of(one_file, 50, 5).model, classes=one_file.CLASSES)
    theirs = one_file.VisionTransformer()
    theirs.init_weights(seed=3)
    ours = create(config, seed=3)
    assert_same_bits(by_vitkits_names(theirs), ours.state_dict())
    torch.nn.init.normal_(theirs.head.weight)
    ours.head.load_state_dict(theirs.head.state_dict())
    return theirs, Classifier(ours, GREY, tuple("0123456789"))


def logits_of(one_file, model, images):
    with torch.no_grad():
        return model(one_file.normalise(images))


def test_the_logits_are_the_same(one_file, no_shortcuts):
    theirs, ours = both_models(one_file)
    _, (images, _) = one_file.load_images()
    logits = logits_of(one_file, theirs, images)
    assert logits.std() > 0.5
    assert torch.equal(logits, ours.logits(images))


def test_the_logits_and_the_rollout_are_those_of_the_shortcuts(one_file):
    theirs, ours = both_models(one_file)
    _, (images, _) = one_file.load_images()
    logits = logits_of(one_file, theirs, images)
    torch.testing.assert_close(logits, ours.logits(images), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(one_file.rollout(theirs, images), rollout(ours, images))


def test_the_images_their_parts_and_their_order_are_the_same(one_file):
    recipe = recipe_of(one_file, 50, 5)
    parts = open_parts("digits").sources
    train, test = one_file.load_images()
    for ours, (_, labels) in ((parts["train"], train), (parts["test"], test)):
        assert torch.equal(torch.from_numpy(ours.targets), labels)
    # The 23rd batch has the end of one epoch and the beginning of the next
    batches = train_batches(
        parts["train"], recipe.data.augmentation, recipe.data.preprocessing, 64, 0, 21, 0
    )
    for step, ours in enumerate(islice(batches, 3), 21):
        images, labels = one_file.training_batch(*train, step)
        assert torch.equal(images, ours.images)
        assert torch.equal(labels, ours.targets)


@pytest.mark.slow
def test_fifty_losses_and_the_weights_after_them_are_the_same(
    one_file, no_shortcuts, monkeypatch, quiet, tmp_path
):
    """The run of vitkit is a whole one: the loop, its schedule, its clipping, its optimiser."""
    ours = []
    of_loop = loop.gradient

    def noted(*arguments):
        outcome = of_loop(*arguments)
        ours.append(outcome.loss.item())
        return outcome

    monkeypatch.setattr(loop, "gradient", noted)
    trained = run_recipe(recipe_of(one_file, 50, 5), tmp_path / "run", "cpu", quiet)

    model = one_file.VisionTransformer()
    model.init_weights(one_file.SEED)
    train, _ = one_file.load_images()
    theirs = one_file.train(model, *train, steps=50, warmup=5)

    assert len(ours) == 50
    assert ours[-1] < ours[0] - 0.2
    assert theirs == ours
    assert_same_bits(by_vitkits_names(model), trained.model.state_dict())


@pytest.mark.slow
def test_the_file_runs_and_shows_what_the_model_looks_at(one_file, monkeypatch, capsys):
    monkeypatch.setattr(one_file, "STEPS", 200)
    one_file.main()
    lines = capsys.readouterr().out.splitlines()
    accuracy = next(line for line in lines if line.endswith("of 359 test images"))
    assert float(accuracy.partition("%")[0]) > 50
    assert sum(line.endswith("what the model looks at") for line in lines) == 4
    assert {len(line) for line in lines[-8:]} == {16 + 3 + 16}


def test_the_file_stands_alone():
    imported = set()
    for node in ast.walk(ast.parse(FILE.read_text())):
        if isinstance(node, ast.Import):
            imported |= {name.name.partition(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module.partition(".")[0])
    assert imported - set(sys.stdlib_module_names) == {"numpy", "sklearn", "torch"}
