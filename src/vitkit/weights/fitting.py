"""Fit weights to what is requested: a configuration, as far as weights allow it (`--init`), or the
user's settings of a model (`Hints`)."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from vitkit.data import Preprocessing, squarest
from vitkit.data.images.preprocessing import Rule
from vitkit.models import Grid, ModelConfig, Tiling, ViTConfig, called, with_stride
from vitkit.system.errors import BadSettings, Unsupported
from vitkit.weights.adoption import (
    adopt,
    preprocessing_for,
    preprocessing_for_channels,
    rebuilt,
    size_sentences,
    with_zero_head,
)
from vitkit.weights.classifier import Classifier, check_native, check_own_weights
from vitkit.weights.formats.shapes import STATISTICS
from vitkit.weights.hints import Hints, Pool
from vitkit.weights.outputs import counted_classes

# Hints on preprocessing
PREPROCESSING = (
    "statistics",
    "resize",
    "crop",
    "tokens",
    "interpolation",
)
LONGEST_LABELS = 50_000_000  # bytes of a file of names; that of ImageNet-21k has half a million


def check_pretrained(classifier: Classifier, name: str) -> None:
    """Raises Unsupported for a model of good images, called `name`: it has the first blocks of another model,
    whose weights are the ones to begin with."""
    config = classifier.model.config
    if not isinstance(config, ViTConfig) or not config.pooling.compares_patches:
        return
    begin = classifier.origin.get("init", "published weights")
    raise Unsupported(
        f"{name} is a model of good images: the first blocks of other weights, and a memory bank. It is not "
        f"fine-tuned; begin with those weights ({begin})"
    )


# A configuration


def fitted_to(
    classifier: Classifier, config: ModelConfig, labels: Sequence[str]
) -> tuple[Classifier, list[str]]:
    """Fit a model to the labels and a configuration: a new head, and the configuration's image size,
    channels and stride. Other differences remain. Returns the model with sentences on what changed.

    Positions are resampled by the configuration's method. Queries, keys and values without biases get
    biases of zeros if the configuration has them. The head gets the configuration's pooling if both it
    and the model's own extend the class token, or if it reads every patch. Raises VitkitError as `adopt` does.
    """
    sentences = []
    method = getattr(config, "resample", None)
    own = classifier.model.config
    if isinstance(config, ViTConfig) and isinstance(own, ViTConfig):
        ours = config.tiling  # in pixels
        if own.tiling.size == ours.size and own.tiling.stride != ours.stride:
            classifier, changes = at_stride(classifier, ours.stride, config.image, method)
            sentences += changes
        if config.qkv_bias and not own.qkv_bias:
            with_biases = replace(own, qkv_bias=True)
            model = rebuilt(
                classifier.model, with_biases, zeros=r"blocks\.\d+\.attention\.qkv\.bias"
            )
            classifier = replace(classifier, model=model)
            sentences.append("newly made: biases of queries, keys and values, all zeros")
    adopted, changes = adopt(
        classifier,
        labels=labels,
        image=config.image,
        channels=config.channels,
        method=method,
        new_head=True,
    )
    sentences += changes
    return _with_pooling_of(adopted, config, sentences)


def over_patches(config: ViTConfig, blocks: int = 1) -> ViTConfig:
    """The configuration with a head that reads every patch of the last blocks, and classifies pixels."""
    return replace(
        config,
        pool="patches",
        class_token=config.has_class_token,
        read_blocks=blocks,
        memory=0,
        norm="tokens",
        representation=0,
        head_bias=0.0,
    )


def _with_pooling_of(
    classifier: Classifier, config: ModelConfig, sentences: list[str]
) -> tuple[Classifier, list[str]]:
    """Give the model's new head the pooling of a configuration, if that is possible."""
    before = classifier.model.config
    if not isinstance(config, ViTConfig) or not isinstance(before, ViTConfig):
        return classifier, sentences
    if config.segments and not before.segments:
        sentences.append(f"the new head reads {config.reads} (pooling), not {before.reads}")
        own = replace(over_patches(before, config.read_blocks), classes=before.classes)
        model = rebuilt(classifier.model, own, zeros=r"head\.")
        return replace(classifier, model=model), sentences
    wanted = (config.pool, config.read_blocks)
    if not (config.pooling.extends_class_token and before.pooling.extends_class_token):
        return classifier, sentences
    if wanted == (before.pool, before.read_blocks):
        return classifier, sentences
    own = replace(before, pool=config.pool, read_blocks=config.read_blocks)
    sentences.append(f"the new head reads {own.reads} (pooling), not {before.reads}")
    return replace(classifier, model=with_zero_head(classifier.model, own)), sentences


def at_stride(
    classifier: Classifier,
    stride: int | Grid | None,
    image: Grid | None = None,
    method: str | None = None,
) -> tuple[Classifier, list[str]]:
    """Give a model another stride of its patches; returns it with sentences on what changed.

    `stride` is in pixels, also for a hybrid; None is the size of a patch, so that patches do not overlap.
    The projection of patches is unchanged. Positions are resampled to the new grid (`method` is one of
    RESAMPLE; by default that of the model's source). Without `image`, the new size is the largest one, up
    to the model's own, that the patches cover, and the preprocessing is adapted. The model's own stride
    changes nothing. All weights but the positions are shared with the classifier, not copied.

    Raises VitkitError for a model that is not a Vision Transformer, for a size that the patches do not
    cover, for a stride between the positions of a hybrid's feature map, and for a model that was made for
    inference or that another library changed.
    """
    old = classifier.model
    check_own_weights(old)
    if not isinstance(old.config, ViTConfig):
        raise BadSettings(
            f"a {old.config.title} has no patches, so there is no stride; leave it out"
        )
    new = with_stride(old, stride, image, method)
    if new.config == old.config:
        return classifier, []
    size, apart = new.config.tiling
    sentences = [
        f"patches of {size[0]} x {size[1]} pixels every {apart[0]} x {apart[1]}, cut by the same "
        "projection",
        *size_sentences(old, new),
    ]
    preprocessing = classifier.preprocessing
    if new.config.image != old.config.image:
        preprocessing = preprocessing_for(preprocessing, new.config.image)
    changed = replace(classifier, model=new, preprocessing=preprocessing, unknown=None)
    return changed, sentences


# Settings of the user


def apply_hints(classifier: Classifier, hints: Hints) -> tuple[Classifier, list[str]]:
    """Apply the user's settings for images, preprocessing and labels to a model; returns it with sentences
    on what changed.

    Raises VitkitError for a size that the model does not support, and for labels that are not as many as
    its classes.
    """
    sentences: list[str] = []
    if hints.channels:
        classifier, sentences = adopt(classifier, channels=hints.channels)
    if hints.stride:
        classifier, changes = at_stride(classifier, hints.stride, hints.image or None)
        sentences += changes
    if hints.image:
        classifier, changes = adopt(classifier, image=hints.image)
        sentences += changes
        # The file's preprocessing may have another size than the model
        if classifier.preprocessing.size != hints.image:
            preprocessing = preprocessing_for(classifier.preprocessing, hints.image)
            classifier = replace(classifier, preprocessing=preprocessing, unknown=None)

    given = [name for name in PREPROCESSING if getattr(hints, name) is not None]
    if given:
        config = classifier.model.config
        preprocessing = changed_preprocessing(classifier.preprocessing, hints, config)
        classifier = replace(classifier, preprocessing=preprocessing, unknown=None)
        words = ", ".join(f"{name} {getattr(hints, name)}" for name in given)
        sentences.append(f"preprocessing: {words}, as set")

    if hints.labels:
        labels = _read_labels(hints.labels, classifier.model.config.classes)
        classifier = replace(classifier, labels=labels)
        sentences.append(f"labels: those of {hints.labels}, as set")
    return classifier, sentences


def changed_preprocessing(
    preprocessing: Preprocessing, hints: Hints, config: ModelConfig
) -> Preprocessing:
    """Apply the user's settings to a preprocessing, for a model with this configuration. Raises
    VitkitError for images in their own aspect ratios, if the model cannot read them."""
    if hints.statistics:
        colours = replace(preprocessing, **STATISTICS[hints.statistics])
        preprocessing = preprocessing_for_channels(colours, preprocessing.channels)
    if hints.interpolation:
        preprocessing = replace(preprocessing, interpolation=hints.interpolation)
    crops = hints.crop in ("whole", "centre") or hints.resize is not None
    if crops and preprocessing.is_native:  # its size defines the number of patches, not of pixels
        preprocessing = replace(preprocessing, rule="shorter", size=config.image)
    if hints.crop == "whole":
        return replace(preprocessing, rule="square", resize=0)
    if hints.crop == "native" or hints.tokens:
        return at_own_proportions(preprocessing, config, hints.tokens)

    # A square that is resized to its own size has no crop yet
    cuts = hints.crop == "centre" or hints.resize is not None
    if cuts and not (preprocessing.rule == "square" and preprocessing.resize):
        preprocessing = replace(preprocessing, rule="shorter")
    if hints.resize is not None:
        preprocessing = replace(preprocessing, resize=hints.resize)
    return preprocessing


def at_own_proportions(
    preprocessing: Preprocessing, config: ModelConfig, tokens: int | None = None
) -> Preprocessing:
    """The preprocessing of whole images in their own aspect ratios, on grids of at most `tokens` patches;
    None is the number with which the model was trained. If the preprocessing chooses grids like NaFlex,
    that rule is kept. Raises VitkitError if the model cannot read such images."""
    patch = getattr(config, "tiling", Tiling(preprocessing.patch, preprocessing.patch)).size
    check_native(config, patch)
    assert isinstance(config, ViTConfig)  # by check_native
    rule: Rule = "native"
    rows, columns = config.grid
    if preprocessing.rule == "naflex":
        rule = "naflex"
        rows, columns = squarest(tokens or preprocessing.patches)
    elif tokens is not None:  # the grid of a square image, or the closest one
        rows = math.isqrt(tokens)
        columns = tokens // rows
        if columns > rows + 1:
            columns = rows + 1
    size = (rows * patch[0], columns * patch[1])
    return replace(preprocessing, rule=rule, resize=0, size=size, patch=patch)


def _read_labels(file: Path, classes: int) -> tuple[str, ...]:
    """Read names from a text file, one a line. Raises VitkitError unless there is one for each class."""
    if not file.is_file():
        raise BadSettings(f"the file of labels {file} does not exist, or is not a file")
    if file.stat().st_size > LONGEST_LABELS:
        raise BadSettings(
            f"{file} has {file.stat().st_size:,} bytes: too long for names of classes"
        )
    try:
        lines = file.read_text("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise BadSettings(f"the labels in {file} are not UTF-8 text: {error}") from None
    names = tuple(line.strip() for line in lines)
    if len(names) != classes:
        raise BadSettings(
            f"{file} has {len(names):,} lines for a head of {counted_classes(classes)}; give "
            "the name of a class on each line"
        )
    if "" in names:
        raise BadSettings(f"line {names.index('') + 1} of {file} is empty; it must name a class")
    return names


def check_heads(source: Path | str, config: ModelConfig, heads: int | None) -> None:
    """Raise VitkitError if the user sets another number of attention heads than the model has."""
    if heads is None:
        return
    if not isinstance(config, ViTConfig):
        raise BadSettings(
            f"{source} is {called(config)}, which has no attention heads; leave out `heads`"
        )
    if config.heads != heads:
        raise BadSettings(
            f"{source} has {config.heads} attention heads, not {heads}; leave out `heads`"
        )


def with_pool(config: ModelConfig, pool: Pool | None) -> ModelConfig:
    """The configuration with the pooling that the user sets. Raises VitkitError if that is impossible."""
    if pool is None or getattr(config, "pool", None) == pool:
        return config
    if not isinstance(config, ViTConfig) or config.pool not in ("token", "gap", "corner"):
        raise BadSettings(
            f"its weights determine its pooling, and it is not {pool!r}; leave out `pool`"
        )
    if pool == "token" and not config.has_class_token:
        raise BadSettings(
            "it has no class token that the head could read; leave out `pool='token'`"
        )
    return replace(config, pool=pool, class_token=config.has_class_token)
