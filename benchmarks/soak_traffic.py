"""The clients of soak.py: honest ones, who know the right answers, and hostile ones.

This is no benchmark of its own.
"""

import base64
import json
import random
import socket
import struct
import threading
import time
import zlib
from collections import Counter
from contextlib import closing, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException

PATIENCE = 60.0  # seconds that a client waits for anything
DYING = 1.0  # seconds after a worker was killed in which its sockets may still be open
SETTLED = 60.0  # seconds after which every answer is the new model's
TOLERANCE = 1e-3  # of probabilities: batches differ in their last bits
MOST_IMAGES = 4  # of an honest request
BOUNDARY = "7MA4YWxk"
IDLE = 600  # connections that say nothing, at once: more than the server has descriptors for
SILENT_FOR = 8.0  # seconds that they stay


@dataclass
class Stage:
    """What the clients know of the server, and what they found out."""

    port: int
    files: list[bytes]
    expected: list[list[dict[str, float]]]
    """Of each model, each image's probability of each class."""
    pause: float
    """Seconds that an honest client waits between two requests, on average."""
    current: int = 0
    """The model that is served."""
    swapped: float = 0.0
    """When it was last told to take another."""
    slowest_swap: float = 0.0
    """Seconds after which the model before still answered a request that came then."""
    kills: list[float] = field(default_factory=list)
    counts: Counter = field(default_factory=Counter)
    """Of the honest requests, by what became of them."""
    hostile: dict[str, Counter] = field(default_factory=dict)
    """Of each kind, by status, or "closed" for a connection without an answer."""
    problems: list[str] = field(default_factory=list)
    """Sentences on what must not be."""
    latencies: list[float] = field(default_factory=list)
    """Seconds of the honest requests, until the whole answer is there."""
    over: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, outcome: str, number: int = 1) -> None:
        """So many more had this outcome."""
        with self.lock:
            self.counts[outcome] += number

    def complain(self, outcome: str, sentence: str) -> None:
        """Something that must not be."""
        self.count(outcome)
        with self.lock:
            self.problems.append(f"{outcome}: {sentence}"[:500])

    def killed_between(self, began: float, ended: float) -> bool:
        """Whether a worker was killed in this time, or was dying when it began: the system takes a moment
        to close its sockets, and until then they take connections."""
        return any(began - DYING <= moment <= ended for moment in self.kills)


# Honest clients


def ask_honestly(stage: Stage, seed: int) -> None:
    """Ask until it is over, with pauses, some requests on each connection. Every request is asked
    until it is answered, and every answer is compared."""
    draws = random.Random(seed)
    connection = None
    used = 0.0  # when the connection last gave an answer: it may have died since
    while not stage.over.is_set():
        chosen = [draws.randrange(len(stage.files)) for _ in range(draws.randint(1, MOST_IMAGES))]
        body, kind = draws.choice((_raw, _form, _json))(stage, chosen)
        chosen = chosen[:1] if kind == "image/jpeg" else chosen
        asked = time.monotonic()
        while True:
            if connection is None:
                connection = HTTPConnection("127.0.0.1", stage.port, timeout=PATIENCE)
                used = time.monotonic()
            model, swapped, sent = stage.current, stage.swapped, time.monotonic()
            try:
                connection.request("POST", "/predict?top=3", body, {"Content-Type": kind})
                response = connection.getresponse()
                answer = response.read()
            except (OSError, HTTPException) as error:
                ended = time.monotonic()
                connection.close()
                connection = None
                if stage.killed_between(used, ended):
                    stage.count("in flight in a killed worker")
                else:
                    stage.complain("lost", f"{error!r} after {ended - sent:.1f} s")
                stage.over.wait(0.5)
                if stage.over.is_set():
                    break
                continue
            used = time.monotonic()
            if response.status == 503:
                stage.count("told to ask again")
                time.sleep(1)
                continue
            _judge(stage, chosen, response.status, answer, (model, swapped, sent))
            with stage.lock:
                stage.latencies.append(used - asked)
            break
        if connection is not None and draws.random() < 0.3:
            connection.close()
            connection = None
        stage.over.wait(draws.uniform(0, 2 * stage.pause))
    if connection is not None:
        connection.close()


def _judge(stage: Stage, chosen: list[int], status: int, answer: bytes, when: tuple) -> None:
    """Count an answer as right or wrong. `when`: the model at the moment of the request, when it
    was told to be it, and the moment."""
    if status != 200:
        stage.complain("wrong", f"status {status}: {answer[:200]!r}")
        return
    model, swapped, sent = when
    accepted = {model, stage.current}
    if sent - swapped < SETTLED or stage.swapped > sent:
        accepted = set(range(len(stage.expected)))
    predictions = json.loads(answer)["predictions"]
    for one in accepted:
        if len(predictions) == len(chosen) and all(
            _is_of(stage.expected[one][image], prediction)
            for image, prediction in zip(chosen, predictions, strict=True)
        ):
            if one != model and stage.swapped == swapped:
                stage.slowest_swap = max(stage.slowest_swap, sent - swapped)
            stage.count("answered")
            stage.count("images", len(chosen))
            return
    sentence = f"{str(predictions)[:200]} {sent - swapped:.1f} s after a swap to model {model}"
    stage.complain("wrong", sentence)


def _is_of(expected: dict[str, float], prediction: dict) -> bool:
    """Whether a prediction is what a model says of an image."""
    if "error" in prediction:
        return False
    given = dict(zip(prediction["labels"], prediction["probabilities"], strict=True))
    best = max(expected.values())
    if len(given) != 3 or abs(max(given.values()) - best) > TOLERANCE:
        return False
    return all(abs(expected.get(name, 2) - value) < TOLERANCE for name, value in given.items())


def _raw(stage: Stage, chosen: list[int]) -> tuple[bytes, str]:
    return stage.files[chosen[0]], "image/jpeg"


def _form(stage: Stage, chosen: list[int]) -> tuple[bytes, str]:
    body = b""
    for image in chosen:
        head = f'Content-Disposition: form-data; name="image"; filename="{image}.jpg"'
        body += f"--{BOUNDARY}\r\n{head}\r\n\r\n".encode() + stage.files[image] + b"\r\n"
    return body + f"--{BOUNDARY}--\r\n".encode(), f"multipart/form-data; boundary={BOUNDARY}"


def _json(stage: Stage, chosen: list[int]) -> tuple[bytes, str]:
    images = [base64.b64encode(stage.files[image]).decode() for image in chosen]
    return json.dumps({"images": images}).encode(), "application/json"


# Hostile clients


def attack(stage: Stage, seed: int) -> None:
    """One hostile request after the other, until it is over."""
    draws = random.Random(seed)
    open_ended: list[tuple[float, socket.socket]] = []  # that are left alone for a while
    while not stage.over.is_set():
        name, make = draws.choice(tuple(ATTACKS.items()))
        connection = None
        try:
            connection = socket.create_connection(("127.0.0.1", stage.port), PATIENCE)
            outcome = make(connection, stage, draws)
        except OSError as error:
            outcome = type(error).__name__
        with stage.lock:
            stage.hostile.setdefault(name, Counter())[outcome] += 1
        if outcome.startswith("5") and outcome != "503":
            stage.complain("failures", f"{name} was answered {outcome}")
        if connection is not None and outcome == "left alone":
            open_ended.append((time.monotonic(), connection))
        elif connection is not None:
            connection.close()
        while open_ended and time.monotonic() - open_ended[0][0] > 20:
            open_ended.pop(0)[1].close()
        stage.over.wait(draws.uniform(0, 4 * stage.pause))
    for _, connection in open_ended:
        connection.close()


def be_silent(stage: Stage) -> None:
    """Open more connections than the server has descriptors, say nothing, and go."""
    connections = []
    with suppress(OSError):
        for _ in range(IDLE):
            connection = socket.socket()
            connection.setblocking(False)
            connection.connect_ex(("127.0.0.1", stage.port))
            connections.append(connection)
    stage.over.wait(SILENT_FOR)
    for connection in connections:
        connection.close()


def _post(
    connection: socket.socket,
    body: bytes,
    kind: str,
    length: int | None = None,
    path: str = "/predict",
) -> str:
    """The status that a body gets."""
    if length is None:
        length = len(body)
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\n"
    head += f"Content-Length: {length}\r\nConnection: close\r\n\r\n"
    with suppress(OSError):  # it may have answered already
        connection.sendall(head.encode() + body)
    return _status(connection)


def _status(connection: socket.socket) -> str:
    """The status of an answer that is whole; "closed" without one."""
    answer = b""
    with suppress(OSError):
        while part := connection.recv(1 << 16):
            answer += part
            if len(answer) > 1 << 20:
                break
    words = answer[:20].split()
    if len(words) < 2:
        return "closed"
    return words[1].decode("latin-1")


def _damaged(connection: socket.socket, stage: Stage, draws: random.Random) -> str:
    data = bytearray(draws.choice(stage.files))
    for _ in range(draws.randint(1, 8)):
        data[draws.randrange(len(data))] = draws.randrange(256)
    return _post(connection, bytes(data[: draws.randrange(len(data))]), "image/jpeg")


def _huge(connection: socket.socket, stage: Stage, draws: random.Random) -> str:
    """A few bytes that claim to be 3.6 gigapixels."""
    header = b"IHDR" + struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    checksum = struct.pack(">I", zlib.crc32(header))
    png = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", len(header) - 4) + header + checksum
    return _post(connection, png, "image/png")


def _wrong_json(connection: socket.socket, stage: Stage, draws: random.Random) -> str:
    bodies = (
        b"{",
        b"[" * 100_000,
        b'{"images": [' + b"{}," * 5_000 + b"{}]}",
        b'{"images": [1e999, NaN, null]}',
        b'{"images": {"a": "b"}}',
        b'{"images": ["\\ud800"]}',
        b'{"image": ' + b"9" * 100_000 + b"}",
        b'{"images": ["' + base64.b64encode(b"no image") + b'"]}',
    )
    return _post(connection, draws.choice(bodies), "application/json")


def _wrong_form(connection: socket.socket, stage: Stage, draws: random.Random) -> str:
    body, kind = _form(stage, [0, 1])
    body = body[: draws.randrange(len(body))]
    return _post(connection, body, draws.choice((kind, "multipart/form-data", kind + "x")))


def _breaks_off(connection: socket.socket, stage: Stage, draws: random.Random) -> str:
    """Sends a part of what it announced, and goes."""
    body = draws.choice(stage.files)
    head = f"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    with suppress(OSError):
        connection.sendall(head.encode() + body[: draws.randrange(len(body))])
    return "left"


def _goes_away(connection: socket.socket, stage: Stage, draws: random.Random) -> str:
    """Asks, and does not wait for the answer."""
    body, kind = _form(stage, [draws.randrange(len(stage.files)) for _ in range(8)])
    head = f"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\n"
    head += f"Content-Length: {len(body)}\r\n\r\n"
    with suppress(OSError):
        connection.sendall(head.encode() + body)
    return "left"


def _half_a_head(connection: socket.socket, stage: Stage, draws: random.Random) -> str:
    connection.sendall(b"POST /predict HTTP/1.1\r\nHost: ")
    return "left alone"


def _no_http(connection: socket.socket, stage: Stage, draws: random.Random) -> str:
    with suppress(OSError):
        connection.sendall(draws.randbytes(2000) + b"\r\n\r\n")
        connection.shutdown(socket.SHUT_WR)
    return _status(connection)


def _giant(connection: socket.socket, stage: Stage, draws: random.Random) -> str:
    """Announces more than is taken, sends some of it, and reads the refusal."""
    return _post(connection, bytes(1 << 16), "image/jpeg", length=1 << 40)


def _no_map(connection: socket.socket, stage: Stage, draws: random.Random) -> str:
    """Wants to see what an exported model looks at, which it cannot show."""
    return _post(connection, draws.choice(stage.files), "image/jpeg", path="/attention")


ATTACKS = {
    "damaged image": _damaged,
    "huge image": _huge,
    "wrong JSON": _wrong_json,
    "wrong form": _wrong_form,
    "body that breaks off": _breaks_off,
    "client that goes away": _goes_away,
    "half a head": _half_a_head,
    "no HTTP": _no_http,
    "giant body": _giant,
    "no map": _no_map,
}


def metrics_of(port: int) -> tuple[float, int]:
    """Seconds and bytes of the page of metrics."""
    began = time.monotonic()
    with closing(HTTPConnection("127.0.0.1", port, timeout=PATIENCE)) as connection:
        connection.request("GET", "/metrics")
        page = connection.getresponse().read()
    return round(time.monotonic() - began, 3), len(page)
