"""The page of `vitkit app` in headless Chromium, with real uploads and clicks; and its server."""

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
import zipfile
from importlib.util import find_spec
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from pictures import encoded, photograph

from vitkit.data import Preprocessing
from vitkit.models import create, vit
from vitkit.weights import Classifier, save

# Not imported, which takes a second of every process that collects tests: the page is another one
pytestmark = pytest.mark.skipif(
    find_spec("gradio") is None, reason="needs gradio: pip install 'vitkit[app]'"
)


def save_model(folder: Path, name: str, patch: int, labels: tuple[str, ...]) -> str:
    config = vit(f"mu/{patch}", image=(64, 64), classes=len(labels), depth=3)
    classifier = Classifier(create(config, seed=patch), Preprocessing((64, 64)), labels)
    save(classifier, folder / name)
    return str(folder / name)


class Page:
    """A running `vitkit app`."""

    def __init__(self, *words: str):
        command = [sys.executable, "-m", "vitkit", "app", *words, "--port", "17900"]
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
    first = save_model(folder, "first", 16, ("ant", "<b>bee</b>"))
    second = save_model(folder, "second", 8, ("cat", "dog", "bird"))
    running = Page(first, second)
    yield running
    status, out, err, seconds = running.stop(signal.SIGINT)
    assert (status, out.strip()) == (0, "the page is closed")
    assert "Traceback" not in err and seconds < 5


@pytest.fixture
def browser(page, chromium):
    """browser(width): a page of its own in Chromium that remembers what was asked of other hosts,
    and what failed."""
    with chromium() as running:

        def opened(width: int = 1400):
            context = running.new_context(viewport={"width": width, "height": 900})
            tab = context.new_page()
            tab.abroad = []
            tab.failed = []
            tab.on("request", lambda request: note_abroad(tab, request.url))
            tab.on("pageerror", lambda error: tab.failed.append(str(error)))
            tab.goto(page.address)
            tab.wait_for_selector("#photo input[type=file]", state="attached")
            return tab

        def note_abroad(tab, url: str) -> None:
            if not url.startswith((page.address, "data:", "blob:")):
                tab.abroad.append(url)

        yield opened


def upload(tab, data: bytes, name: str = "my photo.png") -> None:
    tab.set_input_files(
        "#photo input[type=file]", {"name": name, "mimeType": "image/png", "buffer": data}
    )


@pytest.mark.slow
def test_a_photograph_is_answered_looked_into_and_corrected(browser, tmp_path):
    tab = browser()
    upload(tab, encoded(photograph(120, 160), "PNG"))

    # Both models answer; names are text, not markup
    tab.wait_for_selector("#answers-1 li")
    tab.wait_for_selector("#answers-2 li")
    names = tab.locator("#answers-1 li span:not(.number)").all_inner_texts()
    assert sorted(names) == ["<b>bee</b>", "ant"]
    assert tab.locator("#answers-2 li").count() == 3
    tab.wait_for_selector("#model-1 .looks img")
    first = tab.locator("#model-1")
    first.get_by_text("Attention rollout: what reaches the class token").wait_for()
    rolled = first.locator(".looks img").get_attribute("src")

    # A click on a patch, then another layer and head
    box = first.locator(".looks img").bounding_box()
    tab.mouse.click(box["x"] + box["width"] * 0.9, box["y"] + box["height"] * 0.1)
    first.get_by_text(re.compile(r"the framed patch \(row 1, column 4\) looks")).wait_for()
    assert first.locator(".looks img").get_attribute("src") != rolled
    slider = first.locator("input[type=range]")
    slider.focus()
    slider.press("ArrowLeft")
    first.get_by_text(re.compile("Layer 1, mean of 2 heads")).wait_for()
    first.get_by_label("Head").click()
    tab.get_by_role("option", name="2", exact=True).click()
    first.get_by_text(re.compile("Layer 1, head 2 of 2: where the framed patch")).wait_for()
    first.get_by_role("button", name="Where the class token looks").click()
    first.get_by_text(re.compile("Layer 1, head 2 of 2: where the class token")).wait_for()

    # The other model's column has not changed
    tab.locator("#model-2").get_by_text("Attention rollout").wait_for()

    # A correction, downloaded as a manifest
    tab.get_by_label("What it is").fill("wasp")
    tab.get_by_label("What it is").press("Enter")
    tab.get_by_role("button", name="Correct the label").click()
    tab.get_by_text("1 photograph corrected.").wait_for()
    with tab.expect_download() as downloading:
        tab.get_by_role("button", name="Download corrections").click()
    downloading.value.save_as(tmp_path / "c.zip")
    with zipfile.ZipFile(tmp_path / "c.zip") as file:
        file.extractall(tmp_path)
    table = (tmp_path / "corrections/corrections.csv").read_text()
    rows = list(csv.DictReader(table.splitlines()))
    assert [row["label"] for row in rows] == ["wasp"]
    assert rows[0]["image"] == "images/0001-my_photo.png"
    assert (tmp_path / "corrections" / rows[0]["image"]).exists()

    # It asked nobody else, and nothing failed
    assert tab.abroad == [] and tab.failed == []


@pytest.mark.slow
def test_a_broken_file_is_a_sentence_and_people_do_not_meet(browser):
    mine = browser(390)
    other = browser(390)
    upload(mine, encoded(photograph(120, 160), "PNG"))
    mine.wait_for_selector("#answers-1 li")
    upload(other, b"Dear photograph", "letter.png")
    other.get_by_text(re.compile("letter.png is not an image")).wait_for()
    assert other.locator("#answers-1 li").count() == 0
    assert mine.locator("#answers-1 li").count() == 2
    width = mine.evaluate("document.documentElement.scrollWidth")
    assert width <= 390, "the page is wider than a telephone"


@pytest.mark.slow
def test_the_page_is_built_without_a_browser(tmp_path):
    """Every event is private: no program can call it by name. In a process of its own, as gradio
    leaves event loops open."""
    model = save_model(tmp_path, "model", 16, ("ant", "bee"))
    code = (
        "import sys; from pathlib import Path; from vitkit import load; "
        "from vitkit.apps.demo.page import build; from vitkit.apps.demo.viewer import Viewer; "
        "own = Viewer('mine', load(sys.argv[1], quiet=True)); page = build([own, own], Path('.')); "
        "assert {f.api_visibility for f in page.fns.values()} == {'private'}; "
        "assert not page.analytics_enabled"
    )
    subprocess.run([sys.executable, "-c", code, model], check=True)


@pytest.mark.slow
def test_the_server_says_where_it_is_and_takes_the_next_port(tmp_path):
    """Without a browser: two at the same port, and SIGTERM, which leaves no file behind."""
    model = save_model(tmp_path, "model", 16, ("ant", "bee"))
    pages = [Page(model), Page(model)]
    assert pages[0].address != pages[1].address
    for page in pages:
        status, out, err, seconds = page.stop(signal.SIGTERM)
        assert (status, out.strip()) == (0, "the page is closed") and seconds < 5
    assert "port 17900 is taken" in err
    assert "Traceback" not in err


@pytest.mark.slow
def test_no_file_of_the_machine_is_handed_out(tmp_path):
    """By the three requests of a page: say which file was uploaded, and take the answer."""
    page = Page(save_model(tmp_path, "model", 16, ("ant", "bee")))
    try:
        take_files(page.address, tmp_path)
    finally:
        page.stop(signal.SIGTERM)  # gradio prints a traceback for what it refuses


def take_files(address, tmp_path):
    private = tmp_path / "private.png"
    private.write_bytes(encoded(photograph(120, 160), "PNG"))
    settings = json.load(urlopen(f"{address}config"))
    [change] = [
        each["id"] for each in settings["dependencies"] if each["targets"][0][1] == "change"
    ]
    for path in (private, "/etc/hostname", tmp_path / "nothing.png"):
        asked = {
            "data": [{"path": str(path), "meta": {"_type": "gradio.FileData"}}],
            "fn_index": change,
            "session_hash": "stranger",
        }
        headers = {"Content-Type": "application/json"}
        join = Request(f"{address}gradio_api/queue/join", json.dumps(asked).encode(), headers)
        urlopen(join).close()
        with urlopen(f"{address}gradio_api/queue/data?session_hash=stranger") as events:
            said = b""
            while b"process_completed" not in said:
                said += events.readline()
        assert b'"success":false' in said and b"class=number" not in said

    root = address.rsplit("/", 2)[0]
    for path in ("/", "/config", "/gradio_api/upload"):
        with pytest.raises(HTTPError, match="404") as refused:
            urlopen(Request(f"{root}{path}", b"data"))
        refused.value.close()
    evil = {"Host": "evil.example"}, {"Origin": "https://evil.example"}
    for headers, status in zip(evil, ("421", "403"), strict=True):
        with pytest.raises(HTTPError, match=status) as refused:
            urlopen(Request(f"{address}gradio_api/upload", b"data", headers))
        refused.value.close()
