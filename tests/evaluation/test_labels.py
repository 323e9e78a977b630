"""Classes of the data meet those of the model by their names; what cannot meet is a sentence."""

import pytest

from vitkit.evaluation import align, label_notes
from vitkit.evaluation.benchmarks.labels import imagenet_wordnet
from vitkit.weights import imagenet21k_wordnet, imagenet_labels, numbered
from vitkit.weights.outputs import usual_labels


def met(data, model):
    return align(data, model).classes.tolist()


def test_classes_meet_by_name():
    assert met(["bee", "ant"], ["ant", "wasp", "bee"]) == [2, 0]
    assert align(["bee"], ["ant", "bee"]).notes == ()


def test_classes_that_the_model_does_not_know_are_named_with_the_nearest():
    with pytest.raises(
        ValueError, match=r"2 of 3 .*: beetel \(.* beetle\), xylophone; .* ant, beetle"
    ):
        align(["ant", "beetel", "xylophone"], ["ant", "beetle"])


def test_case_and_underscores_do_not_matter_and_it_is_said():
    model = ["English springer", "T-shirt", "ant"]
    data = ["ant", "english_springer", "t shirt"]
    assert met(data, model) == [2, 0, 1]
    (note,) = align(data, model).notes
    assert note == (
        "2 of 3 classes meet by names that differ in case, spaces, hyphens or underscores "
        "(english_springer is English springer, t shirt is T-shirt)"
    )


def test_one_of_several_names_is_enough_and_it_is_said():
    model = ["tench, Tinca tinca", "goldfish, Carassius auratus", "crane", "crane"]
    assert met(["Goldfish", "tench"], model) == [1, 0]
    assert "meet by one of several names" in align(["tench"], model).notes[0]
    with pytest.raises(ValueError, match="does not know: crane"):  # which of the two?
        align(["crane"], model)


def test_two_classes_never_become_one():
    with pytest.raises(ValueError, match="'Ant' and 'ant' would both be the model's 'ant'"):
        align(["Ant", "ant"], ["ant", "bee"])


def test_numbers_that_are_names_meet_by_name():
    folders = sorted(str(i) for i in range(12))  # 0, 1, 10, 11, 2, ...
    integers = [str(i) for i in range(12)]
    assert met(folders, folders) == list(range(12))
    assert [folders[i] for i in met(integers, folders)] == integers
    assert [folders[i] for i in met(integers[:10], folders)] == integers[:10]
    assert label_notes(integers, folders) == ()
    with pytest.raises(ValueError, match="1 of 3 classes that the model does not know: 1;"):
        align(["0", "1", "2"], ["0", "2", "4"])


def test_numbers_without_names_are_positions_and_it_is_said():
    model = ["tench", "goldfish", "shark"]
    assert met(["0", "1"], model) == [0, 1]
    assert "only the numbers 0 to 1; they are taken for" in label_notes(["0", "1"], model)[0]
    assert label_notes(["tench"], model) == label_notes(["trout"], model) == ()


@pytest.mark.parametrize("model", [["tench", "goldfish"], ["0", "1"]])
def test_numbers_beyond_the_model_are_a_sentence(model):
    with pytest.raises(ValueError, match="the numbers 0 to 2, and the model has 2 classes"):
        align(["0", "1", "2"], model)


SYNSETS = ["n02102040", "n03000684", "n01440764"]  # three of Imagenette's
NAMES = ["English springer", "chain saw", "tench"]


def test_imagenet_folders_meet_by_their_wordnet_names():
    imagenet = imagenet_labels()
    assert [imagenet[i] for i in met(SYNSETS, imagenet)] == NAMES
    assert met(imagenet_wordnet(), imagenet) == list(range(1000))
    with pytest.raises(ValueError, match="does not know: n00000001;"):
        align(["n00000001"], imagenet)


def test_wordnet_names_meet_plain_ones_in_both_directions():
    assert met(SYNSETS, ["tench", "Chain_saw", "english springer"]) == [2, 1, 0]
    assert met(["tench", "English_springer"], SYNSETS) == [2, 0]


@pytest.mark.parametrize("classes", [21_843, 21_841])
def test_heads_of_imagenet_21k_meet_names_and_wordnet_names(classes):
    model = numbered(classes)
    wordnet = imagenet21k_wordnet(classes)
    assert len(wordnet) == classes
    assert [wordnet[i] for i in met(SYNSETS, model)] == SYNSETS
    assert met(["english_springer", "chain saw", "tench"], model) == met(SYNSETS, model)
    assert "ImageNet-21k's" in align(SYNSETS, model).notes[0]
    assert met(["0", "7"], model) == [0, 7]  # names of the model's own

    # What a file without names gets
    labels, [note] = usual_labels(classes)
    assert labels == wordnet and "WordNet's names" in note
    assert [labels[i] for i in met(["tench"], labels)] == ["n01440764"]


def test_a_file_without_names_gets_those_of_imagenet_only_for_as_many_classes():
    labels, [note] = usual_labels(1000)
    assert labels == imagenet_labels() and "ImageNet-1k's 1,000 classes; the file does" in note
    for classes in (0, 999, 1001, 21_842):
        assert usual_labels(classes) == (None, [])
