"""Listen at a free port of this machine, and serve an application there until it is to end."""

import asyncio
import signal
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from vitkit.system.errors import BadSettings
from vitkit.system.processes.signals import signals_are_ours
from vitkit.web.connections import Listener, close_silent, config_of, is_full

if TYPE_CHECKING:
    import uvicorn
    from starlette.types import ASGIApp

PORTS = 20  # that are tried, from the one that was asked for
SECONDS = 600.0  # in which a request has to come: a photograph of 50 MB over a slow network


def listening_socket(host: str, port: int) -> socket.socket:
    """A socket that listens at the port, or at the first free one of the PORTS from there.

    Raises VitkitError for a number that is no port, for an address that is not this machine's, and if no
    port is free.
    """
    if not 1 <= port <= 65535:
        raise BadSettings(f"`port` is {port}; it is a number from 1 to 65535")
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, OverflowError, UnicodeError) as error:
        raise BadSettings(f"`host` is {host!r}, which is not an address: {error}") from None
    problem = ""
    for candidate in range(port, min(port + PORTS, 65536)):
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((address[0], candidate, *address[2:]))
            listener.listen()
            return listener
        except OSError as error:
            listener.close()
            problem = error.strerror or str(error)
    raise BadSettings(
        f"no page can be served at {host}, ports {port} to {min(port + PORTS, 65536) - 1}: "
        f"{problem}; choose others with `host` and `port`"
    )


def run_until_ended(
    application: "ASGIApp", listener: socket.socket, started: Callable[[], None]
) -> None:
    """Serve an application until Ctrl-C or SIGTERM, within the limits of connections that every server has.
    `started` is called when it answers."""
    import uvicorn

    server = uvicorn.Server(config_of(application, log_level="critical"))
    serving = partial(asyncio.run, _serve_and_watch(server, Listener(listener)))
    thread = threading.Thread(target=serving, daemon=True)
    if signals_are_ours():
        signal.signal(signal.SIGTERM, _interrupt)  # so that what follows is done then, too
    thread.start()
    try:
        while thread.is_alive() and not server.started:
            time.sleep(0.05)
        started()
        while thread.is_alive():  # a join that is interrupted takes the thread for ended
            time.sleep(0.2)
    except KeyboardInterrupt:
        pass
    finally:
        # Not to wait for browsers, which keep their connections open
        server.should_exit = True
        server.force_exit = True
        thread.join(2)


def _interrupt(*_) -> None:
    raise KeyboardInterrupt


async def _serve_and_watch(server: "uvicorn.Server", listener: Listener) -> None:
    """Serve, and close connections that say nothing. A page listens to answers that last."""
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(_pass_over_full)
    watching = asyncio.create_task(close_silent(server, SECONDS, answers_last=True))
    with listener:
        await server.serve(sockets=[listener])
    watching.cancel()


def _pass_over_full(loop: asyncio.AbstractEventLoop, said: dict[str, Any]) -> None:
    """Other connections wait until one ends: that is no error."""
    if not is_full(said.get("exception")):
        loop.default_exception_handler(said)
