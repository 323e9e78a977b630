"""Removing credentials from addresses: users, passwords, signatures and tokens.

vitkit opens addresses as they were typed. It shows, logs and records only `shown_address` of them, and texts
after `without_credentials`.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote, unquote_plus

MASK = "***"
LEAST_SECRET = 4  # minimum characters of a secret that is searched for within words
SHORT = 16  # values of a query with fewer characters are not signatures, tokens or hashes
LONGEST_SCHEME = 30  # characters that are read before a "://" in a text

# Texts may be long and untrusted: each pattern, and `_users`, takes time proportional to the length
_START = re.compile(r"[a-z][a-z0-9+.\-]+://", re.IGNORECASE)
_IN_TEXT = re.compile(r"(?<=[a-z0-9+.\-]{2})://[^\s\"'<>\\`]+", re.IGNORECASE)  # without its scheme
_SCHEME = re.compile(r"[a-z][a-z0-9+.\-]*\Z", re.IGNORECASE)
_HOST = re.compile(r"[^/?#]*")
_WORD = re.compile(r"\S*")
_HOST_AND_PORT = re.compile(r"[^:]*(?::\d+)?")
# Where "@" is part of a path, or comes between github's ORG:REPO and a branch, or Azure's CONTAINER and the
# account
_NO_USER = re.compile(
    r"(?:abfss?|wasbs?|adl)://[^:/@]+@|(?:file|git|github|libarchive|local|memory|tar|zip)://",
    re.IGNORECASE,
)
_TOKEN_OF_GITHUB = re.compile(r"\b(?:gh[oprsu]|github_pat)_")
_QUERY = re.compile(r"[?#].*", re.DOTALL)
# In addresses of stores "?" may be a wildcard
_QUERY_OF_STORES = re.compile(r"\?[\w.\-~%+]+=.*", re.DOTALL)
_SECRET_NAME = re.compile(
    r"sig|token|secret|passw|pwd|\bpw\b|auth|cred|key|session|jwt|hmac|policy|\bcode\b|access",
    re.IGNORECASE,
)
_VERSIONS = ("versionid", "generation")  # of a file, in S3 and in Google's store
_PLAIN_VALUE = re.compile(r"[\w.\-]*")
_BARE_WORD = re.compile(r"[a-z\-_]+\d{0,4}", re.IGNORECASE)
_FILE_NAME = re.compile(r"[\w./ \-]+\.\w{2,5}")
_PIECES = re.compile(r"[\W_]+")
_ORDINARY_PIECE = re.compile(r"[A-Z]*[a-z]*\d*")  # "holidays2024"; rarely hex or base64
SHORT_PIECE = 8  # shorter pieces of a name always count as ordinary


def shown_address(address: str) -> str:
    """An address for people and records: without user and password, and with only those parts of a query
    that cannot be signatures or tokens. Other texts, and addresses without such parts, are unchanged.

    A chain of fsspec ("zip://*.csv::https://...") is several addresses.
    """
    if not _START.match(address):
        return address
    return "::".join(map(_shown, address.split("::")))


_typed: dict[str, str] = {}  # the addresses given to this process, by their shown forms


def remember(address: str) -> None:
    """Keep an address in this process: records contain only its shown form."""
    if holds_credentials(address):
        _typed[shown_address(address)] = address


def as_typed(shown: str) -> str:
    """The address with this shown form, if it was given to this process; otherwise the shown form."""
    return _typed.get(shown, shown)


def holds_credentials(address: str) -> bool:
    """Whether an address has a user, a password, or a possible signature or token."""
    return shown_address(address) != address


def is_masked(address: str) -> bool:
    """Whether credentials were removed from an address, so that it cannot be opened."""
    return bool(_START.match(address)) and bool(re.search(r"(?:://|[=?&#])\*\*\*", address))


def without_credentials(text: str) -> str:
    """The text with every address in the form of `shown_address`."""
    if "://" not in text:
        return text
    # In a text an address ends at a quote, although a password may contain one: first replace the known
    # addresses (the longest ones first, because one may be the beginning of another)
    for shown, address in sorted(_typed.items(), key=lambda item: len(item[1]), reverse=True):
        text = text.replace(address, shown)
        text = text.replace(repr(address)[1:-1], shown)
    return _IN_TEXT.sub(_shown_in_text, text)


def without_credentials_of(address: str, text: str) -> str:
    """A text about an address, such as the message of a library's error, without the address's credentials:
    neither in an address nor in parts of one, such as a "port" that is a password."""
    secrets = set()
    for each in address.split("::"):
        for start, end in _users(each):
            user = each[start:end]
            secrets |= {user, *re.split(r"[:/@?#]", user)}
        _, parts = _query(each, _QUERY)
        hidden = [part for sign, part in parts if _shown_part(sign, part) != part]
        secrets |= {part.partition("=")[2] for part in hidden}
    secrets |= set(map(unquote, secrets))
    text = without_credentials(text)
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= LEAST_SECRET:
            text = text.replace(secret, MASK)
    return text


@contextmanager
def showing_no_credentials() -> Iterator[None]:
    """A context whose errors show no credentials of addresses."""
    try:
        yield
    except (ValueError, OSError) as error:
        if error.args and isinstance(error.args[0], str):
            error.args = (without_credentials(error.args[0]), *error.args[1:])
        raise


def values_without_credentials(value: Any) -> Any:
    """Remove the credentials from all addresses in a record (a text, or a list or dict of values)."""
    if isinstance(value, dict):
        return {
            values_without_credentials(name): values_without_credentials(item)
            for name, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [values_without_credentials(item) for item in value]
    if isinstance(value, str) and "://" in value:
        if re.search(r"\s", value):  # a sentence, possibly with an address first
            return _sentence_without_credentials(value)
        return without_credentials(shown_address(value))
    return value


def _sentence_without_credentials(text: str) -> str:
    """A text with white space, without credentials in addresses. It may also be one address with a space in its
    path, so other words may contain a query too."""
    words = re.split(r"(\s+)", without_credentials(text))
    for i, word in enumerate(words):
        if "?" in word and "://" not in word:
            words[i] = _shown_query(word, _QUERY)
    return "".join(words)


def _shown_in_text(match: re.Match) -> str:
    """The shown form of an address in a text, without its scheme. The sentence may continue after it."""
    before = match.string[max(0, match.start() - LONGEST_SCHEME) : match.start()]
    scheme = ""
    if found := _SCHEME.search(before):
        scheme = found[0]
    address = match[0].rstrip(".,;:!)]}")
    shown = "::".join(map(_shown, (scheme + address).split("::")))
    return shown[len(scheme) :] + match[0][len(address) :]


def _shown(address: str) -> str:
    """The shown form of one address of a chain."""
    shown = []
    position = 0
    for start, end in _users(address):
        shown += [address[position:start], MASK]
        position = end
    address = "".join([*shown, address[position:]])
    return _shown_query(address, _query_pattern(address))


def _shown_query(address: str, pattern: re.Pattern) -> str:
    """An address without the secret parts of its query."""
    start, parts = _query(address, pattern)
    return address[:start] + "".join(sign + _shown_part(sign, part) for sign, part in parts)


def _users(address: str) -> list[tuple[int, int]]:
    """Start and end of the users and passwords in an address. There may be several, if its path contains
    another address.

    A user ends at the last "@" before the path; or, if a password contains "/" (there is a colon that no port
    follows), at the last "@" of all.
    """
    found = []
    position = 0
    no_user = _NO_USER.match(address)
    if no_user is not None and not _TOKEN_OF_GITHUB.search(address):
        position = no_user.end()
    while (position := address.find("://", position)) >= 0:
        start = position + len("://")
        host = _HOST.match(address, start)
        assert host is not None  # it may be empty
        end = address.rfind("@", start, host.end())
        if end < 0 and not _HOST_AND_PORT.fullmatch(host[0]):
            word = _WORD.match(address, start)
            assert word is not None  # like the host
            end = address.rfind("@", start, word.end())
            if end < 0:  # so no other "://" in this word has a user
                position = word.end()
                continue
        if end < 0:
            position = start
            continue
        found.append((start, end))
        position = end
    return found


def _query_pattern(address: str) -> re.Pattern:
    """The pattern of an address's query."""
    if address.lower().startswith(("http:", "https:")):
        return _QUERY
    return _QUERY_OF_STORES


def _query(address: str, pattern: re.Pattern) -> tuple[int, list[tuple[str, str]]]:
    """The position of an address's query, and its parts, each with the sign before it."""
    query = pattern.search(address)
    if query is None:
        return len(address), []
    _, *split = re.split(r"([?#&;])", query[0])
    return query.start(), list(zip(split[::2], split[1::2], strict=True))


def _shown_part(sign: str, part: str) -> str:
    """The shown form of a part of a query, NAME=VALUE or a text without a name, or of a fragment after "#"."""
    name, equals, value = part.partition("=")
    if not equals:
        is_word = len(part) < SHORT and _BARE_WORD.fullmatch(part)
        is_section = sign == "#" and _is_ordinary(part)
        if len(part) <= 1 or is_word or is_section or _is_file_name(part):
            return part
        return MASK
    if not value or name.lower() in _VERSIONS:
        return part
    is_plain = len(value) < SHORT and _PLAIN_VALUE.fullmatch(value)
    if (is_plain or _is_file_name(value)) and not _SECRET_NAME.search(name):
        return part
    return f"{name}={MASK}"


def _is_file_name(value: str) -> bool:
    """Whether the value of a query is the name of a file such as "my%20holidays-2024-0001.jpg"."""
    value = unquote_plus(value)
    return bool(_FILE_NAME.fullmatch(value)) and _is_ordinary(value)


def _is_ordinary(text: str) -> bool:
    """Whether a text consists of words and numbers, without a possible signature, token or hash in hexadecimal
    digits or base64."""
    long = [piece for piece in _PIECES.split(text) if len(piece) >= SHORT_PIECE]
    return all(map(_ORDINARY_PIECE.fullmatch, long))
