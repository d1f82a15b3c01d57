"""The compilers of CUDA source: which is taken, what it is asked for, and what it says."""

import ctypes
import sys
from types import ModuleType, SimpleNamespace

import pytest
import tvm_ffi

from graphgrad.errors import LoweringError
from graphgrad.lower.cuda import compiler
from graphgrad.lower.cuda.compiler import compiling_for, find_nvcc, gives_ptx, machine_code
from tests.lower.cuda.sources import TARGET, needs_nvcc

SOURCE = """\
extern "C" __global__ void first_kernel(float* a);
extern "C" __global__ void first_kernel(float* a) {
  a[0] = 1;
}
extern "C" __global__ void __launch_bounds__(256) second_kernel(float* a) {
  a[0] = wrong;
}
"""


@pytest.fixture(autouse=True)
def nothing_is_remembered():
    machine_code.cache_clear()
    yield
    machine_code.cache_clear()


@pytest.fixture
def without_nvcc(monkeypatch):
    monkeypatch.setattr(compiler, "find_nvcc", lambda: None)


def script(folder, text):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "nvcc"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def fake_nvcc(tmp_path, monkeypatch):
    """Puts a shell script in the place of nvcc."""

    def put(text):
        path = script(tmp_path, text)
        monkeypatch.setattr(compiler, "find_nvcc", lambda: str(path))
        return path

    return put


def test_nvcc_on_the_path_goes_first(tmp_path, monkeypatch):
    on_path, at_home = script(tmp_path / "path", ""), script(tmp_path / "home" / "bin", "")
    monkeypatch.setenv("PATH", str(on_path.parent))
    monkeypatch.setenv("CUDA_HOME", str(at_home.parent.parent))
    assert find_nvcc() == str(on_path)


@pytest.mark.parametrize("variable", ["CUDA_HOME", "CUDA_PATH"])
def test_nvcc_of_the_toolkit_that_is_named(variable, tmp_path, monkeypatch):
    at_home = script(tmp_path / "bin", "")
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.delenv("CUDA_PATH", raising=False)
    monkeypatch.setenv(variable, str(tmp_path))
    assert find_nvcc() == str(at_home)


@pytest.mark.parametrize(
    ("arch", "asked", "ptx"),
    [
        ("sm_90", "arch=compute_90,code=[sm_90,compute_90]", True),
        ("sm_90a", "arch=compute_90a,code=sm_90a", False),
    ],
)
def test_what_nvcc_is_asked_for(arch, asked, ptx, fake_nvcc):
    fake_nvcc('echo "$@" > kernels.fatbin')
    options = machine_code(SOURCE, arch).decode().split()
    assert asked in options
    assert gives_ptx(arch) == ptx
    assert {"--ftz=false", "--prec-div=true", "--prec-sqrt=true"} <= set(options)
    assert not [option for option in options if "fast" in option]


def test_the_same_source_is_compiled_once(tmp_path, fake_nvcc):
    fake_nvcc(f'echo run >> {tmp_path}/log; echo "$@" > kernels.fatbin')
    assert machine_code(SOURCE, "sm_90") == machine_code(SOURCE, "sm_90")
    machine_code(SOURCE, "sm_80")
    assert (tmp_path / "log").read_text().count("run") == 2


def test_an_architecture_that_nvcc_does_not_serve(fake_nvcc):
    fake_nvcc(
        'test "$1" = --list-gpu-code && echo "sm_75\nsm_90" && exit 0\n'
        "echo \"nvcc fatal   : Unsupported gpu architecture 'compute_50'\" >&2; exit 1"
    )
    with pytest.raises(LoweringError, match=r"does not compile for sm_50; it serves sm_75, sm_90"):
        machine_code(SOURCE, "sm_50")


def test_a_refusal_names_the_kernel(fake_nvcc):
    fake_nvcc(
        'echo "kernels.cu(3): warning: never mind" >&2\n'
        'echo "kernels.cu(6): error: identifier \\"wrong\\" is undefined" >&2; exit 2'
    )
    with pytest.raises(LoweringError, match=r"for sm_90:\nkernels.cu\(6\).*\[in second_kernel\]$"):
        machine_code(SOURCE, "sm_90")


def test_an_nvcc_that_does_not_run(tmp_path, monkeypatch):
    broken = tmp_path / "nvcc"
    broken.write_text("no program")
    monkeypatch.setattr(compiler, "find_nvcc", lambda: str(broken))
    with pytest.raises(LoweringError, match=r"does not run.*install the CUDA toolkit"):
        machine_code(SOURCE, "sm_90")


class FakeNvrtc(ModuleType):
    """The calls of cuda.bindings.nvrtc: compiles what does not contain "wrong"."""

    def __init__(self, log=b""):
        super().__init__("nvrtc")
        self.log, self.options, self.destroyed = log, [], False

    def nvrtcVersion(self):
        return 0, 13, 0

    def nvrtcCreateProgram(self, source, name, count, headers, names):
        return 0, SimpleNamespace(source=source)

    def nvrtcCompileProgram(self, program, count, options):
        self.options = options
        return (6 if self.log else 0,)

    def nvrtcGetProgramLogSize(self, program):
        return 0, len(self.log)

    nvrtcGetCUBINSize = nvrtcGetProgramLogSize

    def nvrtcGetProgramLog(self, program, buffer):
        ctypes.memmove(buffer, self.log, len(self.log))

    def nvrtcGetCUBIN(self, program, buffer):
        return (0,)

    def nvrtcGetSupportedArchs(self):
        return 0, [75, 90]

    def nvrtcDestroyProgram(self, program):
        self.destroyed = True


@pytest.fixture
def fake_nvrtc(monkeypatch, without_nvcc):
    def put(log=b"", headers="/cuda/{}"):
        nvrtc = FakeNvrtc(log)
        bindings, pathfinder = ModuleType("cuda.bindings"), ModuleType("cuda.pathfinder")
        bindings.nvrtc = nvrtc
        pathfinder.find_nvidia_header_directory = lambda name: headers and headers.format(name)
        monkeypatch.setitem(sys.modules, "cuda", ModuleType("cuda"))
        monkeypatch.setitem(sys.modules, "cuda.bindings", bindings)
        monkeypatch.setitem(sys.modules, "cuda.pathfinder", pathfinder)
        return nvrtc

    return put


def test_what_nvrtc_is_asked_for(fake_nvrtc):
    nvrtc = fake_nvrtc()
    machine_code(SOURCE, "sm_90a")
    assert not gives_ptx("sm_90")
    assert {
        b"--gpu-architecture=sm_90a",
        b"--ftz=false",
        b"--prec-div=true",
        b"--prec-sqrt=true",
        b"--include-path=/cuda/cudart",
        b"--include-path=/cuda/cccl",
    } <= set(nvrtc.options)
    assert nvrtc.destroyed


def test_a_refusal_of_nvrtc_names_the_kernel(fake_nvrtc):
    nvrtc = fake_nvrtc(b'kernels.cu(6): error: identifier "wrong" is undefined\0')
    with pytest.raises(LoweringError, match=r"NVRTC refuses.*\n.*\[in second_kernel\]$"):
        machine_code(SOURCE, "sm_90")
    assert nvrtc.destroyed


def test_an_architecture_that_nvrtc_does_not_serve(fake_nvrtc):
    fake_nvrtc(b"nvrtc: error: invalid value for --gpu-architecture (-arch)\0")
    with pytest.raises(LoweringError, match="does not compile for sm_50; it serves sm_75, sm_90"):
        machine_code(SOURCE, "sm_50")


def test_nvrtc_without_the_headers(fake_nvrtc):
    fake_nvrtc(headers=None)
    with pytest.raises(LoweringError, match=r"not the headers of CUDA.*graphgrad\[cuda\]"):
        machine_code(SOURCE, "sm_90")


def test_no_compiler_at_all(monkeypatch, without_nvcc):
    monkeypatch.setitem(sys.modules, "cuda", None)
    with pytest.raises(LoweringError, match=r"no CUDA compiler .*nvcc on the PATH.*graphgrad\[c"):
        machine_code(SOURCE, "sm_90")


def test_the_callback_of_the_runtime_is_ours_inside_alone(monkeypatch):
    asked = []
    monkeypatch.setattr(compiler, "machine_code", lambda *what: asked.append(what) or b"code")
    before = tvm_ffi.get_global_func("tvm_callback_cuda_compile", allow_missing=True)
    with compiling_for(TARGET):
        callback = tvm_ffi.get_global_func("tvm_callback_cuda_compile")
        assert bytes(callback("source")) == b"code"
    assert asked == [("source", "sm_90")]
    after = tvm_ffi.get_global_func("tvm_callback_cuda_compile", allow_missing=True)
    assert (before is None) == (after is None)


@needs_nvcc
def test_nvcc_itself_names_the_error():
    with pytest.raises(LoweringError, match=r'"wrong" is undefined \[in second_kernel\]'):
        machine_code(SOURCE, "sm_90")
