"""Libraries are unloaded once nothing uses them, and no sooner."""

import gc
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.runtime import vm
from tvm.script import relax as R

from graphgrad.runtime.loading import load_library

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads the maps of a process")


@R.function
def main(x: R.Tensor((64,), "float32")) -> R.Tensor((64,), "float32"):
    y = R.add(x, R.exp(x))
    return y


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    path = tmp_path_factory.mktemp("library") / "program.so"
    relax.build(tvm.IRModule({"main": main}), "llvm").export_library(str(path))
    return path


def is_loaded(path):
    gc.collect()
    return str(path) in Path("/proc/self/maps").read_text()


def machine(path):
    return vm.VirtualMachine(load_library(path), tvm.cpu())


X = np.linspace(0, 1, 64, dtype="float32")


def test_a_library_goes_with_its_module(library):
    module = load_library(library)
    assert is_loaded(library)
    del module
    assert not is_loaded(library)


def test_a_function_keeps_its_library(library):
    function = machine(library)["main"]
    assert is_loaded(library)
    np.testing.assert_allclose(function(tvm.runtime.tensor(X)).numpy(), X + np.exp(X), rtol=1e-6)
    del function
    assert not is_loaded(library)


def test_results_outlive_the_library(library):
    result = machine(library)["main"](tvm.runtime.tensor(X))
    view = np.from_dlpack(result)
    assert not is_loaded(library)
    np.testing.assert_allclose(result.numpy(), X + np.exp(X), rtol=1e-6)
    del result
    gc.collect()
    np.testing.assert_allclose(view, X + np.exp(X), rtol=1e-6)


def test_threads_that_run_it_keep_it(library):
    """Each lets go of it while others are inside."""
    wrong = []

    def work():
        for _ in range(5):
            result = machine(library)["main"](tvm.runtime.tensor(X))
            gc.collect()
            if not np.allclose(result.numpy(), X + np.exp(X)):
                wrong.append(result.numpy())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert not is_loaded(library)


def test_a_library_for_a_gpu_stays(library, tmp_path):
    """The GPU may have its kernels queued when the last user goes."""
    path = tmp_path / "program.so"
    path.write_bytes(library.read_bytes())
    load_library(path, tvm.cuda())
    assert is_loaded(path)
