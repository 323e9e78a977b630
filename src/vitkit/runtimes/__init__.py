"""Runtimes that compute logits of images: PyTorch, ONNX Runtime, OpenVINO, and exported files."""

from vitkit.system.lazy import lazily

_FILES = {
    "exported": (
        "Compute Exported FILES FileRuntime KEY Limits MERGED PictureRuntime STRANGENESS Weights "
        "is_exported takes_pictures threads"
    ),
    "fastest": "Fastest NAME VERSIONED folder_of remembered",
    "identity": "Identity digest_of_classifier identity_of",
    "onnx_of_run": (
        "digest_of_folder is_kept is_of_an_earlier_model kept_file kept_runtime run_of tie was_kept"
    ),
    "approximations": "check_less_work exiting fit_exits merging",
    "libraries": (
        "LIBRARIES PACKAGES RuntimeName DIGEST_KEY NO_DIGEST check_installed check_onnx_precision core "
        "open_file open_model_file open_onnx open_openvino readers_of with_digest"
    ),
    "pytorch": (
        "Eager FeaturesOnRuntime OnRuntime answering_features check_answer compiled eager "
        "least_of of_file on_runtime with_strangeness"
    ),
    "runtime": "Runtime SaysUnknown",
}
__all__, __getattr__, __dir__ = lazily(__name__, _FILES)
