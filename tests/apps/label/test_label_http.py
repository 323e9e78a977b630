"""The addresses of the page of `vitkit label`: what is answered, and what is refused, without a socket."""

import asyncio
import io
import json
from urllib.parse import quote

import numpy as np
import pytest
from pictures import encoded, photograph
from PIL import Image

from vitkit.apps.label.http import Operations, application
from vitkit.apps.label.session import LabelSession
from vitkit.web import Guard

SECRET = "abc123"
NAMES = ("1.jpg", "in a folder/2 & <b>.png", "3.jpg", "4.jpg")


class Page:
    """The page of a session."""

    def __init__(self, folder):
        root = folder / "photos"
        for number, name in enumerate(NAMES):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(encoded(photograph(40, 60, number), "PNG"))
        (folder / "run").mkdir()
        (folder / "secret.png").write_bytes(encoded(photograph(4, 4, 0), "PNG"))
        self.root = root
        self.session = LabelSession(NAMES, folder / "run")
        self.finished = []
        table = Operations(self.session, root, self._finish, lambda: "")
        self.app = Guard(application(table), "127.0.0.1", secret=SECRET)

    def _finish(self, links):
        self.finished.append(links)
        return ["written"]

    def ask(self, method, path, body=b"", query=""):
        """The status, the headers and the body that are answered."""
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [],
            "http_version": "1.1",
            "scheme": "http",
            "server": ("127.0.0.1", 80),
            "client": ("127.0.0.1", 1),
            "root_path": "",
        }
        sent = []

        async def receive():
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message):
            sent.append(message)

        asyncio.run(self.app(scope, receive, send))
        content = b"".join(each.get("body", b"") for each in sent[1:])
        headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return sent[0]["status"], headers, content

    def post(self, what, by="me", **values):
        status, _, content = self.ask(
            "POST", f"/{SECRET}/{what}", json.dumps({"by": by} | values).encode()
        )
        return status, json.loads(content)


@pytest.fixture
def page(tmp_path):
    return Page(tmp_path)


def test_nothing_is_there_without_the_secret(page):
    for path in (
        "/",
        "/page.js",
        "/progress",
        "/photograph",
        "/ask",
        "//",
        f"/{SECRET}x/",
        f"/{SECRET[:-1]}/",
    ):
        assert page.ask("GET", path)[0] == 404
    for path in ("/", "/page.html", "/page.css", "/page.js"):
        status, headers, _ = page.ask("GET", f"/{SECRET}{path}")
        assert (status == 200) == (path != "/page.html")
        if status == 200:
            assert "default-src 'none'" in headers["content-security-policy"]


def test_questions_and_answers(page):
    status, first = page.post("ask")
    assert status == 200
    assert first["question"]["how"] == "typed"
    assert first["classes"] == []
    number = first["question"]["number"]
    name = first["question"]["photographs"][0]["name"]
    status, second = page.post("answer", question=number, decision="class", label="cat <b>")
    assert second["classes"] == ["cat <b>"]
    assert "is cat <b>" in second["said"]
    assert page.session.labels() == {name: "cat <b>"}
    _, back = page.post("undo")
    assert back["question"]["photographs"][0]["name"] == name
    page.post("answer", question=back["question"]["number"], decision="class", label="cat <b>")
    _, renamed = page.post("rename", old="cat <b>", new="cat")
    assert renamed["classes"] == ["cat"]
    _, _, content = page.ask("GET", f"/{SECRET}/progress")
    progress = json.loads(content)
    assert (progress["labelled"], progress["photographs"]) == (1, 4)
    assert page.post("finish", links=True) == (200, {"sentences": ["written"]})
    assert page.finished == [True]


@pytest.mark.parametrize(
    "values, words",
    [
        ({"question": 99, "decision": "class", "label": "cat"}, "already answered"),
        ({"question": 1, "decision": "delete"}, "the decision is 'delete'"),
        ({"question": 1, "decision": "class", "label": ""}, "needs a name"),
        ({"question": 1, "decision": "class", "label": 3}, "the number of a question, and a class"),
        ({"question": "1", "decision": "class"}, "the number of a question, and a class"),
        ({"question": 1, "decision": "class", "others": "1.jpg"}, "a list of names"),
        ({"question": 1, "decision": "class", "others": [["1.jpg"]]}, "a list of names"),
    ],
)
def test_an_answer_that_means_nothing(page, values, words):
    page.post("ask")
    status, said = page.post("answer", **values)
    assert status == 409
    assert words in said["error"]
    assert not page.session.labels()


@pytest.mark.parametrize(
    "body, words",
    [
        (b"", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[]", "not a JSON object"),
        (b"{}", "`by` is missing"),
        (b'{"by": " "}', "`by` is missing"),
        (b"x" * (2 << 20), "larger than 1,048,576 bytes"),
    ],
    ids=["nothing", "deep", "bytes", "list", "nobody", "blank", "large"],
)
def test_what_is_no_request(page, body, words):
    status, _, content = page.ask("POST", f"/{SECRET}/ask", body)
    assert status == 409
    assert words in json.loads(content)["error"]


def test_photographs(page):
    for name in NAMES:
        query = f"name={quote(name)}&size=large"
        status, headers, content = page.ask("GET", f"/{SECRET}/photograph", query=query)
        assert (status, headers["content-type"]) == (200, "image/jpeg")
        assert Image.open(io.BytesIO(content)).size == (60, 40)


@pytest.mark.parametrize(
    "name", ["", "../secret.png", "/etc/passwd", "5.jpg", "1.jpg\0", ".", "in a folder"]
)
def test_only_photographs_of_the_folder_are_shown(page, name):
    assert page.ask("GET", f"/{SECRET}/photograph", query=f"name={quote(name)}")[0] == 404


def test_a_photograph_that_cannot_be_shown_is_not_asked_about(page):
    (page.root / "3.jpg").write_bytes(b"\xff\xd8 no image")
    (page.root / "4.jpg").unlink()
    for name in ("3.jpg", "4.jpg"):
        assert page.ask("GET", f"/{SECRET}/photograph", query=f"name={name}")[0] == 404
    assert page.session.unreadable().keys() == {"3.jpg", "4.jpg"}
    asked = set()
    for _ in NAMES:
        question = page.post("ask")[1]["question"]
        if question is None:
            break
        asked.add(question["photographs"][0]["name"])
        page.post("answer", question=question["number"], decision="class", label="cat")
    assert asked == set(NAMES[:2])


def test_a_screen(page):
    x = np.eye(2, 4)[[0, 1, 0, 1]]
    page.session.see(NAMES, x)
    page.session._given_out.give(
        "me", page.session.ask("me")._replace(how="screen", label="cat", photographs=NAMES)
    )
    question = page.post("ask")[1]["question"]
    assert question["label"] == "cat"
    assert [each["name"] for each in question["photographs"]] == list(NAMES)
    others = [NAMES[1], "no such.jpg"]
    _, said = page.post("answer", question=question["number"], decision="class", others=others)
    assert said["said"] == "3 are cat, 1 are not"
    assert set(page.session.labels()) == set(NAMES) - {NAMES[1]}
