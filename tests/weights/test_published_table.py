"""The table of published weights: each row is well formed, and of a model that vitkit opens."""

import sys
from functools import cache
from pathlib import Path

import pytest
import torch

from vitkit import list_models
from vitkit.models import called, named
from vitkit.weights import find_published, format_of, load, published_called
from vitkit.weights.formats import cannot
from vitkit.weights.published import SOURCES, all_published, nearest_published

ROWS = {row.name: row for row in all_published()}
QUICK = (
    "timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k",
    "timm/vit_small_patch14_reg4_dinov2.lvd142m",
    "facebook/dinov2-with-registers-small",
    "facebook/deit-tiny-distilled-patch16-224",
)


@pytest.fixture
def script(monkeypatch):
    """benchmarks/published_weights.py, which wrote the table."""
    pytest.importorskip("timm")
    pytest.importorskip("transformers")
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    import published_weights

    # The models have no numbers: to draw these and to build vitkit's own of each shape again takes most of
    # the time
    monkeypatch.setattr("timm.layers.weight_init._trunc_normal_", lambda tensor, *_: tensor)
    for name in ("kaiming_uniform_", "normal_", "ones_", "trunc_normal_", "uniform_", "zeros_"):
        monkeypatch.setattr(torch.nn.init, name, lambda tensor, *_, **__: tensor)
    monkeypatch.setattr(published_weights, "build", cache(published_weights.build))
    yield published_weights
    del sys.modules["published_weights"]


def test_every_row_is_well_formed():
    assert len(ROWS) == len(all_published()) > 400
    for row in ROWS.values():
        assert row.family and row.model and 196 <= row.pixels <= 1024, row
        has_accuracy = row.top1 is not None
        assert has_accuracy == bool(row.source) == bool(row.measured), row
        assert not has_accuracy or 60 < row.top1 < 91, row
        assert row.source in ("", *SOURCES)
        assert row.megabytes is None or row.megabytes >= 5, row
        assert row.where.startswith("https://") and " " not in row.name
        assert (row.library == "torchvision") == bool(row.address)
        if "width" not in row.model:  # a description, where a shape has no name
            assert called(named(row.model)) == row.model


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.library == "google"])
def test_googles_format_has_a_place_for_each_of_its_files(name):
    assert cannot("google", named(ROWS[name].model)) == []
    assert format_of("google", named(ROWS[name].model)).name == "google"


def is_opened(script, row):
    """Whether vitkit reads a model of this name, built without memory, as the table says."""
    if row.library == "timm":
        description, model = script.opened_by_timm(row.name.removeprefix("timm/"))
    else:
        (found,) = [each for each in script.on_hub() if each.name == row.name]
        model, config = script.transformers_model(found)
        description = script.opened_as(model.state_dict(), config)
    return called(description.config) == row.model


@pytest.mark.parametrize("name", QUICK)
def test_a_model_of_the_table_is_opened(name, script):
    assert is_opened(script, ROWS[name])


@pytest.mark.slow
def test_every_model_of_timms_and_transformers_is_opened(script):
    for row in ROWS.values():
        if row.library in ("timm", "transformers"):
            assert is_opened(script, row), row.name
    written = {row.name: row for row in script.from_torchvision()}
    assert written == {name: row for name, row in ROWS.items() if row.library == "torchvision"}


def test_a_model_of_another_kind_is_not_opened(script):
    import timm

    with torch.device("meta"):
        other = timm.create_model("eva02_tiny_patch14_224", depth=1)
    with pytest.raises(ValueError, match="vitkit cannot read that|and a position table"):
        script.opened_as(other.state_dict(), {})


def test_every_row_says_where_its_file_is():
    """Google's are files of its bucket, the others repositories of the hub or an address of their own."""
    for row in ROWS.values():
        expected = row.address or f"https://huggingface.co/{row.name}"
        if row.library == "google" and not row.address:
            name = row.name.replace("+", "%2B")
            expected = f"https://storage.googleapis.com/vit_models/{name}.npz"
        assert row.where == expected
    assert {row.library for row in ROWS.values() if not row.address} >= {"google", "timm"}


def test_they_are_found_by_name_family_architecture_and_data():
    assert {row.family for row in find_published("DINOv2")} == {"DINOv2"}
    assert "facebook/deit-tiny-patch16-224" in {row.name for row in find_published("ti/16")}
    assert all("ImageNet-12k" in row.pretraining for row in find_published("imagenet-12k"))
    assert find_published("resnet-18") == []
    assert nearest_published("facebook/dinov2-smal") == "facebook/dinov2-small"
    assert nearest_published("vit_tiny_patch16_224.augreg_in21k_ftin1k") == QUICK[0]
    assert nearest_published("photos") == ""


def test_the_verb_lists_families_then_each_with_what_is_in_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path))
    google = ROWS["imagenet21k+imagenet2012/ViT-B_16-224"]
    assert not google.is_here
    (tmp_path / "google/imagenet21k+imagenet2012").mkdir(parents=True)
    (tmp_path / "google/imagenet21k+imagenet2012/ViT-B_16-224.npz").touch()
    assert google.is_here

    families = str(list_models(published=True))
    assert "DINOv3" in families and "dinov3-license" in families and google.name not in families
    listed = list_models("imagenet21k+imagenet2012/", published=True)
    assert str(listed).splitlines()[:2] == [
        "imagenet21k+imagenet2012/ViT-B_16-224",
        "    ViT-B/16, 224 pixels; ImageNet-21k, fine-tuned on ImageNet-1k; 81.2 % (its head, "
        "Google); apache-2.0; here",
    ]
    assert "Google: README of" in str(listed) and listed.rows()[0]["here"] is True
    assert f"next: vitkit.finetune('{google.name}', 'photos/')" in str(listed)
    with pytest.raises(ValueError, match="'dinov22'.*did you mean|'dinov22'.*lists the families"):
        list_models("dinov22", published=True)


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("vit_b_16-c867db91.pth", "it is torchvision's: download it from https://download.pytorch"),
        (
            "vit_tiny_patch16_224.augreg_in21k",
            "did you mean timm/vit_tiny_patch16_224.augreg_in21k",
        ),
        ("deit-tiny-patch16-224", "did you mean facebook/deit-tiny-patch16-224"),
        ("dinov2", r"the list of models has \d+ published ones with this name"),
        ("patch16", r"the list of models has \d+ published ones with this name"),
        ("atch16", "it is not the name of a model"),  # in the middle of a word
        ("vi", "it is not the name of a model"),
    ],
)
def test_a_name_that_is_nearly_one_of_the_table_is_told(name, advice):
    with pytest.raises(ValueError, match=advice):
        load(name)


def test_without_a_hub_the_file_and_its_address_are_named(monkeypatch):
    hub = pytest.importorskip("huggingface_hub")
    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError) as raised:
        load("facebook/dinov2-small")
    said = str(raised.value)
    row = published_called("facebook/dinov2-small")
    assert f"get config.json and model.safetensors ({row.megabytes} MB) from {row.where}" in said
    with pytest.raises(ValueError, match="did you mean facebook/dinov2-small"):
        load("facebook/dinov2-smal")
