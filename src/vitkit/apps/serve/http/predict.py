"""POST /predict: from the body of a request to its answer."""

import asyncio
import json
from typing import TYPE_CHECKING, Any

from vitkit.apps.serve.batching import Sent
from vitkit.apps.serve.http.body import BUSY, FORM, JSON, RAW, Refused, images_of, kind_of, receive
from vitkit.apps.serve.http.service import Service, check_token, guards
from vitkit.apps.serve.http.telemetry import GONE
from vitkit.prediction import Prediction, as_values
from vitkit.system.errors import BadImage

if TYPE_CHECKING:
    from asyncio import Future

    from fastapi import FastAPI
    from starlette.requests import Request
    from starlette.responses import Response


def add_predict(app: "FastAPI", service: Service) -> None:
    from fastapi import Query, Request, Response

    async def predict(
        request: Request,
        top: int = Query(service.settings.top, ge=1, description="Classes to name for each image."),
    ) -> Response:
        """The most likely classes of one image or several, best first. Of several, one that cannot be
        read has an `error` in its place."""
        check_token(request, service.settings.token)
        kind = kind_of(request)
        try:
            async with asyncio.timeout(service.settings.limits.seconds) as deadline:
                images = await _accepted(request, kind, service)
                return await _answered(request, images, top, service)
        except TimeoutError:
            if not deadline.expired():
                raise
            raise _too_late(request, service) from None

    needed = guards(service.settings.token)
    app.post("/predict", dependencies=needed, openapi_extra=BODY, responses=RESPONSES)(predict)


def _too_late(request: "Request", service: Service) -> Refused:
    """A request that took too long: to come, or to be answered."""
    seconds = f"{service.settings.limits.seconds:g} seconds"
    if "images" in request.state.line:
        service.metrics.images.labels("given up").inc(request.state.line["images"])
        return Refused(503, f"no answer was ready within {seconds}; ask again later", BUSY)
    return Refused(408, f"the request did not arrive whole within {seconds}")


async def _accepted(request: "Request", kind: str, service: Service) -> list[Sent]:
    """The images of a request, which are held in the service's room from now on. Raises Refused."""
    limits = service.settings.limits
    room = service.room
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


async def _answered(
    request: "Request", images: list[Sent], top: int, service: Service
) -> "Response":
    """The answer to images that are held."""
    from starlette.responses import Response

    # Each image's prediction, or what is wrong with it; unless the client goes away
    answering = service.answering
    futures = answering.accept(images, top, service.room)
    answers = [asyncio.wrap_future(future) for future in futures]
    outcomes = await _unless_gone(request, answers)
    if outcomes is None:
        service.metrics.images.labels("given up").inc(len(images))
        return Response(status_code=GONE)

    # As JSON
    predictions = []
    for image, outcome in zip(images, outcomes, strict=True):
        predictions.append(_prediction(image, outcome))
    unreadable = [each.error for each in predictions if each.error is not None]
    service.metrics.images.labels("unreadable").inc(len(unreadable))
    service.metrics.images.labels("answered").inc(len(predictions) - len(unreadable))
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
    """The prediction of an image, or its error. Raises errors that are not the image's fault."""
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


# What the OpenAPI page says of it, as our own code reads the body


_FILE = {"type": "string", "format": "binary"}
_BASE64 = {"type": "string", "format": "byte"}
_NAMED = {
    "type": "object",
    "required": ["data"],
    "properties": {"name": {"type": "string"}, "data": _BASE64},
}

_ERROR = {"type": "object", "properties": {"error": {"type": "string"}}}

# What the page shows until its script draws it
WITHOUT_SCRIPT = b"""
<p>This page is drawn by a script from cdn.jsdelivr.net. While you read this, the script has not come:
<a href="openapi.json">openapi.json</a> says the same without it.</p>
<pre>curl --data-binary @photograph.jpg -H 'Content-Type: image/jpeg' ADDRESS/predict?top=5
curl -F image=@first.jpg -F image=@second.jpg ADDRESS/predict
GET model, health, ready, metrics</pre>
"""

BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": "One image as it is, several as the files of a form, or base64 in JSON.",
        "content": {
            "image/*": {"schema": _FILE},
            RAW: {"schema": _FILE},
            FORM: {
                "schema": {
                    "type": "object",
                    "properties": {"image": {"type": "array", "items": _FILE}},
                }
            },
            JSON: {
                "schema": {
                    "type": "object",
                    "required": ["images"],
                    "properties": {
                        "images": {"type": "array", "items": {"anyOf": [_BASE64, _NAMED]}}
                    },
                }
            },
        },
    }
}

_PREDICTION = {
    "type": "object",
    "required": ["name"],
    "properties": {
        "name": {"type": "string", "description": "The file's, or its number."},
        "labels": {"type": "array", "items": {"type": "string"}, "description": "Best first."},
        "probabilities": {"type": "array", "items": {"type": "number"}},
        "error": {"type": "string", "description": "What is wrong with this image."},
        "unknown": {
            "type": "boolean",
            "description": "Whether the image is unlike all that the model learned from, if it can say.",
        },
        "possible": {"type": "array", "items": {"type": "string"}},
    },
}

_ANSWER = {
    "type": "object",
    "properties": {
        "model": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "loaded": {"type": "string"}},
        },
        "predictions": {
            "type": "array",
            "items": _PREDICTION,
            "description": "One for each image, in their order.",
        },
    },
}

_REFUSED = {
    400: "The body is damaged, or holds no image.",
    401: "The token is missing or wrong.",
    408: "The request did not arrive in time.",
    413: "Too many bytes, or too many images.",
    415: "A content type that is none of these.",
    422: "No image of the request can be read: why, of the first.",
    500: "The server's own mistake.",
    503: "No room or no time for more; ask again after Retry-After seconds.",
}

_ERRORS = {
    status: {"description": words, "content": {JSON: {"schema": _ERROR}}}
    for status, words in _REFUSED.items()
}

RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The classes of each image.",
        "content": {JSON: {"schema": _ANSWER}},
    },
    **_ERRORS,
}
