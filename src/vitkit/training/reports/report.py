"""The report of a run, a self-contained HTML page."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from vitkit.data.images.pictures import pixels_for_people
from vitkit.evaluation.reports.page import headline, metrics_table
from vitkit.inspection import (
    Markup,
    bullets,
    columns,
    drawing,
    folded,
    pairs,
    paragraph,
    plot,
    section,
    table,
    write_page,
)
from vitkit.inspection.pages.html import picture
from vitkit.inspection.photographs import image_rows
from vitkit.models.construction import KINDS
from vitkit.recipes import Recipe
from vitkit.system.console.text import counted, printable
from vitkit.training.record.history import Recorded, read_run
from vitkit.training.record.machine import environment
from vitkit.training.record.metrics import last_metrics, to_line
from vitkit.training.record.values import as_typed, defaults, flat
from vitkit.training.reports.answers import answer_sections, weakest_class
from vitkit.training.reports.comparison import training_panels, unit_panels

NO_DEFAULT = "none"  # shown for a setting without a default


def report(
    run_dir: Path | str,
    inside: bool = False,
    path: Path | None = None,
    typed: Sequence[str] = (),
) -> Path:
    """Write a run's report from its records, and return its path: results, curves, confused classes and
    mistakes, data, cost and recipe.

    inside: also run the finished model, however long that takes: for its attention, for figures of its filters
        and position embeddings, and for its answers to the held-out images if the run did not keep them.
        Without it only small models are run.
    path: the file to write; None is report.html in the directory.
    typed: names of data sets that the user typed, for `read_run`.

    Raises VitkitError if the directory is not a run, or if the file exists and vitkit did not write it.
    """
    # The summary
    run = read_run(Path(run_dir), typed)
    blocks = _summary(run)
    if sentence := weakest_class(run):
        blocks.append(paragraph(printable(sentence)))

    # The results
    blocks.append(
        section("Last evaluation", metrics_table(list(last_metrics(run.run_dir).values())))
    )
    panels = [*training_panels({"": run}), *unit_panels(run)]
    curves = [drawing(plot([panel]), f"{panel.title} by step") for panel in panels]
    blocks.append(section("Curves", columns(*curves)))

    # The pictures of its objective; the answers and the inside of its model
    images = _pictures(run.run_dir)
    if images:
        rows = picture(image_rows(images), ", ".join(images))
        blocks.append(section("Inputs and predictions of the objective", rows))
    path = path or run.run_dir / "report.html"
    blocks += answer_sections(run, inside, path.absolute().parent)

    # The data, broken images, and non-finite steps
    data = run.data
    counts = {"source": data["source"], "classes": f"{len(data['labels']):,}"}
    counts |= {name: f"{count:,} images" for name, count in data["counts"].items()}
    counts |= {name: f"{count:,} images" for name, (count, _) in data["others"].items()}
    broken = []
    for name, of_part in data["skipped"].items():
        counts[f"left out of {name}"] = f"{len(of_part):,} broken images"
        broken += [text for _, text in of_part]
    notes = [paragraph(note) for note in data["notes"]]
    blocks.append(section("Data", pairs(counts), *notes))
    if broken:
        blocks.append(section("Images left out", bullets(broken)))
    events = [to_line(line) for line in run.lines if line["event"] in ("skipped", "rollback")]
    if events:
        blocks.append(section("Steps that were not finite", bullets(events)))

    # Cost, environment and recipe
    blocks.append(section("Cost", pairs(run.cost())))
    precision = str(run.recipe.get("precision", "float32"))
    blocks.append(section("Environment", pairs(environment(run.run_dir, precision))))
    blocks.append(settings_section(run.recipe))

    # The title: the run's name, and the recipe's if that is not part of it
    title = run.run_dir.resolve().name
    if run.recipe["name"] not in title:
        title = f"{title}: {run.recipe['name']}"
    return write_page(path, title, blocks)


def _summary(run: Recorded) -> list[Markup]:
    """The first paragraphs: the result, and a sentence about model, data, time and date."""
    # The result
    blocks = []
    result = "Nothing was measured"
    primary = run.primary()
    if primary is not None:
        blocks += headline(primary)
        result = f"{primary.name} is {primary.text()}"

    # The model
    config = run.recipe["model"]
    by_class = {kind.__name__: kind.title for kind in KINDS.values()}
    model = by_class.get(config.get("class", ""), "A model")
    if "depth" in config and "width" in config:
        model += (
            f" of {config['depth']} layers, width {config['width']}, patches of {config['patch']}"
        )
    if config.get("image"):
        model += f", {' × '.join(map(str, config['image']))} pixels"

    # The run
    beginning = "from scratch"
    if run.recipe.get("init"):
        beginning = f"from {run.recipe['init']}"
    images = counted(run.data["counts"].get("train", 0), "training image")
    spent = run.cost()
    when = ""
    if "begun" in spent:
        when = f", begun {spent['begun']}"
    if "steps" not in spent:  # a quick run, which fits a head
        took = f"in {spent['time']}"
    else:
        took = (
            f"after {spent['steps']} steps of {run.recipe['batch']:,} images in "
            f"{spent['time of the steps']}"
        )
    source = run.data["source"]
    sentence = f"{model}, {beginning}, on {images} of {source}: {result} {took}{when}."
    return [*blocks, paragraph(sentence)]


def _pictures(run_dir: Path) -> dict[str, np.ndarray]:
    """An objective's pictures by title, uint8 (N, h, w, 3) each, in the objective's order; empty if it has
    none."""
    from safetensors import safe_open

    file = run_dir / "pictures.safetensors"
    if not file.exists():
        return {}
    pictures = {}
    with safe_open(file, "numpy") as opened:
        for name in (opened.metadata() or {}).get("order", "").split(","):
            drawn = opened.get_tensor(name).transpose(0, 2, 3, 1)  # (N, h, w, C)
            pictures[name] = np.stack([pixels_for_people(picture) for picture in drawn])
    return pictures


def settings_section(recipe: dict) -> Markup:
    """The section with the settings of a recipe, from recipe.json: those that differ from their defaults, then
    the others, folded."""
    ours = flat(recipe)
    usual = flat(defaults(recipe, Recipe))
    different = []
    same = []
    for name, value in ours.items():
        text = as_typed(value)
        default = NO_DEFAULT
        if name in usual:
            default = as_typed(usual[name])
        if name in usual and text == default:
            same.append((name, text))
        else:
            different.append((name, text, default))
    return section(
        "Recipe",
        paragraph("These settings differ from their defaults, or have none."),
        table(different, ("setting", "value", "default"), wraps=True),
        folded(f"{len(same):,} other settings, at their defaults", table(same, wraps=True)),
    )
