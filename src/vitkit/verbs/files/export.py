"""A model as a file for another program, tried on real images."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import arg

from vitkit.evaluation import SHARE
from vitkit.exporting import (
    ENDINGS,
    Agreement,
    Export,
    Trial,
    WebRuntime,
    check,
    conclusion,
    find_web_runtime,
    missing_packages,
    needs_calibration,
    own_trial,
    sample_trial,
    size_of,
    trial_on,
)
from vitkit.exporting import export as write
from vitkit.models import tokens_left
from vitkit.runtimes import (
    digest_of_classifier,
    digest_of_folder,
    is_kept,
    kept_file,
    run_of,
    tie,
    was_kept,
)
from vitkit.system.console.messages import say, say_detail
from vitkit.system.console.text import as_word, counted
from vitkit.system.errors import BadSettings, VitkitError
from vitkit.system.machine import auto_is_float32, is_cpu
from vitkit.system.storage.files import parse_json
from vitkit.training import Recorded, open_part, read_run
from vitkit.verbs.arguments import Model, ModelHints
from vitkit.verbs.computing import classifier_of
from vitkit.verbs.definition import alone, result, verb
from vitkit.verbs.made_model import MadeModel
from vitkit.weights import Classifier, Hints


@dataclass(frozen=True)
class ExportModel:
    """Write a model as a file that needs neither vitkit nor Python, and check on real images that
    the file gives the model's answers. If it does not, no file is written. A page, such as
    photos.html, classifies photographs in a browser, without a server and without the network."""

    model: Model
    output: Annotated[Path, arg(aliases=["-o"])]
    """File to write: .onnx, .xml (with a .bin beside it), .pt2 or .html. FILE.json gets the
    measurements."""
    to: Literal["onnx", "openvino", "torch", "page"] | None = None
    """Format: for ONNX Runtime and other readers of ONNX, for OpenVINO, a program of torch.export,
    or a page that classifies photographs in a browser. Default: the format of the file's ending."""
    precision: Literal["float32", "float16", "bfloat16", "int8"] | None = None
    """Number format of the weights. float16 and bfloat16 halve the file size. With bfloat16 or
    int8, OpenVINO also computes in this format. Default: float32, or float16 for a page."""
    preprocessing: bool = False
    """Put the preprocessing into the file, which then takes pictures of any size, uint8 (batch,
    height, width, 3), and returns probabilities. vitkit's own commands are faster without this,
    because they prepare images in other processes."""
    merge: int = 0
    """Merge this many tokens in every block: less work, and slightly different answers. The bounds
    of int8 apply to the file."""
    data: Annotated[str, arg(metavar="DATA")] = ""
    """Images to check the file on: the test part of a data set. Default: parts of two photographs
    that come with scikit-learn; for int8 of a run, the images that the run held out."""
    calibrate: Annotated[str, arg(metavar="DATA")] = ""
    """Fix the ranges of int8 with these images, 300 at most: this is faster in OpenVINO than
    computing ranges for each image, and slightly less exact. ONNX Runtime needs fixed ranges, and
    small models may then fail the check. Default for ONNX Runtime: the training part of --data; if
    --data has only one part, every second image (the file is checked on the others); without
    --data, the training images of the run."""
    limit: int = 500
    """Largest number of images to check the file on, chosen evenly from all."""
    onnxruntime_web: Annotated[Path | None, arg(metavar="DIR")] = None
    """For a page: the folder of onnxruntime-web that npm install onnxruntime-web wrote; the page
    contains it. Default: node_modules in this folder or in one above."""
    agreement: float | None = None
    """Smallest accepted share of images for which the file gives the model's answer. Default: 0.99,
    0.95 for bfloat16, 0.9 for int8. The loss of accuracy by the other answers is bounded too
    (docs/export.md). 0 accepts anything."""
    hints: ModelHints = field(default_factory=Hints)


@result
@dataclass(frozen=True)
class ExportedModel(MadeModel):
    """A file for another program, and how far it agrees with its model."""

    settings: ExportModel
    classifier: Classifier
    """The model that was written."""
    format: Literal["onnx", "openvino", "torch", "page"]
    precision: Literal["float32", "float16", "bfloat16", "int8"]
    agreement: Agreement
    """The file's answers beside the model's."""
    tried_on: str
    """The images of the comparison."""
    calibrated_on: int
    """Images that gave the ranges of int8; 0 if none did."""
    learned: bool = False
    """Whether the model has learned from these."""
    web_runtime: WebRuntime | None = None
    """The onnxruntime-web in a page."""

    @property
    def made(self) -> str:
        """The exported file."""
        return str(self.path)

    @property
    def path(self) -> Path:
        """The file."""
        return self.settings.output

    @property
    def megabytes(self) -> float:
        """The size of the file, in megabytes."""
        return size_of(self.path) / 1e6

    @property
    def measured(self) -> dict:
        """The measurements that were written beside it as JSON."""
        return parse_json(Path(f"{self.path}.json").read_text())

    def shown(self) -> Iterator[str]:
        """The output: the file that was written, and the measurements."""
        settings = self.settings
        yield f"wrote {self.path}: {self.megabytes:,.1f} MB, {self.precision}"
        if settings.merge:
            left = tokens_left(self.classifier.model.config, settings.merge)
            yield (
                f"{counted(settings.merge, 'token')} at most merged in every block, {left:,} left in "
                "the last; compared with the whole model:"
            )
        yield f"on {self.tried_on}: {self.agreement}"
        if self.calibrated_on:
            calibrated = counted(self.calibrated_on, "image")
            source = f"of {settings.calibrate or self.tried_on}"
            if self.learned:
                source = "that the model has learned from"
            yield f"calibrated on {calibrated} {source}"
        if self.classifier.activation != "none":
            yield conclusion(self.agreement)
        if self.classifier.unknown is not None:
            yield _unknown_sentence(self.agreement.same_unknown)
        yield f"wrote {self.path}.json: what was measured"
        if self.format == "page":
            # What is in a page, and what to do with it
            runtime = self.web_runtime
            yield f"it holds the model and onnxruntime-web {runtime.version} of {runtime.folder} (MIT)"
            if self.precision != "int8":
                yield "--precision int8 makes it smaller; a few in a hundred of its answers will differ (docs/export.md)"
            yield f"next: open {as_word(self.path)} in a browser, and drop a photograph on it"
        elif self.format == "torch":
            answer = ""
            if self.classifier.unknown is not None:
                answer = "logits, strangeness = "
            yield f"next: {answer}torch.export.load({str(self.path)!r}).module()(images), in Python"
        else:
            yield f"next: vitkit predict {as_word(self.path)} IMAGE..., without PyTorch"


def _unknown_sentence(same: float | None) -> str:
    """How far the file says of an image that it is unknown, as the model does."""
    sentence = "it says which images are unknown"
    if same is None:
        return sentence
    if same == 1:
        return f"{sentence}, as the model does of all of these"
    return f"{sentence}; of {SHARE.text(same)} of these it says as the model does"


@verb
@alone
def export(settings: ExportModel) -> ExportedModel:
    """Write a model for ONNX Runtime, OpenVINO or torch.export, and measure on real images that the
    file answers as the model does.

    Raises ValueError, and writes nothing, if the file falls short.
    """
    # What is wanted
    kinds = {ending: kind for kind, ending in ENDINGS.items()}
    to = settings.to or kinds.get(settings.output.suffix.lower())
    if to is None:
        raise BadSettings(
            f"`output` is {settings.output}; give the name of a file that ends in "
            f"{', '.join(kinds)}, or `to`"
        )
    precision = settings.precision
    if precision is None:
        precision = "float16" if to == "page" else "float32"
    if settings.limit < 1:
        raise BadSettings(f"`limit` is {settings.limit}; it is a number of images, at least 1")
    if settings.calibrate and not (settings.data and precision == "int8"):
        raise BadSettings("`calibrate` goes with `precision='int8'`, and `data` to try the file on")
    if settings.onnxruntime_web and to != "page":
        raise BadSettings("onnxruntime-web is for a page: give `output` a name that ends in .html")
    wanted = Export(
        to,
        precision,
        settings.preprocessing,
        calibrated=bool(settings.calibrate),
        merge=settings.merge,
        least=settings.agreement,
    )
    digest_before = _digest_if_kept(settings, wanted)
    classifier = classifier_of(settings.model, settings.hints)
    check(classifier, settings.output, wanted)
    if to == "page":
        wanted = replace(wanted, web_runtime=find_web_runtime(settings.onnxruntime_web))
    trial = _trial(settings, wanted, classifier)

    # Write it, and compare
    tried = counted(len(trial.items), "image")
    say(f"exporting; the file will then be tried on {tried}")
    agreement = write(classifier, settings.output, wanted, trial)
    if digest_before:
        tie(settings.output, digest_before, digest_of_classifier(classifier))
    calibrated_on = len(trial.for_calibration) if needs_calibration(wanted) else 0
    return ExportedModel(
        settings,
        classifier,
        to,
        precision,
        agreement,
        trial.name,
        calibrated_on,
        trial.learned,
        wanted.web_runtime,
    )


def _digest_if_kept(settings: ExportModel, wanted: Export) -> str:
    """The digest of a run's model, if what is to be written is the file that the run keeps for answers
    without PyTorch (runtimes/onnx_of_run.py); "" for any other file."""
    run_dir = run_of(settings.model)
    is_plain = settings.hints == Hints() and not wanted.preprocessing and not wanted.merge
    if run_dir is None or not is_plain or (wanted.to, wanted.precision) != ("onnx", "float32"):
        return ""
    if settings.output.resolve() != kept_file(run_dir).resolve():
        return ""
    return digest_of_folder(run_dir)


def keep(run_dir: Path) -> None:
    """Write RUN/model.onnx where answers will be computed by it: where `auto` is float32 on the CPU, and
    all is installed that it takes. A model that cannot be exported, or whose file falls short, has none;
    and a file of that name that somebody has exported otherwise stays."""
    path = kept_file(run_dir)
    if not is_cpu("auto") or not auto_is_float32() or missing_packages(Export()) or is_kept(path):
        return
    if path.exists() and not was_kept(path):
        say_detail(f"{path} stays as it is, so predict and serve use PyTorch")
        return
    say(f"exporting the model to {path}, for answers without PyTorch")
    try:
        export(str(run_dir), output=path, quiet=True)
    except KeyboardInterrupt:  # the run is complete, and what it found is still to be said
        words = f"{as_word(run_dir)} -o {as_word(path)}"
        say(f"interrupted, so {path} was not written; vitkit export {words} writes it")
        return
    except Exception as error:  # the exporters' errors have no common class
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        say_detail(f"no {path} is kept for answers without PyTorch: {reason}")
        return
    say(
        f"{path} is kept beside the model: with it, predict and serve answer sooner, without PyTorch"
    )


def _trial(settings: ExportModel, wanted: Export, classifier: Classifier) -> Trial:
    """The images to try the file on, and those that give the ranges of int8."""
    if settings.data:
        calibrate = settings.calibrate if needs_calibration(wanted) else None
        return trial_on(settings.data, classifier.labels, settings.limit, calibrate)
    if wanted.precision != "int8":
        return sample_trial()

    # For int8 the images of the model's own run, if they are here
    why = ""
    run_dir = run_of(settings.model)
    if run_dir is not None:
        try:
            return _own_trial(read_run(run_dir), classifier, settings.limit)
        except (VitkitError, OSError) as error:
            why = f", and those of {run_dir} cannot be opened ({error})"
    if not needs_calibration(wanted):
        if why:
            say(f"tried on parts of two photographs instead of images of the run{why}")
        return sample_trial()
    raise BadSettings(
        f"ONNX Runtime's int8 is calibrated and judged on images like those to come{why}: name some with "
        "`data=DATA`"
    )


def _own_trial(run: Recorded, classifier: Classifier, tried: int) -> Trial:
    """The images of a run. Raises ValueError if they are not there, or are others now; OSError."""
    parts = [name for name in ("test", "val") if name in run.data["counts"]]
    if not parts:
        raise BadSettings("it held out none")
    left_out = open_part(run, parts[0])
    learned = open_part(run, "train")
    return own_trial(left_out, learned, classifier.labels, str(run.data["source"]), tried)
