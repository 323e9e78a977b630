"""Access control of a server: requests must use its own names, come from its own pages, and have its secret.

Any page in a person's browser may send requests to servers on their machine. If the page's own name resolves
to 127.0.0.1 (DNS rebinding), it may even read responses. So a server responds only under its own names, and
pages of other origins cannot change anything.
"""

import hmac
import ipaddress
import json
import socket
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

SAFE = ("GET", "HEAD", "OPTIONS")  # methods without changes
HEADERS = (
    (b"referrer-policy", b"no-referrer"),  # the address contains the secret
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
)


class Guard:
    """An ASGI application that passes only permitted requests to another application."""

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
            host: The address or name of the server; "0.0.0.0" and "::" are all addresses of the machine.
            names: Further names that clients may use for it; "*" is any.
            origins: Web pages of other servers that may send requests, such as "https://example.org";
                "*" is any.
            secret: The beginning of all paths: "/SECRET/...". Empty for a server without one.
            remedy: Advice for a client that uses an unknown name, in a few words.
            hint_of_origins: The end of the sentence that refuses a page of another origin.
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
            self.names |= {own, f"{own}.local"}  # other machines find it by the second one (mDNS)

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        if scope["type"] != "http":
            return  # web sockets are not supported
        status, sentence = self.fault(scope)
        if status:
            await _refuse(send, status, sentence)
            return
        if self.secret:
            if scope["path"] == f"/{self.secret}":  # a page at this path would not find its files
                await _redirect(send, f"/{self.secret}/")
                return
            # The application does not know the secret
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
        """Whether a Host header is one of the server's own names, or a loopback address, or, for a server at all
        addresses, any numeric address: only names can be redirected elsewhere."""
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
        """Whether a request comes from no page, from a page of this server, or from a permitted page."""
        origins = _values(scope, b"origin")
        if not origins:
            return _values(scope, b"sec-fetch-site") not in (["cross-site"], ["same-site"])
        if len(origins) > 1:
            return False
        if "*" in self.origins or origins[0] in self.origins:
            return True
        # A proxy before the server may use https
        return origins[0].lower() in (f"http://{host.lower()}", f"https://{host.lower()}")

    def _has_secret(self, path: str) -> bool:
        first = path.lstrip("/").partition("/")[0]
        return hmac.compare_digest(first.encode(), self.secret.encode())


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address of a numeric host in any notation; None for a name."""
    number = host.strip("[]").partition("%")[0]  # without the interface
    try:
        if number.isdecimal():  # for example "0", which means 0.0.0.0
            return ipaddress.IPv4Address(int(number))
        address = ipaddress.ip_address(number)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _values(scope: "Scope", name: bytes) -> list[str]:
    """All values of a header, one for each of its lines."""
    return [value.decode("latin-1") for key, value in scope["headers"] if key.lower() == name]


async def _redirect(send: "Send", address: str) -> None:
    """Respond with a redirection to another address of this server."""
    headers = [(b"location", address.encode()), (b"content-length", b"0")]
    await send({"type": "http.response.start", "status": 307, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


async def _refuse(send: "Send", status: int, sentence: str) -> None:
    """Respond without reading the request, and close the connection."""
    body = json.dumps({"error": sentence}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
