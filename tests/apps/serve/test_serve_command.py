"""`vitkit serve` as processes: signals, several workers, and what cannot be."""

import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import pytest
from margins import at_most
from pictures import encoded, photograph
from processes import Forked
from served import PATIENCE, ask, make_classifier

from vitkit.cli.entry import main
from vitkit.weights import save

DATA = encoded(photograph(40, 50))
JPEG = {"Content-Type": "image/jpeg"}


VITKIT = ("-m", "vitkit")
# vitkit, whose decoders hang as a broken library's may
HANGING = """
import sys, time
from vitkit.cli import main
from vitkit.apps.serve import batching
batching._wanted = lambda runtime, image, asked: time.sleep(600)
sys.exit(main(sys.argv[1:]))
"""


@contextmanager
def serving(model, *words, program=VITKIT, start=Forked, preexec_fn=None):
    """A process that serves a model: the process, and its port."""
    command = [sys.executable, *program, "serve", str(model), "--port", "0", "--device", "cpu"]
    process = start(
        [*command, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=preexec_fn,
    )
    log = []
    reading = threading.Thread(target=lambda: log.extend(process.stderr), daemon=True)
    reading.start()
    process.log = log
    process.reading = reading
    try:
        line = process.stdout.readline()
        port = re.search(r"http://127.0.0.1:(\d+)", line)
        assert port, (line, log)
        yield process, int(port[1])
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
        reading.join()
        process.stderr.close()


def events(process, name):
    """The lines of the log of one event."""
    lines = [json.loads(line) for line in process.log if line.startswith("{")]
    return [line for line in lines if line["event"] == name]


class Clients:
    """Threads that ask again and again; `answers` grows until the server refuses connections."""

    def __init__(self, port, count=6):
        self.port = port
        self.answers = []
        self.problems = []
        self.stopped = False
        self.threads = [threading.Thread(target=self.ask_on, args=[i]) for i in range(count)]
        for thread in self.threads:
            thread.start()

    def ask_on(self, number):
        """Half of them keep their connection, as long as the server does."""
        connection = None
        while not self.stopped:
            if connection is None:
                connection = HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
                try:
                    connection.connect()
                except ConnectionRefusedError:
                    return
            try:
                answer = ask(connection, "POST", "/predict", DATA, JPEG)
            except OSError as error:
                self.problems.append(repr(error))
                return
            self.answers.append(answer)
            if number % 2 or answer.headers.get("connection") == "close":
                connection.close()
                connection = None
        if connection is not None:
            connection.close()

    def wait_for(self, count):
        """Wait until there are so many more answers."""
        until = time.monotonic() + PATIENCE
        target = len(self.answers) + count
        while len(self.answers) < target:
            assert time.monotonic() < until, self.problems
            time.sleep(0.01)

    def end(self):
        self.stopped = True
        for thread in self.threads:
            thread.join(PATIENCE)
        assert not self.problems
        return self.answers


def wait_for(condition):
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.mark.slow
def test_signals_under_load_lose_nothing(tmp_path):
    save(make_classifier(), tmp_path / "model")
    with serving(tmp_path / "model") as (process, port):
        clients = Clients(port)
        clients.wait_for(20)

        # Another model
        save(make_classifier(seed=5), tmp_path / "model")
        process.send_signal(signal.SIGHUP)
        wait_for(lambda: events(process, "model replaced"))
        clients.wait_for(20)

        # Its end
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
        answers = clients.end()
    process.reading.join()
    assert {answer.status for answer in answers} == {200}
    labels = {tuple(answer.predictions[0]["labels"]) for answer in answers}
    assert len(labels) == 2
    (ended,) = events(process, "ended")
    assert ended["images"] == 0
    assert len(events(process, "request")) == len(answers)


def few_descriptors():
    """Of a process that begins."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))


@pytest.mark.slow
def test_more_connections_than_descriptors_hinder_no_other_model(tmp_path):
    """They wait, and a model is opened meanwhile; when they go, others are answered."""
    save(make_classifier(), tmp_path / "model")
    with serving(tmp_path / "model", start=subprocess.Popen, preexec_fn=few_descriptors) as (
        process,
        port,
    ):
        silent = []
        for _ in range(200):
            connection = socket.socket()
            connection.setblocking(False)
            connection.connect_ex(("127.0.0.1", port))
            silent.append(connection)
        wait_for(lambda: events(process, "connections wait"))

        save(make_classifier(seed=5), tmp_path / "model")
        process.send_signal(signal.SIGHUP)
        wait_for(lambda: events(process, "model replaced") or events(process, "model kept"))
        assert not events(process, "model kept")
        for connection in silent:
            connection.close()
        with closing(HTTPConnection("127.0.0.1", port, timeout=PATIENCE)) as connection:
            assert ask(connection, "POST", "/predict", DATA, JPEG).status == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
    process.reading.join()
    assert not [line for line in process.log if not line.startswith("{")]


@pytest.mark.slow
def test_a_decoder_that_hangs_does_not_outlast_the_grace(tmp_path):
    save(make_classifier(), tmp_path / "model")
    words = ("--seconds", "0.3", "--grace", "0.5")
    with serving(tmp_path / "model", *words, program=("-c", HANGING)) as (process, port):
        with closing(HTTPConnection("127.0.0.1", port, timeout=PATIENCE)) as connection:
            assert ask(connection, "POST", "/predict", DATA, JPEG).status == 503
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 1
    process.reading.join()
    (unfinished,) = events(process, "ended unfinished")
    assert unfinished["images"] == 1


@pytest.mark.slow
def test_several_workers_are_one_server(tmp_path):
    save(make_classifier(), tmp_path / "model")
    with serving(tmp_path / "model", "--workers", "2") as (process, port):
        clients = Clients(port)
        clients.wait_for(50)
        save(make_classifier(seed=5), tmp_path / "model")
        process.send_signal(signal.SIGHUP)
        wait_for(lambda: len(events(process, "model replaced")) == 2)
        clients.wait_for(50)

        # Both count together
        with closing(HTTPConnection("127.0.0.1", port, timeout=PATIENCE)) as connection:
            page = ask(connection, "GET", "/metrics").body.decode()
        counted = re.search(r'vitkit_requests_total{path="/predict",status="200"} (\d+)', page)
        assert int(counted[1]) >= 100

        # Its end
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
        answers = clients.end()
    process.reading.join()
    assert {answer.status for answer in answers} == {200}
    assert len({tuple(answer.predictions[0]["labels"]) for answer in answers}) == 2
    assert len(events(process, "ended")) == 2


def ask_until(ended: threading.Event, port: int) -> int:
    """Ask, each request again until it has its answer, as docs/serving.md says; counts the answers."""
    answered = 0
    while not ended.is_set():
        with (
            suppress(OSError, HTTPException),
            closing(HTTPConnection("127.0.0.1", port, timeout=PATIENCE)) as connection,
        ):
            answer = ask(connection, "POST", "/predict", DATA, JPEG)
            assert answer.status == 200 and len(answer.predictions) == 1  # whole, or none
            answered += 1
        time.sleep(0.02)  # a worker starts meanwhile, and needs the time
    return answered


@pytest.mark.slow
def test_a_worker_that_is_killed_is_started_again(tmp_path):
    save(make_classifier(), tmp_path / "model")
    with serving(tmp_path / "model", "--workers", "2") as (process, port):
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        is_worker = {
            pid: b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes() for pid in children
        }
        workers = [int(pid) for pid in children if is_worker[pid]]
        assert len(workers) == 2
        with ThreadPoolExecutor() as clients:  # who ask again if their worker is gone
            ended = threading.Event()
            asking = [clients.submit(ask_until, ended, port) for _ in range(4)]
            time.sleep(1)
            os.kill(workers[0], signal.SIGKILL)
            wait_for(lambda: len(events(process, "ready")) == 3)
            ended.set()
            assert all(each.result() > 10 for each in asking)
        (died,) = events(process, "worker died")
        assert died["status"] == -signal.SIGKILL
        with closing(HTTPConnection("127.0.0.1", port, timeout=PATIENCE)) as connection:
            assert ask(connection, "POST", "/predict", DATA, JPEG).status == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0


@pytest.mark.slow
def test_memory_stays_as_it_is(tmp_path):
    save(make_classifier(), tmp_path / "model")
    with serving(tmp_path / "model", start=subprocess.Popen) as (_, port):
        sizes = []
        for _ in range(6):
            clients = Clients(port)
            clients.wait_for(400)
            clients.end()
            with closing(HTTPConnection("127.0.0.1", port, timeout=PATIENCE)) as connection:
                page = ask(connection, "GET", "/metrics").body.decode()
            sizes.append(float(re.search(r"^process_resident_memory_bytes (.*)", page, re.M)[1]))
        at_most(sizes[-1] - sizes[1], 8 << 20)


def said(capsys, *words):
    """What `vitkit serve` says before it loads anything."""
    assert main(["serve", *words]) == 1
    return capsys.readouterr().err


def test_what_cannot_be_is_one_sentence(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("vitkit.apps.serve.http.server.prepare_process", lambda: None)  # for good
    model = str(tmp_path / "model.onnx")
    assert "there is no file" in said(capsys, model, "--port", "0")
    assert "--batch is 0" in said(capsys, model, "--batch", "0")
    assert "could never be accepted" in said(capsys, model, "--queue", "3")
    assert "--delay is -1" in said(capsys, model, "--delay", "-1")
    assert "--grace is inf" in said(capsys, model, "--grace", "inf")
    never_sent = ["example.org", "https://example.org/", "https://", "ftp://example.org"]
    never_sent += ["https://Example.org", "https://example.org:443"]
    for origin in never_sent:
        assert "browsers send a scheme" in said(capsys, model, "--allow-origin", origin)
    for name in ("https://example.org", "example.org:80", "a/b", ""):
        assert "the name of a host without" in said(capsys, model, "--allow-host", name)
    assert "largest bytes" in said(capsys, model, "--most-bytes", "0")
    assert "a minute for every other number" in said(
        capsys, model, "--port", "0", "--runtime", "compiled"
    )
    assert "is not an address" in said(capsys, model, "--host", "no where")
    monkeypatch.setenv("VITKIT_TOKEN", " ")
    assert "VITKIT_TOKEN holds no token" in said(capsys, model)
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        monkeypatch.delenv("VITKIT_TOKEN")
        port = taken.getsockname()[1]
        assert "cannot be served at" in said(capsys, model, "--port", str(port))
