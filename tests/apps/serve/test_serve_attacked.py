"""Requests that are made to harm a server, and clients that do not do as most do."""

import base64
import json
import os
import signal
import threading
import time

import pytest
from pictures import encoded, photograph
from served import form, make_classifier, running, with_model

from vitkit.apps.serve.http.body import Limits
from vitkit.apps.serve.http.server import Server, StartSettings, server_socket
from vitkit.apps.serve.http.service import Settings
from vitkit.runtimes import eager

PHOTOGRAPH = encoded(photograph(40, 30))
JSON = "application/json"
LARGE = bytes(8 << 20)  # more than the sockets of both sides hold


@pytest.fixture(scope="module")
def server():
    with running() as server:
        yield server


# Bodies


def test_many_tiny_values_of_json_or_parts_of_a_form_are_refused_before_they_are_read(server):
    answer = server.post(b'{"images": [' + b"{}," * 1_000_000 + b"{}]}", JSON)
    assert answer.status == 413 and "more values than 64 images" in answer.error
    part = b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n\r\n'
    answer = server.post(part * 100_000 + b"--x--\r\n", "multipart/form-data; boundary=x")
    assert answer.status == 413 and "Maximum number of fields is 1000" in answer.error


def test_base64_with_line_breaks_and_of_the_alphabet_of_addresses(server):
    lines = base64.encodebytes(PHOTOGRAPH).decode()
    safe = base64.urlsafe_b64encode(PHOTOGRAPH).decode()
    assert "\n" in lines and ("-" in safe or "_" in safe)
    first, second = server.post(json.dumps({"images": [lines, safe]}), JSON).predictions
    assert first["labels"] == second["labels"]
    assert first["probabilities"] == pytest.approx(second["probabilities"], abs=1e-5)


def test_names_that_utf8_cannot_write_and_names_that_are_none(server):
    images = [{"name": "\ud800", "data": "aGVsbG8="}]
    answer = server.post(json.dumps({"images": images}), JSON)
    assert answer.status == 422 and "\ud800 is not an image" in answer.error
    data = base64.b64encode(PHOTOGRAPH).decode()
    images = [
        {"name": None, "data": data},
        {"name": [[]], "data": data},
        {"name": "", "data": data},
    ]
    answers = server.post(json.dumps({"images": images}), JSON).predictions
    assert [answer["name"] for answer in answers] == ["image 0", "image 1", "image 2"]


def test_a_part_of_a_form_without_a_file_name_is_no_image(server):
    """Nor is one whose name is written as RFC 5987 has it, which RFC 7578 forbids in forms."""
    body, kind = form({"a": PHOTOGRAPH})
    for written in (b"", b"; filename*=UTF-8''a"):
        answer = server.post(body.replace(b'; filename="a"', written), kind)
        assert answer.status == 400 and "has a filename" in answer.error


def test_photographs_of_a_form_stay_in_memory(server, monkeypatch):
    """Starlette would write those of more than a megabyte to a file."""
    monkeypatch.setattr("tempfile.TemporaryFile", forbidden)
    large = encoded(photograph(900, 900), "BMP")
    assert len(large) > 2 << 20
    assert server.post(*form({"a": large, "b": large})).status == 200


def forbidden(*_, **__):
    raise AssertionError("a photograph was written to a file")


def test_a_compressed_body_is_refused_with_a_sentence(server):
    answer = server.post(PHOTOGRAPH, headers={"Content-Encoding": "gzip"})
    assert answer.status == 415 and "content encoding is gzip" in answer.error


@pytest.mark.parametrize(
    ("path", "status", "sentence"),
    [
        ("/nothing", 404, "there is no /nothing"),
        ("/predict/", 404, "there is no /predict/"),
        ("/model", 405, "not asked by POST"),
        ("/predict?top=many", 422, "top is 'many'"),
    ],
)
def test_who_sends_much_to_a_wrong_address_reads_why_it_is_wrong(server, path, status, sentence):
    answer = server.ask("POST", path, LARGE, {"Content-Type": "image/jpeg"})
    assert answer.status == status and sentence in answer.error


# What people stumble over


def test_balancers_may_ask_by_head(server):
    for path in ("/health", "/ready"):
        answer = server.ask("HEAD", path)
        assert (answer.status, answer.body) == (200, b"")


def test_the_page_says_what_to_do_without_its_script(server):
    page = server.ask("GET", "/docs").body.decode()
    assert "the script has not come" in page and '"openapi.json"' in page
    assert "curl" in page and "url: 'openapi.json'" in page.replace('"', "'")


def test_a_port_beyond_the_last_is_refused():
    with pytest.raises(ValueError, match="`port` is 70000; it is between 0 and 65535"):
        server_socket("127.0.0.1", 70000)


def test_a_model_that_changes_again_while_it_is_loaded_is_loaded_again():
    with running() as server:
        opened = []

        def open_model():
            version = len(opened)
            opened.append(version)
            time.sleep(0.2)
            return eager(make_classifier(seed=version), "cpu")

        with_model(server, open_model)
        for _ in range(3):
            server.call(server.server.reload)
            time.sleep(0.02)
        while server.words.count("reloaded") < 2:
            time.sleep(0.01)
    assert opened == [0, 1]


def open_small():
    return eager(make_classifier(), "cpu")


def test_of_two_servers_that_begin_at_one_address_the_second_ends_with_a_sentence():
    first = server_socket("127.0.0.1", 0)
    second = server_socket(*first.getsockname())  # nobody listens yet
    first.listen()
    words = []
    server = Server(StartSettings("tiny", open_small, Settings(Limits())), second, words.append)
    with pytest.raises(ValueError, match="cannot be served at any more: .*; choose another `port`"):
        server.run()
    assert words == []
    server.service.answering.close()
    first.close()
    second.close()


def test_a_model_that_changes_while_a_server_begins_is_loaded_again():
    opened = []

    def open_model():
        opened.append(True)
        if len(opened) == 1:
            os.kill(os.getpid(), signal.SIGHUP)
        return open_small()

    words = []
    bound = server_socket("127.0.0.1", 0)
    server = Server(StartSettings("tiny", open_model, Settings(Limits())), bound, words.append)

    def end():
        while "reloaded" not in words:
            time.sleep(0.01)
        server.loop.call_soon_threadsafe(server.stop)

    threading.Thread(target=end, daemon=True).start()
    server.run()
    assert words == ["ready", "reloaded"] and len(opened) == 2
