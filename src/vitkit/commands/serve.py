"""`vitkit serve`: a model behind HTTP."""

import math
import os
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

from tyro.conf import arg

from vitkit.commands.app import short_name
from vitkit.runtimes import Runtime as AnyRuntime
from vitkit.runtimes import is_exported
from vitkit.system.limits import VARIABLE, max_pixels
from vitkit.system.machine import pick_device
from vitkit.verbs import (
    Device,
    ModelHints,
    ModelOrFile,
    Precision,
    Runtime,
    classifier_with_head,
    precision_of,
    runtime_of_file,
)
from vitkit.weights import Hints

if TYPE_CHECKING:
    from socket import socket

    from vitkit.serving import Plan

TOKEN = "VITKIT_TOKEN"  # environment variable
PIXELS = 50_000_000  # of an image that a stranger sends, unless --max-pixels says otherwise

USUAL_PORTS = {"http": ":80", "https": ":443"}


@dataclass
class Serve:
    """Serve a model over HTTP: POST an image, or several, to /predict, and get their classes. /docs
    describes all of it.

    SIGTERM ends it when what was accepted is answered; SIGHUP loads the model again.
    """

    model: ModelOrFile
    host: str = "127.0.0.1"
    """Address to serve at. 127.0.0.1 is for this machine alone; 0.0.0.0 lets everyone in who can
    reach it."""
    port: int = 8000
    """Port to serve at; 0 is any that is free."""
    workers: int = 1
    """Processes, each with the model. One uses all CPUs; several are for several GPUs, a GPU each, or
    for many CPUs."""
    top: int = 5
    """Classes to name for an image, unless a request says how many."""
    batch: int = 32
    """Largest number of images that are computed together."""
    delay: float = 10.0
    """Milliseconds that an image waits for others, at most, while the model is free."""
    queue: int = 256
    """Images that a process holds at once; it refuses those beyond, with 503."""
    most_bytes: int = 32 << 20
    """Largest request, in bytes."""
    most_images: int = 64
    """Largest number of images of a request."""
    seconds: float = 30.0
    """Largest time of a request, from its beginning to its answer."""
    grace: float = 30.0
    """Seconds to finish what was accepted, when the server ends."""
    token_file: Annotated[
        Path | None,
        arg(
            help="File with a token that clients have to show, as 'Authorization: Bearer TOKEN'. "
            f"Default: what {TOKEN} is in the environment; without both, everyone is let in."
        ),
    ] = None
    allow_origin: Annotated[tuple[str, ...], arg(metavar="ORIGIN...")] = ()
    """Web pages that browsers let ask this server, such as https://example.org; '*' is all. By
    default those of its own address alone."""
    runtime: Runtime = "auto"
    precision: Precision = "auto"
    device: Device = "auto"
    hints: ModelHints = field(default_factory=Hints)


def serve(command: Serve) -> int:
    """`vitkit serve`. Returns when a signal ends it."""
    from vitkit.serving import Server, bound_socket, check_installed, prepare_process

    # What can be wrong, before anything is loaded
    check_installed()
    plan = plan_of(command)
    bound = bound_socket(command.host, command.port)
    os.environ.setdefault(VARIABLE, str(PIXELS))
    max_pixels()  # raises for a number that is none

    # The server
    ready = partial(_say_ready, plan.name, bound)
    with bound:
        if command.workers > 1:
            from vitkit.serving import Workers

            Workers(plan, bound, command.workers).run(ready)
            return 0
        prepare_process()
        Server(plan, bound, ready).run()
        return 0


def _say_ready(name: str, bound: "socket", word: str = "ready") -> None:
    """Say where the server is, when it answers."""
    if word != "ready":
        return
    host, port, *_ = bound.getsockname()
    if host in ("0.0.0.0", "::"):
        host = "localhost"
    if ":" in host:
        host = f"[{host}]"
    address = f"http://{host}:{port}"
    print(f"serving {name} at {address}   (Ctrl-C ends it; {address}/docs says more)")
    print(f"next: curl -F image=@photograph.jpg {address}/predict", flush=True)


def plan_of(command: Serve) -> "Plan":
    """What the server needs. Raises ValueError for settings that cannot be."""
    from vitkit.serving import Limits, Plan, Settings

    counts = {
        "workers": command.workers,
        "top": command.top,
        "batch": command.batch,
        "queue": command.queue,
    }
    for name, value in counts.items():
        if value < 1:
            raise ValueError(f"--{name} is {value}; it is at least 1")
    for name, value in {"delay": command.delay, "grace": command.grace}.items():
        if not 0 <= value < math.inf:
            raise ValueError(f"--{name} is {value:g}; it is a time, from 0 on")
    if command.most_images > command.queue:
        raise ValueError(
            f"--most-images is {command.most_images}, and --queue {command.queue}: such a request would "
            "never find room"
        )
    limits = Limits(command.most_bytes, command.most_images, command.seconds)
    limits.check()
    check_origins(command.allow_origin)
    settings = Settings(
        limits,
        token_of(command),
        command.top,
        command.batch,
        command.delay / 1000,
        command.allow_origin,
    )
    name = short_name(command.model)
    return Plan(name, partial(open_model, command), settings, command.queue, command.grace)


def check_origins(origins: tuple[str, ...]) -> None:
    """Raises ValueError for what browsers would never send as a page's origin."""
    for origin in origins:
        parts = urlsplit(origin)
        is_origin = parts.scheme in USUAL_PORTS and origin == f"{parts.scheme}://{parts.netloc}"
        has_usual_port = parts.netloc.endswith(USUAL_PORTS.get(parts.scheme, " "))
        is_sent = is_origin and parts.netloc == parts.netloc.lower() and not has_usual_port
        if origin != "*" and not (is_sent and parts.netloc):
            raise ValueError(
                f"--allow-origin is {origin}; browsers send a scheme, a host in small letters, and a port "
                "unless it is the usual one, such as https://example.org or http://localhost:3000; '*' is "
                "all"
            )


def token_of(command: Serve) -> str | None:
    """The token that clients have to show. Raises ValueError for an empty one."""
    if command.token_file is not None:
        token = command.token_file.read_text().strip()
        source = str(command.token_file)
    elif TOKEN in os.environ:
        token = os.environ[TOKEN].strip()
        source = TOKEN
    else:
        return None
    if not token:
        raise ValueError(f"{source} holds no token; write one into it, such as 32 random letters")
    return token


def open_model(command: Serve) -> AnyRuntime:
    """What computes the answers. Raises ValueError for a model without classes."""
    if command.runtime == "compiled":
        raise ValueError(
            "--runtime is compiled, which takes a minute for every other number of images in a batch; "
            "choose torch, onnx or openvino"
        )
    if is_exported(command.model):
        return runtime_of_file(
            command.model, command.hints, command.runtime, command.precision, command.device
        )
    from vitkit.exporting import open_runtime

    classifier = classifier_with_head(command.model, command.hints)
    precision = precision_of(command.runtime, command.precision, pick_device(command.device))
    return open_runtime(classifier, command.runtime, precision, command.device)
