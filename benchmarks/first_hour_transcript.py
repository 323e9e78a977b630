"""What `vitkit finetune photos/` prints, for docs/first-hour.md: runs the command on the photographs of a data
set, in a folder for each class, with weights beside them, and writes its output into the page, between two
comments, and to the results. It is that of a process whose output is a file: without bars of progress.

    python benchmarks/first_hour_transcript.py --model timm.safetensors --data ants_bees-*.parquet
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import record

from vitkit.data import merge_parts, open_parts

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "first-hour.md"
RESULTS = ROOT / "benchmarks" / "results" / "first-hour-transcript.json"
BEGIN = "<!-- what benchmarks/first_hour_transcript.py has written begins here -->\n"
END = "<!-- and ends here -->\n"
PACKAGES = ("torch", "pillow", "vitkit")
COMMAND = ["finetune", "photos/"]


def main(argv: list[str] | None = None) -> dict:
    options = arguments().parse_args(argv)
    result = record.about("what `vitkit finetune photos/` prints", PACKAGES)
    with tempfile.TemporaryDirectory() as folder:
        unpack(options.data, Path(folder) / "photos")
        shutil.copy(options.model, folder)
        result["transcript"] = transcript(Path(folder))
    record.write(result, options.output)
    options.page.write_text(with_block(options.page.read_text(), block(result)))
    return result


def arguments() -> argparse.ArgumentParser:
    parser = record.parser(__doc__)
    parser.add_argument("--model", required=True, help="weights that finetune finds by their name")
    parser.add_argument("--data", required=True, help="photographs with classes")
    parser.add_argument("--page", type=Path, default=PAGE)
    parser.add_argument("--output", type=Path, default=RESULTS)
    return parser


def unpack(data: str, folder: Path) -> None:
    """Write the photographs of all parts of a data set as FOLDER/CLASS/1.jpg, 2.jpg, ..."""
    first, *others = open_parts(data).sources.values()
    every = first
    for other in others:
        every = merge_parts(every, other)
    for number in range(len(every)):
        path = folder / every.answer(number) / f"{number + 1}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(every[number][0])


def transcript(folder: Path) -> str:
    """What the command prints in a folder, with an empty cache, all CPUs, and nothing from the network."""
    environment = os.environ | {
        "PYTHONPATH": str(ROOT / "src"),  # the code whose commit the page names
        "VITKIT_CACHE": str(folder / "cache"),
        "HF_HUB_OFFLINE": "1",
    }
    environment.pop("OMP_NUM_THREADS", None)
    run = subprocess.run(
        [sys.executable, "-m", "vitkit", *COMMAND],
        cwd=folder,
        env=environment | {"COLUMNS": "100"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if run.returncode:
        raise RuntimeError(f"the command failed: {run.stdout[-2000:]}")
    return run.stdout


def block(result: dict) -> str:
    """What stands in the page: the output, and a sentence about where it comes from."""
    machine = result["machine"]
    return (
        f"```text\n{result['transcript'].rstrip()}\n```\n\n"
        f"(Written by `python benchmarks/first_hour_transcript.py` on {result['date']}, of commit "
        f"{result['commit']}; {machine['cores']} cores of {machine['cpu']}, which other work used too.)\n"
    )


def with_block(page: str, text: str) -> str:
    """The page with other text between the comments.

    Raises:
        ValueError: If the page has no such comments.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no lines {BEGIN.strip()!r} and {END.strip()!r}")
    return f"{before}{BEGIN}{text}{END}{after}"


if __name__ == "__main__":
    main()
