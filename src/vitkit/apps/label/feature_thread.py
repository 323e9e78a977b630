"""Computes the features of a labelling session's images in a background thread, and caches them in
a file."""

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from vitkit.apps.label.session import LabelSession
from vitkit.data import limit_for_good
from vitkit.evaluation import backbone_digest
from vitkit.system.console.messages import log_bug, reason
from vitkit.system.environment import max_pixels
from vitkit.system.errors import BadImage, VitkitError
from vitkit.system.machine import Precision, autocast, cpus
from vitkit.system.storage.files import parse_json, whole
from vitkit.weights import DAMAGE, Classifier, write_safetensors

FILE = "seen.safetensors"
AT_ONCE = 16  # batch size of a forward pass
LOOKS_AGAIN = 5.0  # seconds between two scans for new and deleted images
KEPT_AFTER = (
    1.5  # the cache file is rewritten when there are this many times as many images as in it
)


class FeatureThread(threading.Thread):
    """A thread that computes the features of photographs until it is ended."""

    def __init__(
        self,
        session: LabelSession,
        classifier: Classifier,
        root: Path,
        precision: Precision,
        find: Callable[[], list[str]],
    ):
        """classifier: on its device, for inference. root: the folder of the images. find: returns
        the names of the images in it."""
        super().__init__(name="features", daemon=True)
        self.session = session
        self.classifier = classifier
        self.root = root
        self.precision = precision
        self.find = find
        self.problem = ""
        """Why the model cannot compute features; "" if it can."""
        self._digest = backbone_digest(classifier)
        self._ended = threading.Event()
        self._kept = 0
        self._lost_as: dict[str, list[int] | None] = {}
        self._seen_as: dict[str, list[int] | None] = {}

    def run(self) -> None:
        """Compute missing features; then wait for new photographs."""
        limit_for_good(max_pixels())
        with ThreadPoolExecutor(max(1, cpus())) as pool:
            while not self._ended.is_set():
                try:
                    self._step(pool)
                except Exception as error:  # shown on the page, which continues without a model
                    if not isinstance(error, (VitkitError, OSError)):
                        log_bug("the model cannot see the photographs (bug)")
                    self.problem = f"the model cannot see the photographs: {reason(error)}"
                    return

    def end(self) -> None:
        """Stop, and store the computed features."""
        self._ended.set()
        self.join()
        self._keep()

    def take_up(self) -> None:
        """Load the cached features of images that have not changed since."""
        before = _read(self.session.folder / FILE, self._digest, self.precision)
        names = [name for name, state in before.states.items() if state == _state(self.root / name)]
        there = set(self.session.unseen())
        names = [name for name in names if name in there]
        if names:
            rows = {name: row for row, name in enumerate(before.states)}
            self._seen_as |= {name: before.states[name] for name in names}
            self.session.see(names, before.features[[rows[name] for name in names]])
        self._kept = len(names)

    def _step(self, pool: ThreadPoolExecutor) -> None:
        """Process the next batch of images; or, if there are none, wait, and scan the folder."""
        names = self.session.unseen(AT_ONCE)
        if not names:
            self._keep()
            self._ended.wait(LOOKS_AGAIN)
            if not self._ended.is_set():
                self._look_again()
            return
        seen = []
        images = []
        states = {name: _state(self.root / name) for name in names}
        for name, prepared in zip(names, pool.map(self._prepared, names), strict=True):
            if isinstance(prepared, str):
                self._mark_unreadable(name, states[name], prepared)
            else:
                seen.append(name)
                images.append(prepared)
        if images:
            preprocessing = self.classifier.preprocessing
            batch = preprocessing.together([image.numpy() for image in images])
            with autocast(self.classifier.device, self.precision):
                x = self.classifier.features(torch.from_numpy(batch)).cpu().numpy()
            for row in np.flatnonzero(~np.isfinite(x).all(1)):
                name = seen[row]
                self._mark_unreadable(name, states[name], "the model gives NaN or infinity for it")
            fine = np.isfinite(x).all(1)
            self._seen_as |= {name: states[name] for name in seen}
            self.session.see([seen[row] for row in np.flatnonzero(fine)], x[fine])
        if self.session.seen() > KEPT_AFTER * max(self._kept, 500):
            self._keep()

    def _prepared(self, name: str) -> torch.Tensor | str:
        """An image as model input, uint8 (C, h, w); or the reason why it cannot be read."""
        try:
            data = (self.root / name).read_bytes()
            return self.classifier.preprocessing(data)
        except BadImage as error:
            return str(error)
        except OSError as error:
            return error.strerror or str(error)

    def _look_again(self) -> None:
        """Find new images, deleted ones, and unreadable ones whose files have changed: they may have been
        incomplete copies, or deleted for a while."""
        try:
            names = self.find()
        except (
            VitkitError,
            OSError,
        ) as error:  # an unmounted disk, or a folder that is being moved
            self.problem = f"{error}; it is looked for again"
            return
        self.problem = ""
        known = self.session.names()
        self.session.arrive(names)
        for name in set(known) - set(names):
            self._mark_unreadable(name, None, "it is not there any more")
        there = set(names)
        for name in self.session.unreadable():
            state = _state(self.root / name)
            if name in there and self._lost_as.setdefault(name, state) != state:
                del self._lost_as[name]
                self.session.recover(name)

    def _mark_unreadable(self, name: str, state: list[int] | None, problem: str) -> None:
        """Record that an image is unreadable, with the state of its file."""
        self._lost_as[name] = state
        self.session.lose(name, problem)

    def _keep(self) -> None:
        """Write the cache. If the disk is full, the features will be computed again next time."""
        names, x = self.session.features()
        if len(names) == self._kept:
            return
        # A file may have changed since it was read, so its state from then is stored
        states = {name: self._seen_as[name] for name in names}
        metadata = {
            "model": self._digest,
            "precision": self.precision,
            "photographs": json.dumps(states),
        }
        with suppress(OSError), whole(self.session.folder / FILE) as new:
            write_safetensors(new, {"features": torch.from_numpy(x)}, metadata)
            self._kept = len(names)


class _Before(NamedTuple):
    """The content of a cache file."""

    states: dict[str, list[int] | None]
    """State of each image's file, by name."""
    features: np.ndarray
    """Features of the images, in the order of `states`, (N, D)."""


NOTHING = _Before({}, np.empty((0, 0)))


def _read(file: Path, digest: str, precision: str) -> _Before:
    """The cached features of this model; NOTHING if there is no valid cache file."""
    try:
        with safe_open(file, "np") as opened:
            metadata = opened.metadata() or {}
            if (metadata.get("model"), metadata.get("precision")) != (digest, precision):
                return NOTHING
            states = parse_json(metadata["photographs"])
            x = opened.get_tensor("features")
    except (OSError, SafetensorError, *DAMAGE):
        return NOTHING
    if not isinstance(states, dict) or x.ndim != 2 or len(x) != len(states):
        return NOTHING
    return _Before(states, x)


def _state(path: Path) -> list[int] | None:
    """The size and modification time of a file, which show whether it has changed; None without a
    file."""
    try:
        state = path.stat()
    except OSError:
        return None
    return [state.st_size, state.st_mtime_ns]
