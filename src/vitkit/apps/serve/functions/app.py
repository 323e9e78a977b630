"""`vitkit app`: a web page on which a model classifies photographs and shows its attention."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Unpack

from vitkit.apps.serve.batching import Room
from vitkit.apps.serve.functions.serve import limit_of_pixels, open_classifier, open_model
from vitkit.apps.serve.http.application import application
from vitkit.apps.serve.http.body import Limits
from vitkit.apps.serve.http.service import Service, Settings
from vitkit.apps.serve.models import served_now, warm_up
from vitkit.data import limit_for_good
from vitkit.runtimes import RuntimeName
from vitkit.system.environment import MAX_PIXELS, max_pixels
from vitkit.system.errors import VitkitError
from vitkit.system.functions.arguments import name_of, short_name
from vitkit.system.functions.public import public
from vitkit.system.functions.results import Result
from vitkit.system.functions.types import DeviceLike
from vitkit.system.machine import PrecisionChoice, cpus, pick_device
from vitkit.web import announce_page, check_installed, page_socket, serve_page
from vitkit.weights import Hints, ModelLike, Overrides, hints_of, no_answer

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from vitkit.weights import Classifier

LARGEST = 50 << 20  # largest photograph, bytes
AROUND = 1 << 16  # additional bytes of the form that contains it
OTHER = "other"  # path of the second model


@dataclass(frozen=True, repr=False)
class ClosedPage(Result):
    """The result of `vitkit.app`: the address of the page, which is closed."""

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
    open: bool = True,
    runtime: RuntimeName = "auto",
    precision: PrecisionChoice = "auto",
    device: DeviceLike = "auto",
    **overrides: Unpack[Overrides],
) -> ClosedPage:
    """Open the page of `vitkit.serve` on this machine: drop photographs, and see the classes and what the
    model looks at; or, of a model of masks, the class of every pixel. It needs no network. Ctrl-C ends it.

    Args:
        model: A run, a model directory, a file of weights (vitkit's, Hugging Face's, timm's,
            torchvision's or Google's), the name of a published model, or a file of `vitkit.export`
            (.onnx or .xml).
        other: A second model, to compare side by side.
        host: Address to serve at. 127.0.0.1 is only for this machine; 0.0.0.0 lets in everyone who can
            reach it and has the page's address with its secret.
        port: Port to serve at; if another program uses it, the next free one.
        open: Open the page in the browser, if this machine has a screen.
        runtime: Library that computes the answers: torch, onnx (ONNX Runtime) or openvino. auto is
            PyTorch for a model; for an exported file, it is the library for which the file was written.
        precision: Arithmetic of the matrix products. auto is bfloat16 if the CPU or GPU has instructions
            for it.
        device: cpu, cuda, cuda:1 or mps; auto chooses the best one.
        **overrides: Settings that the file of the first model does not give, or that you want to
            change: `Overrides`.

    Raises:
        BadSettings: If `port` is not a port.
        Unsupported: If FastAPI or uvicorn is not installed.
        BadWeights: If a model cannot be read.
    """
    # Checks before anything is loaded
    hints = hints_of(overrides)
    check_installed()
    pick_device(device)  # raises for a device that this machine does not have
    with closing(page_socket(host, port)) as listener, ExitStack() as ends:
        ends.enter_context(limit_of_pixels(MAX_PIXELS))
        ends.enter_context(warnings.catch_warnings())
        limit_for_good(max_pixels())  # applies to all decoding threads
        free_port = listener.getsockname()[1]

        services = []
        for each, hints_of_each in ((model, hints), (other, Hints())):
            if each:
                served = _serving(each, hints_of_each, runtime, precision, device)
                services.append(ends.enter_context(served))

        def started(address: str) -> None:
            announce_page(address, port, free_port, "Ctrl-C ends it", open)

        address = serve_page(_page(services), listener, host, started)
    return ClosedPage(address)


@contextmanager
def _serving(
    model: str | Classifier,
    hints: Hints,
    runtime: RuntimeName,
    precision: PrecisionChoice,
    device: str,
) -> Iterator[Service]:
    """A warmed-up model that serves a page until the block ends."""
    opened = open_model(model, hints, runtime, precision, device, needs_classes=False)
    classifier = getattr(
        opened, "classifier", None
    )  # only PyTorch runtimes have one, maybe without a head
    reason = ""
    if classifier is not None:
        reason = no_answer(classifier)
    settings = Settings(Limits(LARGEST + AROUND, 1), batch=1)
    served = served_now(
        short_name(name_of(model)), opened, lambda: open_classifier(model, hints), reason
    )
    warm_up(opened, settings.batch)
    if not served.has_masks:  # its page shows no attention
        with suppress(VitkitError):  # the page shows why there is no attention
            served.looker()
    decoders = ThreadPoolExecutor(cpus(), "decode")
    service = Service(settings, Room(64, 8 * LARGEST), decoders, served)
    try:
        yield service
    finally:
        service.close()


def _page(services: list[Service]) -> Starlette:
    """The page of one model, or of two side by side."""
    from starlette.applications import Starlette
    from starlette.routing import Mount

    first, *others = services
    addresses = ("./", *(f"{OTHER}/" for _ in others))
    routes = [Mount(f"/{OTHER}", application(other, docs=False)) for other in others]
    return Starlette(routes=[*routes, Mount("/", application(first, addresses, docs=False))])
