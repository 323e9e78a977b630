"""A web page on which a model answers photographs and shows what it looks at."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Unpack

from vitkit.apps.demo.server import check_gradio, serve
from vitkit.apps.demo.viewer import Viewer
from vitkit.runtimes import RuntimeName, is_exported, of_file, open_runtime, runtime_of_file
from vitkit.system.functions.arguments import name_of, short_name
from vitkit.system.functions.public import public
from vitkit.system.functions.results import Result
from vitkit.system.functions.types import DeviceLike
from vitkit.system.machine import pick_device
from vitkit.web import address_of, announce_page, listening_socket
from vitkit.weights import Classifier, Hints, ModelLike, Overrides, classifier_of, hints_of


@dataclass(frozen=True, repr=False)
class ClosedPage(Result):
    """A page that was served and is closed now."""

    address: str

    def shown(self) -> Iterator[str]:
        """The output: the page is closed."""
        yield "the page is closed"


@public
def app(
    model: ModelLike,
    other: Annotated[ModelLike, "OTHER"] = "",
    *,
    host: str = "127.0.0.1",
    port: int = 7860,
    open: bool = False,
    runtime: RuntimeName = "auto",
    device: DeviceLike = "auto",
    **overrides: Unpack[Overrides],
) -> ClosedPage:
    """Open a web page on this machine: drop a photograph, and see the classes and what the model
    looks at. It needs no network. Ctrl-C ends it.

    Args:
        model: A run, a model directory, a file of weights (vitkit's, Hugging Face's, timm's,
            torchvision's or Google's), the name of a published model, or a file of `vitkit.export`
            (.onnx or .xml).
        other: A second model, to compare side by side.
        host: Address to serve at. 127.0.0.1 is only for this machine; 0.0.0.0 lets in everyone who can
            reach it.
        port: Port to serve at; if another program uses it, the next free one.
        open: Open the page in the browser.
        runtime: Library that computes the answers: torch, compiled, onnx (ONNX Runtime) or openvino.
            auto is PyTorch for a model; for an exported file, it is the library for which the file was
            written.
        device: cpu, cuda, cuda:1 or mps; auto chooses the best one.
        **overrides: Settings that the file of the first model does not give, or that you want to
            change: `Overrides`.

    Raises:
        BadSettings: If `port` is not a port, or if Gradio is not installed.
        BadWeights: If a model cannot be read.
    """
    # What can be wrong, before anything is loaded
    hints = hints_of(overrides)
    check_gradio()
    listener = listening_socket(host, port)
    free_port = listener.getsockname()[1]

    # The models
    pick_device(device)  # raises for one that this machine does not have
    viewers = []
    for each, hints_of_each in ((model, hints), (other, Hints())):
        if each:
            viewers.append(_viewer(each, hints_of_each, runtime, device))
            viewers[-1].warm_up()

    # The page
    secret = secrets.token_urlsafe(12)
    address = f"{address_of(host, free_port)}/{secret}/"

    def started() -> None:
        announce_page(address, port, free_port, "Ctrl-C ends it", open)

    serve(viewers, listener, host, secret, started)
    return ClosedPage(address)


def _viewer(model: str | Classifier, hints: Hints, runtime: RuntimeName, device: str) -> Viewer:
    """A model, or an exported file, for the page."""
    name = short_name(name_of(model))
    if isinstance(model, str) and is_exported(model):
        return Viewer(name, of_file(runtime_of_file(model, hints, runtime, "auto", device)))
    classifier = classifier_of(model, hints)
    computing = None
    if runtime not in ("auto", "torch"):  # what it looks at is PyTorch's in any case
        computing = open_runtime(classifier, runtime, "float32", device)
    return Viewer(name, classifier.for_inference().to(pick_device(device)), computing)
