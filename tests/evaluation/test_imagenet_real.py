"""ReaL: which answers count as right, and which images count."""

import hashlib
import json
import threading
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from vitkit import cli
from vitkit.data import Preprocessing, open_source
from vitkit.evaluation.benchmarks import real
from vitkit.evaluation.benchmarks.real import (
    IMAGES,
    check_names,
    find_real,
    read_real,
    real_accuracy,
)
from vitkit.evaluation.metrics.answers import Answers
from vitkit.models import create, vit
from vitkit.system.storage.files import cache_dir
from vitkit.weights import Classifier, save
from vitkit.weights.outputs import imagenet_labels


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Validation images 1 to 4, in folders of two synsets."""
    folder = tmp_path_factory.mktemp("val")
    for number, synset in ((1, "n01440764"), (2, "n01443537"), (3, "n01440764"), (4, "n01443537")):
        path = folder / synset / f"ILSVRC2012_val_{number:08d}.JPEG"
        path.parent.mkdir(exist_ok=True)
        path.touch()
    return open_source(str(folder))


def answered(predicted, labels, finite=True):
    nothing = np.zeros(len(predicted))
    return Answers(
        tuple(labels), (), np.arange(len(predicted)), nothing, np.array(predicted), nothing, nothing,
        nothing, nothing, nothing > 0, np.full(len(predicted), finite),
    )  # fmt: skip


def in_order_of(source, by_number):
    """Values by the images' numbers, in the source's order."""
    return [by_number[int(source.name(i)[-13:-5])] for i in range(len(source))]


def lists_of(first):
    return [*first, *([[]] * (IMAGES - len(first)))]


def test_an_answer_in_the_list_is_right_and_images_without_labels_are_left_out(source):
    lists = lists_of([[3, 7], [5], [], [9]])
    given = answered(in_order_of(source, {1: 7, 2: 4, 3: 0, 4: 9}), imagenet_labels())
    top1, seen = real_accuracy(given, source, lists)
    assert (top1.name, top1.value, seen.value) == ("real/top1", 2 / 3, 3)


def test_classes_meet_by_name_whatever_their_order_in_the_model(source):
    lists = lists_of([[3, 7], [5], [], [9]])
    labels = imagenet_labels()[::-1]
    given = answered(in_order_of(source, {1: 992, 2: 994, 3: 0, 4: 990}), labels)
    assert real_accuracy(given, source, lists)[0].value == 1.0


def test_the_command_prints_it(tmp_path, photographs, capsys):
    model = create(vit("mu/16", image=(32, 32), classes=1000), seed=0)  # whose answers are all 0
    save(Classifier(model, Preprocessing(size=(32, 32)), imagenet_labels()), tmp_path / "model")
    for number, synset in ((1, "n01440764"), (2, "n01443537")):
        path = tmp_path / "val" / synset / f"ILSVRC2012_val_{number:08d}.JPEG"
        path.parent.mkdir(parents=True)
        path.write_bytes(next(photographs.glob("red/*.jpg")).read_bytes())
    (tmp_path / "real.json").write_text(json.dumps(lists_of([[4, 0], [1]])))
    words = ["evaluate", str(tmp_path / "model"), str(tmp_path / "val"), "--json"]
    words += ["--real", str(tmp_path / "real.json"), "--device", "cpu", "--workers", "0"]
    assert cli.main(words) == 0
    metrics = json.loads(capsys.readouterr().out)
    assert (metrics["real/top1"]["value"], metrics["real/seen"]["value"]) == (0.5, 2)


def test_logits_that_are_no_numbers_have_no_accuracy(source):
    given = answered([0] * 4, imagenet_labels(), finite=False)
    assert np.isnan(real_accuracy(given, source, lists_of([[0]]))[0].value)


def test_what_cannot_be_counted_is_a_sentence(source, photographs):
    given = answered([0] * 4, imagenet_labels())
    with pytest.raises(ValueError, match="none of the 4 images has a label in ReaL"):
        real_accuracy(given, source, lists_of([]))
    with pytest.raises(ValueError, match="is not called as an image of ImageNet's validation part"):
        check_names(open_source(str(photographs)))
    check_names(source)
    with pytest.raises(ValueError, match="classes that the model does not know"):
        real_accuracy(replace(given, labels=("cat", "dog")), source, lists_of([[0]]))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[1]]", "is not ReaL's real.json"),
        ("{", "is not JSON"),
        (json.dumps([[1000]] + [[]] * (IMAGES - 1)), "for image 1; expected a list of classes"),
        (json.dumps([[0], 3] + [[]] * (IMAGES - 2)), "has 3 for image 2"),
    ],
)
def test_another_file_is_a_sentence(text, message, tmp_path):
    (tmp_path / "real.json").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_real(tmp_path / "real.json")
    with pytest.raises(ValueError, match="cannot be read"):
        read_real(tmp_path / "nothing.json")


def test_the_file_is_read_as_it_is(tmp_path):
    lists = lists_of([[1, 2], []])
    (tmp_path / "real.json").write_text(json.dumps(lists))
    assert read_real(tmp_path / "real.json") == lists


@pytest.fixture
def served(tmp_path, monkeypatch):
    """The address of a folder that a server on this machine passes on, and the folder."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    folder = tmp_path / "served"
    folder.mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(real, "URL", f"http://127.0.0.1:{server.server_port}/real.json")
    yield folder
    server.shutdown()
    server.server_close()


def test_the_published_file_is_downloaded_once_and_no_other(served, monkeypatch):
    data = json.dumps(lists_of([[1, 2], []])).encode()
    (served / "real.json").write_bytes(data)
    with pytest.raises(ValueError, match="is not the published file"):
        find_real("download")
    monkeypatch.setattr(real, "SHA256", hashlib.sha256(data).hexdigest())
    path = find_real("download")
    assert path.read_bytes() == data and path.is_relative_to(cache_dir())
    (served / "real.json").unlink()
    assert find_real("download") == path  # from the cache


def test_without_a_network_the_sentence_says_what_to_do(served):
    with pytest.raises(ValueError, match="without a network, give the file of"):
        find_real("download")
