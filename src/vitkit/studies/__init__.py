"""Many runs as one: a grid of recipes, and the protocols that are grids."""

from vitkit.system.lazy import lazily

_FILE_OF = {
    "Ask": "study",
    "Cell": "grid",
    "Measurement": "grid",
    "Plan": "budget",
    "RECORD": "study",
    "RESULTS": "rows",
    "Regularisation": "selection",
    "Results": "study",
    "Row": "rows",
    "STUDIES": "paper",
    "Study": "study",
    "Transfer": "transfer_protocol",
    "USUAL": "selection",
    "begin": "study",
    "check_shard": "grid",
    "check_submitit": "jobs",
    "duration": "budget",
    "most_shards": "grid",
    "read_rows": "rows",
    "regularised": "selection",
    "results": "study",
    "run_grid": "grid",
    "run_jobs": "jobs",
    "run_study": "study",
    "select": "selection",
    "transfer": "transfer_protocol",
    "write_figure": "drawing",
    "write_table": "rows",
}
__all__ = [*_FILE_OF]
__getattr__ = lazily(__name__, _FILE_OF)
