"""Targets: what is accepted, what is resolved to the host, what is refused."""

import os
import platform
from dataclasses import replace

import pytest
import tvm

from graphgrad.errors import TargetError
from graphgrad.lower.cpu import features, tuning
from graphgrad.lower.cpu.features import used_features
from graphgrad.lower.cpu.tuning import processor_of
from graphgrad.lower.target import is_generic, parse, target
from graphgrad.runtime.cores import usable_cores
from graphgrad.runtime.threads import VARIABLES
from tests.labels import label

HOST = str(tvm.get_global_func("target.llvm_get_system_cpu")())


@pytest.mark.parametrize(
    "spec",
    ["llvm", {"kind": "llvm"}, tvm.target.Target("llvm"), {"kind": "llvm", "opt-level": 2}],
    ids=label,
)
def test_bare_llvm_is_this_host(spec, monkeypatch):
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    resolved = target(spec)
    assert resolved.attrs["mcpu"] == HOST
    assert resolved.attrs["num-cores"] == usable_cores()
    assert not is_generic(resolved)


def test_other_attributes_are_kept():
    assert target({"kind": "llvm", "opt-level": 2}).attrs["opt-level"] == 2


def test_the_thread_count_of_the_environment_is_used(monkeypatch):
    monkeypatch.setenv("TVM_NUM_THREADS", "7")
    assert target("llvm").attrs["num-cores"] == 7


def test_what_is_given_is_kept():
    given = {"mcpu": "x86-64-v3", "num-cores": 3, "opt-level": 2}
    resolved = target({"kind": "llvm", **given})
    assert {name: resolved.attrs[name] for name in given} == given


def test_features_without_a_processor_are_kept():
    assert "mcpu" not in target({"kind": "llvm", "mattr": ["+avx2"]}).attrs


def test_another_architecture_is_not_given_this_hosts_processor():
    foreign = "x86_64-linux-gnu" if os.uname().machine == "aarch64" else "aarch64-linux-gnu"
    assert "mcpu" not in target({"kind": "llvm", "mtriple": foreign}).attrs


def test_resolving_twice_changes_nothing():
    assert str(target(target("llvm"))) == str(target("llvm"))


@pytest.mark.parametrize(
    ("spec", "arch"),
    [
        ({"kind": "cuda", "arch": "sm_90"}, "sm_90"),
        ('{"kind": "cuda", "arch": "sm_80"}', "sm_80"),
        ("nvidia/nvidia-h100", "sm_90a"),
        ("h200", "sm_90"),
        ("a100", "sm_80"),
        (tvm.target.Target({"kind": "cuda", "arch": "sm_86"}), "sm_86"),
    ],
    ids=label,
)
def test_cuda_targets_keep_their_architecture(spec, arch):
    assert str(target(spec).attrs["arch"]) == arch


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("no-such-kind", "accepted: a kind"),
        ({"kind": "no-such-kind"}, "accepted: a kind"),
        ({"mcpu": "x86-64-v3"}, "kind"),
        ({"kind": "llvm", "mcpux": "x86-64"}, "mcpux"),
        ({"kind": "llvm", "mcpu": 3}, "mcpu"),
        ({"kind": "llvm", "mcpu": "native"}, "leave mcpu out"),
        ({"kind": "llvm", "mcpu": "no-such-cpu"}, HOST),
        ("llvm -mcpu=x86-64", "accepted: a kind"),
        ("vulkan", "no code generator"),
        ({"kind": "cuda", "arch": "hopper"}, "'hopper' is not served; those that are: sm_75"),
        ({"kind": "cuda", "arch": 90}, "'90' is not served"),
        ('{"kind": "cuda", "arch": "sm90"}', "'sm90' is not served"),
        ("nvidia/geforce-gtx-1080-ti", "'sm_61' is not served"),
        (tvm.target.Target("cuda"), "'sm_50', which TVM takes where none is given, is not served"),
        ('{"kind": "cuda", "arch"', "accepted: a kind"),
        (5, "int"),
        (None, "NoneType"),
    ],
    ids=label,
)
def test_bad_targets_are_refused(spec, says):
    with pytest.raises(TargetError, match=says):
        target(spec)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the names are those of x86-64")
def test_what_a_virtual_machine_hides_is_not_used(monkeypatch):
    shown = used_features(tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3"}))
    monkeypatch.setattr(features, "processor_flags", lambda: frozenset(shown.values()))
    resolved = target("llvm")
    assert used_features(resolved).items() <= shown.items()
    assert processor_of(resolved).vector_bytes <= 32


def test_a_system_that_does_not_say_what_its_processor_can_do(monkeypatch):
    monkeypatch.setattr(features, "processor_flags", frozenset)
    assert "mattr" not in target("llvm").attrs


def test_parse_leaves_a_bare_llvm_generic():
    assert is_generic(parse("llvm"))


@pytest.mark.parametrize(
    ("mcpu", "width", "registers"),
    [("x86-64", 16, 16), ("x86-64-v3", 32, 16), ("x86-64-v4", 64, 32)],
)
def test_the_vector_registers_follow_the_features(mcpu, width, registers):
    unit = processor_of(
        tvm.target.Target({"kind": "llvm", "mcpu": mcpu, "mtriple": "x86_64-linux-gnu"})
    )
    assert (unit.vector_bytes, unit.registers) == (width, registers)
    assert [unit.lanes(d) for d in ("float32", "float64", "float16", "int8")] == [
        width // 4,
        width // 8,
        width // 4,
        width,
    ]


@pytest.mark.parametrize(
    ("mcpu", "family"),
    [
        ("znver4", tuning.ZEN4),
        ("znver5", replace(tuning.ZEN5, multiplies_pairs=True)),
        ("emeraldrapids", replace(tuning.AVX512, multiplies_pairs=True)),
        ("skylake-avx512", tuning.AVX512),
        ("x86-64-v4", tuning.AVX512),
        ("haswell", tuning.AVX2),
        ("znver3", tuning.AVX2),
        ("x86-64-v2", tuning.SSE),
    ],
)
def test_the_costs_follow_the_family(mcpu, family):
    resolved = target({"kind": "llvm", "mcpu": mcpu, "mtriple": "x86_64-linux-gnu"})
    assert tuning.processor_of(resolved) == family


def test_neon_is_a_family():
    arm = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mattr": ["+neon"]}
    assert tuning.processor_of(target(arm)) is tuning.NEON
