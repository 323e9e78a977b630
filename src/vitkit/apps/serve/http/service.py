"""What all requests to a server share: its settings, and the model that it serves now."""

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

JPEG_QUALITY = 90  # of the picture of what a model looks at
LOOKS = 16  # images whose attention is waited for at the same time
STUCK = 60.0  # seconds beyond a request's that one batch may take before the process is ill


@dataclass(frozen=True)
class Settings:
    """The settings of a server."""

    limits: Limits
    token: str | None = field(default=None, repr=False)
    """What a client has to show; None lets everyone in."""
    top: int = 5
    """Classes to name for an image, unless the client says how many."""
    batch: int = 32
    """Images that are computed together, at most."""
    delay: float = 0.01
    """Seconds that an image waits for others, at most, while the model is free."""
    origins: tuple[str, ...] = ()
    """Web pages that may ask: "https://example.org", or "*" for all. Browsers keep others out."""
    host: str = "127.0.0.1"
    """The address that it is served at, which is what clients without a token may call it."""
    names: tuple[str, ...] = ()
    """Further names that clients without a token may call it by; "*" is any."""


class Service:
    """The state that all requests share: the current model, and the requests that are held."""

    def __init__(self, settings: Settings, room: Room, decoders: Executor, served: Served):
        """Serves this model, until another is to be served."""
        self.settings = settings
        self.room = room
        self.decoders = decoders
        self.metrics = Metrics(room)
        self.looking = ThreadPoolExecutor(1, "attention")
        """Computes attention, one image at a time: it is for a person who looks, not for load."""
        self.looks = threading.BoundedSemaphore(LOOKS)
        self.answering = self._begun(served)
        self.draining = False
        """Whether the server is about to end."""

    def serve(self, served: Served) -> ServedModel:
        """Serve this model from now on. Returns the one before it, which is to be closed."""
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
        """What the model looks at in an image, as `description.AttentionMap` has it, but for the names of
        the model and the image; VitkitError if it cannot be shown. The image is held until then.

        Raises Refused, and gives the image's room back, if too many wait: answers need the room more.
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
        future = self.looking.submit(_looked, answering.served, image, choice)
        future.add_done_callback(leave)  # when it is given up, too
        return future

    def close(self) -> None:
        """Answer the accepted requests, and end the threads of the model."""
        self.answering.close()
        self.looking.shutdown()
        self.decoders.shutdown()

    def is_well(self) -> bool:
        """Whether the model still computes: its thread is alive and not stuck in a batch."""
        batcher = self.answering.batcher
        since = batcher.busy_since
        allowed = self.settings.limits.seconds + STUCK
        return batcher.thread.is_alive() and (since is None or time.monotonic() - since < allowed)


def _looked(served: Served, image: Sent, choice: Choice) -> dict[str, object]:
    """What a model looks at in an image, as values of JSON. Raises VitkitError."""
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
    }


def guards(token: str | None) -> list:
    """What a path depends on that needs the token, for its OpenAPI page to say so; `check_token`
    checks it."""
    from fastapi import Depends
    from fastapi.security import HTTPBearer

    if token is None:
        return []
    return [Depends(HTTPBearer(auto_error=False))]


def check_token(request: "Request", token: str | None) -> None:
    """Raises Refused for a request without the token, in the same time whatever it has."""
    if token is None:
        return
    scheme, _, shown = request.headers.get("authorization", "").partition(" ")
    is_same = hmac.compare_digest(shown.strip().encode("latin-1", "replace"), token.encode())
    if scheme.lower() != "bearer" or not is_same:
        raise Refused(401, "this needs the header 'Authorization: Bearer TOKEN'")
