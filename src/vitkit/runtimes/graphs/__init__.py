"""Models as graphs for other libraries: ONNX, OpenVINO, torch.export programs; and quantisation to int8."""
