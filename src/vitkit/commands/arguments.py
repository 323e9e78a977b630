"""Arguments that several commands have: each is described once."""

from typing import Annotated

from tyro.conf import Positional, arg

from vitkit.commands import DATA, MODEL
from vitkit.data import Columns
from vitkit.weights.description import Hints

Model = Annotated[Positional[str], arg(metavar="MODEL", help=MODEL)]
ModelHints = Annotated[
    Hints, arg(name="", help="What MODEL's file does not say, or you want to be otherwise.")
]
Data = Annotated[Positional[str], arg(metavar="DATA", help=DATA)]
Images = Annotated[
    Positional[tuple[str, ...]],
    arg(
        metavar="IMAGE...",
        help="Image files, folders of images, data sets (their test part), or digits.",
    ),
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
