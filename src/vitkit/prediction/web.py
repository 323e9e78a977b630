"""An image at a web address, within limits of size and time.

With the standard library, as in system/storage/download.py, which is for large files that are kept.
"""

import time
from http.client import HTTPException, HTTPResponse
from urllib import request

from vitkit.data import BadImage

MAX_BYTES = 64 << 20  # of an image; photographs have about 10 MB
SILENCE = 15  # seconds to wait for an answer, or for the next part of one
PATIENCE = 60  # seconds that an image may take
SCHEMES = ("http://", "https://")
# What opens an address and where it leads on to: the web only, no file of this machine.
_HANDLERS = (
    request.ProxyHandler,
    request.UnknownHandler,
    request.HTTPHandler,
    request.HTTPSHandler,
    request.HTTPDefaultErrorHandler,
    request.HTTPRedirectHandler,
    request.HTTPErrorProcessor,
)


def is_web(name: str) -> bool:
    """Whether a name is a web address: http:// or https://."""
    return name.lower().startswith(SCHEMES)


def read_web(address: str) -> bytes:
    """The bytes of an image at a web address. Raises BadImage if it does not come within PATIENCE
    seconds, is larger than MAX_BYTES, or is a page."""
    opener = request.OpenerDirector()
    for handler in _HANDLERS:
        opener.add_handler(handler())
    headers = {"User-Agent": "vitkit", "Accept": "image/*"}
    try:
        asked = request.Request(address, headers=headers)
        with opener.open(asked, timeout=SILENCE) as answer:
            if answer.headers.get_content_type() == "text/html":
                raise BadImage(
                    f"{address} is a web page, not an image; give the address of the picture itself"
                )
            return _received(answer, address)
    except BadImage:
        raise
    except (OSError, HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        if isinstance(error, TimeoutError) or isinstance(reason, TimeoutError):
            reason = f"no answer for {SILENCE} seconds"
        if code := getattr(error, "code", None):
            reason = f"the server answers {code} {reason}"
        raise BadImage(f"{address} cannot be read: {reason}") from None


def _received(answer: HTTPResponse, address: str) -> bytes:
    """All bytes of an answer. Raises BadImage beyond the limits, OSError."""
    ends = time.monotonic() + PATIENCE
    data = bytearray()
    while part := answer.read1():
        data += part
        if len(data) > MAX_BYTES:
            raise BadImage(f"{address} is larger than {MAX_BYTES:,} bytes; download it first")
        if time.monotonic() > ends:
            raise BadImage(f"{address} takes longer than {PATIENCE} seconds; download it first")
    expected = answer.headers.get("Content-Length", "")
    if expected.isdecimal() and len(data) < int(expected):
        raise BadImage(f"{address} broke off after {len(data):,} of {expected} bytes")
    return bytes(data)
