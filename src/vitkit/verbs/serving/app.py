"""A web page on which a model answers photographs and shows what it looks at."""

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated

import torch
from tyro.conf import Positional, arg

from vitkit.exporting import open_runtime
from vitkit.runtimes import is_exported, of_file
from vitkit.system.machine import pick_device
from vitkit.verbs.arguments import (
    Device,
    Host,
    ModelHints,
    ModelOrFile,
    OpenPage,
    PagePort,
    Runtime,
    name_of,
    short_name,
)
from vitkit.verbs.computing import classifier_of, runtime_of_file
from vitkit.verbs.definition import result, verb
from vitkit.verbs.serving import address_of, announce_page
from vitkit.webapp import Viewer, check_gradio, listening_socket, serve
from vitkit.weights import Classifier, Hints


@dataclass(frozen=True)
class App:
    """Open a web page on this machine: drop a photograph, and see the classes and what the model
    looks at. It needs no network."""

    model: ModelOrFile
    other: Annotated[
        Positional[str], arg(metavar="OTHER", help="A second model, to compare side by side.")
    ] = ""
    host: Host = "127.0.0.1"
    port: PagePort = 7860
    open: OpenPage = False
    runtime: Runtime = "auto"
    device: Device = "auto"
    hints: ModelHints = field(default_factory=Hints)


@result
@dataclass(frozen=True)
class ClosedPage:
    """A page that was served and is closed now."""

    address: str

    def shown(self) -> Iterator[str]:
        """The output: the page is closed."""
        yield "the page is closed"


@verb
def app(settings: App) -> ClosedPage:
    """Serve a web page on which a model answers photographs and shows what it looks at. Returns when
    it is ended, by Ctrl-C. Raises ValueError if the port is not one."""
    # What can be wrong, before anything is loaded
    check_gradio()
    listener = listening_socket(settings.host, settings.port)
    port = listener.getsockname()[1]

    # The models
    device = pick_device(settings.device)
    viewers = []
    for model, hints in ((settings.model, settings.hints), (settings.other, Hints())):
        if model:
            viewers.append(_viewer(settings, model, hints, device))
            viewers[-1].warm_up()

    # The page
    secret = secrets.token_urlsafe(12)
    address = f"{address_of(settings.host, port)}/{secret}/"

    def started() -> None:
        announce_page(address, settings.port, port, "Ctrl-C ends it", settings.open)

    serve(viewers, listener, settings.host, secret, started)
    return ClosedPage(address)


def _viewer(settings: App, name: str | Classifier, hints: Hints, device: "torch.device") -> Viewer:
    """A model, or an exported file, for the page."""
    if isinstance(name, str) and is_exported(name):
        opened = runtime_of_file(name, hints, settings.runtime, "auto", settings.device)
        return Viewer(short_name(name_of(name)), of_file(opened))
    classifier = classifier_of(name, hints)
    runtime = None
    if settings.runtime not in ("auto", "torch"):  # what it looks at is PyTorch's in any case
        runtime = open_runtime(classifier, settings.runtime, "float32", settings.device)
    return Viewer(short_name(name_of(name)), classifier.for_inference().to(device), runtime)
