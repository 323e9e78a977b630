"""What the machine gives us, whatever it says of itself."""

import os

import pytest
import torch

from vitkit.system import machine


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("max 100000", None),
        ("200000 100000", 2),
        ("150000 100000", 1),
        ("50000 100000", 1),
        ("nonsense", None),
    ],
)
def test_the_quota_of_a_container(content, expected, tmp_path, monkeypatch):
    (tmp_path / "cpu.max").write_text(content)
    real = machine.Path
    monkeypatch.setattr(
        machine, "Path", lambda path: real(str(path).replace("/sys/fs/cgroup", str(tmp_path)))
    )
    assert machine._quota() == expected
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)), raising=False)
    assert machine.cpus() == (expected or 64)


def test_devices():
    assert machine.pick_device("cpu") == torch.device("cpu")
    assert machine.pick_device().type in ("cpu", "cuda", "mps")
    with pytest.raises(ValueError, match="no device 'abacus' on this machine; there is"):
        machine.pick_device("abacus")


def test_precision():
    a = torch.randn(4, 4)
    with machine.autocast(torch.device("cpu"), "bfloat16"):
        assert (a @ a).dtype == torch.bfloat16
    with machine.autocast(torch.device("cpu"), "float32"):
        assert (a @ a).dtype == torch.float32


def test_bfloat16_is_slow_where_it_is_emulated(monkeypatch):
    for there in (True, False):
        monkeypatch.setattr(
            torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda there=there: there
        )
        assert machine.slow(torch.device("cpu"), "bfloat16") is not there
        assert not machine.slow(torch.device("cpu"), "float32") and not machine.slow(
            torch.device("cuda"), "bfloat16"
        )
