"""Trained models as files for other programs, measured on real images before they get their name."""

from vitkit.system.lazy import lazily

_FILE_OF = {
    "Agreement": "agreement",
    "ENDINGS": "exporting",
    "Export": "exporting",
    "FILES": "exporting",
    "LARGEST_BATCH": "writers",
    "LEAST": "agreement",
    "OPSET": "writers",
    "Trial": "agreement",
    "agree": "agreement",
    "calibrated_openvino": "int8",
    "check": "exporting",
    "described": "exporting",
    "export": "exporting",
    "exported_temporarily": "temporary",
    "features_on": "temporary",
    "open_runtime": "temporary",
    "load_nncf": "int8",
    "missing_packages": "exporting",
    "needs_calibration": "exporting",
    "prepared_images": "agreement",
    "quantise_onnx": "int8",
    "quiet": "writers",
    "sample_trial": "agreement",
    "size_of": "exporting",
    "to_calibrate": "agreement",
    "trial_on": "agreement",
    "write": "exporting",
    "wrong": "agreement",
}
__all__ = [*_FILE_OF]
__getattr__ = lazily(__name__, _FILE_OF)
