"""Libraries that are linked from objects of several threads."""

import os
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.support import cc

from graphgrad.errors import LoweringError
from graphgrad.lower.codegen import parallel as parallel_compile
from graphgrad.lower.codegen.library import (
    UnoptimizedExecutable,
    is_linkable,
    linked_library,
)
from graphgrad.runtime.loading import load_library
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


@pytest.mark.parametrize("compiler", [None, "false"], ids=["none", "fails"])
def test_what_is_not_optimized_is_linked_where_that_is_possible(compiler, monkeypatch):
    target = tvm.target.Target({**for_cores(1).export(), "opt-level": 0})
    linked, other = (compile_kernels(lowered(1), target) for _ in range(2))
    assert isinstance(linked, UnoptimizedExecutable)
    assert not isinstance(compile_kernels(lowered(1), for_cores(1)), UnoptimizedExecutable)
    expected = results(linked)
    assert linked.jit().same_as(linked.jit()) and not linked.jit().same_as(linked.mod)
    monkeypatch.setattr(cc, "get_cc", lambda: compiler)
    for ours, theirs in zip(results(other), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_a_compiler_that_fails(monkeypatch):
    executable = compile_kernels(lowered(1), for_cores(1))
    monkeypatch.setattr(cc, "get_cc", lambda: "false")
    with pytest.raises(RuntimeError):
        linked_library(executable.mod)


def test_a_disk_without_room(monkeypatch):
    executable = compile_kernels(lowered(1), for_cores(1))
    full = Mock(side_effect=OSError(28, "No space left on device"))
    monkeypatch.setattr(Path, "write_bytes", full)
    message = r"No space left on device; [\d,]+ bytes are free in .*TMPDIR"
    with pytest.raises(LoweringError, match=message):
        linked_library(executable.mod)


@pytest.mark.parametrize("count", [1, 3])
def test_an_export_is_linked_here(count, tmp_path, monkeypatch):
    """Not by TVM, whose LLVM would end the process where the disk is full."""
    monkeypatch.setattr(parallel_compile, "_MIN_PIECE_STATEMENTS", 1)
    monkeypatch.setattr(tvm.runtime.Module, "export_library", None)
    executable = compile_kernels(lowered(count), for_cores(count))
    executable.export_library(tmp_path / "library.so")
    loaded = load_library(tmp_path / "library.so")
    for ours, expected in zip(results(loaded), results(executable), strict=True):
        np.testing.assert_array_equal(ours, expected)


def test_without_memory_files_objects_are_files(monkeypatch):
    expected = linked_library(compile_kernels(lowered(1), for_cores(1)).mod)
    monkeypatch.delattr(os, "memfd_create")
    assert len(linked_library(compile_kernels(lowered(1), for_cores(1)).mod)) == len(expected)


def test_without_kernels_there_is_nothing_to_link():
    x = relax.Var("x", relax.TensorType((4,), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        builder.emit_func_output(x)
    assert not is_linkable(relax.build(builder.get(), "llvm").mod)
