"""Written by `cd tests && python -m stubs`: for type checkers and editors."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
import pandas
import torch
from PIL.Image import Image
from torch import Tensor

from vitkit.data import Columns
from vitkit.system.console.messages import Progress
from vitkit.system.span import Span
from vitkit.weights import Classifier
from vitkit.verbs.arguments import Data as Data
from vitkit.verbs.arguments import DataColumns as DataColumns
from vitkit.verbs.arguments import Device as Device
from vitkit.verbs.arguments import IMAGES as IMAGES
from vitkit.verbs.arguments import Images as Images
from vitkit.verbs.arguments import Model as Model
from vitkit.verbs.arguments import ModelHints as ModelHints
from vitkit.verbs.arguments import ModelOrFile as ModelOrFile
from vitkit.verbs.arguments import OnBadImage as OnBadImage
from vitkit.verbs.arguments import Precision as Precision
from vitkit.verbs.arguments import Runtime as Runtime
from vitkit.verbs.arguments import check_folder as check_folder
from vitkit.verbs.arguments import check_sheet as check_sheet
from vitkit.verbs.arguments import pick_precision as pick_precision
from vitkit.verbs.arguments import read_shard as read_shard
from vitkit.verbs.arguments import short_name as short_name
from vitkit.verbs.arguments import word_of as word_of
from vitkit.verbs.computing import any_runtime_of_file as any_runtime_of_file
from vitkit.verbs.computing import classifier_of as classifier_of
from vitkit.verbs.computing import classifier_on as classifier_on
from vitkit.verbs.computing import classifier_with_head as classifier_with_head
from vitkit.verbs.computing import precision_of as precision_of
from vitkit.verbs.computing import runtime_of_file as runtime_of_file
from vitkit.verbs.computing import runtime_of_model as runtime_of_model
from vitkit.verbs.data.pack import PackedData as PackedData
from vitkit.verbs.data.pack import training_command as training_command
from vitkit.verbs.definition import Verb as Verb
from vitkit.verbs.definition import print_result as print_result
from vitkit.verbs.definition import result as result
from vitkit.verbs.definition import verb as verb
from vitkit.verbs.diagnosis.doctor import Diagnosis as Diagnosis
from vitkit.verbs.diagnosis.doctor import doctor as doctor
from vitkit.verbs.files.convert import Converted as Converted
from vitkit.verbs.files.convert import check_tolerance as check_tolerance
from vitkit.verbs.files.export import ExportedModel as ExportedModel
from vitkit.verbs.files.push import Pushed as Pushed
from vitkit.verbs.files.show import Description as Description
from vitkit.verbs.grids.study import RunStudy as RunStudy
from vitkit.verbs.grids.study import study_description as study_description
from vitkit.verbs.inspection.inspect import Figure as Figure
from vitkit.verbs.prediction.batch import BatchState as BatchState
from vitkit.verbs.prediction.batch import batch as batch
from vitkit.verbs.prediction.output import Predictions as Predictions
from vitkit.verbs.prediction.predict import predict as predict
from vitkit.verbs.prediction.sort import sort as sort
from vitkit.verbs.prediction.watch import watch as watch
from vitkit.verbs.serving.app import ClosedPage as ClosedPage
from vitkit.verbs.serving.serve import Ended as Ended
from vitkit.verbs.serving.serve import Serve as Serve
from vitkit.verbs.serving.serve import open_model as open_model
from vitkit.verbs.settings import MISSING as MISSING
from vitkit.verbs.settings import Option as Option
from vitkit.verbs.settings import default_of as default_of
from vitkit.verbs.settings import docstrings as docstrings
from vitkit.verbs.settings import is_word as is_word
from vitkit.verbs.settings import mark as mark
from vitkit.verbs.settings import option_name as option_name
from vitkit.verbs.settings import options as options
from vitkit.verbs.sources import As as As
from vitkit.verbs.sources import as_words as as_words
from vitkit.verbs.sources import broken_images as broken_images
from vitkit.verbs.sources import loaded_for_features as loaded_for_features
from vitkit.verbs.sources import parts_of as parts_of
from vitkit.verbs.sources import splits_to_learn_from as splits_to_learn_from
from vitkit.verbs.sources import without_broken as without_broken
from vitkit.verbs.sources import without_unknown as without_unknown
from vitkit.verbs.training.finetune import FirstPass as FirstPass
from vitkit.verbs.training.finetune import ModelAndImages as ModelAndImages
from vitkit.verbs.training.finetune import begin_finetune as begin_finetune
from vitkit.verbs.training.plan import Plan as Plan
from vitkit.verbs.training.train import RecipeOnImages as RecipeOnImages
from vitkit.verbs.training.train import Train as Train
from vitkit.verbs.training.train import recipe_on_images as recipe_on_images
from vitkit.verbs.words import ARCHIVES as ARCHIVES
from vitkit.verbs.words import DATA as DATA
from vitkit.verbs.words import IMAGE_FILES as IMAGE_FILES
from vitkit.verbs.words import MODEL as MODEL
from vitkit.verbs.words import is_images as is_images
from vitkit.verbs.words import is_model as is_model
from vitkit.verbs.words import kind_of as kind_of


from vitkit.verbs.data.pack import PackedData as PackedData


from vitkit.verbs.data.review import Applied as _Applied

class Applied(_Applied):
    def to_frame(self) -> pandas.DataFrame: ...


from vitkit.verbs.data.review import Reviewed as _Reviewed

class Reviewed(_Reviewed):
    def to_frame(self) -> pandas.DataFrame: ...


from vitkit.verbs.data.stats import Statistics as _Statistics

class Statistics(_Statistics):
    def to_frame(self) -> pandas.DataFrame: ...


from vitkit.verbs.diagnosis.bench import Benchmark as _Benchmark

class Benchmark(_Benchmark):
    def to_frame(self) -> pandas.DataFrame: ...


from vitkit.verbs.evaluation.features import WrittenFeatures as _WrittenFeatures

class WrittenFeatures(_WrittenFeatures):
    def to_frame(self) -> pandas.DataFrame: ...


from vitkit.verbs.evaluation.fewshot import FewshotAccuracy as _FewshotAccuracy

class FewshotAccuracy(_FewshotAccuracy):
    def to_frame(self) -> pandas.DataFrame: ...


from vitkit.verbs.evaluation.outcome import Evaluation as _Evaluation

class Evaluation(_Evaluation):
    def to_frame(self) -> pandas.DataFrame: ...


from vitkit.verbs.evaluation.probe import Probed as _Probed

class Probed(_Probed):
    def to_frame(self) -> pandas.DataFrame: ...


from vitkit.verbs.files.convert import Converted as Converted


from vitkit.verbs.files.export import ExportedModel as ExportedModel


from vitkit.verbs.files.faster import FasterModel as _FasterModel

class FasterModel(_FasterModel):
    def to_frame(self) -> pandas.DataFrame: ...


from vitkit.verbs.files.push import Pushed as Pushed


from vitkit.verbs.files.show import Description as Description


from vitkit.verbs.files.zoo import ModelList as _ModelList

class ModelList(_ModelList):
    def to_frame(self) -> pandas.DataFrame: ...


from vitkit.verbs.files.zoo import PublishedList as _PublishedList

class PublishedList(_PublishedList):
    def to_frame(self) -> pandas.DataFrame: ...


from vitkit.verbs.grids.study import Studies as _Studies

class Studies(_Studies):
    def to_frame(self) -> pandas.DataFrame: ...


from vitkit.verbs.grids.study import StudyTable as _StudyTable

class StudyTable(_StudyTable):
    def to_frame(self) -> pandas.DataFrame: ...


from vitkit.verbs.grids.suite import SuiteTable as _SuiteTable

class SuiteTable(_SuiteTable):
    def to_frame(self) -> pandas.DataFrame: ...


from vitkit.verbs.inspection.compare import ComparedModels as _ComparedModels

class ComparedModels(_ComparedModels):
    def to_frame(self) -> pandas.DataFrame: ...


from vitkit.verbs.inspection.compare import ComparedRuns as _ComparedRuns

class ComparedRuns(_ComparedRuns):
    def to_frame(self) -> pandas.DataFrame: ...


from vitkit.verbs.inspection.inspect import Inspected as _Inspected

class Inspected(_Inspected):
    def to_frame(self) -> pandas.DataFrame: ...


from vitkit.verbs.serving.app import ClosedPage as ClosedPage


from vitkit.verbs.serving.serve import Ended as Ended


from vitkit.verbs.teaching.label import Checked as _Checked

class Checked(_Checked):
    def to_frame(self) -> pandas.DataFrame: ...


from vitkit.verbs.teaching.label import Labelled as _Labelled

class Labelled(_Labelled):
    def to_frame(self) -> pandas.DataFrame: ...


from vitkit.verbs.teaching.teach import Lesson as _Lesson

class Lesson(_Lesson):
    def to_frame(self) -> pandas.DataFrame: ...


from vitkit.verbs.training.plan import Planned as _Planned

class Planned(_Planned):
    def to_frame(self) -> pandas.DataFrame: ...


from vitkit.verbs.training.quick import Finetuned as _Finetuned

class Finetuned(_Finetuned):
    def to_frame(self) -> pandas.DataFrame: ...


from vitkit.verbs.training.report import WrittenReport as _WrittenReport

class WrittenReport(_WrittenReport):
    def to_frame(self) -> pandas.DataFrame: ...


from vitkit.verbs.training.train import Trained as _Trained

class Trained(_Trained):
    def to_frame(self) -> pandas.DataFrame: ...


def app(
    model: str | Path | Classifier,
    other: str | Path = ...,
    *,
    host: str = '127.0.0.1',
    port: int = 7860,
    open: bool = False,
    runtime: Literal['auto', 'torch', 'compiled', 'onnx', 'openvino'] = 'auto',
    device: str | torch.device = 'auto',
    image: int | Sequence[int] = ...,
    stride: int | Sequence[int] | None = None,
    channels: int | None = None,
    heads: int | None = None,
    pool: Literal['token', 'gap', 'corner'] | None = None,
    statistics: Literal['imagenet', 'half', 'clip'] | None = None,
    resize: int | None = None,
    crop: Literal['centre', 'whole', 'native'] | None = None,
    tokens: int | None = None,
    interpolation: Literal['bilinear', 'bicubic'] | None = None,
    part: str | None = None,
    labels: str | Path | None = None,
    quiet: bool = False,
    progress: Callable[[str | Progress], Any] | None = None,
) -> ClosedPage:
    """Serve a web page on which a model answers photographs and shows what it looks at. Returns when
    it is ended, by Ctrl-C. Raises ValueError if the port is not one."""


def bench(
    model: str | Path | Classifier,
    *,
    data: str = '',
    calibrate: str = '',
    batch: int | Sequence[int] = ...,
    rounds: int = 5,
    seconds: float = 0.5,
    limit: int = 200,
    runtimes: Literal['torch', 'compiled', 'onnx', 'openvino'] | Sequence[Literal['torch', 'compiled', 'onnx', 'openvino']] = ...,
    precisions: Literal['float32', 'bfloat16', 'int8'] | Sequence[Literal['float32', 'bfloat16', 'int8']] = ...,
    timm: str | Sequence[str] = ...,
    merge: int | Sequence[int] = ...,
    exit: float | Sequence[float] = ...,
    start_up: bool = True,
    report: str | Path | Sequence[str | Path] = ...,
    json: bool = False,
    image: int | Sequence[int] = ...,
    stride: int | Sequence[int] | None = None,
    channels: int | None = None,
    heads: int | None = None,
    pool: Literal['token', 'gap', 'corner'] | None = None,
    statistics: Literal['imagenet', 'half', 'clip'] | None = None,
    resize: int | None = None,
    crop: Literal['centre', 'whole', 'native'] | None = None,
    tokens: int | None = None,
    interpolation: Literal['bilinear', 'bicubic'] | None = None,
    part: str | None = None,
    labels: str | Path | None = None,
    quiet: bool = False,
    progress: Callable[[str | Progress], Any] | None = None,
) -> Benchmark:
    """Measure how fast a model is on this machine, in every runtime and precision that is
    installed, side by side; and how far each gives the model's answers. For an exported file: how
    fast it is, in every library that can run it. Raises ValueError for numbers that cannot be, and
    for what an exported file cannot be asked."""


@overload
def compare(
    one: str | Path | Classifier,
    two: str | Path | Classifier,
    *images: str | Path | bytes | Image | np.ndarray | Tensor | Iterable[Any],
    limit: int = 64,
    tolerance: float = 0.0001,
    output: str | Path = ...,
    data: str | Sequence[str] = ...,
    json: bool = False,
    ok_if_unreadable: bool = False,
    image: int | Sequence[int] = ...,
    stride: int | Sequence[int] | None = None,
    channels: int | None = None,
    heads: int | None = None,
    pool: Literal['token', 'gap', 'corner'] | None = None,
    statistics: Literal['imagenet', 'half', 'clip'] | None = None,
    resize: int | None = None,
    crop: Literal['centre', 'whole', 'native'] | None = None,
    tokens: int | None = None,
    interpolation: Literal['bilinear', 'bicubic'] | None = None,
    part: str | None = None,
    labels: str | Path | None = None,
    quiet: bool = False,
    progress: Callable[[str | Progress], Any] | None = None,
) -> ComparedModels | ComparedRuns:
    """Compute with two models on the same images, and measure how far they differ in every layer; or,
    without an image, set two runs side by side.

    Without images, raises ValueError if one is not a run."""

@overload
def compare(
    one: str | Path | Classifier,
    two: str | Path | Classifier,
    *,
    images: str | Path | bytes | Image | np.ndarray | Tensor | Iterable[Any] = ...,
    limit: int = 64,
    tolerance: float = 0.0001,
    output: str | Path = ...,
    data: str | Sequence[str] = ...,
    json: bool = False,
    ok_if_unreadable: bool = False,
    image: int | Sequence[int] = ...,
    stride: int | Sequence[int] | None = None,
    channels: int | None = None,
    heads: int | None = None,
    pool: Literal['token', 'gap', 'corner'] | None = None,
    statistics: Literal['imagenet', 'half', 'clip'] | None = None,
    resize: int | None = None,
    crop: Literal['centre', 'whole', 'native'] | None = None,
    tokens: int | None = None,
    interpolation: Literal['bilinear', 'bicubic'] | None = None,
    part: str | None = None,
    labels: str | Path | None = None,
    quiet: bool = False,
    progress: Callable[[str | Progress], Any] | None = None,
) -> ComparedModels | ComparedRuns:
    """Compute with two models on the same images, and measure how far they differ in every layer; or,
    without an image, set two runs side by side.

    Without images, raises ValueError if one is not a run."""


def convert(
    source: str | Path,
    dest: str | Path,
    to: str | Path,
    *,
    headless: bool = False,
    approximate: bool = False,
    tolerance: float = 0.0001,
    image: int | Sequence[int] = ...,
    stride: int | Sequence[int] | None = None,
    channels: int | None = None,
    heads: int | None = None,
    pool: Literal['token', 'gap', 'corner'] | None = None,
    statistics: Literal['imagenet', 'half', 'clip'] | None = None,
    resize: int | None = None,
    crop: Literal['centre', 'whole', 'native'] | None = None,
    tokens: int | None = None,
    interpolation: Literal['bilinear', 'bicubic'] | None = None,
    part: str | None = None,
    labels: str | Path | None = None,
    quiet: bool = False,
    progress: Callable[[str | Progress], Any] | None = None,
) -> Converted:
    """Write a model in another library's format, and prove that it is the same there: every tensor read
    back to the bit, and the logits of the other library where it is installed.

    A directory of another library is first compared with that library's own reading of it.

    Raises ValueError for what the format cannot express, unless `approximate`, and for logits that
    differ by more than the tolerance."""


def evaluate(
    model: str | Path | Classifier,
    data: str | Path,
    *,
    against: str = '',
    report: str | Path | Sequence[str | Path] = ...,
    calibrate: str | Path | None = None,
    real: str | Path | None = None,
    named: Literal['imagenet', 'imagenet-v2', 'imagenet-a', 'imagenet-r', 'imagenet-sketch', 'objectnet'] | Literal['imagenet-c'] | None = None,
    corruptions: Literal['gaussian_noise', 'shot_noise', 'impulse_noise', 'defocus_blur', 'glass_blur', 'motion_blur', 'zoom_blur', 'snow', 'frost', 'fog', 'brightness', 'contrast', 'elastic_transform', 'pixelate', 'jpeg_compression', 'speckle_noise', 'gaussian_blur', 'spatter', 'saturate'] | Literal['common'] | Sequence[Literal['gaussian_noise', 'shot_noise', 'impulse_noise', 'defocus_blur', 'glass_blur', 'motion_blur', 'zoom_blur', 'snow', 'frost', 'fog', 'brightness', 'contrast', 'elastic_transform', 'pixelate', 'jpeg_compression', 'speckle_noise', 'gaussian_blur', 'spatter', 'saturate'] | Literal['common']] = ...,
    evals: Literal['accuracy', 'classification', 'precision', 'errors', 'neighbours', 'fewshot'] | Sequence[Literal['accuracy', 'classification', 'precision', 'errors', 'neighbours', 'fewshot']] = ...,
    split: Literal['train', 'val', 'test'] | None = None,
    limit: int = 0,
    columns: Columns = ...,
    groups: Literal['auto', 'none'] | str = 'auto',
    on_bad_image: Literal['fail', 'skip'] = 'fail',
    on_unknown_class: Literal['fail', 'skip'] = 'fail',
    batch: int = 64,
    workers: int = -1,
    runtime: Literal['auto', 'torch', 'compiled', 'onnx', 'openvino'] = 'auto',
    precision: Literal['auto', 'float32', 'bfloat16'] = 'float32',
    device: str | torch.device = 'auto',
    json: bool = False,
    image: int | Sequence[int] = ...,
    stride: int | Sequence[int] | None = None,
    channels: int | None = None,
    heads: int | None = None,
    pool: Literal['token', 'gap', 'corner'] | None = None,
    statistics: Literal['imagenet', 'half', 'clip'] | None = None,
    resize: int | None = None,
    crop: Literal['centre', 'whole', 'native'] | None = None,
    tokens: int | None = None,
    interpolation: Literal['bilinear', 'bicubic'] | None = None,
    part: str | None = None,
    labels: str | Path | None = None,
    quiet: bool = False,
    progress: Callable[[str | Progress], Any] | None = None,
    columns__image: str | None = ...,
    columns__label: str | None = ...,
    columns__target: Literal['auto', 'class', 'classes', 'number', 'none'] = ...,
    columns__group: str | None = ...,
    columns__separator: str | None = ...,
    columns__level: int | None = ...,
) -> Evaluation:
    """Measure how good a model is on images; every image counts exactly once. Under torchrun each
    process measures its share, and rank 0 has the results.

    Raises ValueError for images without labels, and for settings that do not go together."""


def export(
    model: str | Path | Classifier,
    output: str | Path,
    *,
    to: Literal['onnx', 'openvino', 'torch', 'page'] | None = None,
    precision: Literal['float32', 'float16', 'bfloat16', 'int8'] | None = None,
    preprocessing: bool = False,
    merge: int = 0,
    data: str = '',
    calibrate: str = '',
    limit: int = 500,
    onnxruntime_web: str | Path | None = None,
    agreement: float | None = None,
    image: int | Sequence[int] = ...,
    stride: int | Sequence[int] | None = None,
    channels: int | None = None,
    heads: int | None = None,
    pool: Literal['token', 'gap', 'corner'] | None = None,
    statistics: Literal['imagenet', 'half', 'clip'] | None = None,
    resize: int | None = None,
    crop: Literal['centre', 'whole', 'native'] | None = None,
    tokens: int | None = None,
    interpolation: Literal['bilinear', 'bicubic'] | None = None,
    part: str | None = None,
    labels: str | Path | None = None,
    quiet: bool = False,
    progress: Callable[[str | Progress], Any] | None = None,
) -> ExportedModel:
    """Write a model for ONNX Runtime, OpenVINO or torch.export, and measure on real images that the
    file answers as the model does.

    Raises ValueError, and writes nothing, if the file falls short."""


def faster(
    model: str | Path | Classifier,
    *,
    data: str = '',
    lose: float = 0.5,
    at_most: str = '',
    purpose: Literal['latency', 'throughput'] = 'latency',
    budget: str = '10m',
    output: str | Path | None = None,
    report: str | Path | Sequence[str | Path] = ...,
    image: int | Sequence[int] = ...,
    stride: int | Sequence[int] | None = None,
    channels: int | None = None,
    heads: int | None = None,
    pool: Literal['token', 'gap', 'corner'] | None = None,
    statistics: Literal['imagenet', 'half', 'clip'] | None = None,
    resize: int | None = None,
    crop: Literal['centre', 'whole', 'native'] | None = None,
    tokens: int | None = None,
    interpolation: Literal['bilinear', 'bicubic'] | None = None,
    part: str | None = None,
    labels: str | Path | None = None,
    quiet: bool = False,
    progress: Callable[[str | Progress], Any] | None = None,
) -> FasterModel:
    """Find the fastest model that loses no more accuracy than is allowed, on images that it has not
    learned from, and write it as a file.

    Raises ValueError for a model without such images, and for one that cannot be judged by them."""


def features(
    model: str | Path | Classifier,
    data: str | Path,
    *,
    output: str | Path = ...,
    split: Literal['train', 'val', 'test'] | None = None,
    named: Literal['imagenet', 'imagenet-v2', 'imagenet-a', 'imagenet-r', 'imagenet-sketch', 'objectnet'] | None = None,
    columns: Columns = ...,
    on_bad_image: Literal['fail', 'skip'] = 'fail',
    runtime: Literal['auto', 'torch', 'compiled', 'onnx', 'openvino'] = 'auto',
    precision: Literal['auto', 'float32', 'bfloat16'] = 'auto',
    device: str | torch.device = 'auto',
    image: int | Sequence[int] = ...,
    stride: int | Sequence[int] | None = None,
    channels: int | None = None,
    heads: int | None = None,
    pool: Literal['token', 'gap', 'corner'] | None = None,
    statistics: Literal['imagenet', 'half', 'clip'] | None = None,
    resize: int | None = None,
    crop: Literal['centre', 'whole', 'native'] | None = None,
    tokens: int | None = None,
    interpolation: Literal['bilinear', 'bicubic'] | None = None,
    part: str | None = None,
    labels: str | Path | None = None,
    quiet: bool = False,
    progress: Callable[[str | Progress], Any] | None = None,
    columns__image: str | None = ...,
    columns__label: str | None = ...,
    columns__target: Literal['auto', 'class', 'classes', 'number', 'none'] = ...,
    columns__group: str | None = ...,
    columns__separator: str | None = ...,
    columns__level: int | None = ...,
) -> WrittenFeatures:
    """Compute what the head of a model reads of every image, once, and write it to a file.

    Raises ValueError for a file of another kind, and, before anything is computed, for one that is
    somebody else's."""


@overload
def fewshot(
    model: str | Path | Classifier,
    *data: str,
    shots: int | Sequence[int] = ...,
    seeds: int = 3,
    form: Literal['fixed', 'ranked'] = 'fixed',
    named: Literal['imagenet', 'imagenet-v2', 'imagenet-a', 'imagenet-r', 'imagenet-sketch', 'objectnet'] | None = None,
    columns: Columns = ...,
    on_bad_image: Literal['fail', 'skip'] = 'fail',
    precision: Literal['auto', 'float32', 'bfloat16'] = 'float32',
    device: str | torch.device = 'auto',
    json: bool = False,
    image: int | Sequence[int] = ...,
    stride: int | Sequence[int] | None = None,
    channels: int | None = None,
    heads: int | None = None,
    pool: Literal['token', 'gap', 'corner'] | None = None,
    statistics: Literal['imagenet', 'half', 'clip'] | None = None,
    resize: int | None = None,
    crop: Literal['centre', 'whole', 'native'] | None = None,
    tokens: int | None = None,
    interpolation: Literal['bilinear', 'bicubic'] | None = None,
    part: str | None = None,
    labels: str | Path | None = None,
    quiet: bool = False,
    progress: Callable[[str | Progress], Any] | None = None,
    columns__image: str | None = ...,
    columns__label: str | None = ...,
    columns__target: Literal['auto', 'class', 'classes', 'number', 'none'] = ...,
    columns__group: str | None = ...,
    columns__separator: str | None = ...,
    columns__level: int | None = ...,
) -> FewshotAccuracy:
    """Fit a linear layer to a few images of each class, in closed form, and measure it on the test
    images (Section 4.1): the mean over several draws. Every rank gets the same.

    Raises ValueError for data without a part to learn from and one to measure on."""

@overload
def fewshot(
    model: str | Path | Classifier,
    *,
    data: str | Sequence[str],
    shots: int | Sequence[int] = ...,
    seeds: int = 3,
    form: Literal['fixed', 'ranked'] = 'fixed',
    named: Literal['imagenet', 'imagenet-v2', 'imagenet-a', 'imagenet-r', 'imagenet-sketch', 'objectnet'] | None = None,
    columns: Columns = ...,
    on_bad_image: Literal['fail', 'skip'] = 'fail',
    precision: Literal['auto', 'float32', 'bfloat16'] = 'float32',
    device: str | torch.device = 'auto',
    json: bool = False,
    image: int | Sequence[int] = ...,
    stride: int | Sequence[int] | None = None,
    channels: int | None = None,
    heads: int | None = None,
    pool: Literal['token', 'gap', 'corner'] | None = None,
    statistics: Literal['imagenet', 'half', 'clip'] | None = None,
    resize: int | None = None,
    crop: Literal['centre', 'whole', 'native'] | None = None,
    tokens: int | None = None,
    interpolation: Literal['bilinear', 'bicubic'] | None = None,
    part: str | None = None,
    labels: str | Path | None = None,
    quiet: bool = False,
    progress: Callable[[str | Progress], Any] | None = None,
    columns__image: str | None = ...,
    columns__label: str | None = ...,
    columns__target: Literal['auto', 'class', 'classes', 'number', 'none'] = ...,
    columns__group: str | None = ...,
    columns__separator: str | None = ...,
    columns__level: int | None = ...,
) -> FewshotAccuracy:
    """Fit a linear layer to a few images of each class, in closed form, and measure it on the test
    images (Section 4.1): the mean over several draws. Every rank gets the same.

    Raises ValueError for data without a part to learn from and one to measure on."""


def finetune(
    model: str | Path | Classifier = ...,
    data: str | Path = ...,
    *,
    preset: Literal['quick', 'none', 'imagenet', 'cifar100', 'cifar10', 'pets', 'flowers', 'vtab', 'bit'] = 'quick',
    like: Literal['paper', 'code'] = 'paper',
    minutes: float = 2.0,
    portable: bool = False,
    select: bool = False,
    rates: float | Sequence[float] = ...,
    regularise: bool = False,
    weight_decays: float | Sequence[float] = ...,
    dropouts: float | Sequence[float] = ...,
    label_smoothings: float | Sequence[float] = ...,
    seeds: int = 1,
    evaluators: Literal['accuracy', 'classification', 'precision', 'errors', 'neighbours', 'fewshot'] | Sequence[Literal['accuracy', 'classification', 'precision', 'errors', 'neighbours', 'fewshot']] = ...,
    workdir: str | Path | None = None,
    device: str | torch.device = 'auto',
    fast: bool = False,
    patience: float = 600.0,
    image: int | Sequence[int] = ...,
    stride: int | Sequence[int] | None = None,
    channels: int | None = None,
    heads: int | None = None,
    pool: Literal['token', 'gap', 'corner'] | None = None,
    statistics: Literal['imagenet', 'half', 'clip'] | None = None,
    resize: int | None = None,
    crop: Literal['centre', 'whole', 'native'] | None = None,
    tokens: int | None = None,
    interpolation: Literal['bilinear', 'bicubic'] | None = None,
    part: str | None = None,
    labels: str | Path | None = None,
    columns: Columns = ...,
    length: str | Span | None = None,
    quiet: bool = False,
    progress: Callable[[str | Progress], Any] | None = None,
    **settings: Any
) -> Finetuned:
    """Make a classifier of one's own images from published weights: quickly, a head in closed form in
    seconds and then a better model in minutes; or by a protocol, with a preset of the paper's.

    Raises ValueError if no classifier can be made of the images, Interrupted after a stop."""


@overload
def inspect(
    model: str | Path | Classifier,
    *images: str | Path | bytes | Image | np.ndarray | Tensor | Iterable[Any],
    figures: Literal['filters', 'positions', 'distance', 'entropy', 'rollout', 'relevance', 'norms', 'colours', 'attention', 'similarity', 'alignment', 'occlusion'] | Sequence[Literal['filters', 'positions', 'distance', 'entropy', 'rollout', 'relevance', 'norms', 'colours', 'attention', 'similarity', 'alignment', 'occlusion']] = ...,
    output: str | Path | None = None,
    limit: int = 128,
    shown: int = 8,
    class_name: str = '',
    layer: int = 0,
    patch: tuple[int, int] | None = None,
    against: str = '',
    format: Literal['png', 'svg'] = 'png',
    theme: Literal['light', 'dark'] = 'light',
    arrays: bool = False,
    page: bool = True,
    device: str | torch.device = 'auto',
    ok_if_unreadable: bool = False,
    image: int | Sequence[int] = ...,
    stride: int | Sequence[int] | None = None,
    channels: int | None = None,
    heads: int | None = None,
    pool: Literal['token', 'gap', 'corner'] | None = None,
    statistics: Literal['imagenet', 'half', 'clip'] | None = None,
    resize: int | None = None,
    crop: Literal['centre', 'whole', 'native'] | None = None,
    tokens: int | None = None,
    interpolation: Literal['bilinear', 'bicubic'] | None = None,
    part: str | None = None,
    labels: str | Path | None = None,
    quiet: bool = False,
    progress: Callable[[str | Progress], Any] | None = None,
) -> Inspected:
    """Draw what a model has learned and what it looks at (Figures 6, 7, 10, 11 and 14, and others),
    as files and as one page. Raises ValueError for a figure that has no meaning for the model, if it
    was asked for by name."""

@overload
def inspect(
    model: str | Path | Classifier,
    *,
    images: str | Path | bytes | Image | np.ndarray | Tensor | Iterable[Any] = ...,
    figures: Literal['filters', 'positions', 'distance', 'entropy', 'rollout', 'relevance', 'norms', 'colours', 'attention', 'similarity', 'alignment', 'occlusion'] | Sequence[Literal['filters', 'positions', 'distance', 'entropy', 'rollout', 'relevance', 'norms', 'colours', 'attention', 'similarity', 'alignment', 'occlusion']] = ...,
    output: str | Path | None = None,
    limit: int = 128,
    shown: int = 8,
    class_name: str = '',
    layer: int = 0,
    patch: tuple[int, int] | None = None,
    against: str = '',
    format: Literal['png', 'svg'] = 'png',
    theme: Literal['light', 'dark'] = 'light',
    arrays: bool = False,
    page: bool = True,
    device: str | torch.device = 'auto',
    ok_if_unreadable: bool = False,
    image: int | Sequence[int] = ...,
    stride: int | Sequence[int] | None = None,
    channels: int | None = None,
    heads: int | None = None,
    pool: Literal['token', 'gap', 'corner'] | None = None,
    statistics: Literal['imagenet', 'half', 'clip'] | None = None,
    resize: int | None = None,
    crop: Literal['centre', 'whole', 'native'] | None = None,
    tokens: int | None = None,
    interpolation: Literal['bilinear', 'bicubic'] | None = None,
    part: str | None = None,
    labels: str | Path | None = None,
    quiet: bool = False,
    progress: Callable[[str | Progress], Any] | None = None,
) -> Inspected:
    """Draw what a model has learned and what it looks at (Figures 6, 7, 10, 11 and 14, and others),
    as files and as one page. Raises ValueError for a figure that has no meaning for the model, if it
    was asked for by name."""


def label(
    photographs: str | Path,
    *,
    classes: str | Sequence[str] = ...,
    model: str | Path | Classifier = '',
    workdir: str | Path | None = None,
    check: bool = False,
    sort_into: str | Path | None = None,
    host: str = '127.0.0.1',
    port: int = 7870,
    open: bool = False,
    precision: Literal['auto', 'float32', 'bfloat16'] = 'auto',
    device: str | torch.device = 'auto',
    image: int | Sequence[int] = ...,
    stride: int | Sequence[int] | None = None,
    channels: int | None = None,
    heads: int | None = None,
    pool: Literal['token', 'gap', 'corner'] | None = None,
    statistics: Literal['imagenet', 'half', 'clip'] | None = None,
    resize: int | None = None,
    crop: Literal['centre', 'whole', 'native'] | None = None,
    tokens: int | None = None,
    interpolation: Literal['bilinear', 'bicubic'] | None = None,
    part: str | None = None,
    labels: str | Path | None = None,
    quiet: bool = False,
    progress: Callable[[str | Progress], Any] | None = None,
) -> Labelled | Checked:
    """Serve a page on which people say what photographs show, until it is ended by Ctrl-C. With `check`,
    they decide on what a review of photographs with classes has found.

    Raises ValueError for a folder without photographs, for one that is being labelled already, and for a
    number that is not a port."""


@overload
def list_models(
    *names: str,
    published: bool = False,
    image: int | Sequence[int] = ...,
    classes: int = 1000,
    epochs: float = 7,
    examples: float = 303000000.0,
    quiet: bool = False,
    progress: Callable[[str | Progress], Any] | None = None,
) -> ModelList | PublishedList:
    """Named models with their parameters, tokens and multiply-accumulates at each size, and the
    operations of a training; or published weights. Raises ValueError if a name does not exist."""

@overload
def list_models(
    *,
    names: str | Sequence[str] = ...,
    published: bool = False,
    image: int | Sequence[int] = ...,
    classes: int = 1000,
    epochs: float = 7,
    examples: float = 303000000.0,
    quiet: bool = False,
    progress: Callable[[str | Progress], Any] | None = None,
) -> ModelList | PublishedList:
    """Named models with their parameters, tokens and multiply-accumulates at each size, and the
    operations of a training; or published weights. Raises ValueError if a name does not exist."""


def pack(
    source: str | Path,
    dest: str | Path,
    *,
    format: Literal['tar', 'parquet'] = 'tar',
    shard: int = 5000,
    side: int = 0,
    quality: int = 95,
    shuffle: bool = True,
    columns: Columns = ...,
    workers: int = -1,
    ok_if_unreadable: bool = False,
    quiet: bool = False,
    progress: Callable[[str | Progress], Any] | None = None,
    columns__image: str | None = ...,
    columns__label: str | None = ...,
    columns__target: Literal['auto', 'class', 'classes', 'number', 'none'] = ...,
    columns__group: str | None = ...,
    columns__separator: str | None = ...,
    columns__level: int | None = ...,
) -> PackedData:
    """Write a data set as shards; the same call continues after an interruption.

    Raises ValueError for a data set that shards cannot express, and for a directory that holds
    other shards."""


def plan(
    recipe: str | Path,
    data: str | Path = ...,
    *,
    model: str | Path | Classifier = '',
    evaluators: str | Sequence[str] | None = None,
    length: str | Span | None = None,
    model_name: str = '',
    gpus: int = 1,
    memory: float = 80.0,
    tflops: float = 989.0,
    mfu: float = 0.4,
    watts: float = 700.0,
    examples: int = 0,
    classes: int = 1000,
    quiet: bool = False,
    progress: Callable[[str | Progress], Any] | None = None,
    **settings: Any
) -> Planned:
    """Count what a recipe needs on a number of GPUs; nothing is run. Raises ValueError if the GPUs
    cannot share a batch equally, and if nobody knows how many images there are."""


def probe(
    model: str | Path | Classifier,
    data: str | Path,
    *,
    to: str | Path | None = None,
    method: Literal['linear', 'prototype', 'logistic', 'neighbours'] = 'linear',
    k: int = 20,
    named: Literal['imagenet', 'imagenet-v2', 'imagenet-a', 'imagenet-r', 'imagenet-sketch', 'objectnet'] | None = None,
    columns: Columns = ...,
    groups: Literal['auto', 'none'] | str = 'auto',
    on_bad_image: Literal['fail', 'skip'] = 'fail',
    precision: Literal['auto', 'float32', 'bfloat16'] = 'auto',
    device: str | torch.device = 'auto',
    json: bool = False,
    image: int | Sequence[int] = ...,
    stride: int | Sequence[int] | None = None,
    channels: int | None = None,
    heads: int | None = None,
    pool: Literal['token', 'gap', 'corner'] | None = None,
    statistics: Literal['imagenet', 'half', 'clip'] | None = None,
    resize: int | None = None,
    crop: Literal['centre', 'whole', 'native'] | None = None,
    tokens: int | None = None,
    interpolation: Literal['bilinear', 'bicubic'] | None = None,
    part: str | None = None,
    labels: str | Path | None = None,
    quiet: bool = False,
    progress: Callable[[str | Progress], Any] | None = None,
    columns__image: str | None = ...,
    columns__label: str | None = ...,
    columns__target: Literal['auto', 'class', 'classes', 'number', 'none'] = ...,
    columns__group: str | None = ...,
    columns__separator: str | None = ...,
    columns__level: int | None = ...,
) -> Probed:
    """Fit a linear head to the features of images, in seconds and without training. Every image is also
    answered by a fit without it, which says how good the head is where no test image is left.

    Raises ValueError for images without labels, and for features that are not finite."""


def push(
    folder: str | Path,
    name: str | Path,
    *,
    private: bool = False,
    license: str = '',
    quiet: bool = False,
    progress: Callable[[str | Progress], Any] | None = None,
) -> Pushed:
    """Upload a model directory, or the one in a run. Raises ValueError for another folder, for a
    licence that does not allow it, and for paths of this machine in what would be sent."""


@overload
def report(
    *runs: str | Path,
    output: str | Path | None = None,
    data: str | Sequence[str] = ...,
    quiet: bool = False,
    progress: Callable[[str | Progress], Any] | None = None,
) -> WrittenReport:
    """Write a page about a run, with all that can be seen of its model; or about several runs, side by
    side. Raises ValueError if one is not a run."""

@overload
def report(
    *,
    runs: str | Path | Sequence[str | Path],
    output: str | Path | None = None,
    data: str | Sequence[str] = ...,
    quiet: bool = False,
    progress: Callable[[str | Progress], Any] | None = None,
) -> WrittenReport:
    """Write a page about a run, with all that can be seen of its model; or about several runs, side by
    side. Raises ValueError if one is not a run."""


def review(
    data: str | Path,
    model: str | Path | Classifier = ...,
    *,
    named_model: str = '',
    output: str | Path = ...,
    exclude: str | Path | None = None,
    columns: Columns = ...,
    groups: Literal['auto', 'none'] | str = 'auto',
    split_seed: int = 0,
    device: str | torch.device = 'auto',
    apply: str | Path | None = None,
    undo: bool = False,
    yes: bool = False,
    json: bool = False,
    image: int | Sequence[int] = ...,
    stride: int | Sequence[int] | None = None,
    channels: int | None = None,
    heads: int | None = None,
    pool: Literal['token', 'gap', 'corner'] | None = None,
    statistics: Literal['imagenet', 'half', 'clip'] | None = None,
    resize: int | None = None,
    crop: Literal['centre', 'whole', 'native'] | None = None,
    tokens: int | None = None,
    interpolation: Literal['bilinear', 'bicubic'] | None = None,
    part: str | None = None,
    labels: str | Path | None = None,
    quiet: bool = False,
    progress: Callable[[str | Progress], Any] | None = None,
    columns__image: str | None = ...,
    columns__label: str | None = ...,
    columns__target: Literal['auto', 'class', 'classes', 'number', 'none'] = ...,
    columns__group: str | None = ...,
    columns__separator: str | None = ...,
    columns__level: int | None = ...,
) -> Reviewed | Applied:
    """Look at every image: labels that are probably wrong, judged by a model of all other images;
    pictures that are there twice; images unlike all others. Nothing is trained, and nothing changed.
    With `apply`, what a reader has decided on its page is done to the files. Raises ValueError without
    a model."""


def serve(
    model: str | Path | Classifier,
    *,
    host: str = '127.0.0.1',
    port: int = 8000,
    workers: int = 1,
    top: int = 5,
    batch: int = 32,
    delay: float = 10.0,
    queue: int = 256,
    most_bytes: int = 33554432,
    most_images: int = 64,
    seconds: float = 30.0,
    grace: float = 30.0,
    token_file: str | Path | None = None,
    allow_origin: str | Sequence[str] = ...,
    allow_host: str | Sequence[str] = ...,
    runtime: Literal['auto', 'torch', 'compiled', 'onnx', 'openvino'] = 'auto',
    precision: Literal['auto', 'float32', 'bfloat16'] = 'auto',
    device: str | torch.device = 'auto',
    image: int | Sequence[int] = ...,
    stride: int | Sequence[int] | None = None,
    channels: int | None = None,
    heads: int | None = None,
    pool: Literal['token', 'gap', 'corner'] | None = None,
    statistics: Literal['imagenet', 'half', 'clip'] | None = None,
    resize: int | None = None,
    crop: Literal['centre', 'whole', 'native'] | None = None,
    tokens: int | None = None,
    interpolation: Literal['bilinear', 'bicubic'] | None = None,
    part: str | None = None,
    labels: str | Path | None = None,
    quiet: bool = False,
    progress: Callable[[str | Progress], Any] | None = None,
) -> Ended:
    """Serve a model over HTTP until it is ended: a command by a signal, a program's call by Ctrl-C.
    Raises ValueError if a setting is out of range."""


def show(
    model: str | Path | Classifier,
    *,
    json: bool = False,
    draw: str | Path | None = None,
    image: int | Sequence[int] = ...,
    stride: int | Sequence[int] | None = None,
    channels: int | None = None,
    heads: int | None = None,
    pool: Literal['token', 'gap', 'corner'] | None = None,
    statistics: Literal['imagenet', 'half', 'clip'] | None = None,
    resize: int | None = None,
    crop: Literal['centre', 'whole', 'native'] | None = None,
    tokens: int | None = None,
    interpolation: Literal['bilinear', 'bicubic'] | None = None,
    part: str | None = None,
    labels: str | Path | None = None,
    quiet: bool = False,
    progress: Callable[[str | Progress], Any] | None = None,
) -> Description:
    """A model's description, and a drawing of its architecture. Raises ValueError if it cannot be
    loaded, or drawn; OSError."""


def stats(
    source: str | Path,
    *,
    test: str = '',
    exclude: str | Path | None = None,
    sheet: str | Path | None = None,
    columns: Columns = ...,
    workers: int = -1,
    groups: Literal['auto', 'none'] | str = 'auto',
    split_seed: int = 0,
    json: bool = False,
    ok_if_unreadable: bool = False,
    quiet: bool = False,
    progress: Callable[[str | Progress], Any] | None = None,
    columns__image: str | None = ...,
    columns__label: str | None = ...,
    columns__target: Literal['auto', 'class', 'classes', 'number', 'none'] = ...,
    columns__group: str | None = ...,
    columns__separator: str | None = ...,
    columns__level: int | None = ...,
) -> Statistics:
    """Look at every image of a data set once: sizes, classes, duplicates within and between its
    parts, broken images. Raises ValueError, before any image is read, if the data sets cannot be
    compared or a file cannot be written."""


def study(
    study: str | Path = ...,
    *,
    data: str = '',
    budget: str = '',
    seeds: int = 3,
    recipe: str = '',
    fewshot: str = '',
    regularise: bool = False,
    pretrain: str | Sequence[str] = ...,
    targets: str | Sequence[str] = ...,
    model: str | Path | Classifier = '',
    models: str | Sequence[str] = ...,
    sizes: int | Sequence[int] = ...,
    memory: float = 0.25,
    predict: str | Sequence[str] = ...,
    shard: str = '',
    jobs: int = 0,
    on: Literal['local', 'slurm'] = 'local',
    job_options: str | Sequence[str] = ...,
    draw: bool = False,
    workdir: str | Path | None = None,
    device: str | torch.device = 'auto',
    quiet: bool = False,
    progress: Callable[[str | Progress], Any] | None = None,
) -> StudyTable | Studies:
    """Run one of the paper's studies on your own images: a grid of small runs, its table and its
    figure. An interrupted study continues. Without a name, return the list of studies.

    Raises ValueError if the study does not exist, or if settings do not go together."""


def suite(
    suite: str | Path,
    model: str | Path | Classifier,
    *,
    against: str | Sequence[str] = ...,
    data: str = '',
    from_hub: bool = False,
    protocol: Literal['features', 'paper', 'light'] = 'features',
    tasks: str | Sequence[str] = ...,
    rates: float | Sequence[float] = ...,
    steps: int | Sequence[int] = ...,
    batch: int = 0,
    seeds: int = 1,
    shard: str = '',
    workdir: str | Path | None = None,
    precision: Literal['auto', 'float32', 'bfloat16'] = 'float32',
    device: str | torch.device = 'auto',
    json: bool = False,
    image: int | Sequence[int] = ...,
    stride: int | Sequence[int] | None = None,
    channels: int | None = None,
    heads: int | None = None,
    pool: Literal['token', 'gap', 'corner'] | None = None,
    statistics: Literal['imagenet', 'half', 'clip'] | None = None,
    resize: int | None = None,
    crop: Literal['centre', 'whole', 'native'] | None = None,
    tokens: int | None = None,
    interpolation: Literal['bilinear', 'bicubic'] | None = None,
    part: str | None = None,
    labels: str | Path | None = None,
    quiet: bool = False,
    progress: Callable[[str | Progress], Any] | None = None,
) -> SuiteTable:
    """Measure a model on many tasks: VTAB, robustness, or your own; or several models, and compare them.
    An interrupted suite continues. Raises ValueError if the suite does not exist, or if its images are
    missing."""


def teach(
    model: str | Path | Classifier,
    directory: str | Path | None = ...,
    *,
    add: str | Sequence[str] = ...,
    remove: str | Sequence[str] = ...,
    rename: str | Sequence[str] = ...,
    undo: bool = False,
    forget: bool = False,
    list: bool = False,
    precision: Literal['auto', 'float32', 'bfloat16'] = 'auto',
    device: str | torch.device = 'auto',
    json: bool = False,
    image: int | Sequence[int] = ...,
    stride: int | Sequence[int] | None = None,
    channels: int | None = None,
    heads: int | None = None,
    pool: Literal['token', 'gap', 'corner'] | None = None,
    statistics: Literal['imagenet', 'half', 'clip'] | None = None,
    resize: int | None = None,
    crop: Literal['centre', 'whole', 'native'] | None = None,
    tokens: int | None = None,
    interpolation: Literal['bilinear', 'bicubic'] | None = None,
    part: str | None = None,
    labels: str | Path | None = None,
    quiet: bool = False,
    progress: Callable[[str | Progress], Any] | None = None,
) -> Lesson:
    """Show a model photographs of new or known classes, take some away again, rename classes, or undo
    that: its head is solved anew in closed form, from all photographs that it remembers. Without a
    change, say what it knows.

    Raises ValueError if something cannot be learned, or if the model remembers nothing."""


def train(
    recipe: str | Path,
    data: str | Path = ...,
    *,
    model: str | Path | Classifier = '',
    evaluators: str | Sequence[str] | None = None,
    length: str | Span | None = None,
    model_name: str = '',
    regularise: bool = False,
    weight_decays: float | Sequence[float] = ...,
    dropouts: float | Sequence[float] = ...,
    label_smoothings: float | Sequence[float] = ...,
    workdir: str | Path | None = None,
    device: str | torch.device = 'auto',
    patience: float = 600.0,
    quiet: bool = False,
    progress: Callable[[str | Progress], Any] | None = None,
    **settings: Any
) -> Trained:
    """Train a model by a recipe, or continue the run that is in the directory: bit for bit as if it
    had never been interrupted, on a CPU, and on a GPU if the recipe is `deterministic`. The report is
    written at its end.

    Raises ValueError if the recipe cannot run, Interrupted after a stop, FloatingPointError when the loss
    stays non-finite."""
