"""Pictures of a model's attention for its predictions (Fig. 6, App. D.8), or of where an image is unlike
the good ones that a model remembers.

Legend: B images of a batch, K classes, (h, w) the grid of patches, H W pixels of the model's input.
"""

import io
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from vitkit.data import Preprocessing, in_memory, open_image, picture_for_people
from vitkit.inspection import (
    check_has_attention,
    has_anomaly_map,
    heated,
    logits_and_rollout,
    over_image,
    photograph_and_map,
    whole_pixels,
)
from vitkit.inspection.figures.anomaly_maps import logits_and_anomaly_map
from vitkit.inspection.photographs import captioned, enlarged
from vitkit.prediction.items import Item
from vitkit.prediction.sorting import safe_name
from vitkit.runtimes import Eager, FileRuntime, PictureRuntime, takes_pictures
from vitkit.runtimes.pytorch import with_strangeness
from vitkit.system.errors import Unavailable, VitkitError
from vitkit.system.machine import autocast
from vitkit.system.storage.files import MARK, check_replaceable, write_whole
from vitkit.weights import Activation

LEAST = 400  # approximate smallest side of a picture, in pixels: smaller images are enlarged


class Looking:
    """A Runtime that also records the attention maps of each forward pass."""

    def __init__(self, eager: Eager):
        """Raises VitkitError for a model without attention among patches."""
        self.tiling = check_has_attention(eager.classifier).config.tiling
        self.eager = eager
        self.is_anomaly_map = has_anomaly_map(eager.classifier)
        """Whether `maps` are anomaly maps."""
        self.maps: np.ndarray | None = None
        """Attention Rollout of the last batch, or its anomaly maps: float32 (B, h, w)."""
        self.one_by_one = self.preprocessing.is_native
        """Whether a batch has one image: the maps of a batch are of one size."""

    @property
    def preprocessing(self) -> Preprocessing:
        """The preprocessing of the classifier."""
        return self.eager.preprocessing

    @property
    def of_model(self) -> Preprocessing:
        """What the model sees of an image, also if the runtime takes whole pictures."""
        return self.eager.preprocessing

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of the classifier."""
        return self.eager.labels

    @property
    def activation(self) -> Activation:
        """The activation of the classifier."""
        return self.eager.activation

    def logits(self, images: np.ndarray) -> np.ndarray:
        """Prepared images, uint8 (B, 3, H, W), -> float32 (B, K)."""
        classifier = self.eager.classifier
        with torch.inference_mode(), autocast(classifier.device, self.eager.precision):
            compute = logits_and_anomaly_map if self.is_anomaly_map else logits_and_rollout
            logits, maps = compute(classifier, torch.from_numpy(images))
        self.maps = over_image(maps, self.tiling).numpy()
        return logits.cpu().numpy()

    @property
    def least(self) -> np.ndarray | None:
        """The lowest probability with which a class belongs to the prediction set, (K,) or (1,)."""
        return self.eager.least

    def logits_and_strangeness(self, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """uint8 (B, 3, H, W) -> logits (B, K), and out-of-distribution scores (B,), above 0 for unknown
        images."""
        return with_strangeness(self.eager.classifier, lambda: self.logits(images))


class LookingFile:
    """A Runtime of an exported file of a model of good images that also keeps the anomaly maps of each batch. It
    has the attributes of `Looking`, but no thresholds of unknown images, as such a model has none."""

    is_anomaly_map = True

    def __init__(self, file: FileRuntime | PictureRuntime):
        self.file = file
        self.preprocessing = file.preprocessing
        self.of_model = file.exported.preprocessing
        self.labels = file.labels
        self.activation = file.activation
        self.maps: np.ndarray | None = None
        self.one_by_one = takes_pictures(file) or file.preprocessing.is_native

    def logits(self, images: np.ndarray) -> np.ndarray:
        """Images as the file takes them, uint8 (B, 3, H, W), -> float32 (B, K)."""
        logits, self.maps = self.file.logits_and_anomaly_map(images)
        return logits


class LookPictures:
    """Draws one picture per image into a directory: the model's input, beside it the input darkened by
    low attention, and below them the prediction. For a model of good images, the image at its own
    resolution, and beside it red where it is unlike good ones."""

    def __init__(self, directory: Path, looking: Looking | LookingFile):
        """The directory is created with the first picture."""
        self.directory = directory
        self.looking = looking
        self.names: Counter[str] = Counter()

    def whole(self, item: Item) -> np.ndarray:
        """The part of an image that the model sees, at the image's own resolution, which a map is drawn over:
        uint8 (3, H, W). The image is read again."""
        picture = in_memory(open_image(item.read(), item.name))  # decoded once
        box = self.looking.of_model.visible(picture)
        rows, columns = whole_pixels(box, picture.size)
        return picture_for_people(picture)[rows, columns].transpose(2, 0, 1)

    def draw(self, name: str, image: np.ndarray, place: int, answer: str) -> Path:
        """Draw the picture of an image, and return its path.

        image: uint8 (3, H, W): what the model got, or the same part of the image at its own resolution.
        place: the image's index in the last batch. answer: the prediction
        in words.

        The picture is called as the image, with a number appended if the name is taken by another picture
        or by a file that vitkit did not draw. Raises OSError with a readable message.
        """
        assert self.looking.maps is not None, "a batch was answered"
        weights = self.looking.maps[place]
        pixels = image.transpose(1, 2, 0)
        both = photograph_and_map(pixels, weights, LEAST)
        if self.looking.is_anomaly_map:
            photograph = enlarged(pixels, LEAST)
            both = np.concatenate([photograph, heated(photograph, weights)], 1)
        picture = Image.fromarray(captioned(both, answer))
        note = PngInfo()
        note.add_text("Comment", MARK)
        file = io.BytesIO()
        picture.save(file, "PNG", pnginfo=note, compress_level=4)
        path = self._path(name)
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            write_whole(path, file.getvalue())
        except OSError as error:
            raise Unavailable(f"{path} could not be written: {error.strerror or error}") from error
        return path

    def _path(self, name: str) -> Path:
        """The path for the picture of an image."""
        last_part = safe_name(name.rstrip("/").rpartition("/")[2])
        while True:
            self.names[last_part] += 1
            number = ""
            if self.names[last_part] > 1:
                number = f"-{self.names[last_part]}"
            path = self.directory / f"{last_part}{number}.png"
            if _may_be_written(path):
                return path


def _may_be_written(path: Path) -> bool:
    """Whether the path is free or holds a picture that vitkit drew."""
    if not path.exists():
        return True
    try:
        check_replaceable(path)
    except VitkitError:
        return False
    return True
