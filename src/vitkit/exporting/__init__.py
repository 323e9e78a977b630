"""Trained models as files for other programs, measured on real images before they get their name."""

from vitkit.system.lazy import lazily

_FILES = {
    "agreement": (
        "Agreement Trial agree own_trial prepared_images sample_trial to_calibrate trial_on"
    ),
    "bounds": "LEAST conclusion keeps_accuracy wrong",
    "browser": "WebRuntime find_web_runtime",
    "exporting": (
        "ENDINGS Export FILES check described export missing_packages needs_calibration size_of "
        "write written_whole"
    ),
    "int8": "calibrated_openvino load_nncf quantise_onnx",
    "temporary": "features_on open_runtime",
    "writers": "LARGEST_BATCH OPSET quiet",
}
__all__, __getattr__, __dir__ = lazily(__name__, _FILES)
