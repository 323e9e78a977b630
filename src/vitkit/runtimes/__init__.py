"""Runtimes that compute logits of images: PyTorch, ONNX Runtime, OpenVINO, and exported files."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
