"""POST /predict, POST /segment and POST /attention: from a request's body to its answer."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Literal

from vitkit.apps.serve.batching import Asked, Choice, Sent
from vitkit.apps.serve.http.body import BUSY, JSON, kind_of, line_of, receive
from vitkit.apps.serve.http.description import (
    BODY,
    Answers,
    AttentionMap,
    Segmentations,
    responses,
)
from vitkit.apps.serve.http.service import Service, check_token, guards
from vitkit.apps.serve.http.telemetry import GONE
from vitkit.apps.serve.models import Served
from vitkit.prediction import Prediction
from vitkit.prediction.rows import as_values
from vitkit.system.errors import BadImage, VitkitError
from vitkit.web import Refused

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.requests import Request
    from starlette.responses import Response

HAS_MASKS = "the model classifies every pixel, so an image has no single class; send it to /segment"
HAS_NO_MASKS = (
    "the model has one output for an image, not a class for every pixel; send it to /predict"
)


def add_predict(app: "FastAPI", service: Service) -> None:
    from fastapi import Query, Request, Response

    async def predict(
        request: Request,
        top: int = Query(service.settings.top, ge=1, description="Classes to name for each image."),
    ) -> Response:
        """The most likely classes of one image or several, best first. Of several, one that cannot be
        read has an `error` in its place."""
        async with _authorised_in_time(request, service):
            served = service.answering.served
            if served.has_masks:
                raise Refused(422, HAS_MASKS)
            if served.no_answer:
                raise Refused(422, served.no_answer)
            images = await receive(request, kind_of(request), service.settings.limits, service.room)
            return await _answered(request, images, top, service)

    app.post(
        "/predict",
        dependencies=guards(service.settings.token),
        openapi_extra=BODY,
        responses=responses(Answers, "The classes of each image."),
    )(predict)


def add_segment(app: "FastAPI", service: Service) -> None:
    from fastapi import Query, Request, Response

    async def segment(
        request: Request,
        smallest: int = Query(16, ge=1, description="Pixels of the smallest region to list."),
        answer: Literal["json", "png"] = Query(
            "json", description="json, or png for the mask of a single image as it is."
        ),
    ) -> Response:
        """The class of every pixel of one image or several: a mask for each, the shares of its classes, and its
        connected regions. Of several, one that cannot be read has an `error` in its place."""
        async with _authorised_in_time(request, service):
            if not service.answering.served.has_masks:
                raise Refused(422, HAS_NO_MASKS)
            images = await receive(request, kind_of(request), service.settings.limits, service.room)
            if answer == "png" and len(images) > 1:
                _release(images, service)
                sentence = f"the request holds {len(images)} images; answer=png is for one"
                raise Refused(413, sentence)
            return await _segmented(request, images, smallest, answer == "png", service)

    described = responses(Segmentations, "The mask of each image.")
    described[200]["content"] = {"image/png": {"schema": {"type": "string", "format": "binary"}}}
    app.post(
        "/segment",
        dependencies=guards(service.settings.token),
        openapi_extra=BODY,
        responses=described,
    )(segment)


def add_attention(app: "FastAPI", service: Service) -> None:
    from fastapi import Query, Request, Response

    def number(words: str) -> Any:
        return Query(None, ge=1, description=words)

    async def attention(
        request: Request,
        layer: int | None = number("Layer; left out, Attention Rollout through all layers."),
        head: int | None = number("Attention head of the layer; left out, the mean of all."),
        row: int | None = number("Row of the patch that attends; left out, what the head reads."),
        column: int | None = number("Column of the patch that attends."),
    ) -> Response:
        """What the model looks at in one image: a map of its patches, and a picture."""
        patch = None
        if row is not None and column is not None:
            patch = (row, column)
        elif row is not None or column is not None:
            raise Refused(422, "a patch has a row and a column; give both, or neither")
        async with _authorised_in_time(request, service):
            images = await receive(request, kind_of(request), service.settings.limits, service.room)
            return await _attention_answer(request, images, Choice(layer, head, patch), service)

    app.post(
        "/attention",
        dependencies=guards(service.settings.token),
        openapi_extra=BODY,
        responses=responses(AttentionMap, "What the model looks at."),
    )(attention)


@asynccontextmanager
async def _authorised_in_time(request: "Request", service: Service) -> AsyncIterator[None]:
    """A context manager that checks the token and limits the time of a request. Raises Refused
    without the right token, and if receiving or answering the request takes too long."""
    check_token(request, service.settings.token)
    try:
        async with asyncio.timeout(service.settings.limits.seconds) as deadline:
            yield
    except TimeoutError:
        if not deadline.expired():
            raise
        seconds = f"{service.settings.limits.seconds:g} seconds"
        count = line_of(request).get("images")
        if count is None:
            raise Refused(408, f"the request did not arrive whole within {seconds}") from None
        service.metrics.images.labels("given up").inc(count)
        sentence = f"no answer was ready within {seconds}; ask again later"
        raise Refused(503, sentence, BUSY) from None


async def _answered(
    request: "Request", images: list[Sent], top: int, service: Service
) -> "Response":
    """The answer for images that are in the room."""
    # The prediction of each image, or its error
    answering = service.answering
    if answering.served.has_masks:  # another model was loaded while the images arrived
        _release(images, service)
        raise Refused(422, HAS_MASKS)
    outcomes = await _results_unless_disconnected(
        request, answering.accept(images, Asked(top=top), service.room)
    )
    if outcomes is None:
        return _disconnected(images, service)

    # As JSON
    predictions = []
    for image, outcome in zip(images, outcomes, strict=True):
        predictions.append(_prediction(image, outcome))
    unreadable = [each.error for each in predictions if each.error is not None]
    service.metrics.images.labels("unreadable").inc(len(unreadable))
    service.metrics.images.labels("answered").inc(len(predictions) - len(unreadable))
    if len(unreadable) == len(predictions):
        raise Refused(422, unreadable[0])
    return _json(answering.served, {"predictions": [_values(each) for each in predictions]})


def _release(images: list[Sent], service: Service) -> None:
    """Give back the room of images that are not answered."""
    for image in images:
        service.room.give_back(1, len(image.data))


async def _segmented(
    request: "Request", images: list[Sent], smallest: int, as_png: bool, service: Service
) -> "Response":
    """The masks of images that are in the room."""
    answering = service.answering
    if not answering.served.has_masks:  # another model was loaded while the images arrived
        _release(images, service)
        raise Refused(422, HAS_NO_MASKS)
    futures = answering.accept(images, Asked(smallest=smallest), service.room)
    outcomes = await _results_unless_disconnected(request, futures)
    if outcomes is None:
        return _disconnected(images, service)
    errors = [str(outcome) for outcome in outcomes if isinstance(outcome, BadImage)]
    for outcome in outcomes:
        if isinstance(outcome, BaseException) and not isinstance(outcome, BadImage):
            raise outcome  # the image has not caused it
    service.metrics.images.labels("unreadable").inc(len(errors))
    service.metrics.images.labels("answered").inc(len(outcomes) - len(errors))
    if len(errors) == len(outcomes):
        raise Refused(422, errors[0])
    values = []
    for image, outcome in zip(images, outcomes, strict=True):
        if isinstance(outcome, BadImage):
            values.append({"name": image.name, "error": str(outcome)})
        else:
            values.append(outcome)
    if as_png:
        return _png(values[0]["mask"])
    return _json(answering.served, {"segmentations": values})


def _png(mask: str) -> "Response":
    """A mask in base64 as an answer."""
    from starlette.responses import Response

    return Response(base64.b64decode(mask), media_type="image/png")


def _values(prediction: Prediction) -> dict:
    """A prediction as in `vitkit predict --json`, without fields that are None."""
    return {name: value for name, value in as_values(prediction).items() if value is not None}


def _prediction(image: Sent, outcome: Prediction | BaseException) -> Prediction:
    """The prediction of an image, or its error. Raises errors that the image has not caused."""
    if isinstance(outcome, BadImage):
        return Prediction(image.name, error=str(outcome))
    if isinstance(outcome, BaseException):
        raise outcome
    if outcome.error is not None:  # the outputs are not finite
        raise RuntimeError(outcome.error)
    return outcome


async def _attention_answer(
    request: "Request", images: list[Sent], choice: Choice, service: Service
) -> "Response":
    """The attention of the model for the single image of the request."""
    if len(images) > 1:
        _release(images, service)
        raise Refused(413, f"the request holds {len(images)} images; the attention is that of one")
    answering = service.answering
    (image,) = images
    outcomes = await _results_unless_disconnected(request, [service.look(answering, image, choice)])
    if outcomes is None:
        return _disconnected(images, service)
    (outcome,) = outcomes
    if isinstance(outcome, VitkitError):
        service.metrics.images.labels("not looked at").inc()
        raise Refused(422, str(outcome))
    if isinstance(outcome, BaseException):
        raise outcome
    service.metrics.images.labels("looked at").inc()
    return _json(answering.served, {"name": image.name} | outcome)


def _json(served: Served, values: dict) -> "Response":
    """A JSON answer with the name of the model."""
    from starlette.responses import Response

    model = {"name": served.name, "loaded": served.loaded}
    return Response(json.dumps({"model": model} | values), media_type=JSON)


def _disconnected(images: list[Sent], service: Service) -> "Response":
    """The answer for a client that has disconnected, so it is never read."""
    from starlette.responses import Response

    service.metrics.images.labels("given up").inc(len(images))
    return Response(status_code=GONE)


async def _results_unless_disconnected(
    request: "Request", futures: list[Future]
) -> list[Any] | None:
    """All results, with exceptions as values; None if the client disconnects first, in which case
    the futures are cancelled."""
    answers = [asyncio.wrap_future(future) for future in futures]
    together = asyncio.gather(*answers, return_exceptions=True)
    gone = asyncio.ensure_future(
        request.receive()
    )  # the body is read, so only a disconnect can follow
    try:
        await asyncio.wait((together, gone), return_when=asyncio.FIRST_COMPLETED)
        if together.done():
            return together.result()
        return None
    finally:
        gone.cancel()
        for answer in answers:
            answer.cancel()
