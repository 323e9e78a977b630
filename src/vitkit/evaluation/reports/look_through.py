"""The review of a data set: labels that are probably wrong, duplicates, and unusual images."""

from collections.abc import Iterator, Sequence

import numpy as np

from vitkit.curation import repeats, survey
from vitkit.curation.statistics import Survey
from vitkit.data import Source, Splits, one_per_cpu, subset
from vitkit.evaluation.probes.features import compute_features
from vitkit.evaluation.probes.probe import fit_probe
from vitkit.evaluation.reports.label_noise import wrong_labels
from vitkit.evaluation.reports.review import Finding, outliers, unusual_looks
from vitkit.system.console.messages import as_spelled
from vitkit.system.console.progress import bar
from vitkit.system.console.text import counted, printable_name
from vitkit.system.errors import BadWeights
from vitkit.weights import Classifier

KNOWS_LITTLE = 0.7  # accuracy below which many labels are doubted only because the model is weak


def look_through(splits: Splits, classifier: Classifier) -> tuple[list[Finding], list[str]]:
    """All findings, and sentences about the review."""
    # Survey the pixels of every image, and compute the features of those that can be read
    parts = splits.sources
    surveys = {
        name: survey(part, one_per_cpu(), bar(f"reading {name}")) for name, part in parts.items()
    }
    rows = []
    for name, part in parts.items():
        readable = np.flatnonzero(surveys[name].good)
        if len(readable):
            rows.append(compute_features(classifier, subset(part, readable)).x)
    x = np.concatenate(rows)
    broken = int((~np.isfinite(x).all(1)).sum())
    if broken:
        raise BadWeights(
            f"the model gives NaN or infinity for {counted(broken, 'image')}; its weights may be "
            "damaged"
        )

    # Collect the findings
    places = _places(surveys, readable=True)
    facts = [f"{counted(len(x), 'image')} in {', '.join(parts)}"]
    findings = []
    if splits.target_kind == "class" and len(splits.labels) > 1:
        found, sentences, accuracy = _labels(parts, places, x)
        findings += found
        facts.append(
            f"{accuracy:.1%} of the labels are predicted from the features of all other images"
        )
        facts += sentences
        if accuracy < KNOWS_LITTLE:
            facts.append(
                "the model knows little of these classes: many of the labels that it doubts are right, "
                "and it misses wrong ones; a model that was fine-tuned on such images is better at this"
            )
    else:
        facts.append("labels were not checked: that needs images of one class each, of two or more")
    stretched = sum(int(seen.stretched.sum()) for seen in surveys.values())
    if stretched:
        facts.append(
            f"{counted(stretched, 'image')} of more than 8 bits, or of other channels than colours, "
            "are shown stretched from black to white, so whether they are dark or pale was not "
            "checked; the model gets them as in training, where a small part of the levels is nearly "
            "black, so its findings about labels and outliers are then unreliable"
        )
    findings += _duplicates(parts, surveys)
    findings += _outliers(parts, places, x)
    findings += _looks(parts, surveys, places)
    for name, seen in surveys.items():
        for index, reason in seen.bad.items():
            findings.append(_finding("unreadable", parts, (name, index), as_spelled(reason)))
    return findings, facts


def _places(surveys: dict[str, Survey], readable: bool) -> list[tuple[str, int]]:
    """Part and index of every image, or with `readable` of those that can be read, part by part."""
    places = []
    for name, seen in surveys.items():
        numbers: Sequence[int] = range(len(seen.source))
        if readable:
            numbers = np.flatnonzero(seen.good).tolist()
        places += [(name, number) for number in numbers]
    return places


def _finding(
    kind: str,
    parts: dict[str, Source],
    place: tuple[str, int],
    reason: str,
    like: tuple[str, int] | None = None,
    guess: str = "",
) -> Finding:
    """A finding about the image at a place, given as part and index."""
    name, index = place
    source = parts[name]
    label = source.answer(index) or ""
    return Finding(kind, name, index, source.name(index), label, reason, like, guess)


def _labels(
    parts: dict[str, Source], places: list[tuple[str, int]], x: np.ndarray
) -> tuple[list[Finding], list[str], float]:
    """Labels that are probably wrong, the surest first; sentences about their expected number; and the
    share of images whose cross-validated prediction is their label."""
    labels = next(iter(parts.values())).labels
    targets = np.array([parts[name].target_array[index] for name, index in places])
    known, classes = np.unique(targets, return_inverse=True)
    if len(known) < 2:
        return [], [], 1.0
    groups = None
    groups_of = {name: part.groups for name, part in parts.items() if part.groups is not None}
    if len(groups_of) == len(parts):
        groups = np.array([groups_of[name][index] for name, index in places])
    logits = fit_probe("linear", x, classes, len(known), groups=groups).left_out.numpy()
    accuracy = float((logits.argmax(1) == classes).mean())
    wrong = wrong_labels(logits, classes)
    if wrong is None:
        return (
            [],
            ["labels were not checked: the predictions are hardly better than chance"],
            accuracy,
        )

    findings = []
    for suspect in wrong.suspects:
        guess = labels[known[suspect.answer]]
        reason = f"{printable_name(guess)} {suspect.probability:.0%}, as labelled {suspect.own:.0%}"
        findings.append(_finding("label", parts, places[suspect.index], reason, guess=guess))
    expected = (
        f"about {len(findings):,} of {len(classes):,} labels are expected to be wrong, between "
        f"{wrong.low:,} and {wrong.high:,}; those that most probably are, are listed"
    )
    if not findings:
        expected = f"no label is expected to be wrong; up to {wrong.high:,} may be"
    sentences = [expected]
    if wrong.unclear is not None:
        label = printable_name(labels[known[wrong.unclear.label]])
        answer = printable_name(labels[known[wrong.unclear.answer]])
        sentences.append(
            f"the number depends on what predictions cannot decide: whether {answer} is regularly labelled {label}, "
            f"or the two only look alike ({counted(wrong.unclear.images, 'label')} more or fewer, of this pair "
            f"alone). Look at ten images labelled {label} that are predicted as {answer}: if most labels are wrong, "
            "more are wrong than are listed"
        )
    return findings, sentences, accuracy


def _duplicates(parts: dict[str, Source], surveys: dict[str, Survey]) -> Iterator[Finding]:
    """Yields duplicates. If one of the two is in the training part, the other one is the finding."""
    places = _places(surveys, readable=False)
    for pair in repeats(list(surveys.values())):
        place, like = places[pair.first], places[pair.second]
        if like[0] == "train" and place[0] != "train":
            place, like = like, place
        other = parts[like[0]]
        words = "looks like"
        if pair.bits < 0:
            words = "the same file as"
        reason = f"{words} {printable_name(other.name(like[1]))}"
        if like[0] != place[0]:
            reason += f" in {like[0]}"
        answer = other.answer(like[1])
        if answer != parts[place[0]].answer(place[1]):
            reason += f", labelled {printable_name(answer or 'nothing')}"
        yield _finding("duplicate", parts, place, reason, like)


def _outliers(
    parts: dict[str, Source], places: list[tuple[str, int]], x: np.ndarray
) -> Iterator[Finding]:
    """Yields images that are unlike all others."""
    for i, deviations in outliers(x):
        reason = f"{deviations:.1f} standard deviations from its nearest"
        yield _finding("outlier", parts, places[i], reason)


def _looks(
    parts: dict[str, Source], surveys: dict[str, Survey], places: list[tuple[str, int]]
) -> Iterator[Finding]:
    """Yields images that are dark, pale, blurred, or of an unusual size or shape."""
    seen = surveys.values()
    sizes = np.concatenate([part.sizes[part.good] for part in seen])
    thumbnails = np.concatenate([part.thumbnails[part.good] for part in seen])
    sharpness = np.concatenate([part.sharpness[part.good] for part in seen])
    stretched = np.concatenate([part.stretched[part.good] for part in seen])
    for i, words in unusual_looks(sizes, thumbnails, sharpness, stretched).items():
        height, width = sizes[i]
        yield _finding("looks", parts, places[i], f"{words} ({width} x {height})")
