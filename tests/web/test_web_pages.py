"""Pages: their addresses, their files, and a server that answers however many connections say nothing."""

import asyncio
import http.client
import socket
import threading
import time

import pytest

from vitkit.cli.entry import main
from vitkit.system.errors import BadSettings
from vitkit.web import Guard, connections, page_routes, page_socket, pages

pytest.importorskip("starlette")
uvicorn = pytest.importorskip("uvicorn")
HALF = b"POST /s3cret/post HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture
def address(monkeypatch):
    """The address of a page behind the secret s3cret, whose server takes eight connections."""
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import PlainTextResponse
    from starlette.routing import Route

    async def post(request: Request):
        return PlainTextResponse(f"{len(await request.body())}")

    routes = [Route("/post", post, methods=["GET", "POST"]), *page_routes("vitkit.apps.label")]
    monkeypatch.setattr(connections, "SILENT", 0.1)
    monkeypatch.setattr(connections, "UNREAD", 0.0)
    monkeypatch.setattr(connections, "LOOK", 0.02)
    monkeypatch.setattr(connections, "most_connections", lambda: 8)
    monkeypatch.setattr(pages, "SECONDS", 0.1)
    app = Guard(Starlette(routes=routes), "127.0.0.1", secret="s3cret")
    server = uvicorn.Server(connections.config_of(app, log_level="critical"))
    bound = connections.Listener(socket.create_server(("127.0.0.1", 0)))
    serving = threading.Thread(
        target=lambda: asyncio.run(pages._serve_and_watch(server, bound)), daemon=True
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


def ask(address, path="/s3cret/post", body=b""):
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


def test_without_the_secret_nothing_is_answered(address):
    status, content = ask(address, "/", b"x" * 100_000)
    assert status == 404 and b"the whole address" in content


def test_a_page_has_its_files_and_is_shown_within_no_other(address):
    connection = http.client.HTTPConnection(*address, timeout=10)
    for path, kind in (
        ("/s3cret/", "text/html"),
        ("/s3cret/page.css", "text/css"),
        ("/s3cret/page.js", "text/javascript"),
    ):
        connection.request("GET", path)
        answer = connection.getresponse()
        assert answer.status == 200 and answer.headers["content-type"].startswith(kind)
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
        assert answer.read()
    connection.request("GET", "/s3cret")  # from where the page would not find its style
    answer = connection.getresponse()
    assert (answer.status, answer.headers["location"]) == (307, "/s3cret/")
    connection.close()


def test_a_port_that_is_taken_is_not_the_end():
    first = page_socket("127.0.0.1", 17860)
    second = page_socket("127.0.0.1", first.getsockname()[1])
    try:
        assert second.getsockname()[1] > first.getsockname()[1]
    finally:
        first.close()
        second.close()
    with pytest.raises(BadSettings, match="not an address"):
        page_socket("no such host.", 17860)
    with pytest.raises(BadSettings, match="choose others with `host` and `port`"):
        page_socket("192.0.2.1", 17860)
    with pytest.raises(BadSettings, match="`port` is 0; it must be a number"):
        page_socket("127.0.0.1", 0)


@pytest.mark.parametrize("words", [("app", "nothing"), ("label", "."), ("serve", "nothing")])
def test_without_its_packages_there_is_a_sentence(words, monkeypatch, capsys):
    monkeypatch.setattr(pages, "find_spec", lambda name: None)
    assert main([*words]) == 1
    assert "pip install 'vitkit[serve]'" in capsys.readouterr().err


@pytest.mark.parametrize("screen", ["", ":0"])
def test_a_browser_is_opened_only_on_a_screen(screen, monkeypatch):
    """In a terminal without one, a browser of the terminal would take the terminal."""
    opened = []
    monkeypatch.setattr(pages.webbrowser, "open", lambda address: opened.append(address) or True)
    monkeypatch.setattr(pages.sys, "platform", "linux")
    monkeypatch.setenv("DISPLAY", screen)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    assert pages.open_browser("http://127.0.0.1/") == bool(screen)
    assert len(opened) == bool(screen)
