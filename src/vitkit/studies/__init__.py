"""Many runs as one: a grid of recipes, and the protocols that are grids."""

from vitkit.system.lazy import lazily

_FILES = {
    "budget": "Plan duration",
    "drawing": "write_figure",
    "grid": "Cell Measurement check_shard most_shards run_grid",
    "jobs": "check_submitit run_jobs",
    "laws": "fit",
    "paper": "STUDIES",
    "rows": "RESULTS Row read_rows write_table",
    "selection": "Regularisation USUAL regularised select",
    "study": "Ask RECORD Results Study begin results run_study",
    "transfer_protocol": "Transfer transfer",
    "uncertainty": "LEVEL range_test",
}
__all__, __getattr__, __dir__ = lazily(__name__, _FILES)
