"""Which runtime is fastest on this machine: speeds measured in turns, and the accuracy that each
loses."""

from vitkit.system.lazy import lazily

_FILES = {
    "candidates": "Contender contenders is_good is_worth_measuring of_exported of_timm with_less_work",
    "figures": "draw",
    "measuring": "MEASURED PHOTOGRAPH Plan Speed measure remember measure_starts",
}
__all__, __getattr__, __dir__ = lazily(__name__, _FILES)
