"""Who may ask a server: by which name, from which page, with which secret; for `serve`, `label` and `app`."""

import socket

import pytest
from pictures import encoded, photograph
from served import PATIENCE, running

from vitkit.web import Guard

OWN = "http://127.0.0.1:7860"
PHOTOGRAPH = encoded(photograph(40, 60), "JPEG")


def fault(guard, method="POST", path="/", **headers):
    """The status that a guard gives a request; 0 if it may be answered."""
    lines = []
    for name, value in headers.items():
        lines.append((name.replace("_", "-").encode(), value.encode("latin-1")))
    scope = {"type": "http", "method": method, "path": path, "headers": lines}
    return guard.fault(scope)[0]


@pytest.mark.parametrize(
    "host",
    [
        "evil.example", "evil.example:7860", "127.0.0.1.evil.example", "localhost.evil.example",
        "evil.example@localhost.evil.example", "10.0.0.7:7860", "[::1", "[fe80::1]:7860", "..", "\xe9",
    ],
)  # fmt: skip
def test_names_that_are_not_its_own_are_refused(host):
    """As a page of evil.example has them, whose name leads to 127.0.0.1 (DNS rebinding)."""
    guard = Guard(None, "127.0.0.1")
    for method in ("GET", "POST", "OPTIONS"):
        assert fault(guard, method, host=host) == 421


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1:7860", "127.0.0.1", "localhost:7860", "LOCALHOST", "[::1]:7860", "localhost."],
)
def test_its_own_names_are_answered(host):
    assert fault(Guard(None, "127.0.0.1"), host=host) == 0


def test_the_address_that_it_is_served_at_is_a_name():
    assert fault(Guard(None, "photos.lan"), host="Photos.lan:7860") == 0
    assert fault(Guard(None, "10.0.0.7"), host="10.0.0.7:7860") == 0
    assert fault(Guard(None, "10.0.0.7"), host="10.0.0.8:7860") == 421
    for host in ("0.0.0.0", "::"):  # all of the machine: no number can be made to lead elsewhere
        guard = Guard(None, host)
        for name in ("10.0.0.8", "[fe80::1]:7860", socket.gethostname()):
            assert fault(guard, host=name) == 0
        assert fault(guard, host="evil.example") == 421
    assert fault(Guard(None, "127.0.0.1", ("photos.example.org",)), host="photos.example.org") == 0
    assert fault(Guard(None, "127.0.0.1", ("*",)), host="evil.example") == 0


def test_numbers_are_compared_as_numbers():
    """Browsers write an address in its shortest form."""
    assert fault(Guard(None, "2001:DB8:0:0::1"), host="[2001:db8::1]:7860") == 0
    assert fault(Guard(None, "127.0.0.1"), host="[::ffff:127.0.0.1]") == 0
    assert fault(Guard(None, "::ffff:10.0.0.7"), host="10.0.0.7") == 0
    for everything in ("", "0", "::0", "0:0:0:0:0:0:0:0"):
        assert fault(Guard(None, everything), host="10.0.0.8:7860") == 0
        assert fault(Guard(None, everything), host=f"{socket.gethostname()}.local") == 0
        assert fault(Guard(None, everything), host="evil.example") == 421


def test_programs_may_leave_the_name_out_and_say_it_once():
    guard = Guard(None, "127.0.0.1")
    assert fault(guard) == 0  # HTTP/1.0, as balancers ask
    scope = {"type": "http", "method": "GET", "path": "/"}
    twice = [(b"host", b"localhost"), (b"Host", b"evil.example")]
    assert guard.fault(scope | {"headers": twice})[0] == 421


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"}, {"origin": "null"}, {"origin": "http://127.0.0.1"},
        {"origin": "http://127.0.0.1:7861"}, {"origin": "http://localhost:7860"},
        {"sec_fetch_site": "cross-site"}, {"sec_fetch_site": "same-site"},
    ],
)  # fmt: skip
def test_pages_of_other_origins_change_nothing(headers):
    guard = Guard(None, "127.0.0.1")
    for method in ("POST", "PUT", "DELETE"):
        assert fault(guard, method, host="127.0.0.1:7860", **headers) == 403
    assert fault(guard, "GET", host="127.0.0.1:7860", **headers) == 0


def test_its_own_page_may_ask_and_those_that_are_let_in():
    guard = Guard(None, "127.0.0.1", origins=("https://shop.example",))
    own = {"host": "127.0.0.1:7860", "sec_fetch_site": "same-origin"}
    assert fault(guard, origin=OWN, **own) == 0
    assert fault(guard, origin="https://127.0.0.1:7860", **own) == 0  # behind a proxy
    assert fault(guard, origin="https://shop.example", host="127.0.0.1:7860") == 0
    assert fault(guard, origin="https://shop.example.evil", host="127.0.0.1:7860") == 403
    assert (
        fault(Guard(None, "127.0.0.1", origins=("*",)), origin="https://a.b", host="localhost") == 0
    )


def test_without_the_secret_there_is_nothing():
    guard = Guard(None, "127.0.0.1", secret="s3cret")
    for path in (
        "/",
        "",
        "/s3cre",
        "/s3crets/",
        "/x/s3cret/",
        "/S3CRET/",
        "/\xe9",
        "/predict",
    ):
        assert fault(guard, "GET", path, host="localhost") == 404
    for path in ("/s3cret/", "/s3cret", "/s3cret/page.css"):
        assert fault(guard, "GET", path, host="localhost") == 0


# A real server


def test_a_server_without_a_token_keeps_other_pages_out():
    with running() as server:
        evil = {"Host": "evil.example", "Content-Type": "image/jpeg"}
        answer = server.ask("POST", "/predict", PHOTOGRAPH, evil)
        assert answer.status == 421
        assert "not called 'evil.example'" in answer.error and "allow-host" in answer.error
        page = {"Origin": "https://evil.example", "Content-Type": "image/jpeg"}
        answer = server.ask("POST", "/predict", PHOTOGRAPH, page)
        assert answer.status == 403 and "pages of 'https://evil.example'" in answer.error
        answer = server.post(PHOTOGRAPH)
        assert answer.status == 200 and answer.headers["x-frame-options"] == "DENY"
        assert server.ask("GET", "/model", headers={"Host": "evil.example"}).status == 421


def test_a_server_with_a_token_or_a_name_is_asked_by_it():
    token = {"Authorization": "Bearer secret"}
    proxied = {"Host": "photos.example.org", "Content-Type": "image/jpeg"}
    with running(token="secret") as server:
        assert server.ask("POST", "/predict", PHOTOGRAPH, proxied | token).status == 200
    with running(names=("photos.example.org",)) as server:
        assert server.ask("POST", "/predict", PHOTOGRAPH, proxied).status == 200


def test_what_is_refused_is_not_read():
    """49 MB from a page of another origin are not taken in first."""
    with running() as server, socket.create_connection(server.address, PATIENCE) as client:
        head = "POST /predict HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 49000000\r\n\r\n"
        client.sendall(head.encode())
        answer = client.recv(9999)
        assert answer.startswith(b"HTTP/1.1 421")
        assert client.recv(9999) == b"" or client.recv(9999) == b""  # closed
