"""Files that nobody should trust: whatever is in them, a model or one sentence comes out."""

import io
import json
import os
import pickle
import struct
import tracemalloc
import weakref
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from other_libraries import assert_same_state
from safetensors.torch import save_file

from vitkit.data import open_image
from vitkit.models import vit
from vitkit.system.errors import BadImage, BadWeights
from vitkit.weights import load, save
from vitkit.weights.destination import tensors_in
from vitkit.weights.files.directory import _read
from vitkit.weights.files.npz import read_npz
from vitkit.weights.files.pytorch import read_pickle
from vitkit.weights.formats.google import vit as google
from vitkit.weights.formats.timm import vit as timm
from vitkit.weights.proof import convert_weights

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
    """Data with these mutations, half of which are in the first kilobyte, where headers are."""
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


def load_or_refuse(path: Path) -> None:
    """Loads a file: a model, or a ValueError with a sentence, and nothing else."""
    try:
        load(path, heads=2, quiet=True)
    except ValueError as error:
        assert 10 < len(str(error)) < 3000


many = settings(
    max_examples=20,  # `make fuzz` tries thousands
    deadline=3000,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture
def files(random_classifier, tmp_path):
    classifier = random_classifier(CONFIG)
    save(classifier, tmp_path / "hf")
    convert_weights(classifier, tmp_path / "m.npz", "google")
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
        load_or_refuse(files / "hf" if name.startswith("hf") else files / name)
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
    folder = files / "hf"
    before = {name: (folder / name).read_text() for name in ("config.json", file)}

    # Without the description, Transformers' own fields count; beside it no other file is read
    config = json.loads(before["config.json"])
    if file != "config.json" or data.draw(st.booleans()):
        del config["vitkit"]

    # Another value somewhere
    changed = config
    if file != "config.json":
        changed = json.loads(before[file])
    table = changed
    while True:
        key = data.draw(st.sampled_from(sorted(table)))
        if not isinstance(table[key], dict) or not table[key] or data.draw(st.booleans()):
            break
        table = table[key]
    table[key] = data.draw(VALUES)

    try:
        (folder / "config.json").write_text(json.dumps(config))
        (folder / file).write_text(json.dumps(changed))
        load_or_refuse(folder)
    finally:
        for name, text in before.items():
            (folder / name).write_text(text)


class Command:
    """An object that runs a command when it is unpickled."""

    def __init__(self, command: str):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


def test_no_file_runs_code(tmp_path):
    proof = tmp_path / "was-run"
    evil = Command(f"touch {proof}")
    torch.save({"patch_embed.proj.weight": torch.zeros(1), "evil": evil}, tmp_path / "m.pth")
    (tmp_path / "old.pth").write_bytes(pickle.dumps({"a": evil}))
    np.savez(tmp_path / "m.npz", **{"embedding/kernel": np.array([evil], dtype=object)})
    sentences = {
        "m.pth": "it holds the Python object posix.system, and vitkit runs no code from files",
        "old.pth": "cannot be loaded",
        "m.npz": "is not a weight|are not numbers",
    }
    for name, sentence in sentences.items():
        with pytest.raises(ValueError, match=sentence):
            load(tmp_path / name)
    assert not proof.exists()


def test_settings_in_a_training_checkpoint_are_no_danger(tmp_path):
    import argparse

    torch.save(
        {"args": argparse.Namespace(lr=1), "model": {"w": torch.ones(2)}, "epoch": 3},
        tmp_path / "m.pth",
    )
    parts, _ = read_pickle(tmp_path / "m.pth")
    assert list(parts) == [("model",)]
    assert torch.equal(parts["model",]["w"].read(), torch.ones(2))


def test_the_format_before_pytorch_1_6_is_read(tmp_path, random_classifier):
    classifier = random_classifier(CONFIG)
    state = tensors_in(timm.FORMAT, classifier)
    torch.save(state, tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    assert_same_state(load(tmp_path / "old.pth", heads=2, quiet=True).model, classifier.model)


def npz_with(shape: str, claimed: int = 0) -> bytes:
    """An archive of one array of float32 that says it has this shape, and has 4 bytes, or claims more."""
    description = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}"
    header = description.encode().ljust(117) + b"\n"
    magic = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("embedding/kernel.npy", magic + header + bytes(4))
    data = bytearray(buffer.getvalue())
    if claimed:
        size_in_directory = data.index(b"PK\1\2") + 24
        struct.pack_into("<I", data, size_in_directory, claimed)
    return bytes(data)


@pytest.mark.parametrize(
    ("shape", "claimed", "sentence"),
    [
        ("(1000000, 1000000, 1000000, 1000000)", 0, "has the shape .* by its header"),
        ("(-1, -1)", 0, "is not a weight"),
        ("(1.5,)", 0, "cannot be loaded"),
        ("(True,)", 0, "cannot be loaded"),
        ("(100663296,)", 3 * 2**27, "it would take .* bytes of memory, out of a file of"),
    ],
)
def test_an_archive_that_promises_too_much_is_refused_before_memory_is_taken(
    shape, claimed, sentence, tmp_path
):
    (tmp_path / "m.npz").write_bytes(npz_with(shape, claimed))
    tracemalloc.start()
    with pytest.raises(ValueError, match=sentence):
        load(tmp_path / "m.npz")
    assert tracemalloc.get_traced_memory()[1] < 2**26
    tracemalloc.stop()


def test_arrays_of_every_order_and_width_are_read(tmp_path):
    """Fortran order, big-endian, half and double: the same numbers."""
    numbers = np.arange(6.0).reshape(2, 3)
    same = {
        "Fortran order": np.asfortranarray(numbers.astype("f4")),
        "big-endian": numbers.astype(">f4"),
        "half": numbers.astype("f2"),
        "double": numbers,
    }
    np.savez(tmp_path / "m.npz", **same, empty=np.zeros((0, 3), "f4"), scalar=np.float32(3))
    tensors, _ = read_npz(tmp_path / "m.npz")
    for name in same:
        assert np.array_equal(tensors[name].read().numpy(), numbers), name
    assert tensors["empty"].read().shape == (0, 3)
    assert tensors["scalar"].read() == 3


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_an_archive_compressed_as_numpy_never_does_is_refused_unread(method, files):
    """A damaged one of LZMA raised an error that no other damaged file raises, and no sentence."""
    with zipfile.ZipFile(files / "m.npz") as whole, zipfile.ZipFile(files / "x.npz", "w") as other:
        for name in whole.namelist():
            other.writestr(name, whole.read(name), method)
    data = bytearray((files / "x.npz").read_bytes())
    data[120:140] = bytes(20)  # within the first array
    (files / "x.npz").write_bytes(data)
    with pytest.raises(ValueError, match=f"by ZIP method {method}, .* numpy.savez"):
        load(files / "x.npz", quiet=True)


@pytest.fixture
def archives(monkeypatch):
    """archives(file): those of this file that anybody holds open, of all that the test has opened."""
    opened = weakref.WeakSet()
    open_archive = zipfile.ZipFile.__init__

    def opening(archive, *arguments, **settings):
        open_archive(archive, *arguments, **settings)
        opened.add(archive)

    monkeypatch.setattr(zipfile.ZipFile, "__init__", opening)
    return lambda file: [each for each in opened if each.filename == str(file) and each.fp]


def test_an_archive_is_closed_when_its_arrays_are_forgotten_or_damaged(files, archives):
    """An error that somebody keeps, as a notebook does, keeps no file open: Windows would not let a better
    one take its place."""
    file = files / "m.npz"
    tensors, _ = read_npz(file)
    assert archives(file)
    del tensors
    model = load(file, quiet=True)
    assert not archives(file) and model

    # A damaged number, and an array of no numbers
    data = bytearray(file.read_bytes())
    data[data.index(b"NUMPY") + 150] ^= 1
    file.write_bytes(data)
    with pytest.raises(ValueError, match="Bad CRC-32 .*; download it again") as kept:
        load(file, quiet=True)
    assert not archives(file), kept
    np.savez(file, words=np.array(["a"]))
    with pytest.raises(ValueError, match="which are not numbers") as kept:
        load(file, quiet=True)
    assert not archives(file), kept


def test_every_misfit_is_named_at_once(files):
    """A tensor that no rule reads, one that is missing and one of another shape, in one
    sentence."""
    arrays = dict(np.load(files / "plain.npz"))
    arrays["surplus/kernel"] = arrays.pop("Transformer/encoder_norm/bias")
    arrays["head/kernel"] = arrays["head/kernel"][:-1]
    np.savez(files / "plain.npz", **arrays)
    with pytest.raises(ValueError) as caught:
        load(files / "plain.npz")
    for part in (
        "unknown tensors: surplus/kernel",
        "missing: Transformer/encoder_norm/bias",
        "head/kernel (15, 3) does not make head.weight (3, 16)",
    ):
        assert part in str(caught.value)


def test_names_without_a_model_are_a_sentence(tmp_path):
    np.savez(tmp_path / "m.npz", a=np.zeros(3), b=np.zeros(2))
    with pytest.raises(ValueError, match=r"2 tensors \(a, b\) have the names of no"):
        load(tmp_path / "m.npz")
    (tmp_path / "note.txt").write_text("dear all")
    with pytest.raises(ValueError, match="cannot be loaded"):
        load(tmp_path / "note.txt")


@pytest.mark.parametrize("length", [0x180, 3712, 0x7F80])
def test_a_safetensors_file_whose_length_begins_as_a_pickle_does(length, tmp_path):
    """A pickle begins with 0x80, and so does the length of one in 32 safetensors headers."""
    file = tmp_path / "w.safetensors"
    header = 0
    padding = max(length - 200, 0)
    while header < length:
        save_file({"w": torch.ones(3)}, file, {"notes": "x" * padding})
        header = int.from_bytes(file.read_bytes()[:8], "little")
        padding += 1
    assert header == length and file.read_bytes()[:1] == b"\x80"
    parts, description, architecture = _read(file)
    assert description == {} and architecture == "" and list(parts[()]) == ["w"]


@pytest.mark.parametrize(
    "length, then, kind",
    [
        (2**40 + 0x80, b"{", "pickle"),  # a header is no longer than its file
        (0x180, b"{", "pickle"),
        (0x80, b"[", "pickle"),  # and begins with a brace
        (0x80, b"{", "safetensors"),
        (0x7F, b"[", "safetensors"),  # what begins otherwise is no pickle
    ],
)
def test_a_bare_pickle_begins_as_one_and_has_no_header(length, then, kind, tmp_path, monkeypatch):
    read_by = []
    for reader in ("pickle", "safetensors"):
        monkeypatch.setattr(
            f"vitkit.weights.files.directory.read_{reader}",
            lambda file, reader=reader: read_by.append(reader) or ({}, {}),
        )
    file = tmp_path / "w.bin"
    file.write_bytes((struct.pack("<Q", length) + then).ljust(0x180, b"x"))
    _read(file)
    assert read_by == [kind]


@pytest.mark.parametrize(
    "name, remedy",
    [
        ("model.json", "give the directory that it is in"),
        ("train.py", "vitkit runs no code"),
        ("page.html", "open it there, and drop photographs on it"),
        ("model.onnx", "it was exported"),
        ("model.xml", "it was exported"),
        ("model.pt2", "it was exported"),
    ],
)
def test_files_of_other_kinds_are_refused_with_what_to_do_instead(name, remedy, tmp_path):
    (tmp_path / name).write_text("{}")
    with pytest.raises(ValueError, match=f"{name} is not a file of weights; .*{remedy}"):
        load(tmp_path / name)


@pytest.mark.parametrize(
    ("start", "kind"),
    [
        (b"<!DOCTYPE html><html>404</html>", "a web page"),
        (b"\xef\xbb\xbf\n<HTML lang='en'>", "a web page"),
        (b"<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>", "a web page"),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 12\n",
            "a pointer of Git LFS",
        ),
    ],
)
@pytest.mark.parametrize(
    "name", ["vit.safetensors", "vit.pth", "vit.npz", "model/model.safetensors"]
)
def test_what_a_download_fetched_instead_is_named(tmp_path, name, start, kind):
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(start)
    expected = f"{file.name} is {kind}, which .*; (fetch|download) the file itself"
    with pytest.raises(BadWeights, match=expected):
        load(file)


def test_an_image_that_a_download_fetched_something_else_for_is_named_too():
    with pytest.raises(BadImage, match=r"^a\.jpg is a pointer of Git LFS, which"):
        open_image(b"version https://git-lfs.github.com/spec/v1\nsize 12\n", "a.jpg")
    with pytest.raises(BadImage, match=r"^a\.svg is not an image of a format that is read here"):
        open_image(b"<?xml version='1.0'?><svg></svg>", "a.svg")
