"""What each command of `vitkit` takes and does. A class is its settings, and its docstring and comments the help text."""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from tyro.conf import Positional, arg

from vitkit.data import Columns, Source
from vitkit.train import Recipe
from vitkit.train import train as run
from vitkit.weights import Classifier


@dataclass
class Train:
    """Train a model by a recipe, or continue the run that is in the directory."""

    recipe: Annotated[Recipe, arg(name="")]
    workdir: Path | None = None
    """Directory of the run; runs/NAME unless told. Run the same command again to continue it."""
    device: str = "auto"
    """cpu, cuda, cuda:1 or mps; auto takes the best there is."""


@dataclass
class Evaluate:
    """Accuracy of a model on images with labels; every example counts exactly once."""

    model: Positional[str]
    """A run, a model directory, a file of weights in any format, or the name of a published model."""
    data: Positional[str]
    """Folder, manifest, parquet file, or digits."""
    split: Literal["train", "val", "test"] | None = None
    """Which part of the data; unless told its test part, else its val part, else what the run set aside, else all."""
    columns: Annotated[Columns, arg(name="data.columns")] = field(default_factory=Columns)
    """Which columns of a table hold the image and its label; found by their names unless told."""
    on_bad_image: Literal["fail", "skip"] = "fail"
    """What a broken image does: stop, or be left out and said."""
    batch: int = 64
    """Images a forward pass."""
    workers: int = -1
    """Processes that decode images; -1 follows the CPU quota."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Arithmetic of the matrix products."""
    device: str = "auto"
    """cpu, cuda, cuda:1 or mps; auto takes the best there is."""
    json: bool = False
    """Print the metrics as one line of JSON."""


@dataclass
class Predict:
    """The likeliest classes of images, with their probabilities."""

    model: Positional[str]
    """A run, a model directory, a file of weights in any format, or the name of a published model."""
    images: Positional[tuple[str, ...]]
    """Image files, folders of images, data sets (their test part), or digits."""
    top: int = 5
    """Classes to name for each image."""
    limit: int = 0
    """At most so many images, spread evenly; 0 is all."""
    sheet: Path | None = None
    """Draw images and predictions into this PNG file."""
    device: str = "auto"
    """cpu, cuda, cuda:1 or mps; auto takes the best there is."""
    json: bool = False
    """Print one line of JSON an image."""


@dataclass
class Models:
    """Every named model with its parameters, its tokens and multiply-accumulates at each size, and what a training costs."""

    image: tuple[int, ...] = (224, 384)
    """Sides of square images in pixels; a patch that does not divide one takes the multiple just below."""
    classes: int = 1000
    """Classes of the head."""
    epochs: float = 7
    """Length of the training whose exaFLOPs are shown, at the first size; 7 epochs of JFT-300M in most of Table 6."""
    examples: float = 303e6
    """Images of an epoch."""
    names: Positional[tuple[str, ...]] = field(default=())
    """Only these; any size with any patch, such as B/20 or R101+B/32."""


@dataclass
class Convert:
    """Write a model in another library's format, and prove that it is the same model there."""

    source: Positional[str]
    """A run, a model directory, a file of weights in any format, or the name of a published model."""
    dest: Positional[Path]
    """What to write: a directory (huggingface, native, timm) or a file (.npz, .safetensors, .pth)."""
    to: Literal["huggingface", "timm", "google", "torchvision", "native"]
    """The format."""
    approximate: bool = False
    """Write it also where the other library computes a little differently, such as another form of the GELU."""
    image: tuple[int, int] | None = None
    """Height and width that the position table is for, where the file does not say and it is no square."""
    heads: int | None = None
    """Attention heads, where the file does not say."""


@dataclass
class Show:
    """What a model is: architecture, cost, preprocessing, classes, where it came from."""

    model: Positional[str]
    """A run, a model directory, a file of weights in any format, or the name of a published model."""
    image: tuple[int, int] | None = None
    """Height and width that the position table is for, where the file does not say and it is no square."""
    heads: int | None = None
    """Attention heads, where the file does not say."""
    json: bool = False
    """Print one JSON object."""


@dataclass
class Compare:
    """Do two models compute the same? The largest difference in every layer, and how often they agree."""

    one: Positional[str]
    """A model, in any format."""
    two: Positional[str]
    """Another."""
    images: Positional[tuple[str, ...]]
    """Image files, folders of images, data sets (their test part), or digits."""
    limit: int = 64
    """At most so many images, spread evenly; 0 is all."""
    tolerance: float = 1e-4
    """Largest difference of the logits that counts as the same; a larger one makes the exit status 1."""
    json: bool = False
    """Print one JSON object."""


@dataclass
class Push:
    """Upload a model directory to the Hugging Face hub, model card and all."""

    folder: Positional[Path]
    """A run, or a model directory."""
    name: Positional[str]
    """The repository, such as you/your-model; it is made if it is not there."""
    private: bool = False
    """Make it a private one."""


def train(command: Train) -> int:
    """`vitkit train`."""
    from vitkit.inspection import report

    workdir = command.workdir or Path("runs") / command.recipe.name
    run(command.recipe, workdir, command.device)
    page = report(workdir)
    print(f"wrote {workdir / 'model'} and {page}")
    print(f"next: vitkit evaluate {workdir} DATA, or vitkit predict {workdir} IMAGE...")
    return 0


def evaluate(command: Evaluate) -> int:
    """`vitkit evaluate`."""
    from rich.progress import track

    from vitkit.data import check_images, default_workers, eval_batches, subset
    from vitkit.evaluate import accuracy, align
    from vitkit.parallel import autocast, cpus, pick_device
    from vitkit.weights import load

    place, found = pick_device(command.device), _with_head(load(command.model), command.model)
    source, part = _part(command, found.origin)
    if command.on_bad_image == "skip":
        bad = dict(check_images(source, cpus()))
        source = subset(source, [i for i in range(len(source)) if i not in bad])
        for sentence in bad.values():
            print(f"left out: {sentence}", file=sys.stderr)
    numbers = align(source.labels, found.labels)
    workers = default_workers(source) if command.workers < 0 else command.workers
    batches = eval_batches(source, found.preprocessing, command.batch, workers)
    shown = track(batches, "evaluating", console=Console(stderr=True), transient=True)
    aligned = (batch._replace(labels=numbers[batch.labels]) for batch in shown)
    with autocast(place, command.precision):
        metrics = dict(accuracy(aligned, found.preprocessing.normalise, place)(found.model.to(place)))
    if command.json:
        print(json.dumps(metrics))
        return 0
    print(f"{command.model} on {part}")
    table = Table("metric", "value")
    for name, value in metrics.items():
        table.add_row(name, f"{value:.2%}" if name.startswith("top") else f"{value:,.4g}")
    Console().print(table)
    print(f"next: vitkit predict {command.model} IMAGE...")
    return 0


def _with_head(found: Classifier, name: str) -> Classifier:
    if not found.labels:
        raise ValueError(
            f"{name} has no classification head, so it names no classes; vitkit show {name} says what it is"
        )
    return found


def _part(command: Evaluate, origin: dict) -> tuple[Source, str]:
    """The images to evaluate on, and what to call them: never those that the model was trained on, where that is known."""
    from vitkit.data import open_source, open_splits

    trained_on = origin.get("data", "")
    paths = Path(command.data), Path(trained_on)
    if trained_on and (command.data == trained_on or (paths[0].exists() and paths[0].resolve() == paths[1].resolve())):
        splits = open_splits(command.data, command.columns, origin.get("seed", 0))
        chosen = getattr(splits, command.split or "test")
        if splits.made and chosen:
            return (
                chosen,
                f"{len(chosen):,} images of {command.data}, the {command.split or 'test'} part of its own training",
            )
    source = open_source(command.data, command.columns, command.split)
    return source, f"{len(source):,} images of {command.data}"


def predict(command: Predict) -> int:
    """`vitkit predict`; 1 where an image was broken, after all the others are done."""
    from rich.progress import track

    from vitkit import serve
    from vitkit.data import open_image
    from vitkit.inspection.sheet import Tile, contact_sheet
    from vitkit.weights import load

    found = _with_head(load(command.model), command.model)
    items = _spread(list(serve.pictures(command.images)), command.limit)
    asked = serve.predict(found, items, command.top, device=command.device)
    answers = list(track(asked, "predicting", len(items), console=Console(stderr=True), transient=True))
    table = Table("prediction", "probability", "image", "next")
    table.columns[2].overflow = table.columns[3].overflow = "fold"
    for answer in answers:
        if command.json:
            print(
                json.dumps(answer._asdict() if answer.error is None else {"name": answer.name, "error": answer.error})
            )
        elif answer.error is None:
            others = zip(answer.labels[1:], answer.probabilities[1:], strict=True)
            rest = ", ".join(f"{name} {share:.1%}" for name, share in others if share >= 0.001)
            wrong = f" (is {answer.truth})" if answer.truth not in (None, answer.labels[0]) else ""
            row = (answer.labels[0] + wrong, f"{answer.probabilities[0]:.1%}", answer.name, rest)
            table.add_row(*map(escape, row))
    if table.row_count:
        Console().print(table)
    for answer in answers:
        if answer.error is not None and not command.json:
            print(f"not classified: {answer.error}", file=sys.stderr)
    good = [(item, answer) for item, answer in zip(items, answers, strict=True) if answer.error is None]
    if command.sheet and good:
        tiles = [
            Tile(
                open_image(item.read(), item.name).pixels(),
                f"{answer.labels[0]} {answer.probabilities[0]:.0%}",
                None if answer.truth is None else answer.truth == answer.labels[0],
            )
            for item, answer in good
        ]
        print(f"wrote {contact_sheet(tiles, command.sheet)}", file=sys.stderr if command.json else sys.stdout)
    if not command.json:
        print(
            f"next: vitkit predict {command.model} IMAGE... --json, or --sheet FILE.png"
            if not command.sheet
            else f"next: open {command.sheet}"
        )
    return 0 if len(good) == len(answers) else 1


def models(command: Models) -> int:
    """`vitkit models`."""
    from dataclasses import replace

    from vitkit.models import NAMES, ViTConfig, cost, exaflops, named

    def number(value: float) -> str:
        return f"{value:,.2f}" if value < 1000 else f"{value:,.0f}"

    if not command.image or min(command.image) < 1:
        raise ValueError(f"image is {command.image}; give one or more sides in pixels, such as --image 224 384")
    sizes = [column for side in command.image for column in (f"tokens\n{side}", f"GMACs\n{side}")]
    table = Table("model", "parameters", *sizes, "exaFLOPs")
    for column in table.columns[1:]:
        column.justify = "right"
    for name in command.names or NAMES:
        config = named(name, classes=command.classes)
        stride = config.stride if isinstance(config, ViTConfig) else 1
        sides = [max(side // stride, 1) * stride for side in command.image]
        made = [config if name == "LeNet-5" else replace(config, image=(side, side)) for side in sides]
        found = [cost(one) for one in made]
        columns = [text for one in found for text in (f"{one.tokens:,}", number(one.macs / 1e9))]
        training = exaflops(made[0], command.epochs * command.examples)
        table.add_row(name, f"{found[0].parameters:,}", *columns, number(training))
    Console().print(table)
    print(
        f"exaFLOPs: {command.epochs:g} epochs of {command.examples:,.0f} images at {command.image[0]} x {command.image[0]}."
    )
    print("LeNet-5 knows 32 x 32 only. Any size goes with any patch: vitkit models B/20 R101+B/32 R101x4.")
    print("next: vitkit train digits")
    return 0


def convert(command: Convert) -> int:
    """`vitkit convert`."""
    from vitkit import weights

    classifier = weights.load(command.source, image=command.image, heads=command.heads)
    proof = weights.convert(classifier, command.dest, command.to, command.approximate)
    print(f"wrote {proof.path}; read back, every tensor is the same to the bit")
    for difference in proof.differences:
        print(f"computed differently there: {difference}")
    if proof.largest is None:
        print(f"no library is here to open {command.to} with, so its logits were not compared")
    else:
        print(f"{proof.library}: logits differ by {proof.largest:.1e} at most (the largest logit is {proof.scale:.3g})")
    if proof.pixels is not None:
        print(f"its own preprocessing of a test image differs by {proof.pixels:.2g} of 255 levels at most")
    print(f"next: vitkit compare {command.source} {proof.path} IMAGE...")
    return 0


def show(command: Show) -> int:
    """`vitkit show`."""
    from dataclasses import asdict

    from vitkit.models import cost
    from vitkit.weights import load
    from vitkit.weights.description import named

    found = load(command.model, image=command.image, heads=command.heads, quiet=command.json)
    config, costs = found.model.config, cost(found.model.config)
    if command.json:
        rest = {"parameters": costs.parameters, "tokens": costs.tokens, "macs": costs.macs}
        values = {"model": asdict(config), **rest, "preprocessing": found.preprocessing.to_json()}
        print(json.dumps(values | {"labels": found.labels, "origin": found.origin}))
        return 0
    table = Table(show_header=False)
    table.add_row("model", named(config))
    table.add_row("parameters", f"{costs.parameters:,}")
    table.add_row("tokens", f"{costs.tokens:,}")
    table.add_row("GMACs", f"{costs.macs / 1e9:.2f}")
    for name, value in asdict(config).items():
        table.add_row(f"  {name}", escape(" x ".join(map(str, value)) if name == "image" else str(value)))
    table.add_row("preprocessing", str(found.preprocessing))
    names = ", ".join(found.labels[:5]) + (", ..." if len(found.labels) > 5 else "")
    table.add_row("classes", f"{len(found.labels):,}{f' ({escape(names)})' if names else ''}")
    for name, value in found.origin.items():
        shown = value if not isinstance(value, dict) else ", ".join(f"{k} {_number(v)}" for k, v in value.items())
        table.add_row(f"origin: {escape(name)}", escape(str(shown)))
    Console().print(table)
    print(f"next: vitkit predict {command.model} IMAGE...")
    return 0


def _number(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def compare(command: Compare) -> int:
    """`vitkit compare`; 1 where the logits differ by more than the tolerance."""
    from rich.progress import track

    from vitkit import serve
    from vitkit.data import open_image
    from vitkit.inspection import compare
    from vitkit.weights import load

    one, two = load(command.one), load(command.two)
    items = _spread(list(serve.pictures(command.images)), command.limit)
    shown = track(items, "comparing", console=Console(stderr=True), transient=True)
    found = compare(one, two, (open_image(item.read(), item.name) for item in shown))
    logits = next((layer for layer in found.layers if layer.name == "logits"), None)
    same = logits is not None and logits.largest <= command.tolerance
    if command.json:
        layers = {layer.name: {"largest": layer.largest, "scale": layer.scale} for layer in found.layers}
        print(json.dumps({"images": found.images, "same_top1": found.same_top, "same": same, "layers": layers}))
        return 0 if same else 1
    table = Table("layer", "largest difference", "largest number")
    for layer in found.layers:
        table.add_row(layer.name, f"{layer.largest:.2e}", f"{layer.scale:.3g}")
    Console().print(table)
    if one.preprocessing != two.preprocessing:
        print(f"their preprocessing differs: {one.preprocessing}; {two.preprocessing}")
    print(f"the same likeliest class for {found.same_top} of {found.images} images")
    if logits is None:
        print("their heads have not the same number of classes, so their logits cannot be compared")
    else:
        print(f"the logits are {'the same' if same else 'not the same'} to {command.tolerance:g}")
    return 0 if same else 1


def _spread(items: list, limit: int) -> list:
    """At most `limit` of them, evenly; 0 is all."""
    return [items[i * len(items) // limit] for i in range(limit)] if 0 < limit < len(items) else items


def push(command: Push) -> int:
    """`vitkit push`."""
    from vitkit.weights import load
    from vitkit.weights.fetch import push

    folder = command.folder / "model" if (command.folder / "model" / "config.json").is_file() else command.folder
    if not (folder / "config.json").is_file():
        raise ValueError(
            f"{command.folder} is no model directory; write one with vitkit convert MODEL DIR --to huggingface"
        )
    load(folder)  # what cannot be opened is not sent
    address = push(folder, command.name, command.private)
    print(f"uploaded {folder} to {address}")
    print(f"next: vitkit predict {command.name} IMAGE...")
    return 0


COMMANDS: dict[str, tuple[type, Callable[..., int]]] = {
    "train": (Train, train),
    "evaluate": (Evaluate, evaluate),
    "predict": (Predict, predict),
    "models": (Models, models),
    "show": (Show, show),
    "compare": (Compare, compare),
    "convert": (Convert, convert),
    "push": (Push, push),
}
