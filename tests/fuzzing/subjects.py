"""What is damaged, and what is then done with it as a user would."""

import io
import json
import shutil
import tarfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import isfinite
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from pictures import encoded, photograph
from PIL import Image
from rich.console import Console
from safetensors.torch import save_file
from tiffs import tiff

from fuzzing.exported import EXPORTED
from fuzzing.records import RECORDS
from fuzzing.requests import REQUESTS
from fuzzing.strangers import STRANGERS
from fuzzing.subject import Subject
from vitkit.data import (
    Augmentation,
    Preprocessing,
    check_images,
    eval_batches,
    open_image,
    open_source,
    picture_for_people,
    read_file,
)
from vitkit.models import Backbone, Model, ModelConfig, ResNetConfig, ViTConfig, create, vit
from vitkit.prediction import Item, predict_items
from vitkit.recipes import Data, Optim, Recipe
from vitkit.system.errors import VitkitError
from vitkit.system.span import Span
from vitkit.training import run_recipe
from vitkit.weights import Classifier, load, save
from vitkit.weights.destination import tensors_in
from vitkit.weights.files.directory import load_state_dict, open_weights
from vitkit.weights.formats.google import vit as google
from vitkit.weights.proof import convert_weights

# Weights

SMALL = vit("mu/8", image=(16, 16), classes=3, depth=2, width=16, mlp=16, heads=2)


def _classifier() -> Classifier:
    """A model that hides no mistake: every parameter has random values of its own."""
    model = create(SMALL, seed=0).eval()
    draws = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=draws)
    preprocessing = Preprocessing(size=(16, 16), mean=(0.4, 0.5, 0.6))
    return Classifier(model, preprocessing, ("ant", "bee", "cat"))


def _saved(folder: Path) -> None:
    save(_classifier(), folder / "model")


def _converted(format: str, name: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        convert_weights(_classifier(), folder / name, format)

    return make


def _plain_npz(folder: Path) -> None:
    tensors = tensors_in(google.FORMAT, _classifier())
    np.savez(folder / "model", **{name: tensor.numpy() for name, tensor in tensors.items()})


def _pickled(folder: Path) -> None:
    """A Hugging Face directory of the kind that came before safetensors."""
    _saved(folder)
    weights = folder / "model" / "model.safetensors"
    torch.save(load_state_dict(weights), folder / "model" / "pytorch_model.bin")
    weights.unlink()
    config = folder / "model" / "config.json"
    values = json.loads(config.read_text("utf-8"))
    values.pop("vitkit")
    config.write_text(json.dumps(values), "utf-8")


def _sharded(folder: Path) -> None:
    """A directory whose weights are in three files, named by an index."""
    _saved(folder)
    single = folder / "model" / "model.safetensors"
    tensors = load_state_dict(single)
    single.unlink()
    config = folder / "model" / "config.json"
    values = json.loads(config.read_text("utf-8"))
    values.pop("vitkit")
    config.write_text(json.dumps(values), "utf-8")
    names = sorted(tensors)
    file_of = {}
    for number in range(3):
        part = names[number::3]
        file = f"model-{number + 1:05d}-of-00003.safetensors"
        save_file({name: tensors[name] for name in part}, folder / "model" / file)
        file_of |= dict.fromkeys(part, file)
    index = {"metadata": {"total_size": 1}, "weight_map": file_of}
    (folder / "model" / "model.safetensors.index.json").write_text(json.dumps(index))


def _answering(config: ModelConfig) -> Model:
    """A new model whose head is not of zeros."""
    model = create(config, seed=0)
    torch.nn.init.normal_(model.head.weight, std=0.1)
    return model


def _resnet(folder: Path) -> None:
    """A BiT under native names."""
    config = ResNetConfig(Backbone(units=(1,), width=0.5), image=(32, 32), classes=3)
    preprocessing = Preprocessing(size=(32, 32))
    save(Classifier(_answering(config), preprocessing, ("a", "b", "c")), folder / "model")


def _load(folder: Path, heads: int | None = 2) -> None:
    """A model that opens answers with numbers."""
    path = next((path for path in folder.iterdir() if path.name.startswith("model")), folder)
    classifier = load(path, heads=heads, quiet=True)
    size = classifier.model.config.image
    assert max(size) <= 4096, size
    item = Item("photograph", lambda: PIXELS)
    (prediction,) = predict_items(classifier, [item], device="cpu")
    if prediction.error:
        raise VitkitError(prediction.error)
    assert isfinite(sum(prediction.probabilities))


def _native(folder: Path) -> None:
    """A model that no other library has: kept under native names."""
    config = replace(SMALL, positions="rotary", pool="gap", registers=1)
    model = _answering(config)
    save(Classifier(model, Preprocessing(size=(16, 16)), ("a", "b", "c")), folder / "model")


# Images

PIXELS = photograph(90, 120)


def _images(folder: Path) -> None:
    grey16 = (PIXELS[..., 0].astype(np.uint16) * 257).copy()
    for name, kind, settings in (
        ("baseline.jpg", "JPEG", {}),
        ("progressive.jpg", "JPEG", {"progressive": True}),
        ("image.png", "PNG", {}),
        ("image.gif", "GIF", {}),
        ("image.webp", "WEBP", {}),
        ("image.bmp", "BMP", {}),
        ("image.tif", "TIFF", {"compression": "tiff_deflate"}),
        ("image.jp2", "JPEG2000", {}),
        ("image.avif", "AVIF", {}),
        ("image.ico", "ICO", {}),
        ("image.ppm", "PPM", {}),
        ("image.pcx", "PCX", {}),
        ("image.sgi", "SGI", {}),
    ):
        (folder / name).write_bytes(encoded(PIXELS, kind, **settings))
    exif = Image.Exif()
    exif[274] = 6
    (folder / "turned.jpg").write_bytes(encoded(PIXELS, "JPEG", exif=exif))
    Image.fromarray(PIXELS).convert("CMYK").save(folder / "cmyk.jpg")
    Image.fromarray(PIXELS).convert("P").save(folder / "palette.png")
    Image.fromarray(grey16).save(folder / "deep.png")


def _stacks(folder: Path) -> None:
    """TIFF files of several channels, in every layout, and arrays."""
    layouts = {
        "contig": tiff(),
        "planes": tiff((5, 6, 8), planarconfig="separate"),
        "pages": tiff((5, 6, 8), planarconfig=None),
        "big": tiff(bigtiff=True),
        "motorola": tiff(byteorder=">"),
        "floats": tiff(numbers="f4"),
        "doubles": tiff(numbers="f8"),
        "deflated": tiff(compression="deflate"),
        "packed": tiff(compression="packbits"),
        "tiled": tiff((20, 20, 5), tile=(16, 16), compression="lzw"),
        "colours": tiff((6, 8, 3), photometric="rgb"),
    }
    for name, data in layouts.items():
        (folder / f"{name}.tif").write_bytes(data)
    np.save(folder / "array.npy", np.ones((6, 8, 5), np.uint16))


def _decode_channels(folder: Path) -> None:
    """Every image with its own channels, and as people see it."""
    sentences = []
    for path in sorted(folder.iterdir()):
        try:
            picture = open_image(read_file(str(path)), path.name)
            stored = picture.stored(picture.channels)
            assert stored.shape[:2] == picture.size, stored.shape
            assert picture_for_people(picture).shape == (*picture.size, 3)
        except VitkitError as error:
            sentences.append(str(error))
    if sentences:
        raise VitkitError("; ".join(sentences))


def _decode(folder: Path) -> None:
    """Every image, whole and a box of it; a damaged one says so, and the others are as before."""
    sentences = []
    for path in sorted(folder.iterdir()):
        try:
            picture = open_image(read_file(str(path)), path.name)
            height, width = picture.size
            pixels = picture.pixels()
            assert pixels.shape == (height, width, 3), pixels.shape
            assert pixels.dtype == np.uint8
            box = picture.pixels((height // 4, width // 4, max(height // 2, 1), max(width // 2, 1)))
            assert box.shape[2] == 3
        except VitkitError as error:
            sentences.append(str(error))
    if sentences:
        raise VitkitError("; ".join(sentences))


# Data sets


def _folder(folder: Path) -> None:
    for name in ("ant", "bee"):
        for i in range(4):
            path = folder / "photos" / name / f"{i}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(encoded(photograph(24, 32, i)))


def _rows() -> list[tuple[str, bytes]]:
    return [(("ant", "bee")[i % 2], encoded(photograph(24, 32, i))) for i in range(8)]


def _manifest(name: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        lines = []
        for i, (label, data) in enumerate(_rows()):
            (folder / f"{i}.jpg").write_bytes(data)
            lines.append({"image": f"{i}.jpg", "label": label})
        if name.endswith("jsonl"):
            text = "\n".join(map(json.dumps, lines))
        else:
            text = "\n".join(["image,label", *(",".join(line.values()) for line in lines)])
        (folder / name).write_text(text + "\n")

    return make


def _parquet(folder: Path) -> None:
    images = [{"bytes": data, "path": f"{i}.jpg"} for i, (_, data) in enumerate(_rows())]
    table = pa.table({"image": images, "label": [label for label, _ in _rows()]})
    pq.write_table(table, folder / "data.parquet", row_group_size=3)


def _zstd_parquet(folder: Path) -> None:
    """Compressed, with checksums and several classes an image, in the newer pages."""
    images = [data for _, data in _rows()]
    table = pa.table({"image": images, "label": [[i % 3, 3] for i in range(len(images))]})
    pq.write_table(
        table,
        folder / "data.parquet",
        compression="zstd",
        data_page_version="2.0",
        write_page_checksum=True,
    )


def _tar(folder: Path) -> None:
    with tarfile.open(folder / "data.tar", "w") as shard:
        for i, (label, data) in enumerate(_rows()):
            for extension, content in (("jpg", data), ("cls", label.encode())):
                member = tarfile.TarInfo(f"{i:04d}.{extension}")
                member.size = len(content)
                shard.addfile(member, io.BytesIO(content))


def _read(name: str) -> Callable[[Path], None]:
    """Look at every image of a data set, then make a batch of those that are whole."""

    def use(folder: Path) -> None:
        source = open_source(str(folder / name))
        broken = check_images(source, workers=0, progress=False)
        if broken:
            raise VitkitError("; ".join(sentence for _, sentence in broken))
        for batch in eval_batches(source, Preprocessing(size=(16, 16)), 4, workers=0):
            assert batch.images.shape[1:] == (3, 16, 16)

    return use


# Runs

RECIPE = Recipe(
    model=ViTConfig(width=16, depth=1, mlp=16, heads=2, patch=4, image=(8, 8), classes=0),
    data=Data(
        source="digits",
        preprocessing=Preprocessing(size=(8, 8)),
        augmentation=Augmentation(crop="pad_crop", pad=1, flip=False),
        workers=0,
    ),
    optim=Optim(lr=2e-3, warmup=Span(2)),
    length=Span(12),
    batch=16,
    average=0.8,
    log_every=2,
    evaluate_every=Span(6),
    save_every=Span(4),
    keep=3,
)


def _finished_run(folder: Path) -> None:
    run_recipe(RECIPE, folder / "run", "cpu", Console(quiet=True))
    shutil.copytree(folder / "run" / "model", folder / "expected")


def _paused_run(folder: Path) -> None:
    """As a run that was killed after its second checkpoint."""
    _finished_run(folder)
    shutil.rmtree(folder / "run" / "model")
    shutil.rmtree(folder / "run" / "checkpoints" / "step-00000012", ignore_errors=True)
    (folder / "run" / "LAST").write_text("step-00000008")


def _continue(folder: Path) -> None:
    """The same command ends with the same bits, and the model opens."""
    run_recipe(RECIPE, folder / "run", "cpu", Console(quiet=True))
    finished = open_weights(folder / "run" / "model").tensors
    expected = open_weights(folder / "expected").tensors
    assert set(finished) == set(expected)
    for name, tensor in expected.items():
        assert torch.equal(finished[name].read(), tensor.read()), name


SUBJECTS = (
    Subject("model directory", _saved, _load, ("model/*.json", "model/*.safetensors")),
    Subject("native model", _native, _load, ("model/*.json", "model/*.safetensors")),
    Subject("sharded directory", _sharded, _load, ("model/*.json", "model/*.safetensors")),
    Subject("pickled directory", _pickled, _load, ("model/*.json", "model/*.bin")),
    Subject(
        "native ResNet",
        _resnet,
        partial(_load, heads=None),
        ("model/*.json", "model/*.safetensors"),
    ),
    Subject("google npz", _converted("google", "model.npz"), _load),
    Subject("plain npz", _plain_npz, _load),
    Subject("timm file", _converted("timm", "model.safetensors"), _load),
    Subject("timm pth", _converted("timm", "model.pth"), _load),
    Subject("images", _images, _decode, alone=True),
    Subject("images of several channels", _stacks, _decode_channels, alone=True),
    Subject("folder", _folder, _read("photos"), ("photos/*/*",)),
    Subject("csv manifest", _manifest("list.csv"), _read("list.csv"), ("list.csv",)),
    Subject("json manifest", _manifest("list.jsonl"), _read("list.jsonl"), ("list.jsonl",)),
    Subject("parquet", _parquet, _read("data.parquet")),
    Subject("zstd parquet", _zstd_parquet, _read("data.parquet")),
    Subject("tar shard", _tar, _read("data.tar")),
    Subject("paused run", _paused_run, _continue, ("run/*", "run/checkpoints/*/*")),
    Subject("finished run", _finished_run, _continue, ("run/*", "run/*/*", "run/*/*/*")),
    *RECORDS,
    *EXPORTED,
    *REQUESTS,
    *STRANGERS,
)
