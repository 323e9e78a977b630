"""Pages that a person opens in a browser on this machine, or on another one by their whole address: their
files, their addresses, and their end.

Their addresses begin with a secret, so that no other page in the browser, and no other person on the network,
can use them (`Guard`).
"""

import asyncio
import os
import secrets
import signal
import socket
import sys
import threading
import time
import webbrowser
from collections.abc import Callable
from functools import partial
from importlib.resources import files
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from vitkit.system.console.messages import announce, say
from vitkit.system.errors import BadSettings, Unsupported
from vitkit.system.processes.signals import signals_are_ours
from vitkit.web.connections import Listener, bound_socket, close_silent, config_of, is_full
from vitkit.web.guard import Guard

if TYPE_CHECKING:
    import uvicorn
    from starlette.routing import Route
    from starlette.types import ASGIApp

PACKAGES = ("fastapi", "uvicorn", "python_multipart", "prometheus_client")
PORTS = 20  # number of ports to try, from the given one
SECONDS = 600.0  # within which a request must arrive: a photograph of 50 MB over a slow network
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; img-src 'self' data: blob:; style-src 'self'; "
    "script-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
"""HTTP headers of a page: it loads nothing from elsewhere, and cannot be embedded in another."""


def check_installed() -> None:
    """Raise VitkitError if a package that a server needs is not installed."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise Unsupported(
            f"serving needs {', '.join(missing)}, which is not installed: pip install 'vitkit[serve]'"
        )


# The files of a page


def page_routes(
    package: str, folder: str = "page", scripts: tuple[str, ...] = (), **replaced: str
) -> "list[Route]":
    """The routes of a page: `/`, and its style and scripts.

    Args:
        package: The package that has the files page.html, page.css and page.js.
        folder: The folder of the package in which they are.
        scripts: Further files of scripts in that folder.
        **replaced: Text for each `{name}` in page.html.
    """
    from starlette.routing import Route

    # Read as a file: the functions of inspection import PyTorch, which an exported file does not need
    shared = files("vitkit.inspection").joinpath("pages", "working.css").read_text("utf-8")
    routes = []
    for path, name, kind, before in (
        ("/", "page.html", "text/html", ""),
        ("/page.css", "page.css", "text/css", shared),
        ("/page.js", "page.js", "text/javascript", ""),
        *((f"/{script}", script, "text/javascript", "") for script in scripts),
    ):
        text = before + files(package).joinpath(folder, name).read_text("utf-8")
        if name == "page.html":
            for key, value in replaced.items():
                text = text.replace(f"{{{key}}}", value)
        routes.append(Route(path, partial(_file_response, text, kind), name=name))
    return routes


async def _file_response(text: str, kind: str, request: Any) -> Any:
    from starlette.responses import Response

    return Response(text, media_type=kind, headers=HEADERS)


# The address of a page


def page_socket(host: str, port: int) -> socket.socket:
    """A socket that listens at the port, or at the first free one of the next PORTS ports.

    Raises VitkitError for an invalid port number, for an address of another machine, and if no port is free.
    """
    if not 1 <= port <= 65535:
        raise BadSettings(f"`port` is {port}; it must be a number from 1 to 65535")
    problem = ""
    last = min(port + PORTS - 1, 65535)
    for candidate in range(port, last + 1):
        try:
            listener = bound_socket(host, candidate)
            listener.listen()  # fails as well if another process has bound the port and now listens
            return listener
        except OSError as error:
            problem = error.strerror or str(error)
    raise BadSettings(
        f"no page can be served at {host}, ports {port} to {last}: {problem}; choose others with `host` "
        "and `port`"
    )


def address_of(host: str, port: int) -> str:
    """The address to type into a browser on this machine."""
    if host in ("0.0.0.0", "::"):
        host = "localhost"
    if ":" in host:
        host = f"[{host}]"
    return f"http://{host}:{port}"


def announce_page(address: str, given: int, port: int, how_it_ends: str, open_it: bool) -> None:
    """Log the address of a page, and whether its port is not the one given; open the page if `open_it`."""
    if port != given:
        say(f"port {given} is taken, so the page is at {port}")
    announce(f"open {address}   ({how_it_ends})")
    if open_it:
        open_browser(address)


def open_browser(address: str) -> bool:
    """Open an address in the browser of this machine, if it has a screen: a text browser would occupy the
    terminal. Returns whether a browser was started."""
    has_screen = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if sys.platform == "linux" and not has_screen:
        return False
    return webbrowser.open(address)


# Serving a page


def serve_page(
    application: "ASGIApp", listener: socket.socket, host: str, started: Callable[[str], None]
) -> str:
    """Serve a page until Ctrl-C or SIGTERM, at an address with a new secret, and return the address.

    Args:
        application: The application, with paths below the secret.
        listener: The socket to serve at.
        host: The given address, which browsers may use for the page.
        started: Called with the address when the page can be opened.
    """
    secret = secrets.token_urlsafe(12)
    address = f"{address_of(host, listener.getsockname()[1])}/{secret}/"
    guarded = Guard(application, host, secret=secret)
    run_until_ended(guarded, listener, partial(started, address))
    return address


def run_until_ended(
    application: "ASGIApp", listener: socket.socket, started: Callable[[], None]
) -> None:
    """Serve an application until Ctrl-C or SIGTERM, with the same limits of connections as every server.
    `started` is called when it accepts requests."""
    import uvicorn

    server = uvicorn.Server(config_of(application, log_level="critical"))
    serving = partial(asyncio.run, _serve_and_watch(server, Listener(listener)))
    thread = threading.Thread(target=serving, daemon=True)
    if signals_are_ours():
        signal.signal(signal.SIGTERM, _interrupt)  # so that the caller continues after SIGTERM too
    thread.start()
    try:
        while thread.is_alive() and not server.started:
            time.sleep(0.05)
        started()
        while thread.is_alive():  # after an interrupted join, a thread counts as ended
            time.sleep(0.2)
    except KeyboardInterrupt:
        pass
    finally:
        # Without waiting for browsers, which keep their connections open
        server.should_exit = True
        server.force_exit = True
        thread.join(2)


def _interrupt(*_) -> None:
    raise KeyboardInterrupt


async def _serve_and_watch(server: "uvicorn.Server", listener: Listener) -> None:
    """Serve, and close inactive connections."""
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(_ignore_full)
    watching = asyncio.create_task(close_silent(server, SECONDS))
    with listener:
        await server.serve(sockets=[listener])
    watching.cancel()


def _ignore_full(loop: asyncio.AbstractEventLoop, said: dict[str, Any]) -> None:
    """Ignore the error of too many connections, which only wait until one is closed."""
    if not is_full(said.get("exception")):
        loop.default_exception_handler(said)
