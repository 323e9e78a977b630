"""Names become files: Google's bucket and the hub, played by small servers on this machine."""

import base64
import hashlib
import json
import threading
from fnmatch import fnmatch
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from other_libraries import edit

from vitkit.cli.entry import main
from vitkit.models import vit
from vitkit.weights import load, save
from vitkit.weights.files import hub as hub_module
from vitkit.weights.files.hub import DESCRIPTIONS
from vitkit.weights.files.hub import fetch as find
from vitkit.weights.proof import convert_weights

CONFIG = vit("mu/8", image=(16, 16), classes=3)
AUGREG = (
    "B_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0--"
    "imagenet2012-steps_20k-lr_0.03-res_384"
)


class Bucket(BaseHTTPRequestHandler):
    """Answers as Google's storage does: ranges, sizes and md5.

    Of the server: `files`, by path; `breaks`, bytes after which it hangs up once; `md5`, to state
    instead of the true one.
    """

    def do_GET(self):
        name, server = self.path.lstrip("/"), self.server
        server.asked.append((name, self.headers.get("Range")))
        if name not in server.files:
            self.send_error(404)
            return
        data = server.files[name]
        start = int((self.headers.get("Range") or "bytes=0-")[6:].rstrip("-"))
        if start >= len(data):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(data) - start))
        digest = base64.b64encode(hashlib.md5(data).digest()).decode()
        self.send_header("x-goog-hash", "crc32c=AAAAAA==")
        self.send_header("x-goog-hash", f"md5={server.md5 or digest}")
        self.end_headers()
        end = start + server.breaks if server.breaks else len(data)
        self.wfile.write(data[start:end])
        server.breaks = 0

    def log_message(self, *_):
        pass


@pytest.fixture
def serving():
    """`serving(handler, **attributes)`: a server on a free port; -> it, and its address."""
    running = []

    def start(handler, **attributes):
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        vars(server).update(asked=[], **attributes)
        # shutdown() waits for the next poll, by default half a second
        serve = partial(server.serve_forever, poll_interval=0.01)
        threading.Thread(target=serve, daemon=True).start()
        running.append(server)
        return server, f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in running:
        server.shutdown()
        server.server_close()


@pytest.fixture
def bucket(serving, random_classifier, tmp_path, monkeypatch):
    convert_weights(random_classifier(CONFIG), tmp_path / "m.npz", "google")
    data = (tmp_path / "m.npz").read_bytes()
    names = [
        "imagenet21k/ViT-B_16.npz",
        "imagenet21k%2Bimagenet2012/ViT-B_16.npz",
        f"augreg/{AUGREG}.npz",
    ]
    server, address = serving(Bucket, files=dict.fromkeys(names, data), breaks=0, md5="")
    monkeypatch.setattr(hub_module, "ENDPOINT", address)
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path / "cache"))
    return server


@pytest.mark.parametrize(
    "name",
    [
        "imagenet21k/ViT-B_16",
        "imagenet21k/ViT-B_16.npz",
        "gs://vit_models/imagenet21k/ViT-B_16.npz",
        "imagenet21k+imagenet2012/ViT-B_16",
        AUGREG,
        f"{AUGREG}.npz",
        f"augreg/{AUGREG}",
    ],
)
def test_googles_names_are_downloaded_once(name, bucket, random_classifier, same_model):
    same_model(load(name, quiet=True), random_classifier(CONFIG))
    load(name, quiet=True)
    assert len(bucket.asked) == 1


def test_a_download_that_broke_off_goes_on(bucket, tmp_path):
    bucket.breaks = 1000
    with pytest.raises(ValueError, match=r"broke off after 1,000 of|cannot be downloaded"):
        find("imagenet21k/ViT-B_16")
    path = find("imagenet21k/ViT-B_16")
    assert path.read_bytes() == (tmp_path / "m.npz").read_bytes()
    assert [asked[1] for asked in bucket.asked] == [None, "bytes=1000-"]


def test_a_download_that_arrives_damaged_is_not_kept(bucket, tmp_path):
    bucket.md5 = "AAAAAAAAAAAAAAAAAAAAAA=="
    with pytest.raises(ValueError, match="arrived damaged: its md5 is .*, the server says AAAA"):
        find("imagenet21k/ViT-B_16")
    assert not any(file.is_file() for file in (tmp_path / "cache").rglob("*"))
    bucket.md5 = ""
    assert find("imagenet21k/ViT-B_16").is_file()


def test_a_part_of_something_longer_is_thrown_away(bucket, tmp_path):
    part = tmp_path / "cache" / "google" / "imagenet21k" / "ViT-B_16.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(bytes(10**6))
    assert find("imagenet21k/ViT-B_16").read_bytes() == (tmp_path / "m.npz").read_bytes()


def test_a_file_that_is_not_there_is_a_sentence(bucket):
    with pytest.raises(
        ValueError, match=r"ViT-Z_16.npz: there is no such file; the names are list"
    ):
        find("imagenet21k/ViT-Z_16")


def test_a_server_that_does_not_answer_is_a_sentence(bucket, monkeypatch):
    monkeypatch.setattr(hub_module, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ValueError, match="cannot be downloaded: .*refused"):
        find("sam/ViT-B_16")


@pytest.mark.parametrize(
    "name", ["imagenet21k/../../secret", "augreg/.hidden", "no such thing", "a/b/c"]
)
def test_what_is_no_name_is_not_asked_for(name, bucket):
    with pytest.raises(ValueError, match="it is not the name of a model|neither a local path nor"):
        find(name)
    assert not bucket.asked


# the hub


class Hub(BaseHTTPRequestHandler):
    """What huggingface_hub's own client asks for to download a snapshot and to upload a folder of
    small files."""

    SHA = "0" * 40

    @property
    def home(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/you/model"

    def reply(self, body, status=200, **headers):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        usual = {"Content-Length": len(data), "X-Repo-Commit": self.SHA}
        for name, value in (usual | headers).items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def do_GET(self):
        self.server.asked.append(self.path)
        files = self.server.files
        name = self.path.rpartition("/")[2]
        if self.path.startswith("/api/models/you/model/tree/"):
            self.reply([self.listed(name) for name in files])
        elif self.path.startswith("/api/models/you/model"):
            about = {"id": "you/model", "modelId": "you/model", "tags": [], "private": False}
            siblings = [{"rfilename": name} for name in files]
            self.reply(about | {"sha": self.SHA, "siblings": siblings})
        elif self.path.startswith("/you/model/resolve/") and name in files:
            self.reply(files[name], ETag=f'"{oid(files[name])}"')
        else:
            self.reply({"error": "Repository not found"}, 404, X_Error_Code="RepoNotFound")

    do_HEAD = do_GET

    def listed(self, name):
        data = self.server.files[name]
        return {"type": "file", "path": name, "size": len(data), "oid": oid(data)}

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/api/repos/create":
            self.server.created = json.loads(body)
            self.reply({"url": self.home, "name": "you/model"})
        elif "/preupload/" in self.path:
            usual = {"uploadMode": "regular", "shouldIgnore": False}
            self.reply({"files": [{"path": f["path"], **usual} for f in json.loads(body)["files"]]})
        elif "/commit/" in self.path:
            for entry in map(json.loads, body.decode().splitlines()):
                if entry["key"] == "file":
                    value = entry["value"]
                    self.server.files[value["path"]] = base64.b64decode(value["content"])
            commit = {"commitOid": self.SHA, "commitUrl": f"{self.home}/commit/{self.SHA}"}
            self.reply(commit | {"success": True, "hookOutput": ""})
        else:
            self.reply({"valid": True})  # the check of the card's header

    def log_message(self, *_):
        pass


def oid(data):
    return hashlib.sha1(data).hexdigest()


@pytest.fixture
def hub(serving, tmp_path, monkeypatch):
    pytest.importorskip("huggingface_hub")
    import huggingface_hub.constants as constants

    server, address = serving(Hub, files={}, created=None)
    for name in ("ENDPOINT", "HUGGINGFACE_CO_URL_HOME"):
        monkeypatch.setattr(constants, name, address, raising=False)
    template = address + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    older = "huggingface_hub.file_download.HUGGINGFACE_CO_URL_TEMPLATE"  # below version 1
    monkeypatch.setattr(older, template, raising=False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    import huggingface_hub.hf_api as hf_api

    monkeypatch.setattr(hf_api.api, "endpoint", address)
    monkeypatch.setenv("HF_TOKEN", "hf_test")
    yield server
    begin_sessions()


def begin_sessions():
    """Below version 1 of the hub's library, sessions that have begun offline stay so."""
    from huggingface_hub import utils

    if hasattr(utils, "reset_sessions"):
        utils.reset_sessions()


def push(capsys, folder, *words):
    """The status of `vitkit push`, and what it prints."""
    status = main(["push", str(folder), "you/model", *words])
    printed = capsys.readouterr()
    return status, " ".join((printed.out + printed.err).split())


def test_up_to_the_hub_and_down_again(
    hub, random_classifier, same_model, tmp_path, monkeypatch, capsys
):
    """Pushed by the command, loaded by name, and loaded again from the cache when the hub is
    gone."""
    from huggingface_hub import constants

    classifier = random_classifier(CONFIG)
    save(classifier, tmp_path / "run" / "model")
    (tmp_path / "run" / "model" / "notes.txt").write_text("private")
    status, printed = push(capsys, tmp_path / "run", "--private", "--license", "mit")
    assert status == 0 and "uploaded" in printed
    assert hub.created["name"] == "model"
    assert "private" in str(hub.created)
    assert set(hub.files) == {*DESCRIPTIONS, "README.md", "model.safetensors"}
    same_model(load("you/model", quiet=True), classifier)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    begin_sessions()
    hub.asked.clear()
    same_model(load("you/model", quiet=True), classifier)
    assert not hub.asked
    with pytest.raises(ValueError, match="you/other is not on this machine.*hub cannot be"):
        load("you/other")


@pytest.mark.parametrize(
    ("others", "weights"),
    [
        (["pytorch_model.bin", "tf_model.h5"], ["model.safetensors"]),
        (
            ["pytorch_model.bin"],
            [
                "model-1-of-2.safetensors",
                "model-2-of-2.safetensors",
                "model.safetensors.index.json",
            ],
        ),
        (["flax_model.msgpack"], ["pytorch_model.bin"]),
        ([], ["pytorch_model-1-of-1.bin", "pytorch_model.bin.index.json"]),
    ],
)
def test_of_a_repository_pytorchs_own_files_come_only_without_safetensors(
    others, weights, tmp_path, monkeypatch
):
    huggingface_hub = pytest.importorskip("huggingface_hub")

    def download(repository, revision, allow_patterns):
        assert (repository, revision) == ("you/model", "v1")
        for name in ("config.json", *weights, *others):
            if any(fnmatch(name, pattern) for pattern in allow_patterns):
                (tmp_path / name).touch()
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    folder = find("you/model@v1")
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", *weights]


def test_licence_and_its_text_come_down_and_go_up(hub, random_classifier, tmp_path, capsys):
    save(random_classifier(CONFIG), tmp_path / "model")
    (tmp_path / "model" / "README.md").write_text("---\nlicense: other\n---\nMine.")
    status, printed = push(capsys, tmp_path / "model")  # without a copy
    assert status == 1 and "put its text into a file LICENSE" in printed
    (tmp_path / "model" / "LICENSE").write_text("The terms.")
    assert push(capsys, tmp_path / "model")[0] == 0
    assert hub.files["LICENSE"] == b"The terms."
    license = load("you/model", quiet=True).license
    assert (license.id, license.text) == ("other", "The terms.")


def test_googles_files_have_the_licence_of_their_repository(bucket):
    assert load("imagenet21k/ViT-B_16", quiet=True).license.id == "apache-2.0"


def test_a_push_sends_no_path_of_this_machine(hub, random_classifier, tmp_path, capsys):
    save(random_classifier(CONFIG), tmp_path / "model")
    edit(tmp_path / "model", _name_or_path=str(tmp_path / "model"))
    status, printed = push(capsys, tmp_path / "model", "--license", "mit")
    assert status == 1 and "is a path of this machine" in printed
    assert hub.created is None


def test_a_push_without_a_network_is_a_sentence(
    hub, random_classifier, tmp_path, monkeypatch, capsys
):
    import huggingface_hub.constants as constants
    import huggingface_hub.hf_api as hf_api

    save(random_classifier(CONFIG), tmp_path / "model")
    for owner, name in ((constants, "ENDPOINT"), (hf_api.api, "endpoint")):
        monkeypatch.setattr(owner, name, "http://127.0.0.1:9")
    status, printed = push(capsys, tmp_path / "model", "--license", "mit")
    assert status == 1 and "the Hugging Face hub cannot be reached" in printed
    assert "Traceback" not in printed


def test_what_is_no_model_is_not_pushed(hub, tmp_path, capsys):
    status, printed = push(capsys, tmp_path)
    assert status == 1 and "is not a model directory; write one with vitkit convert" in printed
    assert hub.created is None
