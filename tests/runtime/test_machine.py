"""Machines that cannot run an export, and devices that fail."""

import json

import pytest
import tvm

from graphgrad.runtime import ExportedStep, InputError, MachineError, OutOfMemoryError, machine
from tests.exports import reseal
from tests.runtime.data import BATCH


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"tvm": "0.99"}, "exported for TVM 0.99"),
        ({"system": "Plan9", "machine": "x86_64"}, "exported for Plan9 on x86_64"),
        (
            {"flags": ["sse9"], "processor": "m1"},
            "for the processor m1, but this one lacks sse9",
        ),
    ],
    ids=["tvm", "system", "processor"],
)
def test_another_machine(folder, changes, message):
    if "tvm" not in changes:
        host = json.loads((folder / "manifest.json").read_text())["host"]
        changes = {"host": {**host, **changes}}
    reseal(folder, **changes)
    with pytest.raises(MachineError, match=message):
        ExportedStep(folder)


def test_tile_registers_that_the_system_does_not_give(folder, monkeypatch):
    """They are asked for before anything is loaded."""
    host = json.loads((folder / "manifest.json").read_text())["host"]
    reseal(folder, host={**host, "flags": ["amx_bf16"]})
    with pytest.raises(MachineError, match="lacks amx_bf16"):
        ExportedStep(folder)
    monkeypatch.setattr(machine, "processor_flags", lambda: frozenset({"amx_bf16"}))
    monkeypatch.setattr(machine, "request_tiles", lambda: "it refuses")
    with pytest.raises(MachineError, match=r"uses tile registers \(AMX\): it refuses"):
        ExportedStep(folder)
    monkeypatch.setattr(machine, "request_tiles", lambda: "")
    ExportedStep(folder)


def test_a_device_of_another_kind(folder):
    with pytest.raises(MachineError, match="the export is for llvm, not for cuda"):
        ExportedStep(folder, tvm.device("cuda"))


@pytest.mark.parametrize("device", ["cpu", 0])
def test_what_is_no_device(folder, device):
    with pytest.raises(InputError, match=f"device={device!r}: give a device of TVM"):
        ExportedStep(folder, device)


@pytest.mark.parametrize(
    "arch, ptx, capability, runs",
    [
        ("sm_80", True, "8.0", True),
        ("sm_80", True, "9.0", True),
        ("sm_80", False, "8.6", True),
        ("sm_80", False, "9.0", False),
        ("sm_86", False, "8.0", False),
        ("sm_90", True, "8.0", False),
        ("sm_90a", False, "9.0", True),
        ("sm_90a", False, "10.0", False),
        ("sm_100", True, "9.0", False),
        ("sm_100f", False, "10.3", True),
        ("sm_100f", False, "12.0", False),
        ("sm_121a", False, "12.1", True),
        ("sm_120a", False, "12.1", False),
    ],
)
def test_architectures(arch, ptx, capability, runs):
    if runs:
        machine._check_arch(arch, ptx, capability)
    else:
        with pytest.raises(MachineError, match=f"exported for {arch}"):
            machine._check_arch(arch, ptx, capability)


def test_a_launch_that_lacks_memory_may_have_lost_something():
    with (
        pytest.raises(MachineError, match=r"failed at a step.* may be lost") as raised,
        machine.device_errors(tvm.cpu(), "a step"),
    ):
        raise RuntimeError("CUDA Error: CUDA_ERROR_OUT_OF_MEMORY (2): a launch\nits source")
    assert not isinstance(raised.value, OutOfMemoryError)
    assert "source" not in str(raised.value)


def test_what_a_device_says_where_it_is_read(exported, monkeypatch, tmp_path):
    def fail(tensor):
        raise RuntimeError("CUDA Error: cudaErrorIllegalAddress (700)")

    monkeypatch.setattr(tvm.runtime.Tensor, "numpy", fail)
    for ask in (
        lambda: exported(*BATCH),
        lambda: exported.evaluate(BATCH[0]),
        lambda: exported.params,
        lambda: exported.optimizer_state,
        lambda: exported.skipped,
        lambda: exported.save(tmp_path / "state"),
    ):
        with pytest.raises(MachineError, match="cudaErrorIllegalAddress"):
            ask()
