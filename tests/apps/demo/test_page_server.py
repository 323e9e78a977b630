"""The server of a page: it answers however many connections say nothing."""

import asyncio
import http.client
import socket
import threading
import time

import pytest

from vitkit.apps.demo import server as page_server
from vitkit.web import Guard, connections

pytest.importorskip("starlette")
uvicorn = pytest.importorskip("uvicorn")
HALF = b"POST /s3cret/ HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture
def address(monkeypatch):
    """The address of a page behind the secret s3cret, whose server takes eight connections."""
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import PlainTextResponse, StreamingResponse
    from starlette.routing import Route

    async def lasting():
        for _ in range(4):
            await asyncio.sleep(0.1)
            yield b"event\n"

    def events(request: Request):
        return StreamingResponse(lasting())

    async def post(request: Request):
        return PlainTextResponse(f"{len(await request.body())}")

    routes = [
        Route("/s3cret/", post, methods=["GET", "POST"]),
        Route("/s3cret/events", events),
    ]
    monkeypatch.setattr(connections, "SILENT", 0.1)
    monkeypatch.setattr(connections, "UNREAD", 0.0)
    monkeypatch.setattr(connections, "LOOK", 0.02)
    monkeypatch.setattr(connections, "most_connections", lambda: 8)
    monkeypatch.setattr(page_server, "SECONDS", 0.1)
    app = Guard(Starlette(routes=routes), "127.0.0.1", secret="s3cret")
    server = uvicorn.Server(connections.config_of(app, log_level="critical"))
    bound = connections.Listener(socket.create_server(("127.0.0.1", 0)))
    serving = threading.Thread(
        target=lambda: asyncio.run(page_server._serve_and_watch(server, bound)), daemon=True
    )
    address = bound.getsockname()
    serving.start()
    while not server.started:
        time.sleep(0.01)
    yield address
    server.should_exit = True
    server.force_exit = True
    serving.join(5)
    assert not serving.is_alive()


def ask(address, path="/s3cret/", body=b""):
    connection = http.client.HTTPConnection(*address, timeout=10)
    connection.request("POST" if body else "GET", path, body)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, content


@pytest.mark.parametrize("half", [b"", HALF[:20], HALF + b"Content-Length: 9\r\n\r\nabc"])
def test_half_requests_keep_nobody_out(half, address):
    """More of them than the server takes connections: heads, bodies, and nothing at all."""
    silent = []
    for _ in range(20):
        silent.append(socket.create_connection(address, 10))
        silent[-1].sendall(half)
    assert ask(address, body=b"12345") == (200, b"5")
    for connection in silent:
        assert connection.recv(999) == b""  # closed
        connection.close()


def test_an_answer_may_last(address):
    """A page listens to events for as long as it is open."""
    assert ask(address, "/s3cret/events") == (200, b"event\n" * 4)


def test_without_the_secret_nothing_is_answered(address):
    status, content = ask(address, "/", b"x" * 100_000)
    assert status == 404 and b"the whole address" in content
