"""The body of a request, in pieces, within a limit."""

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.requests import Request


class Refused(Exception):
    """A request that is refused, with a status and a sentence with the reason."""

    def __init__(self, status: int, sentence: str, retry_after: int | None = None):
        """retry_after: seconds after which the same request may succeed."""
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence
        self.retry_after = retry_after


async def pieces(request: "Request", most: int) -> AsyncGenerator[bytes, None]:
    """The body of a request, as it arrives. Raises Refused for one of more than `most` bytes, before reading it
    if its length is announced; and starlette's ClientDisconnect if the client disconnects."""
    too_large = Refused(413, f"the request is larger than {most:,} bytes, the limit here")
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > most:
        raise too_large
    size = 0
    async for piece in request.stream():
        size += len(piece)
        if size > most:
            raise too_large
        yield piece
