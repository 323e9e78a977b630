"""The socket that accepts no more connections than there are descriptors to spare."""

import errno
import socket

import pytest

from vitkit.web import Listener


def test_a_full_server_says_so_once_however_often_it_is_asked():
    with Listener(socket.create_server(("127.0.0.1", 0))) as listener:
        listener.most = 1
        with socket.create_connection(listener.getsockname()):
            first, _ = listener.accept()
            with pytest.raises(OSError, match="open connections") as full:
                listener.accept()
            assert full.value.errno == errno.EMFILE
            for _ in range(3):  # as asyncio does, up to its backlog
                with pytest.raises(BlockingIOError):
                    listener.accept()
            first.close()
