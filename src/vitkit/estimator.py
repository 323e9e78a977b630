"""`VitClassifier`: a classifier of images with scikit-learn's interface, for its pipelines, searches and
cross-validation.

Legend: N images or examples, D width of their features, K classes, h w pixels.
"""

import threading
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any, get_args

import numpy as np
import torch
from PIL import Image
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import Tags
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted, validate_data
from torch import Tensor

from vitkit.data import Source, default_workers, eval_batches, from_images
from vitkit.data.images.preprocessing import check_choice
from vitkit.evaluation import (
    FIT,
    Probe,
    compute_features,
    fit_probe,
    fit_unknown,
    last_token,
    unbalanced,
    with_probe,
)
from vitkit.evaluation.probes.features import BATCH
from vitkit.evaluation.probes.probe import Method
from vitkit.system.console.text import counted
from vitkit.system.errors import BadData
from vitkit.system.machine import PrecisionChoice, autocast, pick_device, pick_precision
from vitkit.weights import Classifier, adopt, called_in, load

KEPT_FROM = 8  # images to predict from which their features are cached; fewer are faster to compute


class VitClassifier(ClassifierMixin, BaseEstimator):
    """A linear head, fitted in closed form, on the features of a pre-trained model, whose weights
    stay as they are: seconds for hundreds of images, and nothing is random.

    X is images: a list, a tuple, a 1-d array or a pandas Series of paths, bytes of files, Pillow
    images, arrays (h, w, 3) or (h, w) and tensors (3, h, w) of uint8, or of floats from 0 to 1, also
    mixed; or all of them as one array (N, h, w, 3) or (N, h, w), or tensor (N, 3, h, w). They go
    through the model's own preprocessing.
    Without a `model`, X is features, float (N, D), as `vitkit.evaluation.features` and `vitkit
    features` make them: several fits then share them.

    Parameters
    ----------
    model : what `vitkit.load` takes, or a Classifier; None if X is features.
    method : "linear", least squares whose strength is chosen by the answers to left-out examples;
        "prototype", the nearest mean of a class; "logistic", scikit-learn's regression.
    image : (height, width) of the images that the model gets, or one side of a square, if not those
        that it was made for.
    device : "auto" is the best there is.
    precision : "auto" is bfloat16 where the device has instructions for it.
    verbose : print what was found in the model's file, which may include guesses.

    Attributes
    ----------
    classes_ : the K classes, sorted.
    coef_, intercept_ : the head, float64 (K, D) and (K,). The softmax of its scores is calibrated.
    left_out_score_ : the accuracy of the answers to each example by a fit without it.
    classifier_ : with a model, the Classifier with this head, for `vitkit.save` and
        `vitkit.predict`; with the method "linear" it also knows which images are unknown to it.
    n_features_in_ : D.
    """

    def __init__(
        self,
        model: Path | str | Classifier | None = None,
        *,
        method: Method = "linear",
        image: tuple[int, int] | int | None = None,
        device: str = "auto",
        precision: PrecisionChoice = "auto",
        verbose: bool = False,
    ):
        self.model = model
        self.method = method
        self.image = image
        self.device = device
        self.precision = precision
        self.verbose = verbose

    def fit(self, X: Any, y: Any) -> "VitClassifier":
        """Fit the head to images or features, and to a class for each: numbers, strings or
        booleans.

        Raises VitkitError for fewer than two classes, and for an image that cannot be read, with its
        name.
        """
        check_choice("method", self.method, tuple(FIT))
        check_choice("precision", self.precision, get_args(PrecisionChoice))

        # Check the inputs
        if self.model is None:
            _check_features(X)
            x, y = validate_data(self, X, y)
        else:
            source = _images(X)
            y = validate_data(self, y=y)
            check_consistent_length(source.rows, y)
        if any(name is None for name in y):
            raise BadData("y holds None; give a class for each image")
        check_classification_targets(y)
        self.classes_, classes = np.unique(y, return_inverse=True)
        count = len(self.classes_)
        if count < 2:
            name = self.classes_.tolist()[0]
            raise BadData(f"all of y is one class, {name!r}; a classifier needs two or more")

        # Compute the features of the images
        if self.model is not None:
            labels = tuple(map(str, self.classes_))
            classifier = self._load(labels)
            x = self._features(classifier, source, cached=True)
            self.n_features_in_ = x.shape[1]

        # Fit the head, and score its answers to left-out examples
        is_balanced = unbalanced(np.bincount(classes))
        fitted = fit_probe(self.method, x, classes, count, is_balanced)
        self.coef_ = fitted.weight.numpy()
        self.intercept_ = fitted.bias.numpy()
        self.left_out_score_ = _accuracy(fitted, classes)
        if self.model is not None:
            unknown = None
            if self.method == "linear":  # the only method with exact left-out answers
                unknown = fit_unknown(
                    torch.tensor(x),
                    torch.tensor(classes),
                    fitted.left_out,
                    told_by=last_token(classifier),
                )
            origin = self._origin(fitted, len(source))
            headless = replace(classifier, origin=origin, unknown=unknown)
            self.classifier_ = with_probe(headless, fitted, labels)
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The most likely class of each image, (N,), one of `classes_`."""
        likeliest = self._scores(X).argmax(1)
        return self.classes_[likeliest]

    def predict_proba(self, X: Any) -> np.ndarray:
        """The probability of each class, in the order of `classes_`: float64 (N, K)."""
        return torch.from_numpy(self._scores(X)).softmax(1).numpy()

    def _scores(self, X: Any) -> np.ndarray:
        """The scores of all classes, (N, K)."""
        check_is_fitted(self)
        if self.model is None:
            x = validate_data(self, X, reset=False)
        else:
            source = _images(X)
            x = self._features(self.classifier_, source, cached=len(source) >= KEPT_FROM)
        return x.astype(np.float64) @ self.coef_.T + self.intercept_

    def _load(self, labels: tuple[str, ...]) -> Classifier:
        """The model, with a head of zeros for these classes."""
        classifier = self.model
        assert classifier is not None
        if not isinstance(classifier, Classifier):
            classifier = load(classifier, quiet=not self.verbose)
        adopted, _ = adopt(classifier, labels=labels, image=self.image, new_head=True)
        return adopted

    def _origin(self, fitted: Probe, count: int) -> dict:
        """The origin of the fitted classifier, to be shown to people."""
        init = self.model
        if isinstance(init, Classifier):
            init = called_in(init.origin)
        elif not isinstance(init, str):
            init = str(init)
        return {
            "init": init,
            "head": f"{self.method} probe, temperature {fitted.temperature:.3g}",
            "metrics": {
                "left_out/top1": f"{self.left_out_score_:.2%} of {counted(count, 'image')}"
            },
        }

    def _features(self, classifier: Classifier, source: Source, cached: bool) -> np.ndarray:
        """The features of all images, float32 (N, D)."""
        device = pick_device(self.device)
        deployed = classifier.for_inference().to(device)
        batch = min(BATCH, len(source))
        batches = eval_batches(source, classifier.preprocessing, batch, _workers(len(source)))
        with autocast(device, pick_precision(self.precision, device).precision):
            return compute_features(deployed, source, batches, cached).x

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        if self.model is not None:
            tags.input_tags.two_d_array = False
            tags.input_tags.three_d_array = True
            tags.input_tags.string = True
        return tags


def _accuracy(fitted: Probe, classes: np.ndarray) -> float:
    """The accuracy of the answers to left-out examples, among examples that have one."""
    answered = fitted.left_out.isfinite().all(1).numpy()
    right = fitted.left_out.argmax(1).numpy() == classes
    if not answered.any():
        return float("nan")
    return float(right[answered].mean())


def _workers(count: int) -> int:
    """The number of processes that decode images: 0 for a single batch, and where processes must not be
    started, as within joblib's threads; `default_workers` knows of its processes."""
    is_main = threading.current_thread() is threading.main_thread()
    if count <= BATCH or not is_main:
        return 0
    return default_workers()


def _images(X: Any) -> Source:
    """X as images. Raises VitkitError if it is features."""
    if isinstance(X, np.ndarray | Tensor) and X.ndim == 2 and X.shape[1] > 1:
        raise BadData(
            f"X is {X.dtype} {tuple(X.shape)}, and a model is to compute the features of images; if "
            "X is features, leave out model"
        )
    return from_images(X)


def _check_features(X: Any) -> None:
    """Raises VitkitError if X is images."""
    values = X
    if hasattr(X, "to_numpy"):  # pandas and polars
        values = X.to_numpy()
    shape = getattr(values, "shape", ())
    first = None
    if isinstance(values, list | tuple | np.ndarray) and len(values) and len(shape) < 2:
        first = values[0]
    is_one = isinstance(values, str | PurePath | bytes | Image.Image)
    is_list = isinstance(first, str | PurePath | bytes | Image.Image)
    is_pixels = len(shape) > 2 or getattr(first, "ndim", 0) > 1
    if is_one or is_list or is_pixels:
        raise BadData(
            "X is images, and there is no model to compute their features with; give one: "
            "VitClassifier(model=...)"
        )
