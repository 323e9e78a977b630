"""Who may ask a server: requests under its own names, from its own pages, who know its secret.

A page in a person's browser may send requests to servers of their machine. By a name of its own that leads to
127.0.0.1 (DNS rebinding) it may even read the answers. So a server answers under its own names alone, and a
page of another origin changes nothing here.
"""

import hmac
import ipaddress
import json
import socket
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

SAFE = ("GET", "HEAD", "OPTIONS")  # methods that change nothing
HEADERS = (
    (b"referrer-policy", b"no-referrer"),  # the address holds the secret
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
)


class Guard:
    """An ASGI application around another, which gets only the requests that may be answered."""

    def __init__(
        self,
        app: "ASGIApp",
        host: str,
        names: tuple[str, ...] = (),
        origins: tuple[str, ...] = (),
        secret: str = "",
        remedy: str = "",
        hint_of_origins: str = "",
    ):
        """Guard an application.

        Args:
            app: The application.
            host: The address or name that it is served at; "0.0.0.0" and "::" are all of the machine.
            names: Further names that clients may call it by; "*" is any.
            origins: Web pages of other servers that may send requests, such as "https://example.org";
                "*" is any.
            secret: What all addresses begin with: "/SECRET/...". Empty for a server without one.
            remedy: What to do about a name that the server does not know, in a few words.
            hint_of_origins: How the sentence ends that refuses a page of another origin.
        """
        self.app = app
        self.address = _address(host)
        self.is_public = not host or (self.address is not None and self.address.is_unspecified)
        self.names = {"localhost", host.lower(), *(name.lower() for name in names)}
        self.origins = origins
        self.secret = secret
        self.remedy = remedy
        self.hint_of_origins = hint_of_origins
        if self.is_public:
            own = socket.gethostname().lower()
            self.names |= {own, f"{own}.local"}  # the second is how other machines find it (mDNS)

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        if scope["type"] != "http":
            return  # there are no web sockets here
        status, sentence = self.fault(scope)
        if status:
            await _refuse(send, status, sentence)
            return
        if self.secret:
            if scope["path"] == f"/{self.secret}":  # from where a page would not find its files
                await _send_on(send, f"/{self.secret}/")
                return
            # The application knows no secret
            scope = {**scope, "root_path": f"/{self.secret}"}

        async def send_with_headers(message):
            if message["type"] == "http.response.start":
                known = {name.lower() for name, _ in message["headers"]}
                new = [pair for pair in HEADERS if pair[0] not in known]
                message["headers"] = [*message["headers"], *new]
            await send(message)

        await self.app(scope, receive, send_with_headers)

    def fault(self, scope: "Scope") -> tuple[int, str]:
        """The status and the sentence for a request that is refused; (0, "") for any other."""
        hosts = _values(scope, b"host") or [""]  # browsers always send one
        if len(hosts) > 1 or not self.knows(hosts[0]):
            asked = ", ".join(hosts)[:100]
            sentence = f"this server is not called {asked!r}; ask it by the address that it printed"
            if self.remedy:
                sentence += f", or {self.remedy}"
            return 421, sentence
        if scope["method"] not in SAFE and not self._is_own_page(scope, hosts[0]):
            origin = ", ".join(_values(scope, b"origin"))[:100]
            return 403, f"pages of {origin!r} may not ask {hosts[0][:100]!r}{self.hint_of_origins}"
        if self.secret and not self._has_secret(scope["path"]):
            return 404, "there is nothing here; use the whole address that vitkit printed"
        return 0, ""

    def knows(self, host: str) -> bool:
        """Whether a Host header is one of the server's own names. Addresses of loopback are, and for a
        server of all addresses any that is a number: only names can be made to lead elsewhere."""
        if not host or "*" in self.names:
            return True
        try:
            name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
        except ValueError:  # half of an IPv6 address
            return False
        if name in self.names:
            return True
        address = _address(name)
        if address is None:
            return False
        return address.is_loopback or self.is_public or address == self.address

    def _is_own_page(self, scope: "Scope", host: str) -> bool:
        """Whether a request comes from no page, from a page of this server, or from one that may ask."""
        origins = _values(scope, b"origin")
        if not origins:
            return _values(scope, b"sec-fetch-site") not in (["cross-site"], ["same-site"])
        if len(origins) > 1:
            return False
        if "*" in self.origins or origins[0] in self.origins:
            return True
        # A proxy in front may speak https
        return origins[0].lower() in (f"http://{host.lower()}", f"https://{host.lower()}")

    def _has_secret(self, path: str) -> bool:
        first = path.lstrip("/").partition("/")[0]
        return hmac.compare_digest(first.encode(), self.secret.encode())


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """A host that is a number, however it is written; None for a name."""
    number = host.strip("[]").partition("%")[0]  # without the interface
    try:
        if number.isdecimal():  # "0" is 0.0.0.0 to the system
            return ipaddress.IPv4Address(int(number))
        address = ipaddress.ip_address(number)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _values(scope: "Scope", name: bytes) -> list[str]:
    """The values of a header, of each line with this name."""
    return [value.decode("latin-1") for key, value in scope["headers"] if key.lower() == name]


async def _send_on(send: "Send", address: str) -> None:
    """Answer that what was asked for is at another address of this server."""
    headers = [(b"location", address.encode()), (b"content-length", b"0")]
    await send({"type": "http.response.start", "status": 307, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


async def _refuse(send: "Send", status: int, sentence: str) -> None:
    """Answer without reading the request; the connection ends with it."""
    body = json.dumps({"error": sentence}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
