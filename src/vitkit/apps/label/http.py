"""The HTTP application behind the page of `vitkit label`: questions, answers and images.

`vitkit.apps.serve` serves it below a secret path, so that other pages in the browser, and other
people on the network, can neither answer nor see an image.

    GET  /              the page      GET /page.css, /page.js
    GET  /photograph    ?name=&size=  an image as JPEG, scaled to this size
    GET  /progress      the progress
    POST /ask, /answer, /undo, /rename, /finish      requests of a person, as JSON
"""

import io
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

from vitkit.apps.label.answers import Answer
from vitkit.apps.label.checking import Checking
from vitkit.apps.label.questions import Question
from vitkit.apps.label.session import MORE, LabelProgress, LabelSession
from vitkit.data import open_image, picture_to_look_at
from vitkit.system.console.text import printable, printable_name
from vitkit.system.errors import BadImage, VitkitError
from vitkit.system.storage.files import parse_json
from vitkit.web import Refused, page_routes, pieces

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request

SIZES = (240, 1200)  # longer side of an image on a screen, and of a single image, in pixels
KEPT = 2_000  # small images in the cache
LARGEST = 1 << 20  # largest request body, bytes
NAME = 40  # longest name of a person, characters


@dataclass(frozen=True)
class Operations:
    """The operations that the page of a labelling session needs."""

    session: LabelSession | Checking
    root: Path
    """The folder of the images."""
    finish: Callable[[bool], list[str]]
    """Writes the model, and with True the folders of links; returns sentences about the result."""
    problem: Callable[[], str]
    """Returns why the model cannot compute features; "" if it can."""


class Wrong(Exception):
    """The page's request is invalid; the text says why."""


def application(table: Operations) -> "Starlette":
    """The ASGI application of a labelling session."""
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

    def photograph(request: "Request") -> Response:
        name = request.query_params.get("name", "")
        size = SIZES[-1] if request.query_params.get("size") == "large" else SIZES[0]
        if not table.session.has(name):
            return Response("there is no such photograph", 404)
        try:
            data = _jpeg(table.root / name, size)
        except (BadImage, OSError) as error:
            table.session.lose(name, str(error))
            return Response("it cannot be read", 404)
        return Response(data, media_type="image/jpeg", headers={"Cache-Control": "max-age=600"})

    def progress(request: "Request") -> Response:
        return JSONResponse(_progress(table), headers={"Cache-Control": "no-store"})

    def said(what: Callable[[Operations, str, dict], dict]) -> Callable:
        async def post(request: "Request") -> Response:
            from starlette.concurrency import run_in_threadpool

            try:
                values = await _body(request)
                by = _person(values)
                answer = await run_in_threadpool(what, table, by, values)
            except (Wrong, VitkitError) as error:
                return JSONResponse({"error": str(error)}, 409)
            except OSError as error:
                sentence = f"this could not be written down: {error.strerror or error}"
                return JSONResponse({"error": sentence}, 507)
            return JSONResponse(answer, headers={"Cache-Control": "no-store"})

        return post

    routes = [
        *page_routes("vitkit.apps.label"),
        Route("/photograph", photograph),
        Route("/progress", progress),
    ]
    for name, what in POSTS.items():
        routes.append(Route(f"/{name}", said(what), methods=["POST"]))
    return Starlette(routes=routes)


# Requests of the page


def _ask(table: Operations, by: str, values: dict) -> dict:
    return _next(table, by)


def _answer(table: Operations, by: str, values: dict) -> dict:
    decision = values.get("decision")
    if decision not in ("class", "leave out", "not sure"):
        raise Wrong(f"the decision is {decision!r}; it is 'class', 'leave out' or 'not sure'")
    number = values.get("question")
    label = values.get("label", "")
    others = values.get("others", [])
    if not isinstance(label, str) or not isinstance(number, int):
        raise Wrong("an answer needs the number of a question, and a class")
    if not isinstance(others, list) or not all(isinstance(name, str) for name in others):
        raise Wrong("`others`, the photographs that do not belong, is a list of names")
    answer = table.session.say(by, number, decision, label, others)
    return _next(table, by) | {"said": _words(answer)}


def _undo(table: Operations, by: str, values: dict) -> dict:
    answer = table.session.undo(by)
    words = "there is nothing to take back"
    if answer is not None:
        words = f"taken back: {_words(answer)}"
    return _next(table, by) | {"said": words}


def _rename(table: Operations, by: str, values: dict) -> dict:
    old, new = values.get("old"), values.get("new")
    if not isinstance(old, str) or not isinstance(new, str):
        raise Wrong("a class is renamed from one name to another")
    answer = table.session.rename(by, old, new)
    return _next(table, by) | {"said": _words(answer)}


def _finish(table: Operations, by: str, values: dict) -> dict:
    return {"sentences": table.finish(values.get("links") is True)}


POSTS: dict[str, Callable[[Operations, str, dict], dict]] = {
    "ask": _ask,
    "answer": _answer,
    "undo": _undo,
    "rename": _rename,
    "finish": _finish,
}


async def _body(request: "Request") -> dict:
    """The JSON object in a request's body. Raises Wrong if it is not an object, or too large."""
    try:
        values = parse_json(b"".join([piece async for piece in pieces(request, LARGEST)]))
    except Refused as refused:
        raise Wrong(refused.sentence) from None
    except ValueError as error:
        raise Wrong(f"the request is not JSON: {error}") from None
    if not isinstance(values, dict):
        raise Wrong("the request is not a JSON object")
    return values


def _person(values: dict) -> str:
    """The name of the person who sent the request. Raises Wrong if it is missing."""
    by = values.get("by")
    if not isinstance(by, str) or not by.strip():
        raise Wrong("the request does not say whose it is: `by` is missing")
    return printable(by.strip())[:NAME]


# Responses to the page


def _next(table: Operations, by: str) -> dict:
    """The next question, and the classes."""
    question = table.session.ask(by)
    return {"question": _question_values(question), "classes": table.session.classes()}


def _question_values(question: Question | None) -> dict | None:
    if question is None:
        return None
    photographs = []
    for name in question.photographs:
        photographs.append({"name": name, "shown": printable_name(name)})
    return {
        "number": question.number,
        "how": question.how,
        "label": question.label,
        "reason": question.reason,
        "beside": question.beside,
        "photographs": photographs,
        "guesses": [{"label": label, "probability": value} for label, value in question.guesses],
    }


def _words(answer: Answer) -> str:
    """A description of an answer."""
    if answer.decision == "rename":
        return f"{answer.renamed} is called {answer.label}"
    if answer.how == "screen":
        words = f"{len(answer.photographs)} are {answer.label}"
        if answer.others:
            words += f", {len(answer.others)} are not"
        return words
    name = printable_name(answer.photographs[0])
    if answer.decision == "class":
        return f"{name} is {answer.label}"
    return f"{name}: {answer.decision}"


def _progress(table: Operations) -> dict:
    progress = table.session.progress()
    return {
        "checks": isinstance(table.session, Checking),
        "photographs": progress.photographs,
        "seen": progress.seen,
        "labelled": progress.labelled,
        "aside": progress.set_aside,
        "unreadable": [
            f"{printable_name(name)}: {printable(problem)}"
            for name, problem in table.session.unreadable().items()
        ],
        "classes": [{"label": label, "count": count} for label, count in progress.classes],
        "sentences": sentences(progress),
        "differences": [
            f"{printable_name(each.photograph)}: {each.labels[0].label} ({each.labels[0].by}) or "
            f"{each.labels[1].label} ({each.labels[1].by})"
            for each in table.session.differences()
        ],
        "problem": table.problem() or table.session.problem,
    }


def sentences(progress: LabelProgress) -> list[str]:
    """Sentences about the accuracy of the model, and the gain from more labels."""
    said = []
    estimate = progress.estimate
    if estimate is not None:
        said.append(
            f"of the other {progress.left:,} the model gets about {estimate.share:.0%} right "
            f"({estimate.low:.0%} to {estimate.high:.0%}, by {estimate.photographs} that were drawn)"
        )
        if estimate.gain is not None:
            said.append(f"{MORE} more labels: about {100 * estimate.gain:+.1f} points")
    if progress.agreement is not None:
        kappa, count = progress.agreement
        said.append(f"two people agree with kappa {kappa:.2f} on {count} photographs")
    return said


# Images


def _jpeg(path: Path, size: int) -> bytes:
    """An image as the page shows it, as JPEG. Raises BadImage, OSError."""
    state = path.stat()
    if size == SIZES[0]:
        return _small(path, state.st_size, state.st_mtime_ns)
    return _encoded(path, size)


@lru_cache(KEPT)
def _small(path: Path, size: int, changed: int) -> bytes:
    """A cached small image. size, changed: size and modification time of its file, part of the
    cache key."""
    return _encoded(path, SIZES[0])


def _encoded(path: Path, size: int) -> bytes:
    picture = open_image(path.read_bytes(), path.name)
    reduce = next((by for by in (8, 4, 2) if max(picture.size) >= by * size), 1)
    if picture.channels == 3 and not picture.many_bits:
        pixels = picture.pixels(reduce=reduce)
    else:
        pixels = picture_to_look_at(picture)
    image = Image.fromarray(pixels)
    image.thumbnail((size, size), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=85)
    return buffer.getvalue()
