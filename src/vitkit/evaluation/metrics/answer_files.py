"""A model's answers as a file, so that what they tell can be asked later."""

import json
from dataclasses import fields
from pathlib import Path
from typing import NamedTuple

import numpy as np

from vitkit.evaluation.metrics.answers import Answers
from vitkit.system.storage.files import whole
from vitkit.weights import write_safetensors

NAMES = ("labels", "notes", "logits")  # of Answers: not among the arrays


class Kept(NamedTuple):
    """Answers, and when and to what they were given."""

    answers: Answers
    part: str
    """The part of the data: "test"."""
    step: int
    """After how many steps of the training."""


def write_answers(path: Path, kept: Kept) -> None:
    """Write answers as safetensors: an array for each of their fields but the logits. Raises
    OSError."""
    import torch

    tensors = {}
    for field in fields(Answers):
        if field.name not in NAMES:
            tensors[field.name] = torch.from_numpy(getattr(kept.answers, field.name))
    description = {
        "labels": json.dumps(kept.answers.labels),
        "notes": json.dumps(kept.answers.notes),
        "part": kept.part,
        "step": str(kept.step),
    }
    with whole(path) as new:
        write_safetensors(new, tensors, description)


def read_answers(path: Path) -> Kept | None:
    """What `write_answers` wrote; None if there is no such file, or if it is damaged."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "numpy") as opened:
            values = opened.metadata()
            arrays: dict[str, np.ndarray] = {}
            for field in fields(Answers):
                if field.name not in NAMES:
                    arrays[field.name] = opened.get_tensor(field.name)
        if len({len(array) for array in arrays.values()}) > 1:
            return None
        labels = tuple(json.loads(values["labels"]))
        notes = tuple(json.loads(values["notes"]))
        return Kept(Answers(labels, notes, **arrays), values["part"], int(values["step"]))
    except (OSError, SafetensorError, KeyError, TypeError, ValueError):
        return None
