"""Which results may be out of date: for each document, the results files that it quotes, when and at which commit
they were measured, and how many commits since have touched the code that they measure.

    python benchmarks/stale.py [DOCUMENT...]

It measures nothing. Many commits do not mean that a number is wrong: they say where to measure again first. A
results file from before 2026-11-28 names the commit that last wrote the file.
"""

import re
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import record

ROOT = record.ROOT
RESULTS = ROOT / "benchmarks" / "results"
QUOTED = re.compile(
    r"[\w*-]+\.json|results/[\w-]+/(?!\w)"
)  # a file, a pattern of files, a folder of them
SCRIPT = re.compile(r"benchmarks/(\w+)\.py")

_FEATURES = ("evaluation/probes/features.py", "models/vision_transformer.py", "data/images")
_CLOSED_FORM = ("evaluation/probes", *_FEATURES)
_STEP = ("models", "objectives/supervised.py", "training/step.py", "training/optim.py")
_LOADING = ("data/augmentation", "data/images", "data/loading", "data/sources")

# What each script measures, in src/vitkit/
MEASURED = {
    "attention": ("models/attention.py",),
    "axial": ("models",),
    "browser": ("exporting", "inspection/figures/attention_maps.py", "weights/unknown.py"),
    "bursts": ("data/sources/bursts.py", *_CLOSED_FORM),
    "checkpoints": ("training/state", "system/storage"),
    "defects": (
        "finetuning/good_images.py",
        "finetuning/memory_bank.py",
        "evaluation/metrics/defects.py",
        "evaluation/metrics/overlap.py",
        "models/head.py",
        "data/images",
    ),
    "defects_anomalib": ("data/images", "evaluation/metrics/defects.py"),
    "defects_choice": ("finetuning/memory_bank.py", "models/head.py", "data/images"),
    "end_to_end": ("prediction", "evaluation", "models", "finetuning", "training", *_LOADING),
    "error_rates": (
        "apps/studies",
        "training/grids",
        "exporting/agreement.py",
        "exporting/bounds.py",
    ),
    "faster": ("apps/faster", "exporting", "runtimes"),
    "features": ("evaluation/probes/features.py", "models", *_LOADING),
    "fewshot": ("evaluation/probes/ridge.py",),
    "first_hour": ("finetuning", "recipes/finetuning.py", "training", "models", *_CLOSED_FORM),
    "first_hour_transcript": ("finetuning", "recipes/finetuning.py", "training", *_CLOSED_FORM),
    "forward": ("models",),
    "guesses": ("cli", "apps", "system/functions"),
    "heads": ("finetuning/candidates.py", "finetuning/head_inputs.py", *_CLOSED_FORM),
    "honesty": ("weights/unknown.py", "evaluation/metrics", *_CLOSED_FORM),
    "inspection": ("inspection/figures", "models"),
    "inspected": ("inspection/figures", "models"),
    "label": ("apps/label", *_CLOSED_FORM),
    "load": ("weights", "models"),
    "loader": _LOADING,
    "mask_review": ("apps/review", "finetuning/segmentation", "data/masks", "models"),
    "masks": (
        "finetuning/segmentation",
        "data/masks",
        "data/augmentation/draws.py",
        "evaluation/metrics/segmentation.py",
        "objectives/segmentation.py",
        "training/step.py",
        "models",
    ),
    "mutants": ("", "../../tests"),
    "near_copies": ("curation/duplicates.py", "curation/statistics.py", "data/images"),
    "precision": ("models", "system/machine.py", "data/images"),
    "predict": ("prediction", "runtimes", "models", "data/images"),
    "pretraining": ("objectives", "training", "models", *_LOADING),
    "proportions": ("models", "data/images"),
    "remote_data": ("curation/packing.py", "data/formats", "data/sources", "data/loading"),
    "residual": _STEP,
    "review": ("evaluation/reports/label_noise.py", *_CLOSED_FORM),
    "run_step": ("training/footprint.py", "training/planning.py", *_STEP),
    "runtimes": ("exporting", "runtimes", "models"),
    "same_bits": ("system/machine.py", *_STEP),
    "scaling": ("training/footprint.py", "training/planning.py", "models"),
    "serve": ("apps/serve", "prediction", "runtimes"),
    "sharding": ("system/processes/ranks.py", *_STEP),
    "small": _LOADING,
    "soak": ("apps/serve", "prediction", "system"),
    "step": _STEP,
    "step_variants": _STEP,
    "teaching": ("evaluation/probes",),
    "unknown": ("weights/unknown.py", *_CLOSED_FORM),
}


def main(words: list[str]) -> None:
    rows = []
    contents = read_results()
    for document, file in quotes(contents):
        if words and document not in words:
            continue
        content = contents[file]
        since = commits_since(content["commit"], script_of(content))
        name = file.relative_to(RESULTS).as_posix()
        rows.append((document or "(no document)", name, content["date"], content["commit"], since))
    rows.sort(key=lambda row: (row[0], -(row[-1] or 0)))
    titles = ("document", "results", "measured", "commit", "commits since")
    widths = [max(len(str(cell)) for cell in column) for column in zip(titles, *rows, strict=True)]
    for row in (titles, *rows):
        cells = [str(cell).ljust(width) for cell, width in zip(row, widths, strict=True)]
        print("  ".join(cells).rstrip())


def documents() -> list[Path]:
    """Pages that may quote results."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def read_results() -> dict[Path, dict]:
    """The content of every results file."""
    return {file: record.read(file) for file in sorted(RESULTS.rglob("*.json"))}


def quotes(contents: dict[Path, dict]) -> list[tuple[str, Path]]:
    """Every results file, once for each document that names it or the script that wrote it: the path of the
    document from the root, or "" if there is none, and the file."""
    left = set(contents)
    found = []
    for document in documents():
        text = document.read_text()
        names = set(QUOTED.findall(text))
        scripts = set(SCRIPT.findall(text))
        for file, content in contents.items():
            if is_named(file, names) or script_of(content) in scripts:
                found.append((document.relative_to(ROOT).as_posix(), file))
                left.discard(file)
    return found + [("", file) for file in sorted(left)]


def is_named(file: Path, names: set[str]) -> bool:
    """Whether one of these names, patterns and folders means a file."""
    folder = f"results/{file.parent.name}/"
    return folder in names or any(fnmatch(file.name, name) for name in names)


def script_of(content: dict) -> str:
    """The script that wrote a results file, without its ending."""
    command = content["command"]
    if not isinstance(command, str):
        command = command[0]
    if "-m mutants" in command:
        return "mutants"
    return SCRIPT.search(command)[1]


def measured_paths(script: str) -> list[Path]:
    """The files and folders that a script measures."""
    return [ROOT / "src" / "vitkit" / path for path in MEASURED[script]]


def commits_since(commit: str | None, script: str) -> int | None:
    """How many commits after this one have touched what a script measures; None if that is not known."""
    if commit is None:
        return None
    paths = [str(path) for path in measured_paths(script)]
    try:
        count = record.git("rev-list", "--count", f"{commit.partition('+')[0]}..HEAD", "--", *paths)
    except (OSError, subprocess.CalledProcessError):
        return None
    return int(count)


if __name__ == "__main__":
    main(sys.argv[1:])
