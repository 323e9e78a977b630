"""Telemetry of a server: metrics for Prometheus, and one JSON log line per request. Neither
contains images, file names or tokens."""

import json
import logging
import os
import sys
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from uuid import uuid4

from vitkit.apps.serve.batching import Room

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOGGER = "vitkit.serve"
SHARED = "PROMETHEUS_MULTIPROC_DIR"  # environment variable of prometheus_client: folder of shared counters
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
GONE = 499  # nginx's status for a client that disconnected before its answer
ID = 64  # longest request ID that a client may choose, characters


class Metrics:
    """The metrics of a server. Each server has its own registry, so one process may run several
    servers."""

    def __init__(self, room: Room):
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
        from prometheus_client.process_collector import ProcessCollector

        self.registry = CollectorRegistry()
        self.requests = Counter(
            "vitkit_requests", "Requests, by status.", ["path", "status"], registry=self.registry
        )
        self.images = Counter(
            "vitkit_images", "Images, by what became of them.", ["outcome"], registry=self.registry
        )
        self.seconds = Histogram(
            "vitkit_request_seconds",
            "From a request's head to the end of its answer.",
            ["path"],
            buckets=SECONDS,
            registry=self.registry,
        )
        self.batch_images = Histogram(
            "vitkit_batch_images", "Images of a batch.", buckets=BATCHES, registry=self.registry
        )
        self.batch_seconds = Histogram(
            "vitkit_batch_seconds",
            "What the model took for a batch.",
            buckets=SECONDS,
            registry=self.registry,
        )
        self.models = Counter(
            "vitkit_models", "Models that were asked for, by outcome.", ["outcome"],
            registry=self.registry,
        )  # fmt: skip
        held = Gauge(
            "vitkit_held",
            "What the server holds: images, and bytes of their files.",
            ["what"],
            multiprocess_mode="livesum",
            registry=self.registry,
        )
        self.held_images = held.labels("images")
        self.held_bytes = held.labels("bytes")
        room.changed = self.held  # immediately, since another process may answer the next scrape
        if SHARED not in os.environ:
            ProcessCollector(registry=self.registry)  # memory, CPU time, open files

    def computed(self, images: int, seconds: float) -> None:
        """Record that a batch was computed."""
        self.batch_images.observe(images)
        self.batch_seconds.observe(seconds)

    def held(self, images: int, size: int) -> None:
        """Record how many images are held now, and their bytes."""
        self.held_images.set(images)
        self.held_bytes.set(size)

    def page(self) -> tuple[bytes, str]:
        """The metrics page for Prometheus, and its content type; summed over all processes of a
        server if they share counters."""
        from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
        from prometheus_client.multiprocess import MultiProcessCollector

        registry = self.registry
        if SHARED in os.environ:
            registry = CollectorRegistry()
            MultiProcessCollector(registry)
        return generate_latest(registry), CONTENT_TYPE_LATEST


# Logs


class JsonLines(logging.Formatter):
    """Formats a log record as one line of JSON: time, level, event, and its fields."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC)
        line = {
            "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
        }
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line)


def log(event: str, fields: dict | None = None, level: int = logging.INFO) -> None:
    """Log an event if `start_logs` was called; the page of `vitkit app` has no log."""
    logger = logging.getLogger(LOGGER)
    if logger.handlers:
        logger.log(level, event, extra={"fields": fields or {}})


def start_logs() -> None:
    """Send log lines and uvicorn's warnings to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    for name, level in ((LOGGER, logging.INFO), ("uvicorn", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(level)
        logger.propagate = False


# All requests


class Watch:
    """ASGI middleware that gives each request an ID, counts it, and logs one
    line."""

    def __init__(self, app: "ASGIApp", metrics: Metrics, paths: frozenset[str]):
        """paths: the paths that have metrics of their own; all others share one."""
        self.app = app
        self.metrics = metrics
        self.paths = paths
        self.draining = False
        """Whether the server is shutting down: then every answer closes its connection."""

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began = time.monotonic()
        number = _number_of(scope)
        scope.setdefault("state", {})["line"] = {}
        status = GONE

        async def send_and_look(message: "Message") -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"].append((b"x-request-id", number.encode()))
                if self.draining:
                    message["headers"].append((b"connection", b"close"))
            await send(message)

        try:
            await self.app(scope, receive, send_and_look)
        finally:
            self._finish(scope, number, status, time.monotonic() - began)

    def _finish(self, scope: "Scope", number: str, status: int, seconds: float) -> None:
        """Count a request, and log its line. Successful requests of monitoring are not logged."""
        asked = scope["path"].removeprefix(
            scope.get("root_path", "")
        )  # without a page's secret prefix
        path = asked if asked in self.paths else "other"
        self.metrics.requests.labels(path, str(status)).inc()
        self.metrics.seconds.labels(path).observe(seconds)
        if scope["method"] in ("GET", "HEAD") and status < 400:
            return
        client = scope.get("client") or ("",)
        fields = {
            "id": number,
            "client": client[0],
            "method": scope["method"][:16],
            "path": asked[:100],
            "status": status,
            "ms": round(seconds * 1000, 1),
        }
        log("request", fields | scope["state"]["line"])


def _number_of(scope: "Scope") -> str:
    """The ID of a request, from its client or generated here."""
    for name, value in scope["headers"]:
        if name == b"x-request-id":
            number = value.decode("latin-1")
            if len(number) <= ID and number.isascii() and number.replace("-", "").isalnum():
                return number
    return uuid4().hex[:16]
