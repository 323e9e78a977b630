"""Load models from files of any format, which is recognised by content and untrusted; create networks by
name, with published weights; and save models."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from vitkit import models
from vitkit.data import Preprocessing
from vitkit.data.images.preprocessing import Interpolation
from vitkit.models import (
    Model,
    ModelConfig,
    ViTConfig,
    build,
    called,
    named,
    parameters,
)
from vitkit.system.console.messages import say, say_detail
from vitkit.system.console.text import printable, printable_name
from vitkit.system.errors import BadSettings, BadWeights, VitkitError
from vitkit.system.functions.results import ModelResult
from vitkit.system.functions.values import read_flag
from vitkit.system.machine import check_device
from vitkit.weights.adoption import (
    adopt,
    checked_names,
    preprocessing_for_channels,
    rebuilt,
    with_labels,
    with_new_head,
)
from vitkit.weights.beside import OfPixels, names_of_head, without_unread
from vitkit.weights.classifier import (
    Classifier,
    Description,
    check_finite,
    check_preprocessing,
    from_json,
    has_head_of_zeros,
)
from vitkit.weights.files.content import DAMAGE, FLOATS, Tensors
from vitkit.weights.files.directory import Opened, open_weights
from vitkit.weights.files.hub import fetch, license_of_download
from vitkit.weights.fitting import apply_hints, check_heads, with_pool
from vitkit.weights.formats.format import Format, Tidied
from vitkit.weights.formats.timm.architectures import check_architecture
from vitkit.weights.formats.timm.config import architecture_name
from vitkit.weights.hints import Crop, Hints, Pool, Statistics, hints_of
from vitkit.weights.outputs import counted_classes, numbered
from vitkit.weights.parts import READ, Taken, take
from vitkit.weights.pretraining import read_pretraining
from vitkit.weights.rules import Misfit, read
from vitkit.weights.unknown import read_unknown

# Beginnings of notes that are reported when weights are used to begin a training
REPORTED = ("left out", "GUESSED", READ, "head: ")
# Settings that a loaded model is fitted to
FITTED = ("image", "stride", "channels", "classes", "head_bias")
# Settings that do not affect shapes of weights, nor evaluation
FOR_TRAINING = ("dropout", "attention_dropout", "stochastic_depth")


def load(
    source: "Path | str | ModelResult",
    *,
    image: tuple[int, int] | int | None = None,
    stride: tuple[int, int] | int | None = None,
    channels: int | None = None,
    heads: int | None = None,
    pool: Pool | None = None,
    statistics: Statistics | None = None,
    resize: int | None = None,
    crop: Crop | None = None,
    tokens: int | None = None,
    interpolation: Interpolation | None = None,
    part: str | None = None,
    labels: Sequence[str] | None = None,
    new_head: bool = False,
    preprocessing: Preprocessing | None = None,
    quiet: bool = False,
) -> Classifier:
    """Open any published model of the family: a run, a model directory, a file of weights, or the
    name of one to download.

    The format (vitkit's, Hugging Face's, Google's .npz, timm's or torchvision's) is recognised by
    the tensors' names and shapes; what it implies (eps, form of the GELU, position rows,
    preprocessing) is set, and a short report of that is printed to the standard error unless
    `quiet`. The model is in evaluation mode, on the CPU.

    If a file does not say something, or you want it to be different, use the settings of the
    commands (`Hints`). `heads` is for files that do not say it. `image`, (height, width) or one
    side of a square, is the size that the position table is for, if that is not known and it can
    be; else positions are resampled to it. `channels` adapts weights for colours to other images.
    `preprocessing` replaces that of the file and the other settings for it. `part` says which part of
    a training checkpoint is the model, such as "model" beside its average "model_ema".

    `labels` are the names of your classes. As many as the head has outputs, they name these. Of
    another number, or with `new_head`, they give the model a new head of zeros, to be trained
    (Section 3.2): `load("google/vit-base-patch16-224", labels=["ant", "bee"])`.

    Nothing is unpickled or run, and every name and shape is checked before memory is taken:
    VitkitError names all that does not fit.
    """
    if isinstance(source, ModelResult):
        source = source.made
    if not isinstance(source, str | PathLike):
        raise BadSettings(
            f"what is to be loaded is a {type(source).__name__}; give a path or the name of a "
            "published model. A network becomes a Classifier with its preprocessing and labels: "
            "Classifier(model, preprocessing, labels)"
        )
    overrides = {
        "image": image,
        "stride": stride,
        "channels": channels,
        "heads": heads,
        "pool": pool,
        "statistics": statistics,
        "resize": resize,
        "crop": crop,
        "tokens": tokens,
        "interpolation": interpolation,
        "part": part,
    }
    given = {name: value for name, value in overrides.items() if value is not None}

    # Refuse wrong values before anything is read
    hints = hints_of(given)
    new_head = read_flag("new_head", new_head)
    quiet = read_flag("quiet", quiet)
    if new_head and labels is None:
        raise BadSettings("new_head is for other classes; give their names in labels")
    if labels is not None:
        labels = checked_names(labels)
    if preprocessing is not None:
        check_preprocessing(preprocessing)

    classifier, report = load_with_account(source, hints)
    check_heads(source, classifier.model.config, hints.heads)

    # What the caller knows better
    if labels is not None:
        classifier, changes = with_labels(classifier, labels, new_head)
        report += changes
    if preprocessing is not None:
        classifier = replace(classifier, preprocessing=preprocessing, unknown=None)

    if not quiet:
        _report(source, report)
    return classifier


def load_as(source: Path | str, hints: Hints, quiet: bool = False) -> Classifier:
    """Open a model like `load`, with all hints of the commands."""
    classifier, report = load_with_account(source, hints)
    check_heads(source, classifier.model.config, hints.heads)
    if not quiet:
        _report(source, report)
    return classifier


def load_for(source: Path | str, config: ModelConfig) -> tuple[Classifier, list[str]]:
    """Open a model quietly, to use its weights for a model of this configuration. Heads and image size are
    taken from the configuration if the file does not contain them. Also returns notes on which part of the
    file was read, and what was left out.

    The model may have another architecture and image size nevertheless. Raises the exceptions of `load`.
    """
    heads = getattr(config, "heads", None)
    opened = open_weights(fetch(source))
    with _advising_convert(), _naming_source(source):
        classifier, _, description = _assemble(opened, Hints(image=config.image, heads=heads))
    known_hints = [note for note in description.notes if note.startswith(REPORTED)]
    return classifier, [_advise_convert(note) for note in known_hints]


def _report(source: Path | str, report: list[str]) -> None:
    """Log the load report of a model: guesses and the part of a checkpoint as messages, the rest as
    details."""
    for number, line in enumerate(report):
        is_important = line.startswith(("GUESSED", READ))
        log = say_detail
        if is_important:
            log = say
        beginning = "  "
        if number == 0 or is_important:
            beginning = f"{source}: "
        log(f"{beginning}{line}")


def load_with_account(source: Path | str, hints: Hints) -> tuple[Classifier, list[str]]:
    """The model of a file with the user's hints, and the lines of its load report: guesses that matter, if
    any, then what the model is, and what was assumed."""
    opened = open_weights(fetch(source))
    with _naming_source(source):
        classifier, format, description = _assemble(opened, hints)
        classifier, changes = apply_hints(classifier, hints)

    # The load report: what the model is; and what was found, left out, assumed and changed
    config = classifier.model.config
    height, width = config.image
    head = "no head"
    if config.classes:
        head = counted_classes(config.classes)
    summary = (
        f"{called(config)} for {height} x {width} pixels, {parameters(classifier.model):,} parameters, "
        f"{head}, in {format.name} format\n  preprocessing: {classifier.preprocessing}"
    )
    report = [summary, *description.notes, *changes]
    if has_head_of_zeros(classifier.model):
        report.append(
            "head: all zeros, so every image has the same answer: the weights were published without "
            "their head, or it is not trained yet (vitkit finetune)"
        )
    if description.guess:
        report.insert(0, description.guess)
    return classifier, report


@contextmanager
def _advising_convert() -> Iterator[None]:
    """A context in whose errors the remedy `part=...` becomes a conversion, for callers without that setting."""
    try:
        yield
    except VitkitError as error:
        if error.args and isinstance(error.args[0], str):
            error.args = (_advise_convert(error.args[0]), *error.args[1:])
        raise


def _advise_convert(sentence: str) -> str:
    """A sentence about `part` for training, which does not have this setting."""
    return sentence.replace("`part=", "convert with `part=")


@contextmanager
def _naming_source(source: Path | str) -> Iterator[None]:
    """A context in which errors become errors of vitkit that begin with the name that the user gave.

    The name of a file would not do, because any file of a directory may be at fault. DAMAGE contains
    exceptions that a defect of vitkit would raise too. This is accepted, because malicious files may raise
    all of them; the traceback shows the original exception.
    """
    try:
        yield
    except VitkitError as error:
        raise type(error)(f"{source} cannot be loaded: {printable(str(error))}") from error
    except (SafetensorError, *DAMAGE) as error:
        raise BadWeights(f"{source} cannot be loaded: {printable(str(error))}") from error


def _assemble(opened: Opened, hints: Hints) -> tuple[Classifier, Format, Description]:
    """The model of a file, its format, and its description with all notes on how it was read."""
    # The part that is the model, its format by the tensors' names, and its head
    check_architecture(opened.config)
    taken = take(opened, hints.part)
    opened = taken.opened
    format = taken.format
    _check_type(opened, format)
    tidied = format.tidy(taken.tensors)

    # The architecture, and everything else except weights
    known_hints = hints
    if taken.statistics:  # the file contains them, so they need not be guessed
        known_hints = replace(hints, statistics=hints.statistics or "half")
    description = _describe(opened, format, tidied, known_hints)
    if taken.alone:
        description = _without_head(description)
    config = with_pool(description.config, hints.pool)
    preprocessing = description.preprocessing
    if not opened.described:  # then it is a library's default, for three channels
        preprocessing = preprocessing_for_channels(preprocessing, config.channels)
    description = description._replace(config=config, preprocessing=preprocessing)
    if taken.statistics and not hints.statistics:
        description = _with_statistics(description, taken.statistics)

    # Where it came from
    origin = description.origin
    if origin is None:
        origin = {"format": format.name, "file": opened.path.name}
        if tidied.layout:
            origin["layout"] = tidied.layout
        if description.objective:
            origin["objective"] = description.objective

    # The model itself; limits of its classes belong to the head
    unknown = None
    if not taken.alone:
        unknown = read_unknown(opened.unknown, description.config.classes)
    model, unread_notes = _build_model(description.config, taken, tidied.tensors)
    classifier = Classifier(
        model=model,
        preprocessing=description.preprocessing,
        labels=description.labels or numbered(description.config.classes),
        activation=description.activation,
        origin=origin,
        license=opened.license or license_of_download(opened.path),
        pretraining=read_pretraining(opened.pretraining or tidied.pretraining),
        unknown=unknown,
    )

    # How it was read
    dtypes = {lazy.dtype for lazy in tidied.tensors.values()}
    widened = dtypes.intersection(FLOATS) - {"float32"}
    notes = [
        *opened.notes,
        *taken.notes,
        *tidied.notes,
        *unread_notes,
        *description.notes,
    ]
    if widened:
        notes.append(f"widened from {', '.join(sorted(widened))} to float32")
    if license := classifier.license:
        notes.append(f"licence: {license.called} ({license.allows()})")
    return classifier, format, description._replace(notes=tuple(notes))


def _without_head(description: Description) -> Description:
    """The description of the encoder alone."""
    config = description.config
    if isinstance(config, ViTConfig) and config.pool == "distilled":
        config = replace(config, classes=0, pool="token")
    else:
        config = replace(config, classes=0)
    return description._replace(config=config, labels=None)


def _with_statistics(description: Description, statistics: OfPixels) -> Description:
    """The description with the mean and deviation that a class around the encoder has as buffers."""
    mean, std = (
        ", ".join(f"{value:.4g}" for value in values)
        for values in (statistics.mean, statistics.std)
    )
    called = " and ".join(map(printable_name, statistics.names))
    guess = (
        f"GUESSED: images are normalised with the {called} in the file (mean {mean}; deviation {std}); "
        "otherwise: `statistics='imagenet'`, or half"
    )
    guesses = [text for text in (description.guess, guess) if text]
    preprocessing = replace(description.preprocessing, mean=statistics.mean, std=statistics.std)
    return description._replace(preprocessing=preprocessing, guess="\n  ".join(guesses))


def _check_type(opened: Opened, format: Format) -> None:
    """Raise VitkitError for a model of Transformers whose tensors happen to have another library's names, as
    in many larger models."""
    model_type = opened.config.get("model_type")
    if not model_type or opened.described or format.library in ("transformers", "vitkit"):
        return
    if architecture_name(opened.config):  # timm's models in Transformers have both fields
        return
    raise BadWeights(
        f"it is {printable_name(model_type)} by its config.json, a model of Transformers, but its "
        f"tensors have {format.name}'s names; vitkit cannot read that"
    )


def _describe(opened: Opened, format: Format, tidied: Tidied, hints: Hints) -> Description:
    """vitkit's own description of the model; the format's if there is none or if it is outdated."""
    notes = []
    if opened.described:
        described = from_json(opened.described)
        if described.config.kind not in format.kinds:
            raise BadWeights(
                f"it is described as {called(described.config)}, but its tensors have other names"
            )
        changed = format.contradictions(described, opened)
        if not changed:
            return described
        # The library's own fields take precedence, because its users have edited them
        notes.append(
            f"config.json was changed after vitkit wrote it ({', '.join(changed)}): "
            f"read as {format.library} reads it, without vitkit's own notes there"
        )

    # For images of the user's size if the position table may be for that size; otherwise for its own size,
    # from which it can be resampled
    try:
        description = format.describe(opened, tidied, hints)
    except VitkitError as error:
        try:
            description = format.describe(opened, tidied, replace(hints, image=()))
        except VitkitError:
            raise error from None
    return description._replace(notes=(*notes, *description.notes))


def _build_model(config: ModelConfig, taken: Taken, tensors: Tensors) -> tuple[Model, list[str]]:
    """Build a model from a format's tensors, mapped from the disk unless they must be converted; and notes
    on tensors beside it that are left out."""
    # Even on meta, a model of 10^12 blocks would take forever to build
    if config.blocks_built > len(tensors):
        raise BadWeights(f"it has {len(tensors)} tensors, too few for {config.blocks_built} blocks")
    try:
        with torch.device("meta"):
            model = build(config)
    except (RuntimeError, TypeError, OverflowError) as error:  # sizes that are too large
        reason = str(error).splitlines()[0]
        raise BadWeights(f"no model of the described sizes can be built: {reason}") from error
    rules = taken.format.rules(config)
    head = taken.format.head
    notes: list[str] = []
    beside: list[str] = []
    if head:
        width = getattr(config, "width", 0)
        tensors, notes, beside = without_unread(tensors, rules, width, taken.prefix, taken.alone)
    try:
        state = read(tensors, rules, model.state_dict())
    except Misfit as error:
        # The remedy helps if all mismatches disappear together with the head
        if head and error.names <= {*beside, *names_of_head(error.names, head)}:
            raise BadWeights(f"{error}; {taken.remedy}") from error
        raise
    check_finite(state)
    model.load_state_dict(state, assign=True)
    return model.eval(), notes


def create(
    model: ModelConfig | str,
    device: torch.device | str = "cpu",
    seed: int | None = None,
    weights: Path | str | None = None,
    quiet: bool = False,
    **changes: Any,
) -> Model:
    """Create a network by its name or configuration: `create("B/16", classes=10)`, with the official initial
    weights; `create("B/16", classes=10, weights="imagenet21k/ViT-B_16")`, with published ones and a new
    head of zeros.

    It is a bare network, in training mode. `load(weights, labels=...)` returns an equal one together with
    its preprocessing.

    `weights` is any source of `load`; a short report of what was found is printed to the standard error
    unless `quiet`. They determine settings that a name leaves open (eps, the form of the GELU, the
    pooling). `classes` keeps the head if it has that number; positions are resampled to another `image` or
    `stride`; weights for colours are adapted to other `channels`, as in fine-tuning; dropout,
    attention_dropout and stochastic_depth can be set. If `model` is a configuration, every setting is
    compared. `seed` makes initial weights repeatable on any device, and does not change torch's own
    generator.

    Raises VitkitError for an unknown name or setting, and for weights of another architecture.
    """
    quiet = read_flag("quiet", quiet)
    if "pretrained" in changes:  # the argument of timm
        raise BadSettings(
            "name the pre-trained weights: a file, a folder or a name as weights=..., in place of "
            "pretrained"
        )
    if weights is None:
        return models.create(model, device, seed, **changes)
    check_device(device)
    if seed is not None:
        raise BadSettings("seed is for initial weights; leave it out, or leave out weights")

    # Requested settings: those given with a name, or every setting of a configuration
    if isinstance(model, str):
        wanted = named(model, **changes)
        asked = set(changes)
    elif changes or not isinstance(model, ModelConfig):
        return models.create(model, **changes)  # raises an error
    else:
        wanted = model
        asked = {field.name for field in fields(model)}

    # The published model, for the requested images
    hints = Hints()
    if "image" in asked:
        hints = replace(hints, image=wanted.image)
    if isinstance(wanted, ViTConfig) and "heads" in asked:
        hints = replace(hints, heads=wanted.heads)
    if isinstance(wanted, ViTConfig) and wanted.stride is not None:
        hints = replace(hints, stride=wanted.tiling.stride)
    classifier, report = load_with_account(weights, hints)
    if "channels" in asked:
        classifier, changes_made = adopt(classifier, channels=wanted.channels)
        report += changes_made
    network = classifier.model
    published = network.config
    if called(published) != called(wanted):
        raise BadSettings(f"{weights} holds {called(published)}, not {called(wanted)}")
    differences = []
    for name in sorted(asked - {*FITTED, *FOR_TRAINING}):
        theirs = getattr(published, name)
        ours = getattr(wanted, name)
        if theirs != ours:
            differences.append(f"{name} is {theirs!r} there, {ours!r} here")
    if differences:
        raise BadSettings(f"{weights} holds another model: {'; '.join(differences)}")

    # Another head, and settings that matter only in training
    if "classes" in asked and wanted.classes != network.config.classes:
        network = with_new_head(network, wanted.classes)
    settings = {name: getattr(wanted, name) for name in FOR_TRAINING if name in asked}
    if settings:
        network = rebuilt(network, replace(network.config, **settings))
    if not quiet:
        _report(weights, report)
    return network.train().to(device)
