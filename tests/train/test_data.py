"""What a run does with its data besides training on it: some images left out, the others kept
decoded."""

import json
from dataclasses import replace

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from sklearn.datasets import load_digits

from vitkit.data import BadImage
from vitkit.data.engine.resident import Pixels
from vitkit.system.span import Span
from vitkit.train import train
from vitkit.train.data import open_data


@pytest.fixture
def photos(tiny, tmp_path):
    """The recipe on 60 digits as files, 10 of them a test part."""
    found = load_digits()
    for i in range(60):
        path = (
            tmp_path
            / "photos"
            / ("test" if i % 6 == 5 else "train")
            / str(found.target[i])
            / f"{i:02}.png"
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((found.images[i] * 15).astype("uint8")).convert("RGB").save(path)
    data = replace(tiny.data, source=str(tmp_path / "photos"))
    return replace(
        tiny,
        data=data,
        batch=20,
        length=Span(6),
        evaluate_every=Span(6),
        optim=replace(tiny.optim, warmup=Span(1)),
    )


def test_images_kept_decoded_change_no_weight_and_a_run_goes_on_without_them(
    photos, quiet, tmp_path
):
    train(photos, tmp_path / "kept", "cpu", quiet)
    encoded = replace(photos, data=replace(photos.data, keep_decoded=0.0))
    train(encoded, tmp_path / "encoded", "cpu", quiet)
    one, other = (
        load_file(tmp_path / name / "model/model.safetensors") for name in ("kept", "encoded")
    )
    assert all(torch.equal(one[name], other[name]) for name in one)
    train(encoded, tmp_path / "kept", "cpu", quiet)  # the same run, finished: not another recipe
    kinds = [
        type(open_data(one.data, (), tmp_path, lambda _: None).train.store)
        for one in (photos, encoded)
    ]
    assert kinds[0] is Pixels and kinds[1] is not Pixels
    reduced = replace(
        photos.data, augmentation=replace(photos.data.augmentation, reduced_decode=True)
    )
    assert not isinstance(open_data(reduced, (), tmp_path, lambda _: None).train.store, Pixels)


def test_unchecked_a_broken_image_stops_the_run_when_its_turn_comes(photos, quiet, tmp_path):
    first = open_data(photos.data, (), tmp_path / "none", lambda _: None).train.name(0)
    with open(first, "r+b") as file:  # noqa: PTH123
        file.truncate(40)
    data = replace(photos.data, keep_decoded=0.0)
    with pytest.raises(BadImage, match="1 broken image in"):
        open_data(data, (), tmp_path / "none", lambda _: None)
    unchecked = replace(photos, data=replace(data, check=False))
    assert open_data(unchecked.data, (), tmp_path / "none", lambda _: None).record["skipped"] == {}
    with pytest.raises(BadImage, match="00.png is no image"):
        train(unchecked, tmp_path / "run", "cpu", quiet)


def test_listed_images_are_left_out_and_a_changed_list_is_another_run(photos, quiet, tmp_path):
    whole = open_data(photos.data, (), tmp_path / "none", lambda _: None).train
    drop = tmp_path / "drop.txt"
    drop.write_text("".join(f"{whole.name(i)}\tlike something\n" for i in (3, 7)), "utf-8")
    said = []
    data = replace(photos.data, exclude=str(drop))
    left = open_data(data, (), tmp_path / "none", said.append)
    assert {whole.name(i) for i in range(50)} - {left.train.name(i) for i in range(48)} == {
        whole.name(3),
        whole.name(7),
    }
    assert (
        said == [f"2 training images that {drop} lists are left out"]
        and len(left.held_out["test"]) == 10
    )
    train(replace(photos, data=data), tmp_path / "run", "cpu", quiet)
    assert json.loads((tmp_path / "run/data.json").read_text())["counts"] == {
        "train": 48,
        "test": 10,
    }
    drop.write_text(f"{whole.name(3)}\n", "utf-8")
    with pytest.raises(ValueError, match="has changed since this run began"):
        train(replace(photos, data=data), tmp_path / "run", "cpu", quiet)
