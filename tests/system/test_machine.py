"""CPUs, devices and precision: what a process may use of its machine."""

import os
import platform
import subprocess
import sys

import pytest
import torch

from vitkit.system import machine
from vitkit.system.machine import (
    _say_once,
    autocast,
    cpus,
    deterministic,
    pick_device,
    pick_precision,
    slow,
)

CPU = torch.device("cpu")


@pytest.fixture
def host_of_64(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)), raising=False)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("max 100000", 64),
        ("200000 100000", 2),
        ("150000 100000", 1),
        ("50000 100000", 1),
        ("nonsense", 64),
    ],
)
def test_a_container_has_the_cpus_of_its_quota(content, expected, host_of_64, tmp_path):
    (tmp_path / "cpu.max").write_text(content)
    assert cpus(tmp_path) == expected


@pytest.mark.parametrize(("quota", "expected"), [("-1", 64), ("300000", 3)])
def test_the_quota_of_older_control_groups(quota, expected, host_of_64, tmp_path):
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text(f"{quota}\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert cpus(tmp_path) == expected


def test_the_ranks_of_a_machine_share_its_cpus(host_of_64, tmp_path, monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert cpus(tmp_path) == 8


def test_a_device_that_is_not_there_is_a_sentence():
    assert pick_device("cpu") == CPU
    assert pick_device().type in ("cpu", "cuda", "mps")
    with pytest.raises(ValueError, match="no device 'abacus' on this machine; there is"):
        pick_device("abacus")


@pytest.mark.parametrize("name", ["auto", "cuda", "cuda:1"])
def test_float32_on_a_gpu_is_float32_however_the_gpu_was_named(name, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    assert pick_device(name).type == "cuda"
    assert torch.backends.cudnn.allow_tf32 is False


@pytest.mark.parametrize(
    ("machine", "capability", "sentences"),
    [
        ("x86_64", "DEFAULT", 1),
        ("AMD64", "DEFAULT", 1),
        ("x86_64", "AVX2", 0),
        ("arm64", "DEFAULT", 0),
    ],
)
def test_an_old_cpu_is_named_once(machine, capability, sentences, monkeypatch, capsys):
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.delenv("RANK", raising=False)
    _say_once.cache_clear()
    assert pick_device("cpu") == pick_device("cpu") == CPU
    assert capsys.readouterr().err.count("has no AVX2 instructions") == sentences
    _say_once.cache_clear()


def test_autocast_computes_products_in_the_precision():
    a = torch.randn(4, 4)
    with autocast(CPU, "bfloat16"):
        assert (a @ a).dtype == torch.bfloat16
    with autocast(CPU, "float32"):
        assert (a @ a).dtype == torch.float32
    with pytest.raises(ValueError, match="precision is 'auto'; give float32 or bfloat16"):
        autocast(CPU, "auto")


@pytest.mark.parametrize("supported", [True, False])
def test_bfloat16_is_slow_on_a_cpu_without_its_instructions(supported, monkeypatch):
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: supported)
    assert slow(CPU, "bfloat16") is not supported
    assert not slow(CPU, "float32")
    assert not slow(torch.device("cuda"), "bfloat16")


@pytest.mark.parametrize(
    ("machine", "avx512", "arm", "expected"),
    [
        ("x86_64", True, False, "bfloat16"),
        ("x86_64", False, True, "float32"),  # where oneDNN imitates them
        ("AMD64", True, False, "bfloat16"),
        ("aarch64", False, True, "bfloat16"),
        ("arm64", True, False, "float32"),
    ],
)
def test_bfloat16_is_picked_where_the_cpu_has_instructions_for_it(
    machine, avx512, arm, expected, monkeypatch
):
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx512)
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: arm)
    picked = pick_precision("auto", CPU)
    assert picked.precision == expected
    assert f"computing in {expected}" in picked.why
    for named in ("float32", "bfloat16"):
        assert pick_precision(named, CPU) == (named, "")


@pytest.mark.parametrize(
    ("flags", "is_float32"),
    [({"fma", "avx512_bf16"}, False), ({"fma", "avx2"}, True), (set(), False)],
)
def test_what_auto_is_can_be_known_without_pytorch(flags, is_float32, monkeypatch):
    """On Linux, of an x86 CPU; elsewhere nothing says so."""
    monkeypatch.setattr(machine, "cpu_flags", lambda: flags)
    assert machine.auto_is_float32() is is_float32


def test_bfloat16_is_not_picked_where_nobody_has_measured_it(monkeypatch):
    assert pick_precision("auto", torch.device("mps")).precision == "float32"
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)  # as on Macs
    assert pick_precision("auto", CPU).precision == "float32"
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: False)
    assert pick_precision("auto", torch.device("cuda")).precision == "float32"


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc gives back when asked")
def test_memory_of_what_is_gone_is_given_back():
    """In a process of its own, which says how much it holds, in MB: before, between and after."""
    code = """
import gc
from pathlib import Path
from vitkit.system.machine import give_back_memory

class Held: pass

def held():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 // 10**6

gc.disable()
before = held()
circle = Held()
circle.itself = circle  # only the collector of garbage finds it
circle.pieces = [bytes(range(256)) * 400 for _ in range(2000)]  # below what is mapped by itself
last = bytes(range(256)) * 400  # so that the pieces are not at the end
del circle
between = held()
give_back_memory()
print(before, between, held())
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    before, between, after = map(int, run.stdout.split())
    assert between - before > 150
    assert after - before < 50


@pytest.mark.parametrize("only_warned", [False, True])
def test_what_pytorch_was_told_about_determinism_holds_again_after_a_run(only_warned):
    torch.use_deterministic_algorithms(only_warned, warn_only=only_warned)
    try:
        with pytest.raises(RuntimeError, match="a step"), deterministic(True):
            assert torch.are_deterministic_algorithms_enabled()
            assert not torch.is_deterministic_algorithms_warn_only_enabled()
            raise RuntimeError("a step")
        assert torch.are_deterministic_algorithms_enabled() == only_warned
        assert torch.is_deterministic_algorithms_warn_only_enabled() == only_warned
        with deterministic(False):
            assert torch.are_deterministic_algorithms_enabled() == only_warned
    finally:
        torch.use_deterministic_algorithms(False)


def test_an_operation_that_cannot_be_deterministic_is_a_sentence():
    sentence = "cannot compute put_ .*; leave out `deterministic`$"
    with pytest.raises(ValueError, match=sentence), deterministic(True):
        torch.zeros(3).put_(torch.tensor([0]), torch.ones(1))
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize(
    ("processor", "flags", "expected"),
    [
        ("x86_64", "", None),  # outside of Linux nothing says so
        ("AMD64", "avx2 avx512_vnni", True),
        ("x86_64", "avx2 avx_vnni", True),
        ("x86_64", "avx2 avx512f", False),
        ("aarch64", "", True),
    ],
)
def test_sums_of_int8_are_of_32_bits_where_the_cpu_says_so(processor, flags, expected, monkeypatch):
    monkeypatch.setattr(machine.platform, "machine", lambda: processor)
    monkeypatch.setattr(machine, "_cpu_facts", lambda: {"flags": flags} if flags else {})
    assert machine.has_vnni() is expected


def test_facts_are_those_of_the_first_cpu(monkeypatch, tmp_path):
    text = "processor : 0\nflags\t\t: avx avx2\n\nprocessor : 1\nflags : sse\nmore : 1\n"
    monkeypatch.setattr(machine.Path, "read_text", lambda path: text)
    assert machine._cpu_facts() == {"processor": "0", "flags": "avx avx2"}
    assert machine.cpu_flags() == {"avx", "avx2"}


@pytest.mark.parametrize(
    ("device", "platform", "gpus", "expected"),
    [
        ("cpu", "win32", [], True),
        ("cuda", "linux", [], False),
        ("auto", "linux", [], True),
        ("auto", "linux", ["/dev/kfd"], False),
        ("auto", "linux", ["/dev/nvidiactl"], False),
        ("auto", "darwin", [], False),
    ],
)
def test_auto_is_the_cpu_where_no_driver_of_a_gpu_is(device, platform, gpus, expected, monkeypatch):
    monkeypatch.setattr(machine.sys, "platform", platform)
    monkeypatch.setattr(machine.Path, "exists", lambda path: str(path) in gpus)
    assert machine.is_cpu(device) is expected
