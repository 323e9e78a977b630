"""Mutation testing: would the tests notice if a line were wrong?

`python -m mutants --each 30 --seed 0` (from tests/) changes one operator, comparison, constant or
statement at a time in files that promises rest on, runs the tests of that file, and prints the mutants
that no test noticed. The same seed makes the same mutants. Each is a fork of this process, which has
imported PyTorch once: nothing on the disk is changed.
"""

import argparse
import ast
import copy
import importlib.abc
import importlib.util
import os
import resource
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
import torch

TESTS = Path(__file__).parent
SOURCE = TESTS.parent / "src" / "vitkit"
# A file, and the tests that import it
RESTS_ON = {
    "evaluation/probes/closed_forms.py": ("evaluation/test_closed_forms.py",),
    "evaluation/metrics/metric.py": ("evaluation/test_metric.py", "evaluation/test_accuracy.py"),
    "evaluation/metrics/calibration.py": ("evaluation/test_calibration.py",),
    "evaluation/metrics/classification.py": (
        "evaluation/test_classification.py",
        "evaluation/test_accuracy.py",
    ),
    "training/schedule.py": ("training/test_schedule.py",),
    "models/attention.py": ("models/test_vit.py", "models/test_mixers.py"),
    "models/positions.py": ("models/test_positions.py",),
    "data/loading/batches.py": ("data/test_loader.py",),
}
SECONDS = 120  # of a mutant's tests, at most: one that never ends was noticed
MEMORY = 8 << 30  # bytes of address space

OTHER = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Div, ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.MatMult: ast.Mult,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip


def places(tree: ast.Module) -> Iterator[tuple[ast.AST, str]]:
    """Every node that can be changed, and how: not in annotations, messages of errors and imports."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Raise | ast.Assert | ast.Import | ast.ImportFrom | ast.JoinedStr):
            continue
        for field, value in ast.iter_fields(node):
            if field in ("annotation", "returns", "decorator_list"):
                continue
            values = value if isinstance(value, list) else [value]
            waiting += [child for child in values if isinstance(child, ast.AST)]
        if isinstance(node, ast.BinOp | ast.BoolOp | ast.AugAssign) and type(node.op) in OTHER:
            yield node, "operator"
        elif isinstance(node, ast.Compare) and type(node.ops[0]) in OTHER:
            yield node, "comparison"
        elif isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float):
            yield node, "constant"
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
            yield node, "sign"
        body = getattr(node, "body", None)
        if isinstance(node, ast.FunctionDef | ast.For | ast.If | ast.With) and len(body) > 1:
            yield node, "statement"


def change(node: ast.AST, how: str, random: Random) -> None:
    """Make it wrong."""
    if how == "operator":
        node.op = OTHER[type(node.op)]()
    elif how == "comparison":
        node.ops[0] = OTHER[type(node.ops[0])]()
    elif how == "constant" and isinstance(node.value, bool):
        node.value = not node.value
    elif how == "constant":
        node.value = random.choice((node.value + 1, node.value * 2 + 1))
    elif how == "sign":
        node.op = ast.UAdd() if isinstance(node.op, ast.USub) else ast.Invert()
    else:
        removable = [
            i
            for i, line in enumerate(node.body)
            if isinstance(line, ast.Assign | ast.AugAssign | ast.If | ast.Expr)
            and not (isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant))
        ]
        if removable:
            node.body[random.choice(removable)] = ast.Pass()


def mutants(file: str, count: int, seed: int) -> Iterator[tuple[str, str]]:
    """So many changed sources, each with the line that was changed before and after."""
    text = (SOURCE / file).read_text()
    plain = ast.parse(text)
    whole = ast.unparse(plain).splitlines()
    random = Random(f"{file} {seed}")
    numbers = list(range(len(list(places(plain)))))
    random.shuffle(numbers)
    for number in numbers[:count]:
        tree = copy.deepcopy(plain)
        node, how = list(places(tree))[number]
        change(node, how, random)
        source = ast.unparse(tree)
        for before, after in zip(whole, source.splitlines(), strict=False):
            if before != after:
                yield source, f"{how}: {before.strip()}  ->  {after.strip()}"
                break


class Changed(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """What imports one module from a changed source."""

    def __init__(self, file: str, source: str):
        self.name = "vitkit." + file.removesuffix(".py").replace("/", ".")
        self.path = str(SOURCE / file)
        self.source = source

    def find_spec(self, name, path=None, target=None):
        if name != self.name:
            return None
        return importlib.util.spec_from_loader(name, self, origin=self.path)

    def get_source(self, name: str) -> str:
        return self.source


def noticed(file: str, source: str, tests: list[str]) -> bool:
    """Whether a test fails, or does not end, with this source."""
    child = os.fork()
    if not child:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        signal.alarm(SECONDS)
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        sys.meta_path.insert(0, Changed(file, source))
        words = ["-x", "-q", "-p", "no:cacheprovider", "-n", "0", *tests]
        os._exit(int(pytest.main(words)))
    _, status = os.waitpid(child, 0)
    return status != 0


def main() -> int:
    """The exit status is 1 if the tests fail without any change."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--each", type=int, default=30, help="mutants of a file")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--file", default="", help="only files with this in their name")
    parser.add_argument("--seconds", type=float, default=1800, help="in all")
    options = parser.parse_args()
    torch.set_num_threads(1)

    end = time.monotonic() + options.seconds
    tried = killed = 0
    for file, names in RESTS_ON.items():
        if options.file not in file:
            continue
        tests = [str(TESTS / name) for name in names]
        if noticed(file, (SOURCE / file).read_text(), tests):
            print(f"{file}: its tests fail without any change")
            return 1
        own_tried = own_killed = 0
        for source, what in mutants(file, options.each, options.seed):
            if time.monotonic() > end:
                break
            found = noticed(file, source, tests)
            own_tried += 1
            own_killed += found
            if not found:
                print(f"    survived in {file}: {what}", flush=True)
        print(f"{file}: {own_killed} of {own_tried} noticed", flush=True)
        tried += own_tried
        killed += own_killed
    print(f"in all {killed} of {tried} mutants noticed: {killed / max(tried, 1):.1%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
