"""A model behind HTTP."""

import asyncio
import math
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from PIL import Image
from tyro.conf import arg

from vitkit.runtimes import Runtime as AnyRuntime
from vitkit.runtimes import is_exported
from vitkit.serving import (
    Limits,
    Plan,
    Server,
    Settings,
    Workers,
    bound_socket,
    check_installed,
    prepare_process,
)
from vitkit.system.console.messages import announce
from vitkit.system.environment import MAX_PIXELS_VARIABLE, max_pixels
from vitkit.system.errors import BadSettings
from vitkit.system.machine import pick_device
from vitkit.system.processes.signals import signals_are_ours
from vitkit.verbs.arguments import (
    Device,
    Host,
    ModelHints,
    ModelOrFile,
    Precision,
    Runtime,
    name_of,
    short_name,
)
from vitkit.verbs.computing import (
    classifier_with_head,
    precision_of,
    runtime_of_file,
    runtime_of_run,
)
from vitkit.verbs.definition import result, verb
from vitkit.verbs.serving import address_of
from vitkit.weights import Hints

TOKEN = "VITKIT_TOKEN"  # environment variable
PIXELS = 50_000_000  # of an image that a stranger sends, unless --max-pixels says otherwise

USUAL_PORTS = {"http": ":80", "https": ":443"}


@dataclass(frozen=True)
class Serve:
    """Serve a model over HTTP: POST one or several images to /predict, and get their classes. /docs
    describes all requests. After SIGTERM, the server answers the requests that it has accepted, and
    ends. SIGHUP loads the model again.
    """

    model: ModelOrFile
    host: Host = "127.0.0.1"
    port: int = 8000
    """Port to serve at; 0 takes any free one."""
    workers: int = 1
    """Processes, each with its own copy of the model. One uses all CPUs; use several for several
    GPUs (one each), or for many CPUs."""
    top: int = 5
    """Classes to name for an image, unless a request says how many."""
    batch: int = 32
    """Largest number of images that are computed together."""
    delay: float = 10.0
    """Longest time in milliseconds that an image waits for others while the model is free."""
    queue: int = 256
    """Largest number of images that a process holds at once; it answers further requests with
    503."""
    most_bytes: int = 32 << 20
    """Largest request, in bytes."""
    most_images: int = 64
    """Largest number of images in a request."""
    seconds: float = 30.0
    """Longest time of a request, from its beginning to its answer."""
    grace: float = 30.0
    """Seconds in which a server that ends may finish the requests that it has accepted."""
    token_file: Annotated[
        Path | None,
        arg(
            help="File with a token that clients must send, as 'Authorization: Bearer TOKEN'. "
            f"Default: the value of {TOKEN} in the environment; without both, no token is needed."
        ),
    ] = None
    allow_origin: Annotated[tuple[str, ...], arg(metavar="ORIGIN...")] = ()
    """Origins whose web pages may send requests (CORS), such as https://example.org; '*' means all.
    Default: only pages of the server's own address."""
    allow_host: Annotated[tuple[str, ...], arg(metavar="NAME...")] = ()
    """Names by which clients may ask a server without a token, such as that of a proxy in front of it:
    photos.example.org. '*' means all. Default: its address, localhost, and with --host 0.0.0.0 any
    number and this machine's own name."""
    runtime: Runtime = "auto"
    precision: Precision = "auto"
    device: Device = "auto"
    hints: ModelHints = field(default_factory=Hints)


@result
@dataclass(frozen=True)
class Ended:
    """A server that has ended, when what it had accepted was answered."""

    address: str

    def shown(self) -> Iterator[str]:
        """Nothing: the server has already said that it ends."""
        yield from ()


@verb
def serve(settings: Serve) -> Ended:
    """Serve a model over HTTP until it is ended: a command by a signal, a program's call by Ctrl-C.
    Raises ValueError if a setting is out of range."""
    # What can be wrong, before anything is loaded
    check_installed()
    _check_no_loop()
    plan = plan_of(settings)
    bound = bound_socket(settings.host, settings.port)

    # The server
    host, port, *_ = bound.getsockname()
    address = address_of(host, port)
    ready = partial(_say_ready, plan.name, address)
    with bound, _limits_of_a_server(), _interrupted_as_ended():
        if settings.workers > 1:
            Workers(plan, bound, settings.workers).run(ready)
        else:
            prepare_process()
            Server(plan, bound, ready).run()
    return Ended(address)


def _check_no_loop() -> None:
    """Raises RuntimeError within a running event loop, such as a notebook's: a server has its own."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError(
        "serve runs until it is ended, and here is an event loop already; call it in a thread: "
        "await asyncio.to_thread(vitkit.serve, model)"
    )


@contextmanager
def _limits_of_a_server() -> Iterator[None]:
    """A block in which images have a server's limit of pixels, which its workers find in the
    environment; a program's own comes back after it."""
    before = os.environ.get(MAX_PIXELS_VARIABLE)
    pixels = Image.MAX_IMAGE_PIXELS
    os.environ.setdefault(MAX_PIXELS_VARIABLE, str(PIXELS))
    try:
        max_pixels()  # raises if it is not a number
        yield
    finally:
        Image.MAX_IMAGE_PIXELS = pixels
        if before is None:
            del os.environ[MAX_PIXELS_VARIABLE]


@contextmanager
def _interrupted_as_ended() -> Iterator[None]:
    """A block that Ctrl-C ends in a program, whose signals the server leaves alone."""
    try:
        yield
    except KeyboardInterrupt:
        if signals_are_ours():
            raise


def _say_ready(name: str, address: str, word: str = "ready") -> None:
    """Say where the server is, when it answers."""
    if word != "ready":
        return
    announce(f"serving {name} at {address}   (Ctrl-C ends it; {address}/docs says more)")
    announce(f"next: curl -F image=@photograph.jpg {address}/predict")


def plan_of(settings: Serve) -> Plan:
    """The settings of the server. Raises ValueError if a setting is out of range."""
    counts = {
        "workers": settings.workers,
        "top": settings.top,
        "batch": settings.batch,
        "queue": settings.queue,
    }
    for name, value in counts.items():
        if value < 1:
            raise BadSettings(f"`{name}` is {value}; it is at least 1")
    for name, value in {"delay": settings.delay, "grace": settings.grace}.items():
        if not 0 <= value < math.inf:
            raise BadSettings(f"`{name}` is {value:g}; it is a time, from 0 on")
    if settings.most_images > settings.queue:
        raise BadSettings(
            f"`most_images` is {settings.most_images}, and `queue={settings.queue}`: such a request would "
            "never find room"
        )
    limits = Limits(settings.most_bytes, settings.most_images, settings.seconds)
    limits.check()
    check_origins(settings.allow_origin)
    check_hosts(settings.allow_host)
    answering = Settings(
        limits,
        token_of(settings),
        settings.top,
        settings.batch,
        settings.delay / 1000,
        settings.allow_origin,
        settings.host,
        settings.allow_host,
    )
    name = short_name(name_of(settings.model))
    return Plan(name, partial(open_model, settings), answering, settings.queue, settings.grace)


def check_origins(origins: tuple[str, ...]) -> None:
    """Raises ValueError if browsers would never send one as a page's origin."""
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
    """Raises ValueError for what no client names as the host alone."""
    for name in names:
        if name != "*" and not re.fullmatch(r"[\w.-]+", name):
            raise BadSettings(
                f"`allow_host` is {name}; it is the name of a host without its scheme and port, such as "
                "photos.example.org; '*' is all"
            )


def token_of(settings: Serve) -> str | None:
    """The token that clients have to show. Raises ValueError if it is empty."""
    if settings.token_file is not None:
        token = settings.token_file.read_text().strip()
        source = str(settings.token_file)
    elif TOKEN in os.environ:
        token = os.environ[TOKEN].strip()
        source = TOKEN
    else:
        return None
    if not token:
        raise BadSettings(f"{source} holds no token; write one into it, such as 32 random letters")
    return token


def open_model(settings: Serve) -> AnyRuntime:
    """The runtime that computes the answers. Raises ValueError if the model has no classes."""
    if settings.runtime == "compiled":
        raise BadSettings(
            "`runtime` is compiled, which takes a minute for every other number of images in a batch; "
            "choose torch, onnx or openvino"
        )
    if isinstance(settings.model, str) and is_exported(settings.model):
        return runtime_of_file(
            settings.model, settings.hints, settings.runtime, settings.precision, settings.device
        )

    kept = runtime_of_run(
        settings.model, settings.hints, settings.runtime, settings.precision, settings.device
    )
    if kept is not None:
        return kept

    from vitkit.exporting import open_runtime  # and PyTorch, which an exported file does not need

    classifier = classifier_with_head(settings.model, settings.hints)
    precision = precision_of(settings.runtime, settings.precision, pick_device(settings.device))
    return open_runtime(classifier, settings.runtime, precision, settings.device)
