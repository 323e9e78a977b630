"""Suites: several tasks, one protocol, and the means that a model is judged by. VTAB is one, the
robustness suite another; a suite of one's own is a TOML file.
"""

from vitkit.system.lazy import lazily

_FILE_OF = {
    "FINE_TUNING": "run",
    "Outcome": "run",
    "ROBUSTNESS": "robustness",
    "Suite": "task",
    "Task": "task",
    "VTAB": "vtab",
    "cells": "table",
    "columns": "table",
    "lines": "table",
    "markdown": "table",
    "read_suite": "task",
    "run_suite": "run",
    "sentences": "table",
}
__all__ = [*_FILE_OF]
__getattr__ = lazily(__name__, _FILE_OF)
