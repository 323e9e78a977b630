"""Hugging Face's preprocessor_config.json means for vitkit what it means for Transformers, also
where it leaves fields out."""

import json

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

from vitkit.data import open_image
from vitkit.weights.formats.huggingface.processors import DEFAULTS, preprocessing_of

# DINOv3's has no Pillow backend, and SigLIP 2's makes lists of patches (test_naflex.py)
APART = ("DINOv3ViT", "Siglip2")
NAMES = [f"{family}ImageProcessor" for family in DEFAULTS if family not in APART]


def photograph() -> Image.Image:
    """Random colours made smooth, 400 x 300."""
    colours = np.random.default_rng(0).integers(0, 256, (9, 12, 3), dtype=np.uint8)
    return Image.fromarray(colours).resize((400, 300), Image.Resampling.BICUBIC)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("written", [{}, {"size": 240}, {"do_rescale": False}])
def test_absent_fields_have_the_defaults_of_the_class(name, written, tmp_path):
    written = {"image_processor_type": name, **written}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(written))
    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path, backend="pil")
    theirs = processor(photograph(), return_tensors="pt")["pixel_values"]

    preprocessing, _ = preprocessing_of(written, (224, 224), "vit")
    picture = open_image(np.asarray(photograph()), "photograph")
    ours = preprocessing.normalise(preprocessing(picture)[None])
    if theirs.shape[2] != theirs.shape[3]:  # vitkit crops what Transformers leaves as it is
        margin = (theirs.shape[3] - theirs.shape[2]) // 2
        theirs = theirs[:, :, :, margin : margin + theirs.shape[2]]
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


def test_dinov3s_processor_is_within_a_level(tmp_path):
    """It resizes in floating point, so values are not rounded to levels of 255."""
    written = {"image_processor_type": "DINOv3ViTImageProcessor"}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(written))
    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path)
    theirs = processor(photograph(), return_tensors="pt")["pixel_values"]
    preprocessing, notes = preprocessing_of(written, (224, 224), "dinov3_vit")
    picture = open_image(np.asarray(photograph()), "photograph")
    ours = preprocessing.normalise(preprocessing(picture)[None])
    one_level = 1 / 255 / min(preprocessing.std)
    torch.testing.assert_close(ours, theirs, atol=one_level, rtol=0)
    assert notes == []


def test_a_file_without_a_class_has_that_of_its_model():
    deit, notes = preprocessing_of({"do_resize": True}, (224, 224), "deit")
    assert (deit.resize, deit.size, deit.interpolation) == (256, (224, 224), "bicubic")
    assert notes == []


def test_an_unknown_class_is_told():
    preprocessing, notes = preprocessing_of(
        {"image_processor_type": "NewImageProcessor", "size": 384}, (384, 384), "vit"
    )
    assert preprocessing.size == (384, 384)
    assert "does not know NewImageProcessor" in notes[0]


def test_a_processor_that_keeps_proportions_is_told():
    written = {"image_processor_type": "SiglipImageProcessor", "size": 224}
    preprocessing, notes = preprocessing_of(written, (224, 224), "vit")
    assert preprocessing.rule == "shorter"
    assert "crops the centre of 224 x 224" in notes[0]
