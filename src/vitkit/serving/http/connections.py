"""The connections of a server: those that say nothing are closed, and when it ends each gets the answer
that it was promised."""

import asyncio
import socket
import time
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    import uvicorn

SILENT = 10.0  # seconds in which the head of a request has to come
UNREAD = 30.0  # seconds beyond a request's in which its answer has to be taken
LOOK = 1.0  # seconds between two looks at all connections
MOMENT = 0.02  # seconds between two looks at connections that end
LINGER = 1.0  # seconds that a connection without a request stays open when the server ends


async def close_silent(server: "uvicorn.Server", seconds: float) -> None:
    """Close, for ever, the connections whose clients send half a head or do not take their answer:
    uvicorn would wait for them.

    seconds: that a request may take.
    """
    since: WeakKeyDictionary[Any, tuple[Any, float]] = WeakKeyDictionary()
    while True:
        await asyncio.sleep(LOOK)
        now = time.monotonic()
        for connection in list(server.server_state.connections):
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
    # Those that asyncio has accepted get their protocols before its server is closed: in Python 3.11
    # it would forget them, open (python/cpython#109564)
    loop = asyncio.get_running_loop()
    last = bound.dup()
    loop.remove_reader(bound.fileno())
    await asyncio.sleep(MOMENT)
    for each in server.servers:
        each.close()

    # Those that wait to be accepted
    accepted = _accept_waiting(last)
    last.close()
    for connection in accepted:
        await loop.connect_accepted_socket(
            lambda: server.config.http_protocol_class(
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
    accepted = []
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:  # there is none
            return accepted
        connection.setblocking(False)
        accepted.append(connection)
