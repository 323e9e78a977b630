"""Files that nobody should trust: whatever is in them, a model or one sentence comes out."""

import io
import json
import os
import pickle
import struct
import tracemalloc
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vitkit.models import vit
from vitkit.weights import convert, load, save
from vitkit.weights.files.npz import read_npz
from vitkit.weights.files.pytorch import read_pickle
from vitkit.weights.formats.google import vit as google
from vitkit.weights.formats.timm import vit as timm
from vitkit.weights.writing import tensors_in

CONFIG = vit("mu/8", image=(16, 16), classes=3, depth=2, width=16, mlp=16, heads=2)

MUTATION = st.one_of(
    st.tuples(st.just("flip"), st.floats(0, 1, exclude_max=True), st.integers(1, 255)),
    st.tuples(st.just("cut"), st.floats(0, 1), st.just(0)),
    st.tuples(st.just("insert"), st.floats(0, 1), st.integers(0, 255)),
    st.tuples(
        st.just("number"),
        st.floats(0, 1),
        st.sampled_from([0, 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1]),
    ),
    st.tuples(
        st.just("word"),
        st.floats(0, 1),
        st.sampled_from([b"-1", b"1e999", b"null", b"[]", b"99999999999", b'"', b"\\u0000"]),
    ),
)


def mutate(data: bytes, mutations: list[tuple]) -> bytes:
    """Half of the places lie in the first kilobyte, where headers are."""
    for kind, where, what in mutations:
        span = min(len(data), 1024) if where < 0.5 else len(data)
        at = int(where * 2 % 1 * span)
        if kind == "flip" and data:
            data = data[:at] + bytes([data[at] ^ what]) + data[at + 1 :]
        elif kind == "cut":
            data = data[:at]
        elif kind == "insert":
            data = data[:at] + bytes([what]) * 3 + data[at:]
        elif kind == "number":
            data = data[:at] + struct.pack("<Q", what) + data[at + 8 :]
        elif kind == "word":
            data = data[:at] + what + data[at + len(what) :]
    return data


def outcome(path: Path) -> None:
    """A model, or a ValueError with a sentence; nothing else, and quickly."""
    try:
        load(path, heads=2, quiet=True)
    except ValueError as error:
        assert 10 < len(str(error)) < 3000


many = settings(
    max_examples=300,
    deadline=3000,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture
def files(random_classifier, tmp_path):
    classifier = random_classifier(CONFIG)
    save(classifier, tmp_path / "hf")
    convert(classifier, tmp_path / "m.npz", "google")
    arrays = {name: t.numpy() for name, t in tensors_in(google.FORMAT, classifier).items()}
    np.savez(tmp_path / "plain.npz", **arrays)
    torch.save(tensors_in(timm.FORMAT, classifier), tmp_path / "m.pth")
    return tmp_path


@many
@given(st.lists(MUTATION, min_size=1, max_size=4))
@pytest.mark.parametrize(
    "name", ["hf/model.safetensors", "hf/config.json", "m.npz", "plain.npz", "m.pth"]
)
def test_a_damaged_file_is_a_sentence(name, files, mutations):
    whole = (files / name).read_bytes()
    try:
        (files / name).write_bytes(mutate(whole, mutations))
        outcome(files / "hf" if name.startswith("hf") else files / name)
    finally:
        (files / name).write_bytes(whole)


VALUES = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=5)
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=4,
)


@many
@given(st.data())
@pytest.mark.parametrize("file", ["config.json", "preprocessor_config.json"])
def test_a_config_with_any_value_is_a_sentence(file, files, data):
    """One setting, at any depth, becomes something else; also without vitkit's own description."""
    path = files / "hf" / file
    whole = path.read_text()
    config = json.loads(whole)
    (files / "hf" / "config.json").read_text()
    if data.draw(st.booleans()):
        config.pop("vitkit", None)
    place = config
    while True:
        key = data.draw(st.sampled_from(sorted(place)))
        if not isinstance(place[key], dict) or not place[key] or data.draw(st.booleans()):
            break
        place = place[key]
    place[key] = data.draw(VALUES)
    keep = (files / "hf" / "config.json").read_text()
    try:
        if file != "config.json":
            described = json.loads(keep)
            described.pop("vitkit")
            (files / "hf" / "config.json").write_text(json.dumps(described))
        path.write_text(json.dumps(config))
        outcome(files / "hf")
    finally:
        (files / "hf" / "config.json").write_text(keep)
        path.write_text(whole)


class Runs:
    def __reduce__(self):
        return os.system, ("touch /tmp/vitkit-was-run",)


def test_a_pickle_that_runs_something_does_not(tmp_path):
    torch.save({"patch_embed.proj.weight": torch.zeros(1), "evil": Runs()}, tmp_path / "m.pth")
    with pytest.raises(
        ValueError,
        match=r"it holds the Python object posix.system, and vitkit runs no code from files",
    ):
        load(tmp_path / "m.pth")
    (tmp_path / "old.pth").write_bytes(pickle.dumps({"a": Runs()}))
    with pytest.raises(ValueError, match="cannot be loaded"):
        load(tmp_path / "old.pth")
    np.savez(tmp_path / "m.npz", **{"embedding/kernel": np.array([Runs()], dtype=object)})
    with pytest.raises(ValueError, match="is no weights|no numbers"):
        load(tmp_path / "m.npz")
    assert not Path("/tmp/vitkit-was-run").exists()


def test_settings_in_a_training_checkpoint_are_no_danger(tmp_path):
    import argparse

    torch.save(
        {"args": argparse.Namespace(lr=1), "model": {"w": torch.ones(2)}, "epoch": 3},
        tmp_path / "m.pth",
    )
    tensors, wrapper = read_pickle(tmp_path / "m.pth")
    assert wrapper == "model" and torch.equal(tensors["w"].read(), torch.ones(2))


def test_the_format_before_pytorch_1_6(tmp_path, random_classifier):
    classifier = random_classifier(CONFIG)
    state = {n: t.clone() for n, t in tensors_in(timm.FORMAT, classifier).items()}
    torch.save(state, tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    found = load(tmp_path / "old.pth", heads=2, quiet=True)
    assert all(
        torch.equal(t, classifier.model.state_dict()[n])
        for n, t in found.model.state_dict().items()
    )


def npz_with(shape: str, data: bytes, name: str = "embedding/kernel.npy") -> bytes:
    header = (
        f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".encode().ljust(117)
        + b"\n"
    )
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(
            name, b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data
        )
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (npz_with("(1000000, 1000000, 1000000, 1000000)", b"1234"), "says that its shape is"),
        (npz_with("(-1, -1)", b"1234"), "is no weights"),
        (npz_with("(1.5,)", b"1234"), "cannot be loaded"),
        (npz_with("(True,)", b"1234"), "cannot be loaded"),
        (
            npz_with("(536870912,)", bytes(2**29)),
            "it would take .* bytes of memory, out of a file of",
        ),
    ],
)
def test_an_archive_that_promises_too_much_is_refused_before_memory_is_taken(
    content, sentence, tmp_path
):
    (tmp_path / "m.npz").write_bytes(content)
    tracemalloc.start()
    with pytest.raises(ValueError, match=sentence):
        load(tmp_path / "m.npz")
    assert tracemalloc.get_traced_memory()[1] < 2**26
    tracemalloc.stop()


def test_a_description_that_asks_for_the_impossible_is_not_followed(files):
    sound = load(files / "hf").model.config
    config = json.loads((files / "hf" / "config.json").read_text())
    for name, value in (
        ("width", 2**40),
        ("depth", 2**60),
        ("mlp", 2**62),
        ("classes", 2**62),
        ("image", [2**40, 2**40]),
    ):
        wrong = {
            **config,
            "vitkit": {**config["vitkit"], "model": {**config["vitkit"]["model"], name: value}},
        }
        (files / "hf" / "config.json").write_text(json.dumps(wrong))
        # Refused; or, as Transformers' own fields are sound and contradict it, not followed
        try:
            opened = load(files / "hf").model.config
        except ValueError as error:
            assert "cannot be loaded" in str(error)
        else:
            assert replace(opened, resample=sound.resample) == sound


def test_arrays_in_every_order_and_width(tmp_path):
    """Fortran order, big-endian, half and double: the same numbers."""
    numbers = np.arange(6.0).reshape(2, 3)
    np.savez(
        tmp_path / "m.npz", f=np.asfortranarray(numbers.astype("f4")), b=numbers.astype(">f4"), h=numbers.astype("f2"), d=numbers,
        e=np.zeros((0, 3), "f4"), s=np.float32(3),
    )  # fmt: skip
    tensors, _ = read_npz(tmp_path / "m.npz")
    for name in "fbhd":
        assert np.array_equal(tensors[name].read().numpy(), numbers)
    assert tensors["e"].read().shape == (0, 3) and tensors["s"].read() == 3


def test_every_misfit_is_named_at_once(files):
    """A tensor that no rule reads, one that is missing and one of another shape, in one sentence."""
    arrays = dict(np.load(files / "plain.npz"))
    arrays["surplus/kernel"] = arrays.pop("Transformer/encoder_norm/bias")
    arrays["head/kernel"] = arrays["head/kernel"][:-1]
    np.savez(files / "plain.npz", **arrays)
    with pytest.raises(ValueError) as caught:
        load(files / "plain.npz")
    for part in (
        "no rule reads surplus/kernel",
        "there is no Transformer/encoder_norm/bias",
        "head/kernel (15, 3) does not make head.weight (3, 16)",
    ):
        assert part in str(caught.value)


def test_names_without_a_model_are_a_sentence(tmp_path):
    np.savez(tmp_path / "m.npz", a=np.zeros(3), b=np.zeros(2))
    with pytest.raises(
        ValueError, match=r"its 2 tensors \(a, b, ...\) have the names of no Vision Transformer"
    ):
        load(tmp_path / "m.npz")
    (tmp_path / "note.txt").write_text("dear all")
    with pytest.raises(ValueError, match="cannot be loaded"):
        load(tmp_path / "note.txt")
