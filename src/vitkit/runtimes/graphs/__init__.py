"""A model as a graph for another library: ONNX, OpenVINO, a program of torch.export; and in int8."""
