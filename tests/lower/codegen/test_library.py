"""Libraries that are linked from objects of several threads."""

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.support import cc

from graphgrad.lower.codegen import parallel as parallel_compile
from graphgrad.lower.codegen.library import is_linkable, linked_library
from tests.lower.codegen.test_parallel import compile_kernels, for_cores, lowered, results


@pytest.mark.parametrize("count", [1, 3])
def test_a_library_computes_what_the_modules_do(count, tmp_path, monkeypatch):
    monkeypatch.setattr(parallel_compile, "_MIN_PIECE_STATEMENTS", 1)
    executable = compile_kernels(lowered(count), for_cores(count))
    assert is_linkable(executable.mod)
    path = tmp_path / "library.so"
    path.write_bytes(linked_library(executable.mod))
    loaded = tvm.runtime.load_module(str(path))
    for ours, expected in zip(results(loaded), results(executable), strict=True):
        np.testing.assert_array_equal(ours, expected)


def test_a_compiler_that_fails(monkeypatch):
    executable = compile_kernels(lowered(1), for_cores(1))
    monkeypatch.setattr(cc, "get_cc", lambda: "false")
    with pytest.raises(RuntimeError):
        linked_library(executable.mod)


def test_without_kernels_there_is_nothing_to_link():
    x = relax.Var("x", relax.TensorType((4,), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        builder.emit_func_output(x)
    assert not is_linkable(relax.build(builder.get(), "llvm").mod)
