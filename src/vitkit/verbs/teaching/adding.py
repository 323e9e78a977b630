"""The photographs that are to be added: which of them are new, and their features."""

from collections.abc import Sequence

import numpy as np

from vitkit.data import Source, subset
from vitkit.evaluation import Memory, NewExamples, digest_of, features
from vitkit.system.console.saying import say
from vitkit.system.console.text import counted
from vitkit.system.machine import autocast
from vitkit.system.storage.private import public
from vitkit.verbs.sources import broken_images
from vitkit.verbs.teaching.photographs import photographs_of
from vitkit.weights import Classifier


def new_photographs(
    words: Sequence[str], memory: Memory, classifier: Classifier
) -> list[NewExamples]:
    """The photographs of the words of --add that are not known yet, with their features. What is
    left out is said.

    classifier: the model on its device, for inference. Raises ValueError for an image that is to be
    of two classes.
    """
    label_of = {}  # of every image that is known, by its digest
    for i in memory.rows.tolist():
        label_of[memory.examples[i].digest] = memory.label_of(i)

    found = []
    for word in words:
        batch = photographs_of(word, memory)
        for note in batch.notes:
            say(f"{word}: {note}")
        source, digests = _unknown(word, batch.source, label_of)
        if not len(source):
            continue
        names = [public(source.name(i)) for i in range(len(source))]
        labels = [source.labels[target] for target in source.targets]
        x = _features(source, digests, memory, classifier)
        found.append(NewExamples(x, digests, names, labels))
    return found


def _unknown(word: str, source: Source, label_of: dict[str, str]) -> tuple[Source, list[str]]:
    """The images that are not known yet and can be read, and their digests; `label_of` knows them
    from now on."""
    chosen = []
    digests = []
    known = 0
    broken = broken_images(source)
    for i in range(len(source)):
        if i in broken:
            continue
        digest = digest_of(source.store.read(int(source.rows[i])))
        label = source.labels[source.targets[i]]
        if digest not in label_of:
            label_of[digest] = label
            chosen.append(i)
            digests.append(digest)
        elif label_of[digest] == label:
            known += 1
        else:
            name = source.name(i)
            raise ValueError(
                f"{name} is to be {label}, and the very same picture is known as "
                f"{label_of[digest]}; to move it: --remove {name} --add '{label}={name}'"
            )
    if known:
        say(f"{word}: {counted(known, 'photograph')} known already")
    return subset(source, chosen), digests


def _features(
    source: Source, digests: Sequence[str], memory: Memory, classifier: Classifier
) -> np.ndarray:
    """The features of images, float32 (n, D). Those of images that were removed are still there, and
    are the same to the bit."""
    before = memory.with_digests(digests)
    rows = {}
    for i, digest in enumerate(digests):
        if digest in before:
            rows[i] = memory.x[before[digest]]
    others = [i for i in range(len(source)) if i not in rows]
    if others:
        with autocast(classifier.device, memory.precision):
            x, _ = features(classifier, subset(source, others))
        rows |= dict(zip(others, x, strict=True))
    x = np.stack([rows[i] for i in range(len(source))])

    # A head of such features would be no numbers
    broken = np.flatnonzero(~np.isfinite(x).all(1))
    if len(broken):
        raise ValueError(
            f"the model gives NaN or infinity for {source.name(broken[0])}; its weights may be damaged"
        )
    return x
