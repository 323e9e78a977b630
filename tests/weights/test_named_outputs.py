"""The names of classes in config.json, of Transformers and of timm, in all their spellings: read,
or numbers with one note that says why."""

import json

import pytest
import timm
import transformers
from other_libraries import randomised
from safetensors.torch import save_file

from vitkit.weights import Hints, load, load_with_account
from vitkit.weights.formats.huggingface.config import labels_of
from vitkit.weights.formats.timm.config import labels_of as timms_labels_of

NAMES = ("ant", "bee", "cat")


@pytest.mark.parametrize(
    "written",
    [
        {"id2label": {"0": "ant", "1": "bee", "2": "cat"}},
        {"id2label": {"2": "cat", "1": "bee", "0": "ant"}},
        {"id2label": {"ant": 0, "bee": 1, "cat": 2}},
        {"id2label": {"ant": "0", "bee": "1", "cat": "2"}},
        {"id2label": ["ant", "bee", "cat"]},
        {"label2id": {"ant": 0, "bee": 1, "cat": 2}},
        {"label2id": {"cat": "2", "bee": "1", "ant": "0"}},
        {"label2id": {"0": "ant", "1": "bee", "2": "cat"}},
        {"id2label": {}, "label2id": {"ant": 0, "bee": 1, "cat": 2}},
        {
            "id2label": {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"},
            "label2id": {"ant": 0, "bee": 1, "cat": 2},
        },
    ],
)
def test_every_spelling_is_read(written):
    assert labels_of(written, 3) == (NAMES, [])


def test_names_that_are_numbers_stay_names():
    assert labels_of({"id2label": {"0": "1", "1": "0"}}, 2) == (("1", "0"), [])
    assert labels_of({"id2label": {"0": 7, "1": 3}}, 2) == (("7", "3"), [])
    assert labels_of({"label2id": {"7": 0, "3": 1}}, 2) == (("7", "3"), [])


@pytest.mark.parametrize(
    "written",
    [
        {"id2label": {"1": "ant", "2": "bee", "3": "cat"}},
        {"id2label": {"ant": 1, "bee": 2, "cat": 3}},
        {"label2id": {"ant": 1, "bee": 2, "cat": 3}},
    ],
)
def test_numbers_that_begin_at_one_are_read_and_told(written):
    labels, [note] = labels_of(written, 3)
    assert labels == NAMES
    assert note.endswith("counts from 1, so its 1 names the first output")


@pytest.mark.parametrize(
    ("written", "labels", "note"),
    [
        # Outputs without a name
        ({"0": "ant", "2": "cat"}, ("ant", "1", "cat"), "outputs; the others have their number (1)"),
        ({"0": "ant", "1": None, "2": ""}, ("ant", "1", "2"), "names 1 of 3 outputs"),
        ({"0": "ant", "1": ["n1", "bee"], "2": "cat"}, ("ant", "1", "cat"), "names 2 of 3 outputs"),
        (["ant", "bee"], ("ant", "bee", "2"), "names 2 of 3 outputs"),
        ({"ant": 0, "bee": 0, "cat": 2}, ("0", "1", "cat"), "names 1 of 3 outputs"),
        # Names of several outputs, such as ImageNet's two cranes
        ({"0": "crane", "1": "bee", "2": "crane"}, ("crane (0)", "bee", "crane (2)"), "their number (crane)"),
        # Names that do not fit the head
        ({str(i): f"class {i}" for i in range(10)}, None, "names an output 9, but the head has 3 classes"),
        ({"0": "ant", "1": "bee", "3": "cat"}, None, "names an output 3"),
        ({"1": "ant", "3": "cat"}, None, "names an output 3"),
        ({"a": "ant", "b": "bee", "c": "cat"}, None, "does not map outputs to names"),
        ({"0": "ant", "b": "bee"}, None, "does not map outputs to names"),
        ("ant bee cat", None, "does not map outputs to names"),
        (7, None, "does not map outputs to names"),
        # Which number, or which crane?
        ({"0": "ant", "1": "2"}, None, "are not unique"),
        ({"0": "a", "1": "a", "2": "a (0)"}, None, "are not unique"),
    ],
)  # fmt: skip
def test_what_is_not_just_as_written_is_told_in_one_note(written, labels, note):
    read, [told] = labels_of({"id2label": written}, 3)
    assert read == labels
    assert told.startswith("labels: ")
    assert note in told


@pytest.mark.parametrize(
    "written",
    [
        {},
        {"id2label": None},
        {"id2label": {"0": "LABEL_0", "1": "LABEL_1"}},
        {"label2id": {"LABEL_0": 0}},
    ],
)
def test_names_that_transformers_makes_up_are_none(written):
    assert labels_of(written, 3) == (None, [])


@pytest.mark.parametrize("classes", [0, 1, 3])
def test_a_head_has_as_many_names_as_outputs(classes):
    labels, notes = labels_of({"id2label": {"0": "ant", "1": "bee", "2": "cat"}}, classes)
    assert (labels, len(notes)) == {0: (None, 0), 1: (None, 1), 3: (NAMES, 0)}[classes]


@pytest.mark.parametrize(
    ("written", "labels", "notes"),
    [
        ({"label_names": list(NAMES)}, NAMES, 0),
        ({"label_names": {"0": "ant", "1": "bee", "2": "cat"}}, NAMES, 0),
        ({"label_names": {"0": "ant", "2": "cat"}}, ("ant", "1", "cat"), 1),
        ({"pretrained_cfg": {"label_names": {"0": "ant", "1": "bee", "2": "cat"}}}, NAMES, 0),
        ({"architecture": "vit", "labels": list(NAMES)}, NAMES, 0),
        ({"label_names": ["ant"] * 4}, None, 1),
        ({"label_names": list(NAMES), "label_descriptions": {"ant": "an insect"}}, NAMES, 0),
        ({"label_descriptions": {"ant": "an insect"}}, None, 0),
    ],
)
def test_timms_label_names_may_be_an_object(written, labels, notes):
    read, told = timms_labels_of(written, 3)
    assert (read, len(told)) == (labels, notes)


def test_timms_names_are_not_imagenets_if_they_do_not_fit():
    """The usual names are for files that name nothing."""
    labels, [note] = timms_labels_of({"label_names": ["mine"] * 1001}, 1000)
    assert labels is None
    assert "names an output 1000" in note


def test_the_notes_reach_the_user(tmp_path):
    settings = {
        "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
        "image_size": 32, "patch_size": 16,
    }  # fmt: skip
    config = transformers.ViTConfig(**settings, id2label=dict(enumerate(NAMES)))
    transformers.ViTForImageClassification(config).save_pretrained(tmp_path / "transformers")
    edit(tmp_path / "transformers", id2label={"1": "ant", "2": "bee", "3": "cat"})
    classifier, account = load_with_account(tmp_path / "transformers", Hints())
    assert classifier.labels == NAMES
    assert [line for line in account if line.startswith("labels:")] == [
        "labels: id2label counts from 1, so its 1 names the first output"
    ]

    theirs = timm.create_model("vit_tiny_patch16_224", num_classes=3, depth=1, img_size=32)
    (tmp_path / "timm").mkdir()
    save_file(randomised(theirs).state_dict(), tmp_path / "timm/model.safetensors")
    written = {"architecture": "vit_tiny_patch16_224", "label_names": {"0": "ant", "1": "bee"}}
    (tmp_path / "timm/config.json").write_text(json.dumps(written))
    classifier, account = load_with_account(tmp_path / "timm", Hints())
    assert classifier.labels == ("ant", "bee", "2")
    assert len([line for line in account if line.startswith("labels:")]) == 1
    assert load(tmp_path / "timm", quiet=True).labels == classifier.labels


def edit(folder, **changes):
    """Change fields of its config.json."""
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
