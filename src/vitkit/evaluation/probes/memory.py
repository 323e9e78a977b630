"""The file in which a taught classifier remembers its photographs, beside its model: their features,
names and classes, and what was changed. No pixel is in it.

It is a safetensors file of one tensor; all else is JSON in its header, under a checksum of both. A
photograph takes 4 bytes a feature and about 100 for its name: 0.2 MB for 245 photographs of 192
features.
"""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from vitkit.evaluation.probes.features import add_weights, architecture, below_head
from vitkit.evaluation.probes.probe import Probe, with_probe
from vitkit.evaluation.probes.teaching import Change, Example, Memory
from vitkit.evaluation.probes.unknown import fit_unknown
from vitkit.system.storage.files import whole
from vitkit.weights import DAMAGE, Classifier, adopt, save, write_safetensors

FILE = "taught.safetensors"
VERSION = 1  # of what is written; a larger number is a later vitkit's


def has_memory(folder: Path) -> bool:
    """Whether a model directory has a memory beside the model."""
    return (folder / FILE).is_file()


def write_memory(folder: Path, memory: Memory, classifier: Classifier) -> Path:
    """Write the memory of a model directory whose model is `classifier`, whole or not at all; returns
    the file. Raises OSError."""
    values = {
        "version": VERSION,
        "backbone": backbone_digest(classifier),
        "head": head_digest(classifier),
        "precision": memory.precision,
        "labels": list(memory.labels),
        "examples": [list(example) for example in memory.examples],
        "changes": [
            [change.text, [list(pair) for pair in change.renamed]] for change in memory.changes
        ],
    }
    text = json.dumps(values)  # in ASCII: bytes of a file's name that are no text become escapes
    x = np.ascontiguousarray(memory.x, dtype=np.float32)
    metadata = {"taught": text, "checksum": _checksum(text, x)}
    file = folder / FILE
    with whole(file) as new:
        write_safetensors(new, {"features": torch.from_numpy(x)}, metadata)
    return file


def remove_memory(folder: Path) -> None:
    """Remove the memory of a model directory, if it has one, for another model is saved there."""
    (folder / FILE).unlink(missing_ok=True)


def save_taught(folder: Path, classifier: Classifier, memory: Memory, fitted: Probe) -> int:
    """Save a model directory with the head that was solved from a memory, and the memory; returns the
    bytes that it takes.

    classifier: the model below the head, whatever its head. The model is written first: if the
    process is killed in between, `read_memory` sees it. Raises what `vitkit.save` raises.
    """
    labels = memory.classes
    adopted, _ = adopt(classifier.to("cpu"), labels=labels, new_head=True)
    x = torch.from_numpy(memory.x[memory.rows])
    unknown = fit_unknown(x, torch.from_numpy(memory.targets), fitted.left_out)
    taught = replace(with_probe(adopted, fitted, labels), unknown=unknown)
    save(taught, folder)
    return write_memory(folder, memory, taught).stat().st_size


def read_memory(folder: Path, classifier: Classifier) -> tuple[Memory, bool]:
    """The memory beside a model that was loaded from a directory; and whether the model's head is the
    one that was solved from it.

    Raises ValueError for a file that is damaged, and for a model whose features are others now.
    """
    file = folder / FILE
    try:
        memory, values = _read(file)
    except (SafetensorError, *DAMAGE) as error:
        raise ValueError(
            f"{file} cannot be read ({error}), so the photographs that this model was taught are "
            "forgotten; the model itself is another file. Put a copy of it there, or begin again in "
            "another directory"
        ) from error
    if values["backbone"] != backbone_digest(classifier):
        raise ValueError(
            f"the model in {folder} is another below its head than when it was taught (trained, or "
            "for another size of images), so what it remembers does not fit; begin again in another "
            f"directory: vitkit teach {folder} NEW --add FOLDER..."
        )
    return memory, values["head"] == head_digest(classifier)


def backbone_digest(classifier: Classifier) -> str:
    """By what one knows that a model's features are the same: the weights below the head, the
    architecture and the preprocessing."""
    digest = hashlib.sha256(json.dumps(architecture(classifier), sort_keys=True).encode())
    add_weights(digest, below_head(classifier))
    return digest.hexdigest()


def head_digest(classifier: Classifier) -> str:
    """By what one knows a head, and the names of its classes."""
    digest = hashlib.sha256(json.dumps(classifier.labels).encode())
    add_weights(digest, classifier.model.head.state_dict())
    return digest.hexdigest()


def _checksum(text: str, x: np.ndarray) -> str:
    """Of the JSON and of the features."""
    digest = hashlib.sha256(text.encode())
    digest.update(x.data)
    return digest.hexdigest()


def _read(file: Path) -> tuple[Memory, dict]:
    """A memory, and all values of its header. Raises ValueError and others of DAMAGE."""
    with safe_open(file, "np") as opened:
        metadata = opened.metadata() or {}
        text = metadata["taught"]
        x = opened.get_tensor("features")
    if _checksum(text, np.ascontiguousarray(x)) != metadata["checksum"]:
        raise ValueError("its checksum does not fit, so it is damaged")
    values = json.loads(text)
    if values["version"] > VERSION:
        raise ValueError("a later version of vitkit wrote it")
    examples = tuple(Example(*example) for example in values["examples"])
    changes = []
    for said, renamed in values["changes"]:
        changes.append(Change(said, tuple((number, label) for number, label in renamed)))
    memory = Memory(x, examples, tuple(values["labels"]), tuple(changes), values["precision"])
    return memory, values
