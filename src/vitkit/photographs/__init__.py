"""From a folder of photographs to a model: `vitkit finetune DATA` without any setting."""

from vitkit.photographs.from_folder import Answer, answer

__all__ = ["Answer", "answer"]
