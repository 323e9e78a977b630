"""The page of `vitkit app` and `vitkit serve`: two models below one secret, and the page itself in headless
Chromium, with real uploads and clicks."""

import csv
import os
import re
import signal
import subprocess
import sys
import time
import zipfile
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
import torch
from pictures import encoded, photograph
from served import ask_app, running

import vitkit
from vitkit.apps.serve.functions import app
from vitkit.data import Preprocessing
from vitkit.models import Backbone, ResNetConfig, create, vit
from vitkit.web import Guard
from vitkit.weights import Classifier, Hints, save

JPEG = encoded(photograph(120, 160), "JPEG")
PNG = encoded(photograph(120, 160), "PNG")


def a_model(labels=("ant", "<b>bee</b>"), patch=16, trained=True, config=None) -> Classifier:
    """A small model with random weights."""
    config = config or vit(f"mu/{patch}", image=(64, 64), classes=len(labels), depth=3)
    model = create(config, seed=patch)
    if labels and trained:
        torch.nn.init.normal_(model.head.weight, generator=torch.Generator().manual_seed(patch))
    return Classifier(model, Preprocessing((64, 64)), labels)


# Without a browser


@contextmanager
def page_of(*models):
    """The application that `vitkit app` serves, behind the secret s3cret."""
    with ExitStack() as ends:
        services = []
        for model in models:
            services.append(ends.enter_context(app._serving(model, Hints(), "auto", "auto", "cpu")))
        yield Guard(app._page(services), "127.0.0.1", secret="s3cret")


def test_two_models_are_answered_below_one_secret(tmp_path):
    photo = tmp_path / "photo.jpg"
    photo.write_bytes(JPEG)
    first, second = a_model(), a_model(("cat", "dog", "bird"), 8)
    with page_of(first, second) as page:
        assert b'data-models="./ other/"' in ask_app(page, "GET", "/s3cret/").body
        for path, model in (("/s3cret/", first), ("/s3cret/other/", second)):
            assert ask_app(page, "GET", f"{path}model").json["labels"] == list(model.labels)
            (given,) = ask_app(page, "POST", f"{path}predict", JPEG).predictions
            (expected,) = vitkit.predict(model, str(photo), device="cpu", workers=0)
            assert given["labels"] == list(expected.labels)
            assert given["probabilities"] == pytest.approx(expected.probabilities, abs=1e-4)
            looked = ask_app(page, "POST", f"{path}attention?layer=3", JPEG)
            assert (
                looked.json["caption"] == "Layer 3, mean of 2 heads: where the class token looks."
            )
        for path in ("/", "/predict", "/other/predict", "/s3cre/", "/model"):
            assert ask_app(page, "POST", path, JPEG).status == 404
        assert ask_app(page, "GET", "/s3cret/model", host="evil.example").status == 421
        for path in ("/s3cret/docs", "/s3cret/other/docs"):  # its script of another host
            assert ask_app(page, "GET", path).status == 404
        assert "/attention" in ask_app(page, "GET", "/s3cret/openapi.json").json["paths"]
        evil = ask_app(page, "POST", "/s3cret/predict", JPEG, origin="https://evil.example")
        assert evil.status == 403
    with page_of(first) as page:
        assert b'data-models="./"' in ask_app(page, "GET", "/s3cret/").body


@pytest.mark.parametrize(
    ("labels", "trained", "words"),
    [((), True, "has no classification head"), (("x", "y"), False, "head is all zeros")],
)
def test_a_model_that_names_no_classes_shows_what_it_looks_at(labels, trained, words):
    with page_of(a_model(labels, trained=trained)) as page:
        answer = ask_app(page, "POST", "/s3cret/predict", JPEG)
        assert answer.status == 422 and words in answer.error
        assert ask_app(page, "POST", "/s3cret/attention", JPEG).status == 200


def test_a_model_without_attention_answers_and_says_why_there_is_no_map():
    network = a_model(("x", "y"), config=ResNetConfig(Backbone((1, 1)), (64, 64), classes=2))
    with page_of(network) as page:
        assert ask_app(page, "POST", "/s3cret/predict", JPEG).status == 200
        answer = ask_app(page, "POST", "/s3cret/attention", JPEG)
        assert answer.status == 422 and "a ResNet has no attention" in answer.error


def test_a_photograph_that_is_too_large_is_refused_before_it_is_read():
    with page_of(a_model()) as page:
        answer = ask_app(page, "POST", "/s3cret/predict", JPEG, **{"content-length": "99999999"})
        assert answer.status == 413 and "larger than 52,494,336 bytes" in answer.error


# As a process, and in a browser


def save_model(folder: Path, name: str, *what) -> str:
    save(a_model(*what), folder / name)
    return str(folder / name)


class Page:
    """A running `vitkit app`."""

    def __init__(self, *words: str):
        command = [sys.executable, "-m", "vitkit", "app", *words, "--no-open", "--port", "17900"]
        environment = os.environ | {"http_proxy": "", "https_proxy": ""}
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        line = self.process.stdout.readline()
        if "open http://" not in line:
            self.process.kill()
            raise AssertionError(line + self.process.communicate()[1])
        self.address = re.search(r"http://\S+", line)[0]

    def stop(self, how: int) -> tuple[int, str, str, float]:
        """Exit status, what was printed, and the seconds that it took."""
        began = time.monotonic()
        self.process.send_signal(how)
        out, err = self.process.communicate(timeout=20)
        return self.process.returncode, out, err, time.monotonic() - began


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    first = save_model(folder, "first")
    second = save_model(folder, "second", ("cat", "dog", "bird"), 8)
    running_page = Page(first, second)
    yield running_page
    status, out, err, seconds = running_page.stop(signal.SIGINT)
    assert (status, out.strip()) == (0, "the page is closed")
    assert "Traceback" not in err and seconds < 5


@pytest.fixture
def browser(page, chromium):
    """browser(width): a page of its own in Chromium that remembers what was asked of other hosts,
    and what failed."""
    with chromium() as opened_browser:

        def opened(width: int = 1400, address: str = page.address):
            tab = opened_browser.new_context(viewport={"width": width, "height": 900}).new_page()
            tab.abroad = []
            tab.failed = []
            tab.on("request", lambda request: note_abroad(tab, address, request.url))
            tab.on("pageerror", lambda error: tab.failed.append(str(error)))
            tab.on("console", lambda message: note_policy(tab, message.text))
            tab.goto(address)
            return tab

        yield opened


def note_abroad(tab, address: str, url: str) -> None:
    if not url.startswith((address, "data:", "blob:")):
        tab.abroad.append(url)


def note_policy(tab, text: str) -> None:
    """What the page's own policy keeps it from."""
    if "Content Security Policy" in text:
        tab.failed.append(text)


def upload(tab, *files: tuple[str, bytes]) -> None:
    given = [{"name": name, "mimeType": "image/png", "buffer": data} for name, data in files]
    tab.set_input_files("#file", given)


@pytest.mark.slow
def test_a_photograph_is_answered_looked_into_and_corrected(browser, tmp_path):
    tab = browser()
    tab.get_by_text("first: 2 classes, 64 × 64 pixels").wait_for()
    upload(tab, ("my photo.png", PNG))

    # Both models answer; names are text, not markup
    first, second = tab.locator(".model").all()
    first.locator("ol li").first.wait_for()
    second.locator("ol li").first.wait_for()
    assert sorted(first.locator("ol li span:not(.number)").all_inner_texts()) == [
        "<b>bee</b>",
        "ant",
    ]
    assert second.locator("ol li").count() == 3
    first.get_by_text("Attention rollout: what reaches the class token").wait_for()
    rolled = first.locator(".frame img").get_attribute("src")

    # A click on a patch, another one by key, then another layer and head
    box = first.locator(".frame img").bounding_box()
    tab.mouse.click(box["x"] + box["width"] * 0.9, box["y"] + box["height"] * 0.1)
    first.get_by_text("the framed patch (row 1, column 4) looks").wait_for()
    assert first.locator(".frame img").get_attribute("src") != rolled
    tab.keyboard.press("ArrowDown")
    first.get_by_text("the framed patch (row 2, column 4) looks").wait_for()
    first.locator("input[type=range]").focus()
    tab.keyboard.press("ArrowLeft")
    first.get_by_text("Layer 1, mean of 2 heads").wait_for()
    first.get_by_role("combobox", name="Head").select_option("2")
    first.get_by_text("Layer 1, head 2 of 2: where the framed patch").wait_for()
    first.get_by_role("button", name="Without the patch").click()
    first.get_by_text("Layer 1, head 2 of 2: where the class token").wait_for()
    first.get_by_label("All layers").check()
    first.get_by_text("Attention rollout").wait_for()
    second.get_by_text("Attention rollout").wait_for()

    # Corrections, downloaded as a manifest
    for label, words in (("=1+1", "does not begin as a formula"), (" ", "Say what is on")):
        tab.get_by_label("What it is").fill(label)
        tab.get_by_role("button", name="Correct the label").click()
        tab.get_by_text(words).wait_for()
    tab.get_by_label("What it is").fill('a "wasp", or so')
    tab.keyboard.press("Enter")
    tab.get_by_text("1 photograph corrected.").wait_for()
    with tab.expect_download() as downloading:
        tab.get_by_role("button", name="Download corrections").click()
    downloading.value.save_as(tmp_path / "c.zip")
    with zipfile.ZipFile(tmp_path / "c.zip") as file:
        assert file.testzip() is None
        file.extractall(tmp_path)
    table = (tmp_path / "corrections/corrections.csv").read_text()
    (row,) = csv.DictReader(table.splitlines())
    assert (row["label"], row["image"]) == ('a "wasp", or so', "images/0001-my_photo.png")
    assert row["predicted"] in ("ant", "<b>bee</b>")
    assert (tmp_path / "corrections" / row["image"]).read_bytes() == PNG

    # It asked nobody else, and nothing failed
    assert tab.abroad == [] and tab.failed == []


@pytest.mark.slow
def test_several_photographs_and_one_that_is_none(browser):
    tab = browser(390)
    upload(tab, ("first.png", PNG), ("../letter.png", b"Dear photograph"))
    one, other = tab.locator("#thumbnails button").all()
    other.get_by_text("no answer").wait_for()
    assert one.get_attribute("aria-pressed") == "true"
    assert tab.locator(".model").first.locator("ol li").count() == 2
    other.click()
    tab.get_by_text(re.compile("No answer: .*letter.png is not an image")).first.wait_for()
    assert tab.locator("ol li").count() == 0
    one.click()
    tab.locator(".model").first.locator("ol li").first.wait_for()
    width = tab.evaluate("document.documentElement.scrollWidth")
    assert width <= 390, "the page is wider than a telephone"
    assert tab.failed == []


@pytest.mark.slow
def test_a_server_with_a_token_asks_for_it(browser):
    with running(token="open sesame") as server:
        address = "http://{}:{}/".format(*server.address)
        tab = browser(1000, address)
        for token in ("wrong", "open sesame"):
            tab.get_by_label("This server needs a token").fill(token)
            tab.keyboard.press("Enter")
        tab.get_by_text("5 classes, 32 × 32 pixels").wait_for()
        upload(tab, ("a.png", PNG))
        tab.locator("ol li").first.wait_for()
        tab.get_by_text("Attention rollout").wait_for()
        assert tab.abroad == [] and tab.failed == []
        tab.context.close()


@pytest.mark.slow
def test_the_page_says_where_it_is_and_takes_the_next_port(tmp_path):
    """Without a browser: two at the same port, and SIGTERM, which leaves no file behind."""
    model = save_model(tmp_path, "model")
    pages = [Page(model), Page(model)]
    assert pages[0].address != pages[1].address
    with pytest.raises(HTTPError, match="404") as refused:
        urlopen(Request(pages[0].address.rsplit("/", 2)[0] + "/predict", b"data"))
    refused.value.close()
    for page in pages:
        status, out, err, seconds = page.stop(signal.SIGTERM)
        assert (status, out.strip()) == (0, "the page is closed") and seconds < 5
    assert "port 17900 is taken" in err
    assert "Traceback" not in err
