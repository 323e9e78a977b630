"""A lock among processes."""

import errno
import fcntl
import os

import pytest
from processes import locked_elsewhere

from vitkit.system.storage.locks import try_lock


def test_one_process_holds_a_lock(tmp_path):
    file = tmp_path / "LOCK"
    with locked_elsewhere(file):
        assert try_lock(file) is None
    handle = try_lock(file)
    assert handle is not None
    os.close(handle)


def test_a_child_does_not_hold_the_lock(tmp_path):
    """Data workers, which are forked, may outlive a run that was killed."""
    handle = try_lock(tmp_path / "LOCK")
    with locked_elsewhere(tmp_path / "another"):  # a child that has all files open
        os.close(handle)
        handle = try_lock(tmp_path / "LOCK")
        assert handle is not None
    os.close(handle)


def test_a_file_system_without_locks_is_an_error(tmp_path, monkeypatch):
    def no_locks(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "lockf", no_locks)
    with pytest.raises(OSError, match="No locks available"):
        try_lock(tmp_path / "LOCK")
