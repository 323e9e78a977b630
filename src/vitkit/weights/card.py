"""The model card that goes with a saved model: README.md, as the Hugging Face hub shows it."""

import json

from vitkit.models import called, cost, parameters
from vitkit.system.console.text import printable
from vitkit.system.storage.private import public
from vitkit.weights.classifier import Classifier
from vitkit.weights.formats import formats_for
from vitkit.weights.formats.format import Format
from vitkit.weights.licenses import FILE, License, license_fields
from vitkit.weights.outputs import counted_classes

FOR_THE_PROGRAM = ("layout", "held_out")  # of the origin: no reader has a use for them


def model_card(classifier: Classifier, format: Format) -> str:
    """Origin, preprocessing, metrics and how to open the model, as Markdown under a YAML header."""
    # The origin, without what has a place of its own or is for the program alone
    origin = public(dict(classifier.origin))
    metrics = origin.pop("metrics", None)
    for name in FOR_THE_PROGRAM:
        origin.pop(name, None)
    provenance = _list(origin) or ["- not recorded"]

    lines = [
        *_header(classifier, format),
        "",
        f"# {called(classifier.model.config)}",
        "",
        _sentence(classifier),
        "",
        "## Where it comes from",
        "",
        *provenance,
        "",
        "## Licence",
        "",
        _license_sentence(classifier.license),
        "",
        "## Preprocessing",
        "",
        *_list(classifier.preprocessing.to_json()),
        "",
    ]
    if isinstance(metrics, dict) and metrics:
        lines += ["## Metrics", "", *_list(metrics), ""]
    lines += _how_to_open(classifier, format)
    return "\n".join(map(printable, lines))


def _license_sentence(license: License | None) -> str:
    """Under which terms the weights may be used."""
    if license is None:
        return "Nobody has said under which licence the weights are; ask before you share them."
    sentence = f"{license.called}: {license.allows()}."
    if license.text:
        sentence += f" The text is in {FILE}."
    elif license.link:
        sentence += f" See {license.link}."
    return sentence


def _header(classifier: Classifier, format: Format) -> list[str]:
    """The YAML header, which the hub reads for its search and its buttons."""
    config = classifier.model.config
    tags = ["image-classification", "vitkit"]
    if config.kind == "vit":
        tags.insert(0, "vision-transformer")
    task = "image-feature-extraction"
    if config.classes:
        task = "image-classification"
    fields = {
        **license_fields(classifier.license),
        "library_name": format.library,
        "pipeline_tag": task,
        "tags": tags,
    }
    lines = [f"{key}: {json.dumps(value)}" for key, value in fields.items()]  # JSON is YAML too
    return ["---", *lines, "---"]


def _sentence(classifier: Classifier) -> str:
    """What the model is, how large, and what an image costs."""
    config = classifier.model.config
    head = "no classification head"
    if config.classes:
        head = counted_classes(config.classes)
    height, width = config.image
    return (
        f"A {config.title} for images of {height} x {width} pixels: "
        f"{parameters(config):,} parameters, {cost(config).macs / 1e9:.2f} GMACs, {head}."
    )


WITH_VITKIT = """\
import vitkit

classifier = vitkit.load("DIRECTORY")  # model, preprocessing, labels
"""


def _how_to_open(classifier: Classifier, format: Format) -> list[str]:
    """With vitkit, with the format's own library, and with others after a conversion."""
    config = classifier.model.config
    lines = ["## How to open it", "", "    vitkit predict DIRECTORY IMAGE", ""]
    lines += _python(WITH_VITKIT)
    if format.example:
        lines += _python(format.example(config))
    for other in formats_for(config):
        if other.example and other.name != format.name:
            directory = f"{other.name}-DIRECTORY"
            lines += [f"For {other.library}:", ""]
            lines += [f"    vitkit convert DIRECTORY {directory} --to {other.name}", ""]
            lines += _python(other.example(config).replace("DIRECTORY", directory))
    return lines


def _python(code: str) -> list[str]:
    """Code as a block of Markdown."""
    return ["```python", *code.splitlines(), "```", ""]


def _list(values: dict) -> list[str]:
    """A list of Markdown, with an item for each value."""
    items = []
    for key, value in values.items():
        if not isinstance(value, str):
            value = json.dumps(value, ensure_ascii=False)
        items.append(f"- {key}: {value}")
    return items
