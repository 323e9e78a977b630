"""What a run does with its data besides training on it: some images left out, the others kept
decoded."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from sklearn.datasets import load_digits

from vitkit.data import BadImage
from vitkit.data.loading.resident import Pixels
from vitkit.evaluation import Accuracy, Eval
from vitkit.system.span import Span
from vitkit.training import train
from vitkit.training.data import open_data


@pytest.fixture
def photos(tiny, tmp_path):
    """The recipe on 60 digits as files, 10 of them a test part."""
    digits = load_digits()
    for i in range(60):
        part = "test" if i % 6 == 5 else "train"
        path = tmp_path / "photos" / part / str(digits.target[i]) / f"{i:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((digits.images[i] * 15).astype("uint8")).convert("RGB").save(path)
    data = replace(tiny.data, source=str(tmp_path / "photos"))
    return replace(
        tiny,
        data=data,
        batch=20,
        length=Span(6),
        evaluate_every=Span(6),
        optim=replace(tiny.optim, warmup=Span(1)),
    )


def is_in_memory(data, run_dir):
    run_data = open_data(data, (), run_dir, lambda _: None)
    return isinstance(run_data.train.store, Pixels)


def test_images_in_memory_change_no_weight_and_a_run_goes_on_without_them(photos, quiet, tmp_path):
    encoded = replace(photos, data=replace(photos.data, keep_decoded=0.0))
    train(photos, tmp_path / "in-memory", "cpu", quiet)
    train(encoded, tmp_path / "encoded", "cpu", quiet)
    weights = load_file(tmp_path / "in-memory" / "model" / "model.safetensors")
    expected = load_file(tmp_path / "encoded" / "model" / "model.safetensors")
    assert all(torch.equal(weights[name], expected[name]) for name in expected)

    # It is not another recipe
    train(encoded, tmp_path / "in-memory", "cpu", quiet)


def test_images_are_kept_in_memory_if_they_fit_and_are_always_the_same(photos, tmp_path):
    assert is_in_memory(photos.data, tmp_path)
    assert not is_in_memory(replace(photos.data, keep_decoded=0.0), tmp_path)
    augmentation = replace(photos.data.augmentation, reduced_decode=True)
    assert not is_in_memory(replace(photos.data, augmentation=augmentation), tmp_path)


def test_unchecked_a_broken_image_stops_the_run_when_its_turn_comes(photos, quiet, tmp_path):
    first = open_data(photos.data, (), tmp_path / "none", lambda _: None).train.name(0)
    with open(first, "r+b") as file:  # noqa: PTH123
        file.truncate(40)
    data = replace(photos.data, keep_decoded=0.0)
    with pytest.raises(BadImage, match="1 broken image in"):
        open_data(data, (), tmp_path / "none", lambda _: None)
    unchecked = replace(photos, data=replace(data, check=False))
    assert open_data(unchecked.data, (), tmp_path / "none", lambda _: None).record["skipped"] == {}
    with pytest.raises(BadImage, match="00.png is not an image"):
        train(unchecked, tmp_path / "run", "cpu", quiet)


def test_another_setting_of_the_data_is_not_taken_for_other_images(photos, quiet, tmp_path):
    train(photos, tmp_path, "cpu", quiet)
    select = replace(photos, data=replace(photos.data, parts="select"))
    with pytest.raises(ValueError, match=r"another recipe \(data.parts: given -> select\)"):
        train(select, tmp_path, "cpu", quiet)


def test_a_run_that_never_trained_may_have_other_images_and_checks_them(photos, quiet, tmp_path):
    run_dir = tmp_path / "run"
    mistyped = replace(photos, init=str(tmp_path / "none"))
    with pytest.raises((OSError, ValueError), match="none"):
        train(mistyped, run_dir, "cpu", quiet)

    # Then with images of an evaluator's own, one of them broken
    sketches = tmp_path / "sketches"
    shutil.copytree(tmp_path / "photos" / "test", sketches)
    broken = sorted(sketches.rglob("*.png"))[0]
    broken.write_bytes(b"no image")
    evals = (Eval(Accuracy()), Eval(Accuracy(), data=str(sketches)))
    with pytest.raises(BadImage, match=f"1 broken image in '{sketches}'"):
        train(replace(photos, evals=evals), run_dir, "cpu", quiet)

    # Then on other parts
    select = replace(photos, length=Span(2), data=replace(photos.data, parts="select"))
    train(select, run_dir, "cpu", quiet)
    assert json.loads((run_dir / "data.json").read_text())["counts"].keys() == {"train", "val"}


def test_listed_images_are_left_out_and_a_changed_list_is_another_run(photos, quiet, tmp_path):
    whole = open_data(photos.data, (), tmp_path / "none", lambda _: None).train
    drop = tmp_path / "drop.txt"
    drop.write_text("".join(f"{whole.name(i)}\tlike something\n" for i in (3, 7)), "utf-8")
    sentences = []
    data = replace(photos.data, exclude=str(drop))
    run_data = open_data(data, (), tmp_path / "none", sentences.append)
    names = {whole.name(i) for i in range(50)}
    remaining = {run_data.train.name(i) for i in range(48)}
    assert names - remaining == {whole.name(3), whole.name(7)}
    assert len(run_data.held_out["test"]) == 10
    assert sentences == [f"2 training images that {drop} lists are left out"]
    train(replace(photos, data=data), tmp_path / "run", "cpu", quiet)
    record = json.loads((tmp_path / "run" / "data.json").read_text())
    assert record["counts"] == {"train": 48, "test": 10}
    drop.write_text(f"{whole.name(3)}\n", "utf-8")
    with pytest.raises(ValueError, match="has changed since this run began"):
        train(replace(photos, data=data), tmp_path / "run", "cpu", quiet)
