"""`vitkit app`: a web page on which a model answers photographs and shows what it looks at."""

import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from vitkit.runtimes import is_exported
from vitkit.system.console.text import printable
from vitkit.system.machine import pick_device
from vitkit.verbs import Device, ModelHints, ModelOrFile, Runtime, runtime_of_file
from vitkit.weights import Hints

if TYPE_CHECKING:
    import torch

    from vitkit.webapp import Viewer


@dataclass
class App:
    """Open a web page on this machine: drop a photograph, and see the classes and what the model
    looks at. It needs no network."""

    model: ModelOrFile
    other: Annotated[
        Positional[str], arg(metavar="OTHER", help="A second model, to compare side by side.")
    ] = ""
    host: str = "127.0.0.1"
    """Address to serve at. 127.0.0.1 is for this machine alone; 0.0.0.0 lets everyone in who can
    reach it."""
    port: int = 7860
    """Port to serve at; if it is taken, the next free one."""
    open: bool = False
    """Open the page in the browser."""
    runtime: Runtime = "auto"
    device: Device = "auto"
    hints: ModelHints = field(default_factory=Hints)


def app(command: App) -> int:
    """`vitkit app`. Returns when it is stopped by Ctrl-C."""
    from vitkit.webapp import check_gradio, listening_socket, serve

    # What can be wrong, before anything is loaded
    check_gradio()
    if not 1 <= command.port <= 65535:
        raise ValueError(f"port is {command.port}; it is a number from 1 to 65535")
    listener = listening_socket(command.host, command.port)
    port = listener.getsockname()[1]

    # The models
    device = pick_device(command.device)
    viewers = []
    for name, hints in ((command.model, command.hints), (command.other, Hints())):
        if name:
            viewers.append(_viewer(command, name, hints, device))
            viewers[-1].warm_up()

    # The page
    host = command.host
    if host in ("0.0.0.0", "::"):
        host = "localhost"
    if ":" in host:
        host = f"[{host}]"
    address = f"http://{host}:{port}"

    def started() -> None:
        if port != command.port:
            print(f"port {command.port} is taken, so the page is at {port}", file=sys.stderr)
        print(f"open {address}   (Ctrl-C ends it)", flush=True)
        if command.open:
            import webbrowser

            webbrowser.open(address)

    serve(viewers, listener, started)
    print("the page is closed")
    return 0


def _viewer(command: App, name: str, hints: Hints, device: "torch.device") -> "Viewer":
    """A model, or an exported file, for the page."""
    from vitkit.exporting import open_runtime
    from vitkit.runtimes import of_file
    from vitkit.webapp import Viewer
    from vitkit.weights import load_as

    if is_exported(name):
        opened = runtime_of_file(name, hints, command.runtime, "auto", command.device)
        return Viewer(short_name(name), of_file(opened))
    classifier = load_as(name, hints)
    runtime = None
    if command.runtime not in ("auto", "torch"):  # what it looks at is PyTorch's in any case
        runtime = open_runtime(classifier, command.runtime, "float32", command.device)
    return Viewer(short_name(name), classifier.for_inference().to(device), runtime)


def short_name(name: str) -> str:
    """What a model is called on the page: the end of a path, without what says that it is a file of
    weights."""
    name = name.rstrip("/").rsplit("/", 1)[-1]
    for suffix in (".safetensors", ".npz", ".pth", ".bin"):
        name = name.removesuffix(suffix)
    return printable(name)
