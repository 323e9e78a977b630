"""Whether intervals and tests hold what they say where images come in bursts, and of numbers and several
classes an image: the modes of honesty.py that compare `before`, as if each image were alone, with `after`.

This is no benchmark of its own: honesty.py imports it.

- evaluated: a head answers shots of objects that it has not learned from, and what `vitkit evaluate` prints
  of few of them is compared with what it reaches on all others; and two heads that have learned from as
  many other objects are compared, which are as good as each other on average;
- left out: what `vitkit probe` prints of left-out answers to numbers (how bright or how red a photograph
  is, which digit it shows) and to several classes an image (which of five sets of classes it is in), beside
  what the head reaches on all other images.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import record
import torch
from bursts import everything, shot
from PIL import Image

from vitkit.data import Preprocessing, Source, open_image
from vitkit.data.sources.stores import Arrays
from vitkit.evaluation import (
    Answers,
    Features,
    Metric,
    Probing,
    answers_of_logits,
    classification,
    exchanged,
    fit_probe,
)
from vitkit.weights import Classifier

SHOTS = 5
OBJECTS = 400  # that are photographed, at most
MOST = 1500  # images of a set, of which each is one object
SEVERAL = 5  # classes an image may have, each of which is one to five classes of the set
TAUGHT = 60  # objects that a head learns from
ASKED = (10, 40)  # objects whose shots are evaluated
LEARNED = (50, 200)  # images that numbers and several classes are learned from
CHANCE = 0.05


class Seen(NamedTuple):
    """Images of a data set, or shots of them."""

    x: np.ndarray
    """Features, (N, D)."""
    y: np.ndarray
    """Classes, (N,)."""
    colours: np.ndarray
    """The mean red, green and blue of each one's object, (N, 3)."""
    objects: np.ndarray
    """The number of the object that each shows, (N,), from 0."""

    def some(self, chosen: np.ndarray) -> "Seen":
        """Some of the images, bool (N,)."""
        return Seen(*(values[chosen] for values in self))


def seen_of(classifier: Classifier, data: str, shots: int, folder: Path) -> Seen:
    """The images of a data set, or several shots of each; kept in a folder, for the next time."""
    kept = folder / f"{Path(data).stem}-{shots}.npz"
    if kept.is_file():
        with np.load(kept) as values:
            return Seen(*(values[name] for name in Seen._fields))
    source = everything(data)
    random = np.random.default_rng(1)
    most = OBJECTS if shots > 1 else MOST
    chosen = np.sort(random.permutation(len(source))[:most])
    rows = []
    colours = []
    for index in chosen.tolist():
        image = Image.fromarray(open_image(source[index][0], "a photograph").pixels())
        colours.append(np.asarray(image.convert("RGB").resize((1, 1), Image.Resampling.BOX))[0, 0])
        taken = [image]
        if shots > 1:
            taken = [shot(image.convert("RGB"), random) for _ in range(shots)]
        with torch.no_grad(), record.computing():
            batch = classifier.batch([np.asarray(each.convert("RGB")) for each in taken])
            rows.append(classifier.features(batch).float().numpy())
    number = np.repeat(np.arange(len(chosen)), shots)
    classes = np.unique(source.targets[chosen], return_inverse=True)[1]
    found = Seen(np.concatenate(rows), classes[number], np.array(colours, float)[number], number)
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(kept, **found._asdict())
    return found


# What is printed of images that a head has not learned from


def evaluated(seen: Seen, draws: int) -> Iterator[dict]:
    """How often intervals hold, and equal models are called different, for each number of objects."""
    count = int(seen.objects.max()) + 1
    for asked in ASKED:
        held: dict[str, list[bool]] = {}
        different: dict[str, list[bool]] = {"before": [], "after": []}
        for seed in range(draws):
            order = np.random.default_rng(seed).permutation(count)
            every = order[2 * TAUGHT :]
            few = seen.some(np.isin(seen.objects, every[:asked]))
            others = seen.some(np.isin(seen.objects, every[asked:]))
            heads = []
            for learned in (order[:TAUGHT], order[TAUGHT : 2 * TAUGHT]):
                heads.append(_head(seen.some(np.isin(seen.objects, learned)), seen.y))
            given = [_answers(head, few, seen.y) for head in heads]
            truth = {m.name: m.value for m in classification(_answers(heads[0], others, seen.y))}
            for when, how in (("before", None), ("after", few.objects)):
                first, second = (replace(each, groups=how) for each in given)
                for metric in classification(first):
                    if metric.interval is not None and metric.name in truth:
                        low, high = metric.interval
                        name = f"{metric.name}, {when}"
                        held.setdefault(name, []).append(low <= truth[metric.name] <= high)
                p = exchanged(first.right, second.right, how)
                different[when].append(p < CHANCE)
        yield {
            "objects": asked,
            "shots": int(np.bincount(seen.objects).max()),
            "draws": draws,
            **{f"interval holds: {name}": _percent(values) for name, values in held.items()},
            **{f"equal, called different: {when}": _percent(v) for when, v in different.items()},
        }


def _head(learned: Seen, classes: np.ndarray) -> Callable[[np.ndarray], torch.Tensor]:
    """A closed-form head's logits for every class of the set: very low for those it has not learned."""
    known, y = np.unique(learned.y, return_inverse=True)
    fitted = fit_probe("linear", learned.x, y, len(known), groups=learned.objects)

    def logits(x: np.ndarray) -> torch.Tensor:
        found = torch.full((len(x), int(classes.max()) + 1), -30.0)
        found[:, known] = fitted.logits(torch.tensor(x)).float()
        return found

    return logits


def _answers(head: Callable, asked: Seen, classes: np.ndarray) -> Answers:
    labels = tuple(str(k) for k in range(int(classes.max()) + 1))
    store = Arrays("x", np.zeros((len(asked.y), 1, 1), np.uint8))
    rows = np.arange(len(asked.y))
    source = Source(store, rows, asked.y.astype(np.int64), labels, groups=asked.objects)
    model = Classifier(torch.nn.Linear(1, 1), Preprocessing(size=(1, 1)), labels)
    return answers_of_logits(model, source, head(asked.x))


# What is printed of left-out answers to numbers, and to several classes an image


def left_out(seen: Seen, kind: str, draws: int) -> Iterator[dict]:
    """How often the intervals of left-out answers hold. kind: "bright", "red", "digit" or "several"."""
    y = _targets(seen, kind)
    asked = Probing("number", ("0",), np.zeros(0, np.int64))
    if kind == "several":
        asked = Probing("classes", tuple("abcde"), np.arange(SEVERAL))
    count = int(seen.objects.max()) + 1
    each = int(np.bincount(seen.objects).max())
    for images in LEARNED:
        held: dict[str, list[bool]] = {}
        values: dict[str, list[float]] = {}
        for seed in range(draws):
            order = np.random.default_rng(seed).permutation(count)
            inside = np.isin(seen.objects, order[: images // each])
            learned = Features(seen.x[inside], y[inside])
            if kind == "several" and not (learned.y.any(0) & ~learned.y.all(0)).all():
                continue  # a class that none has, or all have, teaches nothing
            groups = seen.objects[inside]
            fitted = asked.fit("linear", learned, groups)
            reached = asked.quality(
                "left_out", fitted.logits(torch.tensor(seen.x[~inside])), y[~inside]
            )
            truth = {metric.name: metric.value for metric in reached}
            printed = {
                "before": asked.quality("left_out", fitted.left_out, learned.y),
                "after": asked.left_out_quality(fitted, learned.y, groups),
            }
            for when, metrics in printed.items():
                for metric in metrics:
                    _note(held, values, metric, truth[metric.name], when)
        yield {
            "target": kind,
            "images": images,
            "objects": images // each,
            "draws": len(next(iter(held.values()))),
            **{f"interval holds: {name}": _percent(found) for name, found in held.items()},
            **{name: round(float(np.mean(found)), 4) for name, found in values.items()},
        }


def _note(held: dict, values: dict, metric: Metric, truth: float, when: str) -> None:
    """Whether a printed interval holds the truth, and how far the printed value is from it."""
    name = f"{metric.name.rpartition('/')[2]}, {when}"
    low, high = metric.interval or (metric.value, metric.value)
    held.setdefault(name, []).append(low <= truth <= high)
    values.setdefault(f"difference: {name}", []).append(metric.value - truth)
    values.setdefault(f"interval's width: {name}", []).append(high - low)


def _targets(seen: Seen, kind: str) -> np.ndarray:
    """What is learned of each image: a number, (N,), or several classes, ones and zeros (N, 5)."""
    if kind == "bright":
        return seen.colours.mean(1)
    if kind == "red":
        return seen.colours[:, 0] - seen.colours[:, 2]
    if kind == "digit":
        return seen.y.astype(np.float64)
    random = np.random.default_rng(0)
    sets = [random.permutation(int(seen.y.max()) + 1)[:size] for size in range(1, SEVERAL + 1)]
    return np.stack([np.isin(seen.y, own) for own in sets], 1).astype(np.float64)


def _percent(values: list[bool]) -> float:
    return round(100 * float(np.mean(values)), 1)
