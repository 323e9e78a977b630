"""Without a package of an extra, what needs it ends in one sentence that says what to install."""

import importlib
import sys
import tomllib
from pathlib import Path

import pytest
import tifffile
from packaging.requirements import Requirement
from pictures import encoded, photograph
from PIL import Image
from served import make_classifier

from vitkit.cli.entry import main
from vitkit.data.images import pillow
from vitkit.weights import save

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
EXTRAS = {
    extra: [Requirement(line).name for line in lines]
    for extra, lines in PROJECT["optional-dependencies"].items()
    if extra not in ("dev", "docs")
}
RUN = "--length 1steps --batch 16 --model S/16 --data.workers 0 --device cpu --workdir written"
# Where the package is needed: the extra, the package as it is imported, and a command
NEEDED = [
    ("heic", "pi_heif", "predict MODEL photo.heic"),
    ("heic", "pi_heif", "evaluate MODEL heic"),
    ("heic", "pi_heif", f"train scratch heic {RUN}"),
    ("tiff", "tifffile", "predict MODEL bands.tif --channels 5"),
    ("tiff", "imagecodecs", "predict MODEL packed.tif --channels 5"),
    ("hf", "datasets", "evaluate MODEL hf:beans"),
    ("hf", "datasets", "train digits --data.source hf:beans --workdir written"),
    ("hf", "huggingface_hub", "show hub/model"),
    ("hf", "huggingface_hub", "predict hub/model photos"),
    ("hf", "huggingface_hub", "finetune hub/model photos --workdir written"),
    ("hf", "huggingface_hub", "push MODEL you/model --license mit"),
    ("remote", "fsspec", "evaluate MODEL https://example.org/photos.parquet"),
    ("remote", "aiohttp", "evaluate MODEL https://example.org/photos.parquet"),
    ("remote", "s3fs", "data pack s3://bucket/photos.parquet written"),
    ("remote", "gcsfs", "predict MODEL gs://bucket/photos.parquet"),
    ("export", "onnx", "export MODEL -o written.onnx"),
    ("export", "onnxscript", "export MODEL -o written.onnx"),
    ("export", "onnxruntime", "export MODEL -o written.onnx"),
    ("export", "openvino", "export MODEL -o written.xml"),
    ("export", "nncf", "export MODEL -o written.xml --precision int8"),
    ("export", "onnx", "predict MODEL photos --runtime onnx"),
    ("export", "onnxruntime", "predict MODEL photos --runtime onnx"),
    ("export", "openvino", "evaluate MODEL photos --runtime openvino"),
    ("export", "onnxruntime openvino", "predict model.onnx photos"),
    ("export", "openvino", "predict model.xml photos"),
    ("lora", "peft", f"train scratch photos --tune.lora 4 {RUN}"),
    ("serve", "fastapi", "serve MODEL"),
    ("serve", "uvicorn", "serve MODEL"),
    ("serve", "python_multipart", "serve MODEL"),
    ("serve", "prometheus_client", "serve MODEL"),
    ("serve", "fastapi uvicorn", "app MODEL"),
    ("serve", "fastapi uvicorn", "label photos"),
    ("track", "tensorboard", f"train scratch photos --track tensorboard {RUN}"),
    ("track", "wandb", f"train scratch photos --track wandb {RUN}"),
    ("track", "mlflow", f"train scratch photos --track mlflow {RUN}"),
    ("cluster", "submitit", "study pooling --data photos --jobs 2 --workdir written"),
    ("corruptions", "imagecorruptions", "evaluate MODEL photos --corruptions fog"),
]
ONLY_FASTER = ("turbojpeg",)
IMPORTED_AS = {"imagecorruptions-imaug": "imagecorruptions"}


def test_every_package_is_tried():
    tried = {(extra, name) for extra, names, _ in NEEDED for name in names.split()}
    for extra, packages in EXTRAS.items():
        for package in set(packages) - set(ONLY_FASTER):
            name = IMPORTED_AS.get(package, package.replace("-", "_"))
            assert (extra, name) in tried, f"nobody tries {extra} without {package}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model, and a file of each kind."""
    folder = tmp_path_factory.mktemp("extras")
    save(make_classifier(), folder / "MODEL")
    for i in range(8):
        for name in ("cat", "dog"):
            image = folder / "photos" / name / f"{i}.jpg"
            image.parent.mkdir(parents=True, exist_ok=True)
            image.write_bytes(encoded(photograph(40, 50, i)))
    heif = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(64)
    (folder / "photo.heic").write_bytes(heif)
    for name in ("cat", "dog"):
        (folder / "heic" / name).mkdir(parents=True)
        (folder / "heic" / name / "1.heic").write_bytes(heif)
    bands = photograph(40, 50)[..., [0, 1, 2, 0, 1]]
    as_bands = {"photometric": "minisblack", "planarconfig": "contig"}
    tifffile.imwrite(folder / "bands.tif", bands, **as_bands)
    tifffile.imwrite(folder / "packed.tif", bands, **as_bands, compression="zlib")
    for name in ("model.onnx", "model.xml"):
        (folder / name).write_bytes(b"not read")
    return folder


@pytest.mark.parametrize(("extra", "missing", "words"), NEEDED)
def test_a_missing_package_is_one_sentence(
    extra, missing, words, folder, tmp_path, monkeypatch, capsys
):
    for path in folder.iterdir():
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    Image.init()  # else it would fill in the formats that are taken away at the end
    monkeypatch.setattr(Image, "OPEN", {k: v for k, v in Image.OPEN.items() if k != pillow.HEIF})
    for name in [*missing.split(), "pillow_heif"]:
        monkeypatch.setitem(sys.modules, name, None)
    # As in a new process: fsspec remembers what it could import
    monkeypatch.delitem(sys.modules, "fsspec.implementations.http", raising=False)
    monkeypatch.setattr(importlib.import_module("fsspec.registry"), "_registry", {})

    assert main(words.split()) in (1, 3)  # 3: an image could not be read
    assert f"vitkit[{extra}]" in " ".join(capsys.readouterr().err.split())
    written = [path for path in tmp_path.glob("written*/**/*") if path.is_file()]
    assert not [path for path in written if path.name != "LOCK"]
    assert not list(tmp_path.glob("written.*"))


@pytest.mark.slow
def test_bench_leaves_out_what_is_not_installed(folder, monkeypatch, capsys):
    for name in ("onnxruntime", "nncf"):
        monkeypatch.setitem(sys.modules, name, None)
    words = (
        f"bench {folder / 'MODEL'} --precisions float32 int8 --batch 1 --rounds 1 --seconds 0.01"
    )
    assert main([*words.split(), "--no-start-up"]) == 0
    printed = capsys.readouterr()
    assert "needs nncf and onnxruntime is left out: pip install 'vitkit[export]'" in printed.err
    assert "OpenVINO float32" in printed.out
    assert "ONNX" not in printed.out and "int8" not in printed.out
