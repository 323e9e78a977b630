"""Checkpoints of people's own training: whatever is around the model, its own outputs come back, or a
sentence says what to do; and which part of a checkpoint is read is told."""

import argparse
import warnings
import zipfile
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch
from other_libraries import TIMM, TRANSFORMERS, assert_same_outputs, randomised
from own_classes import CLASSES, WIDTH, above, linear, loaded, timm_vit, under, written
from quick_ones import quick_ones
from safetensors.torch import save_file
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torchvision.models import VisionTransformer as TorchvisionViT

from vitkit.weights import Hints, load, load_as, load_for
from vitkit.weights.files.pytorch import _unpickle, _Unread, read_pickle
from vitkit.weights.proof import check_reading, convert_weights


def torchvision_vit(**settings) -> nn.Module:
    return randomised(TorchvisionViT(32, 8, 2, 4, WIDTH, 80, num_classes=CLASSES, **settings))


def other_than(model: nn.Module) -> nn.Module:
    """A model of the same shapes and other weights."""
    other = type(model)(**{**TIMM, "num_classes": model.num_classes})
    other.load_state_dict({name: 2 * tensor for name, tensor in model.state_dict().items()})
    return other.eval()


@pytest.fixture
def transformers_vit():
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(**TRANSFORMERS)
    return randomised(transformers.ViTModel(config, add_pooling_layer=False))


# What is around the state dict


def steps(model: nn.Module) -> dict:
    """What a trainer keeps beside the model: the state of an optimiser that has made a step."""
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.zeros(1, 3, 32, 32)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    return {"optimizer": optimizer.state_dict(), "epoch": 3}


def with_metrics(model: nn.Module) -> dict:
    """A LightningModule's state dict: a weighted loss and metrics that are saved with it."""
    import torchmetrics  # takes seconds

    module = nn.Module()
    module.model = model
    module.criterion = nn.CrossEntropyLoss(weight=torch.rand(CLASSES))
    module.train_acc = torchmetrics.Accuracy("multiclass", num_classes=CLASSES)
    module.val_acc = torchmetrics.MeanMetric()
    module.confusion = torchmetrics.ConfusionMatrix("multiclass", num_classes=CLASSES)
    for metric in (module.train_acc, module.val_acc, module.confusion):
        metric.persistent(True)
    names = set(module.state_dict())
    assert {"criterion.weight", "train_acc.tp", "confusion.confmat"} <= names
    return module.state_dict()


KEYS = (
    "model", "state_dict", "model_state_dict", "model_state", "weights", "params", "net", "module",
    "network", "backbone", "state_dict_ema", "best_model", "vit",
)  # fmt: skip
WRAPPERS = {
    "bare": lambda m: m.state_dict(),
    **{key: lambda m, key=key: {key: m.state_dict(), **steps(m)} for key in KEYS},
    "model.module": lambda m: {"model": {"module": m.state_dict()}},
    "DataParallel": lambda m: nn.DataParallel(m).state_dict(),
    "compiled": lambda m: torch.compile(m).state_dict(),
    "compiled in DataParallel": lambda m: nn.DataParallel(torch.compile(m)).state_dict(),
    "blocks compiled": lambda m: compiled_blocks(m),
    "Lightning": lambda m: {
        "epoch": 1,
        "global_step": 10,
        "pytorch-lightning_version": "2.5.0",
        "state_dict": with_metrics(m),
        "loops": {"fit_loop": {"state_dict": {}}},
        "callbacks": {"ModelCheckpoint{'monitor': None}": {"best_model_score": torch.tensor(0.5)}},
        "optimizer_states": [steps(m)["optimizer"]],
        "hyper_parameters": {"lr": 1e-3},
    },
    "Lightning, compiled": lambda m: {"state_dict": under("model._orig_mod.", m)},
    "AveragedModel": lambda m: AveragedModel(m).state_dict(),
    "metrics beside DataParallel": lambda m: {
        **under("module.", m),
        "loss.weight": torch.rand(CLASSES),
    },
    "a loss beside bare names": lambda m: {
        **m.state_dict(),
        "criterion.weight": torch.rand(CLASSES),
    },
    "counters": lambda m: {
        **under("net.", m),
        "queue.num_batches_tracked": torch.tensor(3),
        "seen": torch.tensor(7),
    },
    "a NumPy scalar": lambda m: {"model": m.state_dict(), "best": np.float64(0.93)},
    "NumPy of every kind": lambda m: {
        "model": m.state_dict(),
        "best": [np.float32(1), np.int64(2), np.bool_(True), np.str_("a")],
        "predictions": np.arange(6.0).reshape(2, 3),
        "rng": np.random.RandomState(0).get_state(),
    },
    "a tensor scalar": lambda m: {"model": m.state_dict(), "best": torch.tensor(0.93)},
    "a log": lambda m: {
        "model": m.state_dict(),
        "history": defaultdict(list, loss=[1.0, 0.5]),
        "args": argparse.Namespace(output=Path("runs"), lr=0.1),
    },
    "timm's train.py": lambda m: {
        "epoch": 3,
        "arch": "vit_tiny_patch16_224",
        "state_dict": m.state_dict(),
        "optimizer": steps(m)["optimizer"],
        "version": 2,
        "args": argparse.Namespace(model="vit_tiny_patch16_224"),
        "amp_scaler": {"scale": 65536.0, "_growth_tracker": 0},
        "metric": np.float64(71.2),
    },
}


def compiled_blocks(model: nn.Module) -> dict:
    """As if each block were compiled by itself, or checkpointed: the name is amid the others."""
    inserted = {}
    for number, (name, tensor) in enumerate(model.state_dict().items()):
        word = ("_orig_mod.", "_checkpoint_wrapped_module.")[number % 2]
        for parent in ("blocks.0.", "encoder.layers.encoder_layer_0."):
            name = name.replace(parent, parent + word)
        inserted[name] = tensor
    return inserted


@pytest.mark.parametrize("name", WRAPPERS)
@pytest.mark.parametrize("make", [timm_vit, pytest.param(torchvision_vit, marks=pytest.mark.slow)])
def test_a_model_comes_out_of_every_wrapper(name, make, tmp_path):
    model = make()
    path = written(WRAPPERS[name](model), tmp_path)
    assert_same_outputs(model, loaded(path))


@pytest.mark.parametrize("prefix", ["model.", "module.", "_orig_mod.", "module.model._orig_mod."])
def test_prefixes_are_read_in_safetensors_too(prefix, tmp_path):
    model = timm_vit()
    save_file(
        {**under(prefix, model), "val_acc.total": torch.tensor(3)}, tmp_path / "m.safetensors"
    )
    assert_same_outputs(model, loaded(tmp_path / "m.safetensors"))


@pytest.mark.parametrize("name", ["epoch=3.ckpt", "model_best.pth.tar", "last.tar", "weights.pkl"])
def test_the_name_of_a_file_does_not_matter(name, tmp_path):
    model = timm_vit()
    path = written({"state_dict": under("model.", model)}, tmp_path, name)
    assert_same_outputs(model, loaded(path))


def test_a_checkpoint_folder_of_transformers_trainer_is_its_model(transformers_vit, tmp_path):
    transformers_vit.save_pretrained(tmp_path)
    torch.save({"state": {0: {"exp_avg": torch.zeros(3)}}}, tmp_path / "optimizer.pt")
    torch.save({"numpy": np.random.RandomState(0).get_state()}, tmp_path / "rng_state.pth")
    (tmp_path / "training_args.bin").write_bytes(b"a pickle of a class")
    classifier = load(tmp_path, quiet=True)
    assert_same_outputs(
        transformers_vit, classifier.model, read=lambda record: record.last_hidden_state[:, 0]
    )


@pytest.mark.parametrize("name", ["last.ckpt", "model_best.pth.tar", "model.pth"])
def test_the_only_checkpoint_of_a_folder_is_its_model(name, tmp_path):
    model = timm_vit()
    written(model.state_dict(), tmp_path, name)
    (tmp_path / "data-000.tar").write_bytes(b"a shard of images")
    assert_same_outputs(model, loaded(tmp_path))


def test_what_is_left_out_is_named(tmp_path, capsys):
    model = timm_vit()
    path = written(with_metrics(model), tmp_path)
    load(path, heads=4)
    told = capsys.readouterr().err
    for name in ("criterion.weight", "train_acc.tp", "confusion.confmat"):
        assert name in told.partition("left out: ")[2], name


def test_that_a_scalar_changes_no_answer_is_a_guess_and_told_as_one(tmp_path, capsys):
    """Nothing says whether it is a loss's or the model's."""
    model = timm_vit()
    state = {**under("net.", model), "temperature": torch.tensor(2.0), "loss.scale": torch.ones(3)}
    assert_same_outputs(model, load(written(state, tmp_path), heads=4).model)
    told = capsys.readouterr().err
    assert "GUESSED: temperature, beside the model, does not affect" in told
    assert "left out: loss.scale, beside the model" in told


# Heads


def with_heads(heads: nn.Module) -> nn.Module:
    model = torchvision_vit()
    model.heads = heads
    return randomised(model)


def with_inner_head(head: nn.Module) -> nn.Module:
    model = torchvision_vit()
    model.heads.head = head
    return randomised(model)


def with_head(head: nn.Module) -> nn.Module:
    model = timm_vit()
    model.head = head
    return randomised(model)


def deep(layer: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Dropout(0.1), nn.Sequential(nn.Identity(), layer))


HEADS = {
    "torchvision: heads.head": lambda: with_inner_head(linear()),
    "torchvision: heads": lambda: with_heads(linear()),
    "torchvision: heads, Sequential": lambda: with_heads(nn.Sequential(linear())),
    "torchvision: heads, dropout": lambda: with_heads(nn.Sequential(nn.Dropout(0.1), linear())),
    "torchvision: heads.head, dropout": lambda: with_inner_head(
        nn.Sequential(nn.Dropout(0.1), linear())
    ),
    "torchvision: heads, deep": lambda: with_heads(deep(linear())),
    "torchvision: no bias": lambda: with_heads(linear(bias=False)),
    "timm: head": lambda: with_head(linear()),
    "timm: head, dropout": lambda: with_head(nn.Sequential(nn.Dropout(0.1), linear())),
    "timm: head, deep": lambda: with_head(deep(linear())),
    "timm: no bias": lambda: with_head(linear(bias=False)),
    **{
        f"timm: {name} above": lambda name=name: above(timm_vit(num_classes=0), **{name: linear()})
        for name in ("fc", "head", "classifier", "linear", "cls_head", "fc1", "out")
    },
    "timm: classifier above, deep": lambda: above(
        timm_vit(num_classes=0), classifier=deep(linear())
    ),
    "timm: head above the mean": lambda: above(
        timm_vit(num_classes=0, global_pool="avg"), head=linear()
    ),
    "timm: Sequential": lambda: randomised(
        nn.Sequential(timm_vit(num_classes=0), nn.Dropout(0.1), linear())
    ),
    "timm: Sequential in a class": lambda: above(
        nn.Sequential(timm_vit(num_classes=0), nn.Flatten()),
        fc=nn.Sequential(nn.Dropout(), linear()),
    ),
    "timm: Sequential of all in a class": lambda: above(
        nn.Sequential(timm_vit(num_classes=0), nn.Flatten(), linear())
    ),
    "timm: MAP below": lambda: above(
        timm_vit(num_classes=0, global_pool="map", class_token=False), fc=linear()
    ),
    "torchvision: head above": lambda: above(with_heads(nn.Identity()), fc=linear()),
}


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("wrap", [nn.Module.state_dict, lambda m: {"model": under("module.", m)}])
def test_one_linear_layer_at_the_end_is_the_head(name, wrap, tmp_path):
    model = HEADS[name]()
    classifier = load(written(wrap(model), tmp_path), heads=4, quiet=True)
    assert classifier.model.config.classes == 5
    assert_same_outputs(model, classifier.model)


def test_a_head_in_a_dictionary_of_its_own_is_the_head(tmp_path):
    model = above(timm_vit(num_classes=0), classifier=linear())
    parts = {"backbone": model.backbone.state_dict(), "classifier": model.classifier.state_dict()}
    assert_same_outputs(model, loaded(written({**parts, "epoch": 3}, tmp_path)))


def test_two_layers_in_a_dictionary_of_their_own_are_refused_with_the_remedy(tmp_path):
    model = above(timm_vit(num_classes=0), head=mlp())
    parts = {"backbone": model.backbone.state_dict(), "head": model.head.state_dict()}
    path = written(parts, tmp_path)
    with pytest.raises(ValueError, match="its head is head.*`part='encoder'`"):
        loaded(path)
    for part in ("encoder", "backbone"):
        assert_same_outputs(model.backbone, loaded(path, part=part))


def test_a_checkpoint_called_last_is_no_head(tmp_path):
    best, last = timm_vit(num_classes=0), timm_vit(num_classes=0)
    path = written({"best": best.state_dict(), "last": last.state_dict()}, tmp_path)
    assert_same_outputs(best, loaded(path))


def test_a_head_under_another_name_is_told(tmp_path, capsys):
    load(written(above(timm_vit(num_classes=0), fc=linear()).state_dict(), tmp_path), heads=4)
    assert "head: the linear layer fc" in capsys.readouterr().err


def mlp() -> nn.Module:
    return nn.Sequential(linear(), nn.ReLU(), nn.Linear(5, 5))


def test_norms_between_encoder_and_head_are_not_dropped(tmp_path):
    """Vectors all the same: left out, they would change every answer."""
    for norm in (nn.LayerNorm(WIDTH), nn.BatchNorm1d(WIDTH)):
        model = above(timm_vit(num_classes=0), bn=norm, fc=linear())
        with pytest.raises(ValueError, match="unknown tensors: bn.*--part|unknown.*part="):
            loaded(written(model.state_dict(), tmp_path))


def with_unused(model: nn.Module) -> nn.Module:
    """A mistake of courses: this model's head is head."""
    model.fc = linear()
    return model


REFUSED = {
    "torchvision: two layers": lambda: (with_heads(mlp()), "encoder"),
    "timm: two layers": lambda: (with_head(mlp()), "encoder"),
    "timm: a norm and a layer": lambda: (
        with_head(nn.Sequential(nn.LayerNorm(WIDTH), linear())),
        "encoder",
    ),
    "timm: batch norm and a layer": lambda: (
        with_head(nn.Sequential(nn.BatchNorm1d(WIDTH, affine=False), linear())),
        "encoder",
    ),
    "two layers above": lambda: (
        above(timm_vit(num_classes=0), fc=mlp()),
        "backbone",
    ),
    "two heads above": lambda: (
        above(timm_vit(num_classes=0), fc1=nn.Linear(WIDTH, WIDTH), fc2=linear()),
        "backbone",
    ),
    "a norm of the same name above": lambda: (
        above(timm_vit(num_classes=0), norm=nn.LayerNorm(WIDTH), head=linear()),
        "backbone",
    ),
    "a head within and a head that nobody reads": lambda: (
        with_unused(timm_vit()),
        "encoder",
    ),
    "a head above a head": lambda: (above(timm_vit(), head=linear(CLASSES)), "backbone"),
    "a layer under no head's name": lambda: (
        above(timm_vit(num_classes=0), adapter=linear()),
        "backbone",
    ),
    "a head that reads more": lambda: (
        above(timm_vit(num_classes=0), fc=linear(2 * WIDTH)),
        "backbone",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_heads_are_refused_with_the_remedy(name, tmp_path):
    model, part = REFUSED[name]()
    path = written({"model": model.state_dict()}, tmp_path)
    with pytest.raises(ValueError, match=f"one linear layer.*`part='{part}'`"):
        loaded(path)
    with pytest.raises(ValueError, match=f"`part={part!r}`"):
        load_as(path, Hints(heads=4))

    # The remedy works: the encoder as it is, for a head of its own
    encoder = getattr(model, "backbone", model)
    if part == "encoder":
        setattr(encoder, "heads" if hasattr(encoder, "heads") else "head", nn.Identity())
    else:
        encoder.head = nn.Identity() if not name.startswith("a head above") else encoder.head
    assert_same_outputs(encoder, loaded(path, part=part))


def test_lora_is_refused_with_the_remedy(tmp_path):
    state = under("base_model.model.", timm_vit())
    weight = state.pop("base_model.model.blocks.0.attn.qkv.weight")
    qkv = "base_model.model.blocks.0.attn.qkv"
    state |= {
        f"{qkv}.base_layer.weight": weight,
        f"{qkv}.lora_A.default.weight": torch.zeros(2, WIDTH),
        f"{qkv}.lora_B.default.weight": torch.zeros(3 * WIDTH, 2),
    }
    with pytest.raises(ValueError, match=r"merge_and_unload\(\)"):
        loaded(written(state, tmp_path))


# Transformers


class ClassTokenNet(nn.Module):
    """A classifier above a model of Transformers."""

    def __init__(self, vit: nn.Module, head: nn.Module):
        super().__init__()
        self.vit = vit
        self.head = head

    def forward(self, images):
        return self.head(self.vit(images).last_hidden_state[:, 0])


def test_a_head_above_a_pooler_is_not_guessed(tmp_path):
    """Nothing says whether it reads pooler_output or last_hidden_state[:, 0]."""
    transformers = pytest.importorskip("transformers")
    vit = transformers.ViTModel(transformers.ViTConfig(**TRANSFORMERS))
    vit.config.save_pretrained(tmp_path)
    model = randomised(ClassTokenNet(vit, linear()))
    written(model.state_dict(), tmp_path, "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"whether it reads vit\.pooler\.dense\.weight"):
        load(tmp_path, quiet=True)


def test_a_head_above_attention_pooling_is_not_guessed(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.SiglipVisionConfig(**{**TRANSFORMERS, "num_hidden_layers": 1})
    vision = transformers.SiglipVisionModel(config)
    vision.config.save_pretrained(tmp_path)
    model = randomised(ClassTokenNet(vision, linear()))
    written(model.state_dict(), tmp_path, "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"whether it reads .*head\.probe"):
        load(tmp_path, quiet=True)


@pytest.mark.parametrize("head", [linear(), nn.Sequential(nn.Dropout(0.1), linear())])
def test_a_class_above_a_model_of_transformers_is_read(head, transformers_vit, tmp_path):
    model = randomised(ClassTokenNet(transformers_vit, head))
    transformers_vit.config.save_pretrained(tmp_path)
    for content in (model.state_dict(), {"model_state_dict": under("module.", model)}):
        written(content, tmp_path, "pytorch_model.bin")
        assert_same_outputs(model, load(tmp_path, quiet=True).model)


@pytest.mark.parametrize("prefix", ["", "module."])
@pytest.mark.parametrize("name", ["classifier", "fc"])
def test_a_class_of_somebodys_own_is_not_compared_with_transformers(
    name, prefix, transformers_vit, tmp_path
):
    """Which would give it a new head, or all new weights, and the logits would differ."""
    transformers_vit.config.save_pretrained(tmp_path)
    head = nn.Sequential(nn.Dropout(0.1), linear())
    model = randomised(ClassTokenNet(transformers_vit, head))
    state = {
        prefix + key.replace("head.", f"{name}."): tensor
        for key, tensor in model.state_dict().items()
    }
    save_file(state, tmp_path / "model.safetensors")
    assert check_reading(tmp_path) is None
    proof = convert_weights(load(tmp_path, quiet=True), tmp_path / "converted", "huggingface")
    assert proof.largest < 1e-5
    assert check_reading(save_own(transformers_vit, tmp_path / "own")) is not None


def save_own(model: nn.Module, folder: Path) -> Path:
    """As Transformers saves it."""
    model.save_pretrained(folder)
    return folder


def test_without_its_config_the_sentence_says_where_to_put_it(transformers_vit, tmp_path):
    path = written(ClassTokenNet(transformers_vit, linear()).state_dict(), tmp_path)
    with pytest.raises(ValueError, match=r"pytorch_model\.bin.*config\.json"):
        load(path, quiet=True)


# Which part


def pair():
    model = timm_vit()
    return model, other_than(model)


AVERAGES = {
    "model_ema": lambda m, e: {"model": m.state_dict(), "model_ema": e.state_dict()},
    "state_dict_ema": lambda m, e: {"state_dict": m.state_dict(), "state_dict_ema": e.state_dict()},
    "ema_state_dict": lambda m, e: {"model": m.state_dict(), "ema_state_dict": e.state_dict()},
    "ema": lambda m, e: {"model": m.state_dict(), "ema": {"module": e.state_dict(), "decay": 0.9}},
    "swa_model": lambda m, e: {"model": m.state_dict(), "swa_model": AveragedModel(e).state_dict()},
    "teacher": lambda m, e: {"student": under("module.", m), "teacher": e.state_dict()},
    "ema_model": lambda m, e: {
        "state_dict": {**under("model.", m), **under("ema_model.module.", e)}
    },
    "teacher_backbone": lambda m, e: {
        "state_dict": {**under("student_backbone.", m), **under("teacher_backbone.", e)}
    },
}
OTHER = {"ema_model": "model", "teacher": "student", "teacher_backbone": "student_backbone"}


@pytest.mark.parametrize("name", quick_ones(AVERAGES, ("ema", "teacher", "teacher_backbone")))
def test_of_a_model_and_its_average_the_average_is_read_and_said(name, tmp_path, capsys):
    model, average = pair()
    path = written(AVERAGES[name](model, average), tmp_path)
    other = OTHER.get(name, "state_dict" if name == "state_dict_ema" else "model")
    assert_same_outputs(average, load(path, heads=4).model)
    told = capsys.readouterr().err
    assert told.count("part: ") == 1
    assert f"part: {name}, by its name the average of {other}" in told
    assert f"`part='{other}'`" in told
    assert_same_outputs(model, loaded(path, part=other))
    assert_same_outputs(average, loaded(path, part=name))

    # Also where weights are taken to begin a training with
    _, notes = load_for(path, loaded(path).config)
    assert [note for note in notes if f"part: {name}" in note and "convert with `part=" in note]


def test_a_student_may_have_a_mask_embedding_that_its_teacher_lacks(tmp_path):
    """iBOT's."""
    student, teacher = (timm_vit(num_classes=0) for _ in range(2))
    content = {
        "student": {
            **under("module.backbone.", student),
            "module.backbone.masked_embed": torch.zeros(1),
        },
        "teacher": under("backbone.", teacher),
    }
    assert_same_outputs(teacher, loaded(written(content, tmp_path)))


def test_a_larger_teacher_is_no_average_of_its_student(tmp_path, capsys):
    """Distillation: the student is what was trained."""
    student = timm_vit()
    content = {"teacher": timm_vit(depth=3).state_dict(), "student": student.state_dict()}
    path = written(content, tmp_path)
    assert_same_outputs(student, load(path, heads=4).model)
    assert "part: student" in capsys.readouterr().err
    assert loaded(path, part="teacher").config.depth == 3


def test_of_momentum_encoders_the_trained_one_is_read(tmp_path, capsys):
    """As MoCo v3's own code reads its checkpoints."""
    model, momentum = (timm_vit(num_classes=0) for _ in range(2))
    state = {
        **under("module.momentum_encoder.", momentum),
        **under("module.base_encoder.", model),
        "module.base_encoder.head.0.weight": torch.rand(8, WIDTH),
        "module.base_encoder.head.1.running_mean": torch.rand(8),
        "module.base_encoder.head.3.weight": torch.rand(8, 8),
        "module.momentum_encoder.head.0.weight": torch.rand(8, WIDTH),
        "module.predictor.0.weight": torch.rand(8, 8),
    }
    path = written({"state_dict": state}, tmp_path)
    assert_same_outputs(model, load(path, heads=4).model)
    told = capsys.readouterr().err
    assert "part: base_encoder" in told and "left out: module.base_encoder.head" in told


def test_lightlys_projection_heads_are_left_out(tmp_path, capsys):
    model, average = (timm_vit(num_classes=0) for _ in range(2))
    state = {
        **under("student_backbone.vit.", model),
        **under("teacher_backbone.vit.", average),
        "student_head.layers.0.weight": torch.rand(8, WIDTH),
        "teacher_head.layers.0.weight": torch.rand(8, WIDTH),
        "teacher_head.last_layer.parametrizations.weight.original1": torch.rand(8, 8),
        "criterion.center": torch.rand(1, 1, 8),
    }
    path = written({"state_dict": state}, tmp_path)
    classifier = load(path, heads=4)
    assert classifier.model.config.classes == 0
    assert_same_outputs(average, classifier.model)
    told = capsys.readouterr().err
    assert "teacher_head.layers" in told and "criterion.center" in told


def test_two_models_in_one_class_are_not_chosen_from(tmp_path):
    """An ensemble: neither half is the model."""
    first, second = pair()
    state = {**under("first.", first), **under("second.", second)}
    path = written(state, tmp_path)
    with pytest.raises(ValueError, match="several encoders, first and second.*`part='first'`"):
        loaded(path)
    assert_same_outputs(second, loaded(path, part="second"))


def test_of_two_checkpoints_in_one_the_first_is_read_and_said(tmp_path, capsys):
    first, second = pair()
    path = written({"last": first.state_dict(), "other": second.state_dict()}, tmp_path)
    assert_same_outputs(first, load(path, heads=4).model)
    assert "part: last, the first of last and other (otherwise: `part='other'`)" in (
        capsys.readouterr().err
    )


def test_momenta_of_an_optimizer_are_no_model(tmp_path, capsys):
    """Some optimisers keep them by the parameters' names."""
    model, momenta = pair()
    content = {"optimizer": {"mu": momenta.state_dict()}, "model": model.state_dict()}
    assert_same_outputs(model, load(written(content, tmp_path), heads=4).model)
    assert "part:" not in capsys.readouterr().err


def test_solo_learns_online_classifier_is_the_head(tmp_path):
    model = above(timm_vit(num_classes=0), classifier=linear())
    state = {
        **model.state_dict(),
        **under("momentum_backbone.", timm_vit(num_classes=0)),
        "projector.0.weight": torch.rand(8, WIDTH),
        "momentum_projector.0.weight": torch.rand(8, WIDTH),
        "predictor.2.bias": torch.rand(8),
    }
    assert_same_outputs(model, loaded(written({"state_dict": state}, tmp_path)))


def test_names_that_move_a_cursor_are_escaped(tmp_path, capsys):
    first, second = pair()
    path = written({"a\nb\x1b[2J": first.state_dict(), "other": second.state_dict()}, tmp_path)
    load(path, heads=4)
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "part: " in line]
    assert "\x1b" not in line and "the first of a" in line


def test_two_paths_of_the_same_words_end(tmp_path):
    first, second = pair()
    path = written({"a.b": first.state_dict(), "a": {"b": second.state_dict()}}, tmp_path)
    assert_same_outputs(first, loaded(path))


def test_more_encoders_than_anybody_has_are_refused(tmp_path):
    state = {f"vit{i}.patch_embed.proj.weight": torch.zeros(1) for i in range(500)}
    with pytest.raises(ValueError, match="it holds 100 encoders or more"):
        loaded(written(state, tmp_path))


def test_a_part_that_is_not_there_is_a_sentence(tmp_path):
    model, average = pair()
    path = written({"model": model.state_dict(), "ema": average.state_dict()}, tmp_path)
    with pytest.raises(ValueError, match="no part 'teacher'; its parts are model and ema"):
        loaded(path, part="teacher")
    bare = written(model.state_dict(), tmp_path)
    with pytest.raises(ValueError, match="no part 'model'; it is one model, so leave out `part`"):
        loaded(bare, part="model")


# What is in a file


@pytest.mark.parametrize("module", [b"numpy._core.multiarray", b"numpy.core.multiarray"])
def test_numpys_objects_are_not_made(module, tmp_path):
    """Nothing of NumPy runs, whose functions were not written for strangers' pickles; of NumPy 1 and 2."""
    content = {"model": timm_vit().state_dict(), "best": np.float64(1), "all": np.ones(3)}
    path = written(content, tmp_path)
    renamed = tmp_path / "renamed.pth"
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(renamed, "w") as target:
        for record in source.infolist():
            data = source.read(record)
            if record.filename.endswith(".pkl"):
                assert b"numpy._core.multiarray" in data
                data = data.replace(b"numpy._core.multiarray", module)
            target.writestr(record.filename, data)
    parts, _ = read_pickle(renamed)
    assert list(parts) == [("model",)]
    checkpoint = _unpickle(renamed)
    for name in ("best", "all"):
        assert isinstance(checkpoint[name], _Unread), name


class Scalar:
    """numpy's scalar of a dtype that holds objects."""

    def __reduce__(self):
        return np._core.multiarray.scalar, (np.dtype("O"), "anything")


def test_numpy_scalars_that_hold_objects_are_refused(tmp_path):
    path = written({"model": timm_vit().state_dict(), "best": Scalar()}, tmp_path)
    with pytest.raises(ValueError, match="a NumPy dtype 'O8'"):
        loaded(path)


def test_arrays_in_place_of_tensors_are_a_sentence(tmp_path):
    state = {name: tensor.numpy() for name, tensor in timm_vit().state_dict().items()}
    with pytest.raises(ValueError, match=r"NumPy arrays.*torch\.from_numpy"):
        loaded(written({"model": state}, tmp_path))


@pytest.mark.parametrize("content", [[1], {"epoch": 3}, {"model": {}}, torch.zeros(3), "text"])
def test_a_file_without_a_state_dict_says_what_it_holds(content, tmp_path):
    with pytest.raises(ValueError, match=r"holds .*model\.state_dict\(\)"):
        loaded(written(content, tmp_path))


def test_a_dictionary_that_holds_itself_ends(tmp_path):
    content = {"epoch": 3}
    content |= {f"loop {i}": content for i in range(50)}
    with pytest.raises(ValueError, match="holds"):
        loaded(written(content, tmp_path))


def test_a_whole_model_is_refused_with_the_remedy(tmp_path):
    with pytest.raises(ValueError, match=r"torch\.save\(model\.state_dict\(\)"):
        loaded(written(timm_vit(), tmp_path))


def test_a_script_is_refused_with_the_remedy(tmp_path):
    with warnings.catch_warnings(action="ignore"):  # that TorchScript is going
        torch.jit.trace(timm_vit(), torch.zeros(1, 3, 32, 32)).save(tmp_path / "m.pt")
    with pytest.raises(ValueError, match=r"torch\.jit\.load\(FILE\)\.state_dict\(\)"):
        loaded(tmp_path / "m.pt")
