"""Requests to a server, as bytes: uvicorn's own protocol reads them, and our application answers, without
a socket between."""

import asyncio
import base64
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from math import isfinite
from pathlib import Path

import h11
from pictures import encoded, photograph
from served import form, make_classifier

from fuzzing.subject import Subject
from vitkit.apps.serve.batching import Room
from vitkit.apps.serve.http.application import application, guarded
from vitkit.apps.serve.http.body import Limits
from vitkit.apps.serve.http.service import Service, Settings
from vitkit.apps.serve.models import answers_alone, served_now
from vitkit.runtimes import eager
from vitkit.system.errors import VitkitError

PATIENCE = 10.0  # seconds that a request may take; an attempt may take twice as many
LIMITS = Limits(size=1 << 20, images=8, seconds=PATIENCE)
ENDED = 2.0  # seconds in which nothing may be held any more


def _requests(folder: Path) -> None:
    """One of each kind that is answered."""
    first, second = (photograph(24, 32, seed) for seed in (0, 1))
    text = [base64.b64encode(encoded(pixels)).decode() for pixels in (first, second)]
    objects = [{"name": "a.jpg", "data": text[0]}, f"data:image/jpeg;base64,{text[1]}"]
    parts, kind = form({"a.jpg": encoded(first), "b.png": encoded(second, "PNG")})
    bodies = {
        "raw": ("image/jpeg", encoded(first)),
        "png": ("image/png", encoded(second, "PNG")),
        "bytes": ("application/octet-stream", encoded(first, "WEBP")),
        "form": (kind, parts),
        "json": ("application/json", json.dumps({"images": objects}).encode()),
        "short": ("application/json", json.dumps({"image": text[0]}).encode()),
    }
    for name, (kind, body) in (bodies | {"attention": bodies["raw"]}).items():
        path = "/attention?layer=1" if name == "attention" else "/predict?top=2"
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\n"
        head += f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        (folder / f"{name}.http").write_bytes(head.encode() + body)


@cache
def _service(process: int) -> Service:
    """A server's service, with its threads, in this process."""
    served = served_now("tiny", eager(make_classifier(), "cpu"), answers_alone)
    room = Room(64, 4 * LIMITS.size)
    return Service(Settings(LIMITS, batch=4), room, ThreadPoolExecutor(2), served)


@cache
def _config(process: int):
    import uvicorn

    config = uvicorn.Config(
        guarded(application(_service(process)), _service(process).settings),
        http="h11",
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
    )
    config.load()
    return config


class _Wire(asyncio.Transport):
    """Where a protocol writes, in place of a socket."""

    def __init__(self):
        super().__init__({"sockname": ("127.0.0.1", 80), "peername": ("127.0.0.1", 1)})
        self.written = b""
        self.closed = asyncio.Event()

    def write(self, data):
        self.written += data

    def close(self):
        self.closed.set()

    abort = close

    def is_closing(self):
        return self.closed.is_set()

    def pause_reading(self): ...

    def resume_reading(self): ...


async def _exchange(data: bytes) -> bytes:
    """All that is answered to what a client sends before it goes."""
    from uvicorn.protocols.http.h11_impl import H11Protocol
    from uvicorn.server import ServerState

    state = ServerState()
    protocol = H11Protocol(_config(os.getpid()), state, {})
    wire = _Wire()
    protocol.connection_made(wire)
    protocol.data_received(data)
    if protocol.conn.their_state in (h11.IDLE, h11.SEND_BODY):  # more was to come
        await asyncio.sleep(0)
        protocol.connection_lost(None)
    elif state.tasks:
        await asyncio.wait(state.tasks)
    if state.tasks:
        await asyncio.wait(state.tasks)
    return wire.written


def _ask(folder: Path) -> None:
    """What a client gets: an answer with numbers, or a sentence; and nothing is held after it."""
    for path in sorted(folder.iterdir()):
        answer = asyncio.run(_exchange(path.read_bytes()))
        room = _service(os.getpid()).room
        until = time.monotonic() + ENDED
        while (room.held_images, room.held_bytes) != (0, 0):
            assert time.monotonic() < until, (room.held_images, room.held_bytes)
            time.sleep(0.005)
        _check(answer)


def _check(answer: bytes) -> None:
    """Raises ValueError with the sentence of a refusal, AssertionError for what must not be."""
    if not answer:
        raise VitkitError("the client went away before it had sent all")
    head, _, body = answer.partition(b"\r\n\r\n")
    status = int(head.split()[1])
    assert status < 500, answer
    if status >= 400 and b"application/json" in head and body:
        raise VitkitError(json.loads(body)["error"])
    if status >= 400:
        raise VitkitError(f"status {status}: {body[:100]!r}")
    if body.startswith(b'{"model"'):
        given = json.loads(body)
        assert "predictions" in given or all(isfinite(sum(row)) for row in given["weights"])
        for prediction in given.get("predictions", ()):
            assert "error" in prediction or isfinite(sum(prediction["probabilities"]))


REQUESTS = (Subject("requests", _requests, _ask, replaced=False, alone=True),)
