"""A time by which a web server has to have answered, from the first byte on.

A socket's timeout is that of one silence. A server that sends a header every few seconds keeps within it, and
holds its client for as long as it likes.
"""

import socket
import threading
from contextlib import suppress
from functools import partial
from http.client import HTTPConnection, HTTPResponse, HTTPSConnection
from urllib import request


class TimeLimit:
    """A block that ends the connections of its handler when its time is over, if they still wait for the
    headers of an answer.

    What waits for them gets an OSError or an HTTPException then, or an answer that seems to be complete;
    `is_over` tells. It tells who reads the body, too.
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
                with suppress(OSError):  # closed already
                    connection.sock.shutdown(socket.SHUT_RDWR)

    def handler(self) -> request.BaseHandler:
        """What opens http:// and https:// within this time."""
        return _Within(self)


class _Within(request.HTTPSHandler, request.HTTPHandler):
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
        """A connection that ends with the deadline: while it waits, and as soon as it is there."""
        deadline = self.deadline
        connection = kind(host, timeout=timeout)
        connect = connection.connect

        def connect_in_time() -> None:
            connect()
            if deadline.is_over:  # it was made too late to be ended
                raise TimeoutError("the time is over")

        connection.connect = connect_in_time  # type: ignore[method-assign]
        deadline.connections.append(connection)
        return connection
