"""The OpenAPI description of bodies and answers. Bodies have several content types and are described by
hand; FastAPI derives the description of answers from dataclasses."""

from dataclasses import dataclass
from typing import Any

from vitkit.apps.serve.http.body import FORM, JSON, RAW


@dataclass(frozen=True)
class Error:
    """Why a request was refused, in a sentence."""

    error: str


@dataclass(frozen=True)
class Model:
    """The model that made the answer."""

    name: str
    loaded: str


@dataclass(frozen=True)
class AnswerToImage:
    """The most likely classes of an image, best first; or what is wrong with it, as `error`.

    `unknown` and `possible` are there if the model has limits: whether the image is unlike all that
    it has learned from, and which classes it leaves open.
    """

    name: str
    labels: list[str] | None = None
    probabilities: list[float] | None = None
    error: str | None = None
    unknown: bool | None = None
    possible: list[str] | None = None


@dataclass(frozen=True)
class Answers:
    """The predictions of a request, one for each image, in their order."""

    model: Model
    predictions: list[AnswerToImage]


@dataclass(frozen=True)
class ClassOfPixels:
    """A class that pixels of an image have: its number in the mask, its colour there, and its share of the pixels."""

    number: int
    label: str
    colour: str
    share: float


@dataclass(frozen=True)
class RegionOfPixels:
    """Pixels of one class that touch each other. `box` is left, top, width and height, and `area` their number."""

    label: str
    box: list[int]
    area: int


@dataclass(frozen=True)
class SegmentedImage:
    """The classes of an image's pixels; or what is wrong with it, as `error`.

    `mask` is a PNG in base64, of the size of the upright image: its pixels are the numbers of classes, with a
    palette of the classes' colours. `classes` are those that pixels have, the most frequent first. `regions` are
    at most 10,000 of the `region_count` regions of `smallest` pixels at least; a background has none.
    """

    name: str
    width: int | None = None
    height: int | None = None
    classes: list[ClassOfPixels] | None = None
    region_count: int | None = None
    regions: list[RegionOfPixels] | None = None
    mask: str | None = None
    error: str | None = None


@dataclass(frozen=True)
class Segmentations:
    """The masks of a request, one for each image, in their order."""

    model: Model
    segmentations: list[SegmentedImage]


@dataclass(frozen=True)
class AttentionMap:
    """The attention of the model for an image.

    `weights` has one row per row of patches; `rows` and `columns` are the centres of the patches,
    as shares of the picture's height and width. `picture` is a JPEG in base64: the part of the
    image that the model receives, darkened by low attention. Of a model of good images, `weights` and
    `picture` say where the image is unlike them, without a layer, and `unlike` is true.
    """

    model: Model
    name: str
    layers: list[str]
    heads: int
    weights: list[list[float]]
    rows: list[float]
    columns: list[float]
    caption: str
    picture: str
    unlike: bool


_FILE = {"type": "string", "format": "binary"}
_BASE64 = {"type": "string", "format": "byte"}
_NAMED = {
    "type": "object",
    "required": ["data"],
    "properties": {"name": {"type": "string"}, "data": _BASE64},
}
_FILES = {"type": "object", "properties": {"image": {"type": "array", "items": _FILE}}}
_IMAGES = {
    "type": "object",
    "required": ["images"],
    "properties": {"images": {"type": "array", "items": {"anyOf": [_BASE64, _NAMED]}}},
}

BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": "One image as it is, several as the files of a form, or base64 in JSON.",
        "content": {
            "image/*": {"schema": _FILE},
            RAW: {"schema": _FILE},
            FORM: {"schema": _FILES},
            JSON: {"schema": _IMAGES},
        },
    }
}

_REFUSED = {
    400: "The body is damaged, or holds no image.",
    401: "The token is missing or wrong.",
    408: "The request did not arrive in time.",
    413: "Too many bytes, or too many images.",
    415: "A content type that is none of these.",
    422: "No image of the request can be read, or the model cannot answer what was asked: why.",
    500: "The server's own mistake.",
    503: "No room or no time for more; ask again after Retry-After seconds.",
}


def responses(answer: type, words: str) -> dict[int | str, dict[str, Any]]:
    """The OpenAPI responses of a path that takes images. answer: type of the answer; words: its
    description."""
    described: dict[int | str, dict[str, Any]] = {200: {"description": words, "model": answer}}
    for status, reason in _REFUSED.items():
        described[status] = {"description": reason, "model": Error}
    return described


# Content of the API page until its script has loaded
WITHOUT_SCRIPT = b"""
<p>This page is drawn by a script from cdn.jsdelivr.net. While you read this, the script has not come:
<a href="openapi.json">openapi.json</a> says the same without it.</p>
<pre>curl --data-binary @photograph.jpg -H 'Content-Type: image/jpeg' ADDRESS/predict?top=5
curl -F image=@first.jpg -F image=@second.jpg ADDRESS/predict
curl -F image=@photograph.jpg ADDRESS/attention
curl -F image=@photograph.jpg 'ADDRESS/segment?answer=png' -o mask.png
GET model, health, ready, metrics</pre>
"""
