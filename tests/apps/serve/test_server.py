"""What holds for the process of a server."""

import asyncio
import io
import signal
import socket
import warnings
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from pictures import encoded, photograph
from PIL import Image
from prometheus_client.values import MultiProcessValue

from vitkit.apps.serve.batching import Room
from vitkit.apps.serve.http.body import let_finish
from vitkit.apps.serve.http.server import prepare_process
from vitkit.apps.serve.http.telemetry import SHARED, Metrics, Watch
from vitkit.apps.serve.http.workers import Workers
from vitkit.data.images.pillow import as_bad_image

GIANT = encoded(photograph(40, 50), "PNG")


def test_a_servers_limit_of_pixels_holds_in_all_its_threads(monkeypatch):
    """Pillow's limit is one variable of the process. Threads that decode set it and restore it, so what
    one of them restores has to be the server's limit, and not Pillow's."""
    monkeypatch.setenv("VITKIT_MAX_PIXELS", "1000")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", Image.MAX_IMAGE_PIXELS)  # put back at the end
    monkeypatch.setattr("vitkit.apps.serve.http.server.start_logs", lambda: None)
    with warnings.catch_warnings(), ThreadPoolExecutor(1) as pool:
        prepare_process()
        first, second = as_bad_image("a"), as_bad_image("b")
        for step in (first.__enter__, second.__enter__):
            step()
            with pytest.raises(Image.DecompressionBombError):
                pool.submit(Image.open, io.BytesIO(GIANT)).result()
        for block in (first, second):
            block.__exit__(None, None, None)
            with pytest.raises(Image.DecompressionBombError):
                pool.submit(Image.open, io.BytesIO(GIANT)).result()
        assert Image.MAX_IMAGE_PIXELS == 500  # Pillow refuses from twice as many on


def test_the_metrics_add_up_those_of_all_processes(tmp_path, monkeypatch):
    """Each process counts in files of its own, in a folder that they share."""
    metrics = Metrics(Room(4, 1 << 20))
    metrics.requests.labels("/predict", "200").inc()
    monkeypatch.setenv(SHARED, str(tmp_path))
    for process, count in ((1, 2), (2, 3)):
        counter = MultiProcessValue(lambda process=process: process)(
            "counter",
            "vitkit_requests",
            "vitkit_requests_total",
            ["path", "status"],
            ["/predict", "200"],
            "Requests, by status.",
        )
        counter.inc(count)
    page, _ = metrics.page()
    assert 'vitkit_requests_total{path="/predict",status="200"} 5.0' in page.decode()


@pytest.mark.parametrize("draining", [False, True])
def test_connections_are_closed_with_the_answer_only_when_the_server_is_about_to_end(draining):
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})

    sent = []

    async def send(message):
        sent.append(message)

    watch = Watch(app, Metrics(Room(1, 1)), frozenset())
    watch.draining = draining
    scope = {"type": "http", "method": "GET", "path": "/", "headers": [(b"x-request-id", b"a-7")]}
    asyncio.run(watch(scope, None, send))
    headers = [(b"x-request-id", b"a-7")]
    if draining:
        headers.append((b"connection", b"close"))
    assert sent[0]["headers"] == headers


def test_several_processes_get_the_signals_and_leave_them_as_they_were():
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    with socket.socket() as bound:
        workers = Workers(None, bound, 2)
        with workers._signals():
            signal.raise_signal(signal.SIGHUP)
            assert not workers.stopping
            signal.raise_signal(signal.SIGTERM)
            assert workers.stopping and bound.fileno() == -1
    assert [signal.getsignal(number) for number in numbers] == before


def test_of_a_refused_request_all_is_taken_unless_its_client_waits_to_be_asked():
    async def stream():
        read.append(True)
        yield b"x" * 10

    for headers, is_taken in (({}, True), ({"expect": "100-continue"}, False)):
        read = []
        request = SimpleNamespace(headers=headers, stream=stream)
        assert asyncio.run(let_finish(request)) is is_taken
        assert read == [True] * is_taken
