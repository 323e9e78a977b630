"""`vitkit export`: a model as a file for another program, checked on real images."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal, Unpack

from vitkit.evaluation import SHARE
from vitkit.exporting.agreement import Agreement, Trial, own_trial, sample_trial, trial_on
from vitkit.exporting.bounds import conclusion
from vitkit.exporting.browser import find_web_runtime
from vitkit.exporting.exporting import check, size_of
from vitkit.exporting.exporting import write_export as write
from vitkit.models import ViTConfig, tokens_left
from vitkit.runtimes import (
    ENDINGS,
    Export,
    digest_of_classifier,
    digest_of_folder,
    kept_file,
    run_of,
    segments,
    tie,
)
from vitkit.runtimes.graphs.writing import WebRuntime, needs_calibration
from vitkit.system.console.messages import say
from vitkit.system.console.text import as_word, counted
from vitkit.system.errors import BadSettings, VitkitError
from vitkit.system.functions.public import alone, public
from vitkit.system.functions.steps import IMAGES, step
from vitkit.system.functions.types import DataLike, PathLike
from vitkit.system.storage.files import parse_json
from vitkit.training import Recorded, open_part, read_run
from vitkit.weights import (
    Classifier,
    Hints,
    MadeModel,
    ModelLike,
    Overrides,
    classifier_of,
    hints_of,
)


@dataclass(frozen=True, repr=False)
class ExportedModel(MadeModel):
    """A file for another program, and its agreement with the model."""

    path: Path
    """The file."""
    classifier: Classifier
    """The exported model."""
    format: Literal["onnx", "openvino", "torch", "page"]
    precision: Literal["float32", "float16", "bfloat16", "int8"]
    agreement: Agreement
    """The agreement of the file's predictions with the model's."""
    tried_on: str
    """Description of the images that the file was checked on."""
    calibrated_on: int
    """Number of images that fixed the ranges of int8; 0 if none did."""
    calibrated_with: str
    """Data set of the calibration images."""
    learned: bool = False
    """Whether the calibration images are training images of the model."""
    web_runtime: WebRuntime | None = None
    """The onnxruntime-web in a page; None for other formats."""
    merge: int = 0
    """Number of tokens that are merged in every block."""

    @property
    def made(self) -> str:
        """The exported file."""
        return str(self.path)

    @property
    def labels(self) -> tuple[str, ...]:
        """The model's class names."""
        return self.classifier.labels

    @property
    def megabytes(self) -> float:
        """The size of the file, in megabytes."""
        return size_of(self.path) / 1e6

    @property
    def measured(self) -> dict:
        """The measurements, as written to FILE.json."""
        return parse_json(Path(f"{self.path}.json").read_text())

    def shown(self) -> Iterator[str]:
        """The output: the file that was written, and the measurements."""
        yield f"wrote {self.path}: {self.megabytes:,.1f} MB, {self.precision}"
        if self.merge:
            config = self.classifier.model.config
            assert isinstance(config, ViTConfig)  # check_can_merge refuses any other
            left = tokens_left(config, self.merge)
            yield (
                f"{counted(self.merge, 'token')} at most merged in every block, {left:,} left in "
                "the last; compared with the whole model:"
            )
        yield f"on {self.tried_on}: {self.agreement}"
        if self.calibrated_on:
            calibrated = counted(self.calibrated_on, "image")
            source = f"of {self.calibrated_with}"
            if self.learned:
                source = "that the model has learned from"
            yield f"calibrated on {calibrated} {source}"
        if self.classifier.activation != "none":
            yield conclusion(self.agreement)
        if self.classifier.unknown is not None:
            yield _unknown_sentence(self.agreement.same_unknown)
        yield f"wrote {self.path}.json: what was measured"
        if self.web_runtime is not None:
            # The content of a page, and what to do with it
            runtime = self.web_runtime
            yield f"it holds the model and onnxruntime-web {runtime.version} of {runtime.folder} (MIT)"
            if self.precision != "int8":
                yield "`precision='int8'` makes it smaller; a few in a hundred of its answers will differ (docs/export.md)"
            yield f"next: open {as_word(self.path)} in a browser, and drop a photograph on it"
        elif self.format == "torch":
            answer = ""
            if self.classifier.unknown is not None:
                answer = "logits, strangeness = "
            yield f"next: {answer}torch.export.load({str(self.path)!r}).module()(images), in Python"
        else:
            function = "predict"
            if segments(self.classifier):
                function = "segment"
            yield f"next: {step(function, self.path, IMAGES)}, without PyTorch"


def _unknown_sentence(same: float | None) -> str:
    """A sentence on how often file and model agree on whether an image is unknown."""
    sentence = "it says which images are unknown"
    if same is None:
        return sentence
    if same == 1:
        return f"{sentence}, and agrees with the model on all of these"
    return f"{sentence}; of {SHARE.text(same)} of these it agrees with the model"


@public
@alone
def export(
    model: ModelLike,
    *,
    output: PathLike,
    to: Literal["onnx", "openvino", "torch", "page"] | None = None,
    precision: Literal["float32", "float16", "bfloat16", "int8"] | None = None,
    preprocessing: bool = False,
    merge: int = 0,
    data: DataLike = "",
    calibrate: DataLike = "",
    limit: int = 500,
    onnxruntime_web: Annotated[PathLike | None, "DIR"] = None,
    agreement: float | None = None,
    **overrides: Unpack[Overrides],
) -> ExportedModel:
    """Write a model as a file that needs neither vitkit nor Python, and check on real images that
    the file gives the model's answers. If it does not, no file is written. A page, such as photos.html,
    classifies photographs in a browser, without a server and without the network.

    Args:
        model: A run, a model directory, a file of weights (vitkit's, Hugging Face's, timm's,
            torchvision's or Google's), or the name of a published model.
        output: File to write: .onnx, .xml (with a .bin beside it), .pt2 or .html. FILE.json gets the
            measurements.
        to: Format: for ONNX Runtime and other readers of ONNX, for OpenVINO, a program of torch.export,
            or a page that classifies photographs in a browser. Default: the format of the file's ending.
        precision: Number format of the weights. float16 and bfloat16 halve the file size. With bfloat16
            or int8, OpenVINO also computes in this format. Default: float32, or float16 for a page.
        preprocessing: Put the preprocessing into the file, which then takes pictures of any size, uint8
            (batch, height, width, 3), and returns probabilities. vitkit's own commands are faster
            without this, because they prepare images in other processes.
        merge: Merge this many tokens in every block: less work, and slightly different answers. The
            bounds of int8 apply to the file.
        data: Images to check the file on: the test part of a data set. Default: parts of two photographs
            that come with scikit-learn; for int8 of a run, the images that the run held out.
        calibrate: Fix the ranges of int8 with these images, 300 at most: this is faster in OpenVINO than
            computing ranges for each image, and slightly less exact. ONNX Runtime needs fixed ranges,
            and small models may then fail the check. Default for ONNX Runtime: the training part of
            `data`; if `data` has only one part, every second image (the file is checked on the others);
            without `data`, the training images of the run.
        limit: Largest number of images to check the file on, chosen evenly from all.
        onnxruntime_web: For a page: the folder of onnxruntime-web that npm install onnxruntime-web
            wrote; the page contains it. Default: node_modules in this folder or in one above.
        agreement: Smallest accepted share of images for which the file gives the model's answer.
            Default: 0.99, 0.95 for bfloat16, 0.9 for int8. The loss of accuracy by the other answers is
            bounded too (docs/export.md). 0 accepts anything.
        **overrides: What the file of the model does not say, or should be something else: `Overrides`.

    Raises:
        BadSettings: If settings do not go together, or the file does not give the model's answers.
        BadData: If `data` or `calibrate` cannot be read.
        BadWeights: If the model cannot be read.
        Unsupported: If the format cannot express the model.
    """
    # The requested export
    hints = hints_of(overrides)
    kinds = {ending: kind for kind, ending in ENDINGS.items()}
    to = to or kinds.get(output.suffix.lower())
    if to is None:
        raise BadSettings(
            f"`output` is {output}; give the name of a file that ends in "
            f"{', '.join(kinds)}, or `to`"
        )
    if precision is None:
        precision = "float16" if to == "page" else "float32"
    if limit < 1:
        raise BadSettings(f"`limit` is {limit}; it is a number of images, at least 1")
    if calibrate and not (data and precision == "int8"):
        raise BadSettings("`calibrate` goes with `precision='int8'`, and `data` to try the file on")
    if onnxruntime_web and to != "page":
        raise BadSettings("onnxruntime-web is for a page: give `output` a name that ends in .html")
    wanted = Export(
        to,
        precision,
        preprocessing,
        calibrated=bool(calibrate),
        merge=merge,
        least=agreement,
    )
    digest_before = ""
    if hints == Hints():
        digest_before = _digest_if_kept(model, output, wanted)
    classifier = classifier_of(model, hints)
    check(classifier, output, wanted)
    if to == "page":
        wanted = replace(wanted, web_runtime=find_web_runtime(onnxruntime_web))
    if data:
        used = calibrate if needs_calibration(wanted) else None
        trial = trial_on(data, classifier.labels, limit, used)
    else:
        trial = _trial_without_data(model, wanted, classifier, limit)

    # Write the file, and compare it with the model
    tried = counted(len(trial.items), "image")
    say(f"exporting; the file will then be tried on {tried}")
    measured = write(classifier, output, wanted, trial)
    if digest_before:
        tie(output, digest_before, digest_of_classifier(classifier))
    calibrated_on = len(trial.for_calibration) if needs_calibration(wanted) else 0
    return ExportedModel(
        output,
        classifier,
        to,
        precision,
        measured,
        trial.name,
        calibrated_on,
        calibrate or trial.name,
        trial.learned,
        wanted.web_runtime,
        merge,
    )


def _digest_if_kept(model: str | Classifier, output: Path, wanted: Export) -> str:
    """The digest of a run's model if the export is the ONNX file that the run keeps for predictions
    without PyTorch (runtimes/onnx_of_run.py); "" for any other file."""
    run_dir = run_of(model)
    is_plain = not wanted.preprocessing and not wanted.merge
    if run_dir is None or not is_plain or (wanted.to, wanted.precision) != ("onnx", "float32"):
        return ""
    if output.resolve() != kept_file(run_dir).resolve():
        return ""
    return digest_of_folder(run_dir)


def _trial_without_data(
    model: str | Classifier, wanted: Export, classifier: Classifier, limit: int
) -> Trial:
    """The images for checking the file if `data` is not given, and those for calibrating int8."""
    if wanted.precision != "int8":
        return sample_trial()

    # For int8 use the images of the model's own run, if available
    why = ""
    run_dir = run_of(model)
    if run_dir is not None:
        try:
            return _own_trial(read_run(run_dir), classifier, limit)
        except (VitkitError, OSError) as error:
            why = f", and those of {run_dir} cannot be opened ({error})"
    if not needs_calibration(wanted):
        if why:
            say(f"tried on parts of two photographs instead of images of the run{why}")
        return sample_trial()
    raise BadSettings(
        f"ONNX Runtime's int8 is calibrated and checked on images like those to classify{why}: give some with "
        "`data=DATA`"
    )


def _own_trial(run: Recorded, classifier: Classifier, tried: int) -> Trial:
    """The images of a run. Raises VitkitError if they are missing or have changed; OSError."""
    parts = [name for name in ("test", "val") if name in run.data["counts"]]
    if not parts:
        raise BadSettings("it held out none")
    left_out = open_part(run, parts[0])
    learned = open_part(run, "train")
    return own_trial(left_out, learned, classifier.labels, str(run.data["source"]), tried)
