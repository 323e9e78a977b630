"""What the OpenAPI page says of POST /predict, whose body is read by our own code."""

from typing import Any

from vitkit.serving.http.body import FORM, JSON, RAW

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
