"""The server process: it listens, answers, reloads the model, and ends after answering all accepted
requests.

Signals: SIGTERM and SIGINT end it, SIGHUP reloads the model from its path.
"""

import asyncio
import io
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from vitkit.apps.serve.batching import Room
from vitkit.apps.serve.http.application import PATHS, application, guarded
from vitkit.apps.serve.http.service import Service, Settings
from vitkit.apps.serve.http.telemetry import Watch, log, start_logs
from vitkit.apps.serve.models import Served, answers_alone, served_now, warm_up
from vitkit.data import limit_for_good
from vitkit.runtimes import Runtime
from vitkit.system.environment import max_pixels
from vitkit.system.errors import BadSettings
from vitkit.system.machine import cpus, give_back_memory
from vitkit.system.processes.signals import signals_are_ours
from vitkit.web import Listener
from vitkit.web.connections import bound_socket, close_silent, config_of, drain, is_full

if TYPE_CHECKING:
    import uvicorn

    from vitkit.weights import Classifier

LAST = 2.0  # seconds after the grace period at which the process ends in any case
UNFINISHED = 1  # its exit status in that case


@dataclass(frozen=True)
class StartSettings:
    """The settings with which a server starts."""

    name: str
    """Name of the model for clients."""
    open_model: Callable[[], Runtime]
    """Opens the model, again at every SIGHUP. Raises VitkitError or OSError."""
    settings: Settings
    queue: int = 256
    """Largest number of images in the room."""
    grace: float = 30.0
    """Seconds for answering accepted requests during shutdown."""
    open_classifier: "Callable[[], Classifier]" = answers_alone
    """Opens the model in PyTorch for attention, where another runtime computes the predictions."""


def server_socket(host: str, port: int) -> socket.socket:
    """A socket bound to an address; port 0 is any free one. It does not listen until the model is loaded:
    until then connections are refused. Raises VitkitError."""
    if not 0 <= port <= 65535:  # the system would use the port modulo 65536
        raise BadSettings(f"`port` is {port}; it is between 0 and 65535")
    try:
        return bound_socket(host, port)
    except OSError as error:
        reason = error.strerror or error
        raise BadSettings(
            f"{host}, port {port}, cannot be served at: {reason}; choose another `port`"
        ) from None


def prepare_process() -> None:
    """Settings of a process that only serves: decoder limits apply to all of its threads, and log
    lines go to standard error."""
    limit_for_good(max_pixels())
    start_logs()


READY = {"ready": "/predict", "ready for masks": "/segment"}
"""By which word a server says that it can answer, and the path that its model answers at."""


class Server:
    """The server of one process, which may share its socket with other processes."""

    def __init__(self, plan: StartSettings, bound: socket.socket, notify: Callable[[str], None]):
        """Opens the model, and runs it once to warm it up. Raises the errors of both.

        notify: called with a word of READY when the server can answer, and with "reloaded" or "kept" after a
        SIGHUP.
        """
        self.plan = plan
        self.notify = notify
        self.is_reload_requested = False
        """Whether a reload was requested after the model began to load."""
        if gets_signals():  # without a handler, SIGHUP would end the starting process
            signal.signal(signal.SIGHUP, self._remember_to_reload)
        limits = plan.settings.limits
        held = max(4 * limits.size, plan.queue << 20)  # bytes
        decoders = ThreadPoolExecutor(cpus(), "decode")
        self.service = Service(plan.settings, Room(plan.queue, held), decoders, self._opened())
        self.service.metrics.models.labels("loaded").inc()
        app = guarded(application(self.service), plan.settings)
        self.watch = Watch(app, self.service.metrics, PATHS)
        self.interrupted = signal.getsignal(signal.SIGINT) != signal.SIG_IGN
        """Whether this process handles Ctrl-C; with several workers, their parent does."""
        self.reloading: asyncio.Task | None = None
        self.stopping: asyncio.Task | None = None
        self.end_of_grace = threading.Timer(plan.grace + LAST, self._give_up)
        self.end_of_grace.daemon = True
        self.bound = Listener(bound)

    def run(self) -> None:
        """Serve until a signal ends the server."""
        with self.bound:
            asyncio.run(self._run())
        self.service.close()
        self.end_of_grace.cancel()
        log("ended", {"images": self.service.room.held_images})

    def _give_up(self) -> None:
        """End the process although threads still run: a decoder may hang."""
        log("ended unfinished", {"images": self.service.room.held_images}, logging.ERROR)
        os._exit(UNFINISHED)

    def _opened(self) -> Served:
        """The model in its current state on disk, opened and warmed up."""
        runtime = _logged(self.plan.open_model)
        warm_up(runtime, self.plan.settings.batch)
        return served_now(self.plan.name, runtime, partial(_logged, self.plan.open_classifier))

    async def _run(self) -> None:
        import uvicorn

        grace = max(1, round(self.plan.grace))
        config = config_of(self.watch, grace)
        server = uvicorn.Server(config)
        asyncio.get_running_loop().set_exception_handler(self._handle_loop_exception)
        serving = asyncio.create_task(server.serve(sockets=[self.bound]))
        while not server.started:
            if serving.done():
                _raise_cannot_serve(serving.exception(), self.bound)
                return
            await asyncio.sleep(0.01)
        self._take_signals(server)
        watching = asyncio.create_task(close_silent(server, self.plan.settings.limits.seconds))
        log("ready", {"model": self.plan.name, "address": _address(self.bound)})
        word = "ready"
        if self.service.answering.served.has_masks:
            word = "ready for masks"
        self.notify(word)
        if self.is_reload_requested:
            self.reload()
        await serving
        watching.cancel()

    def _handle_loop_exception(self, loop: asyncio.AbstractEventLoop, said: dict[str, Any]) -> None:
        """Exception handler of the event loop. Logs, once a second, that connections wait while the
        process has no free file descriptor; ignores asyncio's retry on a socket that was closed
        meanwhile."""
        error = said.get("exception")
        if isinstance(error, OSError) and is_full(error):
            log("connections wait", {"reason": error.strerror}, logging.WARNING)
        elif self.bound.fileno() >= 0 or "_start_serving" not in said["message"]:
            loop.default_exception_handler(said)

    def _take_signals(self, server: "uvicorn.Server") -> None:
        """Install signal handlers in place of uvicorn's. Outside of a main thread there are none;
        on Windows, uvicorn's stay."""
        loop = asyncio.get_running_loop()
        self.loop = loop
        self.server = server
        if not gets_signals():
            return
        loop.add_signal_handler(signal.SIGTERM, self.stop)
        if self.interrupted:
            loop.add_signal_handler(signal.SIGINT, self.interrupt)
        else:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        loop.add_signal_handler(signal.SIGHUP, self.reload)

    def stop(self) -> None:
        """Start the shutdown. Called in the event loop's thread."""
        if self.stopping is not None:
            return
        log("ending", {"images": self.service.room.held_images})
        self.end_of_grace.start()
        self.service.draining = True
        self.watch.draining = True
        self.stopping = asyncio.create_task(drain(self.server, self.bound))

    def interrupt(self) -> None:
        """Start the shutdown like `stop`; at the second call, do not wait for open connections."""
        if self.stopping is not None:
            self.server.should_exit = True
            self.server.force_exit = True
        self.stop()

    def _remember_to_reload(self, number: int, frame) -> None:
        """Handle a SIGHUP that arrives before the server is ready: reload as soon as it is."""
        self.is_reload_requested = True

    def reload(self) -> None:
        """Start reloading the model, in the event loop's thread; if a reload is running, start
        another one after it."""
        self.is_reload_requested = True
        if self.reloading is None or self.reloading.done():
            self.reloading = asyncio.create_task(self._reload_newest())

    async def _reload_newest(self) -> None:
        """Reload the model until no further reload was requested meanwhile."""
        while self.is_reload_requested:
            self.is_reload_requested = False
            await self._reload()

    async def _reload(self) -> None:
        """Open the model again and use it for all further requests; keep the current one if it cannot be
        opened."""
        metrics = self.service.metrics
        try:
            served = await asyncio.to_thread(self._opened)
        except Exception as error:  # whatever the reason, the current model stays in use
            metrics.models.labels("refused").inc()
            log("model kept", {"error": str(error)}, logging.ERROR)
            self.notify("kept")
            return
        before = self.service.serve(served)
        metrics.models.labels("loaded").inc()
        log("model replaced", {"model": served.name, "loaded": served.loaded})
        await asyncio.to_thread(before.close)
        del before
        give_back_memory()
        self.notify("reloaded")


def _logged(open_it: Callable[[], Any]) -> Any:
    """The result of `open_it`; its messages become log lines, since plain text would break the log."""
    said = io.StringIO()
    try:
        with redirect_stderr(said):
            return open_it()
    finally:
        if said.getvalue():
            log("model read", {"said": said.getvalue().splitlines()})


def gets_signals() -> bool:
    """Whether to install signal handlers: in the main thread, not on Windows, and not in a user's
    program."""
    if not signals_are_ours():
        return False
    return threading.current_thread() is threading.main_thread() and os.name == "posix"


def _raise_cannot_serve(error: BaseException | None, bound: socket.socket) -> None:
    """Raises VitkitError if another server took the address while this one loaded its model: two
    sockets can be bound to it until one of them listens. Raises any other error unchanged."""
    if error is None:  # ended by a signal
        return
    if not isinstance(error, OSError):
        raise error
    reason = error.strerror or error
    raise BadSettings(
        f"{_address(bound)} cannot be served at any more: {reason}; choose another `port`"
    ) from None


def _address(bound: socket.socket) -> str:
    host, port, *_ = bound.getsockname()
    return f"{host}:{port}"
