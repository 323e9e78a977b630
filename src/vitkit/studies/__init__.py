"""Many runs as one: a grid of recipes, and the protocols that are grids."""

from vitkit.system.lazy import lazily

_FILE_OF = {
    "Ask": "outcomes",
    "Cell": "cell",
    "Measurement": "cell",
    "Plan": "budget",
    "RECORD": "study",
    "RESULTS": "rows",
    "Regularisation": "regularising",
    "Results": "outcomes",
    "Row": "rows",
    "STUDIES": "paper",
    "Study": "study",
    "Transfer": "transfer_protocol",
    "USUAL": "regularising",
    "begin": "study",
    "check_shard": "grid",
    "check_submitit": "jobs",
    "duration": "budget",
    "most_shards": "grid",
    "read_rows": "rows",
    "regularised": "regularising",
    "results": "study",
    "run_grid": "grid",
    "run_jobs": "jobs",
    "run_study": "study",
    "select": "selecting",
    "transfer": "transfer_protocol",
    "write_figure": "drawing",
    "write_table": "rows",
}
__all__ = [*_FILE_OF]
__getattr__ = lazily(__name__, _FILE_OF)
