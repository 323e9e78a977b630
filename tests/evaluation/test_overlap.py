"""AUPRO of maps of patches, with its interval; and the regions that people mark."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from margins import at_most
from pictures import encoded
from PIL import Image

from vitkit.data import Preprocessing, open_source
from vitkit.evaluation.metrics.overlap import (
    ImageRegions,
    _Curves,
    enlarged,
    overlap,
    per_region_overlap,
)
from vitkit.evaluation.regions import connected, find_regions, ground_truth_of

SQUARE = Preprocessing(size=(32, 32), rule="square", resize=0)


def marked(seed, count=16):
    """Maps that are higher in the regions of every second image."""
    draws = np.random.default_rng(seed)
    maps = draws.normal(size=(count, 8, 8))
    regions = []
    for i in range(count):
        masks = []
        if i % 2:
            mask = np.zeros((64, 48), bool)
            top, left = draws.integers(0, 30, 2)
            mask[top : top + 17, left : left + 12] = True
            maps[i, top // 8 : top // 8 + 3, left // 6 : left // 6 + 3] += 1.5
            masks.append(np.flatnonzero(mask))
        regions.append(ImageRegions((64, 48), tuple(masks)))
    return maps, regions


def test_the_interval_is_around_the_value_of_all_pixels():
    maps, regions = marked(0)
    metric = overlap(maps, regions)
    pixels = [enlarged(each, (64, 48)) for each in maps]
    masks = [each.regions for each in regions]
    assert metric.value == per_region_overlap(pixels, masks)
    on_a_grid = _Curves.of(pixels, masks).area(np.arange(len(maps)))[0]
    at_most(abs(on_a_grid - metric.value), 0.005)
    low, high = metric.interval
    assert 0 < low < metric.value < high < 1


def test_images_of_which_nothing_is_known_do_not_count():
    maps, regions = marked(1)
    fewer = overlap(maps[:8], regions[:8], np.arange(8))
    unknown = [*regions[:8], *[None] * 8]
    assert overlap(maps, unknown, np.arange(16)) == fewer


def test_resampled_images_without_a_region_have_no_area():
    maps, regions = marked(2)
    pixels = [enlarged(each, (64, 48)) for each in maps]
    curves = _Curves.of(pixels, [each.regions for each in regions])
    assert np.isnan(curves.area(np.array([0, 2, 4]))).all()


@pytest.fixture
def plates(tmp_path):
    """test/good, test/crack and test/hole with two plates each; the cracks are marked in ground_truth."""
    for kind, colour in (("good", 90), ("crack", 120), ("hole", 200)):
        folder = tmp_path / "plates" / "test" / kind
        folder.mkdir(parents=True)
        for i in range(2):
            (folder / f"{i:03}.png").write_bytes(
                encoded(np.full((40, 60), colour, np.uint8), "PNG")
            )
    folder = tmp_path / "plates" / "ground_truth" / "crack"
    folder.mkdir(parents=True)
    for i in range(2):
        mask = np.zeros((40, 60), np.uint8)
        mask[4:12, 6:24] = 255
        mask[30:36, 40 : 40 + 10 * i] = 255
        (folder / f"{i:03}_mask.png").write_bytes(encoded(mask, "PNG"))
    return tmp_path / "plates"


def mask_of(image, region=0):
    """The pixels of a region, bool (H, W)."""
    mask = np.zeros(image.size, bool)
    mask.flat[image.regions[region]] = True
    return mask


def of_two_classes(path, labels=("good", "unlike")):
    from vitkit.evaluation.metrics.defects import good_or_not

    return good_or_not(open_source(path), labels)


def test_masks_lie_as_in_mvtecs_data_sets(plates):
    """The same folders below ground_truth; an image without a mask is good, or unknown."""
    source = of_two_classes(plates)
    regions, notes = find_regions(source, str(plates), ground_truth_of(str(plates)), SQUARE)
    found = {source.name(i)[-13:]: each for i, each in enumerate(regions.images)}
    assert [len(found[f"crack/00{i}.png"].regions) for i in (0, 1)] == [1, 2]
    assert found["/good/000.png"] == ImageRegions((40, 60), ())
    assert found["/hole/000.png"] is None and "2 images without a region" in notes[0]
    crack = mask_of(found["crack/000.png"])
    assert crack.sum() == 8 * 18 and crack[4:12, 6:24].all()
    assert ground_truth_of(str(plates / "test")).endswith("plates/ground_truth")
    assert not ground_truth_of(str(plates / "test" / "good")) and not ground_truth_of("nowhere")


def test_large_images_are_compared_at_fewer_pixels_and_small_regions_stay(plates):
    large = np.zeros((400, 600), np.uint8)
    for i in range(2):
        (plates / "test" / "crack" / f"{i:03}.png").write_bytes(encoded(large, "PNG"))
        mask = large.copy()
        mask[101, 303] = 255
        (plates / "ground_truth" / "crack" / f"{i:03}_mask.png").write_bytes(encoded(mask, "PNG"))
    source = of_two_classes(plates)
    regions, _ = find_regions(source, str(plates), str(plates / "ground_truth"), SQUARE)
    assert regions.images[0].size == (171, 256) and mask_of(regions.images[0]).sum() == 1


def test_what_the_model_does_not_see_does_not_count(plates):
    source = of_two_classes(plates)
    middle = Preprocessing(size=(32, 32), rule="shorter", resize=32)
    regions, notes = find_regions(source, str(plates), str(plates / "ground_truth"), middle)
    assert [len(each.regions) for each in regions.images[:2]] == [1, 2]
    assert mask_of(regions.images[0]).sum() == 8 * 14  # 10 columns of 60 are cut off on each side
    small = Preprocessing(size=(24, 24), rule="shorter", resize=48)
    _, notes = find_regions(source, str(plates), str(plates / "ground_truth"), small)
    assert any("1 region outside what the model sees" in note for note in notes)


@pytest.mark.parametrize("kind", ["bbox", "segmentation"])
def test_annotations_of_coco_are_regions(kind, plates):
    images = [
        {"id": 1, "file_name": "crack/000.png", "width": 60, "height": 40},
        {"id": 2, "file_name": "crack/001.png", "width": 60, "height": 40},
    ]
    boxes = {"bbox": [6, 4, 18, 8], "segmentation": [[6, 4, 24, 4, 24, 12, 6, 12]]}
    annotations = [{"id": 1, "image_id": 1, "category_id": 1, kind: boxes[kind]}]
    path = plates / "marked.json"
    path.write_text(json.dumps({"images": images, "annotations": annotations, "categories": []}))
    source = of_two_classes(plates)
    regions, notes = find_regions(source, str(plates), str(path), SQUARE)
    mask = mask_of(regions.images[0])
    assert len(regions.images[0].regions) == 1
    assert mask.sum() == 8 * 18 and mask[4:12, 6:24].all()
    assert regions.images[1] is None and "3 images without a region" in notes[0]
    annotations[0][kind] = [1, 2]
    path.write_text(json.dumps({"images": images, "annotations": annotations, "categories": []}))
    with pytest.raises(
        ValueError, match="000.png has in .* that is neither a box, polygons nor run"
    ):
        find_regions(source, str(plates), str(path), SQUARE)


def test_a_column_has_boxes_or_masks(tmp_path):
    picture = encoded(np.full((40, 60), 90, np.uint8), "PNG")
    mask = np.zeros((40, 60), np.uint8)
    mask[4:12, 6:24] = 1
    columns = {
        "image": [{"bytes": picture, "path": None}] * 3,
        "label": ["good", "bad", "bad"],
        "boxes": [None, [[6.0, 4.0, 24.0, 12.0]], [[0.0, 0.0, 5.0, 5.0], [50.0, 0.0, 90.0, 5.0]]],
        "drawn": [{"bytes": encoded(each, "PNG"), "path": None} for each in (0 * mask, mask, mask)],
    }
    path = tmp_path / "plates-test.parquet"
    pq.write_table(pa.table(columns), path)
    source = of_two_classes(path)
    for column, counts in (("boxes", [0, 1, 2]), ("drawn", [0, 1, 1])):
        regions, notes = find_regions(source, str(path), column, SQUARE)
        assert [len(each.regions) for each in regions.images] == counts and not notes
        assert mask_of(regions.images[1]).sum() == 8 * 18


def test_what_does_not_fit_gets_a_sentence(plates):
    source = of_two_classes(plates)
    masks = plates / "ground_truth"

    def find():
        return find_regions(source, str(plates), str(masks), SQUARE)

    (masks / "good").mkdir()
    content = (masks / "crack" / "000_mask.png").read_bytes()
    (masks / "good" / "000_mask.png").write_bytes(content)
    assert any("1 good image with a defective region" in note for note in find()[1])
    (masks / "crack" / "000_mask.png").write_bytes(encoded(np.zeros((20, 60), np.uint8), "PNG"))
    with pytest.raises(
        ValueError, match="000_mask.png is 60 x 20 pixels, and its image is 60 x 40"
    ):
        find()
    for i in range(2):
        path = masks / "crack" / f"{i:03}_mask.png"
        path.write_bytes(encoded(np.zeros((40, 60), np.uint8), "PNG"))
    with pytest.raises(ValueError, match="none of the 6 images has a defective region"):
        find()
    (masks / "crack" / "000_mask.png").unlink()
    (masks / "crack" / "000_mask.jpg").write_bytes(encoded(np.zeros((40, 60), np.uint8), "JPEG"))
    with pytest.raises(ValueError, match="is a JPEG file, which changes the values"):
        find()


def test_one_mask_is_not_of_two_images(plates):
    source = of_two_classes(plates)
    (plates / "flat").mkdir()
    with Image.open(plates / "ground_truth" / "crack" / "000_mask.png") as mask:
        mask.save(plates / "flat" / "000.png")
    with pytest.raises(ValueError, match="^000.png in .*flat may be .*crack/000.png or .*good/000"):
        find_regions(source, str(plates), str(plates / "flat"), SQUARE)


def test_pixels_that_touch_at_a_corner_are_one_region():
    mask = np.zeros((6, 6), bool)
    mask[[1, 2, 5], [1, 2, 5]] = True
    assert [region.area for region in connected(mask)] == [2, 1]


def annotated(plates, images, annotations):
    """The path of a COCO file: of images by their paths, and of (image, values)."""
    path = plates / "marked.json"
    listed = [{"id": i, "file_name": name} for i, name in enumerate(images)]
    values = [{"id": k, "image_id": i, **each} for k, (i, each) in enumerate(annotations)]
    path.write_text(json.dumps({"images": listed, "annotations": values, "categories": []}))
    return str(path)


BOX = {"bbox": [6, 4, 18, 8]}


@pytest.mark.parametrize(
    "folder", ["", "./", "/mnt/elsewhere/", "{plates}/", "plates\\", "C:\\plates\\"]
)
def test_paths_of_coco_may_say_more_folders_than_the_data_set_or_fewer(folder, plates):
    """As `vitkit predict --regions` writes them, whatever is the current directory."""
    folder = folder.format(plates=plates)
    names = [f"{folder}crack/000.png", f"{folder}hole/000.png"]
    path = annotated(plates, names, [(0, BOX), (1, {"bbox": [0, 0, 5, 5]})])
    source = of_two_classes(plates / "test")
    regions, _ = find_regions(source, str(plates / "test"), path, SQUARE)
    found = {source.name(i)[-13:]: each for i, each in enumerate(regions.images)}
    assert mask_of(found["crack/000.png"]).sum() == 8 * 18
    assert mask_of(found["/hole/000.png"]).sum() == 25
    assert found["crack/001.png"] is None and found["/good/000.png"].regions == ()


def test_a_name_without_a_folder_is_not_of_two_images(plates):
    source = of_two_classes(plates)
    path = annotated(plates, ["000.png"], [(0, BOX)])
    with pytest.raises(ValueError, match="^000.png in .*json may be .*crack/000.png or .*good/000"):
        find_regions(source, str(plates), path, SQUARE)
    path = annotated(plates, ["x/crack/000.png", "y/crack/000.png"], [(0, BOX), (1, BOX)])
    source = of_two_classes(plates / "test")
    with pytest.raises(ValueError, match="crack/000.png may be x/crack/000.png or y/crack/000.png"):
        find_regions(source, str(plates), path, SQUARE)


def test_an_image_in_another_folder_is_another_image(plates):
    source = of_two_classes(plates)
    path = annotated(plates, ["bent/000.png", "crack/001.png"], [(0, BOX), (1, BOX)])
    regions, notes = find_regions(source, str(plates), path, SQUARE)
    assert "3 images without a region" in notes[0]
    assert [bool(each and each.regions) for each in regions.images] == [False, True] + [False] * 4


@pytest.mark.parametrize(
    ("annotation", "sentence"),
    [
        (
            {"bbox": [100, 100, 5, 5]},
            "a box from .100, 100. to .105, 105., outside of the image, wh",
        ),
        ({"bbox": [-9, 4, 9, 5]}, "a box from .-9, 4. to .0, 9., outside of the image"),
        ({"bbox": [0.1, 0.2, 0.5, 0.5]}, "which seem to be shares of the image's sides: multiply"),
        ({"segmentation": [[90, 9, 95, 9, 95, 20]]}, "a polygon from .90, 9. to .95, 20., outside"),
        ({"segmentation": [[0.1, 0.1, 0.9, 0.1, 0.9, 0.9]]}, "a polygon .* seem to be shares of"),
        ({"bbox": [9, 9, -5, 5]}, r"000.png has in .*marked.json .*, which is no box"),
    ],
)
def test_regions_outside_of_the_image_are_refused(annotation, sentence, plates):
    source = of_two_classes(plates)
    path = annotated(plates, ["crack/000.png"], [(0, annotation)])
    with pytest.raises(ValueError, match=sentence):
        find_regions(source, str(plates), path, SQUARE)


def test_boxes_in_a_column_are_checked_as_well(tmp_path):
    picture = {"bytes": encoded(np.full((40, 60), 90, np.uint8), "PNG"), "path": None}
    path = tmp_path / "plates-test.parquet"
    for box, sentence in (([0.1, 0.1, 0.6, 0.5], "shares"), ([70.0, 0.0, 80.0, 5.0], "outside of")):
        columns = {"image": [picture] * 2, "label": ["good", "bad"], "boxes": [None, [box]]}
        pq.write_table(pa.table(columns), path)
        with pytest.raises(ValueError, match=f"has in 'boxes' a box .*{sentence}"):
            find_regions(of_two_classes(path), str(path), "boxes", SQUARE)


def test_a_box_at_the_edge_is_cut(plates):
    path = annotated(plates, ["crack/000.png"], [(0, {"bbox": [50, 36, 30, 30]})])
    regions, _ = find_regions(of_two_classes(plates), str(plates), path, SQUARE)
    assert mask_of(regions.images[0])[36:, 50:].all() and mask_of(regions.images[0]).sum() == 40


@pytest.mark.slow
def test_thousands_of_small_regions_fit_into_memory(plates):
    """A mask of the image's size for each would have 16 GiB."""
    import tracemalloc

    mask = np.zeros((1024, 1024), np.uint8)
    mask[::8, ::8] = 255
    for kind in ("crack", "good", "hole"):
        for i in range(2):
            (plates / "test" / kind / f"{i:03}.png").write_bytes(encoded(0 * mask, "PNG"))
    for i in range(2):
        (plates / "ground_truth" / "crack" / f"{i:03}_mask.png").write_bytes(encoded(mask, "PNG"))
    source = of_two_classes(plates)
    tracemalloc.start()
    regions, _ = find_regions(source, str(plates), str(plates / "ground_truth"), SQUARE)
    maps = np.random.default_rng(0).normal(size=(6, 8, 8))
    metric = overlap(maps, regions.images)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [len(each.regions) for each in regions.images[:2]] == [128 * 128] * 2
    assert 0 < metric.value < 1
    at_most(most, 300e6)
