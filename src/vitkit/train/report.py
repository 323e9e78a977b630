"""report.html: what a run did, on one page that needs nothing else."""

import base64
import html
import io
import json
from pathlib import Path

from vitkit.train.log import last_metrics, read_metrics

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem; color: #1b1f24 }
h1 { font-size: 1.5rem } h2 { font-size: 1.15rem; margin-top: 2rem }
table { border-collapse: collapse } td, th { padding: .2rem .9rem .2rem 0; text-align: left; border-bottom: 1px solid #ddd }
td + td { font-variant-numeric: tabular-nums } img { max-width: 100% } pre { background: #f6f8fa; padding: 1rem; overflow: auto }
"""


def report(workdir: Path | str) -> Path:
    """Write `report.html` of a run directory from what the run recorded: curves, last metrics, data, recipe."""
    workdir = Path(workdir)
    recipe = json.loads((workdir / "recipe.json").read_text("utf-8"))
    data = json.loads((workdir / "data.json").read_text("utf-8"))
    lines = read_metrics(workdir / "metrics.jsonl")
    metrics = {name: _figure(name, value) for name, value in last_metrics(workdir).items()}
    counts = {name: f"{count:,} images" for name, count in data["counts"].items()}
    counts |= {
        f"left out of {name}": f"{len(bad):,} broken images"
        for name, bad in data["skipped"].items()
    }
    skipped = [text for bad in data["skipped"].values() for _, text in bad]
    events = [line for line in lines if line["event"] in ("skipped", "rollback")]
    parts = [
        f"<h1>{html.escape(recipe['name'])}</h1>",
        "<h2>Last evaluation</h2>",
        _table(metrics) if metrics else "<p>Nothing was held out.</p>",
        "<h2>Curves</h2>",
        _curves(lines),
        _pictures(workdir / "pictures.safetensors"),
        "<h2>Data</h2>",
        _table({"source": data["source"], "classes": f"{len(data['labels']):,}"} | counts),
        *(f"<p>{html.escape(note)}</p>" for note in data["notes"]),
        _listed("Images left out", skipped),
        _listed("Steps that were not finite", [json.dumps(line) for line in events]),
        "<h2>Recipe, as it ran</h2>",
        f"<pre>{html.escape(json.dumps(recipe, indent=1))}</pre>",
    ]
    page = f"<!doctype html><html lang=en><meta charset=utf-8><title>{html.escape(recipe['name'])}</title>"
    page += f"<style>{STYLE}</style><body>{''.join(parts)}</body></html>"
    path = workdir / "report.html"
    path.write_text(page, "utf-8")
    return path


def _curves(lines: list[dict]) -> str:
    """Training loss and held-out accuracy against steps, as one embedded picture."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    training = [
        line for line in lines if line["event"] == "training" and isinstance(line["loss"], float)
    ]
    evaluations = [line for line in lines if line["event"] == "evaluation"]
    left.plot(
        [line["step"] for line in training], [line["loss"] for line in training], color="#0b57d0"
    )
    left.set(title="training loss", xlabel="step")
    names = sorted({name for line in evaluations for name in line})
    # where there is a baseline, the loss beside it says more than a share of right answers
    blind = any(name.endswith("/baseline") for name in names)
    shares = [] if blind else [name for name in names if _is_share(name)]
    for name in shares or [name for name in names if name.endswith(("/loss", "/baseline"))]:
        points = [
            (line["step"], line[name] * (100 if shares else 1))
            for line in evaluations
            if name in line
        ]
        right.plot(*zip(*points, strict=True), "o-", label=name)
    right.set(title="accuracy, %" if shares else "held-out loss", xlabel="step")
    if evaluations:
        right.legend()
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    return _embedded(figure, "training loss and accuracy")


def _pictures(file: Path) -> str:
    """What an objective shows of its work: a row an image, a column a step of it."""
    if not file.exists():
        return ""
    from matplotlib.figure import Figure
    from safetensors import safe_open

    with safe_open(file, "numpy") as opened:
        names = (opened.metadata() or {}).get("order", "").split(",")
        columns = [
            opened.get_tensor(name).transpose(0, 2, 3, 1) for name in names
        ]  # uint8 (n, h, w, 3)
    figure = Figure(figsize=(1.6 * len(columns), 1.6 * len(columns[0]) + 0.3), layout="constrained")
    places = figure.subplots(len(columns[0]), len(columns), squeeze=False)
    for j, (name, pictures) in enumerate(zip(names, columns, strict=True)):
        places[0, j].set_title(name, fontsize=9)
        for i, picture in enumerate(pictures):
            places[i, j].imshow(
                picture, interpolation="nearest" if max(picture.shape) < 100 else "antialiased"
            )
            places[i, j].axis("off")
    return f"<h2>What it sees, and makes of it</h2>{_embedded(figure, ', '.join(names))}"


def _embedded(figure, alt: str) -> str:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return f'<img alt="{html.escape(alt)}" src="data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}">'


def _is_share(name: str) -> bool:
    return "/top" in name or name.endswith("/accuracy")


def _figure(name: str, value: float) -> str:
    if _is_share(name):
        return f"{value:.2%}"
    return f"{value:,}" if isinstance(value, int) else f"{value:.4f}"


def _table(rows: dict[str, str]) -> str:
    cells = (
        f"<tr><th>{html.escape(name)}</th><td>{html.escape(str(value))}</td></tr>"
        for name, value in rows.items()
    )
    return f"<table>{''.join(cells)}</table>"


def _listed(title: str, lines: list[str]) -> str:
    items = "".join(f"<li>{html.escape(line)}</li>" for line in lines)
    return f"<h2>{title}</h2><ul>{items}</ul>" if lines else ""
