"""Which library computes products: the environment's word, the cache's, or a measurement's."""

import json

import pytest
import torch

from vitkit.system import matmul
from vitkit.system.storage.files import cache_dir


@pytest.fixture(autouse=True)
def undecided(monkeypatch):
    monkeypatch.delenv("VITKIT_MATMUL")
    matmul.use(None)
    yield
    matmul.use(None)


def test_it_is_measured_once_and_kept(monkeypatch):
    pytest.importorskip("torch.backends.mkldnn")
    measurements = []

    def measure():
        measurements.append(1)
        return matmul.OneDnn(True, True, False)

    monkeypatch.setattr(matmul, "available", lambda: True)
    monkeypatch.setattr(matmul, "measure", measure)
    assert not matmul.is_known()
    assert matmul.in_use() == (True, True, False)
    assert matmul.is_known()
    matmul.use(None)  # as in another process
    assert matmul.in_use() == (True, True, False)
    assert len(measurements) == 1

    # Another number of threads, and a damaged file, are measured again
    monkeypatch.setattr(torch, "get_num_threads", lambda: 77)
    assert matmul.choose() == (True, True, False)
    for damaged in ("", "[]", '{"a": 3}', '{"a": {"forward": true}}'):
        (cache_dir() / "matmul.json").write_text(damaged)
        matmul.choose()
    assert len(measurements) == 6
    kept = json.loads((cache_dir() / "matmul.json").read_text())
    assert [name.rpartition(", ")[2] for name in kept] == ["77 threads"]


def test_a_cache_that_cannot_be_written_to_is_no_error(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path / "file" / "cache"))
    monkeypatch.setattr(matmul, "measure", lambda: matmul.ALL)
    assert matmul.choose() in (matmul.ALL, matmul.NONE)  # the latter without oneDNN


def test_the_environment_chooses(monkeypatch):
    monkeypatch.setattr(matmul, "measure", lambda: pytest.fail("measured"))
    monkeypatch.setenv("VITKIT_MATMUL", "torch")
    assert matmul.choose() == matmul.NONE
    monkeypatch.setenv("VITKIT_MATMUL", "onednn")
    assert matmul.choose() == (matmul.ALL if matmul.available() else matmul.NONE)
    monkeypatch.setenv("VITKIT_MATMUL", "mkl")
    with pytest.raises(ValueError, match='VITKIT_MATMUL is \'mkl\'; it is "torch" or "onednn"'):
        matmul.choose()


def test_a_machine_without_onednn_uses_pytorch(monkeypatch):
    monkeypatch.setattr(matmul, "available", lambda: False)
    monkeypatch.setenv("VITKIT_MATMUL", "onednn")
    assert matmul.choose() == matmul.NONE
    matmul.use(matmul.ALL)  # a run that began on another machine
    assert matmul.in_use() == matmul.NONE


@pytest.mark.skipif(not matmul.available(), reason="this PyTorch has no oneDNN")
def test_a_measurement_leaves_random_numbers_as_they_were(monkeypatch):
    monkeypatch.setattr(matmul, "SHAPES", ((4, 8, 16),))
    before = torch.random.get_rng_state()
    assert all(isinstance(choice, bool) for choice in matmul.measure())
    assert torch.equal(torch.random.get_rng_state(), before)


def test_only_a_gain_beyond_noise_counts():
    assert matmul._is_faster([1.2, 1.1])
    assert not matmul._is_faster([1.03, 1.03])
    assert not matmul._is_faster([2.0, 0.9])


def test_a_choice_is_said_in_words():
    assert str(matmul.NONE) == "torch"
    assert str(matmul.ALL) == "onednn"
    assert str(matmul.OneDnn(True, False, False)) == "onednn for the forward pass"


def test_without_the_forward_pass_nothing_is_onednn_s(monkeypatch):
    monkeypatch.setattr(matmul, "_speed_up", lambda ours, theirs: 2.0)
    assert matmul.measure() == matmul.ALL
    ratios = iter([0.9, 2, 2] * 2)
    monkeypatch.setattr(matmul, "_speed_up", lambda ours, theirs: next(ratios))
    assert matmul.measure() == matmul.NONE


def test_defaults_of_the_user_do_not_change_what_is_measured(monkeypatch):
    dtypes = []
    monkeypatch.setattr(
        matmul, "_speed_up", lambda ours, theirs: dtypes.append(theirs().dtype) or 2
    )
    matmul.available.cache_clear()
    torch.set_default_dtype(torch.float64)
    try:
        assert matmul.available() and matmul.measure() == matmul.ALL
    finally:
        torch.set_default_dtype(torch.float32)
    assert set(dtypes) == {torch.float32}


def test_after_a_run_the_process_computes_as_before():
    """A run that is continued needs its own choice, and whatever follows it does not."""
    matmul.use(matmul.NONE)
    with pytest.raises(InterruptedError), matmul.as_before():
        matmul.use(None)
        raise InterruptedError
    assert matmul.is_known() and matmul.in_use() == matmul.NONE
