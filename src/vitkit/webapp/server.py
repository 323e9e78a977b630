"""Serving the page of `vitkit app`: a port, a server that stops in one moment, and files that are
gone afterwards."""

import asyncio
import os
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitkit.serving import Guard, Listener, close_silent, config_of, is_full
from vitkit.system.errors import BadSettings, Unsupported
from vitkit.system.processes.signals import signals_are_ours
from vitkit.webapp import html as app_html
from vitkit.webapp.viewer import LARGEST_FILE, Viewer

if TYPE_CHECKING:
    import uvicorn
    from starlette.types import ASGIApp

PORTS = 20  # that are tried, from the one that was asked for
SECONDS = 600.0  # in which a request has to come: a photograph of 50 MB over a slow network


def check_gradio() -> None:
    """Raises VitkitError if gradio, which makes the page, is not installed."""
    if find_spec("gradio") is None:
        raise Unsupported("the page needs gradio: pip install 'vitkit[app]'")


def listening_socket(host: str, port: int) -> socket.socket:
    """A socket that listens at the port, or at the first free one of the PORTS from there.

    Raises VitkitError for a number that is no port, for an address that is not this machine's, and if no
    port is free.
    """
    if not 1 <= port <= 65535:
        raise BadSettings(f"`port` is {port}; it is a number from 1 to 65535")
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, OverflowError, UnicodeError) as error:
        raise BadSettings(f"`host` is {host!r}, which is not an address: {error}") from None
    problem = ""
    for candidate in range(port, min(port + PORTS, 65536)):
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((address[0], candidate, *address[2:]))
            listener.listen()
            return listener
        except OSError as error:
            listener.close()
            problem = error.strerror or str(error)
    raise BadSettings(
        f"no page can be served at {host}, ports {port} to {min(port + PORTS, 65536) - 1}: "
        f"{problem}; choose others with `host` and `port`"
    )


def serve(
    viewers: Sequence[Viewer],
    listener: socket.socket,
    host: str,
    secret: str,
    started: Callable[[], None],
) -> None:
    """Serve the page until Ctrl-C or SIGTERM.

    Uploaded files are kept in a folder of this process, which is removed at the end.

    Args:
        viewers: The models, one or two.
        listener: The socket to serve at.
        host: The address that was asked for, by which browsers may call the page.
        secret: What its addresses begin with, "/SECRET/": without it nothing is answered.
        started: Called when the page answers.
    """
    # A folder of its own, which gradio reads from the environment when it is imported; and nothing
    # of it calls home
    with closing(listener), tempfile.TemporaryDirectory(prefix="vitkit-app-") as folder:
        os.environ["GRADIO_TEMP_DIR"] = folder
        os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
        os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
        application = _application(viewers, Path(folder), secret)
        run_until_ended(Guard(application, host, secret=secret), listener, started)


def run_until_ended(
    application: "ASGIApp", listener: socket.socket, started: Callable[[], None]
) -> None:
    """Serve an application until Ctrl-C or SIGTERM, within the limits of connections that every server has.
    `started` is called when it answers."""
    import uvicorn

    server = uvicorn.Server(config_of(application, log_level="critical"))
    serving = partial(asyncio.run, _serve_and_watch(server, Listener(listener)))
    thread = threading.Thread(target=serving, daemon=True)
    if signals_are_ours():
        signal.signal(signal.SIGTERM, _interrupt)  # so that what follows is done then, too
    thread.start()
    try:
        while thread.is_alive() and not server.started:
            time.sleep(0.05)
        started()
        while thread.is_alive():  # a join that is interrupted takes the thread for ended
            time.sleep(0.2)
    except KeyboardInterrupt:
        pass
    finally:
        # Not to wait for browsers, which keep their connections open
        server.should_exit = True
        server.force_exit = True
        thread.join(2)


def _interrupt(*_) -> None:
    raise KeyboardInterrupt


async def _serve_and_watch(server: "uvicorn.Server", listener: Listener) -> None:
    """Serve, and close connections that say nothing. A page listens to answers that last."""
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(_pass_over_full)
    watching = asyncio.create_task(close_silent(server, SECONDS, answers_last=True))
    with listener:
        await server.serve(sockets=[listener])
    watching.cancel()


def _pass_over_full(loop: asyncio.AbstractEventLoop, said: dict[str, Any]) -> None:
    """Other connections wait until one ends: that is no error."""
    if not is_full(said.get("exception")):
        loop.default_exception_handler(said)


def _application(viewers: Sequence[Viewer], folder: Path, secret: str) -> "ASGIApp":
    """The page, at addresses that begin with the secret."""
    import gradio as gr
    from fastapi import FastAPI

    from vitkit.webapp.page import build

    theme = gr.themes.Base(
        primary_hue=gr.themes.colors.teal,
        neutral_hue=gr.themes.colors.gray,
        font=["system-ui", "sans-serif"],
        font_mono=["ui-monospace", "monospace"],
    ).set(
        block_background_fill="transparent",
        block_background_fill_dark="transparent",
        block_border_width="0px",
        block_border_width_dark="0px",
        block_padding="0px",
        block_label_text_color="var(--vk-faint)",
        block_title_text_color="var(--vk-faint)",
        block_title_text_color_dark="var(--vk-faint)",
        block_info_text_color="var(--vk-faint)",
    )
    page = build(viewers, folder)
    page.queue(default_concurrency_limit=4, max_size=64)
    # Else gradio copies whatever path a request names to the folder of uploads: only of a page that it has
    # launched itself does it check that the file was uploaded
    page.has_launched = True
    return gr.mount_gradio_app(
        FastAPI(docs_url=None, redoc_url=None, openapi_url=None),
        page,
        path=f"/{secret}",
        footer_links=[],
        run_history=False,
        max_file_size=LARGEST_FILE,
        ssr_mode=False,
        show_error=False,
        theme=theme,
        css=app_html.STYLE,
    )
