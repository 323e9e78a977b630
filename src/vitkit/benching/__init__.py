"""Which runtime is fastest on this machine: measured in turns, with what the answers lose."""

from vitkit.system.lazy import lazily

_FILE_OF = {
    "Contender": "candidates",
    "MEASURED": "measuring",
    "Plan": "measuring",
    "Speed": "measuring",
    "contenders": "candidates",
    "draw": "figures",
    "is_good": "candidates",
    "measure": "measuring",
    "of_timm": "candidates",
    "remember": "measuring",
    "starts": "measuring",
    "with_less_work": "candidates",
}
__all__ = [*_FILE_OF]
__getattr__ = lazily(__name__, _FILE_OF)
