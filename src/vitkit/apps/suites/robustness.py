"""The robustness suite: ImageNet's validation images with their original and other labels, and data
sets that measure the remaining accuracy on other photographs, drawings and corrupted images."""

from statistics import mean

from vitkit.apps.suites.images import REAL
from vitkit.apps.suites.running import Outcome
from vitkit.apps.suites.table import over_seeds
from vitkit.apps.suites.task import Suite, Task
from vitkit.evaluation import ALEXNET, COMMON, SETS, relative_error
from vitkit.evaluation.benchmarks.corruptions import Corruption
from vitkit.evaluation.benchmarks.named import IMAGENET_C, SetName

GROUP_C = "ImageNet-C"

# Names of the data sets' folders: this suite's, then those of their archives
VAL = ("imagenet/val", "imagenet", "ILSVRC/Data/CLS-LOC/val")
FOLDERS: dict[SetName, tuple[str, ...]] = {
    "imagenet": VAL,
    "imagenet-v2": ("imagenet-v2", "imagenetv2-matched-frequency-format-val"),
    "imagenet-a": ("imagenet-a",),
    "imagenet-r": ("imagenet-r",),
    "imagenet-sketch": ("imagenet-sketch", "sketch"),
    "objectnet": ("objectnet", "objectnet-1.0"),
}


TITLES: dict[SetName, str] = {"imagenet": "ImageNet"}


def _published(name: SetName) -> Task:
    """The task of a data set with its own protocol."""
    known = SETS[name]
    return Task(
        name,
        title=TITLES.get(name, known.title),
        test=known.images,
        source=known.source,
        rule=known.protocol,
        named=name,
        folders=FOLDERS[name],
    )


def _corruption(name: Corruption) -> Task:
    """The task of one of ImageNet-C's corruptions."""
    return Task(
        f"imagenet-c/{name}",
        GROUP_C,
        name.replace("_", " "),
        test=IMAGENET_C.images,
        source=f"{IMAGENET_C.source} (noise.tar, blur.tar, weather.tar, digital.tar)",
        named="imagenet",
        folders=("imagenet-c", "ImageNet-C"),
        corruption=name,
    )


def _remarks(outcome: Outcome) -> list[str]:
    """Sentences with mCE and relative mCE, if every corruption has a result."""
    errors = {}
    for name in COMMON:
        seeds = outcome.metrics.get(f"imagenet-c/{name}")
        if seeds is None:
            return []
        errors[name] = 1 - over_seeds(seeds[0]).value
    mce = mean(error / ALEXNET[name] for name, error in errors.items())
    texts = [f"mCE, the mean of CE over ImageNet-C's fifteen corruptions, is {100 * mce:.1f} %"]
    if "imagenet" in outcome.metrics:
        clean = 1 - over_seeds(outcome.metrics["imagenet"][0]).value
        relative = mean(relative_error(error, clean, name) for name, error in errors.items())
        texts.append(
            "relative mCE, of what corruption adds to the error on ImageNet, is "
            f"{100 * relative:.1f} %"
        )
    return texts


ROBUSTNESS = Suite(
    "robustness",
    (
        _published("imagenet"),
        Task(
            "real",
            title="ReaL",
            test=SETS["imagenet"].images,
            source=f"{SETS['imagenet'].source}, and real.json of {REAL}",
            rule="an answer is right if it is in the image's list; images without a list are left out",
            named="imagenet",
            folders=VAL,
            asks_real=True,
        ),
        _published("imagenet-v2"),
        _published("imagenet-a"),
        _published("imagenet-r"),
        _published("imagenet-sketch"),
        _published("objectnet"),
        *map(_corruption, COMMON),
    ),
    hint=(
        "the data sets lie there in folders called "
        f"{', '.join(names[0] for names in FOLDERS.values())} and imagenet-c (or as their archives "
        "call them), beside ReaL's real.json"
    ),
    averaged=False,
    same_images=(GROUP_C,),
    remarks=_remarks,
)
