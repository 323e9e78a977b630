"""The same model in other runtimes: vitkit's exported files beside timm's and Transformers' own.

    python benchmarks/runtimes.py --files /tmp/runtimes --prepare
    python benchmarks/runtimes.py --files /tmp/runtimes --output benchmarks/results/runtimes-cpu.json

The first command writes the files, some minutes for Ti/16 and B/16, and measures nothing; the second
measures, some five minutes on two cores. Without --files they are written on the way and deleted. The
second command, given again after an interruption, goes on behind the rows that the output has.
`--models Ti/16 --runtimes openvino --precisions int8 --batches 8` is one row.

All have the same random weights, and their files of float32 must give the same logits. The peers'
models are exported as their users would by hand: torch.export, then PyTorch's exporter of ONNX or
OpenVINO's converter. int8 is vitkit's `--precision int8`, beside NNCF's compression of the peers'
weights, whose inputs OpenVINO makes int8 as it does by default. int8-calibrated is `--calibrate`, beside
the same quantiser with the same settings and images (NNCF's, or ONNX Runtime's). Optimum's exporters
pin an older Transformers; its model is the one that stands here as Transformers'. The peers' files take normalised
float32 images; vitkit's take uint8 and normalise inside.

One row is one runtime, precision and batch: all take turns, and timm in eager float32 takes one too
(side_by_side.py). Prints and writes for each row milliseconds, vitkit's speed over the fastest peer's
in the same row, and over timm's in eager float32, of medians; and how far the logits of each file are
from the model's, as a share of their size.
"""

import argparse
import json
from dataclasses import dataclass
from functools import cache
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
from torch.export import Dim, ExportedProgram

from vitkit.data import Preprocessing
from vitkit.exporting import Trial, calibration_images, sample_trial
from vitkit.prediction import prepared_images
from vitkit.runtimes import ENDINGS, Compute, Export, described, write
from vitkit.runtimes.graphs.int8 import calibrated_openvino, load_nncf, quantise_onnx
from vitkit.runtimes.graphs.writers import LARGEST_BATCH, OPSET, quiet
from vitkit.runtimes.libraries import open_onnx, open_openvino
from vitkit.weights import Classifier

PEERS = ("timm", "transformers")
CALIBRATED = "int8-calibrated"
PRECISIONS = {
    "onnx": ("float32", CALIBRATED),
    "openvino": ("float32", "bfloat16", "int8", CALIBRATED),
}
IMAGES = 16  # to calibrate with: speed does not depend on them
EAGER = "timm, eager float32"
SETTINGS = ("model", "runtime", "precision", "batch")  # of a row
SAME = 1e-4  # how far logits of float32 may differ, as a share of the largest


@dataclass(frozen=True, eq=False)
class Subject:
    """A model in all libraries, and images for it."""

    name: str
    models: dict[str, nn.Module]
    """By library, vitkit's first."""
    levels: np.ndarray
    """Photographs as vitkit's files take them: uint8 (N, 3, h, w)."""
    normalised: np.ndarray
    """The same as the peers' files take them: float32."""
    exact: np.ndarray
    """The model's logits for them: (N, K)."""


def subject(name: str, libraries: list[str]) -> Subject:
    """A named model with random weights, which are the same in every process."""
    c = config(name)
    torch.manual_seed(0)
    models = stacks(c, libraries)
    same_work(models, torch.randn(2, 3, *c.image))
    preprocessing = Preprocessing(size=c.image)
    levels, _ = prepared_images(preprocessing, sample_trial().for_calibration[:IMAGES])
    normalised = preprocessing.normalise(torch.from_numpy(levels))
    with torch.inference_mode():
        exact = models["timm"](normalised).numpy()
    return Subject(name, models, levels, normalised.numpy(), exact)


# The files


def file_of(subject: Subject, library: str, runtime: str, precision: str, files: Path) -> Path:
    """The file of a library's model, which is written unless it is there."""
    folder = files / subject.name.replace("/", "-") / f"{runtime}-{precision}-{library}"
    path = folder / f"model{ENDINGS[runtime]}"
    if not folder.exists():
        unfinished = folder.with_name(f"{folder.name}.unfinished")
        unfinished.mkdir(parents=True, exist_ok=True)
        if library == "vitkit":
            write_ours(subject, runtime, precision, unfinished / path.name)
        else:
            write_peers(subject, library, precision, unfinished / path.name)
        unfinished.rename(folder)
    return path


def write_ours(subject: Subject, runtime: str, precision: str, path: Path) -> None:
    """vitkit's model as `vitkit export` writes it."""
    ours = subject.models["vitkit"]
    labels = tuple(f"class {k}" for k in range(ours.config.classes))
    classifier = Classifier(ours, Preprocessing(size=ours.config.image), labels)
    is_calibrated = precision == CALIBRATED
    wanted = Export(runtime, precision.removesuffix("-calibrated"), calibrated=is_calibrated)
    trial = Trial("", (), sample_trial().for_calibration[:IMAGES])
    exported = described(classifier, wanted)
    write(classifier, exported, wanted, path, calibration_images(exported, wanted, trial))


@cache
def program_of(subject: Subject, library: str) -> ExportedProgram:
    """A peer's model as PyTorch's exporter has it, made once for all of its files."""
    example = torch.from_numpy(subject.normalised[:2])
    shapes = ({0: Dim("batch", min=1, max=LARGEST_BATCH)},)
    with quiet():
        model = subject.models[library].eval()
        return torch.export.export(model, (example,), dynamic_shapes=shapes)


def write_peers(subject: Subject, library: str, precision: str, path: Path) -> None:
    """A peer's model, as its users would write it."""
    one_by_one = [image[None] for image in subject.normalised]
    program = program_of(subject, library)

    # For ONNX Runtime
    if path.suffix == ENDINGS["onnx"]:
        with quiet():
            names = {"input_names": ["images"], "opset_version": OPSET}
            torch.onnx.export(program, verbose=False, **names).save(path)
        if precision == CALIBRATED:
            quantise_onnx(path, one_by_one)
        return

    # For OpenVINO
    import openvino

    with quiet():
        converted = openvino.convert_model(program)
    converted.reshape([-1, *subject.normalised.shape[1:]])
    if precision == "int8":
        with quiet():
            converted = load_nncf().compress_weights(converted)
    elif precision == CALIBRATED:
        converted = calibrated_openvino(converted, one_by_one)
    openvino.save_model(converted, path, compress_to_fp16=False)


def opened(path: Path, precision: str) -> Compute:
    """What computes a file, in the same settings for all."""
    if path.suffix == ENDINGS["onnx"]:
        return open_onnx(path).compute
    products = "float32"
    if precision == "bfloat16":
        products = "bfloat16"
    return open_openvino(path, products).compute


# The rows


def computes_of(subject: Subject, runtime: str, precision: str, files: Path) -> dict[str, Compute]:
    """What computes the model of each library."""
    computes = {}
    for library in subject.models:
        path = file_of(subject, library, runtime, precision, files)
        computes[library] = opened(path, precision)
    return computes


def errors(subject: Subject, computes: dict[str, Compute], precision: str) -> dict[str, float]:
    """How far each file's logits are from the model's: the largest difference, as a share of the
    largest logit. Stops if files of float32 give other logits."""
    scale = np.abs(subject.exact).max()
    differences = {}
    for library, compute in computes.items():
        images = subject.normalised
        if library == "vitkit":
            images = subject.levels
        difference = float(np.abs(compute(images) - subject.exact).max() / scale)
        assert precision != "float32" or difference < SAME, (library, difference)
        differences[library] = round(difference, 6)
    return differences


def turns(subject: Subject, computes: dict[str, Compute], batch: int) -> dict[str, Run]:
    """What is timed in a row, by name: vitkit first."""
    levels = np.resize(subject.levels, (batch, *subject.levels.shape[1:]))
    normalised = np.resize(subject.normalised, levels.shape)
    runs = {"vitkit": lambda: computes["vitkit"](levels)}
    for library, compute in computes.items():
        if library != "vitkit":
            runs[library] = lambda compute=compute: compute(normalised)
    tensor = torch.from_numpy(normalised)

    @torch.inference_mode()
    def eager() -> torch.Tensor:
        return subject.models["timm"](tensor)

    return {**runs, EAGER: eager}


def measured(runs: dict[str, Run], batch: int, seconds: float) -> dict:
    """The figures of a row."""
    times, calls = rounds(runs, "cpu", seconds)
    eager = times.pop(EAGER)
    ratio = float(np.median(eager) / np.median(times["vitkit"]))
    return {
        "calls_a_turn": calls,
        **summary(times, batch),
        "timm_eager_float32_milliseconds": round(1e3 * float(np.median(eager)), 4),
        "times_timm_eager_float32": round(ratio, 3),
    }


def begun(output: Path | None) -> dict:
    """The result of the same command, if it was interrupted; else a new one."""
    result = {**about("cpu", __doc__), "results": []}
    result["versions"] |= record.versions(("onnxruntime", "openvino", "nncf"))
    if output is None or not output.exists():
        return result
    before = json.loads(output.read_text())
    if any(before[key] != result[key] for key in ("command", "machine", "versions")):
        return result
    return before


def show(rows: list[dict]) -> None:
    """Print the rows as a table."""
    libraries = list(rows[0]["images_per_second"])
    heads = ("times the fastest peer (95 %)", "times timm eager float32", "rounds")
    table = Table(*SETTINGS, *libraries, *heads, title="milliseconds, median")
    for row in rows:
        cells = [str(row[name]) for name in SETTINGS]
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
    known = PRECISIONS["openvino"]
    usual = [precision for precision in known if precision != "bfloat16"]
    parser.add_argument("--precisions", nargs="+", default=usual, choices=known)
    parser.add_argument("--peers", nargs="+", default=PEERS, choices=PEERS)
    parser.add_argument("--files", type=Path, help="a folder for the files, which are kept")
    parser.add_argument("--prepare", action="store_true", help="write the files, measure nothing")
    add_row_arguments(parser)
    parser.set_defaults(seconds_per_row=5)
    options = parser.parse_args()
    if options.prepare and options.files is None:
        parser.error("--prepare needs --files FOLDER")
    return options


def main() -> None:
    """All rows."""
    options = arguments()
    result = begun(options.output)
    libraries = ["timm", *(name for name in options.peers if name != "timm")]
    done = {tuple(row[name] for name in SETTINGS) for row in result["results"]}
    kinds = [
        (runtime, precision)
        for runtime, precision in product(options.runtimes, options.precisions)
        if precision in PRECISIONS[runtime]
    ]
    with TemporaryDirectory() as temporary:
        files = options.files or Path(temporary)
        for name in options.models:
            model = subject(name, libraries)
            for runtime, precision in kinds:
                left = [n for n in options.batches if (name, runtime, precision, n) not in done]
                if not left:
                    continue
                computes = computes_of(model, runtime, precision, files)
                differences = errors(model, computes, precision)
                print(f"{name} {runtime} {precision}: differ by {differences}", flush=True)
                if options.prepare:
                    continue
                for batch in left:
                    row = dict(zip(SETTINGS, (name, runtime, precision, batch), strict=True))
                    row |= measured(turns(model, computes, batch), batch, options.seconds_per_row)
                    add_row(result, row | {"error": differences}, options.output)
                    speed = f"{ratio_of(row)}, {row['times_timm_eager_float32']:.2f}"
                    print(f"{name} {runtime} {precision} {batch}: {speed}", flush=True)
    if result["results"]:
        show(result["results"])


if __name__ == "__main__":
    main()
