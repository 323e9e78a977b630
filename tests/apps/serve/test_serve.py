"""A model behind HTTP: every request is answered once, with its own answer or with a sentence."""

import base64
import json
import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from pictures import encoded, photograph
from served import LABELS, ask, form, make_classifier, running, with_model

import vitkit
from vitkit.apps.serve.http import body as http_body
from vitkit.apps.serve.http.body import Limits
from vitkit.runtimes import eager
from vitkit.system.environment import MAX_PIXELS_VARIABLE
from vitkit.web import connections as http_connections

CLASSIFIER = make_classifier()
PHOTOGRAPHS = [encoded(photograph(40, 30 + i, i)) for i in range(12)]


def expected(data, classifier=CLASSIFIER, top=5):
    """What `predict` says of an image's bytes."""
    (prediction,) = vitkit.prediction.predict_items(
        classifier, data, top=top, device="cpu", workers=0
    )
    return prediction


def assert_same(answer, data, classifier=CLASSIFIER, top=5):
    """An answer is what `predict` says; batches differ in their last bits."""
    right = expected(data, classifier, top)
    assert tuple(answer["labels"]) == right.labels
    np.testing.assert_allclose(answer["probabilities"], right.probabilities, atol=1e-5)


@pytest.fixture(scope="module")
def server():
    with running(CLASSIFIER) as server:
        yield server


# Answers


def test_an_image_as_it_is(server):
    (answer,) = server.post(PHOTOGRAPHS[0]).predictions
    assert_same(answer, PHOTOGRAPHS[0])
    assert set(answer) == {"name", "labels", "probabilities"}
    model = server.post(PHOTOGRAPHS[0]).json["model"]
    assert set(model) == {"name", "loaded"} and model["name"] == "tiny"
    (answer,) = server.post(PHOTOGRAPHS[1], "application/octet-stream", "?top=2").predictions
    assert_same(answer, PHOTOGRAPHS[1], top=2)


def test_the_files_of_a_form_with_their_names(server):
    files = {f"{i}.jpg": data for i, data in enumerate(PHOTOGRAPHS)}
    answers = server.post(*form(files)).predictions
    assert [answer["name"] for answer in answers] == list(files)
    for answer, data in zip(answers, PHOTOGRAPHS, strict=True):
        assert_same(answer, data)


def test_base64_in_json(server):
    first, second, third = (base64.b64encode(data).decode() for data in PHOTOGRAPHS[:3])
    images = [first, {"name": "b.jpg", "data": second}, f"data:image/jpeg;base64,{third}"]
    answers = server.post(json.dumps({"images": images}), "application/json").predictions
    assert [answer["name"] for answer in answers] == ["image 0", "b.jpg", "image 2"]
    for answer, data in zip(answers, PHOTOGRAPHS, strict=False):
        assert_same(answer, data)
    answers = server.post(json.dumps({"image": first}), "application/json").predictions
    assert_same(answers[0], PHOTOGRAPHS[0])


def test_a_broken_image_among_others_has_its_error_in_its_place(server):
    answers = server.post(*form({"a": PHOTOGRAPHS[0], "b": b"no", "c": PHOTOGRAPHS[1]})).predictions
    assert_same(answers[0], PHOTOGRAPHS[0])
    assert_same(answers[2], PHOTOGRAPHS[1])
    assert answers[1]["name"] == "b" and "not an image" in answers[1]["error"]


def test_many_clients_at_once_get_their_own_answers(server):
    def ask_often(number):
        with server.connect() as connection:  # several requests on one connection
            answers = []
            for i in range(4):
                data = PHOTOGRAPHS[(number + i) % len(PHOTOGRAPHS)]
                kind = {"Content-Type": "image/jpeg"}
                answers.append((data, ask(connection, "POST", "/predict", data, kind)))
            return answers

    with ThreadPoolExecutor(8) as clients:
        for answers in clients.map(ask_often, range(len(PHOTOGRAPHS))):
            for data, answer in answers:
                assert_same(answer.predictions[0], data)


def test_what_is_served_and_how_it_is(server):
    model = server.ask("GET", "/model").json
    assert (model["name"], tuple(model["labels"]), model["activation"]) == (
        "tiny",
        LABELS,
        "softmax",
    )
    assert model["preprocessing"] == CLASSIFIER.preprocessing.to_json()
    assert server.ask("GET", "/health").json == {"status": "well"}
    assert server.ask("GET", "/ready").json == {"status": "ready"}
    page = server.ask("GET", "/openapi.json").json
    assert {"/predict", "/attention", "/model", "/health", "/ready", "/metrics"} <= set(
        page["paths"]
    )
    assert "multipart/form-data" in page["paths"]["/predict"]["post"]["requestBody"]["content"]
    assert server.ask("GET", "/docs").status == 200


def test_every_path_is_counted_by_its_name(server):
    """Those that the OpenAPI page describes, itself, and the page that draws it."""
    paths = server.ask("GET", "/openapi.json").json["paths"].keys()
    page = {"/", "/page.css", "/page.js", "/masks.js"}
    assert server.server.watch.paths == paths | page | {"/docs", "/openapi.json"}


def test_metrics_count_every_request_and_image():
    with running() as server:
        server.post(*form({"a": PHOTOGRAPHS[0], "b": b"no"}))
        server.post(b"no")
        server.ask("GET", "/nothing-here")
        ends = time.monotonic() + 20
        metrics = ""
        while 'vitkit_held{what="images"} 0.0' not in metrics and time.monotonic() < ends:
            metrics = server.ask("GET", "/metrics").body.decode()  # given back after the answer
    for line in (
        'vitkit_requests_total{path="/predict",status="200"} 1.0',
        'vitkit_requests_total{path="/predict",status="422"} 1.0',
        'vitkit_requests_total{path="other",status="404"} 1.0',
        'vitkit_images_total{outcome="answered"} 1.0',
        'vitkit_images_total{outcome="unreadable"} 2.0',
        'vitkit_held{what="images"} 0.0',
        "vitkit_batch_images_count 1.0",
        'vitkit_request_seconds_count{path="/predict"} 2.0',
    ):
        assert line in metrics
    assert "process_resident_memory_bytes" in metrics


def test_what_is_held_is_told_at_once(server):
    """Another process may be the next that is asked, and reads what this one has told."""
    registry = server.server.service.metrics.registry

    def held():
        kinds = ("images", "bytes")
        return [registry.get_sample_value("vitkit_held", {"what": kind}) for kind in kinds]

    assert server.room.take(1, 100) and server.room.take(2, 150)
    assert held() == [3, 250]
    server.room.give_back(2, 150)
    assert held() == [1, 100]
    server.room.give_back(1, 100)
    assert held() == [0, 0]


# What is refused


def bomb():
    """A PNG whose head claims more pixels than anybody decodes."""
    data = bytearray(encoded(photograph(8, 8), "PNG"))
    data[16:24] = struct.pack(">II", 60_000, 60_000)
    return bytes(data)


@pytest.mark.parametrize(
    ("body", "kind", "status", "sentence"),
    [
        (b"", "image/jpeg", 422, "empty"),
        (b"hello", "image/jpeg", 422, "not an image"),
        (np.random.default_rng(0).bytes(5000), "image/png", 422, "not an image"),
        (PHOTOGRAPHS[0][:300], "image/jpeg", 422, "image 0"),
        (bomb(), "image/png", 422, "60000 x 60000|damaged|decoded"),
        (b"hello", "text/plain", 415, "text/plain"),
        (b"hello", "", 415, "no content type"),
        (b"hello", "multipart/form-data", 400, "no boundary"),
        (b"hello", "multipart/form-data; boundary=x", 400, "damaged"),
        (form({"a": PHOTOGRAPHS[0]})[0][:-9], form({})[1], 400, "breaks off"),
        (*form({}), 400, "no image|damaged"),
        (b"{", "application/json", 400, "no JSON"),
        (b"[" * 1_000, "application/json", 400, "no JSON"),
        (b"[]", "application/json", 400, "no images"),
        (b'{"images": "x"}', "application/json", 400, "no images"),
        (b'{"images": []}', "application/json", 400, "no image"),
        (b'{"images": [7]}', "application/json", 400, "image 0 is not base64"),
        (b'{"images": ["?"]}', "application/json", 400, "image 0 is not base64"),
    ],
)  # fmt: skip
def test_wrong_requests_get_a_sentence(server, body, kind, status, sentence):
    answer = server.post(body, kind)
    assert answer.status == status
    assert any(part in answer.error for part in sentence.split("|")), answer.error
    assert answer.error.count("\n") == 0
    assert server.post(PHOTOGRAPHS[0]).status == 200


def test_wrong_paths_methods_and_numbers_get_a_sentence(server):
    assert "there is no /nothing here" in server.ask("GET", "/nothing").error
    assert server.ask("GET", "/predict").status == 405
    answer = server.post(PHOTOGRAPHS[0], query="?top=many")
    assert answer.status == 422 and "top is 'many'" in answer.error
    assert server.post(PHOTOGRAPHS[0], query="?top=0").status == 422


def test_an_image_beyond_the_pixels_that_are_taken(server, monkeypatch):
    monkeypatch.setenv(MAX_PIXELS_VARIABLE, "1000")
    answer = server.post(PHOTOGRAPHS[0])
    assert answer.status == 422 and "1000 pixels" in answer.error


def test_requests_beyond_the_limits():
    limits = Limits(size=20_000, images=2)
    with running(limits=limits) as server:
        too_large = bytes(30_000)
        answer = server.post(too_large)
        assert answer.status == 413 and "larger than 20,000 bytes" in answer.error
        chunks = iter([too_large[:15_000], too_large[15_000:]])  # its length is not announced
        assert server.post(chunks).status == 413
        three = form({str(i): PHOTOGRAPHS[i] for i in range(3)})
        answer = server.post(*three)
        assert answer.status == 413 and "more than 2 images" in answer.error
        one = base64.b64encode(PHOTOGRAPHS[0]).decode()
        answer = server.post(json.dumps({"images": [one] * 3}), "application/json")
        assert answer.status == 413
        assert server.post(PHOTOGRAPHS[0]).status == 200


def test_a_token(server):
    page = server.ask("GET", "/openapi.json").json
    assert "securitySchemes" not in page.get("components", {})
    with running(token="open sésame") as server:
        right = {"Authorization": "Bearer open sésame".encode()}
        assert server.post(PHOTOGRAPHS[0], headers=right).status == 200
        for wrong in ({}, {"Authorization": "Bearer open"}, {"Authorization": "Basic open sesame"}):
            for answer in (
                server.post(PHOTOGRAPHS[0], headers=wrong),
                server.ask("GET", "/model", headers=wrong),
                server.ask("GET", "/metrics", headers=wrong),
            ):
                assert answer.status == 401 and "Bearer TOKEN" in answer.error
                assert answer.headers["www-authenticate"] == "Bearer"
        assert server.ask("GET", "/health").status == 200
        assert server.ask("GET", "/ready").status == 200

        # What needs it is said to need it
        page = server.ask("GET", "/openapi.json").json
        ((name, scheme),) = page["components"]["securitySchemes"].items()
        assert (scheme["type"], scheme["scheme"]) == ("http", "bearer")
        needing = set()
        for path, methods in page["paths"].items():
            for method, operation in methods.items():
                if operation.get("security") == [{name: []}]:
                    needing.add((method, path))
        asking = {("post", "/predict"), ("post", "/segment"), ("post", "/attention")}
        assert needing == asking | {("get", "/model"), ("get", "/metrics")}


def test_pages_of_other_origins_ask_if_they_may():
    origin = {"Origin": "https://example.org"}
    asking = {"Access-Control-Request-Method": "POST"}
    asking["Access-Control-Request-Headers"] = "authorization,content-type"
    with running(token="secret", origins=("https://example.org",)) as server:
        before = server.ask("OPTIONS", "/predict", headers=origin | asking)
        assert before.status == 200
        assert before.headers["access-control-allow-origin"] == "https://example.org"
        assert "Authorization" in before.headers["access-control-allow-headers"]
        right = {"Authorization": "Bearer secret"} | origin
        for answer in (
            server.post(PHOTOGRAPHS[0], headers=right),
            server.post(PHOTOGRAPHS[0], headers=origin),  # 401, which the page may read
        ):
            assert answer.headers["access-control-allow-origin"] == "https://example.org"
        other = {"Origin": "https://elsewhere.org"}
        assert server.ask("OPTIONS", "/predict", headers=other | asking).status == 400
        answer = server.post(PHOTOGRAPHS[0], headers=right | other)
        assert "access-control-allow-origin" not in answer.headers


# Who is slow, or goes away


class Slow:
    """What an `eager` runtime computes, when it may."""

    def __init__(self, seconds):
        self.within = eager(CLASSIFIER, "cpu")
        self.preprocessing = self.within.preprocessing
        self.labels = self.within.labels
        self.activation = self.within.activation
        self.seconds = seconds
        self.images = 0

    def logits(self, images):
        time.sleep(self.seconds)
        self.images += len(images)
        return self.within.logits(images)


def slow_model(server, seconds):
    """Make the model slow."""
    model = Slow(seconds)
    with_model(server, lambda: model)
    server.call(server.server.reload)
    while "reloaded" not in server.words:
        time.sleep(0.01)
    model.images = 0
    return model


def test_beyond_the_queue_requests_are_refused_at_once_and_the_others_answered():
    with running(queue=4, batch=1) as server:
        slow_model(server, 0.1)
        with ThreadPoolExecutor(16) as clients:
            answers = list(clients.map(server.post, [PHOTOGRAPHS[0]] * 16))
        statuses = [answer.status for answer in answers]
        assert set(statuses) == {200, 503} and statuses.count(200) >= 4
        refused = answers[statuses.index(503)]
        assert "wait already" in refused.error and refused.headers["retry-after"] == "1"
        assert server.post(PHOTOGRAPHS[0]).status == 200


def test_an_answer_that_takes_too_long_is_given_up():
    with running(limits=Limits(seconds=0.2)) as server:
        slow_model(server, 0.5)
        answer = server.post(PHOTOGRAPHS[0])
        assert answer.status == 503 and "no answer was ready within 0.2 seconds" in answer.error


def test_a_body_that_comes_too_slowly_is_refused(monkeypatch):
    monkeypatch.setattr(http_body, "PATIENCE", 0.1)
    with running(limits=Limits(seconds=0.2)) as server:
        with socket.create_connection(server.address, 10) as client:
            head = "POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/jpeg\r\n"
            client.sendall(f"{head}Content-Length: 9999\r\n\r\nabc".encode())
            answer = b""
            while part := client.recv(9999):
                answer += part
        assert answer.startswith(b"HTTP/1.1 408") and b"did not arrive whole" in answer
        assert server.room.held_bytes == 0


def test_who_sends_half_a_head_is_disconnected(monkeypatch):
    monkeypatch.setattr(http_connections, "SILENT", 0.1)
    monkeypatch.setattr(http_connections, "LOOK", 0.05)
    with running() as server, socket.create_connection(server.address, 10) as client:
        client.sendall(b"POST /predict HTTP/1.1\r\nHost")
        assert client.recv(1) == b""  # closed
        assert server.post(PHOTOGRAPHS[0]).status == 200


def test_nobody_computes_for_a_client_that_goes_away():
    with running(batch=1) as server:
        model = slow_model(server, 0.2)
        head = f"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(PHOTOGRAPHS[0])}\r\n"
        request = f"{head}Content-Type: image/jpeg\r\n\r\n".encode() + PHOTOGRAPHS[0]
        for _ in range(5):
            with socket.create_connection(server.address, 10) as client:
                client.sendall(request)
                while not server.room.held_images:
                    time.sleep(0.001)
        with socket.create_connection(server.address, 10) as client:
            client.sendall(request[:-100])  # it breaks off
        assert server.post(PHOTOGRAPHS[0]).status == 200
        assert model.images <= 3  # the first, which was begun, and the last


# Its end, and another model


def load(server, act, stop):
    """Eight clients ask again and again until `stop()`, and `act` is called when 16 answers are there.
    Returns all answers with what was asked."""
    answers = []

    def ask_on(number):
        while not stop():
            data = PHOTOGRAPHS[(number + len(answers)) % len(PHOTOGRAPHS)]
            try:
                answer = server.post(data)
            except ConnectionRefusedError:  # nobody had accepted it
                return
            answers.append((data, answer))
            if len(answers) == 16:
                server.call(act)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(ask_on, range(8)))
    return answers


def test_a_server_that_ends_answers_all_that_it_accepted():
    with running() as server:
        answers = load(server, server.server.stop, stop=lambda: False)
        server.thread.join(20)
        assert not server.thread.is_alive()
    assert len(answers) >= 16
    for data, answer in answers:
        assert_same(answer.predictions[0], data)


def test_another_model_takes_over_without_a_pause():
    other = make_classifier(seed=5)
    with running(CLASSIFIER) as server:
        with_model(server, lambda: eager(other, "cpu"))
        answers = load(server, server.server.reload, lambda: "reloaded" in server.words)
        answers.append((PHOTOGRAPHS[0], server.post(PHOTOGRAPHS[0])))
    by_model = {}
    for data, answer in answers:
        by_model.setdefault(answer.json["model"]["loaded"], []).append((data, answer))
    assert len(by_model) == 2
    for model, loaded in zip((CLASSIFIER, other), sorted(by_model), strict=True):
        for data, answer in by_model[loaded]:
            assert_same(answer.predictions[0], data, model)


def test_a_model_that_cannot_be_opened_leaves_the_one_that_answers():
    with running() as server:

        def broken():
            raise ValueError("there is no file model.onnx")

        with_model(server, broken)
        server.call(server.server.reload)
        while "kept" not in server.words:
            time.sleep(0.01)
        assert_same(server.post(PHOTOGRAPHS[0]).predictions[0], PHOTOGRAPHS[0])
