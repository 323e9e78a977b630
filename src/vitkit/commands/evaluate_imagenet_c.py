"""`vitkit evaluate --as imagenet-c`: ImageNet-C's own files."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from vitkit.system.console.text import counted
from vitkit.system.processes.ranks import on_rank_0
from vitkit.weights import Classifier

if TYPE_CHECKING:
    from vitkit.commands.evaluate import Evaluate
    from vitkit.evaluation import Answers, Named

REFUSED = {
    "against": "compares two models on one set of images",
    "calibrate": "would fit a temperature to images that are for testing",
    "real": "is for ImageNet's validation images as they are",
    "corruptions": "would corrupt the images again",
    "evals": "measures one set of images",
    "split": "names a part, and these have none",
}


def check(command: "Evaluate") -> None:
    """Raises ValueError for options that have no meaning for 75 folders of images."""
    for name, why in REFUSED.items():
        if getattr(command, name):
            raise ValueError(f"--{name} {why}; leave it out with --as imagenet-c")
    if command.on_bad_image == "skip" or command.on_unknown_class == "skip":
        raise ValueError(
            "--as imagenet-c compares the same images in 75 folders, so none is skipped; leave out "
            "--on-bad-image and --on-unknown-class"
        )
    for file in command.report:
        if file.suffix.lower() == ".png":
            raise ValueError(
                f"--report {file} would be a contact sheet, and --as imagenet-c keeps no single "
                "answers; write .html or .json"
            )


def report_on_files(command: "Evaluate", classifier: Classifier, device: torch.device) -> int:
    """Measure the accuracy under every corruption that is there, at every severity, with the errors
    in proportion to AlexNet's; print it, and write it to files."""
    from vitkit.commands.evaluate_report import deliver, facts_of
    from vitkit.evaluation import (
        Report,
        check_classes,
        open_imagenet_c,
        robustness_on_files,
        uncropped,
    )

    # The folders, before anything is computed
    check_classes(classifier)
    corruptions, notes = open_imagenet_c(command.data)
    whole = replace(classifier, preprocessing=uncropped(classifier.preprocessing))
    ready = whole.to(device).for_inference()
    measured = robustness_on_files(corruptions, _Asked(command, ready))
    if not on_rank_0():
        return 0

    first = corruptions[0]
    images = counted(first.images, "image")
    found = Report(
        model=command.model,
        images=f"{images} of ImageNet-C ({command.data}), {counted(len(corruptions), 'corruption')}",
        facts=facts_of(command, whole, device),
        metrics=tuple(measured.metrics),
        notes=notes,
        robustness=measured,
    )
    deliver(command, found, first.severities[0].source)
    return 0


@dataclass(frozen=True)
class _Asked:
    """A model, which answers the images of a folder."""

    command: "Evaluate"
    classifier: Classifier

    def __call__(self, named: "Named", title: str) -> "Answers":
        from vitkit.evaluation import Part, answers, batches_of
        from vitkit.system.machine import autocast

        command = self.command
        ready = self.classifier
        choice = named.choice(ready.labels)
        batches = batches_of(ready, named.source, title, command.batch, command.workers)
        with autocast(ready.device, command.precision):
            return answers(ready, Part(named.source, batches), choice=choice)
