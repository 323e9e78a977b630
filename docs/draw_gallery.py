"""Draws the pictures of docs/gallery.md that show runs, figures and pages, each as its command makes it:

    python docs/draw_gallery.py WEIGHTS EUROSAT IMAGENET [--only looked inspected ...]

WEIGHTS is AugReg's ViT-Ti/16, a file; EUROSAT a data set of satellite images with a test part, IMAGENET one of
photographs with the model's classes (of which no picture is shown). All photographs that are shown come with
scikit-image and scikit-learn (docs/gallery.md has the credits), or are EuroSAT's (MIT). It needs playwright for Python,
Chromium, node_modules/onnxruntime-web in this folder or one above, and vitkit[serve,export]. Runs are kept in
--workdir, and used again. The pages show file names as they are given, so give relative ones.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import draw_inspected
import draw_looked
from PIL import Image
from playwright.sync_api import Page, sync_playwright
from sklearn.datasets import load_digits, load_sample_images

DOCS = Path(__file__).parent
ADDRESS = re.compile(r"http://\S+")
DIGITS = "zero one two three four five six seven eight nine".split()
LABELLED = 400  # digits to label
ANSWERED = 40  # single digits before the picture of one
SETTLED = 1_500  # milliseconds after which a page no longer moves


class Gallery:
    """What the pictures are made of, and a folder for it."""

    def __init__(self, options: argparse.Namespace, folder: Path, browser) -> None:
        self.weights = options.weights
        self.eurosat = options.eurosat
        self.imagenet = options.imagenet
        self.workdir = options.workdir
        self.folder = folder
        self.browser = browser
        self.photographs = write_photographs(folder / "photographs")

    def run_of(self, name: str, *words: str) -> Path:
        """The directory of a run, which is made if it is not there."""
        run = self.workdir / name
        if not (run / "report.html").exists():
            vitkit(*words, "--workdir", run)
        return run

    def digits(self) -> Path:
        return self.run_of("digits", "train", "digits")

    def satellites(self) -> Path:
        return self.run_of("eurosat", "finetune", self.weights, self.eurosat)

    @contextmanager
    def page(self, address: str, width: int, height: int, **context) -> Iterator[Page]:
        """A page of the browser."""
        opened = self.browser.new_context(viewport={"width": width, "height": height}, **context)
        page = opened.new_page()
        page.goto(address)
        page.wait_for_timeout(SETTLED)
        yield page
        opened.close()


def write_photographs(folder: Path) -> dict[str, Path]:
    """Six photographs that may be passed on, by name."""
    import skimage

    data = Path(skimage.__file__).parent / "data"
    pictures = {}
    for name, file in (
        ("cat", "chelsea.png"),
        ("rocket", "rocket.jpg"),
        ("cup", "coffee.png"),
        ("astronaut", "astronaut.png"),
    ):
        pictures[name] = Image.open(data / file).convert("RGB")
    temple, flower = load_sample_images().images
    pictures["flower"] = Image.fromarray(flower)
    pictures["temple"] = Image.fromarray(temple)
    folder.mkdir()
    paths = {}
    for name in ("cat", "rocket", "flower", "cup", "astronaut", "temple"):
        paths[name] = folder / f"{name}.jpg"
        pictures[name].save(paths[name], quality=92)
    return paths


def vitkit(*words: str | Path) -> None:
    """A command, which must succeed."""
    subprocess.run([sys.executable, "-m", "vitkit", *map(str, words)], check=True)


@contextmanager
def serving(*words: str | Path) -> Iterator[str]:
    """The address of a command that serves a page, and goes on until the block ends."""
    command = [sys.executable, "-u", "-m", "vitkit", *map(str, words)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            if found := ADDRESS.search(line):
                break
        else:
            raise RuntimeError(f"vitkit {words[0]} has printed no address")
        yield found[0]
        process.terminate()


def saved_as_jpeg(page: Page, name: str, **how) -> None:
    page.screenshot(path=DOCS / name, type="jpeg", quality=85, **how)


# One function for each group of pictures


def looked(gallery: Gallery) -> None:
    draw_looked.main(gallery.weights, list(map(str, gallery.photographs.values())))


def inspected(gallery: Gallery) -> None:
    draw_inspected.draw(gallery.weights, str(gallery.folder / "photographs"))


def inspect_page(gallery: Gallery) -> None:
    """Layer 7, with a patch at an eye of the cat."""
    folder = gallery.folder / "inspect"
    files = [gallery.photographs[name] for name in ("cat", "cup", "rocket", "astronaut")]
    vitkit("inspect", gallery.weights, *files, "--output", folder)
    with gallery.page((folder / "inspect.html").as_uri(), 1100, 740) as page:
        page.locator("#layer").fill("6")
        box = page.locator("#picture").bounding_box()
        page.locator("#picture").click(
            position={"x": box["width"] * 3.5 / 14, "y": box["height"] * 4.5 / 14}
        )
        page.evaluate("scrollTo(0, 0)")
        page.wait_for_timeout(SETTLED)
        saved_as_jpeg(page, "inspect-page.jpg")


def run_reports(gallery: Gallery) -> None:
    """The pages of two finished runs, the upper part of one as a picture, and a sheet of its answers."""
    for run in (gallery.digits(), gallery.satellites()):
        vitkit("report", run)  # with everything
        shutil.copy(run / "report.html", DOCS / f"report-{run.name}.html")
    with gallery.page((DOCS / "report-digits.html").as_uri(), 960, 2145) as page:
        page.screenshot(path=DOCS / "run-report.png")
    fewer_colours(DOCS / "run-report.png")
    sheet = gallery.folder / "digits.png"
    vitkit("predict", gallery.digits(), "digits", "--limit", "32", "--sheet", sheet)
    shutil.copy(sheet, DOCS)


def evaluation_report(gallery: Gallery) -> None:
    file = gallery.folder / "report.html"
    vitkit("evaluate", gallery.weights, gallery.imagenet, "--report", file)
    with gallery.page(file.as_uri(), 860, 1400) as page:
        page.screenshot(path=DOCS / "report.png")
    fewer_colours(DOCS / "report.png")


def app(gallery: Gallery) -> None:
    with (
        serving("app", "--no-open", gallery.weights) as address,
        gallery.page(address, 1200, 900) as page,
    ):
        drop(page, gallery.photographs["cup"])
        saved_as_jpeg(page, "app-page.jpg")
        page.locator(".model .frame img").click(position={"x": 200, "y": 130})
        page.wait_for_timeout(3 * SETTLED)
        saved_as_jpeg(page, "app-clicked.jpg")
    two = ("app", "--no-open", gallery.weights, gallery.satellites())
    with serving(*two) as address, gallery.page(address, 1400, 1060) as page:
        drop(page, gallery.photographs["cat"])
        saved_as_jpeg(page, "app-two.jpg")


def drop(page: Page, photograph: Path) -> None:
    """Give the app a photograph, and wait for its answer."""
    page.locator("#file").set_input_files(str(photograph))
    page.locator(".model .frame img").first.wait_for()
    page.wait_for_timeout(3 * SETTLED)


def browser_pages(gallery: Gallery) -> None:
    """A page of the published weights, and on a telephone one of the satellite images, to which a cat is unknown."""
    for model, photograph, name, width, how in (
        (gallery.weights, "cup", "page-wide.jpg", 1100, {}),
        (gallery.satellites(), "cat", "page-narrow.jpg", 420, {"color_scheme": "dark"}),
    ):
        file = gallery.folder / f"{Path(model).stem}.html"
        vitkit("export", model, "-o", file)
        with gallery.page(file.as_uri(), width, 700, **how) as page:
            page.locator("#choose:enabled").wait_for()
            page.locator("#file").set_input_files(str(gallery.photographs[photograph]))
            page.locator("#looked").wait_for()
            page.wait_for_timeout(SETTLED)
            saved_as_jpeg(page, name, full_page=True)


def label(gallery: Gallery) -> None:
    """Handwritten digits, labelled as a person would, until there is a screen of one class with another in it."""
    folder = gallery.folder / "digits"
    folder.mkdir()
    truth = {}
    found = load_digits()
    for number in range(LABELLED):
        ink = Image.fromarray((255 - found.images[number] * 15.9).astype("uint8"))
        name = f"{number:04}.png"
        ink.resize((128, 128), Image.Resampling.BICUBIC).save(folder / name)
        truth[name] = DIGITS[found.target[number]]
    words = ("label", folder, "--model", gallery.weights, "--workdir", gallery.folder / "labels")
    with serving(*words) as address, gallery.page(address, 1100, 700) as page:
        has_one = has_screen = False
        answered = 0
        while not (has_one and has_screen):
            wait_for_question(page)
            asked = page.evaluate("question")
            names = [each["name"] for each in asked["photographs"]]
            if asked["how"] == "screen":
                others = [i for i, name in enumerate(names) if truth[name] != asked["label"]]
                for i in others:
                    page.locator("#grid > *").nth(i).click()
                if len(others) == 1 and not has_screen:
                    saved_as_jpeg(page, "label-screen.jpg")
                    has_screen = True
                page.locator("#confirm").click()
                continue
            if answered >= ANSWERED and truth[names[0]] == "seven" and not has_one:
                saved_as_jpeg(page, "label-one.jpg")
                has_one = True
            answered += 1
            page.locator("#label").fill(truth[names[0]])
            page.locator("#label").press("Enter")


def wait_for_question(page: Page) -> None:
    """Until a question is shown with its photographs; answers given sooner are not taken."""
    page.wait_for_timeout(400)
    page.wait_for_function(
        "question && !isBusy && isSeen() && [...document.images].every((image) => image.complete)"
    )


def fewer_colours(file: Path) -> None:
    """A PNG of lines and letters in a third of its bytes."""
    few = Image.open(file).convert("RGB").quantize(128, dither=Image.Dither.NONE)
    few.save(file, optimize=True)


GROUPS: dict[str, Callable[[Gallery], None]] = {
    "looked": looked,
    "inspected": inspected,
    "inspect-page": inspect_page,
    "reports": run_reports,
    "evaluation": evaluation_report,
    "app": app,
    "page": browser_pages,
    "label": label,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("weights")
    parser.add_argument("eurosat")
    parser.add_argument("imagenet")
    parser.add_argument("--only", nargs="+", choices=GROUPS, default=list(GROUPS))
    parser.add_argument("--workdir", type=Path, default=Path("runs/gallery"))
    options = parser.parse_args()
    path = shutil.which("chromium") or shutil.which("google-chrome")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        gallery = Gallery(options, Path(folder), browser)
        for name in options.only:
            GROUPS[name](gallery)
        browser.close()


if __name__ == "__main__":
    main()
