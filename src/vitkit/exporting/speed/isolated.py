"""Exported files, each opened and computed by a process of its own: a library that crashes there ends its
own measurements, and not those of the others.

The process starts without PyTorch. Times are measured in it, so they are those of the library alone.

Legend: B batch, K classes, h w pixels of what the model gets.
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
from vitkit.runtimes import LIBRARIES, Exported, FileRuntime, RuntimeName, open_model_file
from vitkit.runtimes.exported import PictureRuntime
from vitkit.system.errors import VitkitError, WorkerDied
from vitkit.system.storage.files import parse_json

LEAST_CALLS = 2  # of a turn
# Ctrl-C goes to the whole group, and ends a child only by way of its parent
CHILD = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
CHILD += "from vitkit.exporting.speed.isolated import child; child()"


class Isolated:
    """An exported file that another process computes."""

    runtime: FileRuntime | PictureRuntime
    """The opened file, as a Runtime whose answers come from the process."""

    def __init__(self, path: Path):
        """Start the process."""
        self.path = path
        self._library = "the library"
        self._images: np.ndarray | None = None  # those that the process has
        code = (
            f"import sys; sys.path[:] = {sys.path!r}\n{CHILD}"  # it finds vitkit where this one did
        )
        self._process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._process.stdin is not None and self._process.stdout is not None  # pipes
        self._questions = self._process.stdin
        self._answers = self._process.stdout

    def open(self, library: RuntimeName) -> None:
        """Open the file in the process. Raises WorkerDied if that ends the process, and what
        `open_model_file` raises."""
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
        """`passes` in the process. Raises WorkerDied if the process ends."""
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
        with suppress(OSError):  # of a question that was never read
            self._questions.close()

    def _compute(self, images: np.ndarray) -> list[np.ndarray]:
        _, outputs = self._ask("compute", [images])
        return outputs

    def _ask(
        self, question: str, arrays: Sequence[np.ndarray] = (), **values: Any
    ) -> tuple[dict, list[np.ndarray]]:
        """The answer of the process. Raises WorkerDied if it has ended, and vitkit's own errors as the
        process raised them."""
        try:
            _send(self._questions, {"question": question, **values}, arrays)
            answer, outputs = _receive(self._answers)
        except (EOFError, OSError):
            raise WorkerDied(self._death()) from None
        if "error" in answer:
            raise getattr(errors, answer["error"])(answer["message"])
        return answer, outputs

    def _death(self) -> str:
        """A sentence about the end of the process."""
        status = self._process.wait()
        how = f"with status {status}"
        if status < 0:
            how = f"by {signal.Signals(-status).name}"
        return f"the process in which {self._library} computes {self.path.name} ended {how}"


OpenFile = Callable[[Path, RuntimeName], Isolated]


@contextmanager
def isolated_files() -> Iterator[OpenFile]:
    """A block with a function that opens exported files, each in a process that ends with the block."""
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
    """Seconds of each forward pass of a turn, which goes through the images, (N, 3, h, w)."""
    compute(images[:batch])  # the caches hold another's weights
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


# Between the processes: a line of JSON, and the numbers of arrays


def _send(stream: IO[bytes], values: dict, arrays: Sequence[np.ndarray] = ()) -> None:
    kinds = [(array.dtype.str, array.shape) for array in arrays]
    stream.write(json.dumps({**values, "arrays": kinds}).encode() + b"\n")
    for array in arrays:
        stream.write(np.ascontiguousarray(array).data)
    stream.flush()


def _receive(stream: IO[bytes]) -> tuple[dict, list[np.ndarray]]:
    """The next message. Raises EOFError if there is none, or a part of one."""
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


# The other process


def child() -> None:
    """The main function of the other process: answers questions until there are no more. An error that is
    not vitkit's own ends it, with a traceback."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
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
            if not hasattr(errors, type(error).__name__):  # a class of one module's
                answer["error"] = VitkitError.__name__
        try:
            _send(answers, answer, outputs)
        except BrokenPipeError:  # the parent has ended
            return


class _IsolatedFile:
    """The file in the other process."""

    runtime: FileRuntime | PictureRuntime
    images: np.ndarray

    def answer(self, values: dict, arrays: list[np.ndarray]) -> tuple[dict, list[np.ndarray]]:
        """The answer to a question."""
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
