"""`vitkit label` as a command: a session that is killed and goes on, what it leaves, and what it refuses."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from pictures import encoded, photograph
from processes import Forked

import vitkit
from vitkit.apps.label.directory import open_for_one, record_session
from vitkit.apps.label.function import _photographs
from vitkit.data import Preprocessing, open_parts
from vitkit.models import create, vit
from vitkit.training import Occupied
from vitkit.weights import Classifier, save

pytest.importorskip("uvicorn", reason="needs uvicorn: pip install 'vitkit[serve]'")


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with a model and unsorted photographs, of two kinds, dark and bright."""
    config = vit("mu/16", image=(32, 32), classes=3)
    classifier = Classifier(create(config, seed=0), Preprocessing((32, 32)), ("a", "b", "c"))
    save(classifier, tmp_path / "model")
    photos = tmp_path / "my photos"
    photos.mkdir()
    for number in range(24):
        picture = photograph(32, 40, number) // 2 + 120 * (number % 2)
        (photos / f"{number:02}.png").write_bytes(encoded(picture, "PNG"))
    (photos / "broken.jpg").write_bytes(b"\xff\xd8 no image")
    monkeypatch.chdir(tmp_path)
    return tmp_path


class Served:
    """A running `vitkit label`."""

    def __init__(self, *words: str):
        self.process = Forked(
            [sys.executable, "-m", "vitkit", "label", "my photos", "--model", "model", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.said = ""
        while "Ctrl-C ends it" not in self.said:
            line = self.process.stdout.readline()
            assert line, self.said
            self.said += line
        self.address = re.search(r"http://\S+", self.said)[0]

    def post(self, what: str, **values) -> dict:
        body = json.dumps({"by": "me"} | values).encode()
        return json.load(urlopen(Request(self.address + what, body, method="POST"), timeout=30))

    def progress(self) -> dict:
        return json.load(urlopen(self.address + "progress", timeout=30))

    def wait_until_seen(self, count: int) -> None:
        self.wait_until(lambda progress: progress["seen"] >= count)

    def wait_until(self, holds: Callable[[dict], bool]) -> None:
        until = time.monotonic() + 60
        while not holds(self.progress()):
            assert time.monotonic() < until
            time.sleep(0.05)

    def answer(self, most: int = 1000) -> int:
        """Answer rightly, so many questions at most; how many there were."""
        count = 0
        question = self.post("ask")["question"]
        while question is not None and count < most:
            names = [each["name"] for each in question["photographs"]]
            if question["how"] == "screen":
                others = [name for name in names if kind_of(name) != question["label"]]
                said = self.post(
                    "answer", question=question["number"], decision="class", others=others
                )
            else:
                label = kind_of(names[0])
                said = self.post(
                    "answer", question=question["number"], decision="class", label=label
                )
            question = said["question"]
            count += 1
        return count

    def end(self) -> str:
        self.process.terminate()  # as Ctrl-C, which a shell in the background ignores
        out, _ = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, out
        return out


def kind_of(name: str) -> str:
    return ("dark", "bright")[int(Path(name).stem) % 2]


@pytest.mark.slow
def test_a_session_that_is_killed_and_goes_on(place):
    run = Path("runs/my-photos-labels")
    served = Served()
    served.wait_until_seen(24)
    assert served.answer(6) == 6
    before = served.progress()["labelled"]
    with pytest.raises(subprocess.CalledProcessError) as refused:
        command = [sys.executable, "-m", "vitkit", "label", "my photos", "--model", "model"]
        subprocess.run(command, check=True, capture_output=True, text=True)
    assert f"being labelled already (process {served.process.pid} on" in refused.value.stderr
    served.process.kill()
    served.process.communicate()

    # A line that was not written whole; all others are there, and so is what the model saw
    journal = run / "answers.jsonl"
    journal.write_bytes(journal.read_bytes() + b'{"number": 99, "by')
    served = Served("--sort-into", "sorted")
    assert served.progress()["labelled"] == before
    served.wait_until_seen(24)
    served.answer()
    said = "\n".join(served.post("finish", links=False)["sentences"])
    assert "has learned from 24 photographs" in said
    assert "Next: vitkit predict runs/" in said and "vitkit finetune runs/" in said
    out = served.end()
    assert "24 of 25 photographs labelled" in out
    assert "1 photograph cannot be read: broken.jpg" in out

    # What it leaves
    assert sorted(path.name for path in Path("sorted").iterdir()) == ["bright", "dark"]
    assert len(list(Path("sorted/dark").iterdir())) == 12
    source = open_parts(str(run / "labels.csv")).sources[""]
    assert len(source) == 24
    for i in range(24):
        assert source.labels[source.targets[i]] == kind_of(source.name(i))
    assert len(list(Path("my photos").iterdir())) == 25
    lesson = vitkit.teach(str(run / "model"))
    assert lesson.memory.classes == ("bright", "dark") or lesson.memory.classes == (
        "dark",
        "bright",
    )
    assert len(lesson.memory.rows) == 24
    assert vitkit.predict(str(run / "model"), "my photos/03.png").rows()


@pytest.mark.slow
def test_photographs_arrive_while_it_runs(place, monkeypatch):
    # Forked with the process
    monkeypatch.setattr("vitkit.apps.label.feature_thread.LOOKS_AGAIN", 0.5)
    served = Served("--classes", "dark", "bright")
    assert served.post("ask")["classes"] == ["dark", "bright"]
    served.wait_until_seen(24)
    shutil.copy("my photos/04.png", "my photos/24.png")
    Path("my photos/05.png").unlink()
    served.wait_until_seen(25)
    assert served.progress()["photographs"] == 26
    assert "05.png: it is not there any more" in served.progress()["unreadable"]

    # One that was still being copied when it was looked at
    data = Path("my photos/06.png").read_bytes()
    Path("my photos/25.png").write_bytes(data[: len(data) // 2])
    served.wait_until(lambda progress: any("25.png" in name for name in progress["unreadable"]))
    Path("my photos/25.png").write_bytes(data)
    served.wait_until_seen(26)
    served.wait_until(lambda progress: len(progress["unreadable"]) == 2)
    served.end()
    assert not os.path.lexists("runs/my-photos-labels/model")


@pytest.fixture
def browser(chromium):
    """browser(address, width): the page in Chromium, which remembers what failed."""
    with chromium() as running:

        def opened(address: str, width: int = 1280):
            # The page allows no program but its own; what a test asks of it is another
            context = running.new_context(
                viewport={"width": width, "height": 800}, has_touch=width < 500, bypass_csp=True
            )
            tab = context.new_page()
            tab.failed = []
            tab.on("pageerror", lambda error: tab.failed.append(str(error)))
            tab.goto(address)
            return tab

        yield opened


def wait_for_another(tab, shown: str) -> None:
    """Wait until something else is asked than about the photograph, or a screen that begins with it."""
    tab.wait_for_function(
        """shown => {
            const visible = id => !document.getElementById(id).hidden;
            if (visible("done")) return true;
            if (visible("one")) return document.getElementById("name").textContent !== shown;
            return visible("screen") && document.querySelector("#grid button").title !== shown;
        }""",
        arg=shown,
    )
    tab.wait_for_function("[...document.images].every(image => image.hidden || image.complete)")
    tab.wait_for_timeout(300)  # what is answered sooner, nobody has looked at


@pytest.mark.slow
def test_a_whole_session_by_keyboard_in_a_browser(place, browser):
    served = Served()
    served.wait_until_seen(24)
    tab = browser(served.address)
    wait_for_another(tab, "")
    first = ""
    screens = 0
    while not tab.locator("#done").is_visible():
        if tab.locator("#screen").is_visible():
            label = tab.locator("#of").inner_text()
            tiles = tab.locator("#grid button")
            names = [tiles.nth(i).get_attribute("title") for i in range(tiles.count())]
            at = 0
            for i, name in enumerate(names):
                if kind_of(name) != label:
                    for _ in range(i - at):
                        tab.keyboard.press("ArrowRight")
                    tab.keyboard.press("Space")
                    at = i
            shown = names[0]
            tab.keyboard.press("Enter")
            screens += 1
        else:
            shown = tab.locator("#name").inner_text()
            known = tab.locator("#classes button span:nth-of-type(2)").all_inner_texts()
            if kind_of(shown) in known:
                tab.keyboard.press(str(known.index(kind_of(shown)) + 1))
            else:
                tab.keyboard.type(kind_of(shown))
                tab.keyboard.press("Enter")
            first = first or shown
        wait_for_another(tab, shown)

        # Once it is taken back, and asked again
        if shown == first:
            tab.keyboard.press("Control+z")
            tab.wait_for_function(
                "name => document.getElementById('name').textContent === name", arg=first
            )
            wait_for_another(tab, "")
            first = "-"
    assert screens > 0
    assert "24 of" in tab.locator("#count").inner_text()

    # Somebody else with a telephone is asked about what was drawn at random, and nothing is wider than it
    narrow = browser(served.address, width=390)
    wait_for_another(narrow, "")
    assert narrow.locator("#one").is_visible()
    assert narrow.evaluate("document.documentElement.scrollWidth") <= 390

    tab.click("#finish")
    tab.click("#finishing .main")
    tab.wait_for_function("document.getElementById('result').textContent.includes('learned')")
    assert tab.failed == [] and narrow.failed == []
    assert "24 of 25 photographs labelled" in served.end()
    assert Path("runs/my-photos-labels/model").is_dir()
    source = open_parts("runs/my-photos-labels/labels.csv").sources[""]
    for i in range(24):
        assert source.labels[source.targets[i]] == kind_of(source.name(i))


def test_what_is_refused(place):
    Path("empty").mkdir()
    for words, sentence in (
        ({"photographs": "nowhere"}, "there is no folder nowhere"),
        ({"photographs": "empty"}, "empty holds no photographs"),
        ({"photographs": "my photos", "port": 0}, "`port` is 0"),
        ({"photographs": "my photos", "workdir": Path("model")}, "model holds something else"),
    ):
        with pytest.raises(ValueError, match=re.escape(sentence)):
            vitkit.label(**words, model="model")


def test_two_threads_do_not_label_one_folder(place):
    folder, root = Path("runs/my-photos-labels"), Path("my photos")
    with open_for_one(folder, root):
        record_session(folder, root, False)
        with pytest.raises(Occupied, match="my photos is being labelled already"):
            vitkit.label("my photos", model="model")


def test_a_folder_without_classes_is_not_checked(place):
    with pytest.raises(ValueError, match="my photos has no class folders"):
        vitkit.label("my photos", model="model", check=True)


def test_what_a_review_found_is_shown_on_a_page(place, monkeypatch):
    """No server runs here: somebody opens the page, presses Finish, and it ends."""
    for kind in ("dark", "bright"):
        (Path("sorted") / kind).mkdir(parents=True)
        shutil.copy("my photos/00.png", f"sorted/{kind}/1.png")
    said = []

    def serve(page, table):
        said.extend(table.finish(False))

    monkeypatch.setattr("vitkit.apps.label.function._serve", serve)
    monkeypatch.setattr("vitkit.apps.label.function.look_through", lambda *_: ([], []))
    checked = vitkit.label("sorted", model="model", check=True)
    assert checked.path.is_file() and said[0] == f"wrote {checked.path}"


def test_directories_of_labels_and_of_checks_are_two(place):
    Path("mine").mkdir()
    about = {"photographs": str(Path("my photos").resolve()), "check": True}
    Path("mine/sitting.json").write_text(json.dumps(about))
    with pytest.raises(ValueError, match="answers that were given with `check`"):
        vitkit.label("my photos", model="model", workdir=Path("mine"))


def test_our_own_directories_hold_no_photographs(place, monkeypatch):
    monkeypatch.chdir("my photos")
    for name in ("runs/x/plot.png", "sorted/cat/1.png", "sorted too/1.png"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy("00.png", name)
    names = _photographs(Path(), (Path("runs"), Path("sorted"), None, place))
    assert "sorted too/1.png" in names
    assert len(names) == 24 + 1 + 1
