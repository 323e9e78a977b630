"""What is said of a solved head while a model is made of a folder of photographs."""

from vitkit.evaluation import Features, Metric, Probing
from vitkit.quick.folder import look_alikes
from vitkit.quick.guessing import guess

COMPARED = 10_000  # images to learn from that are compared with each other
# What the main metric is called: of classes of unequal size, and of other targets
BALANCED = "balanced accuracy (the mean of the classes' own)"
MEANS = {"classes": "mean average precision", "number": "mean error"}


def left_out_sentences(asked: Probing, metric: Metric, learned: Features) -> list[str]:
    """How good the solved head is by fits without each image, and what makes it look better than it
    is."""
    if asked.balanced:
        how_good = f"fits without an image answer it with a {BALANCED} of {metric.text()}"
    elif asked.kind == "class":
        how_good = f"{metric.text()} of the images are answered right by fits without them"
    else:
        how_good = f"fits without an image answer it with a {MEANS[asked.kind]} of {metric.text()}"
    sentences = [f"its head is solved for, not trained: {how_good}"]
    blind = guess(asked, learned.y)
    if blind is not None and blind.explains(metric):
        sentences.append(
            f"that is not clearly better than a guess ({blind.words}): the features of these weights "
            "hardly know the classes"
        )
    repeated = 0
    if len(learned.x) <= COMPARED:
        repeated = int(look_alikes(learned.x).sum())
    if repeated:
        sentences.append(
            f"{repeated:,} of the images to learn from look the same as another of them, so this is "
            "too good: vitkit data review shows them"
        )
    return sentences


def test_sentences(asked: Probing, metric: Metric, learned: Features, given: Features) -> list[str]:
    """How good the solved head is on images to test on, and how many of those are also learned from,
    for all that the model can see."""
    count = len(given.y)
    if asked.balanced:
        sentences = [f"on the {count:,} images to test on it has a {BALANCED} of {metric.text()}"]
    elif asked.kind == "class":
        sentences = [f"it is right on {metric.text()} of the {count:,} images to test on"]
    else:
        mean = MEANS[asked.kind]
        sentences = [f"on the {count:,} images to test on it has a {mean} of {metric.text()}"]
    alike = int(look_alikes(learned.x, given.x).sum())
    if alike:
        sentences.append(
            f"{alike:,} of them look the same as one to learn from, so that is too good: vitkit data "
            "review shows them"
        )
    return sentences
