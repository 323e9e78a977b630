"""Hugging Face's preprocessor_config.json means for vitkit what it means for Transformers, also
where it leaves fields out."""

import importlib
import inspect
import io
import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import transformers
from PIL import Image
from transformers.image_processing_utils import BaseImageProcessor
from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING_NAMES

from vitkit.data import Preprocessing, open_image
from vitkit.weights import Classifier, load
from vitkit.weights.formats.huggingface.dino import DINOV2, DINOV3
from vitkit.weights.formats.huggingface.processors import (
    DEFAULTS,
    FAMILIES,
    REFUSED,
    preprocessing_of,
)
from vitkit.weights.formats.huggingface.towers import NAFLEX, TOWERS
from vitkit.weights.formats.huggingface.vit import VIT

# DINOv3's has no Pillow backend, SigLIP 2's makes lists of patches (test_naflex.py), and what two
# others do with colours is refused
APART = ("DINOv3ViT", "Siglip2", "EfficientNet", "MobileViT")
NAMES = [f"{family}ImageProcessor" for family in DEFAULTS if family not in APART]
BIT = "BitImageProcessor"


def every_class() -> dict[str, type]:
    """Every image processor class of the installed Transformers, by name: both backends'."""
    folder = Path(transformers.__file__).parent / "models"
    classes = {}
    for file in sorted(folder.glob("*/image_processing_*.py")):
        if file.parent.name == "auto":
            continue
        module = importlib.import_module(f"transformers.models.{file.parent.name}.{file.stem}")
        for name, kind in vars(module).items():
            ours = inspect.isclass(kind) and kind.__module__ == module.__name__
            if ours and issubclass(kind, BaseImageProcessor):
                classes[name] = kind
    return classes


def photograph() -> Image.Image:
    """Random colours made smooth, 400 x 300."""
    colours = np.random.default_rng(0).integers(0, 256, (9, 12, 3), dtype=np.uint8)
    return Image.fromarray(colours).resize((400, 300), Image.Resampling.BICUBIC)


@pytest.fixture
def real_photograph(shared) -> Image.Image:
    """The first photograph of ants or bees, 384 x 256."""
    table = pq.read_table(shared("data/ants_bees-test.parquet"))
    image = Image.open(io.BytesIO(table["image"][0].as_py()["bytes"])).convert("RGB")
    assert image.size == (384, 256)
    return image


def prepared(preprocessing: Preprocessing, image: Image.Image) -> torch.Tensor:
    picture = open_image(np.asarray(image), "photograph")
    return preprocessing.normalise(preprocessing(picture)[None])


def levels_apart(preprocessing: Preprocessing, theirs: torch.Tensor, image: Image.Image) -> float:
    """The largest difference of a pixel, in levels of 255."""
    ours = prepared(preprocessing, image)
    std = torch.tensor(preprocessing.std)[:, None, None]
    return float(((ours - theirs) * std * 255).abs().max())


def said(written: dict, model_type: str = "vit") -> str:
    """The sentence that refuses a processor."""
    with pytest.raises(ValueError) as refusal:
        preprocessing_of(written, (224, 224), model_type)
    return str(refusal.value)


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


def test_every_class_has_the_librarys_pixels_or_is_refused_by_a_field(real_photograph):
    """With the defaults of the class, and as the class saves itself."""
    equal = set()
    for name, kind in every_class().items():
        ways = [{"image_processor_type": name}]
        if name != "TimmWrapperImageProcessor":  # made of timm's config.json
            processor = kind()
            ways.append(json.loads(processor.to_json_string()))
        family = name.removesuffix("Pil").removesuffix("ImageProcessor")
        for written in ways:
            if family in REFUSED and family != "CLIP":
                assert any(field in said(written) for field in REFUSED[family])
                continue
            if family not in DEFAULTS:
                sentence = said(written)
                assert f"image_processor_type is '{written['image_processor_type']}'" in sentence
                continue
            preprocessing, notes = preprocessing_of(written, (224, 224), "vit")
            assert notes == []
            equal.add(family)
            if family == "Siglip2":
                continue  # test_naflex.py
            theirs = processor(real_photograph, return_tensors="pt")["pixel_values"]
            # The library's own two ways of resizing are two levels apart here
            most = 2.01
            if name.endswith("Pil"):
                most = 0.01
            assert levels_apart(preprocessing, theirs, real_photograph) <= most, name
    assert equal == DEFAULTS.keys() - {"EfficientNet", "MobileViT"}


# What a class refuses is read where it is off
@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("EfficientNet", {"include_top": False}),
        ("EfficientNet", {"include_top": False, "do_center_crop": True, "size": 321}),
        ("MobileViT", {"do_flip_channel_order": False, "crop_size": 208, "do_normalize": True}),
        ("CLIP", {"use_square_size": False}),
        ("ConvNext", {"size": {"shortest_edge": 224}, "crop_pct": 0.75}),
        ("ConvNext", {"size": {"shortest_edge": 224}, "do_center_crop": True, "crop_size": 224}),
        ("ConvNext", {"do_center_crop": True, "crop_size": 320}),
        ("PoolFormer", {"size": {"height": 192, "width": 192}, "crop_size": 192}),
        ("PoolFormer", {"size": {"height": 192, "width": 256}, "do_center_crop": False}),
        ("Levit", {"size": {"height": 256, "width": 256}}),
        ("ViT", {"do_pad": True, "pad_size": 224}),
        ("ViT", {"do_pad": True}),
        ("Beit", {"do_pad": True, "pad_size": 256}),  # which it does not read
        ("ConvNext", {"do_pad": True, "pad_size": 512}),
        ("MobileNetV2", {"do_pad": True, "pad_size": 256}),
        ("EfficientNet", {"include_top": False, "do_pad": True, "pad_size": 400}),
        ("MobileViT", {"do_flip_channel_order": False, "do_pad": True, "crop_size": 208}),
        ("Segformer", {"do_pad": True, "pad_size": 600, "do_center_crop": True, "crop_size": 224}),
        ("ViT", {"crop_pct": 0.5, "do_flip_channel_order": True}),  # which that class does not read
        ("ViT", {"do_center_crop": True, "size": 256, "crop_size": [192, 224]}),
        ("Beit", {"image_mean": 0.5, "image_std": 0.25}),
        ("Beit", {"image_mean": 0.5}),
        ("Beit", {"do_reduce_labels": True, "do_convert_rgb": False}),
        ("Beit", {"do_center_crop": True, "size": 256}),
        ("PoolFormer", {"crop_pct": None}),
        ("EfficientNet", {"include_top": None}),
        ("MobileViT", {"do_flip_channel_order": None, "crop_size": 208}),
        ("Beit", {"do_normalize": None}),
        ("DeiT", {"do_center_crop": None}),
    ],
)
def test_fields_of_a_class_mean_what_they_mean_there(name, written, tmp_path):
    written = {"image_processor_type": f"{name}ImageProcessor", **written}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(written))
    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path, backend="pil")
    theirs = processor(photograph(), return_tensors="pt")["pixel_values"]
    preprocessing, notes = preprocessing_of(written, (224, 224), "vit")
    assert notes == []
    assert levels_apart(preprocessing, theirs, photograph()) < 0.01


@pytest.mark.parametrize(
    ("name", "written", "field"),
    [
        ("EfficientNet", {"include_top": False, "rescale_offset": True}, "rescale_offset"),
        ("CLIP", {"use_square_size": True}, "use_square_size"),
        ("ConvNext", {"crop_pct": 0, "size": 224}, "crop_pct"),
        ("ConvNext", {"crop_pct": 1.2, "size": 224}, "crop_pct"),
        ("ConvNext", {"size": {"height": 224, "width": 224}}, "shortest_edge"),
        ("ConvNext", {"size": 224, "do_center_crop": True, "crop_size": 192}, "crop_size"),
        ("ViT", {"do_pad": True, "pad_size": 256}, "pad_size"),
        ("ViT", {"size": {"shortest_edge": 224, "longest_edge": 300}}, "longest_edge"),
        ("ViT", {"size": {"longest_edge": 300}}, "longest_edge"),
        ("ViT", {"size": {"max_height": 300, "max_width": 300}}, "max_height"),
        ("Bit", {"crop_size": {"shortest_edge": 224}}, "crop_size"),
        ("Bit", {"crop_size": 256}, "crop_size"),
        ("Bit", {"do_resize": False}, "do_resize"),
        ("DeiT", {"size": {"height": 256, "width": 320}}, "256 x 320"),
        ("ViT", {"resample": 0}, "resample"),
        ("ViT", {"resample": [2]}, "resample"),
        ("ViT", {"resample": "lanczos"}, "resample"),
        ("DINOv3ViT", {"resample": 3}, "resample"),
        ("ViT", {"image_mean": ["a", 0.5, 0.5]}, "image_mean"),
        ("ViT", {"image_std": True}, "image_std"),
        ("ViT", {"rescale_factor": 0}, "rescale_factor"),
    ],
)  # fmt: skip
def test_what_no_preprocessing_does_is_refused_by_its_field(name, written, field):
    assert field in said({"image_processor_type": f"{name}ImageProcessor", **written})


def test_dinov3s_bicubic_pixels_would_not_be_ours(tmp_path):
    """Why they are refused: Transformers does not cut off what leaves the range of the pixels."""
    written = {"image_processor_type": "DINOv3ViTImageProcessor", "resample": 3}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(written))
    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path)
    edge = Image.fromarray(np.repeat(np.uint8([[[0] * 3] * 195 + [[255] * 3] * 205]), 300, 0))
    theirs = processor(edge, return_tensors="pt")["pixel_values"]
    ours, _ = preprocessing_of(
        written | {"image_processor_type": "PvtImageProcessor"}, (224, 224), "vit"
    )
    assert levels_apart(ours, theirs, edge) > 5


@pytest.mark.parametrize(
    "name", ["NewImageProcessor", "ViTImageProcessorOfMine", "Processor", "ViT"]
)
def test_an_unknown_class_is_refused_with_its_own_fields(name):
    written = {"image_processor_type": name, "size": 384, "crop_pct": 0.9, "do_twice": False}
    sentence = said(written)
    assert f"image_processor_type is {name!r}, with crop_pct, but" in sentence
    assert "ViTImageProcessor, DeiTImageProcessor" in sentence


def test_a_type_without_a_class_has_the_librarys():
    """Of all model types that vitkit reads."""
    for family in (VIT, DINOV2, DINOV3, TOWERS, NAFLEX):
        for model_type in family.types:
            known = model_type.removesuffix("_vision_model").removesuffix("_with_registers")
            classes = IMAGE_PROCESSOR_MAPPING_NAMES[known]
            ours = FAMILIES.get(model_type, "ViT")
            assert classes["torchvision"] == f"{ours}ImageProcessor", model_type


def test_a_crop_begins_at_most_a_pixel_beside_the_librarys():
    """Transformers rounds half a pixel down, torchvision, timm and vitkit to the even one: of four
    widths one differs."""
    image = photograph().resize((296, 256))
    processor = transformers.BitImageProcessorPil()
    theirs = processor(image, return_tensors="pt")["pixel_values"]
    preprocessing, _ = preprocessing_of({"image_processor_type": BIT}, (224, 224), "vit")
    ours = prepared(preprocessing, image)
    torch.testing.assert_close(ours[..., :-1], theirs[..., 1:], atol=1e-4, rtol=1e-4)


def test_a_processor_that_keeps_proportions_is_told():
    written = {"image_processor_type": "SiglipImageProcessor", "size": 224}
    preprocessing, notes = preprocessing_of(written, (224, 224), "vit")
    assert preprocessing.rule == "shorter"
    assert "crops the centre of 224 x 224" in notes[0]


def test_null_is_the_default_of_what_must_have_a_value():
    """Transformers 5 raises an error here, 4 took the default."""
    nothing = dict.fromkeys(("size", "resample", "image_mean", "image_std", "crop_size"))
    for name in NAMES:
        default = preprocessing_of({"image_processor_type": name}, (224, 224), "vit")
        assert default == preprocessing_of(
            {"image_processor_type": name, **nothing}, (224, 224), "vit"
        )


def test_a_processor_saved_with_a_tokenizer_is_read(tmp_path):
    """Transformers 5 writes processor_config.json and no preprocessor_config.json then."""
    config = transformers.CLIPVisionConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        image_size=32, patch_size=16,
    )  # fmt: skip
    transformers.CLIPVisionModel(config).save_pretrained(tmp_path)
    saved = transformers.CLIPImageProcessor(size=40, crop_size=32, image_mean=[0.1, 0.2, 0.3])
    written = {"processor_class": "CLIPProcessor", "image_processor": saved.to_dict()}
    (tmp_path / "processor_config.json").write_text(json.dumps(written))
    assert type(transformers.AutoImageProcessor.from_pretrained(tmp_path)) is type(saved)

    preprocessing = load(tmp_path, quiet=True).preprocessing
    assert (preprocessing.resize, preprocessing.size) == (40, (32, 32))
    assert preprocessing.mean == (0.1, 0.2, 0.3)

    # It goes before the other file, as there
    (tmp_path / "preprocessor_config.json").write_text("{}")
    assert load(tmp_path, quiet=True).preprocessing == preprocessing
    written["image_processor"]["resample"] = []
    (tmp_path / "processor_config.json").write_text(json.dumps(written))
    with pytest.raises(
        ValueError, match=r"processor_config.json.*image_processor.resample is \[\]"
    ):
        load(tmp_path)


def test_one_number_is_the_mean_of_every_channel(tmp_path):
    """As a file of a directory, whose types are checked."""
    classifier = load_with(tmp_path, {"image_mean": 0.5, "image_std": 0.25, "size": 32})
    assert classifier.preprocessing.mean == (0.5,) * 3
    assert classifier.preprocessing.std == (0.25,) * 3
    with pytest.raises(ValueError, match="image_mean is True; expected a finite number, or a list"):
        load_with(tmp_path, {"image_mean": True})


def test_a_directory_with_an_unknown_processor_is_refused(tmp_path):
    written = {"image_processor_type": "EfficientNetImageProcessor", "rescale_offset": True}
    with pytest.raises(
        ValueError, match=r"cannot be loaded: its preprocessor's rescale_offset is True"
    ):
        load_with(tmp_path, written)


def load_with(folder: Path, written: dict) -> Classifier:
    """A ViT of Transformers with this preprocessor_config.json."""
    config = transformers.ViTConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        image_size=32, patch_size=16,
    )  # fmt: skip
    transformers.ViTModel(config).save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(written))
    return load(folder, quiet=True)
