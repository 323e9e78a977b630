"""The connections of a server: they do not use all descriptors, inactive ones are closed, and when the
server ends each request gets its response."""

import asyncio
import errno
import math
import os
import socket
import time
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet

from vitkit.system.errors import BadSettings

if TYPE_CHECKING:
    import uvicorn
    from starlette.types import ASGIApp

CONNECTIONS = 1000  # open at the same time; others wait until one is closed
SPARE = 64  # descriptors that no connection may use: opening another model needs them
BACKLOG = 1024  # connections that wait to be accepted
IDLE = 5  # seconds that a connection is kept for another request
SILENT = 10.0  # seconds within which the head of a request must arrive
UNREAD = 30.0  # seconds beyond a request's limit within which the client must read the response
LOOK = 1.0  # seconds between two checks of all connections
MOMENT_OF_ASKING = 0.5  # seconds in which a full server reports it only once
MOMENT = 0.02  # seconds between two checks of ending connections
LINGER = 1.0  # seconds that a connection without a request stays open when the server ends


def config_of(
    app: "ASGIApp", grace: int | None = None, log_level: str | None = None
) -> "uvicorn.Config":
    """The settings of a server that untrusted clients can reach.

    Args:
        app: The application.
        grace: Seconds for open requests when the server is ending; None is no limit.
        log_level: Lowest level of uvicorn's own log; None leaves it unchanged.
    """
    import uvicorn

    return uvicorn.Config(
        app,
        http="h11",  # it limits the head of a request
        log_config=None,
        access_log=False,
        ws="none",
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        limit_concurrency=CONNECTIONS + 1,  # more than the socket accepts
        timeout_keep_alive=IDLE,
        lifespan="off",
        timeout_graceful_shutdown=grace,
        log_level=log_level,
    )


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket that is bound to an address and does not listen yet; port 0 is any free one. Raises
    VitkitError for a host that is not an address, and OSError if it cannot be bound."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, OverflowError, UnicodeError) as error:
        raise BadSettings(f"`host` is {host!r}, which is not an address: {error}") from None
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind(address)
    except OSError:
        bound.close()
        raise
    return bound


class Listener(socket.socket):
    """A socket that accepts connections only up to the spare descriptors; others wait in the system until one
    is closed. If connections used all descriptors, other models and the files of the metrics could not be
    opened."""

    def __init__(self, bound: socket.socket):
        """Replaces the socket `bound`."""
        super().__init__(bound.family, bound.type, bound.proto, fileno=bound.detach())
        self.accepted: WeakSet[socket.socket] = WeakSet()
        """Open connections; closed ones are garbage-collected."""
        self.most = most_connections()
        self.full_since = -math.inf
        """The monotonic time of the last report of too many connections."""

    def accept(self) -> tuple[socket.socket, Any]:
        """The next connection. Raises OSError with EMFILE if there are too many, like the system: asyncio then
        tries again after a second.

        Before that it calls up to BACKLOG more times, and each EMFILE would cause a line of the log and another
        attempt. So for a moment BlockingIOError claims that no connection waits.
        """
        # Reference cycles keep connections for some time after they are closed
        count = sum(connection.fileno() >= 0 for connection in self.accepted)
        if count >= self.most:
            now = time.monotonic()
            if now - self.full_since < MOMENT_OF_ASKING:
                raise BlockingIOError
            self.full_since = now
            raise OSError(errno.EMFILE, "this process has as many open connections as it may have")
        connection, address = super().accept()
        self.accepted.add(connection)
        return connection, address


def is_full(error: BaseException | None) -> bool:
    """Whether an error is a Listener's for too many connections."""
    return isinstance(error, OSError) and error.errno == errno.EMFILE


def most_connections() -> int:
    """The number of connections that this process may have open at the same time."""
    if os.name != "posix":
        return CONNECTIONS
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return CONNECTIONS
    return max(1, min(CONNECTIONS, limit - SPARE))


async def close_silent(server: "uvicorn.Server", seconds: float) -> None:
    """Close, in an endless loop, connections whose clients send half a request or do not read the response:
    uvicorn would wait for them. seconds: the limit of a request."""
    from uvicorn.protocols.http.h11_impl import H11Protocol

    since: WeakKeyDictionary[Any, tuple[Any, float]] = WeakKeyDictionary()
    while True:
        await asyncio.sleep(LOOK)
        now = time.monotonic()
        for connection in list(server.server_state.connections):
            assert isinstance(connection, H11Protocol)  # because of config_of
            request = connection.cycle
            waits = request is None or request.response_complete
            state = (id(request), waits)
            before, began = since.get(connection, (None, now))
            if state != before:
                since[connection] = (state, now)
            elif now - began > (SILENT if waits else seconds + UNREAD):
                connection.transport.abort()


async def drain(server: "uvicorn.Server", bound: socket.socket) -> None:
    """Accept no more connections, and end the server when the open ones are done.

    Connections that only the system has accepted are taken over, because closing the socket would break them.
    Connections without a request stay open for a moment: a request may be on its way.
    """
    from uvicorn.protocols.http.h11_impl import H11Protocol

    # Connections that asyncio has accepted get their protocols before its server is closed: Python 3.11
    # would lose them without closing them (python/cpython#109564)
    loop = asyncio.get_running_loop()
    last = socket.fromfd(bound.fileno(), bound.family, bound.type, bound.proto)
    loop.remove_reader(bound.fileno())
    await asyncio.sleep(MOMENT)
    for each in server.servers:
        each.close()

    # Connections that wait to be accepted
    accepted = _accept_waiting(last)
    last.close()
    for connection in accepted:
        await loop.connect_accepted_socket(
            lambda: H11Protocol(
                config=server.config,
                server_state=server.server_state,
                app_state=server.lifespan.state,
            ),
            connection,
        )

    # The last requests
    ends = time.monotonic() + LINGER
    while server.server_state.connections and time.monotonic() < ends:
        await asyncio.sleep(MOMENT)
    server.should_exit = True


def _accept_waiting(listener: socket.socket) -> list[socket.socket]:
    """Accept all waiting connections."""
    listener.setblocking(False)
    accepted: list[socket.socket] = []
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:  # none is left
            return accepted
        connection.setblocking(False)
        accepted.append(connection)
