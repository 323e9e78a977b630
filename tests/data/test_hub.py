"""A data set by its name, through the real download: `datasets` and huggingface_hub ask a server on
this machine."""

import hashlib
import json
import os
import subprocess
import sys
import threading
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from test_scale import PICTURES

pytestmark = pytest.mark.slow
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(BaseHTTPRequestHandler):
    """What their clients ask for a data set of small files, you/birds."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        path = self.path.partition("?")[0]
        self.server.asked.append(f"{self.command} {path}")
        name = path.removeprefix("/datasets/you/birds/resolve/").partition("/")[2]
        tree = "/api/datasets/you/birds/tree/"
        if path.startswith(tree):
            folder = path.removeprefix(tree).partition("/")[2]
            self.answer(self.listed(folder))
        elif path in ("/api/datasets/you/birds", f"/api/datasets/you/birds/revision/{COMMIT}"):
            siblings = [{"rfilename": name} for name in self.server.files]
            about = {"id": "you/birds", "sha": COMMIT, "tags": [], "private": False}
            self.answer(about | {"siblings": siblings})
        elif name in self.server.files:
            self.answer(self.server.files[name], ETag=f'"{_oid(self.server.files[name])}"')
        else:
            known = path.startswith(("/datasets/you/birds/", "/api/datasets/you/birds/"))
            code = "EntryNotFound" if known else "RepoNotFound"
            self.answer({"error": "not found"}, 404, **{"X-Error-Code": code})

    do_HEAD = do_GET

    def listed(self, folder: str) -> list[dict]:
        """The files of the data set, and its one folder."""
        entries = []
        for name, data in self.server.files.items():
            if name.startswith(folder):
                oid = _oid(data)
                entries.append({"type": "file", "path": name, "size": len(data), "oid": oid})
        if not folder:
            entries.append({"type": "directory", "path": "data", "size": 0, "oid": _oid(b"data")})
        return entries

    def answer(self, body, status: int = 200, **headers):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Content-Length": len(data), "X-Repo-Commit": COMMIT, **headers}
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, *_):
        pass


def _oid(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()


def test_a_data_set_of_the_hub_is_downloaded_once_and_used_offline(tmp_path):
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {"img": datasets.Image(), "label": datasets.ClassLabel(names=list("abcde"))}
    )
    rows = {
        "img": [{"bytes": data, "path": None} for data in PICTURES],
        "label": [i % 5 for i in range(24)],
    }
    whole = datasets.Dataset.from_dict(rows, features=features)
    files = {}
    for name, part in {"train": whole, "test": whole.select(range(5))}.items():
        part.to_parquet(str(tmp_path / "x.parquet"))
        files[f"data/{name}-00000-of-00001.parquet"] = (tmp_path / "x.parquet").read_bytes()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    vars(server).update(files=files, asked=[])
    serve = partial(server.serve_forever, poll_interval=0.01)
    threading.Thread(target=serve, daemon=True).start()

    def vitkit(*words, **settings):
        """The exit status, and all that is printed."""
        hub = {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_HUB_DISABLE_XET": "1"}
        environment = os.environ | hub | {"HF_HOME": str(tmp_path / "hf")} | settings
        command = [sys.executable, "-m", "vitkit", *words]
        pipes = {"capture_output": True, "text": True}
        done = subprocess.run(command, env=environment, cwd=tmp_path, **pipes)
        return done.returncode, " ".join((done.stdout + done.stderr).split())

    model = "--model.width 24 --model.depth 1 --model.mlp 48 --model.heads 2".split()
    training = "--batch 8 --length 3 --optim.warmup 1 --device cpu".split()
    try:
        words = ("train", "digits", "--data.source", "hf:you/birds", *model, *training)
        words += ("--workdir", "runs/digits")
        code, output = vitkit(*words)
        assert code == 0 and "24 training images, 5 test, 5 classes" in output, output
        fetched = [line for line in server.asked if line.startswith("GET")]
        assert sum(line.endswith(".parquet") for line in fetched) == 2
        code, output = vitkit("data", "stats", "hf:you/nothing")
        assert code == 1 and "Traceback" not in output, output
        assert "vitkit: hf:you/nothing cannot be opened: " in output
    finally:
        server.shutdown()
        server.server_close()
    # and now the server is gone
    code, output = vitkit("evaluate", "runs/digits", "hf:you/birds", HF_HUB_OFFLINE="1")
    assert code == 0 and "seen │ 5" in output, output
