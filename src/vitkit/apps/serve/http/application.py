"""A model behind HTTP: what is asked, what is answered, and what is refused with a sentence.

    GET  /          a page to try the model on
    POST /predict   images -> their most likely classes
    POST /attention an image -> what the model looks at
    GET  /model     what is served: its classes, and how it prepares an image
    GET  /health    whether the process is well     GET /ready    whether it takes requests
    GET  /metrics   for Prometheus                  GET /docs     these pages, from /openapi.json

FastAPI writes the OpenAPI page and finds the function for a path, and Starlette reads forms. Bodies are
counted as they come (body.py), so that no limit is passed.
"""

import json
from typing import TYPE_CHECKING

from vitkit.apps.serve.http.body import JSON, let_finish
from vitkit.apps.serve.http.description import WITHOUT_SCRIPT
from vitkit.apps.serve.http.predict import add_attention, add_predict
from vitkit.apps.serve.http.service import Service, Settings, check_token, guards
from vitkit.apps.serve.http.telemetry import GONE
from vitkit.web import Guard, Refused, page_routes

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp

REMEDY = "allow that name when it is started (allow-host), or start it with a token"
HINT_OF_ORIGINS = "; they may if they are allowed when it is started (allow-origin), and a proxy in front has to pass the Host on"
_PAGE = ("/", "/page.css", "/page.js", "/docs", "/openapi.json")
PATHS = frozenset(
    (*_PAGE, "/predict", "/attention", "/model", "/health", "/ready", "/metrics"),
)
"""Those that are counted by name."""


def application(
    service: Service, models: tuple[str, ...] = ("./",), docs: bool = True
) -> "FastAPI":
    """The ASGI application of a model.

    Args:
        service: The model and the limits.
        models: The addresses of the models that the page at `/` shows side by side, below its own.
        docs: Whether /docs describes the API, by a script of another host: it could read a secret in the
            address of the page.
    """
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
    add_predict(app, service)
    add_attention(app, service)
    _add_model(app, service)
    _add_states(app, service)
    described = "openapi.json"
    if docs:
        _add_docs(app)
        described = "docs"
    app.router.routes += page_routes(
        "vitkit.apps.serve", models=" ".join(models), described=described
    )
    _add_refusals(app)
    return app


def guarded(app: "FastAPI", settings: Settings) -> "ASGIApp":
    """The application behind what keeps other pages out, and lets in those that are allowed."""
    # Browsers let pages from these origins ask, and read what they are answered
    if settings.origins:
        from starlette.middleware.cors import CORSMiddleware

        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.origins,
            allow_methods=("GET", "POST"),
            allow_headers=("Authorization", "Content-Type", "X-Request-ID"),
            expose_headers=("X-Request-ID", "Retry-After"),
        )
    if settings.token is not None:  # other sites do not know a token
        return app
    return Guard(
        app,
        settings.host,
        settings.names,
        settings.origins,
        remedy=REMEDY,
        hint_of_origins=HINT_OF_ORIGINS,
    )


# What is served, and how it is


def _add_model(app: "FastAPI", service: Service) -> None:
    from fastapi import Request

    async def model(request: Request) -> dict:
        """What is served: its classes, and how it prepares an image."""
        check_token(request, service.settings.token)
        served = service.answering.served
        return {
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
        """Whether the process is well; if not, it is to be started again."""
        if not service.is_well():
            raise Refused(503, "the model does not compute any more")
        return {"status": "well"}

    async def ready() -> dict:
        """Whether requests are to be sent here."""
        if service.draining:
            raise Refused(503, "the server is about to end")
        return {"status": "ready"}

    async def metrics(request: Request) -> Response:
        """Counts for Prometheus."""
        check_token(request, service.settings.token)
        page, content_type = service.metrics.page()
        return Response(page, media_type=content_type)

    for path, state in (("/health", health), ("/ready", ready)):
        app.get(path)(state)
        app.head(path, include_in_schema=False)(state)  # what balancers and `wget --spider` ask by
    app.get("/metrics", dependencies=guards(service.settings.token))(metrics)


def _add_docs(app: "FastAPI") -> None:
    """/docs, whose script comes from elsewhere; without a network, it says so."""
    from fastapi import Response
    from fastapi.openapi.docs import get_swagger_ui_html

    # Its address is relative: a proxy may serve this below a path of its own
    page = bytes(get_swagger_ui_html(openapi_url="openapi.json", title=app.title).body)
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
