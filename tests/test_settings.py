"""Every setting does something: each is changed in turn, and what is built or run must change.

CHANGES names every field of every settings class that a recipe or a command can hold, with another
value, and where that shows only beside other settings, those. A new setting that is not there is a
failure, and so is one that nobody reads.
"""

import contextlib
import hashlib
import io
import json
import re
import sys
from dataclasses import fields, is_dataclass, replace
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import pytest
import torch
from pictures import encoded, make_photographs, photograph
from PIL import Image
from rich.console import Console

from vitkit.curation.packing import Packing, pack_shards
from vitkit.data import (
    Augmentation,
    Columns,
    Preprocessing,
    Source,
    open_image,
    open_parts,
    open_source,
    subset,
    train_batches,
)
from vitkit.data.augmentation.draws import augment
from vitkit.data.augmentation.settings import check_fits
from vitkit.data.sources.stores import Arrays
from vitkit.evaluation import Accuracy, Eval, Fewshot, Neighbours, Part, Subject
from vitkit.models import (
    Backbone,
    LeNetConfig,
    ResNetConfig,
    VisionTransformer,
    ViTConfig,
    create,
    vit,
)
from vitkit.objectives import MaskedAutoencoder, MaskedPatches, SelfDistillation, Supervised
from vitkit.recipes import Data, Optim, Recipe, Tune
from vitkit.system.span import Span
from vitkit.training import run_recipe
from vitkit.training.planning import Machine, spent
from vitkit.weights import Classifier


class Change(NamedTuple):
    """Another value of a setting, and the settings beside which it shows."""

    value: object
    beside: dict = MappingProxyType({})


SMALL = vit("mu/8", image=(32, 32), classes=5, depth=2)
SHALLOW = ViTConfig(24, 1, 48, 2, 4, (8, 8), classes=0)
TINY_RESNET = ResNetConfig(Backbone((1, 1), 0.5), (32, 32), classes=5)
CHANGES = {
    ViTConfig: {
        "width": Change(64),
        "depth": Change(3),
        "mlp": Change(64),
        "heads": Change(4),
        "patch": Change(4),
        "image": Change((64, 32)),
        "channels": Change(1),
        "classes": Change(3),
        "pool": Change("gap"),
        "read_blocks": Change(2),
        "memory": Change(9, {"pool": "memory", "memory": 5, "classes": 2}),
        "class_token": Change(True, {"pool": "gap"}),
        "registers": Change(2),
        "norm": Change("pooled", {"pool": "gap"}),
        "representation": Change(16),
        "head_bias": Change(-1.0),
        "dropout": Change(0.5),
        "attention_dropout": Change(0.5),
        "stochastic_depth": Change(0.5),
        "gelu": Change("erf"),
        "qkv_bias": Change(False),
        "swiglu": Change(True),
        "eps": Change(0.1),
        "branch_norm": Change("after"),
        "embedding_norm": Change(True),
        "rms_norm": Change(True),
        "qk_norm": Change(True),
        "layer_scale": Change(0.1),
        "positions": Change("sincos"),
        "inject": Change("every"),
        "prefix_positions": Change(0),
        "position_grid": Change((9, 9), {"positions": "rotary"}),
        "resample": Change("timm"),
        "stride": Change(4),
        "stem": Change(Backbone((1,), 0.5), {"patch": 2}),
        "mixer": Change("axial", {"pool": "gap"}),
    },
    Backbone: {
        "units": Change((1, 2)),
        "width": Change(1.0),
        "order": Change("pre"),
        "norm": Change("batch"),
        "norm_eps": Change(0.1),
        "standardise": Change("variance", {"weight_eps": 0.1}),
        "weight_eps": Change(0.5),
        "padding": Change("even"),
        "pool": Change("zeros", {"order": "pre"}),
        "mixer": Change("axial", {"width": 1.0}),
    },
    ResNetConfig: {
        "backbone": Change(Backbone((1, 2), 0.5)),
        "image": Change((64, 32), {"backbone": Backbone((1, 1), mixer="axial")}),
        "channels": Change(1),
        "classes": Change(3),
        "pool": Change("none"),
        "head_bias": Change(-1.0),
    },
    LeNetConfig: {"channels": Change(3), "classes": Change(3), "head_bias": Change(-1.0)},
    Preprocessing: {
        "size": Change((16, 24)),
        "rule": Change("shorter"),
        "resize": Change(48),
        "interpolation": Change("bicubic"),
        "antialias": Change(False),
        "mean": Change((0.1, 0.2, 0.3)),
        "std": Change((0.1, 0.2, 0.3)),
        "values": Change("float32"),
        "patch": Change((8, 8), {"rule": "native"}),
    },
    Augmentation: {
        "crop": Change("none"),
        "area": Change((0.9, 1.0)),
        "resize": Change(64, {"crop": "resize_crop", "resize": 40}),
        "scales": Change((1.0, 1.5), {"crop": "scale_crop", "resize": 40}),
        "size": Change((16, 24)),
        "pad": Change(9, {"crop": "pad_crop"}),
        "flip": Change(False),
        "rand_augment": Change((2, 9)),
        "rand_augment_by": Change("google", {"rand_augment": (2, 9)}),
        "colour_jitter": Change((0.4, 0.4, 0.4, 0.1)),
        "erase": Change(1.0),
        "interpolation": Change("bicubic"),
        "antialias": Change(False),
        "auto": Change(True),
        "reduced_decode": Change(True),
    },
    Columns: {
        "image": Change("picture"),
        "label": Change("kind"),
        "target": Change("number", {"label": "size"}),
        "group": Change("kind"),
        "separator": Change("d", {"label": "kind"}),
        "level": Change(1),
    },
    Optim: {
        "name": Change("sgd"),
        "lr": Change(0.5),
        "weight_decay": Change(0.5),
        "weight_decay_end": Change(0.5),
        "decay_on": Change("kernels", {"weight_decay": 0.5}),
        "clip": Change(0.01, {"name": "sgd"}),
        "clip_each": Change(True, {"name": "sgd", "clip": 0.01}),
        "warmup": Change(Span(3)),
        "schedule": Change("linear"),
        "end_lr": Change(0.01),
        "beta1": Change(0.5),
        "beta2": Change(0.5),
        "eps": Change(0.1),
        "momentum": Change(0.5, {"name": "sgd"}),
        "layer_decay": Change(0.5),
    },
    Tune: {"blocks": Change(1), "lora": Change(2), "lora_alpha": Change(4.0, {"lora": 2})},
    Supervised: {
        "loss": Change("sigmoid"),
        "label_smoothing": Change(0.2),
        "off_target": Change(0.1, {"loss": "sigmoid"}),
        "mixup": Change(0.5),
        "cutmix": Change(0.5),
        "class_weights": Change("balanced"),
    },
    MaskedPatches: {
        "target": Change("pixels"),
        "rate": Change(0.2),
        "masked": Change(0.2),
        "swapped": Change(0.0),
    },
    MaskedAutoencoder: {
        "rate": Change(0.5),
        "width": Change(32),
        "depth": Change(2),
        "heads": Change(4),
        "normalised": Change(False),
    },
    SelfDistillation: {
        "outputs": Change(48),
        "hidden": Change(24),
        "bottleneck": Change(24),
        "local_views": Change(1),
        "local_size": Change(24),
        "global_area": Change((0.9, 1.0)),
        "local_area": Change((0.3, 0.4)),
        "student_temperature": Change(0.5),
        "teacher_temperature": Change(0.5),
        "teacher_start": Change(0.1, {"teacher_warmup": Span(4)}),
        "teacher_warmup": Change(Span(4), {"teacher_start": 0.5}),
        "last_layer_still": Change(Span(9)),
        "momentum": Change(0.1),
        "centre_momentum": Change(0.1),
    },
    Accuracy: {},
    Neighbours: {"k": Change(1)},
    Fewshot: {"shots": Change((1,)), "seeds": Change(2), "form": Change("ranked")},
    Packing: {
        "format": Change("parquet"),
        "shard": Change(7),
        "side": Change(20),
        "quality": Change(10, {"side": 20}),
        "shuffle": Change(False),
    },
    Machine: {
        "gpus": Change(2),
        "memory": Change(0.001),
        "tflops": Change(1.0),
        "mfu": Change(0.1),
        "watts": Change(1.0),
    },
    Eval: {
        "evaluator": Change(Neighbours()),
        "every": Change(Span(1)),
        "data": Change("photos"),
        "columns": Change(Columns(target="none"), {"data": "photos"}),
        "name": Change("mine"),
    },
    Data: {
        "source": Change("photos"),
        "columns": Change(Columns(label="kind"), {"source": "photos.csv"}),
        "groups": Change("kind", {"source": "photos.csv"}),
        "masks": Change("masks", {"source": "photos"}),
        "legend": Change("missing.txt", {"source": "photos", "masks": "masks"}),
        "ignore": Change(1, {"source": "photos", "masks": "masks"}),
        "exclude": Change("excluded.txt", {"source": "photos"}),
        "preprocessing": Change(Preprocessing((8, 8), mean=(0.1, 0.2, 0.3))),
        "augmentation": Change(Augmentation("none", flip=False)),
        "on_bad_image": Change("skip", {"source": "broken"}),
        "check": Change(False, {"source": "broken"}),
        "parts": Change("select"),
        "hold_out": Change(0.5, {"parts": "select"}),
        "split_seed": Change(3, {"source": "photos"}),
        "subset": Change(0.5),
        "subset_by_class": Change(True, {"subset": 0.5}),
        "subset_seed": Change(1, {"subset": 0.5}),
        "keep_decoded": Change(0.0, {"source": "photos"}),
        "workers": Change(1),
    },
    Recipe: {
        "model": Change(SHALLOW),
        "data": Change(Data("digits", preprocessing=Preprocessing((8, 8)))),
        "name": Change("another"),
        "init": Change("started"),
        "init_head": Change(True, {"init": "started"}),
        "optim": Change(Optim(lr=0.1)),
        "objective": Change(Supervised(label_smoothing=0.3)),
        "tune": Change(Tune(blocks=1)),
        "length": Change(Span(3)),
        "batch": Change(20),
        "micro_batch": Change(20),
        "average": Change(0.0),
        "precision": Change("bfloat16"),
        "residual": Change("bfloat16", {"precision": "bfloat16"}),
        "compile": Change(True, {"model": SHALLOW}),  # it takes as long as there are blocks
        "recompute": Change(True),
        "deterministic": Change(True),
        "shard_group": Change(2),
        "seed": Change(1),
        "evals": Change((Eval(Neighbours()),)),
        "evaluate_every": Change(Span(1)),
        "best": Change("test/loss", {"evaluate_every": Span(1)}),
        "early_stop": Change(  # 1e-50 is 0 in float32: no weight changes, so nothing gets better
            1, {"evaluate_every": Span(1), "optim": Optim(lr=1e-50), "length": Span(4)}
        ),
        "save_every": Change(Span(1)),
        "keep": Change(1),
        "log_every": Change(1),
        "track": Change("tensorboard"),
    },
}


def test_every_settings_class_is_here_with_every_field():
    def classes_below(kind: type, seen: set) -> set:
        seen.add(kind)
        for change in CHANGES[kind].values():
            for value in (change.value, *np.atleast_1d(np.array(change.value, dtype=object))):
                if is_dataclass(value) and type(value) not in seen:
                    classes_below(type(value), seen)
        return seen

    for kind, changes in CHANGES.items():
        assert [field.name for field in fields(kind)] == list(changes), kind.__name__
        assert kind.__dataclass_params__.frozen, kind.__name__
    for field in fields(Recipe):  # what a recipe is made of
        value = field.default
        if is_dataclass(value):
            assert type(value) in CHANGES
    assert classes_below(Recipe, set()) <= set(CHANGES)


@pytest.fixture(scope="module")
def observed(tmp_path_factory):
    """observed(settings): what OBSERVE says of them, asked once for the same settings."""
    here = tmp_path_factory.mktemp("settings")
    known = {}

    def ask(settings, again: bool = False) -> str:
        with contextlib.chdir(here):
            settings = RUN_OF.get(type(settings), lambda same: same)(settings)
            key = repr(settings)
            if key not in known or again:
                folder = here / f"run-{len(list(here.iterdir()))}"
                known[key] = OBSERVE[type(settings)](settings, folder)
            return known[key]

    return ask


@pytest.mark.parametrize(
    "kind",
    [kind for kind in CHANGES if CHANGES[kind] and kind not in (Data, Eval)],  # runs, as a recipe
    ids=lambda kind: kind.__name__,
)
def test_what_is_observed_can_be_repeated(kind, observed):
    settings = BASES[kind]()
    assert observed(settings) == observed(settings, again=True)


@pytest.mark.parametrize(
    ("kind", "name"),
    [(kind, name) for kind, changes in CHANGES.items() for name in changes],
    ids=lambda part: part if isinstance(part, str) else part.__name__,
)
def test_a_setting_changes_what_is_built_or_run(kind, name, observed):
    change = CHANGES[kind][name]
    before = replace(BASES[kind](), **change.beside)
    after = replace(before, **{name: change.value})
    assert observed(before) != observed(after)


def numbers(*tensors) -> str:
    """Tensors as something that can be compared: shapes, and values to six digits."""
    shapes = [tuple(tensor.shape) for tensor in tensors]
    values = torch.cat([tensor.detach().float().flatten() for tensor in tensors])
    rounded = (values.view(torch.int32).long() + 8) >> 4  # the last bits are rounding
    return f"{shapes} {hashlib.sha256(rounded.numpy().tobytes()).hexdigest()}"


def livened(model):
    """Values that hide nothing behind a zero; those of another model of the same seed are the same."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    return model


def observe_model(config, folder) -> str:
    """First weights; what it computes while it trains, and on images of another size."""
    first = create(config, seed=0)
    start = numbers(*first.parameters())
    model = livened(first).train()
    torch.manual_seed(1)
    outputs = []
    sizes = [config.image]
    if config.kind != "lenet":
        sizes.append((48, 32))
    for height, width in sizes:
        images = torch.randn(4, config.channels, height, width)
        outputs.append(model(images))
    return start + numbers(*outputs)


def observe_backbone(config, folder) -> str:
    return observe_model(replace(TINY_RESNET, backbone=config), folder)


def a_photograph():
    return open_image(encoded(photograph(300, 400), "JPEG", quality=90), "photograph")


def observe_preprocessing(preprocessing, folder) -> str:
    return numbers(preprocessing.normalise(preprocessing(a_photograph())[None]))


def observe_augmentation(augmentation, folder) -> str:
    preprocessing = Preprocessing(size=(32, 32))
    if augmentation.crop != "resize_crop":
        try:
            check_fits(augmentation, preprocessing)
        except ValueError as error:
            return str(error)
    images = []
    for seed in range(8):
        random = np.random.default_rng(seed)
        images.append(augment(a_photograph(), augmentation, preprocessing, random))
    native = Preprocessing(size=(32, 32), rule="native")
    recipe = Recipe(SMALL, Data(preprocessing=native, augmentation=augmentation))
    return numbers(*images) + str(recipe.training_preprocessing.size)


def a_table(folder):
    """A manifest with two columns of images and three of labels."""
    photos = make_photographs(folder)
    files = sorted(path.relative_to(folder) for path in photos.rglob("*.jpg"))
    lines = ["path,picture,label,kind,size"]
    for i, file in enumerate(files):
        lines.append(f"{file},{files[-1 - i]},{file.parent.name},{'odd' * (i % 2) or 'even'},{i}")
    (folder / "photos.csv").write_text("\n".join(lines))
    return folder / "photos.csv"


def observe_columns(columns, folder) -> str:
    folder.mkdir()
    table = a_table(folder)
    of_folder = open_source(str(folder), Columns(level=columns.level)).labels
    if columns.image is None:
        columns = replace(columns, image="path")
    source = open_source(str(table), columns)
    names = [source.name(i).removeprefix(str(folder)) for i in range(len(source))]
    answers = [source.answer(i) for i in range(len(source))]
    groups = source.groups
    if groups is not None:
        groups = groups.tolist()
    return json.dumps([source.target_kind, source.labels, names, answers, groups, of_folder])


def observe_optim(optim, folder) -> str:
    """Rates and decays of a run of ten steps, and the weights after three of them."""
    from vitkit.training.step import clip_gradient

    learner = Supervised().learner(livened(create(SMALL, seed=0)), Preprocessing())
    optimizer = optim.build(learner)
    rates = [optim.rate(step, 10) for step in range(10)]
    decays = [optim.decay(step, 10) for step in range(10)]
    generator = torch.Generator().manual_seed(0)
    for step in range(5, 8):
        for parameter in learner.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        clip_gradient(learner.parameters(), optim)
        for group in optimizer.param_groups:
            group["lr"] = rates[step] * group["scale"]
            group["weight_decay"] = decays[step] * group["decays"]
        optimizer.step()
    return json.dumps([rates, decays]) + numbers(*learner.parameters())


def masks_of(photos, masks) -> None:
    """Masks of the photographs in a folder: the upper half is 0, the lower one is 1."""
    for photo in photos.rglob("*.jpg"):
        with Image.open(photo) as image:
            mask = np.arange(image.height)[:, None].repeat(image.width, 1) >= image.height // 2
        file = masks / photo.relative_to(photos).with_suffix(".png")
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(mask.astype(np.uint8)).save(file)


def observe_objective(objective, folder) -> str:
    """Two updates' losses and gradients of its learner."""
    torch.manual_seed(0)
    preprocessing = Preprocessing(size=(32, 32))
    classes = 5 if isinstance(objective, Supervised) else 0
    learner = objective.learner(
        livened(create(replace(SMALL, classes=classes), seed=0)), preprocessing
    )
    livened(learner)
    trained_on = np.array([0, 1, 1, 2, 2, 2, 3])
    labels = tuple("abcde")
    learner.prepare(
        Source(Arrays("x", np.zeros((7, 4, 4), np.uint8)), np.arange(7), trained_on, labels)
    )
    images = torch.randn(4, 3, 32, 32).clamp(-1, 1)
    targets = torch.tensor([0, 1, 2, 3])
    keys = torch.arange(4) * 1_000_003
    observed = []
    for step in range(3):
        learner.zero_grad()
        learner.train()
        learner.before(step, 10)
        loss = learner(images, targets, keys)
        loss.backward()
        with torch.no_grad():
            for parameter in learner.parameters():
                if parameter.grad is not None:
                    parameter -= 0.01 * parameter.grad
        learner.updated(step + 1, 10)
        observed += [loss, *(p.grad for p in learner.parameters() if p.grad is not None)]
    return numbers(*observed)


def observe_evaluator(evaluator, folder) -> str:
    digits = open_source("digits")
    train, test = subset(digits, range(0, 359, 2)), subset(digits, range(1, 359, 2))
    model = livened(create(vit("mu/4", image=(8, 8), classes=10), seed=0))
    subject = Subject(Classifier(model, Preprocessing((8, 8)), digits.labels))
    metrics = evaluator.measure(subject, Part(test, None, train))
    return str([metric.text() for metric in metrics])


def observe_packing(packing, folder) -> str:
    folder.mkdir()
    parts = open_parts(str(make_photographs(folder))).sources
    pack_shards(parts, folder / "packed", packing, 0)
    files = sorted(path for path in (folder / "packed").rglob("*.[tp]ar*") if path.is_file())
    return str([(path.name, hashlib.sha256(path.read_bytes()).hexdigest()) for path in files])


def observe_machine(machine, folder) -> str:
    from vitkit import plan
    from vitkit.recipes import Facts, resolve

    recipe = replace(BASES[Recipe](), batch=48)
    said = spent(resolve(recipe, Facts(480, tuple("0123456789"))), machine)
    return str(said) + str(plan(recipe, **vars(machine), examples=480, classes=10, quiet=True))


def observe_tune(tune, folder) -> str:
    from vitkit.training.optim import apply_tuning

    torch.manual_seed(0)
    model = livened(create(SMALL, seed=0)).eval()
    apply_tuning(model, tune, 0)
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora" in name:
                parameter += 0.1
    return str(trained) + numbers(model(torch.ones(1, 3, 32, 32)))


def observe_run(recipe, folder) -> str:
    """What a run says and leaves behind, but for its own record of the settings."""
    here = folder.parent
    if not (here / "photos").exists():
        a_table(here)
        (here / "excluded.txt").write_text("".join(f"photos/red/{i}.jpg\n" for i in range(9)))
        masks_of(here / "photos", here / "masks")
        broken = make_photographs(here / "b").rename(here / "broken")
        (broken / "red" / "99.jpg").write_bytes(b"\xff\xd8 no image")
        started = replace(BASES[Recipe](), seed=7)
        run_recipe(started, here / "started", "cpu", Console(quiet=True))
    console = Console(record=True, width=200, file=io.StringIO())
    COUNTED.clear()
    try:
        classifier = run_recipe(recipe, folder, "cpu", console)
    except ValueError as error:
        return f"refused: {error}"
    lines = []
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        values = json.loads(line)
        for timing in ("images_per_second", "data_wait", "tflops"):
            values.pop(timing, None)
        lines.append(values)
    said = console.export_text().replace(str(folder), "")
    # Without the rate of work, and without sentences that only repeat settings
    said = "\n".join(line for line in said.splitlines() if "images/s" not in line)
    said = "\n".join(line for line in said.splitlines() if " parameters on cpu" not in line)
    said = re.sub(r" \(seed \d+\)", "", said)
    names = sorted(
        "events" if "tfevents" in path.name else str(path.relative_to(folder))
        for path in folder.rglob("*")
    )
    weights = numbers(*classifier.model.state_dict().values())
    called = classifier.origin["recipe"]
    return json.dumps([lines, said, names, called]) + weights + "".join(COUNTED)


COUNTED: list[str] = []


@pytest.fixture(autouse=True)
def counted(monkeypatch):
    """What a run does that leaves no trace in its results: worker processes that it asks for, what it
    decodes in advance, blocks that it computes again, among how many processes it shards, what it
    compiles, by PyTorch's quickest compiler, and whether it asks for the same bits every time."""
    loader = sys.modules[train_batches.__module__]
    vit = sys.modules[VisionTransformer.__module__]
    run_data = sys.modules["vitkit.training.data"]

    stream, decode, checkpoint = loader.batches_in_order, run_data.decoded, vit.checkpoint
    compiled = torch.nn.Module.compile
    choose_algorithms = torch.use_deterministic_algorithms

    def streaming(task, items, workers, *rest, **settings):
        COUNTED.append(f"workers {workers}")
        return stream(task, items, workers, *rest, **settings)

    def decoding(source, limit, *rest):
        COUNTED.append(f"decoded {limit}")
        return decode(source, limit, *rest)

    def choosing_algorithms(*arguments, **settings):
        COUNTED.append("deterministic")
        return choose_algorithms(*arguments, **settings)

    def checkpointing(*arguments, **settings):
        COUNTED.append("recomputed")
        return checkpoint(*arguments, **settings)

    def compiling(module, *arguments, **settings):
        COUNTED.append("compiled")
        return compiled(module, *arguments, **settings | {"backend": "eager"})

    start = sys.modules["vitkit.training.state.start"]
    shard = start.shard

    def sharding(learner, blocks, precision, group):
        COUNTED.append(f"groups of {group}")
        return shard(learner, blocks, precision, group)

    monkeypatch.setattr(start, "shard", sharding)
    monkeypatch.setattr(loader, "batches_in_order", streaming)
    monkeypatch.setattr(run_data, "decoded", decoding)
    monkeypatch.setattr(vit, "checkpoint", checkpointing)
    monkeypatch.setattr(torch.nn.Module, "compile", compiling)
    monkeypatch.setattr(torch, "use_deterministic_algorithms", choosing_algorithms)


def a_recipe() -> Recipe:
    return Recipe(
        model=replace(SHALLOW, depth=2, dropout=0.1),
        data=a_data(),
        optim=Optim(lr=2e-3),
        length=Span(2),
        batch=40,
        average=0.5,
        log_every=2,
        evaluate_every=Span(0),
        save_every=Span(0),
    )


def a_data() -> Data:
    return Data(
        "digits",
        preprocessing=Preprocessing((8, 8)),
        augmentation=Augmentation("pad_crop", pad=1, flip=False),
        workers=0,
    )


BASES = {
    ViTConfig: lambda: SMALL,
    Backbone: lambda: TINY_RESNET.backbone,
    ResNetConfig: lambda: TINY_RESNET,
    LeNetConfig: LeNetConfig,
    Preprocessing: lambda: Preprocessing(size=(32, 32)),
    Augmentation: Augmentation,
    Columns: Columns,
    Optim: lambda: Optim(lr=0.1, weight_decay=0.01),
    Tune: Tune,
    Supervised: Supervised,
    MaskedPatches: MaskedPatches,
    MaskedAutoencoder: lambda: MaskedAutoencoder(width=16, depth=1, heads=2),
    SelfDistillation: lambda: SelfDistillation(
        32, 16, 16, local_views=2, local_size=16, last_layer_still=Span(0), teacher_warmup=Span(0)
    ),
    Accuracy: Accuracy,
    Neighbours: Neighbours,
    Fewshot: lambda: Fewshot(shots=(2,), seeds=1),
    Packing: Packing,
    Machine: Machine,
    Eval: lambda: Eval(Accuracy()),
    Data: a_data,
    Recipe: a_recipe,
}
OBSERVE = {
    ViTConfig: observe_model,
    Backbone: observe_backbone,
    ResNetConfig: observe_model,
    LeNetConfig: observe_model,
    Preprocessing: observe_preprocessing,
    Augmentation: observe_augmentation,
    Columns: observe_columns,
    Optim: observe_optim,
    Tune: observe_tune,
    Supervised: observe_objective,
    MaskedPatches: observe_objective,
    MaskedAutoencoder: observe_objective,
    SelfDistillation: observe_objective,
    Neighbours: observe_evaluator,
    Fewshot: observe_evaluator,
    Packing: observe_packing,
    Machine: observe_machine,
    Recipe: observe_run,
}
RUN_OF = {  # what shows only in a run, as the recipe of one
    Eval: lambda each: replace(BASES[Recipe](), evals=(each,)),
    Data: lambda data: replace(BASES[Recipe](), data=data),
}
