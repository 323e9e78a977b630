"""ImageNet-C's own files."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from vitkit.evaluation import (
    Answers,
    Named,
    Part,
    Report,
    answers,
    batches_of,
    check_classes,
    open_imagenet_c,
    robustness_on_files,
    uncropped,
)
from vitkit.system.console.text import counted
from vitkit.system.machine import autocast
from vitkit.system.processes.ranks import on_rank_0
from vitkit.verbs.arguments import word_of
from vitkit.verbs.evaluation.outcome import Evaluation
from vitkit.verbs.evaluation.whole_report import deliver, facts_of
from vitkit.weights import Classifier

if TYPE_CHECKING:
    from vitkit.verbs.evaluation.evaluate import Evaluate


REFUSED = {
    "against": "compares two models on one set of images",
    "calibrate": "would fit a temperature to images that are for testing",
    "real": "is for ImageNet's validation images as they are",
    "corruptions": "would corrupt the images again",
    "evals": "measures one set of images",
    "split": "names a part, and these have none",
}


def check(settings: "Evaluate") -> None:
    """Raises ValueError for options that have no meaning for 75 folders of images."""
    for name, why in REFUSED.items():
        if getattr(settings, name):
            raise ValueError(f"--{name} {why}; leave it out with --as imagenet-c")
    if settings.on_bad_image == "skip" or settings.on_unknown_class == "skip":
        raise ValueError(
            "--as imagenet-c compares the same images in 75 folders, so none is skipped; leave out "
            "--on-bad-image and --on-unknown-class"
        )
    for file in settings.report:
        if file.suffix.lower() == ".png":
            raise ValueError(
                f"--report {file} would be a contact sheet, and --as imagenet-c keeps no single "
                "answers; write .html or .json"
            )


def report_on_files(
    settings: "Evaluate", classifier: Classifier, device: torch.device
) -> Evaluation:
    """Measure the accuracy under every corruption that is there, at every severity, with the errors
    in proportion to AlexNet's."""
    # The folders, before anything is computed
    check_classes(classifier)
    corruptions, notes = open_imagenet_c(settings.data)
    whole = replace(classifier, preprocessing=uncropped(classifier.preprocessing))
    ready = whole.to(device).for_inference()
    measured = robustness_on_files(corruptions, _Asked(settings, ready))
    if not on_rank_0():
        return Evaluation(settings, "", (), None, corruptions[0].severities[0].source)

    first = corruptions[0]
    images = counted(first.images, "image")
    found = Report(
        model=word_of(settings.model),
        images=f"{images} of ImageNet-C ({settings.data}), {counted(len(corruptions), 'corruption')}",
        facts=facts_of(settings, whole, device),
        metrics=tuple(measured.metrics),
        notes=notes,
        robustness=measured,
    )
    return deliver(settings, found, first.severities[0].source)


@dataclass(frozen=True)
class _Asked:
    """A model, which answers the images of a folder."""

    settings: "Evaluate"
    classifier: Classifier

    def __call__(self, named: Named, title: str) -> Answers:

        settings = self.settings
        ready = self.classifier
        choice = named.choice(ready.labels)
        batches = batches_of(ready, named.source, title, settings.batch, settings.workers)
        with autocast(ready.device, settings.precision):
            return answers(ready, Part(named.source, batches), choice=choice)
