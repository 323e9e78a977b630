"""The HTTP application of a model: its paths, and its error answers.

    GET  /          a page to try the model on
    POST /predict   images -> their most likely classes
    POST /segment   images -> the class of every pixel, of a model that classifies pixels
        POST /attention an image -> the attention of the model
        GET  /model     the served model: its classes and its preprocessing
        GET  /health    whether the process is healthy  GET /ready    whether it accepts requests
        GET  /metrics   for Prometheus                  GET /docs     the API, from /openapi.json

FastAPI makes the OpenAPI page and routes requests, and Starlette parses forms. Bodies are counted
while they are received (body.py), so that no limit is exceeded.
"""

import json
from typing import TYPE_CHECKING

from vitkit.apps.serve.http.body import JSON, let_finish
from vitkit.apps.serve.http.description import WITHOUT_SCRIPT
from vitkit.apps.serve.http.predict import add_attention, add_predict, add_segment
from vitkit.apps.serve.http.service import Service, Settings, check_token, guards
from vitkit.apps.serve.http.telemetry import GONE
from vitkit.apps.serve.masks import colours_of
from vitkit.web import Guard, Refused, page_routes

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp

REMEDY = "allow that name when it is started (allow-host), or start it with a token"
HINT_OF_ORIGINS = "; they may if they are allowed when it is started (allow-origin), and a proxy in front has to pass the Host on"
_PAGE = ("/", "/page.css", "/page.js", "/masks.js", "/docs", "/openapi.json")
PATHS = frozenset(
    (*_PAGE, "/predict", "/segment", "/attention", "/model", "/health", "/ready", "/metrics"),
)
"""Paths with metrics of their own."""


def application(
    service: Service, models: tuple[str, ...] = ("./",), docs: bool = True
) -> "FastAPI":
    """The ASGI application of a model.

    Args:
        service: The model and the limits.
        models: Addresses of the models that the page at `/` shows side by side, relative to its own.
        docs: Whether to serve /docs, whose script comes from another host and could read a secret in the
            page's address.
    """
    from fastapi import FastAPI

    from vitkit import __version__

    app = FastAPI(
        title="vitkit serve",
        version=__version__,
        description="Classes of images, or of their pixels, by a Vision Transformer.",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    add_predict(app, service)
    add_segment(app, service)
    add_attention(app, service)
    _add_model(app, service)
    _add_states(app, service)
    described = "openapi.json"
    if docs:
        _add_docs(app)
        described = "docs"
    app.router.routes += page_routes(
        "vitkit.apps.serve", scripts=("masks.js",), models=" ".join(models), described=described
    )
    _add_refusals(app)
    return app


def guarded(app: "FastAPI", settings: Settings) -> "ASGIApp":
    """The application with protection against requests of other web pages, except of allowed ones."""
    # CORS: browsers let pages of these origins send requests and read the answers
    if settings.origins:
        from starlette.middleware.cors import CORSMiddleware

        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.origins,
            allow_methods=("GET", "POST"),
            allow_headers=("Authorization", "Content-Type", "X-Request-ID"),
            expose_headers=("X-Request-ID", "Retry-After"),
        )
    if settings.token is not None:  # pages of other sites do not have the token
        return app
    return Guard(
        app,
        settings.host,
        settings.names,
        settings.origins,
        remedy=REMEDY,
        hint_of_origins=HINT_OF_ORIGINS,
    )


# The model, and the state of the server


def _add_model(app: "FastAPI", service: Service) -> None:
    from fastapi import Request

    async def model(request: Request) -> dict:
        """What is served: its classes, and how it prepares an image; of a model that classifies every pixel also
        the classes' colours in masks."""
        check_token(request, service.settings.token)
        served = service.answering.served
        colours = {}
        if served.has_masks:
            colours["colours"] = colours_of(tuple(served.runtime.labels))
        return colours | {
            "name": served.name,
            "loaded": served.loaded,
            "labels": list(served.runtime.labels),
            "activation": served.runtime.activation,
            "preprocessing": served.runtime.preprocessing.to_json(),
        }

    app.get("/model", dependencies=guards(service.settings.token))(model)


def _add_states(app: "FastAPI", service: Service) -> None:
    from fastapi import Request, Response

    async def health() -> dict:
        """Whether the process is healthy; otherwise it should be restarted."""
        if not service.is_well():
            raise Refused(503, "the model does not compute any more")
        return {"status": "well"}

    async def ready() -> dict:
        """Whether requests should be sent to this process."""
        if service.draining:
            raise Refused(503, "the server is about to end")
        return {"status": "ready"}

    async def metrics(request: Request) -> Response:
        """Metrics for Prometheus."""
        check_token(request, service.settings.token)
        page, content_type = service.metrics.page()
        return Response(page, media_type=content_type)

    for path, state in (("/health", health), ("/ready", ready)):
        app.get(path)(state)
        app.head(path, include_in_schema=False)(state)  # used by load balancers and `wget --spider`
    app.get("/metrics", dependencies=guards(service.settings.token))(metrics)


def _add_docs(app: "FastAPI") -> None:
    """Serve /docs, whose script comes from another host; without a network the page says so."""
    from fastapi import Response
    from fastapi.openapi.docs import get_swagger_ui_html

    # The relative address also works behind a proxy that serves this application below another path
    page = bytes(get_swagger_ui_html(openapi_url="openapi.json", title=app.title).body)
    page = page.replace(b'<div id="swagger-ui">', b'<div id="swagger-ui">' + WITHOUT_SCRIPT, 1)

    async def docs() -> Response:
        return Response(page, media_type="text/html")

    app.get("/docs", include_in_schema=False)(docs)


# Errors


def _add_refusals(app: "FastAPI") -> None:
    """Answer every error with {"error": "a sentence"}."""
    from fastapi.exceptions import RequestValidationError
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect

    async def refused(request: "Request", error: Refused) -> "Response":
        return await _after_rest_of_body(
            request, _error(error.status, error.sentence, error.retry_after)
        )

    async def not_there(request: "Request", error: HTTPException) -> "Response":
        sentence = f"there is no {request.url.path[:100]} here; /docs lists what there is"
        if error.status_code == 405:
            sentence = f"{request.url.path} is not asked by {request.method[:16]}; see /docs"
        return await _after_rest_of_body(request, _error(error.status_code, sentence))

    async def wrong_query(request: "Request", error: RequestValidationError) -> "Response":
        first = error.errors()[0]
        sentence = f"{first['loc'][-1]} is {str(first['input'])[:100]!r}: {first['msg']}"
        return await _after_rest_of_body(request, _error(422, sentence))

    async def gone(request: "Request", error: ClientDisconnect) -> "Response":
        return _error(GONE, "the client went away")

    async def ours(request: "Request", error: Exception) -> "Response":
        return _error(500, "the server failed; its log says how")

    app.exception_handler(Refused)(refused)
    app.exception_handler(HTTPException)(not_there)
    app.exception_handler(RequestValidationError)(wrong_query)
    app.exception_handler(ClientDisconnect)(gone)
    app.exception_handler(Exception)(ours)


async def _after_rest_of_body(request: "Request", answer: "Response") -> "Response":
    """The answer to a request, after the rest of its body was read and discarded."""
    if not await let_finish(request):
        answer.headers["connection"] = "close"
    return answer


def _error(status: int, sentence: str, retry_after: int | None = None) -> "Response":
    """An error answer."""
    from starlette.responses import Response

    headers = {}
    if retry_after is not None:
        headers["retry-after"] = str(retry_after)
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    body = json.dumps({"error": sentence})  # as ASCII: a name may contain unpaired surrogates
    return Response(body, status, headers, media_type=JSON)
