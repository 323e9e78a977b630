"""Exported files, each opened and computed in a process of its own: a library that crashes ends only its
own measurements.

The process starts without PyTorch. It also measures the times, which therefore exclude all overhead.

Legend: B batch, K classes, h w pixels of the model's input.
"""

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import numpy as np

import vitkit.system.errors as errors
from vitkit.runtimes import (
    LIBRARIES,
    Exported,
    FileRuntime,
    PictureRuntime,
    RuntimeName,
    open_model_file,
)
from vitkit.system.errors import VitkitError, WorkerDied
from vitkit.system.storage.files import parse_json

LEAST_CALLS = 2  # fewest passes of a turn
# Ctrl-C reaches the whole process group; the child ignores it, and its parent ends it
CHILD = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
CHILD += "from vitkit.exporting.speed.isolated import child; child()"


class Isolated:
    """An exported file that is computed in another process."""

    runtime: FileRuntime | PictureRuntime
    """The opened file, as a Runtime whose results come from the process."""

    def __init__(self, path: Path):
        """Start the process."""
        self.path = path
        self._library = "the library"
        self._images: np.ndarray | None = None  # the images that the process holds
        code = (
            f"import sys; sys.path[:] = {sys.path!r}\n{CHILD}"  # import vitkit from the same place
        )
        self._process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._process.stdin is not None and self._process.stdout is not None  # pipes
        self._questions = self._process.stdin
        self._answers = self._process.stdout

    def open(self, library: RuntimeName) -> None:
        """Open the file in the process. Raises WorkerDied if the process dies, and the errors of
        `open_model_file`."""
        self._library = LIBRARIES.get(library, self._library)
        opened, _ = self._ask("open", path=str(self.path), library=library)
        exported = Exported.from_json(opened["exported"])
        self._library = opened["library"]
        self.runtime = FileRuntime(
            self.path, exported, self._library, self._compute, opened["computed_in"]
        )
        if exported.takes_pictures:
            self.runtime = PictureRuntime(self.runtime)

    def turn(self, images: np.ndarray, batch: int, seconds: float) -> list[float]:
        """Call `passes` in the process. Raises WorkerDied if the process dies."""
        if self._images is not images:
            self._ask("keep", [images])
            self._images = images
        answer, _ = self._ask("turn", batch=batch, seconds=seconds)
        return answer["times"]

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        self._answers.close()
        with suppress(OSError):  # flushing a request that was never read
            self._questions.close()

    def _compute(self, images: np.ndarray) -> list[np.ndarray]:
        _, outputs = self._ask("compute", [images])
        return outputs

    def _ask(
        self, question: str, arrays: Sequence[np.ndarray] = (), **values: Any
    ) -> tuple[dict, list[np.ndarray]]:
        """The reply of the process. Raises WorkerDied if the process has ended, and vitkit's own
        errors that the process reports."""
        try:
            _send(self._questions, {"question": question, **values}, arrays)
            answer, outputs = _receive(self._answers)
        except (EOFError, OSError):
            raise WorkerDied(self._exit_message()) from None
        if "error" in answer:
            raise getattr(errors, answer["error"])(answer["message"])
        return answer, outputs

    def _exit_message(self) -> str:
        """A sentence about how the process ended."""
        status = self._process.wait()
        how = f"with status {status}"
        if status < 0:
            how = f"by {signal.Signals(-status).name}"
        return f"the process in which {self._library} computes {self.path.name} ended {how}"


OpenFile = Callable[[Path, RuntimeName], Isolated]


@contextmanager
def isolated_files() -> Iterator[OpenFile]:
    """A context manager that yields a function for opening exported files, each in a process that
    ends with the block."""
    files: list[Isolated] = []

    def open_isolated(path: Path, library: RuntimeName) -> Isolated:
        file = Isolated(path)
        files.append(file)
        file.open(library)
        return file

    try:
        yield open_isolated
    finally:
        for file in files:
            file.close()


def passes(
    compute: Callable[[np.ndarray], Any], images: np.ndarray, batch: int, seconds: float
) -> list[float]:
    """Seconds of each forward pass of a turn, which cycles through the images, (N, 3, h, w)."""
    compute(images[:batch])  # warm up: the caches hold another model's weights
    times: list[float] = []
    first = 0
    while len(times) < LEAST_CALLS or sum(times) < seconds:
        some = images[first : first + batch]
        begun = time.perf_counter()
        compute(some)
        times.append(time.perf_counter() - begun)
        first += batch
        if first + batch > len(images):
            first = 0
    return times


# Messages between the processes: a line of JSON, then the bytes of arrays


def _send(stream: IO[bytes], values: dict, arrays: Sequence[np.ndarray] = ()) -> None:
    kinds = [(array.dtype.str, array.shape) for array in arrays]
    stream.write(json.dumps({**values, "arrays": kinds}).encode() + b"\n")
    for array in arrays:
        stream.write(np.ascontiguousarray(array).data)
    stream.flush()


def _receive(stream: IO[bytes]) -> tuple[dict, list[np.ndarray]]:
    """The next message. Raises EOFError if the stream ends before the message does."""
    line = stream.readline()
    if not line.endswith(b"\n"):
        raise EOFError
    values = parse_json(line)
    arrays = []
    for dtype, shape in values["arrays"]:
        size = math.prod(shape) * np.dtype(dtype).itemsize
        content = stream.read(size)
        if len(content) < size:
            raise EOFError
        arrays.append(np.frombuffer(bytearray(content), dtype).reshape(shape))
    return values, arrays


# The child process


def child() -> None:
    """Main function of the child process: replies to requests until there are no more. An error
    that is not vitkit's own ends it with a traceback."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # so that output of a library is not read as a reply
    file = _IsolatedFile()
    while True:
        try:
            values, arrays = _receive(sys.stdin.buffer)
        except EOFError:
            return
        try:
            answer, outputs = file.answer(values, arrays)
        except VitkitError as error:
            answer, outputs = {"error": type(error).__name__, "message": str(error)}, []
            if not hasattr(
                errors, type(error).__name__
            ):  # a class that vitkit.errors does not have
                answer["error"] = VitkitError.__name__
        try:
            _send(answers, answer, outputs)
        except BrokenPipeError:  # the parent process has ended
            return


class _IsolatedFile:
    """The exported file in the child process."""

    runtime: FileRuntime | PictureRuntime
    images: np.ndarray

    def answer(self, values: dict, arrays: list[np.ndarray]) -> tuple[dict, list[np.ndarray]]:
        """The reply to a request."""
        if values["question"] == "open":
            self.runtime = open_model_file(Path(values["path"]), values["library"])
            file = self._file
            described = {
                "exported": file.exported.to_json(),
                "library": file.library,
                "computed_in": file.computed_in,
            }
            return described, []
        if values["question"] == "compute":
            return {}, list(self._file.compute(arrays[0]))
        if values["question"] == "keep":
            self.images = arrays[0]
            return {}, []
        times = passes(self.runtime.logits, self.images, values["batch"], values["seconds"])
        return {"times": times}, []

    @property
    def _file(self) -> FileRuntime:
        if isinstance(self.runtime, PictureRuntime):
            return self.runtime.file
        return self.runtime
