"""What `vitkit` answers to the first guesses of people who have not read its help.

Each guess is typed in a folder with photographs of two classes, a folder of unsorted ones, a folder of
notes, and a small run that is finished. It is helped if the command does what was meant, or one
sentence says what to type: the answer has the words that such an answer must have, and none of those
that no answer should have, such as Python's own and the frames of the parser.

    python benchmarks/guesses.py [--show N...] --output FILE
"""

import contextlib
import io
import os
import re
import shlex
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import record
from PIL import Image

from vitkit.cli.entry import main

PACKAGES = ("torch", "tyro", "vitkit")
NEVER = (
    r"Traceback|Missing argument|Required options|Parsing error|For full helptext|{None[,}]|'None'"
)
"""What nobody should be answered: Python's words, and the frames that the parser draws."""
TINY = (
    "--length 1steps --batch 8 --optim.warmup 0steps --data.workers 0 --device cpu --model.width 24 "
    "--model.depth 1 --model.mlp 48 --model.heads 2"
)
RUN = f"train scratch photos {TINY} --model.image 32 32 --model.patch 8 --data.preprocessing.size 32 32"
RUN += " --data.preprocessing.resize 0 --workdir run"


class Guess(NamedTuple):
    """What somebody types, and what an answer that helps has."""

    words: str
    helps: str
    """An expression that matches somewhere in the answer."""
    never: str = "$^"
    """One that matches nowhere in it, beside NEVER."""


GUESSES = (
    # Which command
    Guess("gui", r"vitkit app"),
    Guess("demo", r"vitkit app"),
    Guess("webui", r"vitkit app"),
    Guess("heatmap run photo.jpg", r"wrote "),
    Guess("resume run", r"same command again|vitkit train .*--workdir run"),
    Guess("undo", r"nothing is (changed|moved|replaced)|originals stay"),
    Guess("delete run", r"vitkit deletes no files", r"\brm\b"),
    Guess("ls", r"vitkit models"),
    Guess("summary run", r"took summary for vitkit show"),
    Guess("gradcam run photo.jpg", r"wrote "),
    Guess("quantize run", r"vitkit export run .*--precision int8"),
    Guess("download google/vit-base-patch16-224", r"first use|vitkit (show|predict) google/vit-base"),
    Guess("dedupe photos", r"vitkit data (review|stats) photos"),
    Guess("split photos", r"test part|--data.split-seed|vitkit finetune photos"),
    Guess("runs", r"runs/"),
    Guess("dashboard run", r"vitkit report run"),
    Guess("install", r"vitkit doctor|pip install"),
    Guess("photo.jpg", r"vitkit predict"),
    Guess("My\\ Photos/a.jpg", r"vitkit predict .*'My Photos/a.jpg'"),
    Guess("photos/", r"vitkit finetune photos/"),
    # With their settings
    Guess("train --data photos", r"vitkit finetune photos|took .*finetune"),
    Guess("train photos", r"vitkit finetune photos"),
    Guess(f"train scratch photos --image 32 {TINY} --model.patch 8 --workdir a", r"wrote a/model"),
    Guess(f"train scratch photos --model.image 32 {TINY} --model.patch 8 --workdir b", r"wrote b/model"),
    Guess(f"train scratch photos --image 32 --model.patch 8 {TINY} --epochs 1 --workdir c", r"wrote c/model"),
    Guess(f"train scratch photos --model.image 32 32 {TINY} --model.patch 8 8 --workdir d", r"wrote d/model",
          r"are 32 32"),
    Guess(f"train scratch photos {TINY} --model.patch 32 --workdir e", r"wrote e/model"),
    Guess("train scratch photos --model.image", r"--model.image (needs|takes)"),
    Guess("train scratch photos --model.image big", r"--model.image is 'big'"),
    Guess("train digits --optim.lr", r"--optim.lr (needs|takes)"),
    Guess("train digits --optim.lr fast", r"it takes a number"),
    Guess("train scratch photos --gpus 2", r"torchrun"),
    Guess("finetune photos --gpu", r"GPU|cuda"),
    Guess("finetune", r"DATA"),
    Guess("finetune phtos", r"did you mean photos"),
    Guess("finetune photos --help", r"--minutes"),
    # Answers
    Guess("predict run photos", r"class +probability", r"preprocess|bfloat16|normalis"),
    Guess("predict run photos --csv", r"--to .*\.csv"),
    Guess("predict run photos --csv answers.csv", r"answers.csv"),
    Guess("predict run photos --conf 0.8", r"--sure 0.8"),
    Guess("predict run photos --output answers.csv", r"answers.csv"),
    Guess("predict run notes", r"1 \.txt file\b"),
    Guess("predict run more//cats", r"more/cats", r"more//cats"),
    Guess("predict My\\ Photos run", r"class +probability"),
    Guess("predict My\\ Photos more/", r"'My Photos'", r"predict \S+ My Photos"),
    Guess("predict run", r"IMAGE is missing"),
    Guess("predict photo.jpg", r"vitkit predict \S+ photo.jpg"),
    Guess("sort photos", r"vitkit sort \S+ photos"),
    Guess("sort run photos --dry-run", r"vitkit predict run photos"),
    Guess("batch run photos --to parts", r"--into parts"),
    # Data, accuracy
    Guess("data check photos", r"took .*vitkit data (stats|review)|vitkit data (stats|review) photos"),
    Guess("data review photos", r"vitkit data review photos \S+"),
    Guess("evaluate run photos --limit 3", r"3 of 4 images"),
    Guess("test run photos --batch-size 8", r"right|top1"),
    # Files
    Guess("export run --format onnx", r"run\S*\.onnx"),
    Guess("export run onnx", r"run\S*\.onnx|-o \S+\.onnx"),
    Guess("convert run timm", r"--to (timm|FORMAT)"),
    # Help
    Guess("app --help", r"\[OTHER\]"),
    Guess("inspect --help-all", r"--figures"),
    Guess("export --help", r"--output"),
)  # fmt: skip


def prepare() -> None:
    """The folders of whoever types, here: photographs, unsorted ones, notes, and a run."""
    random = np.random.default_rng(0)
    for name, colour in (("red", (200, 60, 60)), ("blue", (60, 60, 200))):
        for i in range(12):
            _photograph(Path("photos", name, f"{i}.jpg"), colour, random)
    for file in ("photo.jpg", "My Photos/a.jpg", "My Photos/b.jpg", "more/c.jpg"):
        _photograph(Path(file), (90, 90, 90), random)
    Path("notes").mkdir()
    Path("notes/read.txt").write_text("no photograph")
    Path("more/cats").mkdir()
    typed(RUN)


def _photograph(path: Path, colour: tuple[int, int, int], random: np.random.Generator) -> None:
    """A small picture of this colour."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.clip(random.normal(colour, 40, (40, 48, 3)), 0, 255).astype(np.uint8)
    Image.fromarray(pixels).save(path)


def typed(words: str) -> str:
    """All that `vitkit WORDS` prints, and its exit status."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            status = main(shlex.split(words))
        except SystemExit as end:
            status = end.code
        except Exception as error:  # which a user would see as a traceback
            status = f"Traceback: {error!r}"
    return f"{said.getvalue()}[{status}]"


def helped(guess: Guess, answer: str) -> bool:
    """Whether the answer helps who made the guess."""
    line = " ".join(answer.split())
    return bool(
        re.search(guess.helps, line)
        and not re.search(NEVER, line)
        and not re.search(guess.never, line)
    )


def main_of_benchmark() -> None:
    arguments = record.parser(__doc__)
    arguments.add_argument("--show", type=int, nargs="*", help="print these answers whole; all")
    arguments.add_argument("--output", type=Path, help="file for the results, JSON")
    given = arguments.parse_args()
    output = given.output.absolute() if given.output else None

    rows = []
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        prepare()
        for number, guess in enumerate(GUESSES, start=1):
            answer = typed(guess.words)
            is_helped = helped(guess, answer)
            rows.append(
                {
                    "words": guess.words.replace(TINY, "..."),
                    "helped": is_helped,
                    "answer": _brief(answer),
                }
            )
            if given.show is not None and (not given.show or number in given.show):
                print(f"--- {number} vitkit {guess.words}\n{answer}")
            print(f"{number:2} {'yes' if is_helped else 'NO '} vitkit {rows[-1]['words']}")
        os.chdir(here)
    count = sum(row["helped"] for row in rows)
    print(f"{count} of {len(rows)} are helped")
    result = record.about("answers to first guesses at the command line", PACKAGES)
    record.write(result | {"helped": count, "guesses": rows}, output)


def _brief(answer: str) -> str:
    """The last line of an answer that says something, and the exit status."""
    text, _, status = answer.rstrip().rpartition("[")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    last = lines[-1] if lines else ""
    return f"{last[:200]} [{status}"


if __name__ == "__main__":
    main_of_benchmark()
