"""What a model looks at: the maps, their pictures, and POST /attention."""

import base64
import io
import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from pictures import encoded, needs_newer_pillow, photograph
from PIL import Image
from served import form, make_classifier, running, with_model

from vitkit.apps.serve.attention import AMBER, Looker, drawn, middles, softened
from vitkit.apps.serve.batching import Choice, Sent
from vitkit.apps.serve.functions.serve import open_model
from vitkit.apps.serve.http.service import LOOKS
from vitkit.apps.serve.models import answers_alone, served_now
from vitkit.data import Preprocessing, open_image
from vitkit.inspection import anomaly_map, raw_attention, rollout
from vitkit.models import Backbone, ResNetConfig, Tiling, create, vit
from vitkit.runtimes import Export, described, eager, write
from vitkit.system.errors import BadImage, BadSettings, BadWeights, Unavailable, Unsupported
from vitkit.weights import Classifier, save

SMALL = vit("mu/8", image=(32, 48), classes=3, depth=2)
OVERLAP = Tiling((16, 8), (12, 4))
JPEG = encoded(photograph(90, 160), "JPEG")
SENT = Sent("bee.jpg", JPEG)
ROLLOUT = Choice()


def classifier_of(config=SMALL, preprocessing=None, labels=tuple("abc")) -> Classifier:
    """A random model."""
    model = create(config, seed=0).eval()
    torch.nn.init.normal_(model.head.weight, generator=torch.Generator().manual_seed(0))
    return Classifier(model, preprocessing or Preprocessing((32, 48), "shorter", 60), labels)


# The maps


def test_maps_are_those_of_inspection():
    classifier = classifier_of()
    looker = Looker(classifier)
    images = classifier.batch([open_image(JPEG, "a")])
    view = looker.view(SENT)
    assert view.pixels.shape == (427, 640, 3)  # the shape of 32 x 48
    (weights,) = rollout(classifier, images).numpy()
    looked = looker.look(SENT, ROLLOUT)
    assert np.array_equal(looked.weights, weights)
    assert np.array_equal(looked.picture, drawn(view.pixels, weights, looker.tiling))
    assert looked.caption == "Attention rollout: what reaches the class token through 2 layers."

    (weights,) = raw_attention(classifier, images, 1, 0, (3, 4)).numpy()
    looked = looker.look(SENT, Choice(2, 1, (4, 5)))
    assert np.array_equal(looked.weights, weights)
    expected = drawn(view.pixels, softened(weights), looker.tiling, (4, 5))
    assert np.array_equal(looked.picture, expected)
    assert looked.caption == "Layer 2, head 1 of 2: where the framed patch (row 4, column 5) looks."
    looked = looker.look(SENT, Choice(1))
    assert looked.caption == "Layer 1, mean of 2 heads: where the class token looks."


def test_a_model_of_good_images_shows_where_an_image_is_unlike_them():
    config = replace(SMALL, pool="memory", memory=9, classes=2, class_token=True)
    classifier = classifier_of(config, labels=("good", "bad"))
    looked = Looker(classifier).look(SENT, ROLLOUT)
    images = classifier.batch([open_image(JPEG, "a")])
    assert np.array_equal(looked.weights, anomaly_map(classifier, images)[0].numpy())
    assert looked.weights.shape == (4, 6) and looked.caption == (
        "Red where it is unlike the images of good."
    )
    pixels = Looker(classifier).view(SENT).pixels
    row, column = np.unravel_index(looked.weights.argmax(), (4, 6))
    y, x = (int(427 * (row + 0.5) / 4), int(640 * (column + 0.5) / 6))
    redder = looked.picture[y, x].astype(int) - pixels[y, x]
    assert redder[0] > redder[1]  # there is more red
    looker = Looker(classifier)
    assert looker.look(SENT, Choice(1)).caption.startswith("Layer 1, mean of 2 heads")
    assert looker.says_unlike(ROLLOUT) and not looker.says_unlike(Choice(1))


@pytest.mark.slow
def test_an_exported_file_shows_where_an_image_is_unlike_good_ones(tmp_path):
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    config = replace(SMALL, pool="memory", memory=9, classes=2, class_token=True)
    classifier = classifier_of(config, labels=("good", "bad"))
    path = tmp_path / "good.onnx"
    wanted = Export()
    write(classifier, described(classifier, wanted), wanted, path)
    served = served_now("good", open_model(str(path)), answers_alone)
    looker = served.looker()
    looked = looker.look(SENT, ROLLOUT)
    expected = Looker(classifier).look(SENT, ROLLOUT)
    np.testing.assert_allclose(looked.weights, expected.weights, atol=1e-4)
    assert (looked.rows, looked.columns) == (expected.rows, expected.columns)
    assert looked.caption == expected.caption and looker.says_unlike(ROLLOUT)
    assert np.abs(looked.picture.astype(int) - expected.picture).max() <= 1
    with pytest.raises(BadSettings, match="shows no layer, head or patch"):
        looker.look(SENT, Choice(1))

    # Where its patches lie is not in a file if they overlap
    overlapping = classifier_of(replace(config, stride=(4, 4)), labels=("good", "bad"))
    assert not described(overlapping, wanted).has_anomaly_map


@pytest.mark.parametrize("tiling, grid", [(Tiling((8, 8), (8, 8)), (4, 6)), (OVERLAP, (5, 11))])
def test_a_patch_is_framed_around_its_middle(tiling, grid):
    height, width = (4 * side for side in tiling.image(grid))
    rows, columns = middles(tiling, grid)
    assert (len(rows), len(columns)) == grid
    pixels = np.zeros((height, width, 3), np.uint8)
    for row, column in ((1, 1), (3, 4), grid):
        framed = np.argwhere((drawn(pixels, np.ones(grid), tiling, (row, column)) == AMBER).all(-1))
        middle = (framed.min(0) + framed.max(0) + 1) / 2
        assert middle.tolist() == [height * rows[row - 1], width * columns[column - 1]]
        size = framed.max(0) + 1 - framed.min(0)
        assert size.tolist() == [4 * side for side in tiling.size]


@pytest.mark.parametrize("rule", ["native", "naflex"])
def test_a_model_of_whole_photographs_shows_all_of_a_panorama(rule):
    config = vit("mu/8", image=(32, 32), classes=3, depth=2)
    looker = Looker(classifier_of(config, Preprocessing((32, 32), rule, patch=(8, 8))))
    wide = Sent("wide.png", encoded(photograph(30, 300), "PNG"))
    looked = looker.look(wide, ROLLOUT)
    assert len(looked.rows) == 1 and len(looked.columns) > 9
    height, width = looked.picture.shape[:2]
    assert width / height == pytest.approx(10, rel=0.1)
    looked = looker.look(wide, Choice(1, None, (1, len(looked.columns))))
    assert f"column {len(looked.columns)}" in looked.caption


@pytest.mark.slow
def test_strange_photographs_are_looked_at(shared):
    """One of every format and mode: grey, 16-bit, palette, transparent, CMYK, animated."""
    looker = Looker(classifier_of())
    manifest = shared("data/awkward_images/manifest.json")
    chosen = {}
    for facts in json.loads(manifest.read_text()):
        if facts["bytes"] < 300_000 and not needs_newer_pillow(facts["file"]):
            chosen[facts.get("format"), facts.get("mode"), facts["expect"] == "ok"] = facts
    for facts in chosen.values():
        image = Sent(facts["file"], (manifest.parent / facts["file"]).read_bytes())
        if facts["expect"] == "ok":
            assert looker.look(image, ROLLOUT).picture.ndim == 3, facts
        else:
            with pytest.raises(BadImage):
                looker.look(image, ROLLOUT)
    assert len(chosen) > 10


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        (Choice(3), "layer is 3; the model has layers 1 to 2"),
        (Choice(1, 3), "head is 3; the model has heads 1 to 2"),
        (Choice(1, 1, (5, 1)), "row is 5; the image has rows 1 to 4"),
        (Choice(1, 1, (1, 7)), "column is 7; the image has columns 1 to 6"),
        (Choice(None, 1), "without a layer"),
        (Choice(None, None, (1, 1)), "without a layer"),
    ],
)
def test_what_the_model_does_not_have_is_a_sentence(choice, words):
    with pytest.raises(BadSettings, match=words):
        Looker(classifier_of()).look(SENT, choice)


def test_no_patch_attends_in_the_pooling():
    looker = Looker(classifier_of(replace(SMALL, pool="map")))
    assert looker.layers[-1] == "pooling"
    with pytest.raises(BadSettings, match="layer 3 is the pooling"):
        looker.look(SENT, Choice(3, None, (1, 1)))
    assert "learned query" in looker.look(SENT, Choice(3)).caption


def test_weights_that_are_not_finite_are_a_sentence():
    classifier = classifier_of()
    with torch.no_grad():
        next(classifier.model.parameters()).fill_(float("nan"))
    with pytest.raises(BadWeights, match="not finite"):
        Looker(classifier).look(SENT, ROLLOUT)


def test_looking_leaves_the_model_that_answers_as_it_is():
    """Its hooks are on a copy of the modules, whose weights are the same memory."""
    classifier = classifier_of()
    looker = Looker(classifier)
    ours = dict(looker.classifier.model.named_parameters())
    for name, weights in classifier.model.named_parameters():
        assert ours[name].data_ptr() == weights.data_ptr()
    assert not set(looker.classifier.model.modules()) & set(classifier.model.modules())


# Which model it is


def test_the_model_is_opened_once_and_only_if_pytorch_does_not_answer():
    classifier = classifier_of()
    runtime = eager(classifier, "cpu")
    served = served_now("it", runtime, answers_alone)
    assert served.looker() is served.looker()

    class Other:
        made_of = ""

    opened = []

    def open_classifier():
        opened.append(True)
        return classifier

    served = served_now("it", Other(), open_classifier)
    assert not opened
    assert served.looker() is served.looker() and opened == [True]


def test_a_model_that_has_changed_or_has_no_attention_is_a_sentence():
    class Other:
        made_of = "another digest"

    served = served_now("it", Other(), classifier_of)
    for _ in range(2):
        with pytest.raises(BadWeights, match="have changed since it was loaded"):
            served.looker()

    def gone():
        raise FileNotFoundError(2, "No such file or directory", "model")

    with pytest.raises(Unavailable, match="what it looks at: No such file or directory"):
        served_now("it", Other(), gone).looker()
    with pytest.raises(Unsupported, match="an exported file gives its answers alone"):
        served_now("it", object(), answers_alone).looker()
    network = classifier_of(ResNetConfig(Backbone((1, 1)), (32, 48), classes=3))
    with pytest.raises(Unsupported, match="a ResNet has no attention among patches"):
        served_now("it", eager(network, "cpu"), answers_alone).looker()


# Over HTTP


@pytest.fixture(scope="module")
def server():
    with running() as server:
        yield server


def look(server, body=JPEG, query="", kind="image/jpeg", **headers):
    return server.ask("POST", f"/attention{query}", body, {"Content-Type": kind} | headers)


def test_the_attention_of_an_image(server):
    answer = look(server)
    assert answer.status == 200
    expected = Looker(make_classifier()).look(Sent("image 0", JPEG), ROLLOUT)
    np.testing.assert_allclose(answer.json["weights"], expected.weights, atol=1e-6)
    assert (answer.json["layers"], answer.json["heads"]) == (["layer 1", "layer 2"], 2)
    assert answer.json["unlike"] is False  # so the page lets one choose a layer
    assert answer.json["rows"] == list(expected.rows)
    assert answer.json["model"]["name"] == "tiny" and answer.json["name"] == "image 0"
    picture = Image.open(io.BytesIO(base64.b64decode(answer.json["picture"])))
    assert picture.format == "JPEG" and picture.size == expected.picture.shape[1::-1]
    body, kind = form({"bee.jpg": JPEG})
    answer = look(server, body, "?layer=2&head=1&row=2&column=3", kind)
    assert answer.json["name"] == "bee.jpg"
    assert "head 1 of 2: where the framed patch (row 2, column 3)" in answer.json["caption"]


@pytest.mark.parametrize(
    ("body", "query", "status", "sentence"),
    [
        (b"no", "", 422, "not an image"),
        (JPEG[:2000], "", 422, "cannot be decoded"),
        (JPEG, "?layer=9", 422, "layer is 9; the model has layers 1 to 2"),
        (JPEG, "?layer=0", 422, "greater than or equal to 1"),
        (JPEG, "?layer=1&row=2", 422, "a row and a column"),
        (JPEG, "?head=1", 422, "without a layer"),
    ],
)
def test_what_cannot_be_looked_at_is_a_sentence(server, body, query, status, sentence):
    answer = look(server, body, query)
    assert answer.status == status and sentence in answer.error
    assert server.room.held_bytes == server.room.held_images == 0


def test_several_images_are_refused(server):
    answer = look(server, *form({"a": JPEG, "b": JPEG})[:1], kind=form({})[1])
    assert answer.status == 413 and "holds 2 images" in answer.error
    assert server.room.held_images == 0


def test_only_some_wait_for_attention_so_that_answers_find_room(server):
    """It is several times as slow."""
    taken = [server.server.service.looks.acquire(blocking=False) for _ in range(LOOKS)]
    assert all(taken)
    answer = look(server)
    assert answer.status == 503 and "16 images is waited for already" in answer.error
    assert answer.headers["retry-after"] == "1"
    assert server.room.held_images == server.room.held_bytes == 0
    assert server.post(JPEG).status == 200
    server.server.service.looks.release(LOOKS)
    for _ in range(2 * LOOKS):  # each gives its place back, whatever becomes of it
        assert look(server, b"no").status == 422
    assert look(server).status == 200


def test_looking_and_answering_at_the_same_time_are_as_each_alone(server):
    """Recording attention hooks into the modules of a model, which computes answers meanwhile."""
    images = [encoded(photograph(40, 60, seed), "JPEG") for seed in range(4)]
    alone = [
        (look(server, image).json["weights"], server.post(image).predictions) for image in images
    ]

    def ask(number):
        image = images[number // 2 % 4]
        if number % 2:
            return look(server, image).json["weights"]
        return server.post(image).predictions

    numbers = range(32)
    with ThreadPoolExecutor(8) as clients:
        for number, given in zip(numbers, clients.map(ask, numbers), strict=True):
            weights, predictions = alone[number // 2 % 4]
            if number % 2:
                np.testing.assert_allclose(given, weights, atol=1e-6)
            else:
                assert given[0]["labels"] == predictions[0]["labels"]
                expected = pytest.approx(predictions[0]["probabilities"], abs=1e-5)
                assert given[0]["probabilities"] == expected


def test_another_model_is_looked_at_after_it_was_replaced():
    with running() as server:
        before = look(server).json["weights"]
        with_model(server, lambda: eager(make_classifier(seed=5), "cpu"))
        server.call(server.server.reload)
        while "reloaded" not in server.words:
            time.sleep(0.01)
        assert look(server).json["weights"] != before


def test_who_looks_needs_the_token():
    with running(token="secret") as server:
        assert look(server).status == 401
        assert look(server, Authorization="Bearer secret").status == 200


@pytest.mark.slow
def test_a_model_of_a_file_shows_its_attention_by_its_weights(tmp_path):
    """An exported file is answered by ONNX Runtime, and looked at by PyTorch if its model is there."""
    pytest.importorskip("onnxruntime")
    from vitkit.runtimes import open_runtime
    from vitkit.weights import load

    save(make_classifier(), tmp_path / "model")
    runtime = open_runtime(load(tmp_path / "model", quiet=True), "onnx")
    served = served_now("it", runtime, lambda: load(tmp_path / "model", quiet=True))
    looked = served.looker().look(SENT, ROLLOUT)
    assert np.array_equal(looked.weights, Looker(make_classifier()).look(SENT, ROLLOUT).weights)
    save(make_classifier(seed=5), tmp_path / "model")
    served = served_now("it", runtime, lambda: load(tmp_path / "model", quiet=True))
    with pytest.raises(BadWeights, match="load it again"):
        served.looker()
