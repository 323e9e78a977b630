"""Using a trained model."""

from vitkit.deploy.predict import Prediction, pictures, predict
from vitkit.deploy.runtimes import Runtime, eager

__all__ = ["Prediction", "Runtime", "eager", "pictures", "predict"]
