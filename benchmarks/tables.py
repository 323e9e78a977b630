"""The tables of docs/speed.md for forward passes and training steps, from the results that are kept.

python benchmarks/tables.py benchmarks/results/forward-cpu-*.json
"""

import json
import sys
from pathlib import Path

ORDER = ("Ti/16", "S/16", "B/16", "cifar10", "R+Ti/16", "R26+S/32", "R50+B/16", "BiT-R50x1")
NAMES = {"autocast": "bf16 autocast", "bfloat16": "bf16 weights"}


def main(files: list[str]) -> None:
    rows = [row for file in files for row in json.loads(Path(file).read_text())["results"]]
    rows.sort(
        key=lambda row: (
            row["mode"] == "compiled",
            ORDER.index(row["model"]),
            row["batch"],
            row["precision"] != "float32",
        )
    )
    contenders = list(rows[0]["images_per_second"])
    print(
        f"| model | batch | precision | mode | {' | '.join(contenders)} | times the fastest (95 %) |"
    )
    print("|---" * (5 + len(contenders)) + "|")
    for row in rows:
        speeds = " | ".join(f"{row['images_per_second'][name]:.1f}" for name in contenders)
        low, high = row["ratio_95_percent"]
        words = [
            row["model"],
            str(row["batch"]),
            NAMES.get(row["precision"], row["precision"]),
            row["mode"],
        ]
        print(
            f"| {' | '.join(words)} | {speeds} | **{row['ratio']:.2f}** ({low:.2f} to {high:.2f}) |"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
