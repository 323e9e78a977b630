"""The model card that goes with a saved model: README.md with the header that the Hugging Face hub reads."""

import json

from vitkit.models import called, cost
from vitkit.weights.classifier import Classifier
from vitkit.weights.formats import WHAT, cannot


def model_card(classifier: Classifier, form: str) -> str:
    """Origin, data, metrics, licence and how to open it, as Markdown under a YAML header."""
    config, prepare, origin = classifier.model.config, classifier.preprocessing, classifier.origin
    metrics = origin.get("metrics") if isinstance(origin.get("metrics"), dict) else {}
    header = {
        "license": str(origin.get("license", "unknown")),
        "library_name": {"native": "vitkit", "huggingface": "transformers"}.get(form, form),
        "pipeline_tag": "image-classification" if config.classes else "image-feature-extraction",
        "tags": [
            *["vision-transformer"] * (config.kind == "vit"),
            "image-classification",
            "vitkit",
        ],
    }
    found = cost(config)
    lines = ["---", *(f"{key}: {json.dumps(value)}" for key, value in header.items()), "---", ""]
    lines += [f"# {called(config)}", ""]
    lines += [
        f"A{WHAT[config.kind][1:]} for images of {config.image[0]} x {config.image[1]} pixels: "
        f"{found.parameters:,} parameters, {found.macs / 1e9:.2f} GMACs, "
        f"{f'{config.classes:,} classes' if config.classes else 'no classification head'}.",
        "",
        "## Where it comes from",
        "",
        *(
            f"- {key}: {_plain(value)}"
            for key, value in origin.items()
            if key not in ("metrics", "license", "layout")
        ),
        *([] if origin else ["- not recorded"]),
        f"- license: {header['license']}"
        + (" (nobody said; ask before you share it)" if header["license"] == "unknown" else ""),
        "",
        "## Preprocessing",
        "",
        *(f"- {key}: {_plain(value)}" for key, value in prepare.to_json().items()),
        "",
    ]
    if metrics:
        lines += [
            "## Metrics",
            "",
            *(f"- {key}: {_plain(value)}" for key, value in metrics.items()),
            "",
        ]
    lines += ["## How to open it", "", "    vitkit predict DIRECTORY IMAGE", ""]
    lines += [
        "```python",
        "import vitkit",
        "",
        'classifier = vitkit.load("DIRECTORY")  # model, preprocessing, labels',
        "```",
        "",
    ]
    if form == "huggingface":
        kind = "AutoModelForImageClassification" if config.classes else "AutoModel"
        lines += ["```python", f"from transformers import AutoImageProcessor, {kind}", ""]
        lines += [f'model = {kind}.from_pretrained("DIRECTORY")']
        lines += ['processor = AutoImageProcessor.from_pretrained("DIRECTORY")', "```", ""]
    if form == "timm":
        lines += [
            "```python",
            "import timm",
            "",
            'model = timm.create_model("local-dir:DIRECTORY", pretrained=True)',
            "```",
            "",
        ]
    elif not cannot("timm", config):
        lines += ["For timm:", "", "    vitkit convert DIRECTORY timm-DIRECTORY --to timm", ""]
        lines += [
            "```python",
            "import timm",
            "",
            'model = timm.create_model("local-dir:timm-DIRECTORY", pretrained=True)',
            "```",
            "",
        ]
    return "\n".join(lines)


def _plain(value) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
