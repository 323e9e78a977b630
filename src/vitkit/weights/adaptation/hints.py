"""What the user says of a model (`Hints`), applied to it."""

from dataclasses import replace
from pathlib import Path

from vitkit.data import Preprocessing
from vitkit.models import ModelConfig, ViTConfig, called
from vitkit.weights.adaptation.adopting import adopt, preprocessing_for
from vitkit.weights.adaptation.channels import preprocessing_for_channels
from vitkit.weights.adaptation.fitting import at_stride
from vitkit.weights.adaptation.statements import Hints
from vitkit.weights.classifier import Classifier
from vitkit.weights.formats.shapes import STATISTICS
from vitkit.weights.labels import counted

PREPROCESSING = ("statistics", "resize", "crop", "interpolation")  # hints about it
LONGEST_LABELS = 50_000_000  # bytes of a file of names; ImageNet-21k's has half a million


def check_heads(source: Path | str, config: ModelConfig, heads: int | None) -> None:
    """Raises ValueError if a model has not so many attention heads, though the user says so."""
    if heads is None:
        return
    if not isinstance(config, ViTConfig):
        raise ValueError(
            f"{source} is {called(config)}, which has no attention heads; leave out --heads"
        )
    if config.heads != heads:
        raise ValueError(
            f"{source} says that it has {config.heads} attention heads, not {heads}; leave out "
            "--heads"
        )


def with_pool(config: ModelConfig, pool: str | None) -> ModelConfig:
    """The configuration with what the user says that the head reads. Raises ValueError for a model
    that cannot read it."""
    if pool is None or getattr(config, "pool", None) == pool:
        return config
    if not isinstance(config, ViTConfig) or config.pool not in ("token", "gap", "corner"):
        raise ValueError(f"its weights say what the head reads, and not {pool!r}; leave out --pool")
    if pool == "token" and not config.has_class_token:
        raise ValueError("it has no class token that the head could read; leave out --pool token")
    return replace(config, pool=pool, class_token=config.has_class_token)


def apply_hints(classifier: Classifier, hints: Hints) -> tuple[Classifier, list[str]]:
    """The model for the images and with the preprocessing and labels that the user says; and what
    that changed, in sentences.

    Raises ValueError for a size that the model cannot have, and for labels that are not as many as
    its classes.
    """
    sentences = []
    if hints.channels:
        classifier, sentences = adopt(classifier, channels=hints.channels)
    if hints.stride:
        classifier, changes = at_stride(classifier, hints.stride, hints.image or None)
        sentences += changes
    if hints.image:
        classifier, changes = adopt(classifier, image=hints.image)
        sentences += changes
        if classifier.preprocessing.size != hints.image:  # the file's is for another size
            preprocessing = preprocessing_for(classifier.preprocessing, hints.image)
            classifier = replace(classifier, preprocessing=preprocessing, unknown=None)

    told = [name for name in PREPROCESSING if getattr(hints, name) is not None]
    if told:
        preprocessing = changed_preprocessing(classifier.preprocessing, hints)
        classifier = replace(classifier, preprocessing=preprocessing, unknown=None)
        words = ", ".join(f"{name} {getattr(hints, name)}" for name in told)
        sentences.append(f"preprocessing: {words}, as you say")

    if hints.labels:
        labels = read_labels(hints.labels, classifier.model.config.classes)
        classifier = replace(classifier, labels=labels)
        sentences.append(f"labels: those of {hints.labels}, as you say")
    return classifier, sentences


def changed_preprocessing(preprocessing: Preprocessing, hints: Hints) -> Preprocessing:
    """A preprocessing with what the user says of it."""
    if hints.statistics:
        colours = replace(preprocessing, **STATISTICS[hints.statistics])
        preprocessing = preprocessing_for_channels(colours, preprocessing.channels)
    if hints.interpolation:
        preprocessing = replace(preprocessing, interpolation=hints.interpolation)
    if hints.crop == "whole":
        return replace(preprocessing, rule="square", resize=0)

    # A square that is not resized to another size has no crop yet
    cuts = hints.crop == "centre" or hints.resize is not None
    if cuts and not (preprocessing.rule == "square" and preprocessing.resize):
        preprocessing = replace(preprocessing, rule="shorter")
    if hints.resize is not None:
        preprocessing = replace(preprocessing, resize=hints.resize)
    return preprocessing


def read_labels(file: Path, classes: int) -> tuple[str, ...]:
    """The names in a text file, one a line. Raises ValueError unless there is one for each class,
    none empty."""
    if not file.is_file():
        raise ValueError(f"the file of labels {file} does not exist, or is no file")
    if file.stat().st_size > LONGEST_LABELS:
        raise ValueError(f"{file} has {file.stat().st_size:,} bytes: too long for names of classes")
    try:
        lines = file.read_text("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"the labels in {file} are not UTF-8 text: {error}") from None
    names = tuple(line.strip() for line in lines)
    if len(names) != classes:
        raise ValueError(
            f"{file} has {len(names):,} lines for a head of {counted(classes)}; give the name of a "
            "class on each line"
        )
    if "" in names:
        raise ValueError(f"line {names.index('') + 1} of {file} is empty; it is to name a class")
    return names
