"""Using a trained model."""

from vitkit.serve.predict import Prediction, pictures, predict

__all__ = ["Prediction", "pictures", "predict"]
