"""The peers of first_hour.py: what people would run instead of `vitkit finetune`, each a process that
says on its way how good it is by now, a line of JSON each time: [seconds, accuracy].

The seconds are those since the process was started, without those in which it was watched: the
evaluations, in bfloat16 so that they are short, and the measurement of a step. That step says how
many fit into the time, so that every learning rate has come down when the time is up.

    transformers  the Trainer with the recipe of its image-classification example: AdamW 2e-5, batch
                  8, 5 epochs at most, Inception crops and flips, float32
    timm          its transforms and data configuration around the usual loop: SGD 0.01 with momentum
                  and a cosine, batch 32, gradients clipped, float32
    scikit-learn  standardised features of timm's model, and LogisticRegression

    python benchmarks/first_hour_peers.py timm WEIGHTS OWN SECONDS POINTS STARTED
"""

import json
import sys
import time
from copy import deepcopy

import torch
from peers import Rows, timm_model
from torch import Tensor, nn
from torch.utils.data import DataLoader

BATCH = 64  # images of a forward pass in an evaluation
TIMED = 3  # steps, after one that warms up
EPOCHS = 5  # of the Trainer's example
SEED = 0


class Watch:
    """The time since the process was started, without that of being watched."""

    def __init__(self, started: float, limit: float):
        self.started = started
        self.limit = limit
        self.watched = 0.0

    def seconds(self) -> float:
        return time.monotonic() - self.started - self.watched

    def is_over(self) -> bool:
        return self.seconds() >= self.limit

    def unseen(self, function, *arguments):
        """What a function returns; its time does not count."""
        began = time.monotonic()
        value = function(*arguments)
        self.watched += time.monotonic() - began
        return value

    def point(self, accuracy, *arguments) -> None:
        """Say how good the model is by now; the time of finding out does not count."""
        reached = self.seconds()
        value = self.unseen(accuracy, *arguments)
        print(json.dumps([round(reached, 2), round(value, 4)]), flush=True)


class Test:
    """The test images as tensors, ready for any number of evaluations."""

    def __init__(self, own: str, transform):
        rows = Rows(f"{own}-test.parquet", transform)
        images, labels = zip(*(rows[i] for i in range(len(rows))), strict=True)
        self.images = torch.stack(images)
        self.labels = torch.tensor(labels)

    @torch.no_grad()
    def outputs(self, model) -> Tensor:
        """What a model says of every image: float32 (N, K)."""
        with torch.autocast("cpu", torch.bfloat16):
            return torch.cat([model(batch).float() for batch in self.images.split(BATCH)])

    def accuracy(self, model: nn.Module) -> float:
        """The share of images that a model is right on; it is in training afterwards."""
        model.eval()
        right = self.outputs(lambda images: logits(model(images))).argmax(1) == self.labels
        model.train()
        return right.double().mean().item()


def logits(output) -> Tensor:
    """The logits in what a model returns: Transformers' have a name."""
    if isinstance(output, Tensor):
        return output
    return output.logits


def seconds_of_a_step(model: nn.Module, data: Rows, batch: int) -> float:
    """How long a training step takes; the model stays as it is."""
    copy = deepcopy(model).train()
    times = []
    for images, labels in DataLoader(data, batch, num_workers=1):
        began = time.perf_counter()
        nn.functional.cross_entropy(logits(copy(images)), labels).backward()
        times.append(time.perf_counter() - began)
        if len(times) == 1 + TIMED:
            break
    return sum(times[1:]) / TIMED


def by_timm(weights: str, own: str, watch: Watch, points: int) -> None:
    """SGD until the time is up."""
    from timm.data import create_transform

    # The model, the images, and how many steps there is time for
    classes = class_count(own)
    model, transform, config = timm_model(weights, classes)
    data = Rows(f"{own}-train.parquet", create_transform(**config, is_training=True))
    # No full batch, no time: as if a step took a moment
    step_seconds = max(watch.unseen(seconds_of_a_step, model, data, 32), 0.01)
    steps = max(int((watch.limit - watch.seconds()) / step_seconds), 1)
    test = watch.unseen(Test, own, transform)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)

    # The loop
    model.train()
    done = 0
    while done < steps and not watch.is_over():
        for images, labels in DataLoader(data, 32, shuffle=True, drop_last=True, num_workers=1):
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            done += 1
            if done == steps or watch.is_over():
                break
            if is_due(done, steps, points):
                torch.save(model.state_dict(), f"{own}.pt")
                watch.point(test.accuracy, model)
    torch.save(model.state_dict(), f"{own}.pt")
    watch.point(test.accuracy, model)


def is_due(done: int, steps: int, points: int) -> bool:
    """Whether one of so many evaluations, evenly spread, follows this step."""
    return done * points // steps > (done - 1) * points // steps


def by_transformers(weights: str, own: str, watch: Watch, points: int) -> None:
    """The Trainer, with the transforms of its example."""
    from torchvision.transforms import v2
    from transformers import (
        AutoImageProcessor,
        AutoModelForImageClassification,
        Trainer,
        TrainerCallback,
        TrainingArguments,
    )

    # The model and the transforms
    processor = AutoImageProcessor.from_pretrained(weights)
    model = AutoModelForImageClassification.from_pretrained(
        weights, num_labels=class_count(own), ignore_mismatched_sizes=True
    )
    shorter_side = processor.size["shortest_edge"]
    side = processor.crop_size["height"]
    normalise = [
        v2.PILToTensor(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(processor.image_mean, processor.image_std),
    ]
    augmented = v2.Compose([v2.RandomResizedCrop(side), v2.RandomHorizontalFlip(), *normalise])
    plain = v2.Compose([v2.Resize(shorter_side), v2.CenterCrop(side), *normalise])

    # The images, and how many steps there is time for
    data = Rows(f"{own}-train.parquet", augmented)
    step_seconds = watch.unseen(seconds_of_a_step, model, data, 8)
    fitting = max(int((watch.limit - watch.seconds()) / step_seconds), 1)
    steps = min(EPOCHS * -(-len(data) // 8), fitting)
    test = watch.unseen(Test, own, plain)

    class Watched(TrainerCallback):
        """Saves and evaluates now and then, and stops when the time is up."""

        def on_step_end(self, arguments, state, control, **_):
            if watch.is_over():
                control.should_training_stop = True
            elif state.global_step < steps and is_due(state.global_step, steps, points):
                model.save_pretrained(f"{own}-transformers")
                watch.point(test.accuracy, model)

    arguments = TrainingArguments(
        output_dir=f"{own}-transformers",
        max_steps=steps,
        per_device_train_batch_size=8,
        learning_rate=2e-5,
        dataloader_num_workers=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        logging_strategy="no",
        use_cpu=True,
        seed=SEED,
    )

    def collate(rows):
        images, labels = zip(*rows, strict=True)
        return {"pixel_values": torch.stack(images), "labels": torch.tensor(labels)}

    trainer = Trainer(
        model, arguments, data_collator=collate, train_dataset=data, callbacks=[Watched()]
    )
    trainer.train()
    trainer.save_model()
    watch.point(test.accuracy, model)


def by_scikit_learn(weights: str, own: str, watch: Watch) -> None:
    """Features of timm's model, and a logistic regression on them."""
    import joblib
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model, transform, _ = timm_model(weights, 0)
    model.eval()
    rows = Rows(f"{own}-train.parquet", transform)
    with torch.inference_mode():
        batches = DataLoader(rows, BATCH, num_workers=1)
        features = torch.cat([model(images) for images, _ in batches])
    fitted = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    fitted.fit(features.numpy(), rows.labels)
    joblib.dump(fitted, f"{own}.joblib")

    def accuracy() -> float:
        test = Test(own, transform)
        return fitted.score(test.outputs(model).numpy(), test.labels.numpy())

    watch.point(accuracy)


def class_count(own: str) -> int:
    """How many classes the images of both parts have: labels count from 0."""
    labels = [*Rows(f"{own}-train.parquet", None).labels, *Rows(f"{own}-test.parquet", None).labels]
    return max(labels) + 1


def main() -> None:
    library, weights, own, seconds, points, started = sys.argv[1:]
    torch.manual_seed(SEED)
    watch = Watch(float(started), float(seconds))
    if library == "timm":
        by_timm(weights, own, watch, int(points))
    elif library == "transformers":
        by_transformers(weights, own, watch, int(points))
    elif library == "scikit-learn":
        by_scikit_learn(weights, own, watch)
    else:
        raise SystemExit(f"no peer {library}; there are timm, transformers and scikit-learn")


if __name__ == "__main__":
    main()
