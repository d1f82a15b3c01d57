"""Which attention is computed in blocks."""

import pytest
from tvm import relax

import graphgrad as gg
from graphgrad.lower.attention import attention_kernels


def types(positions, features=16):
    return [relax.TensorType([1, 1, positions, features], "float32")] * 3


def test_long_rows_are_computed_in_blocks():
    fuses = attention_kernels(gg.target("llvm"))
    assert fuses(types(1024), 1.0, "")
    assert not fuses(types(16), 1.0, "")


def test_whoever_saves_memory_has_all_in_blocks():
    fuses = attention_kernels(gg.target("llvm"), saves_memory=True)
    assert fuses(types(16), 1.0, "")
    assert not fuses(types(16, features=10), 1.0, "")


@pytest.mark.parametrize("arch", ["sm_90"])
def test_gpus_have_no_kernel_of_it(arch):
    fuses = attention_kernels(gg.target({"kind": "cuda", "arch": arch}), saves_memory=True)
    assert not fuses(types(1024), 1.0, "")
