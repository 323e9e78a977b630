"""A time limit for the response of a web server, from its first byte.

A socket's timeout limits only one pause. A server that sends a header every few seconds stays within it, and
could keep its client waiting without an end.
"""

import socket
import threading
from contextlib import suppress
from functools import partial
from http.client import HTTPConnection, HTTPResponse, HTTPSConnection
from urllib import request


class TimeLimit:
    """A context that closes the connections of its handler when its time is over, if they still wait for
    headers.

    A call that waits for them then gets an OSError or an HTTPException, or an apparently complete response;
    check `is_over` in that case, and also after reading a body.
    """

    def __init__(self, seconds: float):
        self.is_over = False
        self.connections: list[HTTPConnection] = []
        self.timer = threading.Timer(seconds, self._end)
        self.timer.daemon = True

    def __enter__(self) -> "TimeLimit":
        self.timer.start()
        return self

    def __exit__(self, *_) -> None:
        self.timer.cancel()

    def _end(self) -> None:
        self.is_over = True
        for connection in self.connections:
            if connection.sock is not None:
                with suppress(OSError):  # already closed
                    connection.sock.shutdown(socket.SHUT_RDWR)

    def handler(self) -> request.BaseHandler:
        """The handler that opens http:// and https:// within this time."""
        return _DeadlineHandler(self)


class _DeadlineHandler(request.HTTPSHandler, request.HTTPHandler):
    """Opens http:// and https:// within a deadline."""

    def __init__(self, deadline: TimeLimit):
        super().__init__()
        self.deadline = deadline

    def http_open(self, asked: request.Request) -> HTTPResponse:
        return self.do_open(partial(self._connection, HTTPConnection), asked)

    def https_open(self, asked: request.Request) -> HTTPResponse:
        return self.do_open(partial(self._connection, HTTPSConnection), asked)

    def _connection(
        self, kind: type[HTTPConnection], host: str, timeout: float | None = None
    ) -> HTTPConnection:
        """A connection that is closed at the deadline, or immediately if it is opened later."""
        deadline = self.deadline
        connection = kind(host, timeout=timeout)
        connect = connection.connect

        def connect_in_time() -> None:
            connect()
            if deadline.is_over:  # it was opened too late to be closed
                raise TimeoutError("the time is over")

        connection.connect = connect_in_time  # type: ignore[method-assign]
        deadline.connections.append(connection)
        return connection
