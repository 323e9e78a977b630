"""The connections of a server: they do not take all descriptors, those that say nothing are closed, and
when the server ends each gets the answer to what it has sent."""

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

CONNECTIONS = 1000  # open at the same time; further ones wait until one ends
SPARE = 64  # descriptors that no connection gets: another model is opened with them
BACKLOG = 1024  # connections that wait to be accepted
IDLE = 5  # seconds that a connection is kept for another request
SILENT = 10.0  # seconds in which the head of a request has to come
UNREAD = 30.0  # seconds beyond a request's in which its answer has to be taken
LOOK = 1.0  # seconds between two looks at all connections
MOMENT_OF_ASKING = 0.5  # seconds in which a full server says so once
MOMENT = 0.02  # seconds between two looks at connections that end
LINGER = 1.0  # seconds that a connection without a request stays open when the server ends


def config_of(
    app: "ASGIApp", grace: int | None = None, log_level: str | None = None
) -> "uvicorn.Config":
    """The settings of a server that strangers reach.

    Args:
        app: The application.
        grace: Seconds that a server which is told to end gives to open requests; None is any time.
        log_level: What uvicorn's own log leaves out is below this; None leaves it as it is.
    """
    import uvicorn

    return uvicorn.Config(
        app,
        http="h11",  # which bounds the head of a request
        log_config=None,
        access_log=False,
        ws="none",
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        limit_concurrency=CONNECTIONS + 1,  # the socket accepts fewer
        timeout_keep_alive=IDLE,
        lifespan="off",
        timeout_graceful_shutdown=grace,
        log_level=log_level,
    )


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket that is bound to an address, and does not listen yet; port 0 is any that is free. Raises
    VitkitError for a host that is no address, and OSError for an address that cannot be bound to."""
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
    """A socket that accepts no more connections than there are descriptors to spare: the others wait in
    the system, and find their place when one ends. If connections took all of them, no other model
    could be opened, nor the files of the metrics."""

    def __init__(self, bound: socket.socket):
        """Takes the place of the socket `bound`."""
        super().__init__(bound.family, bound.type, bound.proto, fileno=bound.detach())
        self.accepted: WeakSet[socket.socket] = WeakSet()
        """Those that are open: who closes a connection forgets its socket."""
        self.most = most_connections()
        self.full_since = -math.inf
        """When it last said that there are too many, in seconds of the monotonic clock."""

    def accept(self) -> tuple[socket.socket, Any]:
        """The next connection. Raises OSError with EMFILE for one too many, as the system does: asyncio then
        tries again after a second.

        Before that it asks up to BACKLOG times more, and each EMFILE would be a line of the log and another
        try. So for a moment BlockingIOError says that no connection waits.
        """
        # Reference cycles keep connections for a while after they are closed
        count = sum(connection.fileno() >= 0 for connection in self.accepted)
        if count >= self.most:
            now = time.monotonic()
            if now - self.full_since < MOMENT_OF_ASKING:
                raise BlockingIOError
            self.full_since = now
            raise OSError(errno.EMFILE, "as many connections are open as this process takes")
        connection, address = super().accept()
        self.accepted.add(connection)
        return connection, address


def is_full(error: BaseException | None) -> bool:
    """Whether this is how a Listener says that it accepts no more connections for now."""
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
    """Close, for ever, the connections whose clients send half a request or do not take their answer:
    uvicorn would wait for them. seconds: that a request may take."""
    from uvicorn.protocols.http.h11_impl import H11Protocol

    since: WeakKeyDictionary[Any, tuple[Any, float]] = WeakKeyDictionary()
    while True:
        await asyncio.sleep(LOOK)
        now = time.monotonic()
        for connection in list(server.server_state.connections):
            assert isinstance(connection, H11Protocol)  # says config_of
            request = connection.cycle
            waits = request is None or request.response_complete
            state = (id(request), waits)
            before, began = since.get(connection, (None, now))
            if state != before:
                since[connection] = (state, now)
            elif now - began > (SILENT if waits else seconds + UNREAD):
                connection.transport.abort()


async def drain(server: "uvicorn.Server", bound: socket.socket) -> None:
    """Accept no more connections, and have the server end when those that are open are done.

    Connections that the system has accepted already, and nobody here, are taken over: closing the
    socket would break them. Connections without a request stay open for a moment: a request may be
    on its way.
    """
    from uvicorn.protocols.http.h11_impl import H11Protocol

    # Those that asyncio has accepted get their protocols before its server is closed: in Python 3.11
    # it would forget them, open (python/cpython#109564)
    loop = asyncio.get_running_loop()
    last = socket.fromfd(bound.fileno(), bound.family, bound.type, bound.proto)
    loop.remove_reader(bound.fileno())
    await asyncio.sleep(MOMENT)
    for each in server.servers:
        each.close()

    # Those that wait to be accepted
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
    """The connections that wait to be accepted."""
    listener.setblocking(False)
    accepted: list[socket.socket] = []
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:  # there is none
            return accepted
        connection.setblocking(False)
        accepted.append(connection)
