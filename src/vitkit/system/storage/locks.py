"""A lock among the processes that may write to one directory.

The system releases it when the process ends for any reason. Forked children do not have it, so data workers
that outlive a killed run do not block other processes. filelock is not used, because a child keeps its lock
(flock). The lock works on shared file systems, by fcntl.lockf, and on Windows, by msvcrt.locking.
"""

import errno
import os
import sys
from pathlib import Path


def try_lock(file: Path) -> int | None:
    """Lock a file, which is created if necessary, until the returned handle is closed (`os.close`) or this
    process ends. Returns None if another process has the lock.

    A process must not open a file again that it has locked: closing it would release the lock.

    Raises OSError if the file cannot be created, or if its file system has no locks.
    """
    handle = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        if error.errno in (errno.EAGAIN, errno.EACCES, errno.EDEADLK):
            return None
        raise
    return handle
