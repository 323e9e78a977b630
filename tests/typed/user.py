"""A user's file, which calls every public name of vitkit: a type checker reads it, nobody runs it."""

from pathlib import Path
from typing import assert_type

import numpy as np
import torch
from PIL import Image

import vitkit
from vitkit import Classifier, Preprocessing, VisionTransformer, ViTConfig

print(vitkit.__version__)
photographs = [Path("one.jpg"), Path("two.jpg")]

# A model, from a file and to a file
classifier = vitkit.load("google/vit-base-patch16-224", labels=["ant", "bee"], quiet=True)
assert_type(classifier, Classifier)
print(classifier.labels[0], classifier.preprocessing.size, classifier.device)
assert_type(vitkit.save(classifier, "model"), Path)
images = classifier.batch(photographs)
probabilities: torch.Tensor = classifier.probabilities(classifier.logits(images))
put_together = Classifier(classifier.model, Preprocessing(size=(256, 256)), ("ant", "bee"))

# A network, by its name
config = vitkit.vit("B/16", image=384, classes=10)
assert_type(config, ViTConfig)
network = vitkit.create("B/16", classes=10, weights="imagenet21k/ViT-B_16", quiet=True)
again = VisionTransformer(config)
states = vitkit.hidden_states(again, torch.zeros(1, 3, 384, 384), [6])
print(states[6].shape)
with vitkit.recording(again) as kept:
    again(torch.zeros(1, 3, 384, 384))

# Images to answers
answers = vitkit.predict(classifier, "photos/", "more/", top=3, runtime="onnx")
for answer in answers:
    print(answer.name, answer.label, answer.probability)
print(answers.to_frame())
vitkit.predict(classifier, *photographs)
vitkit.predict(classifier, np.zeros((224, 224, 3), np.uint8), Image.new("RGB", (8, 8)))
masks = vitkit.segment("model", "photos/", to="masks")
print(masks[0].shares, masks.to_frame(), masks.path)
vitkit.sort("model", "photos/", into="sorted", by="copy")
vitkit.batch("model", "photos/", into=Path("answers"), shard="1/4")
vitkit.watch("model", "camera/", to="answers.jsonl")
vitkit.app(classifier, port=8080)
vitkit.serve("model", port=8080)

# A folder to a model
made = vitkit.finetune("photos/", minutes=2, workdir="run", optim__lr=0.03)
print(made.accuracy, made.classifier.labels)
of_pixels = vitkit.finetune("photos/", masks="masks/", legend="legend.txt", ignore=11)
lesson = vitkit.teach("model", add=["photos/cat"])
trained = vitkit.train("digits", length="2 epochs", progress=print)
vitkit.train("digits", track=lambda step, values: print(step, values["loss"]))
print(trained.classifier.labels, trained.run_dir, trained.rows())
recipe = vitkit.recipes.digits()
assert_type(recipe, vitkit.Recipe)
planned = vitkit.plan("digits", gpus=8)
written = vitkit.report("run", output="report.html")
estimator = vitkit.VitClassifier("model").fit(photographs, ["ant", "bee"])

# Measured
print(
    vitkit.evaluate(
        "model", "photos/", columns=vitkit.Columns(label="species"), device=torch.device("cpu")
    ).accuracy
)
print(vitkit.evaluate("model", "photos/", masks="masks/")["miou"])
print(vitkit.fewshot("model", "photos/", shots=5).to_frame())
print(vitkit.probe("model", "photos/", method="logistic", to="probed").to_frame())
print(vitkit.features("model", "photos/", output="features.parquet").path)
print(vitkit.suite("vtab", "model", tasks=["caltech101"]).to_frame())
print(vitkit.study("positions", seeds=1))
print(vitkit.bench("model", batch=[1, 8]).to_frame())

# Looked at
print(vitkit.show("model"), vitkit.list_models("B/16", image=[224, 384]))
inspected = vitkit.inspect("model", "one.jpg", figures=["rollout"])
compared = vitkit.compare("model", "other", "photos/")
examined = vitkit.doctor(model="model")
statistics = vitkit.stats("photos/", sheet="sheet.jpg")
reviewed = vitkit.review("photos/", output="review.html")

# To other programs
vitkit.convert("model", "vit.npz", to="google")
vitkit.export(classifier, output="model.onnx", precision="int8", calibrate="photos/")
fast = vitkit.faster("runs/photos", lose=1.0, purpose="throughput")
print(fast.chosen.milliseconds, fast.line.best[0].name, fast.path)
vitkit.pack("photos/", "shards/", format="parquet", columns=vitkit.Columns(label="species"))
vitkit.push("model", "me/model", private=True)

# What packages have
augmentation = vitkit.data.Augmentation()
print(vitkit.models.parameters(config), vitkit.evaluation.Metric, vitkit.recipes.Data)

# What can be put right

try:
    vitkit.load("downloads/model.safetensors")
except vitkit.BadWeights as error:
    assert_type(error, vitkit.BadWeights)
for kind in (
    vitkit.BadSettings, vitkit.BadImage, vitkit.BadData, vitkit.BadRun, vitkit.Unsupported,
    vitkit.Unavailable, vitkit.WrongArgument, vitkit.Diverged, vitkit.WorkerDied, vitkit.RankLost,
):  # fmt: skip
    refused: type[vitkit.VitkitError] = kind
stopped: type[BaseException] = vitkit.Interrupted
