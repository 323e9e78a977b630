"""The model card that goes with a saved model: README.md with the header that the Hugging Face hub
reads."""

import json

from vitkit.models import called, cost, parameters
from vitkit.weights.classifier import Classifier
from vitkit.weights.formats import formats_for
from vitkit.weights.formats.format import Format
from vitkit.weights.labels import counted


def model_card(classifier: Classifier, format: Format) -> str:
    """Origin, data, metrics, licence and how to open it, as Markdown under a YAML header."""
    origin = dict(classifier.origin)
    license = str(origin.pop("license", "unknown"))
    metrics = origin.pop("metrics", None)
    origin.pop("layout", None)
    provenance = _list(origin) or ["- not recorded"]
    provenance.append(f"- license: {license}")
    if license == "unknown":
        provenance[-1] += " (nobody said; ask before you share it)"
    lines = [
        *_header(classifier, format, license),
        "",
        f"# {called(classifier.model.config)}",
        "",
        _sentence(classifier),
        "",
        "## Where it comes from",
        "",
        *provenance,
        "",
        "## Preprocessing",
        "",
        *_list(classifier.preprocessing.to_json()),
        "",
    ]
    if isinstance(metrics, dict) and metrics:
        lines += ["## Metrics", "", *_list(metrics), ""]
    lines += _how_to_open(classifier, format)
    return "\n".join(lines)


def _header(classifier: Classifier, format: Format, license: str) -> list[str]:
    """The YAML that the hub reads."""
    config = classifier.model.config
    tags = ["image-classification", "vitkit"]
    if config.kind == "vit":
        tags.insert(0, "vision-transformer")
    task = "image-classification" if config.classes else "image-feature-extraction"
    header = {
        "license": license,
        "library_name": format.library,
        "pipeline_tag": task,
        "tags": tags,
    }
    return ["---", *(f"{key}: {json.dumps(value)}" for key, value in header.items()), "---"]


def _sentence(classifier: Classifier) -> str:
    """Kind, size and cost of the model."""
    config = classifier.model.config
    head = "no classification head"
    if config.classes:
        head = counted(config.classes)
    return (
        f"A {config.title} for images of {config.image[0]} x {config.image[1]} pixels: "
        f"{parameters(config):,} parameters, {cost(config).macs / 1e9:.2f} GMACs, {head}."
    )


def _how_to_open(classifier: Classifier, format: Format) -> list[str]:
    """With vitkit, with the format's own library, and with others after a conversion."""
    config = classifier.model.config
    lines = [
        "## How to open it",
        "",
        "    vitkit predict DIRECTORY IMAGE",
        "",
        *_python('import vitkit\n\nclassifier = vitkit.load("DIRECTORY")  # model, preprocessing, labels\n'),
    ]  # fmt: skip
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
    return ["```python", *code.splitlines(), "```", ""]


def _list(values: dict) -> list[str]:
    """One item a value."""
    items = []
    for key, value in values.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        items.append(f"- {key}: {text}")
    return items
