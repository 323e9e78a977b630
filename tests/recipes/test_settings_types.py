"""A setting of another type is refused where the settings are made, not deep within a run."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import vitkit
from vitkit.data import Augmentation, Preprocessing
from vitkit.evaluation import Eval, Neighbours
from vitkit.objectives import MaskedAutoencoder, MaskedPatches, SelfDistillation, Supervised
from vitkit.recipes import Data, Optim, Tune, digits
from vitkit.system.span import Span


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Optim(lr="x"), "lr is 'x'; it is a finite number"),
        (lambda: Optim(warmup="10 years"), "'10 years' is not a duration"),
        (lambda: Optim(warmup=Span("x")), "warmup is Span.*; it is a duration"),
        (lambda: replace(digits(), length=10**400), "length is .*; it is a duration"),
        (lambda: Eval(Neighbours), "evaluator is .*; it is an Evaluator"),
        (
            lambda: Supervised(class_weights=np.array([1.0, 2.0])),
            "class_weights is of type ndarray",
        ),
        (lambda: Optim(schedule="cosines"), "schedule is 'cosines'; it is one of cosine, linear"),
        (lambda: Tune(lora=1.5), "lora is 1.5; it is a whole number"),
        (lambda: Data(source=3), "source is 3; it is text"),
        (lambda: Data(hold_out="a tenth"), "hold_out is 'a tenth'; it is a finite number"),
        (lambda: Data(preprocessing=Augmentation()), "preprocessing is .*; it is a Preprocessing"),
        (lambda: Supervised(mixup="0.2"), "mixup is '0.2'; it is a finite number"),
        (lambda: MaskedPatches(rate="half"), "rate is 'half'; it is a finite number"),
        (lambda: MaskedAutoencoder(rate="half"), "rate is 'half'; it is a finite number"),
        (lambda: SelfDistillation(local_views="two"), "local_views is 'two'; it is a whole number"),
        (lambda: SelfDistillation(hidden=0), "hidden is 0; it must be at least 1"),
        (lambda: MaskedAutoencoder(heads=-1), "heads is -1; it must be at least 1"),
        (lambda: Augmentation(flip="yes"), "flip is 'yes'; it is True or False"),
        (lambda: Preprocessing(resize="256"), "resize is '256'; it is a whole number"),
        (lambda: replace(digits(), model="B/16"), "model is 'B/16'; it is a ViTConfig"),
        (lambda: replace(digits(), evals=("accuracy",)), "evals is .*; it is a list, each an Eval"),
        (lambda: replace(digits(), batch=1.5), "batch is 1.5; it is a whole number"),
    ],
)
def test_a_setting_of_another_type(make, words):
    with pytest.raises(vitkit.BadSettings, match=words):
        make()


def test_what_has_an_equal_is_converted(tmp_path):
    assert SelfDistillation(global_area=[0.25, 1]).global_area == (0.25, 1)
    assert Augmentation(area=(np.float32(0.5), 1)).area == (0.5, 1)
    assert type(Optim(lr=np.float32(0.5)).lr) is float
    recipe = replace(
        digits(), batch=np.int64(8), length="10epochs", init=tmp_path, evals=[Eval(Neighbours())]
    )
    assert type(recipe.batch) is int and recipe.length == Span(10, "epochs")
    assert recipe.init == str(tmp_path) and recipe.evals == (Eval(Neighbours()),)
    assert replace(digits(), length=100).length == Span(100, "steps")
    assert Data(exclude=tmp_path).exclude == str(tmp_path)


def test_what_is_no_model():
    with pytest.raises(vitkit.WrongArgument, match="of type int; give a name"):
        vitkit.create(3)
    with pytest.raises(vitkit.WrongArgument, match="of type Linear; give a Classifier"):
        vitkit.save(torch.nn.Linear(1, 1), "weights")
