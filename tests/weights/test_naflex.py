"""SigLIP 2's NaFlex: its grids and pixels are those of Transformers' image processor, and its answers those
of Transformers' models, read and written."""

import json

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from other_libraries import TEXT, TRANSFORMERS, assert_same_state, edit, randomised
from PIL import Image
from safetensors.torch import save_file
from transformers.models.siglip2.image_processing_siglip2 import (
    get_image_size_for_max_num_patches as their_size,
)

from vitkit.data import Preprocessing, open_image, open_source, squarest
from vitkit.data.images.native import naflex_grid_of
from vitkit.finetuning.functions.result import openers
from vitkit.models.positions import resample
from vitkit.weights import Hints, adopt, load, load_as, save
from vitkit.weights.formats.huggingface.processors import preprocessing_of, processor_json
from vitkit.weights.proof import convert_weights

VISION = {
    **{name: value for name, value in TRANSFORMERS.items() if name != "image_size"},
    "num_patches": 16,
}
TOWERS = {"text_config": TEXT, "vision_config": VISION}
NAMES = {0: "red", 1: "green", 2: "blue"}
MOST = 23  # patches of an image: no rectangle but one row
# Panoramas, pictures smaller than a patch, and others
SIZES = [(300, 400), (50, 500), (500, 50), (3, 5), (1, 1), (4, 4000), (64, 64), (333, 127)]


def pictures():
    """Random colours made smooth."""
    random = np.random.default_rng(0)
    images = []
    for height, width in SIZES:
        colours = random.integers(0, 256, (6, 8, 3), dtype=np.uint8)
        images.append(Image.fromarray(colours).resize((width, height), Image.Resampling.BICUBIC))
    return images


def processor(**settings):
    """Transformers' own, which resizes with Pillow, as vitkit does."""
    return transformers.Siglip2ImageProcessorPil(
        **{"patch_size": 8, "max_num_patches": MOST, **settings}
    )


MODELS = {
    "the vision tower": (
        "Siglip2VisionModel", transformers.Siglip2VisionConfig, VISION, "pooler_output"
    ),
    "a vision tower without its head": (
        "Siglip2VisionModel", transformers.Siglip2VisionConfig,
        {**VISION, "vision_use_head": False}, None,
    ),
    "both towers": ("Siglip2Model", transformers.Siglip2Config, TOWERS, "pooler_output"),
    "the classifier": (
        "Siglip2ForImageClassification", transformers.Siglip2Config,
        {**TOWERS, "id2label": NAMES}, "logits",
    ),
}  # fmt: skip


def saved(name, folder, **arguments):
    """A model of Transformers with random weights, saved by Transformers with its image processor."""
    model_class, config_class, values, _ = MODELS[name]
    model = randomised(getattr(transformers, model_class)(config_class(**values)))
    model.save_pretrained(folder, **arguments)
    processor().save_pretrained(folder)
    return model


def answers(model, batch, read):
    """What Transformers computes of a batch of its processor; without `read` the mean of the patches."""
    model = getattr(model, "vision_model", model) if read == "pooler_output" else model
    with torch.inference_mode():
        record = model(**batch)
    if read:
        return getattr(record, read)
    mask = batch["pixel_attention_mask"][..., None]
    return (record.last_hidden_state * mask).sum(1) / mask.sum(1)


@pytest.mark.parametrize("name", MODELS)
def test_answers_are_transformers_own_and_it_is_written_back(name, tmp_path):
    read = MODELS[name][3]
    theirs = saved(name, tmp_path)
    classifier = load(tmp_path, quiet=True)
    assert classifier.preprocessing == Preprocessing((8, 8 * MOST), "naflex", patch=(8, 8))
    assert classifier.labels == (("red", "green", "blue") if read == "logits" else ())
    batch = processor()(pictures(), return_tensors="pt")
    expected = answers(theirs, batch, read)
    given = classifier.logits(classifier.batch(pictures()))
    torch.testing.assert_close(given, expected, atol=1e-5, rtol=1e-5)
    assert len({tuple(row.tolist()) for row in given}) == len(SIZES)

    # Back
    proof = convert_weights(classifier, tmp_path / "back", "huggingface")
    assert proof.library and proof.largest < 1e-5
    assert proof.pixels <= 1.001  # Transformers resizes with PyTorch there, and rounds otherwise
    config = json.loads((tmp_path / "back" / "config.json").read_text())
    model_class = getattr(transformers, config["architectures"][0])
    back, report = model_class.from_pretrained(tmp_path / "back", output_loading_info=True)
    for key in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not report[key], (key, report[key])
    if name == "both towers":
        theirs = theirs.vision_model
    state = theirs.state_dict()
    assert back.state_dict().keys() <= state.keys()
    assert all(torch.equal(tensor, state[key]) for key, tensor in back.state_dict().items())
    their_processor = transformers.AutoImageProcessor.from_pretrained(
        tmp_path / "back", backend="pil"
    )
    torch.testing.assert_close(
        answers(back, their_processor(pictures(), return_tensors="pt"), read), expected
    )

    # And saved by Transformers once more, with vitkit's description beside it
    back.save_pretrained(tmp_path / "again")
    their_processor.save_pretrained(tmp_path / "again")
    again = load(tmp_path / "again", quiet=True)
    assert again.preprocessing == classifier.preprocessing and again.labels == classifier.labels
    assert_same_state(again.model, classifier.model)


def test_a_saved_model_is_transformers_own(tmp_path):
    saved("the classifier", tmp_path / "theirs")
    classifier = load(tmp_path / "theirs", quiet=True)
    path = save(classifier, tmp_path / "ours")
    model = transformers.AutoModelForImageClassification.from_pretrained(path)
    assert type(model).__name__ == "Siglip2ForImageClassification"
    assert load(path, quiet=True).preprocessing == classifier.preprocessing
    card = (path / "README.md").read_text()
    assert "AutoModelForImageClassification" in card
    assert f"A Vision Transformer for whole images, on at most {MOST} patches:" in card


def test_shards_and_prefixes_are_read(tmp_path):
    theirs = saved("both towers", tmp_path, max_shard_size="30KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    file = tmp_path / "model.safetensors.index.json"
    assert "vision_model.embeddings.patch_embedding.weight" in file.read_text()
    expected = answers(theirs, processor()(pictures(), return_tensors="pt"), "pooler_output")
    classifier = load(tmp_path, quiet=True)
    given = classifier.logits(classifier.batch(pictures()))
    torch.testing.assert_close(given, expected, atol=1e-5, rtol=1e-5)


sides = st.integers(1, 5000)


@settings(max_examples=100, deadline=None)
@given(height=sides, width=sides, patch=st.sampled_from([8, 14, 16]), most=st.integers(1, 1100))
def test_grids_are_those_of_the_image_processor(height, width, patch, most):
    rows, columns = naflex_grid_of((height, width), most, (patch, patch))
    assert (rows * patch, columns * patch) == their_size(height, width, patch, most)
    assert rows * columns <= most


@pytest.mark.parametrize("picture", [(1, 1), (1, 100_000), (30_000, 29_999), (12, 5), (256, 2560)])
def test_grids_of_strange_pictures_are_those_of_the_image_processor(picture):
    for most in (1, 2, 256, 257, 1024):
        rows, columns = naflex_grid_of(picture, most, (16, 16))
        assert (rows * 16, columns * 16) == their_size(*picture, 16, most)


def test_more_than_255_patches_along_a_side_are_kept_in_a_batch():
    preprocessing = Preprocessing((256, 256), "naflex", patch=(16, 16))
    colours = np.random.default_rng(0).integers(0, 256, (3, 1500, 3), dtype=np.uint8)
    panorama, square = Image.fromarray(colours), Image.fromarray(colours[:, :3])
    images = [
        preprocessing.array(open_image(np.asarray(image), "")) for image in (panorama, square)
    ]
    assert images[0].shape == (3, 16, 256 * 16)
    batch = preprocessing.together(images)
    assert batch.dtype == np.uint8
    for number, image in enumerate(images):
        assert np.array_equal(preprocessing.image_of(batch, number), image)


def test_pixels_of_photographs_are_the_processor_s(shared):
    source = open_source(str(shared("data/ants_bees-test.parquet")))
    preprocessing, notes = preprocessing_of({}, (256, 256), "siglip2_vision_model", 16)
    assert "no preprocessor_config.json" in notes[0]
    theirs = processor(patch_size=16, max_num_patches=256)
    grids = set()
    for i in range(12):
        picture = open_image(source[i][0], "")
        image = preprocessing.array(picture)
        batch = theirs(Image.fromarray(picture.pixels()), return_tensors="pt")
        rows, columns = batch["spatial_shapes"][0].tolist()
        assert image.shape == (3, rows * 16, columns * 16)
        patches = batch["pixel_values"][0, : rows * columns].unflatten(0, (rows, columns))
        expected = patches.unflatten(2, (16, 16, 3)).permute(4, 0, 2, 1, 3).reshape(image.shape)
        ours = preprocessing.normalise(torch.from_numpy(image))
        torch.testing.assert_close(ours, expected, atol=1e-6, rtol=1e-6)
        grids.add((rows, columns))
    assert len(grids) > 3


def test_the_processor_is_written_as_it_was_read():
    written = processor_json(Preprocessing((8, 8 * MOST), "naflex", patch=(8, 8)))
    assert (written["patch_size"], written["max_num_patches"]) == (8, MOST)
    preprocessing, notes = preprocessing_of(written, (32, 32), "siglip2", 8)
    assert preprocessing == Preprocessing((8, 8 * MOST), "naflex", patch=(8, 8))
    assert notes == []
    _, notes = preprocessing_of({**written, "do_resize": False}, (32, 32), "siglip2", 8)
    assert "does not resize; images are resized here" in notes[0]


def test_positions_are_resized_as_transformers_resizes_them():
    from transformers.models.siglip2.modeling_siglip2 import Siglip2VisionEmbeddings

    table = torch.randn(1, 16, 6, generator=torch.Generator().manual_seed(0))
    for grid in [(1, 1), (2, 11), (23, 1), (4, 4), (9, 9)]:
        expected = Siglip2VisionEmbeddings.resize_positional_embeddings(
            table.unflatten(1, (4, 4))[0], torch.tensor([grid]), grid[0] * grid[1]
        )
        given = resample(table, (4, 4), grid, "siglip2")
        torch.testing.assert_close(given, expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(
    ("patches", "grid"), [(256, (16, 16)), (128, (8, 16)), (23, (1, 23)), (1, (1, 1))]
)
def test_a_number_of_patches_is_a_grid(patches, grid):
    assert squarest(patches) == grid


def test_tokens_say_how_many_patches_and_the_grids_stay_naflex_s(tmp_path):
    saved("the classifier", tmp_path)
    for tokens in (7, 128):
        preprocessing = load_as(tmp_path, Hints(tokens=tokens), quiet=True).preprocessing
        assert (preprocessing.rule, preprocessing.patches) == ("naflex", tokens)
    assert load_as(tmp_path, Hints(crop="native"), quiet=True).preprocessing.patches == MOST
    assert load_as(tmp_path, Hints(crop="centre"), quiet=True).preprocessing.size == (32, 32)
    cropped = load_as(tmp_path, Hints(resize=40), quiet=True).preprocessing
    assert (cropped.rule, cropped.size, cropped.resize) == ("shorter", (32, 32), 40)


def test_with_a_crop_its_vision_tower_is_a_siglip(tmp_path):
    """Which computes the same of images of one size."""
    saved("the vision tower", tmp_path)
    classifier = load_as(tmp_path, Hints(crop="whole"), quiet=True)
    assert convert_weights(classifier, tmp_path / "siglip", "huggingface").largest < 1e-5
    config = json.loads((tmp_path / "siglip" / "config.json").read_text())
    assert config["model_type"] == "siglip_vision_model"


def test_other_libraries_have_no_place_for_it(tmp_path):
    saved("the classifier", tmp_path)
    with pytest.raises(ValueError, match="There is one in native, huggingface; `crop='centre'`"):
        convert_weights(load(tmp_path, quiet=True), tmp_path / "timm", "timm")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("the vision tower", 'no place for pooling by "map", nor does timm'),
        ("a vision tower without its head", "Transformers opens it too"),
    ],
)
def test_finetune_says_whether_transformers_opens_a_new_head(name, sentence, tmp_path):
    saved(name, tmp_path)
    adopted, _ = adopt(load(tmp_path, quiet=True), labels=("ant", "bee"))
    [said] = openers(adopted)
    assert sentence in said


def test_timm_s_are_refused_in_a_sentence(tmp_path):
    timm = pytest.importorskip("timm")
    small = {"depth": 1, "embed_dim": 48, "num_heads": 4, "num_classes": 3}
    model = timm.create_model("naflexvit_base_patch16_siglip", pretrained=False, **small)
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"a list of patches as its input \(NaFlexVit; .* Hugging"):
        load(tmp_path / "model.safetensors", quiet=True)


# File, where in it, fields, and what is said
HOSTILE = {
    "too many patches": (
        "preprocessor_config.json", (), {"max_num_patches": 10**9},
        "max_num_patches is 1000000000; it is a number from 1 to 16,384",
    ),
    "no patches": (
        "preprocessor_config.json", (), {"max_num_patches": 0}, "max_num_patches is 0; it is a number from 1"
    ),
    "patches that are no number": (
        "preprocessor_config.json", (), {"max_num_patches": "many"}, "max_num_patches is 'many'"
    ),
    "patches of another size": (
        "preprocessor_config.json", (), {"patch_size": 14},
        "its preprocessor's patch_size is 14, but the model's is 8",
    ),
    "patches of a list": (
        "preprocessor_config.json", (), {"patch_size": [8, 8]},
        r"its preprocessor's patch_size is \[8, 8\], but the model's is 8",
    ),
    "a table that is no square": (
        "config.json", ("vision_config",), {"num_patches": 15}, "its num_patches is 15; .* a square"
    ),
    "a table of less than nothing": (
        "config.json", ("vision_config",), {"num_patches": -4}, "its num_patches is -4; .* a square"
    ),
    "a table of another size": (
        "config.json", ("vision_config",), {"num_patches": 25}, "does not make positions.table"
    ),
    "a patch of nothing": (
        "config.json", ("vision_config",), {"patch_size": 0}, "patch is 0"
    ),
    "another patch than the weights'": (
        "config.json", ("vision_config",), {"patch_size": 4}, "patch_size is 8, but the model's is 4"
    ),
    "rectangles": (
        "config.json", ("vision_config",), {"patch_size": [8, 4]}, "supports only squares"
    ),
    "no object": ("config.json", (), {"vision_config": 5}, "vision_config is 5; expected an object"),
    "another kind": (
        "config.json", (), {"model_type": "siglip"}, "a config.json of type 'siglip'; vitkit reads siglip2"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_what_cannot_be_is_said_in_a_sentence(name, tmp_path):
    file, within, fields, sentence = HOSTILE[name]
    saved("the classifier", tmp_path)
    edit(tmp_path, *within, file=file, **fields)
    with pytest.raises(ValueError, match=sentence):
        load(tmp_path, quiet=True)
