"""The bodies of requests, within limits, and the images in them.

A body is one unencoded image (image/* or application/octet-stream), several images as the files of a form
(multipart/form-data), or base64 in JSON:
(multipart/form-data), or base64 in JSON:

    {"images": ["/9j/4AAQ...", {"name": "cat.jpg", "data": "/9j/4AAQ..."}]}
"""

import asyncio
import base64
import binascii
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vitkit.apps.serve.batching import Room, Sent
from vitkit.system.console.text import counted
from vitkit.system.errors import BadSettings
from vitkit.system.storage.files import parse_json
from vitkit.web import Refused, pieces

if TYPE_CHECKING:
    from starlette.requests import Request

RAW = "application/octet-stream"
FORM = "multipart/form-data"
JSON = "application/json"
KINDS = f"image/*, {RAW}, {FORM} or {JSON}"
PATIENCE = 2.0  # seconds to read the rest of a request that is already refused
THROWN_AWAY = 256 << 20  # largest rest of a refused request that is read, bytes
NAME = 200  # longest kept name of an image, characters
URL_SAFE = bytes.maketrans(b"-_", b"+/")  # from URL-safe base64 to standard base64
WHITE = b" \t\r\n"  # `base64 FILE` inserts line breaks
FIELDS = 1000  # largest number of JSON values or form fields besides the images
BUSY = 1  # value of Retry-After, seconds


@dataclass(frozen=True)
class Limits:
    """The limits of a request."""

    size: int = 32 << 20
    """Largest body of a request, in bytes."""
    images: int = 64
    """Largest number of images in a request."""
    seconds: float = 30.0
    """Longest time from the first byte of a request to its answer."""

    def check(self) -> None:
        """Raises VitkitError if the limits would refuse every request."""
        for name, value in (("bytes", self.size), ("images", self.images), ("time", self.seconds)):
            if value <= 0:
                raise BadSettings(f"the largest {name} of a request is {value}; it is above 0")


# The body


def line_of(request: "Request") -> dict[str, Any]:
    """The fields of the request's log line that its handler may add to."""
    return request.scope.setdefault("state", {}).setdefault("line", {})


async def let_finish(request: "Request") -> bool:
    """Read and discard the rest of a refused request, up to THROWN_AWAY bytes and PATIENCE seconds.
    A client that still sends when the connection is closed would not read the answer. Returns
    whether the whole body was read."""
    from starlette.requests import ClientDisconnect

    if "expect" in request.headers:  # the client waits for permission before it sends the body
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
    except RuntimeError:  # the body was read before
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


# The images of a body


async def receive(request: "Request", kind: str, limits: Limits, room: Room) -> list[Sent]:
    """The images of a request whose body is of this kind. Each takes space in `room`, for one image
    and the bytes of its file, which the caller has to give back; if this raises, no space is taken.

    Raises Refused for a request that is too large, has no or too many images, or is damaged, and while
    the room is full; and starlette's ClientDisconnect for a request that breaks off.
    """
    taken = 0

    async def stream() -> AsyncGenerator[bytes, None]:
        nonlocal taken
        async for piece in pieces(request, limits.size):
            if not room.take(size=len(piece)):
                sentence = "the server is full; try again in a moment"
                raise Refused(503, sentence, BUSY)
            taken += len(piece)
            yield piece

    try:
        if kind == FORM:
            images = await _images_of_form(request, stream(), limits)
        else:
            body = b"".join([piece async for piece in stream()])
            images = [Sent("image 0", body)]
            if kind == JSON:  # decoding takes a while, so it runs in a thread
                images = await asyncio.to_thread(_images_of_json, body, limits.images)
        if not images:
            raise Refused(400, "the request holds no image")
        if not room.take(images=len(images)):
            sentence = f"{room.held_images} images wait already; ask again in a moment"
            raise Refused(503, sentence, BUSY)
    except BaseException:
        room.give_back(size=taken)
        raise
    room.give_back(size=taken - sum(len(image.data) for image in images))
    line_of(request).update(bytes=taken, images=len(images))
    return images


def _too_many(most: int) -> Refused:
    return Refused(
        413, f"the request holds more than {counted(most, 'image')}, the most taken here"
    )


async def _images_of_form(
    request: "Request", stream: AsyncGenerator[bytes, None], limits: Limits
) -> list[Sent]:
    """The files of a form, which Starlette parses while it is received. They stay in memory."""
    from python_multipart.multipart import parse_options_header
    from starlette.datastructures import UploadFile
    from starlette.formparsers import MultiPartException, MultiPartParser

    _, options = parse_options_header(request.headers["content-type"])
    boundary = options.get(b"boundary")
    if not boundary:
        raise Refused(400, "the form's content type names no boundary between its parts")
    last = b"--" + boundary + b"--"

    async def whole() -> AsyncGenerator[bytes, None]:
        """The stream, checked for completeness: raises Refused if the form breaks off, since
        Starlette drops an incomplete last part."""
        end = b""
        async for piece in stream:
            yield piece
            end = (end + piece)[-len(last) - FIELDS :]
        if last not in end:
            raise Refused(400, "the form breaks off before its last boundary")

    parser = MultiPartParser(request.headers, whole(), max_files=limits.images, max_fields=FIELDS)
    parser.spool_max_size = limits.size  # so that no file is written to disk
    try:
        form = await parser.parse()
    except MultiPartException as error:
        if "Too many files" in error.message:
            raise _too_many(limits.images) from None
        status = 413 if "Too many" in error.message else 400
        raise Refused(status, f"the form is damaged: {error.message}") from None
    images: list[Sent] = []
    for _, file in form.multi_items():
        if isinstance(file, UploadFile):
            name = (file.filename or "")[:NAME] or f"image {len(images)}"
            images.append(Sent(name, await file.read()))
    await form.close()
    if not images:
        raise Refused(
            400, "the request holds no image; the part of a form that is one has a filename"
        )
    return images


def _images_of_json(body: bytes, most: int) -> list[Sent]:
    """The images of {"images": [...]} or {"image": ...}."""
    # A JSON value of a few bytes becomes an object of a hundred. Base64 contains none of these characters
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
    """An image given as base64, or as {"name": ..., "data": base64}."""
    name = f"image {number}"
    if isinstance(value, dict):
        given = value.get("name")
        if isinstance(given, str):
            name = given[:NAME] or name
        value = value.get("data")
    if not isinstance(value, str):
        raise Refused(400, f"{name} is not base64 text")
    if value.startswith("data:"):  # a data URL, as browsers make them
        value = value.partition(",")[2]
    try:
        text = value.encode("ascii").translate(URL_SAFE, WHITE)
        return Sent(name, base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError):
        raise Refused(
            400, f"{name} is not base64: its text has other characters, or breaks off"
        ) from None
