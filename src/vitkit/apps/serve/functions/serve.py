"""`vitkit serve`: a model behind HTTP."""

from __future__ import annotations

import asyncio
import math
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Unpack
from urllib.parse import urlsplit

from PIL import Image

from vitkit.apps.serve.http.body import Limits
from vitkit.apps.serve.http.server import (
    READY,
    Server,
    StartSettings,
    prepare_process,
    server_socket,
)
from vitkit.apps.serve.http.service import Settings
from vitkit.apps.serve.http.workers import Workers
from vitkit.apps.serve.models import answers_alone
from vitkit.runtimes import (
    Runtime,
    RuntimeName,
    is_exported,
    precision_of,
    runtime_of_run,
)
from vitkit.runtimes.given import batch_runtime_of_file
from vitkit.system.console.messages import announce
from vitkit.system.environment import MAX_PIXELS_VARIABLE, max_pixels
from vitkit.system.errors import BadSettings
from vitkit.system.functions.arguments import name_of, short_name
from vitkit.system.functions.public import public
from vitkit.system.functions.results import Result
from vitkit.system.functions.types import DeviceLike, PathLike, Several
from vitkit.system.machine import PrecisionChoice, pick_device
from vitkit.system.processes.signals import signals_are_ours
from vitkit.web import check_installed
from vitkit.web.pages import address_of
from vitkit.weights import (
    Hints,
    ModelLike,
    Overrides,
    classifier_of,
    classifier_with_head,
    hints_of,
)

if TYPE_CHECKING:
    from vitkit.weights import Classifier

TOKEN = "VITKIT_TOKEN"  # environment variable
PIXELS = 50_000_000  # default limit for images from clients; an environment variable overrides it

NO_HINTS = Hints()
USUAL_PORTS = {"http": ":80", "https": ":443"}


@dataclass(frozen=True, repr=False)
class Ended(Result):
    """The result of `vitkit.serve`: the address of the server, which has ended."""

    address: str

    def shown(self) -> Iterator[str]:
        """Nothing: the server has already logged that it ends."""
        yield from ()


@public
def serve(
    model: ModelLike,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    workers: int = 1,
    top: int = 5,
    batch: int = 32,
    delay: float = 10.0,
    queue: int = 256,
    most_bytes: int = 32 << 20,
    most_images: int = 64,
    seconds: float = 30.0,
    grace: float = 30.0,
    token_file: PathLike | None = None,
    allow_origin: Annotated[Several[str], "ORIGIN..."] = (),
    allow_host: Annotated[Several[str], "NAME..."] = (),
    runtime: RuntimeName = "auto",
    precision: PrecisionChoice = "auto",
    device: DeviceLike = "auto",
    **overrides: Unpack[Overrides],
) -> Ended:
    """Serve a model over HTTP: POST one or several images to /predict, and get their classes; of a model of
    masks, to /segment, and get the class of every pixel. The page at / shows them, and what the model looks
    at; /docs describes all requests. After SIGTERM, the server
    answers the requests that it has accepted, and ends. SIGHUP loads the model again.

    A program ends it with Ctrl-C.

    Args:
        model: A run, a model directory, a file of weights (vitkit's, Hugging Face's, timm's,
            torchvision's or Google's), the name of a published model, or a file of `vitkit.export`
            (.onnx or .xml).
        host: Address to serve at. 127.0.0.1 is only for this machine; 0.0.0.0 lets in everyone who can
            reach it.
        port: Port to serve at; 0 takes any free one.
        workers: Processes, each with its own copy of the model. One uses all CPUs; use several for
            several GPUs (one each), or for many CPUs.
        top: Classes to name for an image, unless a request says how many.
        batch: Largest number of images that are computed together.
        delay: Longest time in milliseconds that an image waits for others while the model is free.
        queue: Largest number of images that a process holds in memory; it answers further requests with
            503.
        most_bytes: Largest request, in bytes.
        most_images: Largest number of images in a request.
        seconds: Longest time of a request, from its beginning to its answer.
        grace: Seconds in which a server that ends may finish the requests that it has accepted.
        token_file: File with a token that clients must send, as 'Authorization: Bearer TOKEN'. Default:
            the value of VITKIT_TOKEN in the environment; without both, no token is needed.
        allow_origin: Origins whose web pages may send requests (CORS), such as https://example.org; '*'
            means all. Default: only pages of the server's own address.
        allow_host: Names by which clients may ask a server without a token, such as that of a proxy in
            front of it: photos.example.org. '*' means all. Default: its address, localhost, and with
            `host='0.0.0.0'` any number and this machine's own name.
        runtime: Library that computes the answers: torch, onnx (ONNX Runtime) or openvino. auto is
            PyTorch for a model; for an exported file, it is the library for which the file was written.
        precision: Arithmetic of the matrix products. auto is bfloat16 if the CPU or GPU has
            instructions for it.
        device: cpu, cuda, cuda:1 or mps; auto chooses the best one.
        **overrides: Settings that the file of the model does not give, or that you want to change:
            `Overrides`.

    Raises:
        BadSettings: If a setting is out of range.
        BadWeights: If the model cannot be read.
        RuntimeError: Within a running event loop, such as a notebook's.
    """
    # Checks before anything is loaded
    hints = hints_of(overrides)
    check_installed()
    _check_no_loop()
    for name, count in {"workers": workers, "top": top, "batch": batch, "queue": queue}.items():
        if count < 1:
            raise BadSettings(f"`{name}` is {count}; it is at least 1")
    for name, duration in {"delay": delay, "grace": grace}.items():
        if not 0 <= duration < math.inf:
            raise BadSettings(f"`{name}` is {duration:g}; it is a time, from 0 on")
    if most_images > queue:
        raise BadSettings(
            f"`most_images` is {most_images}, and `queue={queue}`: such a request could never be accepted"
        )
    limits = Limits(most_bytes, most_images, seconds)
    limits.check()
    check_origins(allow_origin)
    check_hosts(allow_host)
    token = token_of(token_file)

    # The server
    answering = Settings(limits, token, top, batch, delay / 1000, allow_origin, host, allow_host)
    opening = partial(open_model, model, hints, runtime, precision, device)
    opening_classifier = partial(open_classifier, model, hints)
    plan = StartSettings(
        short_name(name_of(model)), opening, answering, queue, grace, opening_classifier
    )
    bound = server_socket(host, port)
    bound_host, bound_port, *_ = bound.getsockname()
    address = address_of(bound_host, bound_port)
    ready = partial(_log_ready, plan.name, address)
    with bound, limit_of_pixels(PIXELS), _interrupted_as_ended():
        if workers > 1:
            Workers(plan, bound, workers).run(ready)
        else:
            prepare_process()
            Server(plan, bound, ready).run()
    return Ended(address)


def _check_no_loop() -> None:
    """Raises RuntimeError within a running event loop, such as a notebook's: the server needs its own."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError(
        "serve runs until it is ended, and here is an event loop already; call it in a thread: "
        "await asyncio.to_thread(vitkit.serve, model)"
    )


@contextmanager
def limit_of_pixels(most: int) -> Iterator[None]:
    """A block with a server's pixel limit for images, unless the environment sets one. The limit is
    in the environment, for the workers; the previous value is restored afterwards."""
    before = os.environ.get(MAX_PIXELS_VARIABLE)
    pixels = Image.MAX_IMAGE_PIXELS
    os.environ.setdefault(MAX_PIXELS_VARIABLE, str(most))
    try:
        max_pixels()  # raises if the value is not a number
        yield
    finally:
        Image.MAX_IMAGE_PIXELS = pixels
        if before is None:
            del os.environ[MAX_PIXELS_VARIABLE]


@contextmanager
def _interrupted_as_ended() -> Iterator[None]:
    """A block in a Python program that Ctrl-C ends normally, since the server handles no signals
    there."""
    try:
        yield
    except KeyboardInterrupt:
        if signals_are_ours():
            raise


def _log_ready(name: str, address: str, word: str) -> None:
    """Log the server's address when it can answer."""
    if word not in READY:
        return
    announce(
        f"serving {name} at {address}   (a page to try it on; Ctrl-C ends it; {address}/docs says more)"
    )
    announce(f"next: curl -F image=@photograph.jpg {address}{READY[word]}")


def check_origins(origins: tuple[str, ...]) -> None:
    """Raises VitkitError for a value that browsers never send as an origin."""
    for origin in origins:
        parts = urlsplit(origin)
        is_origin = parts.scheme in USUAL_PORTS and origin == f"{parts.scheme}://{parts.netloc}"
        has_usual_port = parts.netloc.endswith(USUAL_PORTS.get(parts.scheme, " "))
        is_sent = is_origin and parts.netloc == parts.netloc.lower() and not has_usual_port
        if origin != "*" and not (is_sent and parts.netloc):
            raise BadSettings(
                f"`allow_origin` is {origin}; browsers send a scheme, a host in small letters, and a port "
                "unless it is the usual one, such as https://example.org or http://localhost:3000; '*' is "
                "all"
            )


def check_hosts(names: tuple[str, ...]) -> None:
    """Raises VitkitError for a value that is not a bare host name."""
    for name in names:
        if name != "*" and not re.fullmatch(r"[\w.-]+", name):
            raise BadSettings(
                f"`allow_host` is {name}; it is the name of a host without its scheme and port, such as "
                "photos.example.org; '*' is all"
            )


def token_of(file: Path | None) -> str | None:
    """The token that clients must send; None if none is required. Raises VitkitError if it is empty."""
    if file is not None:
        token = file.read_text().strip()
        source = str(file)
    elif TOKEN in os.environ:
        token = os.environ[TOKEN].strip()
        source = TOKEN
    else:
        return None
    if not token:
        raise BadSettings(f"{source} holds no token; write one into it, such as 32 random letters")
    return token


def open_model(
    model: str | Classifier,
    hints: Hints = NO_HINTS,
    runtime: RuntimeName = "auto",
    precision: PrecisionChoice = "auto",
    device: str = "auto",
    needs_classes: bool = True,
) -> Runtime:
    """The runtime that computes the predictions. Raises BadSettings if the model has no classes although
    `needs_classes`."""
    if runtime == "compiled":
        raise BadSettings(
            "`runtime` is compiled, which takes a minute for every other number of images in a batch; "
            "choose torch, onnx or openvino"
        )
    if isinstance(model, str) and is_exported(model):
        return batch_runtime_of_file(model, hints, runtime, precision, device)

    kept = runtime_of_run(model, hints, runtime, precision, device)
    if kept is not None:
        return kept

    from vitkit.runtimes import check_runtime_of_pixels, map_runtime, open_runtime, segments

    find = classifier_with_head if needs_classes else classifier_of
    classifier = find(model, hints)
    if segments(classifier):
        check_runtime_of_pixels(runtime, name_of(model))
        return map_runtime(classifier, device, precision)
    computed_in = precision_of(runtime, precision, pick_device(device))
    return open_runtime(classifier, runtime, computed_in, device)


def open_classifier(model: str | Classifier, hints: Hints = NO_HINTS) -> Classifier:
    """The model in PyTorch, for its attention. Raises Unsupported for an exported file."""
    if isinstance(model, str) and is_exported(model):
        return answers_alone()
    return classifier_of(model, hints)
