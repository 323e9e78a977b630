"""The table of environment variables that vitkit reads, printed by `vitkit doctor` and in
docs/command-line.md."""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from typing import NamedTuple

from vitkit.system.errors import BadSettings

PREFIX = "VITKIT_"
MAX_PIXELS = 178_956_970  # Pillow refuses larger images too, as decompression bombs
MAX_PIXELS_VARIABLE = "VITKIT_MAX_PIXELS"
TRACEBACK_VARIABLE = "VITKIT_TRACEBACK"
KEEP_ONNX_VARIABLE = "VITKIT_KEEP_ONNX"


class Variable(NamedTuple):
    """An environment variable."""

    name: str
    meaning: str
    default: str
    """A description of the value if the variable is not set."""
    secret: bool = False
    """Whether its value must not be shown, because it may contain a password."""


VARIABLES = (
    Variable("VITKIT_CACHE", "folder for downloads, indices and measurements",
             "`vitkit` in `XDG_CACHE_HOME`"),
    Variable(MAX_PIXELS_VARIABLE, "the number of pixels of the largest image that is decoded, like `--max-pixels`",
             f"{MAX_PIXELS:,}"),
    Variable(TRACEBACK_VARIABLE, "`1` shows where in the program every error was raised, like `--traceback`",
             "of bugs alone"),
    Variable("VITKIT_MATMUL", "library for float32 dense layers on the CPU: `torch` or `onednn`",
             "the faster one, measured once"),
    Variable(KEEP_ONNX_VARIABLE, "`0`: training does not export its model as ONNX at the end, which takes seconds",
             "it does, where predictions would use the file"),
    Variable("VITKIT_TOKEN", "token that clients of `vitkit serve` must send",
             "no token is needed", secret=True),
    Variable("VITKIT_TEST_DEVICE", "device for vitkit's own tests of devices",
             "`auto`, the best device"),
    Variable("OMP_NUM_THREADS", "threads of a process that computes on the CPU",
             "one for each core"),
    Variable("CUDA_VISIBLE_DEVICES", "GPUs that may be used, such as `0,1`", "all"),
    Variable("CXX", "C++ compiler for `--compile`", "`g++`"),
    Variable("XDG_CACHE_HOME", "folder of the caches of all programs", "`~/.cache`"),
    Variable("HF_HOME", "folder for files from the Hugging Face hub",
             "`huggingface` in `XDG_CACHE_HOME`"),
    Variable("HF_TOKEN", "token for private models and data sets of the hub, and for `vitkit push`",
             "that of `hf auth login`", secret=True),
    Variable("HF_ENDPOINT", "address of the hub, or of a mirror of it", "`https://huggingface.co`"),
    Variable("HF_HUB_OFFLINE", "`1`: use only files of the hub that are in its folder already", "`0`"),
    Variable("HTTPS_PROXY", "proxy for downloads", "none", secret=True),
    Variable("NO_COLOR", "`1`: no colours in the terminal", "colours"),
)  # fmt: skip

# Variables that programs set for each other, not users
INTERNAL = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),  # from torchrun, for ranks
    "PROMETHEUS_MULTIPROC_DIR",  # from the server, for its processes
    *("DISPLAY", "WAYLAND_DISPLAY"),  # from the desktop, for programs with windows
    "CUBLAS_WORKSPACE_CONFIG",  # from a deterministic run, for cuBLAS
    # The trackers' own, as they document
    *("WANDB_MODE", "WANDB_PROJECT", "MLFLOW_EXPERIMENT_NAME"),
)


def variables_set(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables of the table that are set, by name: the value and its meaning, or only the meaning for a
    secret."""
    found = {}
    for variable in VARIABLES:
        value = environment.get(variable.name, "")
        if not value:
            continue
        if variable.secret:
            value = "set"
        found[variable.name] = f"{value}: {variable.meaning.replace('`', '')}"
    return found


def unknown_variables(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Variables with vitkit's prefix that it does not read, for example misspelt ones, each with a
    sentence."""
    known = [variable.name for variable in VARIABLES if variable.name.startswith(PREFIX)]
    endings = [name.removeprefix(PREFIX) for name in known]
    sentences = {}
    for name in sorted(environment):
        if not name.startswith(PREFIX) or name in known:
            continue
        near = get_close_matches(name.removeprefix(PREFIX), endings, 1)
        if near:
            advice = f"did you mean {PREFIX}{near[0]}?"
        else:
            advice = f"it reads {', '.join(known)}"
        sentences[name] = f"vitkit reads no {name}; {advice}"
    return sentences


def max_pixels() -> int:
    """The number of pixels of the largest image that is decoded: MAX_PIXELS, or the environment variable,
    which child processes inherit. `vitkit COMMAND --max-pixels N` sets that.

    Raises VitkitError.
    """
    text = os.environ.get(MAX_PIXELS_VARIABLE)
    if not text:
        return MAX_PIXELS
    if not re.fullmatch(r"[\d_,]{1,15}", text) or not int(re.sub("[_,]", "", text)):
        raise BadSettings(
            f"the largest number of pixels is {text!r}; give a whole number, such as 500_000_000 "
            f"(--max-pixels, or {MAX_PIXELS_VARIABLE} in the environment)"
        )
    return int(re.sub("[_,]", "", text))


@contextmanager
def variables_set_to(values: Mapping[str, str]) -> Iterator[None]:
    """A context in which environment variables have these values, also for child processes."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
