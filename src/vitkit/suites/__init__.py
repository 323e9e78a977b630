"""Suites: several tasks, one protocol, and the means that a model is judged by. VTAB is one, the
robustness suite another; a suite of one's own is a TOML file."""

from vitkit.suites.robustness import ROBUSTNESS
from vitkit.suites.run import Outcome, run_suite
from vitkit.suites.task import Suite, Task, read_suite
from vitkit.suites.vtab import VTAB

__all__ = ["ROBUSTNESS", "VTAB", "Outcome", "Suite", "Task", "read_suite", "run_suite"]
