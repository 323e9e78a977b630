"""Remote reading in several attempts, with errors that state the actual failure.

Each file system of fsspec has its own error classes, and some hide the server's response: that of https
calls every failure "not found". The HTTP status, which most errors contain, decides.
"""

import random
import time
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from vitkit.system.console.messages import say
from vitkit.system.errors import BadSettings, Forbidden, NotThere, Unavailable
from vitkit.system.storage.addresses import shown_address, without_credentials_of

ATTEMPTS = 4  # if the network fails, 1, 2 and 4 seconds apart
BUSY_ATTEMPTS = 7  # if the server is busy: for about a minute
LONGEST = 60.0  # limit in seconds of a waiting time that a server demands
BUSY = {408, 425, 429, 500, 502, 503, 504}  # a later attempt may succeed
NOT_FOUND = {404, 410}
FORBIDDEN = {401, 403, 407}
_reported_servers: set[str] = set()  # busy servers that this process has reported already
_random = random.Random()  # separate from generators that a program may have seeded


def with_retries(operation: Callable[[Any, str], Any], address: str) -> Any:
    """Return operation(file system, path on it), with several attempts if the network or a busy server may be
    the reason of a failure. A busy server is reported once per process.

    Raises FileNotFoundError, PermissionError and other OSErrors, and VitkitError for an unknown scheme.
    """
    attempt = 0
    shown = shown_address(address)  # for terminals and logs
    while True:
        attempt += 1
        try:
            import fsspec  # inside `try`: its ImportError is handled like those of its file systems

            file_system, path = fsspec.core.url_to_fs(address)
            return operation(file_system, path)
        except (ImportError, ValueError) as error:
            # An unknown scheme, or its package is not installed
            reason = without_credentials_of(address, str(error)).splitlines()[0]
            raise BadSettings(
                f"{shown} cannot be opened: {reason}; try pip install 'vitkit[remote]'"
            ) from None
        except Exception as error:
            failure = error
        status = status_of(failure)
        _raise_if_final(failure, status, address)

        # A failure that another attempt may overcome
        attempts = BUSY_ATTEMPTS if status in BUSY else ATTEMPTS
        if attempt >= attempts:
            raise Unavailable(
                f"{shown} cannot be read, after {attempt} attempts: {_reason(failure, status, address)}"
            ) from failure
        if status in BUSY:
            _report_busy(address, status)
        time.sleep(_pause(attempt, failure))


def is_missing(error: FileNotFoundError) -> bool:
    """Whether an error of a file system means that the file does not exist, and not that the server is
    unreachable or busy. A forbidden file counts: some object stores return that for one that does not
    exist."""
    status = status_of(error)
    if status is not None:
        return status in NOT_FOUND | FORBIDDEN
    return not isinstance(error.__cause__, OSError)  # which would be an error of the network


def status_of(error: BaseException) -> int | None:
    """The HTTP status from which an error was made; None if there is none."""
    for each in _chain(error):
        if type(each).__module__ == "aiohttp.http_exceptions":
            continue  # an interrupted response, which has status 400 there
        for status in _statuses(each):
            if isinstance(status, int) and 400 <= status < 600:
                return status
    return None


def _statuses(error: BaseException) -> Iterator[Any]:
    """Possible statuses, the most likely first, from the attributes of several libraries."""
    yield getattr(error, "status", None)  # aiohttp, for https
    yield getattr(error, "status_code", None)  # Azure
    response = getattr(error, "response", None)
    yield getattr(response, "status_code", None)  # the Hugging Face hub
    if isinstance(response, dict):  # botocore, for s3
        yield response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    yield getattr(error, "code", None)  # Google


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error and its causes."""
    while error is not None:
        yield error
        error = error.__cause__


def _raise_if_final(failure: Exception, status: int | None, address: str) -> None:
    """Raise OSError for a failure that another attempt cannot overcome."""
    shown = shown_address(address)
    reason = _reason(failure, status, address)
    if isinstance(failure, PermissionError) and status is None:
        raise Forbidden(f"{shown} may not be read: {reason}") from None
    if status in FORBIDDEN:
        raise Forbidden(f"{shown} may not be read, or is not there: {reason}") from None
    is_not_there = isinstance(failure, FileNotFoundError) and is_missing(failure)
    if is_not_there or status in NOT_FOUND:
        raise NotThere(f"there is no {shown}") from None
    if status is not None and status not in BUSY:
        raise Unavailable(f"{shown} cannot be read: {reason}") from None


def _reason(failure: BaseException, status: int | None, address: str) -> str:
    """A short description of a failure."""
    if status is not None:
        return f"the server answers {_named(status)}"
    if isinstance(failure, FileNotFoundError):
        failure = failure.__cause__ or failure
    reason = str(failure) or type(failure).__name__
    return without_credentials_of(address, reason).splitlines()[0]


def _named(status: int) -> str:
    """A status with its phrase, such as "503 (Service Unavailable)"."""
    try:
        return f"{status} ({HTTPStatus(status).phrase})"
    except ValueError:
        return str(status)


def _report_busy(address: str, status: int) -> None:
    """Report that a server is busy, once per server in a process."""
    parts = urlsplit(address)
    server = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
    if server not in _reported_servers:
        _reported_servers.add(server)
        say(
            f"{server} answers {_named(status)}; what it refuses is asked for again, a little later"
        )


def _pause(attempt: int, failure: Exception) -> float:
    """Seconds to wait after a number of attempts: doubled each time, and randomly reduced by up to a half, so
    that many workers do not retry at the same time; at least the time that the server demands."""
    seconds = 2 ** (attempt - 1) * _random.uniform(0.5, 1)
    for each in _chain(failure):
        headers = getattr(each, "headers", None) or {}
        asked = str(headers.get("Retry-After", ""))
        if asked.isdecimal():
            seconds = max(seconds, min(float(asked), LONGEST))
    return seconds
