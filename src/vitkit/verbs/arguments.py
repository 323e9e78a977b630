"""Arguments that several commands have: each is described once."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional, arg

from vitkit.data import Columns
from vitkit.runtimes import RuntimeName
from vitkit.system import machine
from vitkit.system.console.saying import say
from vitkit.system.console.text import as_word, printable
from vitkit.system.machine import PrecisionChoice
from vitkit.verbs.words import DATA, MODEL
from vitkit.weights import Hints

if TYPE_CHECKING:
    import torch

# What IMAGE stands for where names may be anything that leads to images
IMAGES = (
    "Image files, folders of images, patterns ('**/*.jpg'), web addresses, data sets (their test "
    "part)"
)
Model = Annotated[Positional[str], arg(metavar="MODEL", help=MODEL)]
ModelOrFile = Annotated[
    Positional[str],
    arg(metavar="MODEL", help=f"{MODEL} Or a file of vitkit export (.onnx or .xml)."),
]
ModelHints = Annotated[
    Hints, arg(name="", help="What MODEL's file does not say, or you want to be otherwise.")
]
Data = Annotated[Positional[str], arg(metavar="DATA", help=DATA)]
Images = Annotated[
    Positional[tuple[str, ...]], arg(metavar="IMAGE...", help=f"{IMAGES}, or digits.")
]
DataColumns = Annotated[
    Columns,
    arg(
        name="data.columns",
        help="Columns of a table that hold the image and its label. Default: found by their usual "
        "names.",
    ),
]
Device = Annotated[str, arg(help="cpu, cuda, cuda:1 or mps; auto takes the best there is.")]
OnBadImage = Annotated[
    Literal["fail", "skip"],
    arg(help="What to do with a broken image: stop, or skip it and print its name."),
]
Precision = Annotated[
    PrecisionChoice,
    arg(
        help="Arithmetic of the matrix products. auto is bfloat16 where the CPU or GPU has "
        "instructions for it."
    ),
]
Runtime = Annotated[
    RuntimeName,
    arg(
        help="What computes the answers: torch, compiled, onnx (ONNX Runtime) or openvino. auto is "
        "PyTorch for a model, or in predict what vitkit bench has found to be the fastest here; and for "
        "an exported file the library that it was written for."
    ),
]


def pick_precision(choice: PrecisionChoice, device: "torch.device") -> machine.Precision:
    """The precision to compute in, the same on all ranks. If nobody asked for one, it is
    said which was taken, and why."""
    from vitkit.system.processes.ranks import from_rank_0

    picked = from_rank_0(lambda: machine.pick_precision(choice, device))
    if picked.why:
        say(picked.why)
    return picked.precision


def word_of(model: object) -> str:
    """A model as it is typed after another command's name; MODEL for one that a program holds."""
    if isinstance(model, str | Path):
        return as_word(model)
    return "MODEL"


def short_name(name: str) -> str:
    """What a model is called on the page: the end of a path, without what says that it is a file of
    weights."""
    name = name.rstrip("/").rsplit("/", 1)[-1]
    for suffix in (".safetensors", ".npz", ".pth", ".bin"):
        name = name.removesuffix(suffix)
    return printable(name)
