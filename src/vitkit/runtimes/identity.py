"""Which model a runtime computes, and what computes it: by that answers are known to be of one kind.

A run's model thirty steps later gives nearly the same answers, so outputs tell no models apart; a
digest of all that decides the answers does.
"""

import hashlib
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from vitkit.runtimes.exported import FileRuntime
from vitkit.runtimes.runtime import Runtime

if TYPE_CHECKING:
    from vitkit.runtimes.pytorch import Eager
    from vitkit.weights import Classifier


class Identity(NamedTuple):
    """Everything that determines the answers to an image. The kind of device and the versions of
    libraries are no part of it, so that machines of a cluster may differ."""

    model: str
    """A digest of weights, architecture, preprocessing, labels, activation and limits; of an exported
    file, of its bytes."""
    computed: str
    """By which library and in which precision, for people: "PyTorch in float32"."""


def identity_of(runtime: Runtime) -> Identity:
    """The identity of a classifier that PyTorch computes, or of an exported file."""
    if isinstance(runtime, FileRuntime):
        return _of_file(runtime)
    from vitkit.runtimes.pytorch import Eager

    assert isinstance(runtime, Eager), "whole pictures are not computed in batches"
    return _of_pytorch(runtime)


def digest_of_classifier(classifier: "Classifier") -> str:
    """A digest of all of a classifier that decides its answers. Whatever format it was loaded from,
    the same numbers have the same digest."""
    from torch import Tensor
    from torch import save as pickle

    from vitkit.weights import add_weights, feature_settings

    facts = [feature_settings(classifier), classifier.labels, classifier.activation]
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    tensors = classifier.model.state_dict()
    if classifier.unknown is not None:
        tensors |= classifier.unknown.tensors()
    plain = {}
    others = {}  # such as the packed weights of a model that PyTorch has quantised
    for name, weight in tensors.items():
        if isinstance(weight, Tensor) and not weight.is_quantized:
            plain[name] = weight
        else:
            others[name] = weight
    add_weights(digest, plain)
    if others:
        packed = io.BytesIO()
        pickle(others, packed)
        digest.update(packed.getbuffer())
    return digest.hexdigest()


def _of_pytorch(runtime: "Eager") -> Identity:
    """The model itself, without what merges tokens, exits early or compiles it."""
    from dataclasses import replace

    from torch import nn

    from vitkit.models import EarlyExit, Merging

    computed = "PyTorch"
    model: nn.Module = runtime.classifier.model
    original = getattr(model, "_orig_mod", None)  # of one that torch.compile has made
    if original is not None:
        computed = "PyTorch, compiled,"
        model = original
    if isinstance(model, EarlyExit | Merging):
        model = model.model
    bare = replace(runtime.classifier, model=model)  # type: ignore[arg-type]  # a Model by now
    digest = digest_of_classifier(bare)
    return Identity(digest, f"{computed} in {runtime.precision}")


def _of_file(runtime: FileRuntime) -> Identity:
    """The file's bytes; the model, if the file was only made in passing."""
    model = runtime.made_of
    if not model:
        model = _digest_of_files(runtime.path)
    return Identity(model, f"{runtime.library} in {runtime.computed_in}")


def _digest_of_files(path: Path) -> str:
    """A digest of an exported file, and of the weights that OpenVINO has beside it."""
    digest = hashlib.sha256()
    weights = path.with_suffix(".bin")
    files = [path]
    if path.suffix.lower() == ".xml" and weights.is_file():
        files.append(weights)
    for each in files:
        with each.open("rb") as file:
            hashlib.file_digest(file, lambda: digest)
    return digest.hexdigest()
