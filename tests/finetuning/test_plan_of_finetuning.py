"""The plan of a fine-tuning, as it is read again."""

import pytest
import torch

from vitkit.finetuning.fine_tuning import worth_compiling
from vitkit.finetuning.plan import PLAN, RunPlan, read_plan, write_plan
from vitkit.models import FeatureSet
from vitkit.recipes import RECIPES
from vitkit.system.storage.files import write_json
from vitkit.training import to_json

PLANNED = RunPlan(None, "float32", 2.0, to_json(RECIPES["digits"]()), "")


def test_a_plan_is_read_as_it_was_written(tmp_path):
    plan = PLANNED._replace(reading=FeatureSet("token-gap", 3))
    write_plan(tmp_path, plan)
    assert read_plan(tmp_path) == plan
    assert read_plan(tmp_path).reading.numbers(8) == 3 * 2 * 8


@pytest.mark.parametrize(
    "damage", [{"precision": "int7"}, {"reading": ["everything", 1]}, {"pool": "everything"}]
)
def test_a_plan_of_what_does_not_exist_is_damaged(tmp_path, damage):
    write_json(tmp_path / PLAN, PLANNED._asdict() | damage)
    assert read_plan(tmp_path) is None


def test_compiling_is_for_long_runs_on_a_gpu():
    assert worth_compiling(torch.device("cuda"), 600)
    assert not worth_compiling(torch.device("cuda"), 100)
    assert not worth_compiling(torch.device("cpu"), 600)
