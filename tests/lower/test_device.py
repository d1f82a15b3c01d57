"""Devices that are missing, do not fit, or fail: each said in its own words."""

import ctypes

import pytest
import tvm

from graphgrad.errors import AliasError, DeviceError, OutOfMemoryError, TargetError
from graphgrad.lower import device as devices
from graphgrad.lower.cpu import features
from graphgrad.lower.cpu.features import used_features
from graphgrad.lower.device import cuda_absence, device_of, reported
from graphgrad.lower.target import target

HOPPER = {"kind": "cuda", "arch": "sm_90"}


class Machine:
    """A CUDA device as TVM would show it."""

    type, index, device_name = "cuda", 0, "a GPU"
    exist = True
    available_global_memory, total_global_memory = 5 << 20, 80 << 30

    def __init__(self, compute_version="9.0"):
        self.compute_version = compute_version


@pytest.fixture
def machine(monkeypatch):
    """Return a function that gives this machine a GPU."""

    def give(**attributes):
        found = Machine()
        vars(found).update(attributes)
        monkeypatch.setattr(devices.tvm, "cuda", lambda: found)
        stock = tvm.get_global_func

        def function(name, allow_missing=False):
            known = {"device_api.cuda": object, "runtime.GetCudaDeviceCount": count}
            return known[name] if name in known else stock(name, allow_missing)

        def count():
            raise RuntimeError("CUDA Runtime Error: cudaErrorNoDevice (100): no device is detected")

        monkeypatch.setattr(devices.tvm, "get_global_func", function)
        return found

    return give


def test_the_host():
    assert device_of(target("llvm")) == tvm.cpu()


@pytest.mark.parametrize("library", ["libcuda.so.1", "libcudart.so.13"])
def test_a_library_is_missing(monkeypatch, library):
    def load(name):
        if name == library:
            raise OSError(f"{name}: cannot open shared object file")

    hopper = target(HOPPER)
    monkeypatch.setattr(ctypes, "CDLL", load)
    monkeypatch.setattr(devices.tvm, "get_global_func", lambda name, allow_missing: None)
    with pytest.raises(DeviceError, match=f"for the GPU sm_90 here: cannot load {library}: cannot"):
        device_of(hopper)
    with pytest.raises(TargetError, match=rf"cannot load {library}.*\"arch\": \"sm_90\""):
        target("cuda")


def test_tvm_without_cuda(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: None)
    monkeypatch.setattr(devices.tvm, "get_global_func", lambda name, allow_missing: None)
    assert cuda_absence() == "this build of TVM has no CUDA runtime"


def test_a_driver_without_devices(machine):
    machine(exist=False)
    with pytest.raises(DeviceError, match=r"no device \(.*cudaErrorNoDevice.*nvidia-smi"):
        device_of(target(HOPPER))


@pytest.mark.parametrize("spec", ["cuda", {"kind": "cuda"}, '{"kind": "cuda"}'])
def test_a_bare_cuda_target_is_this_machines_gpu(machine, spec):
    machine(compute_version="8.6")
    assert str(target(spec).attrs["arch"]) == "sm_86"


@pytest.mark.parametrize("arch, version, ptx, fits", [
    ("sm_80", "9.0", True, True), ("sm_80", "9.0", False, False), ("sm_90", "8.0", True, False),
    ("sm_90a", "10.0", False, False),
])  # fmt: skip
def test_the_architecture_must_fit(machine, monkeypatch, arch, version, ptx, fits):
    monkeypatch.setattr(devices, "gives_ptx", lambda arch: ptx)
    found = machine(compute_version=version)
    gpu = target({"kind": "cuda", "arch": arch})
    if fits:
        assert device_of(gpu) is found
        return
    own = f"sm_{version.replace('.', '')}"
    with pytest.raises(DeviceError, match=f"{arch}, but cuda:0.*is a {own},.*'arch': '{own}'"):
        device_of(gpu)


def test_a_processor_that_lacks_what_the_code_may_use(monkeypatch):
    x86 = {"kind": "llvm", "mcpu": "znver4", "mtriple": "x86_64-linux-gnu"}
    shown = frozenset(used_features(target(x86)).values())
    monkeypatch.setattr(features, "processor_flags", lambda: shown)
    assert device_of(target(x86)) == tvm.cpu()
    monkeypatch.setattr(features, "processor_flags", lambda: shown - {"avx512_vnni"})
    with pytest.raises(DeviceError, match="a processor with avx512vnni, which this one lacks"):
        device_of(target(x86))


def test_out_of_memory():
    expected = (
        r"out of memory: a step needs 2.0 MiB more on cuda:0 \(a GPU\), of whose 81,920.0 MiB "
        r"5.0 MiB are free. Nothing has changed; eat less, or free what else is on the device"
    )
    with (
        pytest.raises(OutOfMemoryError, match=expected),
        reported(Machine(), "a step", needs=2 << 20, remedy="eat less"),
    ):
        raise RuntimeError("CUDA Runtime Error: cudaErrorMemoryAllocation (2): out of memory")


def test_a_launch_out_of_memory_may_have_changed_something():
    """Kernels that were launched before it have written."""
    with (
        pytest.raises(DeviceError, match="may be lost") as told,
        reported(Machine(), "a step"),
    ):
        raise RuntimeError("CUDALaunch Error: CUDA_ERROR_OUT_OF_MEMORY\n grid=(1,1,1)")
    assert not isinstance(told.value, OutOfMemoryError)


def test_a_failed_kernel_is_told_without_its_source():
    text = "CUDALaunch Error: CUDA_ERROR_ILLEGAL_ADDRESS\n grid=(1,1,1)\n// CUDA Source\nint i;"
    with (
        pytest.raises(DeviceError, match="cuda:0 failed at a step, or before: CUDALaunch") as told,
        reported(Machine(), "a step"),
    ):
        raise RuntimeError(text)
    assert "int i" not in str(told.value) and "start a new process" in str(told.value)


@pytest.mark.parametrize("error", [AliasError("CUDA"), RuntimeError("else"), ValueError("CUDA")])
def test_other_errors_pass(error):
    with pytest.raises(type(error)) as passed, reported(Machine(), "a step"):
        raise error
    assert passed.value is error
