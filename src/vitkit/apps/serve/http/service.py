"""State that all requests of a server share: its settings, and the current model."""

import base64
import hmac
import io
import threading
import time
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vitkit.apps.serve.batching import Choice, Room, Sent, ServedModel
from vitkit.apps.serve.http.body import BUSY, Limits
from vitkit.apps.serve.http.telemetry import Metrics
from vitkit.apps.serve.models import Served
from vitkit.web import Refused

if TYPE_CHECKING:
    from starlette.requests import Request

JPEG_QUALITY = 90  # of attention pictures
LOOKS = 16  # largest number of images that wait for attention
STUCK = 60.0  # a batch that exceeds a request's time limit by this many seconds makes the process unhealthy


@dataclass(frozen=True)
class Settings:
    """The settings of a server."""

    limits: Limits
    token: str | None = field(default=None, repr=False)
    """Token that clients must send; None if none is required."""
    top: int = 5
    """Default number of classes to name for each image."""
    batch: int = 32
    """Largest batch size."""
    delay: float = 0.01
    """Longest time in seconds that an image waits for others while the model is free."""
    origins: tuple[str, ...] = ()
    """Allowed origins of web pages: "https://example.org", or "*" for all. Browsers block other pages."""
    host: str = "127.0.0.1"
    """Address of the server, which clients without a token may use as the Host."""
    names: tuple[str, ...] = ()
    """Further Host names that clients without a token may use; "*" for any."""


class Service:
    """State that all requests share: the current model, and the images in the room."""

    def __init__(self, settings: Settings, room: Room, decoders: Executor, served: Served):
        """served: the model to serve until `serve` replaces it."""
        self.settings = settings
        self.room = room
        self.decoders = decoders
        self.metrics = Metrics(room)
        self.looking = ThreadPoolExecutor(1, "attention")
        """Computes attention, one image at a time: this is for interactive use, not for load."""
        self.looks = threading.BoundedSemaphore(LOOKS)
        self.answering = self._begun(served)
        self.draining = False
        """Whether the server is shutting down."""

    def serve(self, served: Served) -> ServedModel:
        """Serve this model from now on. Returns the previous one, which the caller has to close."""
        before = self.answering
        self.answering = self._begun(served)
        return before

    def _begun(self, served: Served) -> ServedModel:
        settings = self.settings
        return ServedModel(
            served, self.decoders, settings.batch, settings.delay, self.metrics.computed
        )

    def look(
        self, answering: ServedModel, image: Sent, choice: Choice
    ) -> "Future[dict[str, object]]":
        """The attention of the model for an image, with the fields of `description.AttentionMap`
        except the names of the model and the image; VitkitError if there is none. The image stays
        in the room until then.

        Raises Refused, and releases the image's room, if too many images wait: predictions have priority.
        """

        def leave(_: Future) -> None:
            self.looks.release()
            self.room.give_back(1, len(image.data))

        if not self.looks.acquire(blocking=False):
            self.room.give_back(1, len(image.data))
            sentence = (
                f"the attention of {LOOKS} images is waited for already; ask again in a moment"
            )
            raise Refused(503, sentence, BUSY)
        future = self.looking.submit(_attention_values, answering.served, image, choice)
        future.add_done_callback(leave)  # also called when the future is cancelled
        return future

    def close(self) -> None:
        """Answer the accepted requests, and end the model's threads."""
        self.answering.close()
        self.looking.shutdown()
        self.decoders.shutdown()

    def is_well(self) -> bool:
        """Whether the model still computes: its thread is alive, and no batch is stuck."""
        batcher = self.answering.batcher
        since = batcher.busy_since
        allowed = self.settings.limits.seconds + STUCK
        return batcher.thread.is_alive() and (since is None or time.monotonic() - since < allowed)


def _attention_values(served: Served, image: Sent, choice: Choice) -> dict[str, object]:
    """The attention of a model for an image, as JSON values. Raises VitkitError."""
    from PIL import Image

    looker = served.looker()
    looked = looker.look(image, choice)
    encoded = io.BytesIO()
    Image.fromarray(looked.picture).save(encoded, "JPEG", quality=JPEG_QUALITY)
    return {
        "layers": looker.layers,
        "heads": looker.heads,
        "weights": looked.weights.tolist(),
        "rows": looked.rows,
        "columns": looked.columns,
        "caption": looked.caption,
        "picture": base64.b64encode(encoded.getvalue()).decode(),
        "unlike": looker.says_unlike(choice),
    }


def guards(token: str | None) -> list:
    """The FastAPI dependencies of a path that requires the token. They only document it in OpenAPI;
    `check_token` checks it."""
    from fastapi import Depends
    from fastapi.security import HTTPBearer

    if token is None:
        return []
    return [Depends(HTTPBearer(auto_error=False))]


def check_token(request: "Request", token: str | None) -> None:
    """Raises Refused for a request without the right token. Takes constant time."""
    if token is None:
        return
    scheme, _, shown = request.headers.get("authorization", "").partition(" ")
    is_same = hmac.compare_digest(shown.strip().encode("latin-1", "replace"), token.encode())
    if scheme.lower() != "bearer" or not is_same:
        raise Refused(401, "this needs the header 'Authorization: Bearer TOKEN'")
