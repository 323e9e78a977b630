"""Weights from strangers: whatever is in a file, one sentence, in little time and memory."""

import contextlib
import json
import os
import shutil
import socket
import tracemalloc
import zipfile
from dataclasses import replace

import pytest
import torch
from canaries import Canaries, strings_of, with_string
from other_libraries import edit

from vitkit.data import Preprocessing
from vitkit.models import create, vit
from vitkit.weights import Classifier, load, save
from vitkit.weights.files.directory import open_weights

SMALL = vit("mu/8", image=(16, 16), classes=3, depth=1, width=16, mlp=16, heads=2)
ROTARY = replace(SMALL, positions="rotary")


def refused(path, sentence):
    with pytest.raises(ValueError, match=sentence) as caught:
        load(path, heads=2, quiet=True)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A .pth of ten numbers, as torch writes it."""
    path = tmp_path_factory.mktemp("pth") / "weights.pth"
    torch.save({"a": torch.arange(10.0), "b": torch.ones(3)}, path)
    assert open_weights(path).tensors["a"].read().tolist() == list(range(10))
    return path


@pytest.mark.parametrize(
    ("start", "sentence"),
    [
        (b"\xff\xd8\xff\xe0", "is a JPEG image"),
        (b"\x89HDF\r\n\x1a\n", "is an HDF5 file"),
        (b"GGUF\3\0\0\0", "is a GGUF file"),
        (b"hello, world", "is not a file of weights that vitkit reads, or it is damaged"),
        (b"", "is empty"),
        (b"\xff" * 8 + b"{", "is a damaged safetensors file .*header too large"),
    ],
)
def test_a_file_of_another_kind_is_named(start, sentence, tmp_path):
    path = tmp_path / "w.weights"
    path.write_bytes(start)
    if start:
        path.write_bytes(start + bytes(range(200)))
    refused(path, sentence)


class Int8Tensor(torch.Tensor):
    """A tensor of another library, as of torchao."""


def test_tensors_of_another_library_are_named(tmp_path):
    tensor = torch.zeros(2, 2).as_subclass(Int8Tensor)
    torch.save({"blocks.0.weight": tensor}, tmp_path / "w.pth")
    with torch.serialization.safe_globals([Int8Tensor]):
        refused(tmp_path / "w.pth", "blocks.0.weight is of type Int8Tensor, not plain numbers")


# PyTorch's archives


@pytest.mark.parametrize("ending", ["data.pkl", "data/0"])
def test_a_compressed_record_is_refused(checkpoint, tmp_path, ending):
    with (
        zipfile.ZipFile(checkpoint) as source,
        zipfile.ZipFile(tmp_path / "w.pth", "w") as target,
    ):
        for record in source.infolist():
            compressed = record.filename.endswith(ending)
            kind = zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED
            target.writestr(zipfile.ZipInfo(record.filename), source.read(record), kind)
    refused(tmp_path / "w.pth", "data.* is compressed or encrypted")


def test_a_record_with_a_wrong_checksum_is_refused(checkpoint, tmp_path):
    data = bytearray(checkpoint.read_bytes())
    at = data.index(torch.arange(10.0).numpy().tobytes())
    data[at + 6] ^= 64
    (tmp_path / "w.pth").write_bytes(data)
    refused(tmp_path / "w.pth", "data/0 is damaged: its checksum")


def test_an_archive_that_was_written_without_checksums_is_read(tmp_path):
    torch.serialization.set_crc32_options(False)
    try:
        torch.save({"a": torch.arange(4.0)}, tmp_path / "w.pth")
    finally:
        torch.serialization.set_crc32_options(True)
    assert open_weights(tmp_path / "w.pth").tensors["a"].read().tolist() == [0, 1, 2, 3]


def test_a_tensor_must_lie_in_the_file(tmp_path):
    torch.save({"head.bias": torch.zeros(1).expand(10**9)}, tmp_path / "expanded.pth")
    refused(tmp_path / "expanded.pth", r"\(1000000000,\), but the file holds 4 bytes")
    torch.save({"a": torch.eye(3).to_sparse()}, tmp_path / "sparse.pth")
    refused(tmp_path / "sparse.pth", "a is a torch.sparse_coo tensor on cpu, not plain numbers")
    torch.save({"a": torch.empty(10**9, device="meta")}, tmp_path / "meta.pth")
    refused(tmp_path / "meta.pth", "a is a torch.strided tensor on meta, not plain numbers")
    shared = torch.zeros(10**6)
    torch.save({f"a{i}": shared for i in range(200)}, tmp_path / "shared.pth")
    refused(tmp_path / "shared.pth", "it would take 800,000,000 bytes of memory, out of a file of")


def test_a_dictionary_that_holds_itself_ends(tmp_path):
    state = {}
    state["model"] = {"state_dict": state}
    torch.save(state, tmp_path / "w.pth")
    refused(tmp_path / "w.pth", "it holds a dictionary without a model's tensors")


class Bomb:
    def __reduce__(self):
        return bytearray, (10**10,)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickle_takes_no_memory_that_it_does_not_have(tmp_path, zipped):
    bomb = {"a": torch.ones(2), "b": Bomb()}
    torch.save(bomb, tmp_path / "w.pth", _use_new_zipfile_serialization=zipped)
    refused(tmp_path / "w.pth", "it holds the Python object bytearray")


# What is no file


def test_pipes_devices_and_sockets_are_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe.pth")
    refused(tmp_path / "pipe.pth", "pipe.pth is a pipe, a device or a socket")
    refused(tmp_path, "pipe.pth is a pipe, a device or a socket")
    refused("/dev/zero", "/dev/zero is a pipe, a device or a socket")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        refused(tmp_path / "s", "s is a pipe, a device or a socket")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "preprocessor_config.json"])
def test_a_pipe_in_a_model_directory_is_refused_at_once(tmp_path, name):
    save(Classifier(create(SMALL), Preprocessing(size=(16, 16)), ("a", "b", "c")), tmp_path / "m")
    (tmp_path / "m" / name).unlink()
    os.mkfifo(tmp_path / "m" / name)
    refused(tmp_path / "m", f"{name} is a pipe, a device or a socket")


# Configurations


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Model directories, with Hugging Face's names and with vitkit's."""
    folder = tmp_path_factory.mktemp("saved")
    for name, config in (("huggingface", SMALL), ("native", ROTARY)):
        classifier = Classifier(create(config), Preprocessing(size=(16, 16)), ("a", "b", "c"))
        save(classifier, folder / name)
    return folder


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("classes", 10**9, "its tensors do not fit the model|names 3 classes for a head of"),
        ("classes", "3", "classes is '3'; it is a whole number"),
        ("classes", 3.0, "classes is 3.0; it is a whole number"),
        ("width", True, "width is True; it is a whole number"),
        ("width", 2**70, "no model of the described sizes can be built|divisor"),
        ("depth", 10**12, "too few for 1000000000000 blocks"),
        ("eps", float("nan"), "eps is nan; it is a finite number"),
        ("eps", -1.0, "eps is -1.0; it must be a number above 0"),
        ("eps", 10**400, "eps is 1000.*; it is a finite number"),
        ("dropout", "x", "dropout is 'x'; it is a finite number"),
        ("image", [[1], 2], r"image is \(\[1\], 2\); it is 2 values, each a whole number"),
        ("pool", ["token"], "pool is .*; it is one of token, distilled"),
        ("stem", {"units": "abc"}, "units is 'abc'; it is a list, each a whole number"),
        ("class_token", "yes", "class_token is 'yes'; it is True or False, or None"),
        ("kind", [], r"it is a model of kind \[\]"),
    ],
)
def test_a_description_of_the_wrong_type_names_the_field(saved, tmp_path, field, value, sentence):
    shutil.copytree(saved / "native", tmp_path, dirs_exist_ok=True)
    edit(tmp_path, "vitkit", "model", **{field: value})
    refused(tmp_path, sentence)


@pytest.mark.parametrize(
    ("file", "field", "value", "sentence"),
    [
        ("config.json", "hidden_size", [16], r"hidden_size is \[16\]; expected a whole number"),
        ("config.json", "hidden_act", {}, "hidden_act is {}; expected a text"),
        ("config.json", "layer_norm_eps", float("nan"), "layer_norm_eps is nan; expected a fin"),
        ("config.json", "image_size", "16", "image_size is '16'; expected pixels"),
        ("config.json", "image_size", {"a": 1}, "image is {'a': 1}; it is 2 values"),
        ("config.json", "model_args", "x", "model_args is 'x'; expected an object"),
        ("config.json", "pretrained_cfg", {"mean": 5}, "pretrained_cfg.mean is 5; expected a li"),
        (
            "preprocessor_config.json",
            "image_mean",
            [1, "x", 2],
            "image_mean is .*; expected a finite number, or a li",
        ),
        ("preprocessor_config.json", "resample", [3], "resample is .*; expected a number or a na"),
        ("preprocessor_config.json", "rescale_factor", "x", "rescale_factor is 'x'; expected a f"),
        ("preprocessor_config.json", "size", {"height": [1]}, "its preprocessor's size is"),
    ],
)
def test_a_config_of_the_wrong_type_names_the_field(saved, tmp_path, file, field, value, sentence):
    shutil.copytree(saved / "huggingface", tmp_path, dirs_exist_ok=True)
    edit(tmp_path, vitkit=None)
    edit(tmp_path, file=file, **{field: value})
    refused(tmp_path, sentence)


# Numbers


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_not_finite_are_refused_by_name(number, random_classifier, tmp_path):
    classifier = random_classifier(SMALL)
    with torch.no_grad():
        classifier.model.blocks[0].mlp.expand.weight[3, 4] = number
        classifier.model.head.bias[1] = number
    path = save(classifier, tmp_path / "model")
    with pytest.raises(ValueError, match=r"NaN or infinity: blocks.0.mlp.expand.weight, head.bias"):
        load(path, quiet=True)


def test_weights_whose_sum_overflows_are_finite(random_classifier, tmp_path):
    classifier = random_classifier(SMALL)
    with torch.no_grad():
        classifier.model.head.weight.fill_(3e38)
    load(save(classifier, tmp_path / "model"), quiet=True)


def test_a_billion_classes_that_no_weight_has_take_no_memory(saved, tmp_path):
    shutil.copytree(saved / "native", tmp_path, dirs_exist_ok=True)
    edit(tmp_path, "vitkit", labels=[])
    edit(tmp_path, "vitkit", "model", classes=10**9)
    tracemalloc.start()
    refused(tmp_path, "head.weight")
    assert tracemalloc.get_traced_memory()[1] < 20e6
    tracemalloc.stop()


# Names in a model directory


def test_no_field_of_a_model_directory_runs_asks_or_leads_outside(tmp_path):
    """Transformers' auto_map names Python files; other fields names of classes, paths and addresses."""
    save(
        Classifier(create(SMALL), Preprocessing(size=(16, 16)), ("a", "b", "c")), tmp_path / "model"
    )
    with contextlib.closing(Canaries(tmp_path / "canaries")) as canaries:
        names = canaries.names(tmp_path / "model")
        (tmp_path / "model/evil.py").write_bytes((canaries.folder / "evil.py").read_bytes())
        for file in ("config.json", "preprocessor_config.json"):
            path = tmp_path / "model" / file
            values = json.loads(path.read_text())
            more = {"auto_map": {"AutoModel": "evil.sing"}, "_name_or_path": names[0]}
            more |= {"custom_pipelines": {"x": {"impl": "evil.sing"}}, "trust_remote_code": True}
            for name in ("evil.sing", *names):
                for place in strings_of(values | more):
                    path.write_text(json.dumps(with_string(values | more, place, name)))
                    with contextlib.suppress(ValueError):
                        loaded = load(tmp_path / "model", heads=2, quiet=True)
                        save(loaded, tmp_path / "again")
                        assert "auto_map" not in (tmp_path / "again/config.json").read_text()
                    assert canaries.sang() == [], (place, name)
            path.write_text(json.dumps(values))


def test_an_index_of_shards_names_files_beside_it(tmp_path):
    save(
        Classifier(create(SMALL), Preprocessing(size=(16, 16)), ("a", "b", "c")), tmp_path / "model"
    )
    shutil.move(tmp_path / "model/model.safetensors", tmp_path / "secret.safetensors")
    index = tmp_path / "model/model.safetensors.index.json"
    for name in ("../secret.safetensors", str(tmp_path / "secret.safetensors"), ".."):
        index.write_text(json.dumps({"weight_map": {"head.weight": name}}))
        refused(tmp_path / "model", "names a file outside of its folder")
