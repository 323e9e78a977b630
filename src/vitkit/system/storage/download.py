"""The only way to download a file: continued after an interruption, checked, and complete or not at all.

Uses the standard library, not fsspec, which reads data in remote.py. fsspec's HTTP needs ten more packages
(13 MB, 0.4 s to import), takes twice as long for 200 MB from a local server, starts again after an
interruption, and does not return the md5 of Google's storage.
"""

import base64
import hashlib
import urllib.error
import urllib.request
from http.client import HTTPException, HTTPMessage
from pathlib import Path
from typing import NamedTuple

from vitkit.system.errors import NotThere, Unavailable
from vitkit.system.storage.deadline import TimeLimit

TIMEOUT = 30  # seconds to wait for a response, and for each part of it
HEAD = 60  # seconds within which the headers of a response must be complete
CHUNK = 2**20  # bytes to read at once

# HTTP statuses
PARTIAL_CONTENT = 206
FORBIDDEN = 403  # Google's storage returns this for a file that does not exist
NOT_FOUND = 404
RANGE_NOT_SATISFIABLE = 416


class Expected(NamedTuple):
    """The server's description of the whole file."""

    size: int
    """Size of the file in bytes."""
    md5: str | None
    """MD5 of the file in base64; None if the server does not give it."""


def download(url: str, target: Path) -> Path:
    """Download a file to `target`, with a progress bar, and return `target`. An existing file is not
    downloaded again.

    An incomplete file is named *.part; a later call continues it. Raises FileNotFoundError if the server has
    no such file, OSError for a download that is interrupted or damaged.
    """
    if target.is_file():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_suffix(".part")
    try:
        expected = _receive(url, part, target.name)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == RANGE_NOT_SATISFIABLE:
            # The part is as long as the file or longer, so it belongs to another version: start again
            part.unlink()
            return download(url, target)
        if error.code in (FORBIDDEN, NOT_FOUND):
            raise NotThere(f"{url}: there is no such file") from error
        raise Unavailable(f"{url}: the server answers {error.code}") from error
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        message = f"{url} cannot be downloaded: {reason}"
        if part.is_file():
            message += f"; the {part.stat().st_size:,} bytes that came are kept, run it again"
        raise Unavailable(message) from error
    _check(part, expected, url)
    part.replace(target)
    return target


def _receive(url: str, part: Path, name: str) -> Expected:
    """Append the missing bytes to `part`. Raises OSError."""
    present = 0
    headers = {}
    if part.is_file():
        present = part.stat().st_size
        headers = {"Range": f"bytes={present}-"}
    request = urllib.request.Request(url, headers=headers)
    deadline = TimeLimit(HEAD)
    opener = urllib.request.build_opener(deadline.handler())
    with deadline:
        opened = opener.open(request, timeout=TIMEOUT)
    with opened as answer:
        if deadline.is_over:  # incomplete headers look complete
            raise TimeoutError(f"no answer within {HEAD} seconds")
        if answer.status != PARTIAL_CONTENT:  # the server sends the whole file
            present = 0
        length = answer.headers.get("Content-Length", "")
        if not length.isdecimal():
            raise Unavailable("the server does not say how long the file is")
        size = present + int(length)
        _write(answer, part, present, size, name)
        return Expected(size, _md5(answer.headers))


def _write(answer, part: Path, present: int, size: int, name: str) -> None:
    """Write a response to `part`, after the bytes that are present, with a progress bar."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )
    mode = "ab" if present else "wb"
    with part.open(mode) as file, bar:
        task = bar.add_task(name, total=size, completed=present)
        while chunk := answer.read(CHUNK):
            file.write(chunk)
            bar.advance(task, len(chunk))


def _md5(headers: HTTPMessage) -> str | None:
    """The md5 in Google's header x-goog-hash: "crc32c=...,md5=...", on one line or several."""
    for line in headers.get_all("x-goog-hash", []):
        for digest in line.split(","):
            kind, _, value = digest.strip().partition("=")
            if kind == "md5":
                return value
    return None


def _check(part: Path, expected: Expected, url: str) -> None:
    """Raise OSError unless the file is complete. A damaged one is deleted, a short one kept."""
    size = part.stat().st_size
    if size < expected.size:
        raise Unavailable(
            f"{url} broke off after {size:,} of {expected.size:,} bytes; run it again to continue"
        )
    if expected.md5 is None:
        return
    with part.open("rb") as file:
        digest = hashlib.file_digest(file, "md5").digest()
    md5 = base64.b64encode(digest).decode()
    if md5 != expected.md5:
        part.unlink()
        raise Unavailable(
            f"{url} arrived damaged: its md5 is {md5}, the server says {expected.md5}; run it again"
        )
