"""Every model through every format and back: whole, with the proof, or refused with a reason."""

from dataclasses import replace

import pytest
import torch
from other_libraries import shapes_written

from vitkit.models import DIALECTS, Backbone, ResNetConfig, VisionTransformer, named, vit
from vitkit.weights import format_of, load
from vitkit.weights.formats import cannot, names
from vitkit.weights.proof import convert_weights

SMALL = {"width": 48, "depth": 2, "mlp": 80, "heads": 4, "classes": 7}


def small(**changes):
    return vit("mu/8", **{"image": (32, 32), **SMALL, **changes})


PLAIN = small()
TIMM_STEM = Backbone((), **DIALECTS["timm"])
RESNET_V2_STEM = Backbone((1, 1), 0.5, order="pre")
BIT = Backbone((1, 2), 0.5, "pre", **DIALECTS["bit"])
BIG_VISION_BIT = Backbone((1, 2), 0.5, "pre", **DIALECTS["big_vision"])
BATCH_NORM = Backbone((1,), norm="batch", standardise="none", padding="even", pool="even")
CONFIGS = {
    "plain": PLAIN,
    "erf": small(gelu="erf"),
    "patch 14, not square": small(patch=14, image=(28, 70)),
    "gap": small(pool="gap"),
    "map": small(pool="map", mlp=192),
    "representation": small(representation=24),
    "no head": small(classes=0),
    "features of a hidden layer": small(classes=0, representation=48),
    "distilled": small(pool="distilled", registers=1, gelu="erf"),
    "a distillation token nobody reads": small(registers=1),
    "registers": small(registers=4),
    "LayerScale and a norm after the mean": small(
        pool="gap", class_token=True, norm="pooled", layer_scale=0.1
    ),
    "no position for the class token": small(prefix_positions=0),
    "DINOv2's positions": small(registers=4, prefix_positions=1, layer_scale=1.0),
    "fixed positions": small(positions="sincos", pool="gap"),
    "mean beside a class token": small(pool="gap", class_token=True),
    "SwiGLU": small(swiglu=True, layer_scale=0.1, gelu="erf"),
    "norms after the branches": small(branch_norm="after", pool="gap"),
    "CLIP": small(embedding_norm=True, gelu="quick", eps=1e-5),
    "CLIP without a head": small(embedding_norm=True, gelu="quick", eps=1e-5, classes=0),
    "token and mean": small(pool="token-gap"),
    "token and quarters": small(pool="token-quarters"),
    "two blocks": small(pool="token-gap-quarters", read_blocks=2),
    "pyramid": small(pool="token-pyramid", read_blocks=2),
    "rotary positions of DINOv3": small(positions="rotary-dinov3", layer_scale=0.1, registers=4),
    "other eps": small(eps=1e-4),
    "no biases of q, k, v": small(qkv_bias=False, gelu="silu"),
    "no such biases beside MAP": small(qkv_bias=False, pool="map", mlp=192),
    "no such biases, distilled": small(qkv_bias=False, pool="distilled", registers=1, gelu="relu"),
    "no such biases, DINOv2": small(
        qkv_bias=False, registers=4, prefix_positions=1, layer_scale=1.0
    ),
    "no such biases, DINOv3": small(
        qkv_bias=False, positions="rotary-dinov3", layer_scale=0.1, registers=4
    ),
    "RMSNorms": small(rms_norm=True, norm="pooled", pool="gap"),
    "RMSNorms and normalised queries and keys": small(
        rms_norm=True, qk_norm=True, qkv_bias=False, layer_scale=0.1, registers=4
    ),
    "normalised queries and keys, MAP": small(qk_norm=True, pool="map", mlp=192),
    "rectangles": small(patch=(8, 4)),
    "rectangles, not square": small(patch=(4, 8), image=(32, 48), pool="map", mlp=192),
    "rectangles, DINOv2": small(patch=(8, 4), registers=4, prefix_positions=1, layer_scale=1.0),
    "rectangles, DINOv3": small(
        patch=(8, 4), positions="rotary-dinov3", layer_scale=0.1, registers=4
    ),
    "overlap": small(stride=4),
    "overlap of rectangles": small(patch=(8, 4), stride=(6, 4)),
    "axial": small(mixer="axial", pool="gap"),
    "relative positions": small(positions="relative"),
    "positions at every block": small(inject="every"),
    "one table for every block": small(inject="shared"),
    "rotary positions": small(positions="rotary", heads=2, width=48),
    "rotary positions of RoPE-ViT": small(positions="rotary-axial"),
    "rotary positions of timm's": small(positions="rotary-timm", pool="gap", qk_norm=True),
    "hybrid": vit("R26+mu/16", image=(64, 48), classes=7, stem=Backbone((1, 1, 2), 0.5)),
    "hybrid on a root": vit("R+mu/8", image=(32, 48), classes=7, gelu="erf"),
    "hybrid of timm's": vit("R+mu/16", image=(64, 128), classes=7, gelu="erf", stem=TIMM_STEM),
    "hybrid on a ResNet v2": vit("R26+mu/32", image=64, classes=7, stem=RESNET_V2_STEM, patch=4),
    "ResNet": ResNetConfig(Backbone((1, 2), 0.5), (32, 48), classes=7),
    "ResNet without a head": ResNetConfig(Backbone((1,), 0.5), (32, 48), classes=0),
    "BiT": ResNetConfig(BIT, (32, 48), classes=7),
    "big_vision's BiT": ResNetConfig(BIG_VISION_BIT, (32, 48), channels=1, classes=7),
    "BatchNorm": ResNetConfig(BATCH_NORM, 64, classes=7),
    "axial ResNet": ResNetConfig(Backbone((1, 1), mixer="axial"), (32, 48), classes=7),
    "local ResNet": ResNetConfig(Backbone((1, 1), mixer="local"), (32, 48), classes=7),
    "augmented ResNet": ResNetConfig(Backbone((1, 1), mixer="augmented"), (32, 48), classes=7),
    "LeNet": named("LeNet-5", channels=3, classes=7),
}
ENDINGS = {"google": ".npz", "torchvision": ".pth"}  # the others write directories
LIBRARIES = ("huggingface", "timm", "torchvision")


def supported(to, config):
    return not cannot(to, config)


# Our own format has one rule for all: here the models with tensors that no other has
NATIVE = (
    "plain", "map", "no head", "distilled", "registers", "SwiGLU", "relative positions",
    "positions at every block", "axial", "hybrid", "BiT", "BatchNorm", "augmented ResNet", "LeNet",
)  # fmt: skip


def held():
    """Each format and each model that it has a place for."""
    for to in names():
        for name, config in CONFIGS.items():
            if supported(to, config):
                marks = pytest.mark.slow if to == "native" and name not in NATIVE else ()
                yield pytest.param(to, name, marks=marks)


REFUSED = [(to, name) for to in names() for name in CONFIGS if not supported(to, CONFIGS[name])]


@pytest.mark.parametrize(("to", "name"), list(held()))
def test_a_model_comes_back_whole_and_agrees_elsewhere(
    to, name, random_classifier, same_model, tmp_path
):
    config = CONFIGS[name]
    classifier = random_classifier(config, loss="sigmoid")
    path = tmp_path / f"model{ENDINGS.get(to, '')}"

    # What is computed a little differently there is written only if the user says so
    differences = format_of(to, config).differs(config)
    if differences:
        with pytest.raises(ValueError, match="would compute another function"):
            convert_weights(classifier, path, to)
        assert not path.exists()
    proof = convert_weights(classifier, path, to, approximate=True)
    assert proof.differences == tuple(differences)

    # The same model again
    again = load(path, quiet=True)
    same_model(classifier, again)
    assert again.origin == {"loss": "sigmoid"}

    # And nearly the same logits in the other library
    if to in LIBRARIES:
        assert proof.library
        tolerance = 5e-2 if differences else 1e-5 * max(proof.scale, 1)
        assert proof.largest < tolerance


@pytest.mark.parametrize("to", names())
def test_what_a_format_cannot_express_is_refused(to, random_classifier, tmp_path):
    refused = [name for format, name in REFUSED if format == to]
    assert bool(refused) == (to != "native")
    for name in refused[::5]:
        with pytest.raises(ValueError, match=f"{to} has no place for"):
            convert_weights(
                random_classifier(CONFIGS[name]), tmp_path / f"model{ENDINGS.get(to, '')}", to
            )
    assert not list(tmp_path.iterdir())


def test_a_refusal_says_what_the_format_lacks(random_classifier, tmp_path):
    tanh = random_classifier(PLAIN)
    with pytest.raises(ValueError, match=r"another function \(GELU: the tanh form here"):
        convert_weights(tanh, tmp_path / "m.safetensors", "torchvision")
    relu = random_classifier(small(gelu="relu"))
    with pytest.raises(ValueError, match="activation: relu here, a GELU of the tanh form there"):
        convert_weights(relu, tmp_path / "m.npz", "google")
    gap = random_classifier(CONFIGS["mean beside a class token"])
    with pytest.raises(ValueError, match='huggingface has no place for pooling by "gap"'):
        convert_weights(gap, tmp_path / "m", "huggingface")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "to", "sentence"),
    [
        ("m.bin", "google", "m.bin should end in .npz for google$"),
        (
            "m.npz",
            "timm",
            "m.npz should end in .safetensors or .pth or .pt for timm; a name without",
        ),
        (
            "m.npz",
            "huggingface",
            "m.npz is the name of a file, but huggingface",
        ),
        ("m.pth", "native", "m.pth is the name of a file, but native is written to a directory"),
    ],
)
def test_a_name_that_the_format_does_not_write_is_refused(
    name, to, sentence, random_classifier, tmp_path
):
    with pytest.raises(ValueError, match=sentence):
        convert_weights(random_classifier(PLAIN), tmp_path / name, to)
    assert not list(tmp_path.iterdir())


def many_classes(random_classifier, labels):
    """A classifier of ImageNet-21k's 21,843 classes."""
    return replace(random_classifier(small(width=8, mlp=8, classes=21_843)), labels=labels)


@pytest.mark.parametrize(("to", "file"), [("google", "m.npz"), ("timm", "m.pth")])
def test_names_that_an_archive_has_no_room_for_are_refused(to, file, random_classifier, tmp_path):
    classifier = many_classes(random_classifier, tuple(f"name {i}" for i in range(21_843)))
    with pytest.raises(ValueError, match="the names of its 21,843 classes take .* room for 65,535"):
        convert_weights(classifier, tmp_path / file, to, approximate=True)
    assert not (tmp_path / file).exists()


def test_as_many_numbered_classes_come_back(random_classifier, tmp_path, same_model):
    classifier = many_classes(random_classifier, tuple(map(str, range(21_843))))
    convert_weights(classifier, tmp_path / "m.npz", "google")
    same_model(classifier, load(tmp_path / "m.npz", quiet=True))


def test_a_directory_may_have_a_dot_in_its_name(random_classifier, tmp_path):
    convert_weights(random_classifier(PLAIN), tmp_path / "model-v1.5", "native")
    assert (tmp_path / "model-v1.5" / "config.json").is_file()


# The named models


@pytest.mark.parametrize("name", ["Ti/16", pytest.param("S/32", marks=pytest.mark.slow)])
def test_named_models_agree_in_every_library(name, random_classifier, tmp_path):
    """1e-5 in float32."""
    classifier = random_classifier(vit(name, gelu="erf", image=(64, 64), classes=10))
    paths = {"timm": "t", "huggingface": "h", "torchvision": "v.safetensors"}
    for to, path in paths.items():
        proof = convert_weights(classifier, tmp_path / path, to)
        assert proof.library
        assert proof.largest < 1e-5 * max(proof.scale, 1), (to, proof)


LARGER = [
    pytest.param(name, marks=pytest.mark.slow) for name in ("B/32", "L/16", "H/14", "g/14", "G/14")
]


@pytest.mark.parametrize("name", ["B/16", "So400m/14", *LARGER])
def test_named_models_have_the_libraries_names_and_shapes(name):
    """Every tensor of the library's model has a rule that gives it its shape, and no other. On the
    meta device, so that size is no matter."""
    import timm
    from torchvision.models import VisionTransformer as TorchVision
    from transformers import ViTConfig, ViTForImageClassification

    from vitkit.weights.formats.huggingface.vit import VIT
    from vitkit.weights.formats.timm.vit import architecture

    config = vit(name, gelu="erf")
    timm_name, arguments = architecture(config)
    json = VIT.config_json(config, tuple(map(str, range(1000))), "softmax")
    json.pop("architectures")
    sizes = (config.patch, config.depth, config.heads, config.width, config.mlp)
    with torch.device("meta"):
        state = VisionTransformer(config).state_dict()
        in_timm = timm.create_model(timm_name, num_classes=1000, weight_init="skip", **arguments)
        in_torchvision = TorchVision(224, *sizes)
        in_transformers = ViTForImageClassification(ViTConfig(**json))

    for to, theirs in {"timm": in_timm, "torchvision": in_torchvision}.items():
        shapes = {key: tensor.shape for key, tensor in theirs.state_dict().items()}
        assert shapes_written(format_of(to, config), config, state) == shapes

    # Transformers 5 has other names in memory than in files, so only the sum of sizes can be
    # compared
    shapes = shapes_written(format_of("huggingface", config), config, state)
    numbers = sum(shape.numel() for shape in shapes.values())
    assert numbers == sum(parameter.numel() for parameter in in_transformers.parameters())
