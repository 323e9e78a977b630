"""Recipe -> resolve -> train: one loop, whatever the objective."""

from vitkit.system.errors import Interrupted as Interrupted
from vitkit.system.lazy import lazily

_FILES = {
    "choices": "about_survival adapted_to survival_by_pixels",
    "data": "divide group_setting open_others open_to_divide",
    "footprint": "Count count",
    "loop": "train",
    "optim": "Optim Tune",
    "plan": "GIB Machine Memory Spent advice memory operations seconds_of_a_step spent",
    "recipe": "Data Facts Recipe check_packages resolve",
    "evaluation": "ANSWERS",
    "record.machine": "BEGUN OF_BEGUN",
    "record.history": "Recorded is_run read_run run_names",
    "record.log": "Say",
    "record.metrics": "last_metrics primary_of read_metrics to_line up_to_best",
    "record.values": "check_recipe differences read_object to_json with_defaults",
    "reports.answers": "HELD_OUT check_answered open_learned open_part",
    "reports.comparison": "Common common_answers results settings verdict write_comparison",
    "reports.report": "report",
    "run": "LABELS RUNS SITTING default_run_dir locked refuse_occupied run_name tidied",
    "schedule": "Deadline Ends",
    "state.checkpoints": "Busy MODEL Occupied earlier_call refuse_other_recipe",
    "state.finish": "model_is_intact",
}
__all__, __getattr__, __dir__ = lazily(__name__, _FILES, "Interrupted")
