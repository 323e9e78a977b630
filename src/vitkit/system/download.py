"""The one way to download a file: continued where it broke off, checked, and there whole or not at all.

By the standard library, not by fsspec, which reads data from everywhere (remote.py): its HTTP needs ten more packages
(13 MB, 0.4 s to import), takes twice as long for a local server's 200 MB, starts over after a break, and does not pass on
the md5 that Google's storage states.
"""

import base64
import hashlib
import urllib.error
import urllib.request
from http.client import HTTPMessage
from pathlib import Path
from typing import NamedTuple

TIMEOUT = 30  # seconds without an answer
CHUNK = 2**20  # bytes


class Expected(NamedTuple):
    """What the server says about the whole file."""

    size: int
    """In bytes."""
    md5: str | None
    """In base64, if it says so."""


def download(url: str, target: Path) -> Path:
    """Download a file to `target`, with a progress bar, and return that; if it is there already, nothing is asked.

    What comes is kept beside it (.part), and continued when this is called again. Raises FileNotFoundError if the server
    has no such file, OSError for a download that breaks off or arrives damaged.
    """
    if target.is_file():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_suffix(".part")
    try:
        expected = _receive(url, part, target.name)
    except urllib.error.HTTPError as error:
        if error.code == 416:  # all of it was there, or more than there is
            part.unlink()
            return download(url, target)
        if error.code in (403, 404):
            raise FileNotFoundError(f"{url}: there is no such file") from error
        raise OSError(f"{url}: the server answers {error.code}") from error
    except OSError as error:
        reason = getattr(error, "reason", None) or error
        message = f"{url} cannot be downloaded: {reason}"
        if part.is_file():
            message += f"; the {part.stat().st_size:,} bytes that came are kept, run it again"
        raise OSError(message) from error
    _check(part, expected, url)
    part.replace(target)
    return target


def _receive(url: str, part: Path, name: str) -> Expected:
    """Add what is missing to a part of the file. Raises OSError."""
    present = part.stat().st_size if part.is_file() else 0
    headers = {"Range": f"bytes={present}-"} if present else {}
    request = urllib.request.Request(url, headers=headers)
    with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
        if answer.status != 206:  # the server sends all of it
            present = 0
        size = present + int(answer.headers["Content-Length"])
        _write(answer, part, present, size, name)
        return Expected(size, _md5(answer.headers))


def _write(answer, part: Path, present: int, size: int, name: str) -> None:
    """Write what comes behind what is present, and show how far it is."""
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
    """The md5 among the hashes that Google's storage states: "crc32c=...,md5=..." on one line or several."""
    for line in headers.get_all("x-goog-hash", []):
        for digest in line.split(","):
            kind, _, value = digest.strip().partition("=")
            if kind == "md5":
                return value
    return None


def _check(part: Path, expected: Expected, url: str) -> None:
    """Raise OSError unless the file is whole; a damaged one is deleted."""
    size = part.stat().st_size
    if size < expected.size:
        raise OSError(
            f"{url} broke off after {size:,} of {expected.size:,} bytes; run it again to continue"
        )
    if expected.md5 is None:
        return
    with part.open("rb") as file:
        digest = hashlib.file_digest(file, "md5").digest()
    md5 = base64.b64encode(digest).decode()
    if md5 != expected.md5:
        part.unlink()
        raise OSError(
            f"{url} arrived damaged: its md5 is {md5}, the server says {expected.md5}; run it again"
        )
