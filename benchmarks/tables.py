"""Prints the tables of docs/speed.md for forward passes and training steps, in Markdown.

    python benchmarks/tables.py benchmarks/results/forward-cpu-*.json

It measures nothing: it reads the files that forward.py and step.py have written.
"""

import json
import sys
from pathlib import Path

MODELS = ("Ti/16", "S/16", "B/16", "cifar10", "R+Ti/16", "R26+S/32", "R50+B/16", "BiT-R50x1")
PRECISIONS = {"float32": "float32", "autocast": "bf16 autocast", "bfloat16": "bf16 weights"}


def main(files: list[str]) -> None:
    rows = []
    for file in files:
        rows += json.loads(Path(file).read_text())["results"]
    rows.sort(key=place)

    libraries = list(rows[0]["images_per_second"])
    titles = ["model", "batch", "precision", "mode", *libraries, "times the fastest (95 %)"]
    print_row(titles)
    print("|---" * len(titles) + "|")
    for row in rows:
        print_row(cells(row, libraries))


def place(row: dict) -> tuple:
    """Where a row stands: eager before compiled, small models and batches first."""
    model = MODELS.index(row["model"])
    return row["mode"] == "compiled", model, row["batch"], row["precision"] != "float32"


def cells(row: dict, libraries: list[str]) -> list[str]:
    """What a row shows."""
    low, high = row["ratio_95_percent"]
    return [
        row["model"],
        str(row["batch"]),
        PRECISIONS[row["precision"]],
        row["mode"],
        *(f"{row['images_per_second'][library]:.1f}" for library in libraries),
        f"**{row['ratio']:.2f}** ({low:.2f} to {high:.2f})",
    ]


def print_row(texts: list[str]) -> None:
    print(f"| {' | '.join(texts)} |")


if __name__ == "__main__":
    main(sys.argv[1:])
