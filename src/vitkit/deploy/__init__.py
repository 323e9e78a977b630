"""Using a trained model."""

from vitkit.deploy.predict import Prediction, pictures, predict

__all__ = ["Prediction", "pictures", "predict"]
