"""What holds for the processes of the tests. Their fixtures are in shared_fixtures.py."""

import gc
import logging

# A million objects come with PyTorch and stay. To search them for garbage, again and again while it is
# imported and while tests run, takes a tenth of the suite's time
gc.disable()  # until all tests are collected
gc.set_threshold(50_000, 10, 10)

import os

# A thread each for the processes that tests start too: others run beside them, and two threads of one
# process wait for each other where there is no core for both
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Hundreds of processes are started: what is imported is compiled once, also where the environment asks for
# no files of bytecode
import sys

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

import pytest
from margins import pytest_runtest_makereport, pytest_terminal_summary  # noqa: F401  (hooks)


def pytest_configure(config):
    """The fixtures, but not for the process that hands the tests out to others, which so starts them two
    seconds earlier: it runs none, and needs no PyTorch."""
    option = config.option  # without pytest-xdist it knows neither dist nor tx
    distributed = getattr(option, "dist", "no") != "no" and bool(option.tx)
    if not distributed or hasattr(config, "workerinput"):
        config.pluginmanager.import_plugin("shared_fixtures")


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_xdist_auto_num_workers(config):
    """A process more than cores for the slow tests, of which many wait for processes of their own."""
    if config.option.markexpr == "slow":
        return (os.cpu_count() or 1) + 1
    return None


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """What was imported stays, and is not searched for garbage."""
    result = yield
    gc.freeze()
    gc.enable()
    return result


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish():
    """Garbage is looked for once at the end: pytest does it twice, and Python when it ends."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def own_logging():
    """What a test does to loggers ends with it: the next one reads vitkit's messages again."""
    vitkit = logging.getLogger("vitkit")
    before = list(vitkit.handlers)
    yield
    usual = (logging.NOTSET, logging.INFO)
    if vitkit.level not in usual:  # setting a level empties the caches of all loggers
        vitkit.setLevel(logging.INFO)
    for handler in list(vitkit.handlers):
        if handler not in before and type(handler).__name__ != "Printing":
            vitkit.removeHandler(handler)
            handler.close()
    # Libraries give the root logger handlers of a test's captured output, which is closed afterwards
    root = logging.getLogger()
    for handler in list(root.handlers):
        if getattr(getattr(handler, "stream", None), "closed", False):
            root.removeHandler(handler)
