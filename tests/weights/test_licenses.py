"""Licences: read as the hub's repositories state them, and never lost on the way."""

import shutil
from dataclasses import replace

import pytest
from other_libraries import edit

from vitkit.models import vit
from vitkit.system.storage.private import paths_of_this_machine, public
from vitkit.weights import License, adopt, format_of, load, save
from vitkit.weights.card import model_card
from vitkit.weights.licenses import check_may_be_shared, chosen
from vitkit.weights.proof import convert_weights

CONFIG = vit("mu/8", image=(16, 16), classes=3, depth=1, width=16, mlp=16, heads=2)
AGREEMENT = "DINOv3 License\n\nLast Updated: August 19, 2025\n\nTerms."
DINOV3 = License("other", "dinov3-license", "https://ai.meta.com/dinov3-license", AGREEMENT)
NON_COMMERCIAL = License("cc-by-nc-4.0")


@pytest.fixture
def classifier(random_classifier):
    return random_classifier(CONFIG)


@pytest.fixture
def published(classifier, tmp_path):
    """A directory as the hub's, without vitkit's own words in it; `published(header, license)`."""
    path = save(classifier, tmp_path / "published")
    edit(path, vitkit=None)

    def state(header: str, license: str = "", name: str = "LICENSE"):
        (path / "README.md").write_text(f"---\n{header}\n---\n# A model\nlicense: no field")
        if license:
            (path / name).write_text(license)
        return path

    return state


HEADERS = {
    "license: apache-2.0": License("apache-2.0"),
    "tags:\n- vision\nlicense: 'cc-by-nc-4.0'\nlibrary_name: timm": NON_COMMERCIAL,
    "license:\n- mit\n- apache-2.0": License("mit"),
    "license: [mit]": License("mit"),
    "license: other\nlicense_name: dinov3-license\nlicense_link: LICENSE.md": License(
        "other", "dinov3-license", "LICENSE.md"
    ),
    "license: Apache-2.0": License("apache-2.0"),
    "license: ../../etc": None,
    "tags: [a]": None,
}


@pytest.mark.parametrize("header", HEADERS)
def test_the_header_of_a_card_says_the_licence(header, published):
    assert load(published(header), quiet=True).license == HEADERS[header]


TEXTS = {
    "                 Apache License\n           Version 2.0, January 2004": "apache-2.0",
    "MIT License\n\nPermission is hereby granted, free of charge, to any": "mit",
    "Attribution-NonCommercial 4.0 International\n====": "cc-by-nc-4.0",
    AGREEMENT: "dinov3-license",
    "Something else": "other",
}


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_alone_is_recognised(text, published):
    license = load(published("tags: [a]", text, "LICENSE.md"), quiet=True).license
    assert license.called == TEXTS[text]
    assert license.text == text


def test_timms_config_may_say_it(classifier, tmp_path):
    path = tmp_path / "timm"
    convert_weights(classifier, path, "timm")
    edit(path, "pretrained_cfg", license="cc-by-nc-4.0")
    edit(path, vitkit=None)
    (path / "README.md").unlink()
    assert load(path, quiet=True).license == NON_COMMERCIAL


@pytest.mark.parametrize("to", ["native", "huggingface", "timm"])
@pytest.mark.parametrize("license", [DINOV3, NON_COMMERCIAL, None])
def test_a_licence_goes_with_every_directory(license, to, classifier, tmp_path):
    convert_weights(replace(classifier, license=license), tmp_path / "model", to)
    again = load(tmp_path / "model", quiet=True).license
    if license is DINOV3:
        assert (tmp_path / "model" / "LICENSE").read_text() == AGREEMENT
        again = replace(again, link=DINOV3.link)  # the card's link is to the copy
    assert again == license


@pytest.mark.parametrize("ending", ["npz", "safetensors", "pth"])
def test_a_licence_goes_with_every_file(ending, classifier, tmp_path):
    to = {"npz": "google"}.get(ending, "timm")
    path = tmp_path / f"vit.{ending}"
    convert_weights(replace(classifier, license=DINOV3), path, to)
    assert (tmp_path / "vit.LICENSE").read_text() == AGREEMENT
    assert load(path, quiet=True).license == DINOV3


def test_a_new_head_has_the_licence_of_the_rest(classifier):
    adopted, _ = adopt(replace(classifier, license=DINOV3), labels=("a", "b"), image=(24, 24))
    assert adopted.license == DINOV3


def test_the_owner_of_a_card_may_change_the_licence(classifier, tmp_path):
    path = save(replace(classifier, license=NON_COMMERCIAL), tmp_path / "model")
    card = (path / "README.md").read_text()
    (path / "README.md").write_text(card.replace("cc-by-nc-4.0", "cc-by-nc-sa-4.0"))
    assert load(path, quiet=True).license.id == "cc-by-nc-sa-4.0"
    (path / "README.md").write_text("No header.")
    assert load(path, quiet=True).license == NON_COMMERCIAL


def test_an_earlier_models_licence_goes_and_somebodys_stays(classifier, tmp_path):
    path = save(replace(classifier, license=DINOV3), tmp_path / "model")
    save(classifier, path)
    assert not (path / "LICENSE").exists()
    (path / "LICENSE").write_text("My terms.")
    save(replace(classifier, license=NON_COMMERCIAL), path)
    assert (path / "LICENSE").read_text() == "My terms."
    with pytest.raises(ValueError, match="is not the licence of this model .dinov3-license."):
        save(replace(classifier, license=DINOV3), path)
    assert (path / "LICENSE").read_text() == "My terms."


def test_a_card_says_what_the_licence_allows(classifier):
    format = format_of("huggingface", CONFIG)
    card = model_card(replace(classifier, license=DINOV3), format)
    assert 'license: "other"\nlicense_name: "dinov3-license"\nlicense_link: "LICENSE"' in card
    assert "no commercial use" in model_card(replace(classifier, license=NON_COMMERCIAL), format)
    assert "The licence of the weights is unknown" in model_card(classifier, format)
    linked = License("apache-2.0", link="https://a.example/terms")
    assert " See https://a.example/terms." in model_card(
        replace(classifier, license=linked), format
    )
    card = model_card(replace(classifier, license=replace(linked, text="The terms.")), format)
    assert " The text is in LICENSE." in card and " See https://a.example/terms." not in card


def test_what_may_not_be_shared_is_refused():
    refused = {
        "licence of these weights is unknown": (None, False),
        "does not allow sharing modified ones": (License("cc-by-nc-nd-4.0"), True),
        "put its text into a file LICENSE": (License("other", "dinov3-license"), False),
    }
    for sentence, weights in refused.items():
        with pytest.raises(ValueError, match=sentence):
            check_may_be_shared(*weights)
    for license in (License("apache-2.0"), NON_COMMERCIAL, DINOV3, License("cc-by-nd-4.0")):
        check_may_be_shared(license, is_trained=False)


def test_who_says_a_licence_cannot_lift_one():
    assert chosen(None, "mit", "") == License("mit")
    assert chosen(License("apache-2.0"), "mit", "") == License("mit")
    assert chosen(NON_COMMERCIAL, "cc-by-nc-4.0", "") == NON_COMMERCIAL
    assert chosen(None, "other", "Terms.") == License("other", text="Terms.")
    with pytest.raises(ValueError, match="are under dinov3-license, which `license="):
        chosen(DINOV3, "mit", "")
    with pytest.raises(ValueError, match="give one of the hub's ids"):
        chosen(None, "my own licence", "")


# paths


PRIVATE = {
    "/home/me/photos": "photos",
    "/home/me/train-{000..146}.tar": "train-{000..146}.tar",
    "/home/me/mine.py:images": "mine.py:images",
    "../secret/photos/": "photos",
    "C:\\Users\\me\\photos": "photos",
    "file:///home/me/photos": "photos",
    "https://me:password@host/a.tar?signature=x": "https://host/a.tar",
    "s3://bucket/a/b": "s3://bucket/a/b",
    "photos/train": "photos/train",
    "hf:cifar10": "hf:cifar10",
}


@pytest.mark.parametrize("text", PRIVATE)
def test_what_is_of_this_machine_alone_stays_here(text):
    assert public({"a": [text, 1], text: None}) == {"a": [PRIVATE[text], 1], PRIVATE[text]: None}


@pytest.mark.parametrize("ending", ["", ".npz", ".safetensors", ".pth"])
def test_no_model_that_is_written_has_a_path_of_this_machine(ending, classifier, tmp_path):
    origin = {"data": str(tmp_path / "photos"), "objective": {"teacher": str(tmp_path / "t")}}
    path = tmp_path / f"model{ending}"
    to = {"": "huggingface", ".npz": "google"}.get(ending, "timm")
    convert_weights(replace(classifier, origin=origin), path, to)
    files = [path] if ending else list(path.iterdir())
    for file in files:
        assert str(tmp_path).encode() not in file.read_bytes()
    assert load(path, quiet=True).origin["objective"] == {"teacher": "t"}


def test_paths_in_a_text_are_found_if_they_lead_somewhere(tmp_path):
    text = f"see `{tmp_path}`, https://a.org{tmp_path} and /no/such/place, 1/2, /m/01g317"
    assert paths_of_this_machine(text) == [str(tmp_path)]


# a save that was interrupted


@pytest.mark.parametrize("replaced", [1, 2, 3])
def test_new_weights_beside_an_old_description_describe_themselves(
    replaced, classifier, tmp_path, capsys
):
    """As a kill between two renames leaves it: the weights come first, config.json last."""
    path = save(classifier, tmp_path / "model")
    labels = tuple(reversed(classifier.labels))
    preprocessing = replace(classifier.preprocessing, mean=(0.1, 0.2, 0.3))
    other = replace(classifier, labels=labels, preprocessing=preprocessing, license=DINOV3)
    new = save(other, tmp_path / "new")
    order = ["model.safetensors", "preprocessor_config.json", "README.md", "LICENSE", "config.json"]
    for name in order[:replaced]:
        shutil.copy(new / name, path / name)
    found = load(path)
    assert (found.labels, found.preprocessing) == (labels, preprocessing)
    assert "the save that replaced them was interrupted" in capsys.readouterr().err


def test_a_config_that_its_owner_edited_counts(classifier, tmp_path):
    path = save(classifier, tmp_path / "model")
    edit(path, "id2label", **{"0": "mine"})
    assert load(path, quiet=True).labels[0] == "mine"


def test_equal_models_are_equal_files(classifier, tmp_path):
    first, second = (save(classifier, tmp_path / name) for name in "ab")
    for name in ("model.safetensors", "config.json", "README.md"):
        assert (first / name).read_bytes() == (second / name).read_bytes()


@pytest.mark.parametrize(
    "name",
    [
        *("apache-2.0", "mit", "bsd", "bsd-2-clause", "bsd-3-clause", "bsd-3-clause-clear", "isc"),
        *("unlicense", "cc0-1.0", "cc-by-2.0", "cc-by-3.0", "cc-by-4.0", "wtfpl", "zlib"),
    ],
)
def test_permissive_licences_allow_any_use(name):
    assert License(name).allows() == "any use; its notices stay with the weights"


@pytest.mark.parametrize("name", ["cc-by-nc-4.0", "cc-by-sa-4.0", "gpl-3.0", "openrail", "unknown"])
def test_other_licences_are_not_called_permissive(name):
    assert not License(name).allows().startswith("any use")
