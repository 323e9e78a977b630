"""Masks: what their values and colours stand for, and which mask belongs to which image."""

import io
import json
import pickle

import numpy as np
import pytest
from pictures import encoded, photograph
from PIL import Image, ImageDraw

from vitkit.data import IGNORED, Columns, Legend, masked, open_source, open_splits, resized_mask
from vitkit.data.masks.coco import polygon_region, read_coco
from vitkit.data.masks.legend import inferred, legend_text, read_legend, with_ignored
from vitkit.data.masks.pairs import open_masks
from vitkit.data.masks.reading import codes_of, is_coloured
from vitkit.system.errors import BadData, BadImage

MASK = np.array([[0, 1, 2], [2, 255, 0]], np.uint8)


def png(pixels, mode=None, palette=None):
    image = Image.fromarray(pixels, mode) if mode else Image.fromarray(pixels)
    if palette is not None:
        image = Image.fromarray(pixels, "P")
        image.putpalette(palette)
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


# Legends


@pytest.mark.parametrize(
    ("name", "text", "labels", "codes"),
    [
        ("a.txt", "road\ncar\n", ("road", "car"), {0: 0, 1: 1, 255: IGNORED}),
        ("a.csv", "name,value\nroad,7\ncar,9\nvoid,0\n", ("road", "car"), {7: 0, 9: 1, 0: IGNORED}),
        (
            "a.txt",
            "background, 0\nnucleus, 1-65535\n",
            ("background", "nucleus"),
            {0: 0, 1: 1, 65535: 1},
        ),
        ("a.json", '["road", "car"]', ("road", "car"), {0: 0, 1: 1}),
        ("a.json", '{"road": 3, "car": 4}', ("road", "car"), {3: 0, 4: 1}),
    ],
)
def test_a_legend_of_values(tmp_path, name, text, labels, codes):
    (tmp_path / name).write_text(text)
    legend = read_legend(tmp_path / name)
    assert legend.labels == labels and not legend.coloured
    for code, number in codes.items():
        assert legend.class_map(np.array([[code]]), "a mask").item() == number


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("camvid.txt", "64 128 64\tAnimal\n192 0 128\tArch way\n0 0 0\tVoid\n"),
        ("camvid.csv", "name,r,g,b\nAnimal,64,128,64\nArch way,192,0,128\nVoid,0,0,0\n"),
        (
            "labelmap.txt",
            "# label:color_rgb:parts:actions\nAnimal:64,128,64::\nArch way:192,0,128::\nvoid:0,0,0::\n",
        ),
        ("plain.txt", "64 128 64 Animal\n192 0 128 Arch way\n0 0 0 Void\n"),
        ("c.json", '{"Animal": [64, 128, 64], "Arch way": [192, 0, 128], "void": [0, 0, 0]}'),
    ],
)
def test_a_legend_of_colours_as_other_programs_write_it(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    legend = read_legend(tmp_path / name)
    assert legend.labels == ("Animal", "Arch way") and legend.coloured
    pixels = np.array([[[64, 128, 64], [192, 0, 128], [0, 0, 0]]], np.uint8)
    codes = codes_of(png(pixels), "m.png", coloured=True)
    assert legend.class_map(codes, "m.png").tolist() == [[0, 1, IGNORED]]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "names no class"),
        ("road, 3\ncar, 3\n", "has the value 3 twice"),
        ("road, 3\ncar\n", "give all of them one kind"),
        ("road, 1, 2\n", "expected one value, or red, green and blue"),
        ("road, 1, 2, 300\n", "from 0 to 255"),
        ("road, 70000\n", "from 0 to 65535"),
        ("1\n2\n", "line 1 is '1'"),
        ("Label\nroad\ncar\n", "a heading rather than a class"),
        ("name,value\nroad,7,8\n", "line 2 is 'road,7,8'"),
        ("name,value\nroad,x\n", "expected a name and a value"),
    ],
)
def test_a_legend_that_contradicts_itself_is_refused_with_its_line(tmp_path, text, words):
    (tmp_path / "legend.txt").write_text(text)
    with pytest.raises(BadData, match="legend.txt") as caught:
        read_legend(tmp_path / "legend.txt")
    assert words in str(caught.value)


def test_an_ignored_value_is_no_class(tmp_path):
    (tmp_path / "legend.txt").write_text("road\ncar\n")
    legend = read_legend(tmp_path / "legend.txt", ignore=2)
    assert legend.class_map(np.array([[0, 1, 2, 255]]), "m").tolist() == [[0, 1, IGNORED, IGNORED]]
    with pytest.raises(BadData, match="the value of the class 'car'"):
        read_legend(tmp_path / "legend.txt", ignore=1)
    with pytest.raises(BadData, match="from 0 to 65535"):
        with_ignored(legend, -1)


def test_a_value_that_no_class_has_is_named_with_its_file_and_the_remedy(tmp_path):
    (tmp_path / "legend.txt").write_text("road\ncar\n")
    legend = read_legend(tmp_path / "legend.txt")
    with pytest.raises(BadData, match=r"m\.png has the value 11 in 2 pixels.*`ignore=11`"):
        legend.class_map(np.array([[0, 11, 11]]), "m.png")
    with pytest.raises(BadData, match="JPEG changes the values"):
        legend.class_map(np.array([[0, 11, 11]]), "m.jpg")


def test_a_legend_that_was_written_is_read_whatever_the_names_of_classes_are(tmp_path):
    labels = ("0", "#ff0000", "car, red", 'a "b"', "1-5", "a\nb")
    (tmp_path / "legend.csv").write_text(legend_text(labels))
    legend = read_legend(tmp_path / "legend.csv")
    assert legend.labels == labels and not legend.coloured
    assert legend.class_map(np.arange(6)[None], "m").tolist() == [[0, 1, 2, 3, 4, 5]]


def test_values_that_are_ignored_are_not_named_as_classes(tmp_path):
    (tmp_path / "legend.txt").write_text("road\ncar\n")
    with pytest.raises(BadData, match="the classes have 0, 1:"):
        read_legend(tmp_path / "legend.txt").class_map(np.array([[7]]), "m.png")


def test_a_legend_survives_json_and_another_process(tmp_path):
    (tmp_path / "legend.txt").write_text("road, 7\ncar, 9\n")
    legend = read_legend(tmp_path / "legend.txt")
    for again in (
        Legend.from_json(json.loads(json.dumps(legend.to_json()))),
        pickle.loads(pickle.dumps(legend)),
    ):
        assert again == legend
        assert again.class_map(np.array([[7, 9]]), "m").tolist() == [[0, 1]]
    for damage in (
        {"labels": []},
        {"codes": [[0, 70000, 0]]},
        {"codes": [[0, 1, 5]]},
        {"coloured": 2},
    ):
        with pytest.raises(BadData, match="damaged"):
            Legend.from_json(legend.to_json() | damage)
    with pytest.raises(BadData, match="damaged"):
        Legend.from_json({"labels": ["a"]})


@pytest.mark.parametrize(
    ("found", "ignore", "labels", "ignored"),
    [
        ({0, 255}, None, ("background", "object"), []),
        ({0, 1}, None, ("background", "object"), [255]),
        ({0, 1, 2, 255}, None, ("0", "1", "2"), [255]),
        ({0, 1, 2}, 2, ("background", "object"), [2, 255]),
        ({3, 4, 9}, None, ("3", "4", "9"), [255]),
    ],
)
def test_masks_without_a_legend_have_the_one_that_follows_from_their_values(
    found, ignore, labels, ignored
):
    legend, sentence = inferred(dict.fromkeys(found, 9), coloured=False, ignore=ignore)
    assert legend.labels == labels and "`legend` names the classes" in sentence
    for value in ignored:
        assert legend.class_map(np.array([[value]]), "m").item() == IGNORED
    for number, value in enumerate(sorted(found - set(ignored))):
        assert legend.class_map(np.array([[value]]), "m").item() == number


def test_masks_that_no_legend_follows_from_are_refused():
    with pytest.raises(BadData, match="all masks have one value, 7"):
        inferred({7: 1}, coloured=False)
    with pytest.raises(BadData, match="one value, 0 beside 1, which is ignored"):
        inferred({0: 1, 1: 1}, coloured=False, ignore=1)
    with pytest.raises(BadData, match="merges them"):
        inferred(dict.fromkeys(range(300), 1), coloured=False)


def test_masks_with_smoothed_borders_are_refused(tmp_path):
    disc = Image.new("L", (400, 400))
    ImageDraw.Draw(disc).ellipse((80, 60, 300, 320), fill=255)
    photos = files_of(tmp_path / "photos", ["a.jpg"], encoded(photograph(100, 100)))
    for resample in (Image.Resampling.BOX, Image.Resampling.BICUBIC):
        small = np.asarray(disc.resize((100, 100), resample))
        files_of(tmp_path / "masks", ["a.png"], png(small))
        with pytest.raises(BadData, match="borders are smoothed.*nearest pixel"):
            parts_of(photos, tmp_path / "masks")
    sharp = np.asarray(disc.resize((100, 100), Image.Resampling.NEAREST))
    files_of(tmp_path / "masks", ["a.png"], png(sharp))
    assert parts_of(photos, tmp_path / "masks")[0]["train"].labels == ("background", "object")


@pytest.mark.parametrize(
    "found",
    [
        {0: 900, 1: 3, 2: 3, 3: 3, 255: 50},  # numbered without gaps
        {0: 900, 5: 30, 9: 30, 15: 60, 255: 40},  # some classes of Pascal VOC
        {0: 900, 127: 5, 255: 500},
        {0: 900, 3: 2, 7: 2, 9: 2, 15: 500},
    ],
)
def test_rare_classes_are_no_smoothed_borders(found):
    labels = inferred(found, coloured=False)[0].labels
    assert len(labels) == len(set(found) - {255})


# Files of masks


def test_values_of_every_kind_of_file():
    palette = np.random.default_rng(0).integers(0, 256, 768, dtype=np.uint8).tobytes()
    array = io.BytesIO()
    np.save(array, MASK.astype(np.int64))
    wide = MASK.astype(np.uint16)
    wide[0, 0] = 40_000
    for content in (
        png(MASK),
        png(MASK, palette=palette),
        png(np.repeat(MASK[..., None], 3, axis=2)),
        array.getvalue(),
        encoded(MASK, "TIFF"),
        encoded(MASK, "BMP"),
        MASK,
    ):
        assert np.array_equal(codes_of(content, "m"), MASK)
    assert np.array_equal(codes_of(png(wide), "m"), wide)
    assert np.array_equal(codes_of(png(MASK > 1), "m"), MASK > 1)


def test_colours_of_a_palette_are_looked_up_where_classes_have_colours():
    palette = bytes([0, 0, 0, 10, 20, 30]) + bytes(762)
    codes = codes_of(png(np.array([[0, 1]], np.uint8), palette=palette), "m", coloured=True)
    assert codes.tolist() == [[0, (10 << 16) + (20 << 8) + 30]]
    assert not is_coloured(png(MASK), "m") and is_coloured(png(photograph(8, 8)), "m")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (png(photograph(8, 8)), "mask of colours, and other masks have values"),
        (b"nothing", "m.png"),
        (np.array([[0.5]], np.float32), "not whole"),
        (np.array([[-1]]), "from -1 to -1"),
        (np.array([[70_000]]), "0 to 65535"),
        (np.zeros((2, 2, 7), np.uint8), "2 x 2 x 7"),
        (encoded(photograph(8, 8), "JPEG")[:60], "m.png"),
    ],
)
def test_what_is_no_mask_is_refused_with_its_name(content, words):
    with pytest.raises(BadImage, match=r"m\.png") as caught:
        codes_of(content, "m.png")
    assert words in str(caught.value)


def test_a_pickled_array_is_not_unpickled(tmp_path):
    file = io.BytesIO()
    np.save(file, np.array([[object()]]), allow_pickle=True)
    with pytest.raises(BadImage, match="m.npy"):
        codes_of(file.getvalue(), "m.npy")


# Which mask belongs to which image


@pytest.fixture
def folders(tmp_path):
    """Two images in folders, and masks with endings."""
    for name, ending in (("train/a", "_L"), ("train/b", ""), ("test/a", "_mask")):
        for kind, content in (("photos", photograph(2, 3)), ("masks", MASK)):
            suffix = ".jpg" if kind == "photos" else f"{ending}.png"
            file = tmp_path / kind / f"{name}{suffix}"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(encoded(content, "JPEG" if kind == "photos" else "PNG"))
    return tmp_path


def parts_of(where, masks, **settings):
    splits = open_splits(where, Columns(target="none"))
    return masked(splits.sources, str(where), str(masks), **settings)


def test_masks_are_found_by_the_names_of_images(folders):
    parts, notes = parts_of(folders / "photos", folders / "masks")
    assert {name: len(part) for name, part in parts.items()} == {"train": 2, "test": 1}
    assert parts["test"].labels == ("0", "1", "2")
    picture, mask = parts["test"].pair(0)
    assert picture.size == mask.shape and np.array_equal(mask, MASK)
    assert parts["test"].mask_name(0).endswith("masks/test/a_mask.png")
    assert parts["train"].mask_name(0).endswith("masks/train/a_L.png")
    assert any("3 values" in note for note in notes)
    one = parts["train"].subset([1])
    assert one.mask_name(0).endswith("masks/train/b.png") and one.images.name(0).endswith("b.jpg")


def test_masks_in_one_folder_are_found_by_name_if_that_says_it(folders):
    flat = folders / "flat"
    flat.mkdir()
    (flat / "b.png").write_bytes(png(MASK))
    parts, notes = masked(
        {"train": open_splits(folders / "photos", Columns(target="none")).train},
        str(folders / "photos"),
        str(flat),
    )
    assert len(parts["train"]) == 1 and "1 image without a mask" in notes[0]
    with pytest.raises(BadData, match=r"2 masks .* have the name .*train/b.*b\.png, x/b\.png"):
        (flat / "x").mkdir()
        (flat / "x/b.png").write_bytes(png(MASK))
        parts_of(folders / "photos", flat)


def files_of(folder, names, content):
    """Write files of these names below a folder; returns the folder."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def paired(tmp_path, photos, masks):
    """The mask of each of these images that has one."""
    where = files_of(tmp_path / "photos", photos, encoded(photograph(2, 3)))
    folder = files_of(tmp_path / "masks", masks, png(MASK))
    part = masked({"": open_source(where, Columns(target="none"))}, str(where), str(folder))[0][""]
    found = {}
    for i in range(len(part)):
        image = part.images.name(i).removeprefix(f"{where}/")
        found[image] = part.mask_name(i).removeprefix(f"{folder}/")
    return found


def test_an_image_never_has_the_mask_of_another_image(tmp_path):
    photos = ["x/1.jpg", "x/2.jpg", "y/1.jpg", "y/2.jpg", "y/3.jpg"]
    assert paired(tmp_path, photos, ["x/1.png", "x/2.png"]) == {
        "x/1.jpg": "x/1.png",
        "x/2.jpg": "x/2.png",
    }


def test_a_mask_of_another_folder_is_found_if_one_image_alone_has_its_name(tmp_path):
    assert paired(tmp_path, ["x/1.jpg", "y/2.jpg"], ["z/1.png", "z/2_mask.png"]) == {
        "x/1.jpg": "z/1.png",
        "y/2.jpg": "z/2_mask.png",
    }


def test_one_mask_of_two_images_is_refused(tmp_path):
    with pytest.raises(BadData, match=r"1\.png .* of .*x/1\.jpg and of .*y/1\.jpg"):
        paired(tmp_path, ["x/1.jpg", "y/1.jpg"], ["1.png"])


@pytest.mark.parametrize("other", ["0.tif", "0_mask.png"])
def test_two_masks_of_one_image_are_refused_with_both_names(tmp_path, other):
    with pytest.raises(BadData, match=r"0\.png") as caught:
        paired(tmp_path, ["0.jpg"], ["0.png", other])
    assert other in str(caught.value)


def test_names_of_images_that_end_as_masks_do_are_told_apart(tmp_path):
    assert paired(tmp_path, ["a.jpg", "a_L.jpg"], ["a.png", "a_L.png"]) == {
        "a.jpg": "a.png",
        "a_L.jpg": "a_L.png",
    }


def test_masks_saved_as_jpeg_are_refused_and_photographs_beside_masks_are_none(tmp_path):
    assert paired(tmp_path / "beside", ["a.jpg"], ["a.png", "a.jpg"]) == {"a.jpg": "a.png"}
    with pytest.raises(BadData, match=r"a_mask\.JPG .* is a JPEG file.*PNG"):
        paired(tmp_path, ["a.jpg"], ["a_mask.JPG"])


def test_masks_below_the_folder_of_images_are_no_images(tmp_path):
    (tmp_path / "photos/masks").mkdir(parents=True)
    for name in "ab":
        (tmp_path / f"photos/{name}.jpg").write_bytes(encoded(photograph(2, 3)))
        (tmp_path / f"photos/masks/{name}.png").write_bytes(png(MASK))
    source = open_source(tmp_path / "photos", Columns(target="none"))
    assert len(source) == 4
    parts, _ = masked({"": source}, str(tmp_path / "photos"), str(tmp_path / "photos/masks"))
    names = [parts[""].images.name(i) for i in range(len(parts[""]))]
    assert [name[-5:] for name in names] == ["a.jpg", "b.jpg"]


@pytest.mark.parametrize(
    ("masks", "words"),
    [
        ("empty", "holds no masks"),
        ("nothing", "there is no folder"),
        ("photos", "both in"),
        ("other", "no image has a mask"),
    ],
)
def test_a_folder_without_the_masks_is_refused(folders, masks, words):
    (folders / "empty").mkdir()
    (folders / "other").mkdir()
    (folders / "other/z.png").write_bytes(png(MASK))
    with pytest.raises(BadData, match=words):
        parts_of(folders / "photos", folders / masks)


def test_a_mask_of_another_size_is_refused_with_both_files(folders):
    (folders / "masks/train/b.png").write_bytes(png(MASK[:1]))
    parts, _ = parts_of(folders / "photos", folders / "masks")
    with pytest.raises(BadData, match=r"b\.png is 3 x 1 pixels, and its image .*b\.jpg is 3 x 2"):
        parts["train"].pair(1)


def test_masks_in_a_column_of_a_manifest(folders):
    rows = ["image,mask,split", "photos/train/a.jpg,masks/train/a_L.png,train"]
    rows.append("photos/test/a.jpg,masks/test/a_mask.png,test")
    (folders / "data.csv").write_text("\n".join(rows))
    parts, _ = parts_of(folders / "data.csv", "mask")
    assert parts["train"].mask_name(0).endswith("train/a_L.png")
    assert np.array_equal(parts["test"].pair(0)[1], MASK)
    with pytest.raises(
        BadData, match="neither a folder of masks nor a column .* are image, mask, split$"
    ):
        parts_of(folders / "data.csv", "nothing")


def test_masks_in_a_column_of_parquet_whose_metadata_names_the_classes(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    images = [encoded(photograph(2, 3, seed)) for seed in range(3)]
    table = pa.table({"image": images, "mask": [png(MASK)] * 3})
    names = json.dumps(["road", "car", "sky"])
    pq.write_table(table.replace_schema_metadata({"classes": names}), tmp_path / "d-train.parquet")
    store = open_masks(str(tmp_path / "d-train.parquet"), "mask")
    assert store.names is None
    parts, notes = parts_of(tmp_path / "d-train.parquet", "mask")
    assert parts["train"].labels == ("road", "car", "sky") and not notes
    assert np.array_equal(parts["train"].mask(0), MASK)
    assert parts["train"].mask_name(0).startswith("the mask of d-train.parquet row ")


def test_masks_have_colours_if_any_of_them_has(tmp_path):
    pixels = np.zeros((2, 3, 3), np.uint8)
    photos = files_of(tmp_path / "photos", ["a.jpg", "b.jpg"], encoded(photograph(2, 3)))
    files_of(tmp_path / "masks", ["a.png"], png(pixels))
    pixels[1] = 200, 30, 0
    files_of(tmp_path / "masks", ["b.png"], png(pixels))
    source = open_source(photos, Columns(target="none"))
    part = masked({"": source}, str(photos), str(tmp_path / "masks"))[0][""]
    assert part.labels == ("#000000", "#c81e00") and part.legend.coloured
    assert [np.unique(part.mask(i)).tolist() for i in range(2)] == [[0], [0, 1]]


def test_a_mask_is_resized_to_its_nearest_pixels():
    mask = np.arange(12, dtype=np.uint8).reshape(3, 4)
    assert np.array_equal(resized_mask(mask, (6, 8))[::2, ::2], mask)
    assert set(resized_mask(mask, (2, 2)).reshape(-1)) <= set(range(12))


# COCO


def coco(tmp_path, annotations, **others):
    """A COCO file of one image of 6 x 8 pixels."""
    values = {
        "images": [{"id": 7, "file_name": "photos/a.jpg", "height": 6, "width": 8}],
        "categories": [{"id": 18, "name": "dog"}, {"id": 3, "name": "cat"}],
        "annotations": [{"id": 1, "image_id": 7, "category_id": 18} | each for each in annotations],
    }
    path = tmp_path / "annotations.json"
    path.write_text(json.dumps(values | others))
    return path


SQUARE = [2, 1, 6, 1, 6, 5, 2, 5]  # x and y: columns 2 to 5, rows 1 to 4


def test_polygons_and_run_lengths_of_coco_become_masks(tmp_path):
    expected = np.zeros((6, 8), np.uint8)
    expected[1:5, 2:6] = 1
    flat = (expected > 0).T.reshape(-1).astype(int)
    changes = [0, *(np.flatnonzero(np.diff(flat)) + 1).tolist(), flat.size]
    counts = np.diff(changes).tolist()
    size = [6, 8]
    packed = "=4200000;"  # as pycocotools packs these lengths
    for segmentation in (
        [SQUARE],
        {"counts": counts, "size": size},
        {"counts": packed, "size": size},
    ):
        store, legend = read_coco(coco(tmp_path, [{"segmentation": segmentation}]))
        assert legend.labels == ("background", "dog", "cat")
        assert np.array_equal(store.read(0), expected), segmentation


def test_the_smallest_annotation_lies_on_top(tmp_path):
    small = {"segmentation": [[3, 2, 5, 2, 5, 4, 3, 4]], "area": 4, "category_id": 3}
    for order in (1, -1):
        path = coco(tmp_path, [small, {"segmentation": [SQUARE], "area": 16}][::order])
        mask = read_coco(path)[0].read(0)
        assert mask[2:4, 3:5].tolist() == [[2, 2], [2, 2]] and (mask == 1).sum() == 12


def test_a_polygon_has_the_pixels_whose_centres_it_encloses():
    from matplotlib.path import Path as Outline

    random = np.random.default_rng(0)
    rows, columns = np.mgrid[:30, :40]
    centres = np.stack([columns.reshape(-1) + 0.5, rows.reshape(-1) + 0.5], 1)
    for _ in range(5):
        angles = np.sort(random.uniform(0, 2 * np.pi, 9))
        radii = random.uniform(5, 22, 9)
        points = np.stack([20 + radii * np.cos(angles), 15 + radii * np.sin(angles)], 1)
        theirs = Outline(points, closed=False).contains_points(centres).reshape(30, 40)
        assert np.array_equal(polygon_region(points.reshape(-1), (30, 40)), theirs)


@pytest.mark.parametrize(
    ("annotations", "others", "words"),
    [
        ([{"bbox": [0, 0, 2, 2]}], {}, "boxes alone"),
        ([{"segmentation": [SQUARE], "category_id": 99}], {}, "no COCO file"),
        ([], {"categories": []}, "no categories"),
        ([], {"categories": [{"id": 1, "name": "a"}, {"id": 2, "name": "a"}]}, "'a' twice"),
        (
            [],
            {"images": [{"id": 7, "file_name": "a.jpg", "height": 10**6, "width": 10**6}]},
            "too many",
        ),
        (
            [],
            {"images": [{"id": 7, "file_name": "a.jpg", "height": -1, "width": 1}]},
            "height and a width",
        ),
        ([], {"images": 7}, "no COCO file"),
    ],
)
def test_a_file_that_is_not_as_coco_has_it_is_refused(tmp_path, annotations, others, words):
    with pytest.raises(BadData, match=r"annotations\.json") as caught:
        read_coco(coco(tmp_path, annotations, **others))
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "segmentation",
    [[[1, 2]], [["a"] * 6], [[1, 2, 3, 4, 5, None]], [[0, 0, 1e300, 1, 2, 2]],
     {"counts": [1], "size": [6, 8]}, {"counts": "~~", "size": [6, 8]},
     {"counts": [48], "size": [8, 6]}, {"counts": [10**30], "size": [6, 8]}, 7, "text"],
)  # fmt: skip
def test_an_annotation_that_is_none_is_refused_with_its_image(tmp_path, segmentation):
    store, _ = read_coco(coco(tmp_path, [{"segmentation": segmentation}]))
    with pytest.raises(BadData, match=r"photos/a\.jpg in .*annotations\.json"):
        store.read(0)


def test_masks_of_coco_are_found_by_the_file_names_of_images(tmp_path):
    (tmp_path / "photos").mkdir()
    for name in "ab":
        (tmp_path / f"photos/{name}.jpg").write_bytes(encoded(photograph(6, 8)))
    source = open_source(tmp_path / "photos", Columns(target="none"))
    path = coco(tmp_path, [{"segmentation": [SQUARE]}])
    parts, notes = masked({"": source}, str(tmp_path / "photos"), str(path))
    assert len(parts[""]) == 1 and "1 image without a mask" in notes[0]
    assert parts[""].labels == ("background", "dog", "cat")
    picture, mask = parts[""].pair(0)
    assert picture.name.endswith("a.jpg") and (mask == 1).sum() == 16
