"""The identity of a runtime: the model and how it is computed, to check that answers are comparable.

Outputs do not identify a model, because a run's model thirty steps later gives nearly the same ones. So the
identity is a digest of everything that determines the answers.
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
    """Everything that determines the answers to an image. The type of device and the versions of libraries are
    left out, so that the machines of a cluster may differ."""

    model: str
    """Digest of weights, architecture, preprocessing, labels, activation and thresholds; for an exported file,
    of its bytes."""
    computed: str
    """Library and precision as text: "PyTorch in float32"."""


def identity_of(runtime: Runtime) -> Identity:
    """The identity of a classifier that PyTorch computes, or of an exported file."""
    if isinstance(runtime, FileRuntime):
        return _of_file(runtime)
    from vitkit.runtimes.pytorch import Eager

    assert isinstance(runtime, Eager), "whole pictures are not computed in batches"
    return _of_pytorch(runtime)


def digest_of_classifier(classifier: "Classifier") -> str:
    """A digest of everything in a classifier that determines its answers. It does not depend on the format that
    the model was loaded from."""
    from torch import Tensor
    from torch import save as pickle

    from vitkit.weights import add_weights, feature_settings

    facts = [feature_settings(classifier), classifier.labels, classifier.activation]
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    tensors = classifier.model.state_dict()
    if classifier.unknown is not None:
        tensors |= classifier.unknown.tensors()
    plain = {}
    others = {}  # such as the packed weights of a quantised model
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
    """The identity of a classifier that PyTorch computes. Token merging, early exit and compilation do not change
    the digest of its model."""
    from dataclasses import replace

    from torch import nn

    from vitkit.models import EarlyExit, Merging

    computed = "PyTorch"
    model: nn.Module = runtime.classifier.model
    original = getattr(model, "_orig_mod", None)  # the original of a compiled model
    if original is not None:
        computed = "PyTorch, compiled,"
        model = original
    if isinstance(model, EarlyExit | Merging):
        model = model.model
    bare = replace(runtime.classifier, model=model)  # type: ignore[arg-type]  # a Model here
    digest = digest_of_classifier(bare)
    return Identity(digest, f"{computed} in {runtime.precision}")


def _of_file(runtime: FileRuntime) -> Identity:
    """The identity of an exported file: a digest of its bytes, or for a temporary file of its model."""
    model = runtime.made_of
    if not model:
        model = _digest_of_files(runtime.path)
    return Identity(model, f"{runtime.library} in {runtime.computed_in}")


def _digest_of_files(path: Path) -> str:
    """A digest of an exported file, and of the weights beside it in OpenVINO's format."""
    digest = hashlib.sha256()
    weights = path.with_suffix(".bin")
    files = [path]
    if path.suffix.lower() == ".xml" and weights.is_file():
        files.append(weights)
    for each in files:
        with each.open("rb") as file:
            hashlib.file_digest(file, lambda: digest)
    return digest.hexdigest()
