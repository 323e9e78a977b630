"""The same model in other runtimes: vitkit's exported graph beside timm's and Transformers' own.

    python benchmarks/runtimes.py --output benchmarks/results/runtimes-cpu.json
    python benchmarks/runtimes.py --models B/16 --batches 8 --precisions int8

All get the same random weights and give the same logits. The peers' models are exported as their
users would: torch.export, then the exporter of ONNX or OpenVINO, int8 calibrated by NNCF with the same
settings and images as vitkit's. They take normalised float32 images, vitkit's file takes uint8 and normalises
inside. One row is one runtime, precision and batch; all take turns, and timm in eager float32 takes
one too (side_by_side.py).

Prints and writes for each row milliseconds, vitkit's speed over the fastest peer's in the same runtime
and precision, and over timm's in eager float32, of medians.
"""

import argparse
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import record
import torch
from rich.console import Console
from rich.table import Table
from side_by_side import (
    Run,
    about,
    add_row,
    add_row_arguments,
    config,
    ratio_of,
    rounds,
    same_work,
    stacks,
    summary,
)
from torch import nn
from torch.export import Dim

from vitkit.data import Preprocessing
from vitkit.deploy.agreement import prepared_images
from vitkit.deploy.export import ENDINGS, Export, described, write
from vitkit.deploy.exported import Compute
from vitkit.deploy.onnx_file import open_onnx
from vitkit.deploy.openvino_file import open_openvino
from vitkit.deploy.quantise import calibrated_openvino
from vitkit.deploy.trial import Trial, sample_trial
from vitkit.deploy.writers import OPSET, quiet
from vitkit.weights import Classifier

PEERS = ("timm", "transformers")
PRECISIONS = {"onnx": ("float32",), "openvino": ("float32", "bfloat16", "int8")}
CALIBRATED = 32  # images: speed does not depend on them
EAGER = "timm, eager float32"


def file_of(model: nn.Module, export: Export, images: np.ndarray, path: Path) -> None:
    """A peer's model as a file. images: normalised, float32 (N, 3, h, w), for int8."""
    example = torch.from_numpy(images[:2])
    with quiet():
        shapes = ({0: Dim("batch", min=1, max=4096)},)
        program = torch.export.export(model.eval(), (example,), dynamic_shapes=shapes)
        if export.to == "onnx":
            torch.onnx.export(program, opset_version=OPSET, verbose=False).save(path)
            return
        import openvino

        converted = openvino.convert_model(program)
    converted.reshape([-1, *example.shape[1:]])
    if export.precision == "int8":
        converted = calibrated_openvino(converted, [image[None] for image in images])
    openvino.save_model(converted, path, compress_to_fp16=False)


def opened(path: Path, export: Export) -> Compute:
    """What computes a file, in the same settings for all."""
    if export.to == "onnx":
        return open_onnx(path).compute
    precision = "float32"
    if export.precision == "bfloat16":
        precision = "bfloat16"
    return open_openvino(path, precision).compute


def turns(models: dict[str, nn.Module], export: Export, batch: int, folder: Path) -> dict[str, Run]:
    """What is timed in a row, by name."""
    # The images: photographs, as vitkit's file takes them and as the peers' do
    ours = models["vitkit"]
    classes = ours.config.classes
    labels = tuple(f"class {k}" for k in range(classes))
    classifier = Classifier(ours, Preprocessing(size=ours.config.image), labels)
    trial = sample_trial()
    levels, _ = prepared_images(classifier.preprocessing, trial.for_calibration[:CALIBRATED])
    normalised = classifier.preprocessing.normalise(torch.from_numpy(levels)).numpy()
    some = np.resize(levels, (batch, *levels.shape[1:]))
    some_normalised = np.resize(normalised, (batch, *levels.shape[1:]))

    # The files
    computes = {}
    for name, model in models.items():
        path = folder / f"{name}{ENDINGS[export.to]}"
        if name == "vitkit":
            calibration = Trial("", (), trial.for_calibration[:CALIBRATED])
            write(classifier, described(classifier, export), export, path, calibration)
        else:
            file_of(model, export, normalised, path)
        computes[name] = opened(path, export)
    if export.precision == "float32":
        check_same(computes, some, some_normalised)

    runs = {"vitkit": lambda: computes["vitkit"](some)}
    for name in models:
        if name != "vitkit":
            runs[name] = lambda compute=computes[name]: compute(some_normalised)
    tensor = torch.from_numpy(some_normalised)

    @torch.inference_mode()
    def eager() -> torch.Tensor:
        return models["timm"](tensor)

    return {**runs, EAGER: eager}


def check_same(computes: dict[str, Compute], levels: np.ndarray, normalised: np.ndarray) -> None:
    """Stop unless all files give vitkit's logits."""
    expected = computes["vitkit"](levels)
    scale = max(float(np.abs(expected).max()), 1.0)
    for name, compute in computes.items():
        if name != "vitkit":
            np.testing.assert_allclose(
                compute(normalised), expected, atol=1e-4 * scale, err_msg=name
            )


def show(rows: list[dict]) -> None:
    """Print the rows as a table."""
    settings = ("model", "runtime", "precision", "batch")
    libraries = list(rows[0]["images_per_second"])
    heads = ("times the fastest peer (95 %)", "times timm eager float32", "rounds")
    table = Table(*settings, *libraries, *heads, title="milliseconds, median")
    for row in rows:
        cells = [str(row[name]) for name in settings]
        for library in libraries:
            cells.append(f"{row['milliseconds_q1_median_q3'][library][1]:.2f}")
        cells += [ratio_of(row), f"{row['times_timm_eager_float32']:.2f}", str(row["rounds"])]
        table.add_row(*cells)
    Console(width=150).print(table)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = record.parser(__doc__)
    parser.add_argument("--models", nargs="+", default=["Ti/16", "B/16"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--runtimes", nargs="+", default=list(PRECISIONS), choices=PRECISIONS)
    precisions = PRECISIONS["openvino"]
    parser.add_argument("--precisions", nargs="+", default=precisions, choices=precisions)
    parser.add_argument("--peers", nargs="+", default=PEERS, choices=PEERS)
    add_row_arguments(parser)
    return parser.parse_args()


def main() -> None:
    """All rows."""
    options = arguments()
    result = {**about("cpu", __doc__), "results": []}
    result["versions"] |= record.versions(("onnxruntime", "openvino", "nncf"))
    libraries = ["timm", *(name for name in options.peers if name != "timm")]
    for name in options.models:
        c = config(name)
        models = stacks(c, libraries)
        same_work(models, torch.randn(2, 3, *c.image))
        for to, precision, batch in product(options.runtimes, options.precisions, options.batches):
            if precision not in PRECISIONS[to]:
                continue
            with TemporaryDirectory() as folder:
                wanted = Export(to=to, precision=precision, calibrated=precision == "int8")
                runs = turns(models, wanted, batch, Path(folder))
                times, calls = rounds(runs, "cpu", options.seconds_per_row)
            eager = times.pop(EAGER)
            row = {"model": name, "runtime": to, "precision": precision, "batch": batch}
            row |= {"calls_a_turn": calls, **summary(times, batch)}
            ratio = float(np.median(eager) / np.median(times["vitkit"]))
            row["times_timm_eager_float32"] = round(ratio, 3)
            add_row(result, row, options.output)
            print(f"{name} {to} {precision} {batch}: {ratio_of(row)}, {ratio:.2f}", flush=True)
    show(result["results"])


if __name__ == "__main__":
    main()
