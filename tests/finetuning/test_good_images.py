"""Of good images alone: the model, its threshold, its maps and regions, through the commands."""

import csv
import json
import shutil
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from margins import at_least, at_most
from pictures import encoded
from PIL import Image
from quick_ones import quick_ones
from sklearn.metrics import roc_auc_score

import vitkit
from vitkit.data import Columns, Preprocessing, open_parts, open_source
from vitkit.finetuning.good_images import at_own_resolution
from vitkit.inspection import anomaly_map
from vitkit.inspection.photographs import LINE
from vitkit.models import create, vit
from vitkit.recipes import finetune as recipe_of
from vitkit.runtimes import run_of
from vitkit.weights import Classifier, save

SIDE = 64


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    """A model of random weights: its first blocks keep the colours of patches apart."""
    config = vit("mu/16", image=(SIDE, SIDE), patch=8, classes=2, depth=3)
    model = create(config, seed=0)
    noise = torch.Generator().manual_seed(0)
    torch.nn.init.normal_(model.head.weight, generator=noise)
    torch.nn.init.normal_(model.stem.project.weight, generator=noise)  # large beside the positions
    classifier = Classifier(model, Preprocessing(size=(SIDE, SIDE)), ("a", "b"))
    return str(save(classifier, tmp_path_factory.mktemp("model") / "pretrained"))


def stripes(seed, spot=None):
    """An image of stripes, with a white spot at (left, top) if there is one."""
    draws = np.random.default_rng(seed)
    pixels = np.zeros((SIDE, SIDE, 3))
    pixels[:, :, 0] = 90 + 60 * np.sin(np.arange(SIDE) / 5)
    pixels += draws.normal(0, 4, pixels.shape)
    if spot is not None:
        left, top = spot
        pixels[top : top + 12, left : left + 12] = 255
    return pixels.clip(0, 255).astype(np.uint8)


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """A folder of 24 good parts, and four with a spot."""
    root = tmp_path_factory.mktemp("parts")
    for i in range(24):
        path = root / "parts" / "good" / f"{i:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(stripes(i), "PNG"))
    for i in range(4):
        path = root / "parts" / "spot" / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(stripes(100 + i, (40, 8 + 8 * i)), "PNG"))
    return root / "parts"


@pytest.fixture(scope="module")
def made(pretrained, parts, tmp_path_factory):
    """The model of the good parts."""
    run = tmp_path_factory.mktemp("run") / "run"
    return vitkit.finetune(pretrained, parts, normal="good", workdir=run, device="cpu", quiet=True)


def test_a_folder_of_one_class_becomes_a_model_of_good_images(
    made, parts, pretrained, tmp_path, capsys
):
    run = tmp_path / "alone"
    alone = vitkit.finetune(pretrained, parts / "good", workdir=run, device="cpu")
    assert "are of one kind, good: the model learns what these look like" in capsys.readouterr().err
    assert alone.labels == ("good", "unlike") and alone.metric is None
    assert made.labels == ("good", "spot")
    one = vitkit.load(made.run_dir, quiet=True).model.state_dict()
    other = vitkit.load(run, quiet=True).model.state_dict()
    assert all(torch.equal(one[name], other[name]) for name in one)  # the others had no part in it


def test_what_the_command_prints_is_what_was_measured(made):
    text = str(made)
    threshold = made.good.threshold
    assert threshold.images == 24 and threshold.rejected == pytest.approx(1 / 25)
    assert f"anomaly score of {threshold.value:.3f} on, which 4.0 % of other images of good" in text
    assert made.metric.value == 1.0 and "area under the ROC curve" in text
    assert "by 24 images that were left out" in text and "better than chance" not in text
    record = json.loads((made.run_dir / "good_images.json").read_text())
    assert record["threshold"] == threshold.value


def test_predict_and_evaluate_take_it_as_any_classifier(made, parts):
    answers = vitkit.predict(made, parts / "spot", parts / "good", quiet=True)
    assert [answer.label for answer in answers[:4]] == ["spot"] * 4
    at_least(np.mean([answer.label == "good" for answer in answers[4:]]), 0.95)
    found = vitkit.evaluate(made, parts, quiet=True)
    assert found["auroc"] == 1.0 and found["missed"] == 0.0 and found["different"] == 4


@pytest.fixture(scope="module")
def alike(tmp_path_factory, parts):
    """A folder of 24 good parts, and six others of which some are hard to tell from these."""
    root = tmp_path_factory.mktemp("alike") / "parts"
    shutil.copytree(parts / "good", root / "good")
    pale = {}
    for i in range(6):
        pixels = stripes(400 + i)
        pixels[30:42, 10:22] = (pixels[30:42, 10:22] + 7.0 * i).clip(0, 255).astype(np.uint8)
        pale[f"{i}.png"] = pixels
    write(root / "pale", pale)
    return root


@pytest.fixture(scope="module")
def of_alike(alike, pretrained, tmp_path_factory):
    run = tmp_path_factory.mktemp("of_alike") / "run"
    return vitkit.finetune(pretrained, alike, normal="good", workdir=run, device="cpu", quiet=True)


@pytest.mark.parametrize(
    "change", quick_ones(("none", "one gone", "renamed", "more"), ("renamed", "more"))
)
def test_images_in_memory_count_with_their_scores_without_them(change, of_alike, alike, tmp_path):
    """Also if the folder has changed since. In memory, each would be at no distance from it."""
    data = tmp_path / "parts"
    shutil.copytree(alike, data)
    left = 24
    if change == "one gone":
        (data / "good" / "03.png").unlink()
        left = 23
    if change == "renamed":
        for path in list((data / "good").iterdir()):
            path.rename(path.with_name(f"again-{path.name}"))
    if change == "more":
        write(data / "good", {f"new-{i}.png": stripes(600 + i) for i in range(5)})
    heard = []
    found = vitkit.evaluate(of_alike, data, progress=lambda each: heard.append(str(each)))
    assert found["in_memory"] == left
    assert any(f"the model remembers {left} images of these" in each for each in heard)
    names = [metric.name for metric in found.metrics]
    if change == "more":
        assert found["good"] == 29
        classifier = vitkit.load(of_alike.run_dir, quiet=True)
        new = classifier.features(classifier.batch(sorted((data / "good").glob("new*"))))[:, 0]
        expected = float((new > of_alike.good.threshold.value).float().mean())
        assert found["false_alarms"] == pytest.approx(expected)
        return
    assert found["good"] == left and "false_alarms" not in names  # by whose scores it was chosen
    of_finetune = of_alike.metric.value
    at_most(of_finetune, 0.99)  # in memory, it would be 1
    if change == "one gone":
        assert found["auroc"] == pytest.approx(of_finetune, abs=0.05) and found["auroc"] < 1
    else:
        assert found["auroc"] == pytest.approx(of_finetune, abs=1e-6)


def test_good_images_that_are_not_in_memory_are_all_counted(of_alike, alike, tmp_path):
    shutil.copytree(alike / "pale", tmp_path / "pale")
    write(tmp_path / "good", {"new.png": stripes(77)})
    found = vitkit.evaluate(of_alike, tmp_path, quiet=True)
    names = [metric.name for metric in found.metrics]
    assert names == ["auroc", "false_alarms", "missed", "good", "different"]


def test_reports_and_temperatures_are_of_images_that_are_not_in_memory(of_alike, alike, tmp_path):
    report = tmp_path / "report.json"
    found = vitkit.evaluate(of_alike, alike, report=report, quiet=True)
    assert len(found.source) == 6 and "without 24 that the model remembers" in str(found)
    found = vitkit.evaluate(of_alike, alike, evals="classification", quiet=True)
    assert len(found.source) == 6
    with pytest.raises(ValueError, match="remembers 24 images, all that there are, so they measu"):
        only_good = tmp_path / "only"
        shutil.copytree(alike / "good", only_good / "good")
        vitkit.evaluate(of_alike, only_good, report=report, quiet=True)


def test_a_temperature_does_not_reorder_images_in_memory_and_others(of_alike, alike, tmp_path):
    from vitkit.weights import with_temperature

    shutil.copytree(alike, tmp_path / "parts")
    write(tmp_path / "parts" / "good", {f"new-{i}.png": stripes(600 + i) for i in range(9)})
    classifier = vitkit.load(of_alike.run_dir, quiet=True)
    softer = with_temperature(classifier, 5.0)
    found = [vitkit.evaluate(each, tmp_path / "parts", quiet=True) for each in (classifier, softer)]
    assert found[0]["auroc"] == pytest.approx(found[1]["auroc"], abs=1e-9)


def test_images_to_test_on_that_are_in_memory_do_not_flatter(pretrained, bottles, tmp_path):
    """The test part has copies of images to learn from."""
    shutil.copytree(bottles, tmp_path / "bottle")
    for i in range(20, 24):
        learned = bottles / "train" / "good" / f"{i - 20:02}.png"
        shutil.copy(learned, tmp_path / "bottle" / "test" / "good" / f"{i}.png")
    made, said = heard_of(pretrained, tmp_path / "bottle", tmp_path / "run")
    names = [metric.name for metric in made.good.test]
    assert names == ["auroc", "aupro", "missed", "good", "different", "in_memory"]
    assert "the model remembers 4 images of these" in said


def test_a_model_without_a_record_of_its_images_is_measured_with_a_warning(made, parts):
    classifier = vitkit.load(made.run_dir, quiet=True)
    origin = {name: value for name, value in classifier.origin.items() if name != "left_out"}
    heard = []
    older = replace(classifier, origin=origin)
    vitkit.evaluate(older, parts, progress=lambda each: heard.append(str(each)))
    assert any("which images the model remembers is not recorded" in each for each in heard)


def test_regions_that_predict_writes_are_regions_to_measure_on(
    of_bottles, bottles, tmp_path, monkeypatch
):
    """A model's own regions cover its map as well as can be."""
    monkeypatch.chdir(bottles.parent)
    path = tmp_path / "regions.json"
    vitkit.predict(of_bottles, "bottle/test/spot", regions=path, quiet=True)
    shutil.copytree(bottles / "test", tmp_path / "test")
    heard = []
    found = vitkit.evaluate(
        of_bottles,
        tmp_path / "test",
        masks=path,
        progress=lambda each: heard.append(str(each)),
    )
    at_least(found["aupro"], 0.9)
    assert any("regions.json has regions with a score, as models write them" in s for s in heard)


def test_the_preprocessing_that_is_given_is_kept(pretrained, parts, tmp_path):
    settings = {"workdir": tmp_path / "run", "device": "cpu", "quiet": True}
    made = vitkit.finetune(
        pretrained, parts / "good", data__preprocessing__rule="shorter", **settings
    )
    assert vitkit.load(made.run_dir, quiet=True).preprocessing.rule == "shorter"
    settings["workdir"] = tmp_path / "other"
    made = vitkit.finetune(pretrained, parts / "good", **settings)
    assert vitkit.load(made.run_dir, quiet=True).preprocessing.rule == "square"


def test_masks_of_defects_without_normal_get_a_hint(bottles, pretrained, tmp_path):
    masks = bottles / "ground_truth"
    with pytest.raises(ValueError, match="others are defective, give `normal='good'`"):
        vitkit.finetune(pretrained, bottles, masks=masks, workdir=tmp_path / "run", quiet=True)


def test_good_images_under_another_name_are_not_counted_silently(made, parts, tmp_path):
    shutil.copytree(parts, tmp_path / "parts")
    (tmp_path / "parts" / "good").rename(tmp_path / "parts" / "OK")
    heard = []
    vitkit.evaluate(made, tmp_path / "parts", progress=lambda each: heard.append(str(each)))
    (sentence,) = (each for each in heard if "none of the classes is named good" in each)
    assert "(OK, spot), so all 28 images count as unlike the good ones" in sentence


def test_images_that_chose_the_threshold_do_not_measure_it(made):
    assert [metric.name for metric in made.good.figures] == ["auroc", "missed", "good", "different"]
    assert "called unlike" not in str(made)
    record = json.loads((made.run_dir / "good_images.json").read_text())
    assert "false_alarms" not in record["metrics"]


@pytest.fixture(scope="module")
def bottles(parts, tmp_path_factory):
    """The parts as MVTec's data sets have them: train/good, test/good, test/spot and ground_truth/spot."""
    root = tmp_path_factory.mktemp("bottles") / "bottle"
    shutil.copytree(parts / "spot", root / "test" / "spot")
    for name, files in (("train", range(20)), ("test", range(20, 24))):
        folder = root / name / "good"
        folder.mkdir(parents=True)
        for i in files:
            shutil.copy(parts / "good" / f"{i:02}.png", folder)
    (root / "ground_truth" / "spot").mkdir(parents=True)
    for i in range(4):
        mask = np.zeros((SIDE, SIDE), np.uint8)
        mask[8 + 8 * i : 20 + 8 * i, 40:52] = 255
        (root / "ground_truth" / "spot" / f"{i}_mask.png").write_bytes(encoded(mask, "PNG"))
    return root


@pytest.fixture(scope="module")
def of_bottles(bottles, pretrained, tmp_path_factory):
    """The model of the good bottles."""
    run = tmp_path_factory.mktemp("of_bottles") / "run"
    return vitkit.finetune(pretrained, bottles, workdir=run, device="cpu", quiet=True)


def test_parts_good_class_and_ground_truth_are_found(of_bottles, bottles):
    assert of_bottles.labels == ("good", "spot") and of_bottles.good.used == 20
    names = [metric.name for metric in of_bottles.good.test]
    assert names == ["auroc", "aupro", "false_alarms", "missed", "good", "different"]
    assert "overlaps with" in str(of_bottles)
    found = vitkit.evaluate(of_bottles, bottles, quiet=True)
    at_least(found["aupro"], 0.9)
    # In bfloat16, where the CPU has it, the rounding depends on the images of a batch
    assert found["aupro"] == pytest.approx(of_bottles.good.test[1].value, abs=1e-4)
    assert found["different"] == 4 and found["good"] == 4


def test_masks_are_found_or_given(of_bottles, bottles, tmp_path):
    found = vitkit.evaluate(of_bottles, bottles, quiet=True)
    masks = bottles / "ground_truth"
    given = vitkit.evaluate(of_bottles, bottles / "test", masks=masks, quiet=True)
    assert given.metrics == found.metrics
    shutil.copytree(bottles / "test", tmp_path / "test")
    assert "aupro" not in [
        metric.name for metric in vitkit.evaluate(of_bottles, tmp_path / "test", quiet=True).metrics
    ]
    paths = sorted((tmp_path / "test").glob("*/*"))
    classifier = vitkit.load(of_bottles.run_dir, quiet=True)
    scores = classifier.features(classifier.batch(paths))[:, 0].numpy()
    truth = [path.parent.name == "spot" for path in paths]
    assert found["auroc"] == pytest.approx(roc_auc_score(truth, scores), abs=1e-9)


def test_what_does_not_go_with_masks_gets_a_sentence(of_bottles, bottles, pretrained, tmp_path):
    masks = {"masks": str(bottles / "ground_truth"), "quiet": True}
    with pytest.raises(ValueError, match="`legend` and `ignore` are for models that classify"):
        vitkit.evaluate(of_bottles, bottles, ignore=255, **masks)
    with pytest.raises(ValueError, match="`report`, `evals` measure something else"):
        vitkit.evaluate(
            of_bottles, bottles, evals="classification", report=tmp_path / "a.json", **masks
        )
    settings = {"normal": "good", "workdir": tmp_path / "run", **masks}
    with pytest.raises(ValueError, match="a test part are defective, and .*/train has none"):
        vitkit.finetune(pretrained, bottles / "train", **settings)
    with pytest.raises(ValueError, match="give these with `masks`, and without `normal`"):
        vitkit.finetune(pretrained, bottles, ignore=255, **settings)


def test_a_model_at_chance_is_called_so(pretrained, parts, tmp_path):
    """Others that are as the good ones are."""
    shutil.copytree(parts / "good", tmp_path / "parts" / "good")
    (tmp_path / "parts" / "bad").mkdir()
    for i in range(6):
        path = tmp_path / "parts" / "bad" / f"{i}.png"
        path.write_bytes(encoded(stripes(200 + i), "PNG"))
    settings = {"normal": "good", "device": "cpu", "quiet": True}
    found = vitkit.finetune(pretrained, tmp_path / "parts", workdir=tmp_path / "run", **settings)
    assert found.metric.interval[0] <= 0.5
    assert "does not tell bad from good clearly better than chance" in str(found)


def test_several_kinds_of_defects_are_one_class(made, parts, tmp_path):
    for kind, name in (("good", "good"), ("scratch", "spot"), ("dent", "spot")):
        folder = tmp_path / "test" / kind
        folder.mkdir(parents=True)
        for path in sorted((parts / name).iterdir())[:2]:
            (folder / path.name).write_bytes(path.read_bytes())
    found = vitkit.evaluate(made, tmp_path / "test", quiet=True)
    assert found["good"] == 2 and found["different"] == 4 and found["missed"] == 0.0


def test_a_map_says_where(made, parts):
    classifier = vitkit.load(made.run_dir, quiet=True)
    for i in range(4):
        images = classifier.batch(parts / "spot" / f"{i}.png")
        with torch.inference_mode():
            distances = classifier.model.distances(classifier.preprocessing.normalise(images))
        distances = distances[0].numpy()
        shares = anomaly_map(classifier, images)[0].numpy()
        middles = np.arange(8) * 8 + 4  # of the patches, in pixels
        down = np.abs(middles - 14 - 8 * i)[:, None]
        across = np.abs(middles - 46)
        is_inside = (down < 6) & (across < 6)
        at_least(shares[is_inside].min(), 0.6)
        at_least(distances[is_inside].mean() / distances[(down > 18) | (across > 18)].mean(), 3)


def test_regions_lie_on_the_defects(made, parts, tmp_path):
    for name in ("regions.csv", "regions.json"):
        path = tmp_path / name
        vitkit.predict(made, parts / "spot", regions=path, attention=tmp_path / "maps", quiet=True)
    with (tmp_path / "regions.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    coco = json.loads((tmp_path / "regions.json").read_text())
    assert coco["categories"] == [{"id": 1, "name": "spot"}]
    assert {(image["width"], image["height"]) for image in coco["images"]} == {(64, 64)}
    assert len(coco["annotations"]) == len(rows)
    for i in range(4):
        own = [row for row in rows if row["name"].endswith(f"spot/{i}.png")]
        left, top, width, height, score = (
            float(own[0][key]) for key in ("left", "top", "width", "height", "score")
        )
        assert left < 46 < left + width and top < 14 + 8 * i < top + height
        assert score == max(float(row["score"]) for row in own) and 0.5 < score <= 1
    assert len(list((tmp_path / "maps").iterdir())) == 4


def test_regions_are_of_models_of_good_images(pretrained, parts, tmp_path):
    with pytest.raises(ValueError, match="`regions` are of a model of good images"):
        vitkit.predict(pretrained, parts / "spot", regions=tmp_path / "regions.csv", quiet=True)
    with pytest.raises(ValueError, match=r"`regions` is .*regions.txt; it is a .csv file"):
        vitkit.predict(pretrained, parts / "spot", regions=tmp_path / "regions.txt", quiet=True)


def test_a_picture_of_the_map_is_red_on_the_defect(made, tmp_path):
    """At the image's own resolution and proportions."""
    pixels = np.repeat(np.repeat(stripes(100, (40, 8)), 8, 0), 10, 1)  # 512 x 640
    (tmp_path / "large.png").write_bytes(encoded(pixels, "PNG"))
    vitkit.predict(made, tmp_path / "large.png", attention=tmp_path / "maps", quiet=True)
    (path,) = (tmp_path / "maps").iterdir()
    with Image.open(path) as picture:
        drawn = np.asarray(picture.convert("RGB")).astype(int)
    assert drawn.shape == (512 + LINE, 2 * 640, 3)
    plain, red = drawn[14 * 8, 46 * 10], drawn[14 * 8, 640 + 46 * 10]
    assert plain[1] > 240 and red[1] < 140 and red[0] > 200  # white, and red


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"normal": "goood"}, "`normal` is 'goood', and the classes of .* are good, spot"),
        ({"normal": "good", "preset": "none"}, "`normal='good'` goes with `preset='quick'`"),
        ({"normal": "good", "portable": True}, "`fast` and `portable` are for classifiers"),
    ],
)
def test_what_cannot_be_asked_gets_a_sentence(settings, sentence, pretrained, parts, tmp_path):
    with pytest.raises(ValueError, match=sentence):
        vitkit.finetune(pretrained, parts, workdir=tmp_path / "run", quiet=True, **settings)


def test_settings_of_a_training_are_named(pretrained, parts, tmp_path):
    heard = []
    vitkit.finetune(
        pretrained,
        parts / "good",
        workdir=tmp_path / "run",
        device="cpu",
        length="3epochs",
        optim__lr=0.1,
        data__subset=0.5,
        minutes=3,
        precision="float32",
        progress=lambda each: heard.append(str(each)),
    )
    (sentence,) = (each for each in heard if "changes nothing" in each)
    assert (
        "not trained, so `data.subset`, `optim.lr`, `length`, `minutes` changes nothing" in sentence
    )


def test_one_good_image_is_not_enough(pretrained, folder, tmp_path):
    one = folder({"good/1.png": 40})
    with pytest.raises(ValueError, match="has 1 image of good .* at least 2 are needed"):
        vitkit.finetune(pretrained, one, workdir=tmp_path / "run", quiet=True)


def test_a_class_can_still_be_told_from_another(pretrained, parts, tmp_path):
    """Without `normal`, two classes are a classifier."""
    run = tmp_path / "run"
    classifier = vitkit.finetune(pretrained, parts, workdir=run, minutes=0.01, quiet=True)
    assert classifier.good is None and classifier.answer is not None


def test_an_exported_copy_is_kept_for_its_run(made):
    """`predict` looks for it there."""
    assert run_of(made.run_dir) == run_of(made.run_dir / "model") == made.run_dir


@pytest.mark.slow
def test_an_exported_file_has_the_score_and_the_map(shared, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    pytest.importorskip("openvino")
    weights = shared("weights/vit_tiny_patch16_224.augreg_in21k_ft_in1k.safetensors")
    data = every(5, shared("data/defects_solar-train.parquet"), tmp_path / "learned.parquet")
    test = every(3, shared("data/defects_solar-test.parquet"), tmp_path / "tested.parquet")
    made = vitkit.finetune(
        weights, data, image=(96, 96), workdir=tmp_path / "run", precision="float32", quiet=True
    )
    assert made.labels == ("good", "defective")
    path = tmp_path / "model.onnx"
    exported = vitkit.export(made, output=path, data=test, quiet=True)
    openvino = vitkit.export(made, output=path.with_suffix(".xml"), data=test, quiet=True)
    classifier = vitkit.load(made.run_dir, quiet=True)
    source = open_source(test)
    images = classifier.batch([source.picture(i) for i in range(0, len(source), 2)])
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    logits, maps = session.run(["logits", "anomaly_map"], {"images": images.numpy()})
    expected = anomaly_map(classifier, images).numpy()
    assert (expected > 0.5).any() and (expected < 0.1).any()
    threshold, scale = made.good.threshold.value, made.good.threshold.scale
    given = threshold + scale * (logits[:, 1] - logits[:, 0])
    at_most(np.abs(given - classifier.features(images)[:, 0].numpy()).max(), 1e-4)
    at_most(np.abs(maps - expected).max(), 1e-4)
    for agreement in (exported.agreement, openvino.agreement):
        at_most(agreement.scores, 1e-4)
        at_most(agreement.maps, 1e-4)
    assert "anomaly scores differ by" in str(exported)

    # The file is measured as the model is
    of_model = vitkit.evaluate(made, test, quiet=True)
    of_file = vitkit.evaluate(path, test, quiet=True)
    assert of_file["auroc"] == pytest.approx(of_model["auroc"], abs=1e-3)
    at_least(of_model["auroc"], 0.7)
    learned = [vitkit.evaluate(each, data, quiet=True)["in_memory"] for each in (made, path)]
    assert learned == [made.good.used] * 2  # what is in memory, the file knows as well

    # It says where images are defective, also if it prepares whole pictures itself
    whole = tmp_path / "whole.onnx"
    vitkit.export(made, output=whole, data=test, preprocessing=True, quiet=True)
    given = {}
    for name, model in {"model": made, "file": path, "whole": whole}.items():
        regions = tmp_path / f"{name}.json"
        looks = tmp_path / name
        vitkit.predict(
            model,
            test,
            limit=20,
            regions=regions,
            attention=looks,
            precision="float32",  # exported files compute in it
            quiet=True,
        )
        given[name] = json.loads(regions.read_text())["annotations"]
        pictures = sorted(each.name for each in looks.iterdir())
        assert pictures == sorted(each.name for each in (tmp_path / "model").iterdir())
        assert len(pictures) == 20
    assert len(given["model"]) > 5
    for annotations in (given["file"], given["whole"]):
        for each, expected in zip(annotations, given["model"], strict=True):
            for key in ("image_id", "bbox", "area"):
                assert each[key] == pytest.approx(expected[key])
            at_most(abs(each["score"] - expected["score"]), 1e-3)
    masks = tmp_path / "model.json"
    areas = [vitkit.evaluate(each, test, masks=masks, quiet=True)["aupro"] for each in (made, path)]
    at_most(abs(areas[0] - areas[1]), 2e-3)


def every(step: int, path, new):
    """A file with some of a file's images."""
    table = pq.read_table(path)
    pq.write_table(table.take(list(range(0, len(table), step))), new)
    return new


def test_images_are_turned_if_the_good_ones_are(pretrained, tmp_path):
    """Few images, turned differently, are remembered in four positions; images of one position are not."""
    said = []
    for turns in (0, 1):
        folder = tmp_path / f"turned-{turns}" / "good"
        folder.mkdir(parents=True)
        for i in range(4):
            pixels = np.rot90(stripes(i), turns * i).copy()
            (folder / f"{i}.png").write_bytes(encoded(pixels, "PNG"))
        heard = []
        run = tmp_path / f"run-{turns}"
        vitkit.finetune(pretrained, folder, workdir=run, progress=heard.append)
        said.append(any("remembered in four positions" in str(each) for each in heard))
    assert said == [False, True]


def test_images_of_one_part_are_left_out_together(pretrained, parts, tmp_path):
    shutil.copytree(parts / "good", tmp_path / "good")
    table = tmp_path / "table.csv"
    settings = {"workdir": tmp_path / "run", "device": "cpu", "quiet": True}

    def write(parts: int) -> None:
        rows = [f"good/{i:02}.png,good,{i % parts}" for i in range(24)]
        table.write_text("\n".join(["file_name,label,part", *rows]))

    write(12)
    made = vitkit.finetune(pretrained, table, columns=Columns(group="part"), **settings)
    assert made.good.threshold.images == 12 and made.good.used == 24
    assert "by 12 groups of images that were left out" in str(made)
    write(1)
    with pytest.raises(ValueError, match="all 24 images of good are of one group; at least 2"):
        vitkit.finetune(pretrained, table, columns=Columns(group="part"), **settings)


def write(folder, images):
    """Image files by name: arrays of pixels, or bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in images.items():
        if isinstance(content, np.ndarray):
            content = encoded(content, "PNG")
        (folder / name).write_bytes(content)
    return folder


def heard_of(pretrained, data, run, **settings):
    """The model, and what was said."""
    heard = []
    made = vitkit.finetune(
        pretrained,
        data,
        workdir=run,
        device="cpu",
        progress=lambda each: heard.append(str(each)),
        **settings,
    )
    return made, " ".join(heard)


@pytest.mark.slow
def test_copies_are_left_out_together(pretrained, parts, tmp_path):
    """Each would be in memory by the other, and the threshold 0."""
    good = tmp_path / "good"
    shutil.copytree(parts / "good", good)
    for path in sorted(good.iterdir()):
        shutil.copy(path, good / f"copy-{path.name}")
    run = tmp_path / "run"
    made, said = heard_of(pretrained, good, run, data__groups="none")
    assert "24 good images are copies of others, and left out with these" in said
    alone = vitkit.finetune(
        pretrained, parts / "good", workdir=tmp_path / "alone", device="cpu", quiet=True
    )
    assert made.good.threshold.images == alone.good.threshold.images == 24
    assert made.good.threshold.value == pytest.approx(alone.good.threshold.value, rel=1e-3)


@pytest.mark.slow
def test_shots_of_a_burst_are_left_out_together(pretrained, tmp_path):
    draws = np.random.default_rng(0)
    shots = {}
    for part in range(24):
        scene = np.asarray(
            Image.fromarray(draws.integers(0, 256, (6, 6, 3), dtype=np.uint8)).resize((SIDE, SIDE))
        )
        for shot in range(3):
            noise = draws.normal(0, 3, scene.shape)
            shots[f"{part:02}-{shot}.png"] = (scene + noise).clip(0, 255).astype(np.uint8)
    made, said = heard_of(pretrained, write(tmp_path / "good", shots), tmp_path / "run")
    assert "24 bursts of 3 photographs" in said and "they are left out together" in said
    assert made.good.threshold.images == 24 and made.good.used == 72


def test_good_images_that_are_all_one_get_a_sentence(pretrained, tmp_path):
    same = write(tmp_path / "good", {f"{i}.png": stripes(0) for i in range(5)})
    with pytest.raises(
        ValueError, match="all 5 good images are linked by copies and groups, as if"
    ):
        vitkit.finetune(pretrained, same, workdir=tmp_path / "run", device="cpu", quiet=True)


def test_images_that_look_like_one_burst_count_alone_and_it_is_said(pretrained, parts, tmp_path):
    few = write(tmp_path / "good", {f"{i}.png": stripes(i) for i in range(4)})
    made, said = heard_of(pretrained, few, tmp_path / "run")
    assert "all 4 good images look like shots of one burst, and each counts as an indep" in said
    assert made.good.threshold.images == 4


def test_grey_of_16_bits_several_sizes_and_broken_images(pretrained, tmp_path):
    images = {f"{i}.png": stripes(i) for i in range(6)}
    images["wide.png"] = np.tile(stripes(7), (1, 2, 1))
    grey = np.asarray(Image.fromarray(stripes(8)).convert("L")).astype(np.uint16) * 257
    images["grey.png"] = encoded(grey, "PNG")
    images["broken.png"] = encoded(stripes(9), "PNG")[:99]
    made, said = heard_of(pretrained, write(tmp_path / "good", images), tmp_path / "run")
    assert made.good.used == 8 and "left out: " in said and "broken.png" in said
    answers = vitkit.predict(made, tmp_path / "good" / "grey.png", quiet=True)
    assert answers[0].label in ("good", "unlike")


def test_arrays_with_nan_are_no_images(pretrained, tmp_path):
    folder = tmp_path / "good"
    folder.mkdir()
    for i in range(4):
        pixels = stripes(i).astype(np.float32) / 255
        if i == 3:
            pixels[0, 0, 0] = np.nan
        np.save(folder / f"{i}.npy", pixels)
    made, said = heard_of(pretrained, folder, tmp_path / "run")
    assert made.good.used == 3 and "left out: " in said and "3.npy" in said


def test_damaged_weights_are_noticed(pretrained, parts, tmp_path):
    classifier = vitkit.load(pretrained, quiet=True)
    with torch.no_grad():
        classifier.model.blocks[0].norm1.weight[0] = float("nan")
    damaged = str(save(classifier, tmp_path / "damaged"))
    with pytest.raises(ValueError, match="NaN"):
        vitkit.finetune(damaged, parts / "good", workdir=tmp_path / "run", quiet=True)


def test_listed_images_are_left_out(pretrained, parts, tmp_path):
    listed = tmp_path / "listed.txt"
    listed.write_text("".join(f"{parts / 'good' / f'{i:02}.png'}\n" for i in range(4)))
    made, said = heard_of(pretrained, parts / "good", tmp_path / "run", data__exclude=str(listed))
    assert made.good.used == 20 and "4 images that" in said and "are left out" in said


def test_a_good_class_may_be_named_as_the_others_are(pretrained, parts, tmp_path):
    shutil.copytree(parts, tmp_path / "parts")
    (tmp_path / "parts" / "good").rename(tmp_path / "parts" / "unlike")
    shutil.copytree(parts / "spot", tmp_path / "parts" / "dent")
    made, _ = heard_of(pretrained, tmp_path / "parts", tmp_path / "run", normal="unlike")
    assert made.labels == ("unlike", "other")


def test_it_is_no_pretrained_model(made, parts, tmp_path):
    """Its own weights and one number are no beginning for classes, masks or features."""
    begin = "is a model of good images: .* begin with those weights .pretrained"
    for settings in ({}, {"normal": "good"}, {"preset": "none"}, {"masks": str(parts)}):
        with pytest.raises(ValueError, match=begin):
            vitkit.finetune(made, parts, workdir=tmp_path / "run", quiet=True, **settings)
    number = "one number of an image, its anomaly score.* made of .pretrained"
    with pytest.raises(ValueError, match=number):
        vitkit.features(made, parts, output=tmp_path / "features.npz", quiet=True)
    with pytest.raises(ValueError, match=number):
        vitkit.evaluate(made, parts, evals="neighbours", quiet=True)


def test_commands_of_trained_runs_say_what_it_is(made):
    with pytest.raises(
        ValueError, match="has a model and no record of a training: a model of good"
    ):
        vitkit.report(made.run_dir)
    with pytest.raises(ValueError, match=r"accuracy of classifiers, and this is a model of good"):
        vitkit.faster(made.run_dir, quiet=True)


def test_it_is_not_taught_classes(made, parts):
    with pytest.raises(ValueError, match="remembers the patches of good images, not classes"):
        vitkit.teach(made, add=[str(parts / "good")], quiet=True)


def test_images_are_read_at_their_own_resolution_up_to_twice_the_models(pretrained, folder):
    recipe = recipe_of(pretrained, str(folder({"a/1.png": 100, "b/1.png": 100})), "quick")
    for sides, expected in (([60, 60], 64), ([100, 101, 90], 96), ([900, 900], 128)):
        files = {f"good/{i}.png": side for i, side in enumerate(sides)}
        (source,) = open_parts(folder(files, f"of-{expected}")).sources.values()
        own = at_own_resolution(recipe, source)
        assert own.model.image == own.data.preprocessing.size == (expected, expected)


def test_another_temperature_keeps_the_threshold(made, parts):
    """What is done to a head of classes is done to this one."""
    from vitkit.weights import with_temperature

    classifier = vitkit.load(made.run_dir, quiet=True)
    softer = with_temperature(classifier, 2.0)
    images = classifier.batch(sorted((parts / "spot").iterdir()))
    torch.testing.assert_close(softer.logits(images) * 2, classifier.logits(images))
    assert replace(softer, origin={}).labels == classifier.labels
