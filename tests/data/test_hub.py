"""A data set by its name, through the real download: `datasets` and huggingface_hub ask a server on
this machine."""

import hashlib
import json
import os
import subprocess
import sys
import threading
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
        if path.startswith("/api/datasets/you/birds/tree/"):
            self.answer(
                self.listed(path.removeprefix("/api/datasets/you/birds/tree/").partition("/")[2])
            )
        elif path in ("/api/datasets/you/birds", f"/api/datasets/you/birds/revision/{COMMIT}"):
            siblings = [{"rfilename": name} for name in self.server.files]
            self.answer(
                {
                    "id": "you/birds",
                    "sha": COMMIT,
                    "siblings": siblings,
                    "tags": [],
                    "private": False,
                }
            )
        elif name in self.server.files:
            self.answer(self.server.files[name], ETag=f'"{_oid(self.server.files[name])}"')
        else:
            known = path.startswith(("/datasets/you/birds/", "/api/datasets/you/birds/"))
            self.answer(
                {"error": "not found"},
                404,
                **{"X-Error-Code": "EntryNotFound" if known else "RepoNotFound"},
            )

    do_HEAD = do_GET

    def listed(self, folder: str) -> list[dict]:
        """The files of the data set, and its one folder."""
        files = {name: data for name, data in self.server.files.items() if name.startswith(folder)}
        found = [
            {"type": "file", "path": name, "size": len(data), "oid": _oid(data)}
            for name, data in files.items()
        ]
        return (
            found
            if folder
            else [*found, {"type": "directory", "path": "data", "oid": _oid(b"data"), "size": 0}]
        )

    def answer(self, body, status: int = 200, **headers):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {
            "Content-Length": len(data),
            "X-Repo-Commit": COMMIT,
            **headers,
        }.items():
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
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def vitkit(*words, **settings):
        address = f"http://127.0.0.1:{server.server_port}"
        chosen = {
            "HF_ENDPOINT": address,
            "HF_HOME": str(tmp_path / "hf"),
            "HF_HUB_DISABLE_XET": "1",
            **settings,
        }
        command = [sys.executable, "-m", "vitkit", *words]
        done = subprocess.run(
            command, env=os.environ | chosen, capture_output=True, text=True, cwd=tmp_path
        )
        return done.returncode, " ".join((done.stdout + done.stderr).split())

    try:
        tiny = "--model.width 24 --model.depth 1 --model.mlp 48 --model.heads 2 --batch 8 --length 3 --optim.warmup 1"
        code, said = vitkit(
            "train", "digits", "--data.source", "hf:you/birds", "--device", "cpu", *tiny.split()
        )
        assert code == 0 and "24 training images, 5 test, 5 classes" in said, said
        assert (
            sum(line.startswith("GET") and line.endswith(".parquet") for line in server.asked) == 2
        )
        code, said = vitkit("data", "stats", "hf:you/nothing")
        assert (
            code == 1
            and "vitkit: hf:you/nothing cannot be opened: " in said
            and "Traceback" not in said
        ), said
    finally:
        server.shutdown()
        server.server_close()
    code, said = vitkit(
        "evaluate", "runs/digits", "hf:you/birds", HF_HUB_OFFLINE="1"
    )  # and the server is gone
    assert code == 0 and "seen │ 5" in said, said
