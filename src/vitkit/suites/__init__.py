"""Suites: several tasks, one protocol, and the means that a model is judged by. VTAB is one, the
robustness suite another; users write their own suites as TOML files.
"""

from vitkit.system.lazy import lazily

_FILES = {
    "comparison": "SuiteComparison compare_models comparison_markdown draw_comparison",
    "robustness": "ROBUSTNESS",
    "running": "FINE_TUNING FineTuning Outcome run_suite",
    "table": "cell cells columns lines markdown sentences",
    "task": "Suite Task read_suite",
    "vtab": "VTAB",
}
__all__, __getattr__, __dir__ = lazily(__name__, _FILES)
