"""What people send to a server, within limits: the body of a request, and the images in it.

A body is one image as it is (image/* or application/octet-stream), several as the files of a form
(multipart/form-data), or base64 in JSON:

    {"images": ["/9j/4AAQ...", {"name": "cat.jpg", "data": "/9j/4AAQ..."}]}
"""

import asyncio
import base64
import binascii
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vitkit.apps.serve.batching import Room, Sent
from vitkit.system.console.text import counted
from vitkit.system.errors import BadSettings
from vitkit.system.storage.files import parse_json

if TYPE_CHECKING:
    from starlette.requests import Request

RAW = "application/octet-stream"
FORM = "multipart/form-data"
JSON = "application/json"
KINDS = f"image/*, {RAW}, {FORM} or {JSON}"
PATIENCE = 2.0  # seconds to let somebody finish who sends what is refused already
THROWN_AWAY = 256 << 20  # bytes, at most, meanwhile
NAME = 200  # characters of an image's name that are kept
URL_SAFE = bytes.maketrans(b"-_", b"+/")  # from the other alphabet of base64 to the usual one
WHITE = b" \t\r\n"  # `base64 FILE` breaks lines
FIELDS = 1000  # values of JSON, or parts of a form, beside those that images have
BUSY = 1  # seconds after which to ask again


class Refused(Exception):
    """A request that is not answered: its status, and a sentence that says why."""

    def __init__(self, status: int, sentence: str, retry_after: int | None = None):
        """retry_after: seconds after which the same request may do."""
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence
        self.retry_after = retry_after


@dataclass(frozen=True)
class Limits:
    """The limits of a request."""

    size: int = 32 << 20
    """Bytes of a request."""
    images: int = 64
    """Images of a request."""
    seconds: float = 30.0
    """From a request's first byte to its answer."""

    def check(self) -> None:
        """Raises VitkitError if the limits let nothing through."""
        for name, value in (("bytes", self.size), ("images", self.images), ("time", self.seconds)):
            if value <= 0:
                raise BadSettings(f"the largest {name} of a request is {value}; it is above 0")


async def receive(request: "Request", limits: Limits, room: Room) -> bytes:
    """The body of a request. Its bytes are held in the room, and given back if this raises.

    Raises Refused for one that is too large, or while there is no room, and starlette's
    ClientDisconnect for one that breaks off.
    """
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > limits.size:
        raise _too_large(limits)
    body = bytearray()
    try:
        async for chunk in request.stream():
            if not room.take(size=len(chunk)):
                sentence = "the server holds as many images as it can; ask again in a moment"
                raise Refused(503, sentence, BUSY)
            body += chunk
            if len(body) > limits.size:
                raise _too_large(limits)
    except BaseException:
        room.give_back(size=len(body))
        raise
    return bytes(body)


def _too_large(limits: Limits) -> Refused:
    return Refused(413, f"the request is larger than {limits.size:,} bytes, the most taken here")


async def let_finish(request: "Request") -> bool:
    """Take what is still sent of a request that is refused, and throw it away: so much, and for so
    long. Who still sends while the connection is closed would never read why. Returns whether all of
    it came."""
    from starlette.requests import ClientDisconnect

    if "expect" in request.headers:  # this client asks before it sends
        return False
    size = 0
    try:
        async with asyncio.timeout(PATIENCE):
            async for chunk in request.stream():
                size += len(chunk)
                if size > THROWN_AWAY:
                    return False
    except (TimeoutError, ClientDisconnect):
        return False
    except RuntimeError:  # it was read before
        return True
    return True


def kind_of(request: "Request") -> str:
    """The kind of a body: RAW, FORM or JSON. Raises Refused for any other content type, and for a
    compressed body."""
    encoding = request.headers.get("content-encoding", "").strip().lower()
    if encoding not in ("", "identity"):
        sentence = (
            f"the content encoding is {encoding[:NAME]}; send images as they are, without one"
        )
        raise Refused(415, sentence)
    content_type = request.headers.get("content-type", "")
    kind = content_type.partition(";")[0].strip().lower()
    if kind.startswith("image/") or kind == RAW:
        return RAW
    if kind in (FORM, JSON):
        return kind
    if not kind:
        raise Refused(415, f"the request has no content type; send {KINDS}")
    raise Refused(415, f"the content type is {kind[:NAME]}; send {KINDS}")


def images_of(body: bytes, content_type: str, kind: str, most: int) -> list[Sent]:
    """The images in a body of this kind, at most `most`. Raises Refused for a body that has none, too
    many, or another form than its kind."""
    if kind == RAW:
        images = [Sent("image 0", body)]
    elif kind == FORM:
        images = _images_of_form(body, content_type, most)
    else:
        images = _images_of_json(body, most)
    if not images:
        sentence = "the request holds no image"
        if kind == FORM:
            sentence += "; the part of a form that is one has a filename"
        raise Refused(400, sentence)
    return images


def _too_many(most: int) -> Refused:
    return Refused(
        413, f"the request holds more than {counted(most, 'image')}, the most taken here"
    )


# Forms


class _Parts:
    """Collects the files of a form while its body is read."""

    def __init__(self, most: int):
        self.most = most
        self.images: list[Sent] = []
        self.headers: dict[bytes, bytes] = {}
        self.field = b""
        self.value = b""
        self.data = bytearray()
        self.ended = False

    def begin(self) -> None:
        self.headers = {}
        self.data = bytearray()

    def add_to_field(self, data: bytes, start: int, end: int) -> None:
        self.field += data[start:end]

    def add_to_value(self, data: bytes, start: int, end: int) -> None:
        self.value += data[start:end]

    def end_header(self) -> None:
        self.headers[self.field.lower()] = self.value
        self.field = b""
        self.value = b""

    def add(self, data: bytes, start: int, end: int) -> None:
        self.data += data[start:end]

    def end(self) -> None:
        """A part is there. A field that is not a file is not an image: it is not read."""
        from python_multipart.multipart import parse_options_header

        disposition = self.headers.get(b"content-disposition", b"")
        _, options = parse_options_header(disposition)
        if b"filename" not in options and b"filename*=" not in disposition.lower():
            return
        if len(self.images) == self.most:
            raise _too_many(self.most)
        name = options.get(b"filename", b"").decode("utf-8", "replace")[:NAME]
        self.images.append(Sent(name or f"image {len(self.images)}", bytes(self.data)))

    def end_all(self) -> None:
        self.ended = True


def _images_of_form(body: bytes, content_type: str, most: int) -> list[Sent]:
    """The files of a form."""
    from python_multipart import MultipartParser
    from python_multipart.exceptions import FormParserError
    from python_multipart.multipart import parse_options_header

    _, options = parse_options_header(content_type)
    boundary = options.get(b"boundary")
    if not boundary:
        raise Refused(400, "the form's content type names no boundary between its parts")
    if body.count(b"\r\n--" + boundary) > most + FIELDS:  # each takes its time
        raise Refused(413, f"the form has more than {counted(most + FIELDS, 'part')}")
    parts = _Parts(most)
    callbacks = {
        "on_part_begin": parts.begin,
        "on_header_field": parts.add_to_field,
        "on_header_value": parts.add_to_value,
        "on_header_end": parts.end_header,
        "on_part_data": parts.add,
        "on_part_end": parts.end,
        "on_end": parts.end_all,
    }
    try:
        parser = MultipartParser(boundary, callbacks)
        parser.write(body)
    except FormParserError as error:
        raise Refused(400, f"the form is damaged: {error}") from None
    if not parts.ended:
        raise Refused(400, "the form breaks off before its last boundary")
    return parts.images


# JSON


def _images_of_json(body: bytes, most: int) -> list[Sent]:
    """The images of {"images": [...]} or {"image": ...}."""
    # A value of a few bytes becomes an object of a hundred. Base64 has none of these signs
    values = sum(body.count(sign) for sign in (b",", b"[", b"{"))
    if values > 8 * most + FIELDS:
        raise Refused(413, f"the JSON has more values than {counted(most, 'image')} can have")
    try:
        value = parse_json(body)
    except ValueError:
        raise Refused(400, "the body is no JSON, though its content type says so") from None
    given = None
    if isinstance(value, dict):
        given = value.get("images")
        if "image" in value:
            given = [value["image"]]
    if not isinstance(given, list):
        raise Refused(400, 'the JSON has no images; send {"images": ["BASE64", ...]}')
    if len(given) > most:
        raise _too_many(most)
    return [_image_of_json(number, each) for number, each in enumerate(given)]


def _image_of_json(number: int, value: Any) -> Sent:
    """An image that is base64, or {"name": ..., "data": base64}."""
    name = f"image {number}"
    if isinstance(value, dict):
        given = value.get("name")
        if isinstance(given, str):
            name = given[:NAME] or name
        value = value.get("data")
    if not isinstance(value, str):
        raise Refused(400, f"{name} is not base64 text")
    if value.startswith("data:"):  # an address that holds its data, as browsers make them
        value = value.partition(",")[2]
    try:
        text = value.encode("ascii").translate(URL_SAFE, WHITE)
        return Sent(name, base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError):
        raise Refused(
            400, f"{name} is not base64: its text has other characters, or breaks off"
        ) from None
