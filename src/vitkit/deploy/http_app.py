"""A model behind HTTP: what is asked, what is answered, and what is refused with a sentence.

    POST /predict   images -> their likeliest classes
    GET  /model     what is served: its classes, and how it prepares an image
    GET  /health    whether the process is well     GET /ready    whether it takes requests
    GET  /metrics   for Prometheus                  GET /docs     these pages, from /openapi.json

FastAPI writes the OpenAPI page and finds the function for a path. Bodies are read here, as they come,
so that no limit is passed.
"""

import asyncio
import hmac
import json
import time
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vitkit.data import BadImage
from vitkit.deploy.answering import Answering, Room, Sent, Served
from vitkit.deploy.http_body import (
    BUSY,
    JSON,
    RAW,
    Limits,
    Refused,
    images_of,
    kind_of,
    let_finish,
    receive,
)
from vitkit.deploy.http_openapi import BODY, RESPONSES, WITHOUT_SCRIPT
from vitkit.deploy.http_watch import GONE, Metrics, Watch
from vitkit.deploy.predict import Prediction
from vitkit.deploy.rows import as_values

if TYPE_CHECKING:
    from asyncio import Future

    from fastapi import FastAPI
    from starlette.requests import Request
    from starlette.responses import Response

PATHS = ("/predict", "/model", "/health", "/ready", "/metrics", "/docs", "/openapi.json")
STUCK = 60.0  # seconds beyond a request's that one batch may take before the process is ill


@dataclass(frozen=True)
class Settings:
    """How a server answers."""

    limits: Limits
    token: str | None = field(default=None, repr=False)
    """What a client has to show; None lets everyone in."""
    top: int = 5
    """Classes to name for an image, unless the client says how many."""
    batch: int = 32
    """Images that are computed together, at most."""
    delay: float = 0.01
    """Seconds that an image waits for others, at most, while the model is free."""


class Desk:
    """What all requests share: the model that is served now, and what is held."""

    def __init__(self, settings: Settings, room: Room, decoders: Executor):
        self.settings = settings
        self.room = room
        self.decoders = decoders
        self.metrics = Metrics(room)
        self.answering: Answering | None = None
        self.draining = False
        """Whether the server is about to end."""

    def serve(self, served: Served) -> Answering | None:
        """Answer by this model from now on. Returns the one before it, which is to be closed."""
        before = self.answering
        settings = self.settings
        self.answering = Answering(
            served, self.decoders, settings.batch, settings.delay, self.metrics.computed
        )
        return before

    def is_well(self) -> bool:
        """Whether the model still computes: its thread lives, and is in no batch for ever."""
        batcher = self.answering.batcher
        since = batcher.busy_since
        allowed = self.settings.limits.seconds + STUCK
        return batcher.thread.is_alive() and (since is None or time.monotonic() - since < allowed)


def application(desk: Desk) -> Watch:
    """The ASGI application."""
    from fastapi import FastAPI

    from vitkit import __version__

    app = FastAPI(
        title="vitkit serve",
        version=__version__,
        description="Classes of images, by a Vision Transformer.",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    _add_predict(app, desk)
    _add_model(app, desk)
    _add_states(app, desk)
    _add_page(app)
    _add_refusals(app)
    return Watch(app, desk.metrics, frozenset(PATHS))


# Classes of images


def _add_predict(app: "FastAPI", desk: Desk) -> None:
    from fastapi import Query, Request, Response

    async def predict(
        request: Request,
        top: int = Query(desk.settings.top, ge=1, description="Classes to name for each image."),
    ) -> Response:
        """The likeliest classes of one image or several, best first. Of several, one that cannot be
        read has an `error` in its place."""
        _check_token(request, desk.settings.token)
        kind = kind_of(request)
        try:
            async with asyncio.timeout(desk.settings.limits.seconds) as deadline:
                images = await _accepted(request, kind, desk)
                return await _answered(request, images, top, desk)
        except TimeoutError:
            if not deadline.expired():
                raise
            raise _too_late(request, desk) from None

    app.post("/predict", openapi_extra=BODY, responses=RESPONSES)(predict)


def _too_late(request: "Request", desk: Desk) -> Refused:
    """A request that took too long: to come, or to be answered."""
    seconds = f"{desk.settings.limits.seconds:g} seconds"
    if "images" in request.state.line:
        desk.metrics.images.labels("given up").inc(request.state.line["images"])
        return Refused(503, f"no answer was ready within {seconds}; ask again later", BUSY)
    return Refused(408, f"the request did not arrive whole within {seconds}")


async def _accepted(request: "Request", kind: str, desk: Desk) -> list[Sent]:
    """The images of a request, which are held in the desk's room from now on. Raises Refused."""
    limits = desk.settings.limits
    room = desk.room
    body = await receive(request, limits, room)
    request.state.line["bytes"] = len(body)
    try:
        content_type = request.headers.get("content-type", "")
        if kind == RAW:
            images = images_of(body, content_type, kind, limits.images)
        else:  # which takes a while
            images = await asyncio.to_thread(images_of, body, content_type, kind, limits.images)
        if not room.take(images=len(images)):
            sentence = f"{room.held_images} images wait already; ask again in a moment"
            raise Refused(503, sentence, BUSY)
    except BaseException:
        room.give_back(size=len(body))
        raise
    room.give_back(size=len(body) - sum(len(image.data) for image in images))
    request.state.line["images"] = len(images)
    return images


async def _answered(request: "Request", images: list[Sent], top: int, desk: Desk) -> "Response":
    """The answer to images that are held."""
    from starlette.responses import Response

    # Each image's prediction, or what is wrong with it; unless the client goes away
    answering = desk.answering
    futures = answering.accept(images, top, desk.room)
    answers = [asyncio.wrap_future(future) for future in futures]
    outcomes = await _unless_gone(request, answers)
    if outcomes is None:
        desk.metrics.images.labels("given up").inc(len(images))
        return Response(status_code=GONE)

    # As JSON
    predictions = []
    for image, outcome in zip(images, outcomes, strict=True):
        predictions.append(_prediction(image, outcome))
    unreadable = [each.error for each in predictions if each.error is not None]
    desk.metrics.images.labels("unreadable").inc(len(unreadable))
    desk.metrics.images.labels("answered").inc(len(predictions) - len(unreadable))
    if len(unreadable) == len(predictions):
        raise Refused(422, unreadable[0])
    served = answering.served
    body = {
        "model": {"name": served.name, "loaded": served.loaded},
        "predictions": [_values(each) for each in predictions],
    }
    return Response(json.dumps(body), media_type=JSON)


def _values(prediction: Prediction) -> dict:
    """A prediction as `vitkit predict --json` prints it, without what it has not."""
    return {name: value for name, value in as_values(prediction).items() if value is not None}


def _prediction(image: Sent, outcome: Prediction | BaseException) -> Prediction:
    """The prediction of an image, or its error. Raises what is no fault of the image."""
    if isinstance(outcome, BadImage):
        return Prediction(image.name, error=str(outcome))
    if isinstance(outcome, BaseException):
        raise outcome
    if outcome.error is not None:  # the outputs are not finite
        raise RuntimeError(outcome.error)
    return outcome


async def _unless_gone(
    request: "Request", answers: "list[Future[Prediction]]"
) -> list[Prediction | BaseException] | None:
    """All answers, with the exceptions among them; None if the client goes away before, and then
    nobody computes them."""
    together = asyncio.gather(*answers, return_exceptions=True)
    gone = asyncio.ensure_future(request.receive())  # the body is there: all that comes is the end
    try:
        await asyncio.wait((together, gone), return_when=asyncio.FIRST_COMPLETED)
        if together.done():
            return together.result()
        return None
    finally:
        gone.cancel()
        for answer in answers:
            answer.cancel()


# What is served, and how it is


def _add_model(app: "FastAPI", desk: Desk) -> None:
    from fastapi import Request

    async def model(request: Request) -> dict:
        """What is served: its classes, and how it prepares an image."""
        _check_token(request, desk.settings.token)
        served = desk.answering.served
        return {
            "name": served.name,
            "loaded": served.loaded,
            "labels": list(served.runtime.labels),
            "activation": served.runtime.activation,
            "preprocessing": served.runtime.preprocessing.to_json(),
        }

    app.get("/model")(model)


def _add_states(app: "FastAPI", desk: Desk) -> None:
    from fastapi import Request, Response

    async def health() -> dict:
        """Whether the process is well; if not, it is to be started again."""
        if not desk.is_well():
            raise Refused(503, "the model does not compute any more")
        return {"status": "well"}

    async def ready() -> dict:
        """Whether requests are to be sent here."""
        if desk.draining:
            raise Refused(503, "the server is about to end")
        return {"status": "ready"}

    async def metrics(request: Request) -> Response:
        """Counts for Prometheus."""
        _check_token(request, desk.settings.token)
        page, content_type = desk.metrics.page()
        return Response(page, media_type=content_type)

    for path, state in (("/health", health), ("/ready", ready)):
        app.get(path)(state)
        app.head(path, include_in_schema=False)(state)  # what balancers and `wget --spider` ask by
    app.get("/metrics")(metrics)


def _check_token(request: "Request", token: str | None) -> None:
    """Raises Refused for a request without the token, in the same time whatever it has."""
    if token is None:
        return
    scheme, _, shown = request.headers.get("authorization", "").partition(" ")
    is_same = hmac.compare_digest(shown.strip().encode("latin-1", "replace"), token.encode())
    if scheme.lower() != "bearer" or not is_same:
        raise Refused(401, "this needs the header 'Authorization: Bearer TOKEN'")


def _add_page(app: "FastAPI") -> None:
    """/docs, whose script comes from elsewhere; without a network, it says so."""
    from fastapi import Response
    from fastapi.openapi.docs import get_swagger_ui_html

    # Its address is relative: a proxy may serve this below a path of its own
    page = get_swagger_ui_html(openapi_url="openapi.json", title=app.title).body
    page = page.replace(b'<div id="swagger-ui">', b'<div id="swagger-ui">' + WITHOUT_SCRIPT, 1)

    async def docs() -> Response:
        return Response(page, media_type="text/html")

    app.get("/docs", include_in_schema=False)(docs)


# Errors


def _add_refusals(app: "FastAPI") -> None:
    """All errors are {"error": "a sentence"}."""
    from fastapi.exceptions import RequestValidationError
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect

    async def refused(request: "Request", error: Refused) -> "Response":
        return await _unread(request, _error(error.status, error.sentence, error.retry_after))

    async def not_there(request: "Request", error: HTTPException) -> "Response":
        sentence = f"there is no {request.url.path[:100]} here; /docs lists what there is"
        if error.status_code == 405:
            sentence = f"{request.url.path} is not asked by {request.method[:16]}; see /docs"
        return await _unread(request, _error(error.status_code, sentence))

    async def wrong_query(request: "Request", error: RequestValidationError) -> "Response":
        first = error.errors()[0]
        sentence = f"{first['loc'][-1]} is {str(first['input'])[:100]!r}: {first['msg']}"
        return await _unread(request, _error(422, sentence))

    async def gone(request: "Request", error: ClientDisconnect) -> "Response":
        return _error(GONE, "the client went away")

    async def ours(request: "Request", error: Exception) -> "Response":
        return _error(500, "the server failed; its log says how")

    app.exception_handler(Refused)(refused)
    app.exception_handler(HTTPException)(not_there)
    app.exception_handler(RequestValidationError)(wrong_query)
    app.exception_handler(ClientDisconnect)(gone)
    app.exception_handler(Exception)(ours)


async def _unread(request: "Request", answer: "Response") -> "Response":
    """An answer to a request whose body may still be on its way."""
    if not await let_finish(request):
        answer.headers["connection"] = "close"
    return answer


def _error(status: int, sentence: str, retry_after: int | None = None) -> "Response":
    """An answer that is an error."""
    from starlette.responses import Response

    headers = {}
    if retry_after is not None:
        headers["retry-after"] = str(retry_after)
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    body = json.dumps({"error": sentence})  # ASCII: a name may hold what UTF-8 cannot write
    return Response(body, status, headers, media_type=JSON)
