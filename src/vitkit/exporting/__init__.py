"""Trained models as files for other programs, measured on real images before they get their name."""

from vitkit.system.lazy import lazily

_FILE_OF = {
    "Agreement": "agreement",
    "ENDINGS": "request",
    "Export": "request",
    "FILES": "request",
    "LARGEST_BATCH": "writers",
    "LEAST": "agreement",
    "OPSET": "writers",
    "Trial": "trial",
    "agree": "agreement",
    "calibrated_openvino": "int8",
    "check": "request",
    "described": "exporting",
    "export": "exporting",
    "exported_temporarily": "temporary",
    "features_on": "temporary",
    "open_runtime": "temporary",
    "load_nncf": "int8",
    "missing_packages": "request",
    "needs_calibration": "request",
    "prepared_images": "agreement",
    "quantise_onnx": "int8",
    "quiet": "writers",
    "sample_trial": "trial",
    "size_of": "request",
    "to_calibrate": "trial",
    "trial_on": "trial",
    "write": "exporting",
    "wrong": "agreement",
}
__all__ = [*_FILE_OF]
__getattr__ = lazily(__name__, _FILE_OF)
