"""The model card of a saved model: README.md, in the form that the Hugging Face hub shows."""

import json

from vitkit.models import ModelConfig, ViTConfig, called, cost, parameters
from vitkit.system.console.text import printable
from vitkit.system.storage.private import public
from vitkit.weights.classifier import Classifier
from vitkit.weights.formats import formats_for
from vitkit.weights.formats.format import Format
from vitkit.weights.licenses import FILE, License, license_fields
from vitkit.weights.outputs import counted_classes

FOR_THE_PROGRAM = ("layout", "held_out", "left_out")  # entries of the origin that only vitkit reads


CARD = """\
---
{header}
---

# {title}

{sentence}

## Where it comes from

{origin}

## Licence

{license}

## Preprocessing

{preprocessing}

{metrics}## How to open it

    vitkit predict DIRECTORY IMAGE

```python
import vitkit

classifier = vitkit.load("DIRECTORY")  # model, preprocessing, labels
```
{elsewhere}"""


def model_card(classifier: Classifier, format: Format) -> str:
    """The model card in Markdown with a YAML header: origin, preprocessing, metrics, how to open the
    model."""
    config = classifier.model.config
    height, width = config.image
    images = f"images of {height} x {width} pixels"
    preprocessing = classifier.preprocessing
    if preprocessing.is_native:
        images = f"whole images, on at most {preprocessing.patches:,} patches"
    head = "no classification head"
    if config.classes:
        head = counted_classes(config.classes)
    sentence = (
        f"A {config.title} for {images}: "
        f"{parameters(classifier.model):,} parameters, {cost(config).macs / 1e9:.2f} GMACs, {head}."
    )

    # The origin, without entries that have a section of their own or that only vitkit reads
    origin = public(dict(classifier.origin))
    measured = origin.pop("metrics", None)
    for name in FOR_THE_PROGRAM:
        origin.pop(name, None)
    metrics = ""
    if isinstance(measured, dict) and measured:
        metrics = f"## Metrics\n\n{_list(measured)}\n\n"

    return CARD.format(
        header=_header(classifier, format),
        title=printable(called(config)),
        sentence=sentence,
        origin=_list(origin) or "- not recorded",
        license=printable(_license_sentence(classifier.license)),
        preprocessing=_list(classifier.preprocessing.to_json()),
        metrics=metrics,
        elsewhere=_elsewhere(classifier, format),
    )


def _header(classifier: Classifier, format: Format) -> str:
    """The YAML header, which the hub uses for search and buttons."""
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
    return "\n".join(map(printable, lines))


def _license_sentence(license: License | None) -> str:
    """The terms under which the weights may be used."""
    if license is None:
        return "The licence of the weights is unknown; ask their authors before you share them."
    sentence = f"{license.called}: {license.allows()}."
    if license.text:
        sentence += f" The text is in {FILE}."
    elif license.link:
        sentence += f" See {license.link}."
    return sentence


def _elsewhere(classifier: Classifier, format: Format) -> str:
    """How to open the model with the format's own library, and with others after a conversion."""
    preprocessing = classifier.preprocessing
    if preprocessing.is_native and not format.example:
        return (
            "\nIt reads whole images in their own aspect ratios, which no such model of another library does: "
            "`vitkit predict DIRECTORY IMAGE`, or an exported file (`vitkit export DIRECTORY`).\n"
        )
    config = classifier.model.config
    code = ""
    if format.example:
        code += f"\n```python\n{format.example(config)}```\n"
    for other in formats_for(config, preprocessing.rule):
        if other.example and other.name != format.name:
            directory = f"{other.name}-DIRECTORY"
            code += f"\nFor {other.library}:\n\n"
            code += f"    vitkit convert DIRECTORY {directory} --to {other.name}\n\n"
            code += f"```python\n{other.example(config).replace('DIRECTORY', directory)}```\n"
    return code or _by_states(config)


def _by_states(config: ModelConfig) -> str:
    """Code that computes the output of a head that joins several states, with a library that has the
    encoder."""
    if not isinstance(config, ViTConfig) or not config.pooling.extends_class_token:
        return ""
    encoder = config.headless()
    code = ""
    for other in formats_for(encoder):
        if other.example_of_states and config.classes and not config.representation:
            directory = f"{other.name}-ENCODER"
            example = other.example_of_states(config).replace("ENCODER", directory)
            code += (
                f"\nNo other library has a head that reads {config.reads}. {other.library} has the encoder, "
                "and the head is one matrix:\n\n"
                f"    vitkit convert DIRECTORY {directory} --to {other.name} --headless\n\n"
                f"```python\n{example}```\n"
            )
    return code


def _list(values: dict) -> str:
    """A Markdown list with an item for each value."""
    items = []
    for key, value in values.items():
        if not isinstance(value, str):
            value = json.dumps(value, ensure_ascii=False)
        items.append(printable(f"- {key}: {value}"))
    return "\n".join(items)
