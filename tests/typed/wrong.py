"""Mistakes that a type checker finds in a user's file: each line below has one."""

import vitkit

vitkit.predict("model", "photos/", topp=3)
vitkit.finetune("photos/", minutes="two")
vitkit.export("model", output="model.onnx", precision="int4")
[answer.labell for answer in vitkit.predict("model", "photos/")]
vitkit.lod("model")
vitkit.weights.lod("model")
print(vitkit.load("model", quiet=True).preprocessing.sizes)
vitkit.Preprocessing(size="large")
