"""Classes of people's own around an encoder: every layer between it and the answer is read, or refused with
the remedy, whatever its name is."""

import argparse
import json

import pytest
import torch
from other_libraries import TIMM, TRANSFORMERS, assert_same_outputs, randomised
from own_classes import WIDTH, above, linear, loaded, timm_vit, under, written
from quick_ones import quick_ones
from timm.models import Cait
from torch import nn
from torch.nn.utils import prune

from vitkit.data import Preprocessing
from vitkit.models import ViTConfig
from vitkit.system.errors import BadWeights
from vitkit.weights import (
    Classifier,
    Hints,
    Unknown,
    create,
    format_of,
    load,
    load_as,
    load_for,
    save,
)
from vitkit.weights.destination import write_model
from vitkit.weights.files.content import lazy_zeros
from vitkit.weights.files.pytorch import read_pickle
from vitkit.weights.formats import NATIVE
from vitkit.weights.parts import Encoder

# Layers between encoder and head


BETWEEN = {
    "projector": lambda: nn.Linear(WIDTH, WIDTH),
    "projection_head": lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()),
    "student_head": lambda: nn.Sequential(nn.Linear(WIDTH, 8), nn.ReLU(), nn.Linear(8, WIDTH)),
    "proj_predictor": lambda: nn.Linear(WIDTH, WIDTH, bias=False),
    "test_proj": lambda: nn.Linear(WIDTH, WIDTH),
    "loss_fn": lambda: nn.Linear(WIDTH, WIDTH),
    "criterion": lambda: nn.Linear(WIDTH, WIDTH),
    "f1": lambda: nn.Linear(WIDTH, WIDTH),
    "train_bn": lambda: nn.BatchNorm1d(WIDTH),
    "loss_norm": lambda: nn.LayerNorm(WIDTH, bias=False),
    "online_predictor": lambda: nn.GRU(WIDTH, WIDTH),
    "projector_scale": lambda: nn.Parameter(torch.ones(WIDTH)),
    "val_conv": lambda: nn.Conv1d(1, WIDTH, WIDTH),
}


@pytest.mark.parametrize("name", BETWEEN)
def test_a_layer_before_the_head_is_not_dropped_by_its_name(name, tmp_path):
    layer = BETWEEN[name]()
    model = nn.Module()
    model.backbone = timm_vit(num_classes=0)
    setattr(model, name, layer)
    model.classifier = linear()
    path = written(model.state_dict(), tmp_path)
    with pytest.raises(ValueError, match=rf"{name}.*`part='backbone'`"):
        loaded(path)
    assert_same_outputs(model.backbone, loaded(path, part="backbone"))


@pytest.mark.parametrize("name", ["loss_out", "projector", "test_calibration", "metric"])
@pytest.mark.parametrize("layer", [nn.Linear(5, 5), nn.LayerNorm(5)])
def test_a_layer_behind_the_head_is_not_dropped_by_its_name(name, layer, tmp_path):
    model = above(timm_vit(num_classes=0), classifier=linear(), **{name: layer})
    with pytest.raises(ValueError, match=rf"{name}.*`part='backbone'`"):
        loaded(written(model.state_dict(), tmp_path))


def test_a_vector_alone_is_a_losss_weights_of_classes_and_no_layer_behind_the_head(
    tmp_path, capsys
):
    model = above(timm_vit(num_classes=0), classifier=linear())
    state = {**model.state_dict(), "loss_fn.weight": torch.rand(5)}
    assert_same_outputs(model, load(written(state, tmp_path), heads=4).model)
    assert "left out: loss_fn.weight" in capsys.readouterr().err


def test_a_layer_in_a_dictionary_of_its_own_is_not_dropped(tmp_path):
    layers = {"projector": nn.Linear(WIDTH, WIDTH), "classifier": linear()}
    model = above(timm_vit(num_classes=0), **layers)
    parts = {name: child.state_dict() for name, child in model.named_children()}
    path = written(parts, tmp_path)
    with pytest.raises(ValueError, match=r"projector.*`part='encoder'`"):
        loaded(path)
    for part in ("encoder", "backbone"):
        assert_same_outputs(model.backbone, loaded(path, part=part))


def test_a_projection_that_no_head_can_read_is_left_out(tmp_path, capsys):
    """An online classifier beside SimCLR's projection, whose outputs are not as many as a head reads."""
    model = above(timm_vit(num_classes=0), classifier=linear())
    projector = nn.Sequential(nn.Linear(WIDTH, 20), nn.ReLU(), nn.Linear(20, 16))
    state = {**model.state_dict(), **under("projector.", projector)}
    assert_same_outputs(model, load(written(state, tmp_path), heads=4).model)
    assert "left out: projector" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name", ["predictor", "train_head", "target_head", "student_head", "projection_head", "val_fc"]
)
@pytest.mark.parametrize("split", [False, True])  # into a dictionary for each
def test_the_only_linear_layer_is_the_head_whatever_its_name(name, split, tmp_path, capsys):
    model = above(timm_vit(num_classes=0), **{name: linear()})
    state = model.state_dict()
    if split:
        state = {key: child.state_dict() for key, child in model.named_children()}
    path = written(state, tmp_path)
    classifier = load(path, heads=4)
    assert_same_outputs(model, classifier.model)
    assert f"head: the linear layer {name}" in capsys.readouterr().err
    assert_same_outputs(model.backbone, loaded(path, part="backbone"))


@pytest.mark.parametrize("name", ["predictor", "train_head"])
def test_the_encoders_own_class_may_have_that_layer(name, tmp_path):
    class Own(type(timm_vit())):
        def forward(self, images):
            return getattr(self, name)(super().forward(images))

    model = Own(**{**TIMM, "num_classes": 0})
    setattr(model, name, linear())
    assert_same_outputs(randomised(model), loaded(written(model.state_dict(), tmp_path)))


def test_a_projection_as_head_is_told_as_a_guess(tmp_path, capsys):
    path = written(above(timm_vit(num_classes=0), predictor=linear()).state_dict(), tmp_path)
    classifier = load(path, heads=4)
    assert "GUESSED: its only linear layer, predictor, is the head" in capsys.readouterr().err
    _, notes = load_for(path, classifier.model.config)
    assert any(note.startswith("GUESSED: its only linear layer") for note in notes)


def test_a_predictor_of_several_layers_is_left_out_as_a_guess(tmp_path, capsys):
    """BYOL's is none of the model, and a head of that name is."""
    predictor = nn.Sequential(nn.Linear(WIDTH, 16), nn.ReLU(), nn.Linear(16, 5))
    model = above(timm_vit(num_classes=0), predictor=predictor)
    classifier = load(written(model.state_dict(), tmp_path), heads=4)
    assert_same_outputs(model.backbone, classifier.model)
    assert "GUESSED: predictor." in capsys.readouterr().err


def test_a_convolution_is_no_head(tmp_path):
    """It may answer for every patch."""
    convolution = nn.Conv2d(WIDTH, 5, 1)
    model = nn.Module()
    model.backbone = timm_vit(num_classes=0)
    model.classifier = convolution
    path = written(model.state_dict(), tmp_path)
    with pytest.raises(ValueError, match=r"classifier\.weight.*`part='backbone'`"):
        loaded(path)
    own = timm_vit()
    own.head = convolution
    with pytest.raises(ValueError, match=r"head\.weight.*`part='encoder'`"):
        loaded(written(own.state_dict(), tmp_path))


# Buffers


class Permuted(nn.Module):
    """Features in an order of its own, before the head."""

    def __init__(self):
        super().__init__()
        self.backbone = timm_vit(num_classes=0)
        self.register_buffer("perm", torch.randperm(WIDTH))
        self.fc = linear()

    def forward(self, images):
        return self.fc(self.backbone(images)[:, self.perm])


def test_whole_numbers_that_answers_depend_on_are_not_dropped(tmp_path, capsys):
    model = randomised(Permuted())
    path = written(model.state_dict(), tmp_path)
    with pytest.raises(ValueError, match=r"perm.*`part='backbone'`"):
        loaded(path)
    model.perm = torch.arange(5)  # of classes
    load(written(model.state_dict(), tmp_path), heads=4)
    assert "GUESSED: perm, beside the model, does not affect" in capsys.readouterr().err
    model.perm = torch.eye(WIDTH).bool()
    with pytest.raises(ValueError, match=r"perm.*`part='backbone'`"):
        loaded(written(model.state_dict(), tmp_path))


class Normalised(nn.Module):
    """A class that normalises its images itself."""

    def __init__(self, mean, std, shape, names=("mean", "std"), under=""):
        super().__init__()
        self.backbone = timm_vit(num_classes=0)
        self.fc = linear()
        self.names = names
        holder = self
        if under:
            holder = nn.Module()
            setattr(self, under, holder)
        self.values = [torch.tensor(mean).view(shape), torch.tensor(std).view(shape)]
        for name, values in zip(names, self.values, strict=True):
            holder.register_buffer(name, values)

    def forward(self, images):
        mean, std = (values.view(1, -1, 1, 1) for values in self.values)
        return self.fc(self.backbone((images - mean) / std))


MEAN, STD = [0.41, 0.42, 0.43], [0.21, 0.22, 0.23]
STATED = {
    "vectors": lambda: Normalised(MEAN, STD, (3,)),
    "of an image": lambda: Normalised(MEAN, STD, (1, 3, 1, 1)),
    "of a picture": lambda: Normalised(MEAN, STD, (3, 1, 1), ("pixel_mean", "pixel_std")),
    "in a module": lambda: Normalised(MEAN, STD, (3,), under="normalize"),
    "numbers of bytes": lambda: Normalised(
        [100.0, 110.0, 120.0], [50.0, 55.0, 60.0], (3, 1, 1), ("pixel_mean", "pixel_std")
    ),
}


@pytest.mark.parametrize("name", STATED)
def test_mean_and_deviation_of_pixels_are_read(name, tmp_path, capsys):
    model = randomised(STATED[name]())
    classifier = load(written(model.state_dict(), tmp_path), heads=4)
    told = capsys.readouterr().err
    assert told.count("GUESSED: images are normalised") == 1 and "in the file" in told
    images = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    scale = 1.0 if name == "numbers of bytes" else 255.0
    with torch.inference_mode():
        expected = model(images / scale)
    torch.testing.assert_close(classifier.logits(images), expected, atol=1e-5, rtol=1e-5)

    # What the user says goes before
    said = load(written(model.state_dict(), tmp_path), heads=4, statistics="half", quiet=True)
    assert said.preprocessing.mean == (0.5, 0.5, 0.5)


def test_statistics_that_no_pixels_have_are_refused(tmp_path):
    model = Normalised([3.0, -400.0, 2.0], [9.0, 8.0, 7.0], (3,))
    with pytest.raises(ValueError, match=r"mean.*`part='backbone'`"):
        loaded(written(model.state_dict(), tmp_path))


def test_a_mean_without_its_deviation_is_refused(tmp_path):
    model = Normalised(MEAN, STD, (1, 3, 1, 1))
    state = model.state_dict()
    del state["std"]
    with pytest.raises(ValueError, match=r"mean.*`part='backbone'`"):
        loaded(written(state, tmp_path))


def test_what_no_remedy_helps_has_none(tmp_path):
    """CaiT: without its head it is no Vision Transformer of vitkit's either."""
    settings = {**TIMM, "depth_token_only": 1}
    path = written(Cait(**settings).state_dict(), tmp_path)
    with pytest.raises(ValueError, match="gamma|blocks_token_only|proj_l") as caught:
        loaded(path)
    assert "linear layer" not in str(caught.value) and "part" not in str(caught.value)


# Transformers


def folder_of(model: nn.Module, config, folder, **fields):
    for name, value in fields.items():
        setattr(config, name, value)
    config.save_pretrained(folder)
    written(model.state_dict(), folder, "pytorch_model.bin")
    return folder


class Pooled(nn.Module):
    """A classifier that reads the pooled output of a model of Transformers."""

    def __init__(self, vit: nn.Module):
        super().__init__()
        self.vit = vit
        self.classifier = linear()

    def forward(self, images):
        return self.classifier(self.vit(images).pooler_output)


@pytest.mark.parametrize("architectures", [["ViTForImageClassification"], None, ["ViTModel"]])
def test_a_classifier_beside_a_pooler_is_of_somebodys_own(architectures, tmp_path):
    transformers = pytest.importorskip("transformers")
    model = randomised(Pooled(transformers.ViTModel(transformers.ViTConfig(**TRANSFORMERS))))
    folder = folder_of(model, model.vit.config, tmp_path, architectures=architectures)
    with pytest.raises(ValueError, match=r"unknown which output.*`part='encoder'`"):
        load(folder, quiet=True)
    encoder = load(folder, part="encoder", quiet=True).model
    assert_same_outputs(model.vit, encoder, read=lambda record: record.pooler_output)


@pytest.mark.parametrize("architectures", [["SiglipVisionModel"], None])
def test_a_classifier_beside_attention_pooling_is_of_somebodys_own(architectures, tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.SiglipVisionConfig(**{**TRANSFORMERS, "num_hidden_layers": 1})
    model = randomised(Pooled(transformers.SiglipVisionModel(config)))
    folder = folder_of(model, config, tmp_path, architectures=architectures)
    with pytest.raises(ValueError, match=r"unknown which output.*`part='encoder'`"):
        load(folder, quiet=True)
    encoder = load(folder, part="encoder", quiet=True).model
    assert_same_outputs(model.vit, encoder, read=lambda record: record.pooler_output)


# What the checkpoint says of the model


def test_the_architecture_that_a_checkpoint_names_is_asked(tmp_path, capsys):
    """Its activation is another, which no tensor says."""
    model = timm_vit(act_layer="quick_gelu")
    name = "vit_base_patch16_clip_quickgelu_224"
    for beside in (
        {"arch": name},
        {"args": argparse.Namespace(model=name)},
        {"hyper_parameters": {"model_name": f"{name}.openai"}},
    ):
        content = {"state_dict": model.state_dict(), **beside}
        classifier = load(written(content, tmp_path, "vit_base_patch16_224.pth"), heads=4)
        assert classifier.model.config.gelu == "quick"
        assert (
            f"architecture: timm's {name}, by the name in the checkpoint" in capsys.readouterr().err
        )


def test_an_architecture_that_vitkit_does_not_read_is_refused_by_its_name(tmp_path):
    content = {"arch": "beit_base_patch16_224", "state_dict": timm_vit().state_dict()}
    with pytest.raises(ValueError, match="timm's beit_base_patch16_224 by its checkpoint"):
        loaded(written(content, tmp_path))


@pytest.mark.parametrize("arch", [3, None, "vit_small", torch.zeros(2), "x" * 10_000])
def test_an_architecture_that_nobody_knows_says_nothing(arch, tmp_path):
    model = timm_vit()
    content = {"arch": arch, "state_dict": model.state_dict(), "args": argparse.Namespace()}
    assert_same_outputs(model, loaded(written(content, tmp_path)))


# Which of several


MOMENTS = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "square_avg", "adam_m")


def twice(model: nn.Module) -> dict:
    return {name: 2 * tensor for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize("key", quick_ones(MOMENTS, ("exp_avg", "momentum_buffer")))
def test_the_moments_of_an_optimizer_are_no_model(key, tmp_path, capsys):
    model = timm_vit()
    for content in (
        {"model": model.state_dict(), key: twice(model)},
        {key: twice(model), "model": model.state_dict()},
        {**under("model.", model), **{f"{key}.{n}": t for n, t in twice(model).items()}},
    ):
        assert_same_outputs(model, load(written(content, tmp_path), heads=4).model)
        assert "part:" not in capsys.readouterr().err


BEST = {
    "best": lambda best, other: {"last": other, "best": best},
    "best_model": lambda best, other: {"model": other, "best_model": best},
    "best_state_dict": lambda best, other: {"state_dict": other, "best_state_dict": best},
}


@pytest.mark.parametrize("name", BEST)
def test_of_several_checkpoints_the_best_is_read_and_said(name, tmp_path, capsys):
    model = timm_vit()
    path = written(BEST[name](model.state_dict(), twice(model)), tmp_path)
    assert_same_outputs(model, load(path, heads=4).model)
    assert f"part: {name}, not " in capsys.readouterr().err


@pytest.mark.parametrize("name", ["init_state", "initial_weights", "model_init", "untrained"])
def test_the_untrained_model_is_never_read_unasked(name, tmp_path, capsys):
    model = timm_vit()
    path = written({name: twice(model), "model": model.state_dict()}, tmp_path)
    assert_same_outputs(model, load(path, heads=4).model)
    assert f"part: model, not {name}" in capsys.readouterr().err
    averaged = written({name: twice(model), "ema": model.state_dict()}, tmp_path)
    assert_same_outputs(model, loaded(averaged))


# One's own directories without a head


@pytest.mark.parametrize("format", ["native", "huggingface", "timm", "torchvision"])
@pytest.mark.parametrize("distilled", [False, True])
def test_the_encoder_of_a_model_that_vitkit_wrote(format, distilled, tmp_path):
    if distilled and format == "torchvision":
        pytest.skip("torchvision has no second token")
    pool = "distilled" if distilled else "token"
    registers = 1 if distilled else 0
    config = ViTConfig(
        width=48, depth=2, heads=4, mlp=80, image=(32, 32), patch=8, classes=3, pool=pool,
        registers=registers,
    )  # fmt: skip
    model = randomised(create(config, seed=0))
    path = tmp_path / ("m.pth" if format == "torchvision" else "m")
    classifier = Classifier(model, Preprocessing(size=(32, 32)), ("a", "b", "c"))
    write_model(classifier, format_of(format, config), path)
    alone = load(path, part="encoder", quiet=True)
    assert alone.unknown is None and not alone.labels and not alone.model.config.classes
    images = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    features = classifier.features(images)
    if not distilled:
        torch.testing.assert_close(alone.logits(images), features, atol=1e-5, rtol=1e-5)


def test_limits_of_classes_go_with_the_head(tmp_path):
    limits = Unknown(
        means=torch.zeros(3, 4), whitening=torch.zeros(48, 4), centre=torch.zeros(48), first=0, far=1.0,
        sure=1.0, limit=torch.ones(3).double(), least=torch.zeros(3).double(),
    )  # fmt: skip
    config = ViTConfig(width=48, depth=1, heads=4, mlp=80, image=(32, 32), patch=8, classes=3)
    labels = ("a", "b", "c")
    classifier = Classifier(
        randomised(create(config, seed=0)), Preprocessing(size=(32, 32)), labels, unknown=limits
    )
    save(classifier, tmp_path / "m")
    assert load(tmp_path / "m", quiet=True).unknown
    assert load(tmp_path / "m", part="encoder", quiet=True).unknown is None


# Sentences


ESCAPE = "\x1b[2J"


def test_no_sentence_has_raw_or_endless_text_of_a_file(tmp_path):
    long = "x" * 10_000
    model = timm_vit()
    states = {
        "LoRA": {f"{ESCAPE}.lora_A.weight": torch.zeros(2, 2)},
        "unknown": {**model.state_dict(), f"blocks.0.{ESCAPE}{long}": torch.zeros(2, 2)},
        "beside": {**under("m.", model), f"{ESCAPE}{long}.weight": torch.zeros(2, 2)},
        "no model": {f"{ESCAPE}{long}": torch.zeros(2, 2)},
        "half": {ESCAPE: torch.zeros(2, 2).to_sparse()},
        "a dictionary": {f"{ESCAPE}{long}": 3},
    }
    for name, state in states.items():
        with pytest.raises(ValueError) as caught:
            loaded(written(state, tmp_path))
        sentence = str(caught.value)
        assert "\x1b" not in sentence and len(sentence) < 2500, name


def quantised(model):
    return torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, dtype=torch.qint8)


def pruned(model):
    for block in model.blocks:
        prune.l1_unstructured(block.mlp.fc1, "weight", 0.3)
    return model


def weights_normalised(model):
    torch.nn.utils.parametrizations.weight_norm(model.blocks[0].mlp.fc1)
    return model


def spectra_normalised(model):
    torch.nn.utils.parametrizations.spectral_norm(model.head)
    return model


@pytest.mark.filterwarnings("ignore")  # of PyTorch, about its quantisation
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (quantised, "is quantised; save the state dict of the model before"),
        (pruned, r"fc1.weight is pruned; .*torch.nn.utils.prune.remove\(layer, 'weight'\)"),
        (weights_normalised, "fc1.weight is computed by a parametrisation; .*remove_param"),
        (spectra_normalised, "head.weight is computed by a parametrisation; .*remove_param"),
    ],
)
def test_weights_that_a_library_has_replaced_are_named_with_a_remedy(change, sentence, tmp_path):
    with pytest.raises(BadWeights, match=sentence):
        loaded(written(change(timm_vit()).state_dict(), tmp_path))


@pytest.mark.parametrize("file", ["config.json", "preprocessor_config.json"])
def test_no_sentence_has_endless_text_of_a_json_file(file, tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(**TRANSFORMERS)
    transformers.ViTModel(config, add_pooling_layer=False).save_pretrained(tmp_path)
    text = "x" * 10_000 + ESCAPE
    values = {"model_type": text}
    if file == "preprocessor_config.json":
        values = {"image_processor_type": text, text: 1}
    (tmp_path / file).write_text(json.dumps(values))
    with pytest.raises(ValueError) as caught:
        load(tmp_path, quiet=True)
    sentence = str(caught.value)
    assert "\x1b" not in sentence and "x" * 300 not in sentence


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (
            {"opt": {"model": {"a": torch.zeros(2)}}},
            "opt, which is the name of an optimiser's state",
        ),
        ({"exp_avg": {"a": torch.zeros(2)}}, "exp_avg, which is the name of an optimiser's state"),
        ({"a": [{"w": torch.zeros(2)}]}, "in a list"),
        ({"a": {3: {"w": torch.zeros(2)}}}, "under 3, which is not a string"),
    ],
)
def test_what_was_not_looked_into_is_said(content, says, tmp_path):
    with pytest.raises(ValueError, match=says):
        read_pickle(written(content, tmp_path))


def test_how_deep_was_looked_is_said(tmp_path):
    content = {"w": torch.zeros(2)}
    for _ in range(9):
        content = {"a": content}
    with pytest.raises(ValueError, match="more than 8 dictionaries deep"):
        read_pickle(written(content, tmp_path))


def test_an_encoder_of_a_format_without_a_head_has_shapes():
    assert not NATIVE.head
    encoder = Encoder(NATIVE, (), "", {"stem.project.weight": lazy_zeros(3)})
    assert encoder.shapes() == {"stem.project.weight": (3,)}


def test_the_remedy_is_no_matter_of_words(tmp_path):
    """A name with "head." in it, within a block, is not about the head."""
    state = {**timm_vit().state_dict(), "blocks.0.head.weight": torch.zeros(2, 2)}
    with pytest.raises(ValueError, match=r"blocks\.0\.head") as caught:
        load_as(written(state, tmp_path), Hints(heads=4))
    assert "--part" not in str(caught.value)
