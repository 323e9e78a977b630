"""Exported files: ONNX with what it says of itself, and OpenVINO's pair."""

from collections.abc import Callable
from math import isfinite
from multiprocessing import get_context
from pathlib import Path

from pictures import photograph
from served import make_classifier

from fuzzing.subject import Subject
from vitkit.prediction import Item, predict_items
from vitkit.runtimes import open_model_file
from vitkit.system.errors import VitkitError


def _exported(name: str) -> Callable[[Path], None]:
    """Made in another process: exporting starts threads, and this one is to be forked."""

    def make(folder: Path) -> None:
        process = get_context("fork").Process(target=_export, args=(str(folder / name),))
        process.start()
        process.join()
        assert (folder / name).is_file()

    return make


def _export(path: str) -> None:
    from vitkit.exporting import write_export
    from vitkit.runtimes import Export

    kind = {".onnx": "onnx", ".xml": "openvino"}[Path(path).suffix]
    write_export(make_classifier(), Path(path), Export(kind, least=0))


def _open(folder: Path) -> None:
    """A file that opens answers with numbers."""
    files = (path for path in folder.iterdir() if path.suffix in (".onnx", ".xml"))
    path = next(files, folder / "model.onnx")  # the damage may be that it is gone
    runtime = open_model_file(path)
    image = photograph(90, 120)
    (prediction,) = predict_items(runtime, [Item("photograph", lambda: image)], workers=0)
    if prediction.error:
        raise VitkitError(prediction.error)
    assert isfinite(sum(prediction.probabilities))


EXPORTED = (
    Subject("ONNX file", _exported("model.onnx"), _open, ("model.onnx",)),
    Subject("OpenVINO file", _exported("model.xml"), _open, ("model.xml", "model.bin")),
)
