"""A model of every pixel behind HTTP: the masks of `vitkit segment`, their shares and regions, within the limits of
every server."""

import base64
import io
import subprocess
import sys
from contextlib import ExitStack

import numpy as np
import pytest
from pictures import encoded, photograph
from PIL import Image
from served import ask_app, form, make_classifier, make_model_of_masks, running, with_model

import vitkit
from vitkit.apps.serve.functions import app
from vitkit.apps.serve.functions.serve import _log_ready, open_model
from vitkit.apps.serve.http.body import Limits
from vitkit.apps.serve.masks import MOST_REGIONS, classifies_pixels, colours_of, values_of
from vitkit.data.masks.regions import regions
from vitkit.runtimes import eager, map_runtime
from vitkit.system.errors import BadSettings
from vitkit.web import Guard
from vitkit.weights import Hints, save

MODEL = make_model_of_masks()
PHOTOGRAPHS = [encoded(photograph(40, 30 + 7 * i, i)) for i in range(3)]
LABELS = MODEL.labels


@pytest.fixture(scope="module")
def server():
    with running(MODEL) as server:
        yield server


def segment(server, body, kind="image/jpeg", query="", headers=None):
    return server.ask("POST", f"/segment{query}", body, {"Content-Type": kind} | (headers or {}))


def pixels_of(png):
    image = Image.open(io.BytesIO(png))
    assert image.mode == "P"
    return np.asarray(image)


def expected_mask(data):
    (found,) = vitkit.segment(MODEL, data, device="cpu", precision="float32")
    return found.mask


def test_each_image_has_its_own_mask_shares_and_regions(server):
    files = {f"{i}.jpg": data for i, data in enumerate(PHOTOGRAPHS)} | {"x.jpg": b"no"}
    body, kind = form(files)
    answer = segment(server, body, kind, "?smallest=3")
    assert answer.status == 200
    *good, broken = answer.json["segmentations"]
    assert broken["name"] == "x.jpg" and "is not an image" in broken["error"]
    for given, data in zip(good, PHOTOGRAPHS, strict=True):
        mask = pixels_of(base64.b64decode(given["mask"]))
        assert np.array_equal(mask, expected_mask(data))
        assert (given["height"], given["width"]) == mask.shape
        shares = {each["label"]: each["share"] for each in given["classes"]}
        for number, label in enumerate(LABELS):
            assert shares.get(label, 0) == pytest.approx((mask == number).mean(), abs=1e-5)
        assert [each["share"] for each in given["classes"]] == sorted(shares.values(), reverse=True)
        found = [each for each in regions(mask, len(LABELS), 3) if each.number]  # no background
        assert given["region_count"] == len(found) == len(given["regions"])
        for region, own in zip(found, given["regions"], strict=True):
            assert own == {
                "label": LABELS[region.number],
                "box": list(region.box),
                "area": region.area,
            }


def test_the_mask_alone_is_a_png_with_the_colours_of_the_legend(server):
    answer = segment(server, PHOTOGRAPHS[0], query="?answer=png")
    assert answer.status == 200 and answer.headers["content-type"] == "image/png"
    assert np.array_equal(pixels_of(answer.body), expected_mask(PHOTOGRAPHS[0]))
    model = server.ask("GET", "/model").json
    assert model["colours"] == colours_of(LABELS) == ["#000000", "#800000", "#008000"]
    image = Image.open(io.BytesIO(answer.body))
    colours = np.asarray(image.convert("RGB"))[pixels_of(answer.body) == 1]
    assert (colours == (128, 0, 0)).all()


@pytest.mark.parametrize(
    ("query", "status", "words"),
    [
        ("?smallest=0", 422, "smallest is '0'"),
        ("?answer=jpg", 422, "answer is 'jpg'"),
        ("?answer=png", 413, "answer=png is for one"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_a_sentence(server, query, status, words):
    body, kind = form({"a": PHOTOGRAPHS[0], "b": PHOTOGRAPHS[1]})
    answer = segment(server, body, kind, query)
    assert answer.status == status and words in answer.error


def test_a_model_is_asked_by_its_own_path(server):
    answer = server.post(PHOTOGRAPHS[0])
    assert answer.status == 422 and "send it to /segment" in answer.error
    answer = server.ask("POST", "/attention", PHOTOGRAPHS[0], {"Content-Type": "image/jpeg"})
    assert answer.status == 422 and "the model classifies every pixel" in answer.error
    assert segment(server, b"no").status == 422
    description = server.ask("GET", "/openapi.json").json
    described = description["paths"]["/segment"]["post"]
    assert {"image/png", "application/json"} <= set(described["responses"]["200"]["content"])
    assert {each["name"] for each in described["parameters"]} == {"smallest", "answer"}
    assert "SegmentedImage" in description["components"]["schemas"]
    metrics = server.ask("GET", "/metrics").body.decode()
    assert 'path="/segment"' in metrics
    assert server.ask("GET", "/masks.js").status == 200
    with running() as other:
        answer = segment(other, PHOTOGRAPHS[0])
        assert answer.status == 422 and "send it to /predict" in answer.error
        assert "colours" not in other.ask("GET", "/model").json


def test_the_next_step_is_a_path_that_answers(server, capsys):
    assert server.words == ["ready for masks"]
    for word, path in (("ready for masks", "/segment"), ("ready", "/predict")):
        _log_ready("m", "http://here", word)
        assert f"next: curl -F image=@photograph.jpg http://here{path}\n" in capsys.readouterr().err
    _log_ready("m", "http://here", "reloaded")
    assert capsys.readouterr().err == ""


def test_the_limits_and_the_token_are_those_of_every_path():
    with running(MODEL, Limits(size=len(PHOTOGRAPHS[2]) + 10, images=2), token="secret") as server:
        right = {"Authorization": "Bearer secret"}
        assert segment(server, PHOTOGRAPHS[0]).status == 401
        assert segment(server, PHOTOGRAPHS[0], headers=right).status == 200
        body, kind = form(dict.fromkeys("abc", PHOTOGRAPHS[0]))
        assert segment(server, body, kind, headers=right).status == 413
        assert segment(server, PHOTOGRAPHS[0], "text/plain", headers=right).status == 415
    with running(MODEL) as server:
        evil = segment(server, PHOTOGRAPHS[0], headers={"Host": "evil.example"})
        assert evil.status == 421
        evil = segment(server, PHOTOGRAPHS[0], headers={"Origin": "https://evil.example"})
        assert evil.status == 403


def test_a_model_of_another_kind_may_replace_it():
    with running(MODEL) as server:
        assert segment(server, PHOTOGRAPHS[0]).status == 200
        with_model(server, lambda: eager(make_classifier(), "cpu"))
        server.is_ready.clear()
        server.call(server.server.reload)
        assert server.is_ready.wait(30)
        assert segment(server, PHOTOGRAPHS[0]).status == 422
        assert server.post(PHOTOGRAPHS[0]).status == 200


def test_a_run_is_opened_with_what_computes_its_masks(tmp_path):
    save(MODEL, tmp_path / "model")
    opened = open_model(str(tmp_path / "model"), device="cpu")
    assert classifies_pixels(opened) and opened.labels == LABELS
    with pytest.raises(BadSettings, match=r"`runtime='onnx'` computes exported files"):
        open_model(str(tmp_path / "model"), runtime="onnx")


def test_regions_are_listed_up_to_a_limit(monkeypatch):
    monkeypatch.setattr("vitkit.apps.serve.masks.MOST_REGIONS", 2)
    mask = np.zeros((5, 9), np.uint8)
    mask[::2, ::2] = 1
    values = values_of("a", mask, LABELS, 1)
    assert values["region_count"] == 15 and len(values["regions"]) == 2 < MOST_REGIONS


@pytest.mark.slow
def test_an_exported_file_is_served_with_the_same_masks(tmp_path):
    save(MODEL, tmp_path / "model")
    vitkit.export(tmp_path / "model", output=tmp_path / "m.onnx")
    runtime = open_model(str(tmp_path / "m.onnx"))
    assert classifies_pixels(runtime)
    command = "import sys, vitkit.apps.serve.masks; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", command]).returncode == 0
    with running(MODEL) as server:
        with_model(server, lambda: runtime)
        server.is_ready.clear()
        server.call(server.server.reload)
        assert server.is_ready.wait(60)
        answer = segment(server, PHOTOGRAPHS[0], query="?answer=png")
        same = pixels_of(answer.body) == expected_mask(PHOTOGRAPHS[0])
        assert same.mean() > 0.99


def test_a_whole_model_and_a_file_are_told_apart():
    assert classifies_pixels(map_runtime(MODEL, "cpu"))
    assert not classifies_pixels(eager(make_classifier(), "cpu"))
    assert not classifies_pixels(object())


@pytest.mark.slow
def test_the_page_shows_an_image_under_the_colours_of_its_classes(chromium, tmp_path):
    name = "my cells.jpg"
    with running(MODEL) as server, chromium() as browser:
        context = browser.new_context(viewport={"width": 390, "height": 844})
        tab = context.new_page()
        failed = []
        tab.on("pageerror", lambda error: failed.append(str(error)))
        tab.on("console", lambda message: failed.append(message.text))
        tab.goto("http://{}:{}/".format(*server.address))
        tab.get_by_text("3 classes, one for every pixel").wait_for()
        given = {"name": name, "mimeType": "image/jpeg", "buffer": PHOTOGRAPHS[0]}
        tab.set_input_files("#file", [given])
        tab.get_by_text("40 pixels").wait_for()
        legend = tab.locator(".masks ol li")
        assert {"cell", "<b>edge</b>"} & set(legend.locator("label").all_inner_texts())
        assert not tab.locator("#corrections").is_visible()

        # How much of the colours is seen, and of which classes
        tab.get_by_label("Colours").fill("100")
        assert tab.locator("canvas").evaluate("canvas => canvas.style.opacity") == "1"
        for box in tab.locator(".masks ol input").all():
            box.uncheck()
        opaque = (
            "canvas => canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height)"
            ".data.filter((value, i) => i % 4 === 3 && value).length"
        )
        assert tab.locator("canvas").evaluate(opaque) == 0
        with tab.expect_download() as downloading:
            tab.get_by_role("button", name="Download mask").click()
        assert downloading.value.suggested_filename == "my_cells.png"
        downloading.value.save_as(tmp_path / "mask.png")
        mask = pixels_of((tmp_path / "mask.png").read_bytes())
        assert np.array_equal(mask, expected_mask(PHOTOGRAPHS[0]))
        width = tab.evaluate("document.documentElement.scrollWidth")
        assert width <= 390, "the page is wider than a telephone"
        assert failed == []
        context.close()


def test_the_page_of_app_has_the_same_paths_below_its_secret():
    other = make_classifier()
    with ExitStack() as ends:
        services = []
        for model in (MODEL, other):
            services.append(
                ends.enter_context(app._serving(model, Hints(), "auto", "float32", "cpu"))
            )
        page = Guard(app._page(services), "127.0.0.1", secret="s3cret")
        answer = ask_app(page, "POST", "/s3cret/segment?answer=png", PHOTOGRAPHS[0])
        assert np.array_equal(pixels_of(answer.body), expected_mask(PHOTOGRAPHS[0]))
        assert ask_app(page, "POST", "/s3cret/other/segment", PHOTOGRAPHS[0]).status == 422
        assert ask_app(page, "POST", "/s3cret/other/predict", PHOTOGRAPHS[0]).status == 200
        assert ask_app(page, "POST", "/segment", PHOTOGRAPHS[0]).status == 404
        assert ask_app(page, "GET", "/s3cret/masks.js").status == 200


def test_each_time_limit_is_the_one_that_was_given(monkeypatch, tmp_path):
    """The longest time of a request was once that of the end."""
    save(make_classifier(), tmp_path / "model")
    plans = []

    class Noted:
        def __init__(self, plan, bound, ready):
            plans.append(plan)

        def run(self):
            pass

    monkeypatch.setattr("vitkit.apps.serve.functions.serve.Server", Noted)
    monkeypatch.setattr("vitkit.apps.serve.functions.serve.prepare_process", lambda: None)
    vitkit.serve(tmp_path / "model", port=0, seconds=7.0, grace=3.0, delay=2.0)
    (plan,) = plans
    assert (plan.settings.limits.seconds, plan.grace, plan.settings.delay) == (7.0, 3.0, 0.002)
