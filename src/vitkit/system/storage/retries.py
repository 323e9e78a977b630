"""Reading from elsewhere, in several attempts, with failures that are named as what they are.

Each file system of fsspec has error classes of its own, and some hide what a server has answered: that
of https calls every failure "not found". What counts is the HTTP status, which most have somewhere.
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

ATTEMPTS = 4  # at a network that fails, 1, 2 and 4 seconds apart
BUSY_ATTEMPTS = 7  # at a server that has too much to do: about a minute
LONGEST = 60.0  # seconds to wait for a server that says how long
BUSY = {408, 425, 429, 500, 502, 503, 504}  # it may answer later
NOT_FOUND = {404, 410}
FORBIDDEN = {401, 403, 407}
_told: set[str] = set()  # what this process has said, so that it says so once
_chance = random.Random()  # apart from the generators that a program may have seeded


def with_retries(operation: Callable[[Any, str], Any], address: str) -> Any:
    """Returns operation(file system, path on it), tried several times if the network or a busy server
    may be to blame; of a server that a process waits for it says so once.

    Raises FileNotFoundError, PermissionError and other OSErrors, and VitkitError for an unknown scheme.
    """
    attempt = 0
    shown = shown_address(address)  # it reaches terminals and logs
    while True:
        attempt += 1
        try:
            import fsspec  # in here, as an ImportError says what to install, like one of fsspec's

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

        # A failure that another attempt may mend
        attempts = BUSY_ATTEMPTS if status in BUSY else ATTEMPTS
        if attempt >= attempts:
            raise Unavailable(
                f"{shown} cannot be read, after {attempt} attempts: {_reason(failure, status, address)}"
            ) from failure
        if status in BUSY:
            _tell(address, status)
        time.sleep(_pause(attempt, failure))


def is_missing(error: FileNotFoundError) -> bool:
    """Whether an error of a file system says that there is no such file, and not that nobody answers,
    or that the server has too much to do. A forbidden file counts: some object stores say so of one
    that is not there."""
    status = status_of(error)
    if status is not None:
        return status in NOT_FOUND | FORBIDDEN
    return not isinstance(error.__cause__, OSError)  # else it is the network's


def status_of(error: BaseException) -> int | None:
    """The HTTP status that an error was made of; None if there is none."""
    for each in _chain(error):
        if type(each).__module__ == "aiohttp.http_exceptions":
            continue  # an answer that broke off, which it calls 400
        for status in _statuses(each):
            if isinstance(status, int) and 400 <= status < 600:
                return status
    return None


def _statuses(error: BaseException) -> Iterator[Any]:
    """What may be a status, the most likely first, by the names that libraries have for it."""
    yield getattr(error, "status", None)  # aiohttp's, below https
    yield getattr(error, "status_code", None)  # Azure's
    response = getattr(error, "response", None)
    yield getattr(response, "status_code", None)  # the Hugging Face hub's
    if isinstance(response, dict):  # botocore's, below s3
        yield response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    yield getattr(error, "code", None)  # Google's


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error and its causes."""
    while error is not None:
        yield error
        error = error.__cause__


def _raise_if_final(failure: Exception, status: int | None, address: str) -> None:
    """Raises OSError for a failure that stays what it is."""
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
    """What went wrong, in a few words."""
    if status is not None:
        return f"the server answers {_named(status)}"
    if isinstance(failure, FileNotFoundError):
        failure = failure.__cause__ or failure
    reason = str(failure) or type(failure).__name__
    return without_credentials_of(address, reason).splitlines()[0]


def _named(status: int) -> str:
    """A status with its name, such as "503 (Service Unavailable)"."""
    try:
        return f"{status} ({HTTPStatus(status).phrase})"
    except ValueError:
        return str(status)


def _tell(address: str, status: int) -> None:
    """Say that a server is busy; once for each server in a process."""
    parts = urlsplit(address)
    server = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
    if server not in _told:
        _told.add(server)
        say(
            f"{server} answers {_named(status)}; what it refuses is asked for again, a little later"
        )


def _pause(attempt: int, failure: Exception) -> float:
    """Seconds to wait after a number of attempts: twice as long each time, and by chance up to a half
    less, so that a thousand workers do not come back together; at least what the server asks for."""
    seconds = 2 ** (attempt - 1) * _chance.uniform(0.5, 1)
    for each in _chain(failure):
        headers = getattr(each, "headers", None) or {}
        asked = str(headers.get("Retry-After", ""))
        if asked.isdecimal():
            seconds = max(seconds, min(float(asked), LONGEST))
    return seconds
