"""Suites: several tasks, one protocol, and the means that a model is judged by. VTAB is one, the
robustness suite another; users write their own suites as TOML files.
"""

from vitkit.system.lazy import lazily

_FILES = {
    "robustness": "ROBUSTNESS",
    "running": "FINE_TUNING Outcome run_suite",
    "table": "cells columns lines markdown sentences",
    "task": "Suite Task read_suite",
    "vtab": "VTAB",
}
__all__, __getattr__, __dir__ = lazily(__name__, _FILES)
