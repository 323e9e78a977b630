"""Using a trained model: predictions, and what computes them."""

from vitkit.deploy.predict import Prediction, pictures, predict
from vitkit.deploy.runtimes import Runtime, eager

__all__ = ["Prediction", "Runtime", "eager", "pictures", "predict"]
