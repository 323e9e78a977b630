"""How many images of another kind a model calls unknown, and how many that it knows.

A linear probe learns a data set. Test images of the set are to be known; unknown are those of every other
set that shares no class with it, and images without a subject: single colours, white noise, text, and
photographs that are blurred or nearly black. Each class of a set is kept away in turn, too: its images are
close to what is known (of many classes, those with the most test images).

`auroc` is the share of pairs, of an unknown and a known image, in which the unknown one is the stranger;
`rejected` the share of known images that are called unknown, where 5 % is allowed, and `worst` that of the
class with the highest, over all draws of images to learn from; `detected` the share of unknown ones.

`changed` is the share of known images that are called unknown after they were made smaller and saved as JPEG.

Two heads read the features: `token`, the class token of the last block, and `blocks`, several states of all
blocks. WAYS are scores and rules; `product` is
vitkit's own, and `before` what it was until version 0.1. To choose among them and to judge by the same images
would flatter the choice: `choice` has the way that finds the most on one half of the data sets, and what it
finds on the other half.

    python benchmarks/unknown.py --model WEIGHTS --data SET ... --output FILE
"""

import argparse
import io
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import record
import torch
from PIL import Image, ImageDraw, ImageFilter, ImageFont
from sklearn.datasets import load_sample_images
from sklearn.metrics import roc_auc_score
from torch import Tensor

from vitkit.data import Source, open_parts, subset
from vitkit.evaluation import compute_features, fit_probe, fit_unknown, last_token
from vitkit.evaluation.probes.unknown import (
    ENOUGH,
    REJECTED,
    conformal_limit,
    fit_limits,
    left_out_distances,
    whitened_classes,
)
from vitkit.models import ViTConfig
from vitkit.system.machine import autocast
from vitkit.weights import Classifier, direction_and_length, fitted_to, load

PACKAGES = ("torch", "numpy", "scikit-learn", "vitkit")
MANY = 50  # classes from which on the first ten and the last ten are sets of their own
TEN = 10
LEARNED = 40  # images of a class to learn from, at most, and half of all
UNKNOWN = 100  # images of another set, at most
CHANGED = 40  # images of a set that are made smaller and saved as JPEG
MADE = 20  # images of each kind without a subject
BATCH = 50
NEIGHBOUR = 5
# Sets of overlapping classes, of which none is unknown to a model of another one: by a part of their names
OVERLAPS = (
    ("cifar10", "tiny_imagenet", "imagenet_val", "tin_box"),
    ("ants_bees", "tiny_imagenet_1k"),
)


class Images(NamedTuple):
    """The features of a data set, (N, F), the class of each image, (N,), or None without classes."""

    x: Tensor
    y: np.ndarray | None
    which: np.ndarray
    """The images, of these, that were also changed, (n,),"""
    changed: Tensor
    """and their features then, (n, F)."""


class Fit(NamedTuple):
    """What is learned from: the features that a head reads, (N, F), classes (N,), and the head."""

    x: Tensor
    y: Tensor
    logits: Callable[[Tensor], Tensor]
    left_out: Tensor
    last: tuple[int, int]
    """The class token of the last block, as `last_token` has it,"""
    middle: tuple[int, int]
    """and that of one in the middle; the same if the head reads one block."""


Excess = Callable[[Tensor], Tensor]  # features (M, F) -> (M,), above 0 for an unknown image


def main(argv: list[str] | None = None) -> dict:
    options = arguments().parse_args(argv)
    about = record.about(__doc__.partition("\n")[0], PACKAGES)
    classifier = reading_all_blocks(load(options.model, quiet=True))
    sets = {}
    for data in options.data:
        sets |= images_of(classifier, data, options.images)
        print(f"features of {data}", flush=True)
    made = {kind: computed(classifier, images) for kind, images in made_images().items()}
    trials = []
    for name, known in sets.items():
        if known.y is None or len(np.unique(known.y)) < 2:
            continue
        others = {other: each.x for other, each in sets.items() if not overlap(name, other)}
        for head in ("token", "blocks"):
            for seed in range(options.draws):
                of_others = trial(classifier, head, known, others | made, seed)
                trials += [{"known": name, "head": head, **each} for each in of_others]
        print(name, show(trials, name), flush=True)
    content = {
        **about,
        "summary": summary(trials, made),
        "choice": choice(trials),
        "sets": by_set(trials),
        "pairs": by_pair(trials),
    }
    for head, ways in content["summary"].items():
        for way, numbers in ways.items():
            print(head, way, numbers)
    print(content["choice"])
    record.write(content, options.output)
    return content


def arguments() -> argparse.ArgumentParser:
    parser = record.parser(__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", nargs="+", required=True)
    parser.add_argument("--images", type=int, default=600, help="of a data set, at most")
    parser.add_argument("--draws", type=int, default=4, help="of images to learn from")
    parser.add_argument("--output", type=Path)
    return parser


# The images


def reading_all_blocks(classifier: Classifier) -> Classifier:
    """The model with a head of zeros that reads the class token and the mean of the patches of every
    block: the last block's class token is what the paper's head reads."""
    config = classifier.model.config
    if not isinstance(config, ViTConfig):
        raise ValueError(f"{type(classifier.model).__name__} has no class token in every block")
    wanted = replace(config, pool="token-gap", read_blocks=config.depth)
    return fitted_to(classifier, wanted, ("a", "b"))[0].for_inference()


def images_of(classifier: Classifier, data: str, most: int) -> dict[str, Images]:
    """The images of a data set, of all its parts; of one of many classes, ordered by kind as WordNet's
    are, those of the first ten and of the last ten classes."""
    name = Path(data).name.partition(".parquet")[0].rstrip("-*")
    sources = list(open_parts(data).sources.values())
    classes = [source.targets for source in sources if source.target_kind == "class"]
    if not classes:
        return {name: read(classifier, sources, most)}
    present = np.unique(np.concatenate(classes))
    if len(present) < MANY or len(np.concatenate(classes)) < 5 * most:
        return {name: read(classifier, sources, most)}
    return {
        f"{name}, first ten classes": read(classifier, sources, most, present[:TEN]),
        f"{name}, last ten classes": read(classifier, sources, most, present[-TEN:]),
    }


def read(
    classifier: Classifier, sources: list[Source], most: int, classes: np.ndarray | None = None
) -> Images:
    """At most so many images, of these classes if some are given."""
    random = np.random.default_rng(0)
    parts = []
    pixels = []
    for source in sources:
        rows = np.arange(len(source))
        if classes is not None:
            rows = np.flatnonzero(np.isin(source.targets, classes))
        part = subset(source, np.sort(random.permutation(rows)[: most // len(sources)]))
        with autocast(classifier.device, "float32"):
            parts.append(compute_features(classifier, part))
        pixels += [part.picture] * len(part)
    x = torch.from_numpy(np.concatenate([part.x for part in parts]))
    y = None
    if all(source.target_kind == "class" for source in sources):
        y = np.concatenate([part.y for part in parts])
    which = np.sort(random.permutation(len(x))[:CHANGED])
    starts = np.repeat(
        np.cumsum([0, *[len(part.x) for part in parts]])[:-1], [len(part.x) for part in parts]
    )
    changed = [smaller(pixels[i](int(i - starts[i])).pixels()) for i in which]
    return Images(x, y, which, computed(classifier, changed))


def computed(classifier: Classifier, images: list) -> Tensor:
    """The features of pictures, (n, F)."""
    rows = []
    for start in range(0, len(images), BATCH):
        rows.append(classifier.features(classifier.batch(images[start : start + BATCH])))
    return torch.cat(rows)


def smaller(pixels: np.ndarray) -> Image.Image:
    """A picture with three quarters of its sides, saved as JPEG of quality 60: as a messenger sends it."""
    image = Image.fromarray(pixels).convert("RGB")
    image = image.resize([max(3 * side // 4, 1) for side in image.size], Image.Resampling.BICUBIC)
    file = io.BytesIO()
    image.save(file, "JPEG", quality=60)
    return Image.open(file)


def made_images() -> dict[str, list[Image.Image]]:
    """Images without a subject that any model knows, by kind."""
    random = np.random.default_rng(0)
    side = 256
    kinds = {}
    for colour in ("black", "white", "grey", "red"):
        kinds[colour] = [Image.new("RGB", (side, side), colour)]
    noise = random.integers(0, 256, (MADE, side, side, 3), dtype=np.uint8)
    kinds["noise"] = [Image.fromarray(each) for each in noise]
    kinds["text"] = [_page(random, side) for _ in range(MADE)]
    photographs = [Image.fromarray(each) for each in load_sample_images().images]
    kinds["blur"] = []
    kinds["dark"] = []
    for i in range(MADE):
        photograph = photographs[i % len(photographs)]
        left, top = (int(random.integers(0, length - side)) for length in photograph.size)
        part = photograph.crop((left, top, left + side, top + side))
        kinds["blur"].append(part.filter(ImageFilter.GaussianBlur(side // 16)))
        kinds["dark"].append(part.point(lambda level: level // 25))
    return kinds


def _page(random: np.random.Generator, side: int) -> Image.Image:
    """A page of text."""
    page = Image.new("RGB", (side, side), "white")
    size = int(random.integers(10, 28))
    letters = np.array(list("etaoinshrdlu     "))
    lines = ["".join(random.choice(letters, 2 * side // size)) for _ in range(side // size)]
    draw = ImageDraw.Draw(page)
    draw.multiline_text((4, 4), "\n".join(lines), fill="black", font=ImageFont.load_default(size))
    return page


def overlap(name: str, other: str) -> bool:
    """Whether two data sets share classes."""
    if name == other:
        return True
    if name.partition(",")[0] == other.partition(",")[0]:
        return False  # the first and the last ten classes
    return any(
        any(part in name for part in each) and any(part in other for part in each)
        for each in OVERLAPS
    )


# A trial: images to learn from, and others


def trial(
    classifier: Classifier, head: str, known: Images, others: dict[str, Tensor], seed: int
) -> Iterator[dict]:
    """What each way reaches against each other set, and with one class kept away."""
    random = np.random.default_rng(seed)
    order = random.permutation(len(known.x))
    learned = drawn(known.y[order])
    is_learned = np.zeros(len(order), dtype=bool)
    is_learned[order[learned]] = True
    changed = known.changed[~is_learned[known.which]]
    fit = fitted(classifier, head, known.x[is_learned], known.y[is_learned])
    classes = np.unique(known.y[is_learned])
    new = ~is_learned & np.isin(known.y, classes)
    y = np.searchsorted(classes, known.y[new])
    for way, score in WAYS.items():
        excess = score(fit)
        of_known = excess(reads(classifier, head, known.x[new]))
        is_rejected = (of_known > 0).double()
        each = {
            "way": way,
            "rejected": is_rejected.mean().item(),
            "of classes": {
                int(classes[k]): is_rejected[y == k].mean().item() for k in np.unique(y)
            },
            "changed": (excess(reads(classifier, head, changed)) > 0).double().mean().item(),
        }
        for name, x in others.items():
            found = excess(reads(classifier, head, x[:UNKNOWN]))
            yield {"unknown": name, **each, **against(of_known, found)}

    # Without one class, each in its turn
    if len(classes) < 3:
        return
    away = classes[seed % len(classes)]
    kept = is_learned & (known.y != away)
    fit = fitted(classifier, head, known.x[kept], known.y[kept])
    for way, score in WAYS.items():
        excess = score(fit)
        of_known = excess(reads(classifier, head, known.x[new & (known.y != away)]))
        found = excess(reads(classifier, head, known.x[known.y == away][:UNKNOWN]))
        yield {"unknown": AWAY, "way": way, **against(of_known, found)}


AWAY = "a class kept away"


def drawn(y: np.ndarray) -> np.ndarray:
    """Of images in random order, the first LEARNED of each class, and half of them at most."""
    rows = []
    for k in np.unique(y):
        members = np.flatnonzero(y == k)
        rows.append(members[: min(LEARNED, (len(members) + 1) // 2)])
    return np.concatenate(rows)


def against(of_known: Tensor, found: Tensor) -> dict[str, float]:
    truth = np.r_[np.zeros(len(of_known)), np.ones(len(found))]
    excess = torch.cat([of_known, found]).nan_to_num(posinf=1e9, neginf=-1e9)
    return {
        "auroc": roc_auc_score(truth, excess),
        "detected": (found > 0).double().mean().item(),
    }


def reads(classifier: Classifier, head: str, x: Tensor) -> Tensor:
    """What the head reads, of the features of all blocks."""
    if head == "blocks":
        return x
    start, width = last_token(classifier)
    return x[:, start : start + width]


def fitted(classifier: Classifier, head: str, x: Tensor, y: np.ndarray) -> Fit:
    """The head on these images."""
    classes, y = np.unique(y, return_inverse=True)
    x = reads(classifier, head, x)
    solved = fit_probe("linear", x.numpy(), y, len(classes))
    last = (0, x.shape[1])
    middle = last
    if head == "blocks":
        last = last_token(classifier)
        config = classifier.model.config
        middle = (config.pooled_width // config.depth * max(config.depth // 2 - 1, 0), last[1])
    left_out = solved.left_out.double()
    y = torch.from_numpy(y)
    return Fit(x, y, lambda x: solved.logits(x).double(), left_out, last, middle)


# The ways


def product(fit: Fit) -> Excess:
    """As a model says it."""
    limits = fit_unknown(fit.x, fit.y, fit.left_out, told_by=fit.last)
    return lambda x: limits.excess(x.double(), fit.logits(x))


class Strangeness(NamedTuple):
    """How strange images are to each class: those that are learned from, left out, (N, K), and others."""

    left_out: Tensor
    of: Callable[[Tensor], Tensor]


def distances(
    fit: Fit, unit: bool, sure: float, is_capped: bool = True, middle: bool = False
) -> Strangeness:
    """The distance to the mean of a class, and at this weight how low its logit is, as `fit_unknown` has
    it. unit: whether features are compared by direction and length. middle: of a middle block too."""
    places = [fit.last]
    if middle:
        places = [fit.middle, fit.last]

    def compared(x: Tensor) -> Tensor:
        states = [x[:, start : start + width].double() for start, width in places]
        if unit:
            states = [direction_and_length(state) for state in states]
        return torch.cat(states, 1)

    x = compared(fit.x)
    count = fit.left_out.shape[1]
    means, whitening, centre = whitened_classes(x, fit.y, count)
    left_out = left_out_distances((x - centre) @ whitening, means, fit.y).sqrt()
    distance = left_out.gather(1, fit.y[:, None])[:, 0]
    logit = fit.left_out.gather(1, fit.y[:, None])[:, 0]
    far = 1 / distance[distance.isfinite()].std(correction=0).clamp(min=1e-9)
    sure = sure / logit.std(correction=0).clamp(min=1e-9)
    typical = logit.mean() if is_capped else torch.inf

    def of(x: Tensor) -> Tensor:
        to_means = torch.cdist((compared(x) - centre) @ whitening, means)
        return far * to_means - sure * fit.logits(x).clamp(max=typical)

    return Strangeness(far * left_out - sure * fit.left_out.clamp(max=typical), of)


def neighbours(fit: Fit) -> Strangeness:
    """The cosine to the fifth neighbour of all that is learned from: strange to the likeliest class."""

    def directions(x: Tensor) -> Tensor:
        state = x[:, fit.last[0] : fit.last[0] + fit.last[1]].double()
        return torch.nn.functional.normalize(state)

    def of_likeliest(cosines: Tensor, logits: Tensor) -> Tensor:
        values = -cosines.topk(min(NEIGHBOUR, cosines.shape[1]), dim=1).values[:, -1:]
        is_likeliest = logits == logits.amax(1, keepdim=True)
        return values.expand(logits.shape).where(is_likeliest, torch.inf)

    own = directions(fit.x)
    cosines = own @ own.mT
    cosines.fill_diagonal_(-1)
    return Strangeness(
        of_likeliest(cosines, fit.left_out),
        lambda x: of_likeliest(directions(x) @ own.mT, fit.logits(x)),
    )


def length(fit: Fit) -> Strangeness:
    """How far the length of the features is from the mean one."""
    lengths = fit.x.double().norm(dim=1, keepdim=True)
    return Strangeness(
        (lengths - lengths.mean()).abs(),
        lambda x: (x.double().norm(dim=1, keepdim=True) - lengths.mean()).abs(),
    )


def within_any(fit: Fit, strangeness: Strangeness) -> Excess:
    """An image is known if it is within the limit of any class."""
    own = strangeness.left_out.gather(1, fit.y[:, None])[:, 0]
    of_all = conformal_limit(own[own.isfinite()], 1 - REJECTED)
    limits = torch.full((fit.left_out.shape[1],), of_all, dtype=torch.float64)
    for k in range(len(limits)):
        if (fit.y == k).sum() >= ENOUGH:
            limits[k] = conformal_limit(own[fit.y == k], 1 - REJECTED)
    return lambda x: (strangeness.of(x) - limits).amin(1)


def of_nearest(fit: Fit, strangeness: Strangeness) -> Excess:
    """The limit of the nearest class decides."""
    limits = fit_limits(strangeness.left_out, fit.y)

    def excess(x: Tensor) -> Tensor:
        least, nearest = strangeness.of(x).min(1)
        return least - limits[nearest]

    return excess


def common(fit: Fit, strangeness: Strangeness) -> Excess:
    """One limit for all."""
    limit = conformal_limit(strangeness.left_out.amin(1), 1 - REJECTED)
    return lambda x: strangeness.of(x).amin(1) - limit


WAYS: dict[str, Callable[[Fit], Excess]] = {
    "before": lambda fit: within_any(fit, distances(fit, False, 1.0, False)),
    "product": product,
    "before, limit of nearest": lambda fit: of_nearest(fit, distances(fit, False, 1.0, False)),
    "product, limit of any": lambda fit: within_any(fit, distances(fit, True, 0.5)),
    "product, one limit": lambda fit: common(fit, distances(fit, True, 0.5)),
    "distance alone": lambda fit: of_nearest(fit, distances(fit, True, 0.0)),
    "logit at full weight": lambda fit: of_nearest(fit, distances(fit, True, 1.0)),
    "a middle block too": lambda fit: of_nearest(fit, distances(fit, True, 0.5, middle=True)),
    "logit without a cap": lambda fit: of_nearest(fit, distances(fit, True, 0.5, False)),
    "neighbours": lambda fit: of_nearest(fit, neighbours(fit)),
    "length, one limit": lambda fit: common(fit, length(fit)),
}
# Those that promise 5 % of each class, of the last block, among which is chosen
PROMISE = [way for way in WAYS if "one limit" not in way and "middle" not in way]


# What is reported, in percent


def numbers(trials: list[dict]) -> dict[str, float]:
    """The means over pairs of sets."""
    result = {
        "auroc": round(mean(trials, "auroc"), 4),
        "detected": percent(trials, "detected"),
    }
    if "rejected" in trials[0]:
        result |= {
            "rejected": percent(trials, "rejected"),
            "worst": percent_of(worst(trials)),
            "changed": percent(trials, "changed"),
        }
    return result


def mean(trials: list[dict], key: str) -> float:
    return float(np.mean([each[key] for each in trials]))


def percent(trials: list[dict], key: str) -> float:
    return percent_of(mean(trials, key))


def percent_of(share: float) -> float:
    return round(100 * share, 1)


def worst(trials: list[dict]) -> float:
    """Of each known set, the class of which most were called unknown, over all draws; their mean."""
    highest = []
    for name in dict.fromkeys(each["known"] for each in trials):
        shares = {}
        for each in trials:
            if each["known"] == name:
                for k, share in each["of classes"].items():
                    shares.setdefault(k, []).append(share)
        highest.append(max(np.mean(each) for each in shares.values()))
    return float(np.mean(highest))


def chosen(trials: list[dict], **values: str) -> list[dict]:
    return [each for each in trials if all(each[key] == value for key, value in values.items())]


def summary(trials: list[dict], made: dict[str, Tensor]) -> dict:
    """By head and way: over other sets, over images without a subject, and over classes kept away."""
    result = {}
    for head in ("token", "blocks"):
        result[head] = {}
        for way in WAYS:
            own = chosen(trials, head=head, way=way)
            far = [each for each in own if each["unknown"] not in (AWAY, *made)]
            without = [each for each in own if each["unknown"] in made]
            near = chosen(own, unknown=AWAY)
            result[head][way] = {
                **numbers(far),
                "without a subject": percent(without, "detected"),
            }
            if near:
                result[head][way] |= {
                    "kept away, auroc": round(mean(near, "auroc"), 4),
                    "kept away": percent(near, "detected"),
                }
    return result


def choice(trials: list[dict]) -> list[dict]:
    """The way that finds the most on half of the known sets, and what it finds on the other half."""
    names = list(dict.fromkeys(each["known"] for each in trials))
    result = []
    for first in (names[::2], names[1::2]):
        for head in ("token", "blocks"):
            chose = {way: [] for way in PROMISE}
            judged = {way: [] for way in PROMISE}
            for each in chosen(trials, head=head):
                if each["way"] in PROMISE:
                    (chose if each["known"] in first else judged)[each["way"]].append(each)
            if not all(judged.values()):
                continue
            best = max(PROMISE, key=lambda way: mean(chose[way], "detected"))
            result.append(
                {
                    "head": head,
                    "chosen on": first,
                    "best": best,
                    "best finds of the others": percent(judged[best], "detected"),
                    "product finds of the others": percent(judged["product"], "detected"),
                    "before found of the others": percent(judged["before"], "detected"),
                }
            )
    return result


def by_set(trials: list[dict]) -> dict:
    """For each known set, before and now."""
    result = {}
    for name in dict.fromkeys(each["known"] for each in trials):
        for head in ("token", "blocks"):
            for way in ("before", "product"):
                own = chosen(trials, known=name, head=head, way=way)
                far = [each for each in own if each["unknown"] != AWAY]
                result[f"{name}, {head}, {way}"] = numbers(far)
    return result


def by_pair(trials: list[dict]) -> dict:
    """The share of each other set that is found, before and now, in percent."""
    result = {}
    for each in trials:
        if each["way"] in ("before", "product"):
            key = f"{each['known']}, {each['head']}, {each['way']}"
            result.setdefault(key, {}).setdefault(each["unknown"], []).append(each["detected"])
    return {
        key: {other: percent_of(float(np.mean(shares))) for other, shares in others.items()}
        for key, others in result.items()
    }


def show(trials: list[dict], name: str) -> str:
    texts = []
    for head in ("token", "blocks"):
        for way in ("before", "product"):
            own = chosen(trials, known=name, head=head, way=way)
            far = [each for each in own if each["unknown"] != AWAY]
            texts.append(f"{head}, {way}: {numbers(far)}")
    return "; ".join(texts)


if __name__ == "__main__":
    main()
