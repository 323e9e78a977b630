"""Using a trained model: predictions, and what computes them."""

from vitkit.deploy.items import Item, pictures
from vitkit.deploy.opening import open_runtime
from vitkit.deploy.predict import Prediction, predict
from vitkit.deploy.runtimes import Runtime, eager

__all__ = ["Item", "Prediction", "Runtime", "eager", "open_runtime", "pictures", "predict"]
