"""Teaching and unlearning, against fits from the beginning; the memory's file; the command."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from pictures import make_photographs
from safetensors.torch import load_file
from tables import saved

from vitkit.cli.entry import main
from vitkit.evaluation import (
    Memory,
    Moments,
    NewExamples,
    changed,
    fit,
    fit_probe,
    forgotten,
    read_memory,
    undone,
)
from vitkit.evaluation.probes.teaching import FILE
from vitkit.weights import load, save

# What is remembered


def some(count=60, width=8, classes=3, seed=0):
    random = np.random.default_rng(seed)
    y = np.arange(count) % classes
    centres = random.normal(size=(classes, width))
    return (4 + centres[y] + random.normal(size=(count, width))).astype(np.float32), y


def photographs(x, y, names="abcdef"):
    digests = [row.tobytes().hex() for row in x]
    return NewExamples(x, digests, [f"{i}.jpg" for i in range(len(x))], [names[k] for k in y])


def of(*added):
    memory = Memory(np.empty((0, 0), np.float32))
    for each in added:
        memory = changed(memory, "added", add=[each])
    return memory


def check_same(one, other, tolerance):
    torch.testing.assert_close(one.weight, other.weight, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(one.bias, other.bias, rtol=tolerance, atol=tolerance)
    assert one.temperature == pytest.approx(other.temperature, rel=tolerance)


def test_the_head_is_that_of_a_fit_from_the_beginning():
    """Whatever was added and removed on the way: classes, photographs, all in several steps."""
    x, y = some()
    memory = of(photographs(x[:10], y[:10]), photographs(x[10:], y[10:]))
    more, of_more = some(30, seed=1)
    memory = changed(memory, "", add=[photographs(more, of_more + 3)])
    memory = changed(memory, "", remove={3, 7, *range(60, 90)})
    stays = np.delete(np.arange(60), [3, 7])
    check_same(fit(memory), fit_probe("linear", x[stays], y[stays], 3), 1e-8)
    assert memory.classes == ("a", "b", "c") and len(memory.rows) == 58

    # As sums over examples, updated, give it too
    moments = Moments.of(torch.tensor(x), torch.tensor(y), 3)
    gone = [3, 7]
    moments = moments - Moments.of(torch.tensor(x[gone]), torch.tensor(y[gone]), 3)
    fitted = fit(memory)
    weight, bias = moments.centred().head(fitted.strength)
    torch.testing.assert_close(weight / fitted.temperature, fitted.weight, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(bias / fitted.temperature, fitted.bias, rtol=1e-8, atol=1e-8)


def test_what_is_added_and_removed_leaves_no_trace():
    x, y = some()
    before = of(photographs(x, y))
    more, of_more = some(20, seed=1)
    after = changed(before, "", add=[photographs(more, of_more + 2)])
    assert after.classes == ("a", "b", "c", "d", "e")
    after = changed(after, "", remove=set(range(60, 80)))
    check_same(fit(before), fit(after), 1e-10)

    # And the other way round, where the photographs come back at the end
    after = changed(before, "", remove={5, 6})
    after = changed(after, "", add=[photographs(x[5:7], y[5:7])])
    check_same(fit(before), fit(after), 1e-8)
    assert after.classes == before.classes


def test_every_change_is_undone_to_the_bit():
    x, y = some()
    states = [of(photographs(x[:40], y[:40]))]
    states.append(changed(states[-1], "", remove={1, 2}, rename=[("a", "z")]))
    states.append(changed(states[-1], "", remove=set(states[-1].members("z"))))
    states.append(changed(states[-1], "", rename=[("b", "a")]))
    states.append(changed(states[-1], "", add=[photographs(x[40:], y[40:], "azq")]))
    memory = states[-1]
    assert memory.classes == ("z", "a", "c", "q") and len(memory.changes) == 5
    for earlier in reversed(states[:-1]):
        memory = undone(memory)
        assert memory.examples == earlier.examples and memory.labels == earlier.labels
        assert memory.changes == earlier.changes
        np.testing.assert_array_equal(memory.x, earlier.x)
    with pytest.raises(ValueError, match="no change to undo"):
        undone(undone(memory))


def test_what_was_removed_is_forgotten():
    x, y = some()
    memory = changed(
        of(photographs(x, y)), "", remove={4, *range(0, 60, 3)}, rename=[("b", "bees")]
    )
    less = forgotten(memory)
    check_same(fit(memory), fit(less), 1e-15)
    assert len(less.x) == len(memory.rows) == 39 and less.labels == ("bees", "c")
    assert not less.changes
    with pytest.raises(ValueError, match="no change to undo"):
        undone(less)


def test_what_makes_no_classifier_is_a_sentence():
    x, y = some()
    memory = of(photographs(x, y))
    with pytest.raises(ValueError, match="would know c; add another"):
        fit(changed(memory, "", remove=set(range(60)) - set(range(2, 60, 3))))
    with pytest.raises(ValueError, match="b cannot be renamed to c: another class"):
        changed(memory, "", rename=[("b", "c")])
    with pytest.raises(ValueError, match="there is no class q; the classes are a, b, c"):
        changed(memory, "", rename=[("q", "r")])


# The command


@pytest.fixture
def animals(tmp_path, monkeypatch):
    """NewExamples of red and blue, a third class, a model, and the name of one to be taught."""
    monkeypatch.chdir(tmp_path)
    make_photographs(tmp_path)
    (tmp_path / "photos" / "blue").rename(tmp_path / "blue")
    (tmp_path / "photos" / "red").rename(tmp_path / "red")
    (tmp_path / "photos").rmdir()
    random = np.random.default_rng(1)
    for i in range(12):
        pixels = np.clip(random.normal((60, 190, 60), 40, (30, 30, 3)), 0, 255).astype(np.uint8)
        save_picture(Path(f"more/green/{i}.jpg"), pixels)
        save_picture(Path(f"more/red/n{i}.jpg"), pixels[:, :, [1, 0, 2]])
    saved("model", "ab", "mu/8", 16, depth=1)
    return "animals"


def save_picture(path, pixels):
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def taught(*words):
    assert main(["teach", *words]) == 0


def head_of(directory):
    return load(directory, quiet=True).model.head.weight


def test_a_model_is_taught_and_untaught(animals, capsys):
    taught("model", animals, "--add", "red", "blue")
    first = head_of(animals)
    taught(animals, "--add", "more")
    assert "added 12 photographs of green, added 12 photographs of red" in capsys.readouterr().out
    assert load(animals, quiet=True).labels == ("red", "blue", "green")
    main(["predict", animals, "more/green/3.jpg", "--json"])
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["labels"][0] == "green"

    # The same again is nothing new; words for what is to go
    assert main(["teach", animals, "--add", "more/green"]) == 1
    captured = capsys.readouterr().err
    assert "12 photographs known already" in captured and "nothing new" in captured
    taught(animals, "--remove", "more/red", "green")
    assert torch.allclose(head_of(animals), first, rtol=1e-5, atol=1e-6)
    taught(animals, "--undo")
    assert load(animals, quiet=True).labels == ("red", "blue", "green")
    taught(animals, "--undo")
    assert torch.equal(head_of(animals), first)

    # Moved to another class, and renamed
    taught(animals, "--remove", "red/3.jpg", "--add", "blue=red/3.jpg", "--rename", "red=rot")
    taught(animals, "--json")
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert told["classes"] == {"rot": 19, "blue": 21}
    taught(animals, "--list")
    assert "renamed red to rot" in " ".join(capsys.readouterr().out.split())


@pytest.mark.slow
def test_a_copy_is_taught_and_the_original_stays(animals, capsys):
    taught("model", animals, "--add", "red", "blue")
    before = load_file(f"{animals}/{FILE}")
    taught(animals, "copy", "--add", "more/green")
    assert load("copy", quiet=True).labels == ("red", "blue", "green")
    assert load(animals, quiet=True).labels == ("red", "blue")
    assert torch.equal(load_file(f"{animals}/{FILE}")["features"], before["features"])
    taught("model", "copy", "--remove", "red/3.jpg")  # of the same model: goes on
    assert "removed 1 photograph" in capsys.readouterr().out


def test_a_run_is_its_model(animals, capsys):
    """As in predict: what a run remembers is in its folder model/."""
    taught("model", "run/model", "--add", "red", "blue")
    taught("run", "--add", "more/green")
    assert load("run", quiet=True).labels == ("red", "blue", "green")
    taught("model", "run", "--undo")
    assert "run/model, which remembers 40 photographs" in " ".join(capsys.readouterr().out.split())
    assert sorted(file.name for file in Path("run").iterdir()) == ["model"]


def refusal(capsys, *words):
    capsys.readouterr()
    assert main(["teach", *words]) == 1
    return " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
def test_what_cannot_be_taught_is_a_sentence(animals, capsys):
    assert "model remembers no photographs" in refusal(capsys, "model", "--add", "red")
    assert "model remembers no photographs" in refusal(capsys, "model", "./model", "--add", "red")
    assert "has no photographs yet" in refusal(capsys, "model", animals)
    assert "two classes or more" in refusal(capsys, "model", animals, "--add", "red")
    assert not Path(animals).exists()
    taught("model", animals, "--add", "red", "blue")
    assert "of which class is it?" in refusal(capsys, animals, "--add", "more/green/1.jpg")
    assert "there is no nowhere" in refusal(capsys, animals, "--add", "cats=nowhere")
    assert "known as red; to move it: --remove red/" in refusal(
        capsys, animals, "--add", "blue=red"
    )
    assert "did you mean blue?" in refusal(capsys, animals, "--remove", "bleu")
    assert "write CLASS/NAME" in refusal(capsys, animals, "--remove", "3.jpg")
    assert "none of which was learned" in refusal(capsys, animals, "--remove", "more/green")
    assert "OLD=NEW" in refusal(capsys, animals, "--rename", "red")
    assert "make them afterwards" in refusal(capsys, animals, "--undo", "--add", "more")


def test_a_broken_photograph_is_left_out_and_named(animals, capsys):
    Path("red/broken.jpg").write_bytes(Path("red/1.jpg").read_bytes()[:200])
    taught("model", animals, "--add", "red", "blue")
    assert "left out: red/broken.jpg" in capsys.readouterr().err
    assert len(load_file(f"{animals}/{FILE}")["features"]) == 40


def test_a_large_memory_is_said_before_it_is_computed(animals, capsys, monkeypatch):
    monkeypatch.setattr("vitkit.apps.teach.photographs.MUCH", 4 * 30 * 32 / 2**30)
    taught("model", animals, "--add", "red", "blue")  # 20 of each, 32 numbers
    err = capsys.readouterr().err
    said = "photographs, of each of which the head reads 32 numbers, take"
    assert f"40 {said}" in err and err.count(said) == 1  # not of the first 20


@pytest.mark.slow
def test_names_that_are_no_text_are_remembered(animals, capsys):
    picture = Path("more/green/1.jpg").read_bytes()
    Path(os.fsdecode(b"red/\xff.jpg")).write_bytes(picture)
    taught("model", animals, "--add", "red", "blue")
    taught(animals, "--list")
    assert "udcff.jpg" in capsys.readouterr().out
    taught(animals, "--remove", os.fsdecode(b"red/\xff.jpg"), os.fsdecode(b"\xff.jpg"))
    assert capsys.readouterr().out.count("removed") == 1


def test_a_damaged_memory_is_a_sentence_and_the_model_still_answers(animals, capsys):
    taught("model", animals, "--add", "red", "blue")
    file = Path(animals) / FILE
    whole = file.read_bytes()
    for damaged in (
        whole[:-1],
        whole[:-7] + b"\0" + whole[-6:],
        b"",
        whole.replace(b"red", b"rod", 1),
    ):
        file.write_bytes(damaged)
        assert f"{file} cannot be read" in refusal(capsys, animals, "--undo")
    assert main(["predict", animals, "red/1.jpg"]) == 0


@pytest.mark.slow
def test_another_head_or_model_is_noticed(animals, capsys):
    taught("model", animals, "--add", "red", "blue")
    classifier = load(animals, quiet=True)
    with torch.no_grad():
        classifier.model.head.bias += 1
    save(classifier, animals)
    taught(animals)
    assert "is not the one of the photographs" in capsys.readouterr().err
    taught(animals, "--remove", "red/3.jpg")
    assert read_memory(Path(animals), load(animals, quiet=True))[1]
    with torch.no_grad():
        next(iter(classifier.model.parameters())).add_(0.1)
    save(classifier, animals)
    assert "backbone of the model" in refusal(capsys, animals, "--undo")
