"""`vitkit data review --masks`: masks that are probably wrong, image by image and region by region, and their page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from json import dumps as to_json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from rich.markup import escape
from rich.table import Table

from vitkit.apps.review.doubts import Judged, Kept, Region, judge, order_of
from vitkit.data import Columns, Masked, masked, splits_with_masks
from vitkit.finetuning.segmentation.choice import has_learned_masks
from vitkit.finetuning.segmentation.closed_form import blocks_to_try
from vitkit.inspection import (
    Markup,
    block,
    bullets,
    embedded,
    folded,
    paragraph,
    section,
    table,
    write_page,
)
from vitkit.models import ViTConfig
from vitkit.prediction import overlay, palette
from vitkit.system.console.messages import say
from vitkit.system.console.text import as_word, counted, printable, printable_name
from vitkit.system.errors import BadData, BadImage, BadSettings, BadWeights
from vitkit.system.functions.results import Rows
from vitkit.system.functions.steps import step
from vitkit.weights import Classifier, dense

SHOWN = 10  # images in the terminal
PICTURES = 40  # images on the page; the table has all
REGIONS = 200  # on the page
NAMED = 3  # regions of an image that are named below it
LONGEST = 300  # pixels along the longer side of each of the four pictures, about
PICTURE = "width: 24%; min-width: 10rem"  # two beside each other on a telephone
AMBER = np.array([255, 196, 0], np.float32)
DIMMED = 0.35  # brightness where a mask is not doubted
KNOWS_LITTLE = 0.7
"""Mean IoU of predictions below which many masks are doubted only because the model is weak."""


class Place(NamedTuple):
    """Where an image is."""

    part: str
    number: int
    """Its number among the part's images with masks."""


@dataclass(frozen=True)
class DoubtedRegion:
    """Pixels that touch each other, whose predictions contradict the mask."""

    label: str
    """The class in the mask."""
    guess: str
    """The predicted class."""
    probability: float
    """The mean probability of the predicted class."""
    box: tuple[int, int, int, int]
    """Left, top, width and height in pixels."""
    share: float
    """The region's share of the image."""
    evidence: float
    """How much less likely the mask makes the region than the prediction, in nats for a patch, summed."""


@dataclass(frozen=True)
class MaskFinding:
    """An image, and what predictions for it say of its mask."""

    part: str
    """"train", "val" or "test"."""
    image: str
    mask: str
    """The name of the mask."""
    doubt: float
    """The mean over the pixels of the probability that they are of another class than in the mask."""
    iou: float
    """The mean IoU of the mask and the prediction."""
    regions: tuple[DoubtedRegion, ...]
    """The regions where the prediction contradicts the mask, the strongest evidence first."""


@dataclass(frozen=True, repr=False)
class ReviewedMasks(Rows):
    """Masks in the order in which they deserve a second look."""

    data: str
    """The data set, as given by the caller."""
    masks: str
    """Its masks, as given by the caller."""
    findings: tuple[MaskFinding, ...]
    """All images, the one whose mask is most probably wrong first (`order_of`)."""
    unreadable: tuple[str, ...]
    """A sentence for each image or mask that cannot be read or used."""
    facts: tuple[str, ...]
    """Sentences about what was examined."""
    path: Path
    """The page with the images."""
    json: bool = False
    """Whether the result is printed as JSON lines."""
    columns: Columns = Columns()
    """The columns of the data set, as given by the caller."""

    def rows(self) -> list[dict]:
        """One row per image."""
        rows = []
        for each in self.findings:
            first = next(iter(each.regions), None)
            row: dict[str, object] = {
                "part": each.part,
                "image": each.image,
                "mask": each.mask,
                "doubt": each.doubt,
                "iou": each.iou,
                "regions": len(each.regions),
                "label": first.label if first else "",
                "guess": first.guess if first else "",
            }
            rows.append(row)
        return rows

    def shown(self) -> Iterator[str | Table]:
        """The first images, and the path of the page; or JSON, one line per image."""
        if self.json:
            for finding in self.findings:
                yield to_json(as_values(finding))
            return
        yield from map(printable, self.facts)
        for sentence in self.unreadable:
            yield printable(f"left out: {sentence}")
        table = Table("image", "doubted", "IoU", "where the prediction contradicts the mask most")
        table.columns[0].overflow = "fold"
        for finding in self.findings[:SHOWN]:
            name = escape(printable_name(finding.image))
            words = escape(_words(finding.regions[:1]))
            table.add_row(name, f"{finding.doubt:.1%}", f"{finding.iou:.0%}", words)
        yield table
        yield f"wrote {self.path}"
        yield (
            f"next: open {as_word(self.path)}, correct the masks that are wrong, and then "
            f"{step('finetune', self.data, masks=self.masks, columns=self.columns)}"
        )


def as_values(finding: MaskFinding) -> dict:
    """A finding as JSON values."""
    values = dict(vars(finding))
    values["regions"] = [dict(vars(region)) for region in finding.regions]
    return values


def _words(regions: Sequence[DoubtedRegion]) -> str:
    """Regions in words."""
    texts = []
    for each in regions:
        left, top, width, height = each.box
        texts.append(
            f"{printable_name(each.label)} where {printable_name(each.guess)} is predicted "
            f"({each.probability:.0%}; {width} x {height} pixels from {left}, {top})"
        )
    return "; ".join(texts) or "nowhere"


def review_masks(
    data: str,
    classifier: Classifier,
    masks: str,
    legend: Path | None,
    ignore: int | None,
    output: Path,
    columns: Columns,
    groups: str,
    split_seed: int,
    device: torch.device,
    json: bool,
) -> ReviewedMasks:
    """Judge all masks of a data set, and write the page.

    Raises BadData for a data set without masks, or with too few; BadSettings for a model that was fine-tuned on
    masks; Unsupported for a model that has no patches.
    """
    _check_has_not_seen_masks(classifier)
    splits = splits_with_masks(data, masks, columns, split_seed, groups, always_grouped=True)
    parts, notes = masked(splits.sources, data, masks, legend, ignore)
    for note in notes:
        say(printable(note))

    # The images that can be read with their masks
    unreadable: list[str] = []
    places: list[Place] = []
    sizes: list[tuple[int, int]] = []
    for name, part in parts.items():
        for index in range(len(part)):
            try:
                picture, _ = part.pair(index)
            except (BadData, BadImage) as error:
                unreadable.append(str(error))
                continue
            places.append(Place(name, index))
            sizes.append(picture.size)
    if not places:
        raise BadData(f"{data} has no image that can be read with its mask: {unreadable[0]}")
    found = judge_places(classifier, parts, places, device)

    # The findings, the most doubtful first
    order = order_of(found)
    labels = next(iter(parts.values())).labels
    findings = []
    for i in order:
        place = places[i]
        part = parts[place.part]
        regions = tuple(_region(each, labels, sizes[i]) for each in found[i].regions)
        findings.append(
            MaskFinding(
                place.part,
                part.images.name(place.number),
                part.mask_name(place.number),
                found[i].doubt,
                found[i].iou,
                regions,
            )
        )
    facts = _facts(found, parts)
    first = [(places[i], found[i]) for i in order[:PICTURES]]
    _write_page(output, data, parts, findings, first, facts, unreadable)
    result = ReviewedMasks(
        data, masks, tuple(findings), tuple(unreadable), tuple(facts), output, json, columns
    )
    if json:  # standard output carries JSON only
        say(f"wrote {output}")
    return result


def _check_has_not_seen_masks(classifier: Classifier) -> None:
    """Raises BadSettings for a model whose backbone was fine-tuned on masks: it may remember them."""
    if has_learned_masks(classifier):
        raise BadSettings(
            "the model was fine-tuned on masks, which it may remember, so it cannot judge them; give the weights "
            f"that were first fine-tuned, such as published ones ({classifier.origin.get('init', 'unknown')})"
        )


def judge_places(
    classifier: Classifier, parts: dict[str, Masked], places: Sequence[Place], device: torch.device
) -> list[Judged]:
    """What predictions say of the masks of these images."""
    config = classifier.model.config
    blocks = 1
    if isinstance(config, ViTConfig):  # `dense` refuses others
        blocks = blocks_to_try(config.width, config.depth)[-1]
    bare = dense(classifier, (), blocks).to(device).for_inference()
    assert isinstance(config, ViTConfig)
    patch = bare.preprocessing.patch

    def features(i: int) -> tuple[torch.Tensor, tuple[int, int]]:
        place = places[i]
        image = bare.preprocessing.array(parts[place.part].images.picture(place.number))
        with torch.inference_mode():
            computed = bare.features(torch.from_numpy(image[None]))[0].cpu()
        if not computed.isfinite().all():
            name = parts[place.part].images.name(place.number)
            raise BadWeights(f"the model gives NaN or infinity for {name}; it may be damaged")
        return computed.half(), (image.shape[1] // patch[0], image.shape[2] // patch[1])

    def mask(i: int) -> np.ndarray:
        return parts[places[i].part].mask(places[i].number)

    groups_of = [parts[place.part].images.groups for place in places]
    groups = None
    if all(each is not None for each in groups_of):
        pairs = zip(groups_of, places, strict=True)
        groups = np.array([of[place.number] for of, place in pairs if of is not None])
    classes = len(next(iter(parts.values())).labels)
    return judge(
        Kept(features), mask, len(places), groups, classes, (config.width, config.depth), patch
    )


def _region(region: Region, labels: tuple[str, ...], size: tuple[int, int]) -> DoubtedRegion:
    """A region with the names of its classes and its box in pixels."""
    height, width = size
    left, top, across, down = region.box
    box = (round(left * width), round(top * height), round(across * width), round(down * height))
    return DoubtedRegion(
        labels[region.own],
        labels[region.guess],
        round(region.probability, 4),
        box,
        round(region.share, 6),
        round(region.evidence, 2),
    )


def _facts(found: Sequence[Judged], parts: dict[str, Masked]) -> list[str]:
    """Sentences about the review."""
    mean = float(np.mean([each.iou for each in found]))
    doubted = sum(bool(each.regions) for each in found)
    facts = [
        f"{counted(len(found), 'image')} with masks in {', '.join(filter(None, parts)) or 'one part'}",
        f"the prediction for an image, by a model of other images, has a mean IoU of {mean:.0%} with its mask",
        f"{counted(doubted, 'image')} have regions of half a patch or more that the model is sure are of another class",
        "the first images have both a low IoU and strong evidence of regions that differ: a wrong mask, or a hard "
        "image",
    ]
    if mean < KNOWS_LITTLE:
        facts.append(
            "this is low: the model doubts many masks that are right, and misses wrong ones"
        )
    return facts


# The page


def _write_page(
    path: Path,
    data: str,
    parts: dict[str, Masked],
    findings: Sequence[MaskFinding],
    first: Sequence[tuple[Place, Judged]],
    facts: Sequence[str],
    unreadable: Sequence[str],
) -> None:
    """Write the page. first: the images to show, in the order of the findings."""
    labels = next(iter(parts.values())).labels
    figures = [
        _figure(parts[place.part], place, judged, finding)
        for (place, judged), finding in zip(first, findings, strict=False)
    ]
    rows = []
    regions = []
    for each in findings:
        name = printable_name(each.image)
        rows.append(
            (each.part, name, f"{each.doubt:.1%}", f"{each.iou:.0%}", f"{len(each.regions)}")
        )
        regions += [(region.evidence, each.part, name, _words([region])) for region in each.regions]
    regions.sort(key=lambda row: -row[0])
    listed = [(part, name, words, f"{evidence:.0f}") for evidence, part, name, words in regions]
    blocks = [
        bullets(list(facts)),
        section("Classes", _legend(labels)),
        section(
            "Masks that may be wrong",
            paragraph(
                "The image, its mask, what a model of other images predicts, and amber where the two surely "
                "differ, the most doubtful mask first.",
                "faint",
            ),
            *figures,
            folded(
                f"All {len(rows):,} by name",
                table(rows, ("part", "image", "doubted", "IoU", "regions"), wraps=True),
            ),
        ),
    ]
    if listed:
        blocks.append(
            section(
                "Regions that may be wrong",
                paragraph(
                    "The surest first: the number says how much less likely the mask makes the region than "
                    "the prediction, in nats for a patch, summed.",
                    "faint",
                ),
                folded(
                    f"The first {min(len(listed), REGIONS):,} of {len(listed):,}",
                    table(
                        listed[:REGIONS],
                        ("part", "image", "mask and prediction", "nats"),
                        wraps=True,
                    ),
                ),
            )
        )
    if unreadable:
        blocks.append(section("Left out", bullets(list(unreadable))))
    write_page(path, f"A second look at the masks of {data}", blocks)


def _legend(labels: tuple[str, ...]) -> Markup:
    """The classes with their colours."""
    rows = []
    for label, colour in zip(labels, palette(labels).tolist(), strict=False):
        chip = Markup(
            f'<span style="background: rgb({colour[0]} {colour[1]} {colour[2]})">&emsp;&emsp;</span>'
        )
        rows.append((chip, printable_name(label)))
    return table(rows)


def _figure(part: Masked, place: Place, judged: Judged, finding: MaskFinding) -> Markup:
    """An image, its mask, its prediction and where they differ, side by side."""
    picture, mask = part.pair(place.number)
    step_of_pixels = max(1, max(mask.shape) // LONGEST)
    pixels = np.ascontiguousarray(picture.pixels()[::step_of_pixels, ::step_of_pixels])
    size = pixels.shape[:2]
    predicted = _enlarged(judged.predicted, size)
    disagrees = _enlarged(judged.disagrees.astype(np.uint8), size).astype(bool)
    marked = pixels.astype(np.float32) * DIMMED
    marked[disagrees] = 0.5 * pixels[disagrees] + 0.5 * AMBER
    shown = {
        "the image": pixels,
        "its mask": overlay(pixels, mask[::step_of_pixels, ::step_of_pixels], part.labels),
        "the prediction": overlay(pixels, predicted, part.labels),
        "where they differ": marked.round().astype(np.uint8),
    }
    name = printable_name(finding.image)
    images = []
    for what, each in shown.items():
        alt = block(f"{name}: {what}")
        address = embedded(each, LONGEST)
        images.append(f'<img alt="{alt}" style="{PICTURE}" src="{address}">')
    where = f" ({finding.part})" if finding.part else ""
    caption = f"{name}{where}: {finding.doubt:.1%} doubted. {_words(finding.regions[:NAMED])}"
    return Markup(
        f'<figure style="margin: 0 0 1.5rem">{" ".join(images)}'
        f"<figcaption>{block(caption)}</figcaption></figure>"
    )


def _enlarged(cells: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Cells, uint8 (H, W), at another (height, width)."""
    rows = np.arange(size[0]) * cells.shape[0] // size[0]
    columns = np.arange(size[1]) * cells.shape[1] // size[1]
    return cells[rows][:, columns]
