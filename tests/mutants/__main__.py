"""Changes files that promises rest on, and writes down what the quick tests do not notice."""

import argparse
import ast
import gc
import json
import os
import sys
from collections import Counter
from dataclasses import asdict
from fnmatch import fnmatch
from pathlib import Path
from random import Random
from statistics import mean
from time import monotonic

os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # half a second of each run

import torch

from mutants import changes
from mutants.changes import Mutant
from mutants.noticing import SOURCE, TESTS, Test, covering, import_others, outcome, watched

# Below src/vitkit/: the model, closed forms, figures, schedules, resuming, rules of formats, order
RESTS_ON = """
models/attention.py models/block.py models/layers.py models/pooling.py models/positions.py
models/tiling.py models/vision_transformer.py
models/ancestors/backbone.py models/ancestors/mixers.py models/ancestors/resnet.py
evaluation/probes/closed_forms.py evaluation/probes/folds.py evaluation/probes/left_out.py
evaluation/probes/neighbours.py evaluation/probes/unknown.py
evaluation/metrics/calibration.py evaluation/metrics/classification.py evaluation/metrics/metric.py
evaluation/metrics/other_targets.py evaluation/metrics/paired.py
training/optim.py training/schedule.py training/step.py
training/state/checkpoints.py training/state/start.py training/state/state.py
weights/rules.py weights/fitting.py weights/formats/encoders.py weights/formats/resnets.py
weights/formats/shapes.py weights/formats/google/names.py weights/formats/google/vit.py
weights/formats/huggingface/vit.py weights/formats/timm/names.py weights/formats/timm/vit.py
data/loading/batches.py data/loading/workers.py
"""
ROOMS = (
    "data",
    "evaluation",
    "models",
    "objectives",
    "training",
    "weights",
)  # whose tests are asked
RESULTS = TESTS.parent / "benchmarks" / "results" / "mutants.json"
MANY = 10  # changes, after which it is told of a test that it has noticed none
IDLE = 1.0  # seconds of tests that have noticed nothing yet, and run for each change


def sample(files: list[str], count: int, seed: int) -> list[tuple[str, int]]:
    """Places of all files, each with the same chance, ordered by file."""
    everything = []
    for file in files:
        tree = ast.parse((SOURCE / file).read_text())
        everything += [(file, number) for number in range(len(changes.places(tree)))]
    chosen = Random(seed).sample(everything, min(count, len(everything)))
    print(f"{len(chosen)} of {len(everything)} places in {len(files)} files", flush=True)
    return sorted(chosen)


def known_tests(files: list[str], test_files: list[str], keep: Path | None) -> dict[str, Test]:
    """Which test executes what, from an earlier run if it was kept."""
    if keep and keep.exists():
        return {name: Test(**test) for name, test in json.loads(keep.read_text()).items()}
    began = monotonic()
    tests, failing = watched(files, test_files)
    print(f"{len(tests)} tests pass, in {monotonic() - began:.0f} s", flush=True)
    for name in failing:
        print(f"    fails unchanged, and is not asked: {name}", flush=True)
    if keep:
        keep.write_text(json.dumps({name: asdict(test) for name, test in tests.items()}))
    return tests


def choose(
    names: list[str],
    tests: dict[str, Test],
    killed: Counter,
    ran: Counter,
    options: argparse.Namespace,
) -> tuple[list[str], list[str]]:
    """Of these tests, those to run for a change: some that have noticed nothing yet, the least tried
    first, which all run; then the others, the quickest first."""
    idle = [name for name in names if not killed[name]]
    idle.sort(key=lambda name: (ran[name], tests[name].seconds, name))
    idle = _within(idle, tests, IDLE, files=1)
    others = sorted(set(names) - set(idle), key=lambda name: (tests[name].seconds, name))
    others = _within(others, tests, options.quickest, options.files)
    # Those of a file together, since they share what their module prepares: quick files first
    of_file = {}
    for name in others:
        of_file.setdefault(_file(name), []).append(tests[name].seconds)
    others.sort(key=lambda name: (mean(of_file[_file(name)]), _file(name), tests[name].seconds))
    return idle, others


def _within(names: list[str], tests: dict[str, Test], seconds: float, files: int) -> list[str]:
    """The first tests of so many files that together take so many seconds."""
    chosen = []
    of_files = set()
    for name in names:
        if seconds < tests[name].seconds:
            continue
        if _file(name) in of_files or len(of_files) < files:
            of_files.add(_file(name))
            chosen.append(name)
            seconds -= tests[name].seconds
    return chosen


def _file(name: str) -> str:
    return name.partition("::")[0]


# What came out


def described(mutant: Mutant, noticed_by: str) -> dict:
    return {
        "file": mutant.file,
        "line": mutant.line,
        "number": mutant.number,
        "how": mutant.how,
        "before": mutant.before,
        "after": mutant.after,
        "noticed_by": noticed_by,
    }


def without_notice(ran: Counter, killed: Counter) -> dict[str, int]:
    """Tests that were shown several changes, in all cases together, and noticed none."""
    shown = Counter()
    useful = set()
    for name, count in ran.items():
        function = name.partition("[")[0]
        shown[function] += count
        if killed[name]:
            useful.add(function)
    return {
        name: shown[name] for name in sorted(shown) if shown[name] >= MANY and name not in useful
    }


def read_results() -> dict:
    if not RESULTS.exists():
        return {"mutants": [], "tests_that_noticed_nothing": {}}
    return json.loads(RESULTS.read_text())


def write_results(entries: list[dict], idle: dict[str, int], options: argparse.Namespace) -> None:
    """All changes with the figures of each file first. The reasons that were written beside survivors
    stay."""
    reasons = {_key(one): one["reason"] for one in read_results()["mutants"] if "reason" in one}
    files = {}
    for entry in entries:
        if not entry["noticed_by"] and _key(entry) in reasons:
            entry["reason"] = reasons[_key(entry)]
        figures = files.setdefault(entry["file"], {"changes": 0, "noticed": 0})
        figures["changes"] += 1
        figures["noticed"] += bool(entry["noticed_by"])
    result = {
        "command": f"python -m mutants --count {options.count} --seed {options.seed}",
        "torch": torch.__version__,
        "changes": len(entries),
        "noticed": sum(bool(entry["noticed_by"]) for entry in entries),
        "survivors_with_a_reason": sum("reason" in entry for entry in entries),
        "files": files,
        "tests_that_noticed_nothing": idle,
        "mutants": entries,
    }
    RESULTS.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")


def _key(entry: dict) -> tuple:
    return entry["file"], entry["before"], entry["after"]


# The command


def asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=300, help="changes, of all files")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--file", default="*", help="only files like this: models/*")
    parser.add_argument(
        "--tests", nargs="+", default=["*"], help="only tests in files like these: models/*"
    )
    parser.add_argument("--quickest", type=float, default=30, help="seconds of tests for a change")
    parser.add_argument("--files", type=int, default=8, help="files of tests for a change")
    parser.add_argument(
        "--survivors",
        action="store_true",
        help="only what nothing noticed the last time, shown to the tests of the whole file",
    )
    parser.add_argument("--lines", type=Path, help="where to keep which test executes what")
    parser.add_argument("--seconds", type=float, default=3600, help="in all")
    return parser.parse_args()


def main() -> int:
    options = asked()
    end = monotonic() + options.seconds
    files = [file for file in RESTS_ON.split() if fnmatch(file, options.file)]
    test_files = []
    for path in sorted(TESTS.glob("*/test_*.py")):
        name = str(path.relative_to(TESTS))
        if path.parent.name in ROOMS and any(fnmatch(name, like) for like in options.tests):
            test_files.append(name)

    # Which test executes what
    torch.set_num_threads(1)
    import_others()
    gc.freeze()
    tests = known_tests(files, test_files, options.lines)

    # What is changed
    entries = []
    if options.survivors:
        entries = read_results()["mutants"]
        again = [one for one in entries if not one["noticed_by"] and one["file"] in files]
        entries = [one for one in entries if one not in again]
        chosen = [(one["file"], one["number"]) for one in again]
    else:
        chosen = sample(files, options.count, options.seed)

    # Whether it is noticed
    killed, ran = Counter(), Counter()
    for file, number in chosen:
        if monotonic() > end:
            print("the time is over")
            break
        mutant = changes.mutant(file, (SOURCE / file).read_text(), number, options.seed)
        covered = covering(tests, mutant, by_file=options.survivors)
        idle, others = choose(covered, tests, killed, ran, options)
        began = monotonic()
        found = outcome(mutant, idle, others, tests)
        killed.update(found.failed)
        ran.update(found.ran)
        entries.append(described(mutant, found.noticed_by))
        verdict = "noticed" if found.noticed_by else "SURVIVED"
        print(
            f"{verdict:9} {monotonic() - began:5.1f} s {len(found.ran):4} tests  {file}:{mutant.line} "
            f"{mutant.how}: {mutant.before}  ->  {mutant.after}   {found.noticed_by}",
            flush=True,
        )

    # The table
    entries.sort(key=lambda one: (one["file"], one["number"]))
    idle = without_notice(ran, killed)
    if options.survivors:
        idle = read_results()["tests_that_noticed_nothing"]
    write_results(entries, idle, options)
    noticed = sum(bool(one["noticed_by"]) for one in entries)
    print(f"noticed {noticed} of {len(entries)}: {noticed / max(len(entries), 1):.1%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
