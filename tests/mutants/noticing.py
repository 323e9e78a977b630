"""Which tests execute a line, and whether one of them notices a change.

Each run of tests is a fork of this process, in which nothing of vitkit has been imported: it
imports the changed module in place of the true one.
"""

import importlib
import importlib.abc
import importlib.util
import os
import re
import resource
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.machinery import SourceFileLoader
from pathlib import Path
from time import process_time

import pytest

from mutants.changes import Mutant

TESTS = Path(__file__).parents[1]
SOURCE = TESTS.parent / "src" / "vitkit"
MEMORY = 8 << 30  # bytes of address space of a change's run
PATIENCE = 10  # times its time, and 20 seconds more, is what a test may take
IMPORTING = 60  # seconds

READS_DEFINITIONS = "tests/test_defaults.py"  # and executes none of their lines

# Imported once, before the forks: what vitkit and its tests import of others
OTHERS = """torch torch.fx torchvision.transforms.v2 numpy pandas PIL.Image pyarrow.parquet rich.console
safetensors.torch scipy.linalg scipy.optimize scipy.stats sklearn.linear_model tyro timm transformers"""


def package_of(file: str) -> str:
    """The folder of a file's package, which its tests have too: "data", "apps/label"."""
    first, *rest = file.split("/")
    return f"apps/{rest[0]}" if first == "apps" else first


@dataclass
class Test:
    """A test that passes, the seconds of a CPU that it takes, and what it executes of the files that are
    changed."""

    seconds: float = 0.0
    lines: dict[str, list[int]] = field(default_factory=dict)

    def executes(self, file: str, lines: Container[int]) -> bool:
        """Whether it executes one of these lines."""
        return any(line in lines for line in self.lines.get(file, ()))


def import_others() -> None:
    for name in OTHERS.split():
        if importlib.util.find_spec(name.partition(".")[0]):
            importlib.import_module(name)


def covering(tests: dict[str, Test], mutant: Mutant, by_file: bool = False) -> list[list[str]]:
    """The tests that execute the statement. If there are none, as of a default that is evaluated at
    import or a line that another process executes, groups of tests, the nearest first: what reads all
    definitions; those that execute a line with a name that the statement defines, in the file or in
    another; those of the function or class around it; all of the file and of the package's folder of
    tests, since other files import constants; and those in no folder, which hold contracts of all
    packages. `by_file` are all of these: a compiler, for one, reads lines without executing them."""
    first, *others = mutant.near
    at_statement = _executing(tests, {mutant.file: first})
    if at_statement and not by_file:
        return [at_statement]
    package = package_of(mutant.file)
    users = lines_with(mutant.defines)
    groups = [at_statement]
    groups.append([name for name in tests if name.startswith(READS_DEFINITIONS)])
    groups.append(_executing(tests, {mutant.file: users.get(mutant.file, set()) - set(first)}))
    groups += [_executing(tests, {mutant.file: lines}) for lines in others]
    groups.append(_executing(tests, users))
    groups.append([name for name, test in tests.items() if mutant.file in test.lines])
    groups.append([name for name in tests if name.startswith(f"tests/{package}/")])
    groups.append([name for name in tests if name.count("/") == 1])

    # Each test once
    seen = set()
    distinct = []
    for group in groups:
        distinct.append([name for name in group if name not in seen])
        seen.update(group)
    return [group for group in distinct if group]


def _executing(tests: dict[str, Test], lines: Mapping[str, Container[int]]) -> list[str]:
    """The tests that execute one of these lines of files."""
    return [
        name
        for name, test in tests.items()
        if any(test.executes(file, numbers) for file, numbers in lines.items())
    ]


@cache
def lines_with(names: tuple[str, ...]) -> dict[str, set[int]]:
    """The numbers of the lines that have one of these names, by file."""
    if not names:
        return {}
    named = re.compile(rf"\b({'|'.join(names)})\b")
    found = {}
    for path in SOURCE.rglob("*.py"):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if named.search(line):
                found.setdefault(path.relative_to(SOURCE).as_posix(), set()).add(number)
    return found


# Forks


def forked(work: Callable[[Callable[[str], None]], None]) -> list[str]:
    """The lines that work(tell) tells from a fork, until it ends or is ended."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        told = Path(folder, "told")
        told.touch()
        child = os.fork()
        if not child:
            try:
                _be_alone(folder)
                with told.open("a", buffering=1) as file:
                    work(lambda text: file.write(text + "\n"))
            finally:
                os._exit(0)  # whatever was raised: this is not the process that goes on
        os.waitpid(child, 0)
        _end_group(child)
        return told.read_text().splitlines()


def _be_alone(folder: str) -> None:
    """In a fork: in a group of its own, silent, and with all temporary files in one folder."""
    os.setpgid(0, 0)
    silent = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(silent, stream)
    tempfile.tempdir = folder
    os.environ["TMPDIR"] = folder
    os.chdir(folder)
    signal.alarm(IMPORTING)


def _end_group(group: int) -> None:
    """Ends what a run's tests have left running, such as data workers."""
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return


def run_pytest(files: list[str], plugin: object) -> None:
    words = ["-q", "-p", "no:cacheprovider", *(str(TESTS / file) for file in files)]
    pytest.main(words, plugins=[plugin])


# Which lines a test executes


def watched(files: list[str], test_files: list[str]) -> tuple[dict[str, Test], list[str]]:
    """The tests in these test files by name, and those that fail though nothing is changed."""

    def work(tell):
        signal.alarm(0)
        for file in files:
            importlib.import_module(_module(file))
        run_pytest(test_files, _Watch(files, tell))

    tests, failing = {}, []
    for told in forked(work):
        what, name, rest = told.split("\t")
        if what == "failed":
            failing.append(name)
        else:
            seconds, *lines = rest.split(" ")
            test = tests.setdefault(name, Test(float(seconds)))
            for line in lines:
                file, _, numbers = line.partition(":")
                test.lines[file] = [int(number) for number in numbers.split(",")]
    for name in failing:
        tests.pop(name, None)
    return tests, failing


class _Watch:
    """A plugin that tells each test's seconds, and which lines it and its fixtures execute."""

    def __init__(self, files: list[str], tell: Callable[[str], None]):
        self.file_of = {str(SOURCE / file): file for file in files}
        self.tell = tell
        self.executing: list[set] = []  # of the test, and of fixtures that are being made
        self.of_fixture: dict[object, set] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        lines = set()
        self.executing.append(lines)
        began = process_time()  # other programs may be busy
        self._trace(self._called)
        try:
            return (yield)
        finally:
            self._trace(None)
            seconds = process_time() - began
            self.executing.pop()
            for definitions in item._fixtureinfo.name2fixturedefs.values():
                lines |= self.of_fixture.get(definitions[-1], set())
            self._say(item.nodeid, seconds, lines)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef):
        lines = self.of_fixture[fixturedef] = set()
        self.executing.append(lines)
        try:
            return (yield)
        finally:
            self.executing.pop()

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self.tell(f"failed\t{report.nodeid}\t")

    def _say(self, name: str, seconds: float, lines: set) -> None:
        by_file = {}
        for file, line in sorted(lines):
            by_file.setdefault(file, []).append(str(line))
        words = [f"{file}:{','.join(numbers)}" for file, numbers in by_file.items()]
        self.tell(f"test\t{name}\t{' '.join([f'{seconds:.3f}', *words])}")

    def _trace(self, function) -> None:
        threading.settrace(function)
        sys.settrace(function)

    def _called(self, frame, event, argument):
        return self._executed if frame.f_code.co_filename in self.file_of else None

    def _executed(self, frame, event, argument):
        if event == "line":
            line = self.file_of[frame.f_code.co_filename], frame.f_lineno
            for lines in self.executing:
                lines.add(line)
        return self._executed


# Whether a test notices a change


@dataclass(frozen=True)
class Outcome:
    """Which test noticed, or nothing; and how many ran."""

    noticed_by: str
    ran: int


def outcome(mutant: Mutant, names: list[str], tests: dict[str, Test]) -> Outcome:
    """Runs these tests to the first that notices. A test that does not end, or takes the process with
    it, has noticed."""
    if not names:
        return Outcome("", 0)

    def work(tell):
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        sys.meta_path.insert(0, _Changed(mutant))
        importlib.import_module(_module(mutant.file))
        tell("imported\t")
        files = sorted({name.partition("::")[0].removeprefix("tests/") for name in names})
        run_pytest(files, _Notice(names, tests, tell))
        tell("ended\t")

    told = [line.split("\t") for line in forked(work)]
    failed = [name for what, name in told if what == "failed"]
    ran = [name for what, name in told if what == "began"]
    ended = bool(told) and told[-1][0] == "ended"
    if not ended:
        # In the middle of a test, or before the first
        failed.append(ran[-1] if ran else "the import")
    elif not ran:
        failed.append("the import of a test")
    return Outcome(failed[0] if failed else "", len(ran))


class _Notice:
    """A plugin that runs these tests in this order, and stops when one has failed."""

    def __init__(self, order: list[str], tests: dict[str, Test], tell: Callable[[str], None]):
        self.rank = {name: rank for rank, name in enumerate(order)}
        self.tests = tests
        self.tell = tell
        self.failed = False

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items):
        items[:] = [item for item in items if item.nodeid in self.rank]
        items.sort(key=lambda item: self.rank[item.nodeid])

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        self.tell(f"began\t{item.nodeid}")
        signal.alarm(20 + int(PATIENCE * self.tests[item.nodeid].seconds))
        try:
            return (yield)
        finally:
            if self.failed:
                item.session.shouldstop = "noticed"

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self.failed = True
            self.tell(f"failed\t{report.nodeid}")


class _Changed(importlib.abc.MetaPathFinder, SourceFileLoader):
    """What imports one module from a changed tree."""

    def __init__(self, mutant: Mutant):
        super().__init__(_module(mutant.file), str(SOURCE / mutant.file))
        self.tree = mutant.tree

    def find_spec(self, name, path=None, target=None):
        if name != self.name:
            return None
        return importlib.util.spec_from_file_location(name, self.path, loader=self)

    def get_code(self, name):
        return compile(self.tree, self.path, "exec", dont_inherit=True)


def _module(file: str) -> str:
    name = "vitkit/" + file.removesuffix(".py")
    return name.removesuffix("/__init__").replace("/", ".")
