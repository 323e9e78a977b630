"""Addresses without what opens them for everybody: users, passwords, signatures and tokens.

What was typed opens the address; what is shown, logged or written down for others is `shown_address` of
it, or a text through `without_credentials`.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote

MASK = "***"
LEAST_SECRET = 4  # characters of a secret that is looked for within words
SHORT = 16  # characters below which the value of a query is no signature, token or hash

_START = re.compile(r"[a-z][a-z0-9+.\-]+://", re.IGNORECASE)
_IN_TEXT = re.compile(r"[a-z][a-z0-9+.\-]+://[^\s\"'<>\\`]+", re.IGNORECASE)
# Up to the last "@" before the path; or, of a password with "/" in it, behind a colon that no port follows
_USER = re.compile(r"://(?:[^/?#\s]*@|[^/?#\s@]*:(?!\d+(?:[/?#]|$))\S*@)")
_CONTAINER = re.compile(
    r"(?:abfss?|wasbs?|adl)://[^:/@]+@", re.IGNORECASE
)  # Azure's CONTAINER@ACCOUNT
_QUERY = re.compile(r"[?#].*", re.DOTALL)
_QUERY_OF_STORES = re.compile(
    r"\?[\w.\-~%+]+=.*", re.DOTALL
)  # in others' addresses "?" is a wildcard
_SECRET_NAME = re.compile(
    r"sig|token|secret|passw|pwd|\bpw\b|auth|cred|key|session|jwt|hmac|policy|\bcode\b|access",
    re.IGNORECASE,
)
_PLAIN_VALUE = re.compile(r"[\w.\-]*")


def shown_address(address: str) -> str:
    """An address for people and records: without user and password, and of a query only what cannot be a
    signature or a token. Anything but an address, and an address without such, is returned as it is.

    A chain of fsspec's ("zip://*.csv::https://...") is several addresses.
    """
    if not _START.match(address):
        return address
    return "::".join(map(_shown, address.split("::")))


_typed: dict[str, str] = {}  # by what is shown of them, the addresses that this process was given


def remember(address: str) -> None:
    """Keep an address, for this process alone: records have only what is shown of it."""
    if holds_credentials(address):
        _typed[shown_address(address)] = address


def as_typed(shown: str) -> str:
    """The address of which a record has what is shown, if this process was given it; else the same."""
    return _typed.get(shown, shown)


def holds_credentials(address: str) -> bool:
    """Whether an address has a user, a password, or something that may be a signature or a token."""
    return shown_address(address) != address


def is_masked(address: str) -> bool:
    """Whether an address was written down without its credentials, and cannot be opened."""
    return bool(_START.match(address)) and bool(re.search(r"(?:://|[=?&#])\*\*\*", address))


def without_credentials(text: str) -> str:
    """A text in which every address is as `shown_address` has it."""
    if "://" not in text:
        return text
    return _IN_TEXT.sub(lambda match: _shown_in_text(match[0]), text)


def without_credentials_of(address: str, text: str) -> str:
    """A text about an address, such as the sentence of a library's error, without the credentials of the
    address: neither in an address nor in a part of one, such as a "port" that is a password."""
    secrets = set()
    for each in address.split("::"):
        user = _USER.search(each)
        if user is not None and not _CONTAINER.match(each):
            secrets |= {user[0][3:-1], *re.split(r"[:/@?#]", user[0][3:-1])}
        query = _QUERY.search(each)
        if query is not None:
            parts = re.split(r"[?#&;]", query[0])
            secrets |= {part.partition("=")[2] for part in parts if _shown_part(part) != part}
    secrets |= set(map(unquote, secrets))
    text = without_credentials(text)
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= LEAST_SECRET:
            text = text.replace(secret, MASK)
    return text


@contextmanager
def showing_no_credentials() -> Iterator[None]:
    """A block whose errors show no credentials of addresses."""
    try:
        yield
    except (ValueError, OSError) as error:
        if error.args and isinstance(error.args[0], str):
            error.args = (without_credentials(error.args[0]), *error.args[1:])
        raise


def values_without_credentials(value: Any) -> Any:
    """A record (a text, or a list or dict of values) in which no address has credentials."""
    if isinstance(value, dict):
        return {
            values_without_credentials(name): values_without_credentials(item)
            for name, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [values_without_credentials(item) for item in value]
    if isinstance(value, str) and "://" in value:
        return without_credentials(shown_address(value))
    return value


def _shown_in_text(found: str) -> str:
    """An address that was found in a text, where a sentence may go on behind it."""
    address = found.rstrip(".,;:!)]}")
    return shown_address(address) + found[len(address) :]


def _shown(address: str) -> str:
    """One address of a chain."""
    if not _CONTAINER.match(address):
        address = _USER.sub(f"://{MASK}@", address, count=1)
    pattern = _QUERY_OF_STORES
    if address.lower().startswith(("http:", "https:")):
        pattern = _QUERY
    query = pattern.search(address)
    if query is None:
        return address
    parts = re.split(r"([?#&;])", query[0])
    return address[: query.start()] + "".join(map(_shown_part, parts))


def _shown_part(part: str) -> str:
    """A sign between the parts of a query, or a part: NAME=VALUE, or a text without a name."""
    if len(part) <= 1:
        return part
    name, equals, value = part.partition("=")
    if not equals:
        return MASK
    is_plain = len(value) < SHORT and _PLAIN_VALUE.fullmatch(value)
    if not value or (is_plain and not _SECRET_NAME.search(name)):
        return part
    return f"{name}={MASK}"
