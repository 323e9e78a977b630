"""What people would run instead of vitkit's commands, for end_to_end.py: a task by timm, or by
Transformers. Each is written as the library's own examples are, float32 as is their default, with
one worker process for a folder and a data set.

    python benchmarks/peers.py timm evaluate WEIGHTS IMAGES STEPS
"""

import io
import sys
from pathlib import Path


def pictures(path: str):
    """The photographs of a file or a folder, as a data set of paths."""
    files = [Path(path)]
    if files[0].is_dir():
        files = sorted(files[0].iterdir())
    return files


class Rows:
    """A data set of the images and labels of a parquet file, each through a transform."""

    def __init__(self, path: str, transform):
        import pyarrow.parquet as pq

        table = pq.read_table(path)
        self.images = [image["bytes"] for image in table.column("image").to_pylist()]
        self.labels = table.column("label").to_pylist()
        self.transform = transform

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        from PIL import Image

        return self.transform(Image.open(io.BytesIO(self.images[i])).convert("RGB")), self.labels[i]


class Files(Rows):
    """A data set of files, without labels."""

    def __init__(self, path: str, transform):
        files = pictures(path)
        self.images = [file.read_bytes() for file in files]
        self.labels = [0] * len(files)
        self.transform = transform


def timm_model(weights: str, classes: int = 1000):
    """timm's ViT-Ti/16 with these weights, and its transform for evaluation."""
    import timm
    from timm.data import create_transform, resolve_model_data_config

    name = "vit_tiny_patch16_224"
    head = {"num_classes": classes}
    model = timm.create_model(name, checkpoint_path=weights)
    if classes != 1000:
        model.reset_classifier(**head)
    config = resolve_model_data_config(model)
    return model, create_transform(**config, is_training=False), config


def timm_answers(weights: str, data_class, path: str) -> None:
    """The likeliest classes of images; the accuracy, if they have labels."""
    import torch
    from torch.utils.data import DataLoader

    model, transform, _ = timm_model(weights)
    model.eval()
    data = data_class(path, transform)
    workers = min(len(data) - 1, 1)
    right = 0
    with torch.inference_mode():
        for images, labels in DataLoader(data, batch_size=64, num_workers=workers):
            best = model(images).softmax(-1).topk(5)
            right += int((best.indices[:, 0] == labels).sum())
    print(f"{right / len(data):.4f}")


def timm_finetune(weights: str, own: str, steps: int) -> None:
    """SGD with cosine decay, as `vitkit finetune`; then the accuracy on the test part."""
    import torch
    from timm.data import create_transform
    from torch.utils.data import DataLoader

    model, transform, config = timm_model(weights, 2)
    augmented = create_transform(**config, is_training=True, auto_augment=None, color_jitter=None)
    train = DataLoader(
        Rows(f"{own}-train.parquet", augmented), 32, shuffle=True, drop_last=True, num_workers=1
    )
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    model.train()
    step = 0
    while step < steps:
        for images, labels in train:
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            step += 1
            if step == steps:
                break
    model.eval()
    right = seen = 0
    with torch.inference_mode():
        for images, labels in DataLoader(Rows(f"{own}-test.parquet", transform), 64, num_workers=1):
            right += int((model(images).argmax(-1) == labels).sum())
            seen += len(labels)
    torch.save(model.state_dict(), f"{own}.pt")
    print(f"{right / seen:.4f}")


def transformers_answers(weights: str, task: str, path: str) -> None:
    """The pipeline's answers, in batches of 32."""
    from PIL import Image
    from transformers import pipeline

    classify = pipeline("image-classification", weights)
    if task == "evaluate":
        rows = Rows(path, lambda image: image)
        labels = [classify.model.config.id2label[label] for label in rows.labels]
        images = [rows[i][0] for i in range(len(rows))]
        answers = classify(images, batch_size=32, top_k=1)
        right = sum(
            answer[0]["label"] == label for answer, label in zip(answers, labels, strict=True)
        )
        print(f"{right / len(labels):.4f}")
        return
    images = [Image.open(file).convert("RGB") for file in pictures(path)]
    for answer in classify(images, batch_size=32, top_k=5):
        print(answer[0])


def transformers_finetune(weights: str, own: str, steps: int) -> None:
    """The Trainer, with the processor's own preprocessing."""
    import torch
    from transformers import (
        AutoImageProcessor,
        AutoModelForImageClassification,
        Trainer,
        TrainingArguments,
    )

    processor = AutoImageProcessor.from_pretrained(weights)
    model = AutoModelForImageClassification.from_pretrained(
        weights, num_labels=2, ignore_mismatched_sizes=True
    )

    def transform(image):
        return processor(image, return_tensors="pt")["pixel_values"][0]

    def collate(rows):
        images, labels = zip(*rows, strict=True)
        return {"pixel_values": torch.stack(images), "labels": torch.tensor(labels)}

    arguments = TrainingArguments(
        output_dir=f"{own}-transformers",
        max_steps=steps,
        per_device_train_batch_size=32,
        per_device_eval_batch_size=64,
        learning_rate=1e-4,
        dataloader_num_workers=1,
        save_strategy="no",
        report_to=[],
    )
    trainer = Trainer(
        model,
        arguments,
        data_collator=collate,
        train_dataset=Rows(f"{own}-train.parquet", transform),
        eval_dataset=Rows(f"{own}-test.parquet", transform),
        compute_metrics=lambda given: {
            "accuracy": float((given.predictions.argmax(-1) == given.label_ids).mean())
        },
    )
    trainer.train()
    print(trainer.evaluate())
    trainer.save_model()


def main() -> None:
    library, task, weights, path, steps = sys.argv[1:]
    if library == "timm" and task == "finetune":
        timm_finetune(weights, path, int(steps))
    elif library == "timm":
        data_class = Rows if task == "evaluate" else Files
        timm_answers(weights, data_class, path)
    elif task == "finetune":
        transformers_finetune(weights, path, int(steps))
    else:
        transformers_answers(weights, task, path)


if __name__ == "__main__":
    main()
