"""Changes one place of the source at a time, and writes down what the quick tests do not notice."""

import argparse
import ast
import gc
import json
import os
import shlex
import sys
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
from mutants.noticing import (
    SOURCE,
    TESTS,
    Outcome,
    Test,
    covering,
    import_others,
    outcome,
    package_of,
    watched,
)

RESULTS = TESTS.parent / "benchmarks" / "results" / "mutants.json"


def files_in(folder: Path, pattern: str, like: list[str]) -> list[str]:
    """The names of files anywhere in a folder, relative to it, in alphabetical order."""
    names = [path.relative_to(folder).as_posix() for path in folder.rglob(pattern)]
    return sorted(name for name in names if any(fnmatch(name, each) for each in like))


def sample(files: list[str], count: int, seed: int) -> list[tuple[str, int]]:
    """Places of all files, each with the same chance, in random order: the first of them are a sample,
    too, if the time ends before the last."""
    everything = []
    for file in files:
        tree = ast.parse((SOURCE / file).read_text())
        everything += [(file, number) for number in range(len(changes.places(tree)))]
    chosen = Random(seed).sample(everything, min(count, len(everything)))
    print(f"{len(chosen)} of {len(everything)} places in {len(files)} files", flush=True)
    return chosen


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


def quickest(
    names: list[str], tests: dict[str, Test], package: str, seconds: float, files: int
) -> list[str]:
    """Of these tests, the quickest of so many files that together take so many seconds; first those in
    the package's own folder, which hold its promises."""
    own = f"tests/{package}/"

    def rank(name: str) -> tuple:
        return not name.startswith(own), tests[name].seconds, name

    of_file: dict[str, list[str]] = {}
    for name in sorted(names, key=rank):
        file = name.partition("::")[0]
        if seconds >= tests[name].seconds and (file in of_file or len(of_file) < files):
            of_file.setdefault(file, []).append(name)
            seconds -= tests[name].seconds

    # Those of a file together, since they share what their module prepares: quick files first
    groups = sorted(of_file.values(), key=lambda group: mean(tests[name].seconds for name in group))
    return [name for group in groups for name in group]


def noticed(mutant: Mutant, tests: dict[str, Test], options: argparse.Namespace) -> Outcome:
    """Shows a change to groups of tests, the nearest first, until one notices."""
    package = package_of(mutant.file)
    ran = 0
    for group in covering(tests, mutant, by_file=options.survivors):
        names = quickest(group, tests, package, options.quickest, options.files)
        found = outcome(mutant, names, tests)
        ran += found.ran
        if found.noticed_by:
            return Outcome(found.noticed_by, ran)
    return Outcome("", ran)


# Results


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


def read_results() -> dict:
    if not RESULTS.exists():
        return {"reasons": [], "mutants": []}
    return json.loads(RESULTS.read_text())


def write_results(entries: list[dict], command: str) -> None:
    """All changes, with the figures of each package first. The reasons why changed lines do the same
    are written by hand, and stay."""
    sys.path.append(str(RESULTS.parents[1]))
    import record

    reasons = read_results()["reasons"]
    same = {_key(reason) for reason in reasons}
    packages = {}
    for entry in sorted(entries, key=_key):
        figures = packages.setdefault(package_of(entry["file"]), {"changes": 0, "noticed": 0})
        figures["changes"] += 1
        figures["noticed"] += bool(entry["noticed_by"])
    survivors = [entry for entry in entries if not entry["noticed_by"]]
    result = {
        "command": command,
        "date": record.today(),
        "commit": record.commit(),
        "torch": torch.__version__,
        "changes": len(entries),
        "noticed": len(entries) - len(survivors),
        "survivors_with_a_reason": sum(_key(entry) in same for entry in survivors),
        "packages": packages,
        "reasons": reasons,
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
    parser.add_argument("--file", nargs="+", default=["*"], help="only files like these: models/*")
    parser.add_argument(
        "--tests", nargs="+", default=["*"], help="only tests in files like these: models/*"
    )
    parser.add_argument("--quickest", type=float, default=30, help="seconds of tests of a group")
    parser.add_argument("--files", type=int, default=8, help="files of tests of a group")
    parser.add_argument(
        "--survivors",
        action="store_true",
        help="only what nothing noticed the last time, shown to the tests of the whole package",
    )
    parser.add_argument("--lines", type=Path, help="where to keep which test executes what")
    parser.add_argument("--seconds", type=float, default=3600, help="in all")
    return parser.parse_args()


def main() -> int:
    options = asked()
    end = monotonic() + options.seconds
    files = files_in(SOURCE, "*.py", options.file)
    test_files = files_in(TESTS, "test_*.py", options.tests)

    # Which test executes what
    torch.set_num_threads(1)
    import_others()
    gc.freeze()
    tests = known_tests(files, test_files, options.lines)

    # What is changed
    entries = []
    command = f"python -m mutants --count {options.count} --seed {options.seed}"
    if options.file != ["*"]:
        command += f" --file {shlex.join(options.file)}"
    if options.survivors:
        before = read_results()
        command = before["command"]
        again = [one for one in before["mutants"] if not one["noticed_by"] and one["file"] in files]
        entries = [one for one in before["mutants"] if one not in again]
        chosen = [(one["file"], one["number"]) for one in again]
    else:
        chosen = sample(files, options.count, options.seed)

    # Whether it is noticed
    for file, number in chosen:
        if monotonic() > end:
            print("the time is over")
            break
        mutant = changes.mutant(file, (SOURCE / file).read_text(), number, options.seed)
        began = monotonic()
        found = noticed(mutant, tests, options)
        entries.append(described(mutant, found.noticed_by))
        verdict = "noticed" if found.noticed_by else "SURVIVED"
        print(
            f"{verdict:9} {monotonic() - began:5.1f} s {found.ran:4} tests  {file}:{mutant.line} "
            f"{mutant.how}: {mutant.before}  ->  {mutant.after}   {found.noticed_by}",
            flush=True,
        )

    # The table
    write_results(entries, command)
    count = sum(bool(one["noticed_by"]) for one in entries)
    print(f"noticed {count} of {len(entries)}: {count / max(len(entries), 1):.1%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
