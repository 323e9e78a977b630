"""What `vitkit.predict` takes: one or many, by name or in memory, and what it says of the rest."""

import io
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib import request
from urllib.error import URLError

import numpy as np
import pytest
import torch
from pictures import encoded, photograph
from PIL import Image

import vitkit
from vitkit.data import Preprocessing, open_image, open_source
from vitkit.models import create, vit
from vitkit.prediction import Item, predict_items
from vitkit.prediction import items as web
from vitkit.prediction.in_memory import as_items
from vitkit.system.storage.deadline import TimeLimit
from vitkit.weights import Classifier


@pytest.fixture(scope="module")
def classifier():
    model = create(vit("mu/8", image=16, classes=4), seed=0).eval()
    torch.nn.init.normal_(model.head.weight, generator=torch.Generator().manual_seed(0))
    return Classifier(model, Preprocessing(size=(16, 16)), ("a", "b", "c", "d"))


def answer(classifier, images):
    """The only prediction."""
    (prediction,) = predict_items(classifier, images, device="cpu")
    assert prediction.error is None, prediction.error
    return [prediction.labels, [round(value, 5) for value in prediction.probabilities]]


def test_the_same_image_has_the_same_answer_however_it_is_given(classifier, tmp_path):
    pixels = photograph(40, 30)
    file = tmp_path / "a photo.png"
    file.write_bytes(encoded(pixels, "PNG"))
    first = torch.from_numpy(pixels).permute(2, 0, 1)
    expected = answer(classifier, file)
    same = [str(file), [file], iter([file]), str(tmp_path), tmp_path, f"{tmp_path}/**/*.png"]
    same += [file.read_bytes(), bytearray(file.read_bytes()), Image.open(file), [Image.open(file)]]
    same += [pixels, pixels / 255, pixels[None], (pixels / 255).astype(np.float16)]
    same += [first, first / 255, first[None], (first / 255).double(), iter([first])]
    same += [
        np.array([str(file)]),
        Item("mine", file.read_bytes),
        iter([Item("x", lambda: pixels)]),
    ]
    for images in same:
        assert answer(classifier, images) == expected, type(images)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("x" * 300 + ".jpg", "File name too long"),
        ("x" * 300, "File name too long"),
        ("y/" * 3000 + "a.jpg", "File name too long"),
        ("a\0.jpg", "'a\\x00.jpg' cannot be read: it is not the name of a file"),
        ("", "the name of an image is empty"),
        ("\ud800.jpg", "ud800.jpg"),
        ("data:image/png;base64," + "A" * 5000, "base64.b64decode"),
        ("data:image/png;base64,AAAA", "base64.b64decode"),
    ],
)
def test_a_name_that_no_file_can_have_is_one_broken_image(classifier, folder, name, said):
    good = folder({"a.png": 20}) / "a.png"
    for images in ([good, name], iter([good, name])):
        first, second = vitkit.predict(classifier, images, device="cpu", quiet=True)
        assert first.error is None
        assert said in second.error and len(second.error) < 400


def test_many_of_all_kinds_come_in_their_order(classifier, folder):
    photos = folder({"a.png": 20, "b/c.png": 24})
    batch = torch.zeros(2, 3, 8, 8, dtype=torch.uint8)
    images = [batch, photos / "a.png", np.zeros((3, 5)), str(photos), photos / "gone.png"]
    names = ["image 0", "image 1", str(photos / "a.png"), "image 3"]
    names += [str(photos / "a.png"), str(photos / "b/c.png"), str(photos / "gone.png")]
    for given in (images, iter(images)):
        predictions = list(predict_items(classifier, given, device="cpu", batch=2, workers=0))
        assert [each.name for each in predictions] == names
        assert [each.error is None for each in predictions] == [True] * 6 + [False]
    assert "is missing" in predictions[-1].error


@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_pillow_images_are_what_their_files_are(classifier, orientation):
    pixels = Image.fromarray(photograph(40, 30))
    grey = Image.fromarray((np.arange(1200).reshape(40, 30) * 50).astype(np.uint16))
    clear = pixels.copy()
    clear.putalpha(100)
    exif = Image.Exif()
    exif[0x0112] = orientation
    for image, kind in [
        (pixels, "JPEG"), (pixels, "PNG"), (pixels.convert("CMYK"), "JPEG"), (grey, "PNG"),
        (grey, "TIFF"), (pixels.convert("P"), "PNG"), (clear, "PNG"), (pixels.convert("1"), "PNG"),
        (pixels.convert("LA"), "PNG"),
    ]:  # fmt: skip
        file = io.BytesIO()
        image.save(file, kind, exif=exif)
        (item,) = as_items(Image.open(file))
        of_file = open_image(file.getvalue(), "file").pixels()
        assert np.array_equal(open_image(item.read(), "item").pixels(), of_file), (image.mode, kind)


def test_a_pillow_image_that_is_truncated_is_an_error_of_its_own(classifier):
    file = io.BytesIO(encoded(photograph(40, 30))[:-200])
    for images in ([Image.open(file)], iter([Image.open(file)])):
        (prediction,) = predict_items(classifier, images, device="cpu")
        assert "image 0 cannot be decoded" in prediction.error


@pytest.mark.parametrize(
    ("images", "sentence"),
    [
        (None, "None, of type NoneType, is not an image; give a file, a folder"),
        ({"a": 1}, "of type dict, is not an image"),
        ([3], "image 0 is 3, of type int, and not an image"),
        ([["a.jpg"]], "of type list, and not an image"),
        (np.zeros((3, 40, 40), np.uint8), r"give array.transpose\(1, 2, 0\)"),
        (np.zeros((2, 3, 40, 40)), r"give array.transpose\(0, 2, 3, 1\)"),
        (np.zeros(5), r"an array of float64 \(5,\); an image is \(h, w, 3\)"),
        (np.zeros((0, 4, 3), np.uint8), r"\(0, 4, 3\)"),
        (np.full((4, 4, 3), 255.0), "values from 255 to 255; .* divide it by 255"),
        (np.full((4, 4, 3), -1.5), "before mean and standard deviation"),
        (np.full((4, 4, 3), np.nan), "values from nan to nan"),
        (np.zeros((4, 4, 3), int), "an array of int64; values are uint8"),
        (torch.zeros(40, 40, 3), r"give tensor.movedim\(-1, -3\)"),
        (torch.randn(2, 3, 4, 4), "floats go from 0 to 1"),
        ("nothing there", "there is no folder, file or data set"),
        ("no-folder/*.jpg", "matches no image"),
    ],
)
def test_what_is_no_image_is_a_sentence(classifier, images, sentence):
    with pytest.raises(ValueError, match=sentence):
        predict_items(classifier, images, device="cpu")


def test_an_archive_is_a_sentence(classifier, tmp_path):
    archive = tmp_path / "my photos.zip"
    archive.write_bytes(b"PK")
    with pytest.raises(ValueError, match="is an archive; unpack it .* and give the folder"):
        predict_items(classifier, [archive], device="cpu")
    (prediction,) = predict_items(classifier, iter([archive]), device="cpu")  # the others come
    assert "is an archive" in prediction.error


def test_an_error_of_an_iterator_is_its_own(classifier):
    def images():
        yield photograph(20, 20)
        raise OSError("the camera is gone")

    with pytest.raises(OSError, match="the camera is gone"):
        list(predict_items(classifier, images(), device="cpu", workers=1))


def test_a_data_set_is_its_examples_with_the_model_s_words():
    digits = open_source("digits")
    first, *_ = as_items(digits)
    assert first.truth == digits.answer(0)
    words = "zero one two three four five six seven eight nine".split()
    for images in (digits, "digits", ["digits"]):
        first, *_ = as_items(images, words)
        assert first.truth == words[int(digits.answer(0))]  # by position, as in evaluation


class Server(BaseHTTPRequestHandler):
    """Photographs of one machine for another."""

    def do_GET(self):
        kind = "image/png"
        body = encoded(photograph(40, 30), "PNG")
        if self.path == "/page":
            kind, body = "text/html", b"<html>"
        if self.path == "/away":
            self.send_response(302)
            self.send_header("Location", "file:///etc/hostname")
            self.end_headers()
            return
        if self.path == "/dripping.png":  # a header every moment, and never the last
            self.send_response(200)
            self.flush_headers()
            while not self.server.stopping.wait(0.02):
                with suppress(OSError):
                    self.wfile.write(b"X-More: 1\r\n")
            return
        self.send_response(404 if self.path == "/gone.png" else 200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body) + (self.path == "/short.png")))
        self.end_headers()
        if self.path == "/slow.png":
            for i in range(len(body)):
                self.wfile.write(body[i : i + 1])
                if self.server.stopping.wait(0.05):
                    return
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def address():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    server.stopping = threading.Event()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.stopping.set()
    server.shutdown()
    thread.join()
    server.server_close()


def test_web_addresses_have_limits(classifier, address, monkeypatch):
    expected = answer(classifier, photograph(40, 30))
    assert answer(classifier, f"{address}/a.png?signed=1") == expected
    monkeypatch.setattr(web, "PATIENCE", 0.2)
    sentences = {
        "/gone.png": "the server answers 404",
        "/page": "is a web page, not an image",
        "/away": "cannot be read",
        "/short.png": "broke off after",
        "/slow.png": "takes longer than 0.2 seconds",
        "/dripping.png": "takes longer than 0.2 seconds",
    }
    for path, sentence in sentences.items():
        (prediction,) = predict_items(classifier, address + path, device="cpu")
        assert sentence in prediction.error, path
    monkeypatch.setattr(web, "MAX_BYTES", 100)
    (prediction,) = predict_items(classifier, f"{address}/a.png", device="cpu")
    assert "is larger than 100 bytes" in prediction.error


def test_a_connection_that_is_made_too_late_is_ended(address):
    """As behind an address that leads on to another one just before the time is over."""
    with TimeLimit(0.01) as deadline:
        opener = request.build_opener(deadline.handler())
        while not deadline.is_over:
            time.sleep(0.01)
        with pytest.raises(URLError, match="the time is over"):
            opener.open(f"{address}/dripping.png", timeout=5)


def test_an_address_that_nobody_answers_is_a_sentence(classifier):
    for url in (
        "http://127.0.0.1:9/a.jpg",
        "https://[bad/a.jpg",
        "http:///a.jpg",
        "http://a b/c.jpg",
    ):
        (prediction,) = predict_items(classifier, url, device="cpu")
        assert prediction.error.startswith(f"{url} cannot be read: ")
