"""Keeps which runtime `vitkit bench` has found to be the fastest, for remembered.py to read."""

import shutil
from collections.abc import Sequence
from dataclasses import asdict
from datetime import date
from math import prod

from vitkit.benching.candidates import Contender, is_good
from vitkit.benching.measuring import Speed
from vitkit.runtimes import NAME, Fastest, folder_of
from vitkit.system.storage.files import write_json
from vitkit.weights import Classifier

PRECISIONS = ("float32", "bfloat16")  # those that commands ask for; int8 is always said


def remember(
    classifier: Classifier, found: Sequence[Contender], speeds: Sequence[Speed]
) -> list[Fastest]:
    """Keep the fastest of each precision, if more than one was measured. Raises OSError."""
    kept = []
    for precision in PRECISIONS:
        rates = {}
        for contender, speed in zip(found, speeds, strict=True):
            if _can_be_fastest(contender, precision, classifier):
                rates[contender.library] = (_mean_rate(speed), contender)
        if len(rates) > 1 and "PyTorch" in rates:
            rate, best = max(rates.values(), key=lambda each: each[0])
            kept.append(_keep(classifier, best, rate / rates["PyTorch"][0]))
    return kept


def _can_be_fastest(contender: Contender, precision: str, classifier: Classifier) -> bool:
    """Whether a contender computes the whole model in this precision, well, and begins at once."""
    if contender.agreement is None or contender.less or contender.precision != precision:
        return False
    if contender.library != "PyTorch" and contender.file is None:  # compiled: it takes minutes
        return False
    return is_good(contender, classifier.activation)


def _mean_rate(speed: Speed) -> float:
    """Images per second, the geometric mean of all sizes of batch."""
    rates = list(speed.images_per_second.values())
    return prod(rates) ** (1 / len(rates))


def _keep(classifier: Classifier, best: Contender, times: float) -> Fastest:
    """Write what was measured, and the file, which is complete before it is named."""
    folder = folder_of(classifier)
    folder.mkdir(parents=True, exist_ok=True)
    file = ""
    if best.file is not None:
        file = best.file.name
        for path in best.file.parent.glob(f"{best.file.stem}.*"):  # .xml and .bin
            shutil.copyfile(path, folder / path.name)
    fastest = Fastest(
        best.library,
        best.precision,
        times,
        best.agreement.same,
        best.agreement.images,
        date.today().isoformat(),
        file,
    )
    write_json(folder / f"{NAME}-{best.precision}.json", asdict(fastest))
    return fastest
