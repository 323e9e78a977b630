"""A server in this process, and its clients, to test with."""

import asyncio
import http.client
import json
import threading
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import NamedTuple

import torch

from vitkit.apps.serve.http.body import Limits
from vitkit.apps.serve.http.server import Server, StartSettings, server_socket
from vitkit.apps.serve.http.service import Settings
from vitkit.data import Preprocessing
from vitkit.models import ViTConfig, create, vit
from vitkit.runtimes import eager, map_runtime, segments
from vitkit.weights import Classifier, dense

LABELS = ("cat", "dog", "newt", "owl", "bat")
BOUNDARY = "----7MA4YWxk"
PATIENCE = 30  # seconds that no test waits


def make_classifier(seed: int = 0) -> Classifier:
    """A small model whose answers differ from image to image."""
    config = ViTConfig(
        width=24, depth=2, mlp=48, heads=2, patch=8, image=(32, 32), classes=len(LABELS)
    )
    model = create(config, seed=seed)
    with torch.no_grad():
        torch.nn.init.normal_(model.head.weight, generator=torch.Generator().manual_seed(seed))
    return Classifier(model, Preprocessing(size=(32, 32)), LABELS)


def make_model_of_masks() -> Classifier:
    """A small model that classifies every pixel, with classes that differ from place to place."""
    config = vit("mu/16", image=(16, 16), patch=4, depth=2, classes=0)
    plain = Classifier(create(config, seed=0), Preprocessing(size=(16, 16)), ())
    made = dense(plain, ("background", "cell", "<b>edge</b>"), blocks=2, tokens=64)
    with torch.no_grad():
        made.model.head.weight.normal_(generator=torch.Generator().manual_seed(0))
    return made


class Answer(NamedTuple):
    """What a client gets."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def predictions(self):
        assert self.status == 200, self.body
        return self.json["predictions"]

    @property
    def error(self):
        return self.json["error"]


class Running:
    """A server that runs in a thread."""

    def __init__(self, plan: StartSettings):
        self.words = []
        self.is_ready = threading.Event()
        self.server = Server(plan, server_socket("127.0.0.1", 0), self.hear)
        self.address = self.server.bound.getsockname()[:2]
        self.thread = threading.Thread(target=self.server.run, daemon=True)
        self.thread.start()
        assert self.is_ready.wait(PATIENCE)

    def hear(self, word):
        self.words.append(word)
        self.is_ready.set()

    def call(self, act):
        """Call a function in the server's loop, as a signal would."""
        self.server.loop.call_soon_threadsafe(act)

    def end(self):
        """End the server as SIGTERM does, and wait."""
        if self.thread.is_alive():
            self.call(self.server.stop)
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive()

    @property
    def room(self):
        return self.server.service.room

    def connect(self):
        return closing(http.client.HTTPConnection(*self.address, timeout=PATIENCE))

    def ask(self, method, path, body=None, headers=None) -> Answer:
        """A request on a connection of its own."""
        with self.connect() as connection:
            try:
                connection.connect()
            except ConnectionResetError as error:  # the server ended before it accepted anything
                raise ConnectionRefusedError(*error.args) from error
            return ask(connection, method, path, body, headers)

    def post(self, body, kind="image/jpeg", query="", headers=None) -> Answer:
        return self.ask("POST", f"/predict{query}", body, {"Content-Type": kind} | (headers or {}))


def ask(connection, method, path, body=None, headers=None) -> Answer:
    """A request on an open connection."""
    connection.request(method, path, body, headers or {})
    response = connection.getresponse()
    names = {name.lower(): value for name, value in response.headers.items()}
    return Answer(response.status, names, response.read())


def form(files: dict[str, bytes]) -> tuple[bytes, str]:
    """The body of a form with these files, and its content type."""
    body = b""
    for name, data in files.items():
        head = f'Content-Disposition: form-data; name="image"; filename="{name}"'
        body += f"--{BOUNDARY}\r\n{head}\r\nContent-Type: image/jpeg\r\n\r\n".encode()
        body += data + b"\r\n"
    return body + f"--{BOUNDARY}--\r\n".encode(), f"multipart/form-data; boundary={BOUNDARY}"


@contextmanager
def running(classifier=None, limits=None, queue=256, grace=10.0, **settings):
    """A server of a small model, until the block ends; then nothing may be left in it."""
    classifier = classifier or make_classifier()
    open_runtime = map_runtime if segments(classifier) else eager
    plan = StartSettings(
        "tiny",
        lambda: open_runtime(classifier, "cpu"),
        Settings(limits or Limits(), **settings),
        queue,
        grace,
    )
    server = Running(plan)
    try:
        yield server
    finally:
        server.end()
    assert (server.room.held_images, server.room.held_bytes) == (0, 0)


def with_model(server: Running, open_model) -> None:
    """What the server opens the next time."""
    server.server.plan = replace(server.server.plan, open_model=open_model)


def ask_app(app, method, path, body=b"", kind="image/jpeg", **headers) -> Answer:
    """A request to an ASGI application, without a server."""
    given = {"host": "127.0.0.1:80", "content-type": kind, **headers}
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path.partition("?")[0],
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": path.partition("?")[2].encode(),
        "headers": [(name.encode(), value.encode()) for name, value in given.items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }
    sent = []
    bodies = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive():
        if bodies:
            return bodies.pop()
        return await asyncio.get_running_loop().create_future()  # the client waits

    async def send(message):
        sent.append(message)

    asyncio.run(app(scope, receive, send))
    names = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return Answer(sent[0]["status"], names, b"".join(each["body"] for each in sent[1:]))
