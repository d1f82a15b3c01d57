"""What kernels promise of their buffers, seen from the module that is compiled."""

import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

import graphgrad as gg
from graphgrad.lower.pipeline import lower
from tests.running import run

PROMISE = "tirx.noalias"


@I.ir_module(s_tir=True)
class OutOfPlace:
    @T.prim_func(private=True, s_tir=True)
    def zz_twice(x: T.Buffer((8,), "float32"), out: T.Buffer((8,), "float32")):
        for i in range(8):
            with T.sblock("b"):
                v = T.axis.spatial(8, i)
                out[v] = x[v] * T.float32(2)

    @R.function
    def main(x: R.Tensor((8,), "float32")) -> R.Tensor((8,), "float32"):
        y = R.exp(x)
        z = R.call_tir(OutOfPlace.zz_twice, (y,), out_ty=R.Tensor((8,), "float32"))
        return z


@I.ir_module(s_tir=True)
class InPlace:
    @T.prim_func(private=True, s_tir=True)
    def aa_shifted(x: T.Buffer((64,), "float32"), y: T.Buffer((64,), "float32")):
        with T.sblock("all"):
            for i in range(63):
                x[i + 1] = y[i] + T.float32(1)

    @R.function(pure=False)
    def main(x: R.Tensor((64,), "float32"), y: R.Tensor((64,), "float32")):
        z = R.call_tir_inplace(
            InPlace.aa_shifted, (x, y), inplace_indices=[0], out_ty=R.Tensor((64,), "float32")
        )
        w = R.exp(z)
        return w


def kernels(mod):
    return {v.name_hint: f for v, f in mod.functions.items() if isinstance(f, tirx.PrimFunc)}


def promising(mod):
    return [name for name, f in kernels(mod).items() if f.attrs and f.attrs.get(PROMISE)]


def test_what_writes_to_fresh_memory_promises():
    lowered = lower(OutOfPlace, gg.target("llvm"))
    assert sorted(promising(lowered)) == sorted(kernels(lowered))
    x = np.linspace(-1, 1, 8).astype("float32")
    (result,) = run(OutOfPlace, "main", x)
    np.testing.assert_allclose(result, 2 * np.exp(x), rtol=1e-6)


def test_one_that_may_overlap_takes_the_promise_from_all():
    lowered = lower(InPlace, gg.target("llvm"))
    assert kernels(lowered).keys() >= {"aa_shifted", "tir_exp"}
    assert not promising(lowered)


def test_overlapping_buffers_of_a_kernel_without_the_promise():
    """The exponential comes last by name, and would have made a promise for both."""
    vm = relax.VirtualMachine(gg.compile(InPlace), tvm.cpu())
    x = tvm.runtime.tensor(np.zeros(64, "float32"))
    result = vm["main"](x, x)
    np.testing.assert_allclose(result.numpy(), np.exp(np.arange(64.0)), rtol=1e-5)


def symbolic():
    builder = relax.BlockBuilder()
    n = tirx.Var("n", "int64")
    x = relax.Var("x", relax.TensorType((n, 4), "float32"))
    with builder.function("main", [x]):
        y = builder.emit(relax.op.reshape(relax.op.concat([x, x], 0), (2 * n * 4,)))
        builder.emit_func_output(builder.emit(relax.op.exp(y)))
    return builder.get()


def accumulating():
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 8), "float32"))
    w = relax.Var("w", relax.TensorType((8, 3), "float32"))
    with builder.function("main", [x, w]):
        with builder.dataflow():
            y = builder.emit_output(relax.op.matmul(x, w))
        builder.emit_func_output(y)
    return gg.vjp(builder.get(), wrt="w", grad_req="add")


@pytest.mark.parametrize("make", [symbolic, accumulating])
def test_kernels_that_lowering_adds_promise_too(make):
    lowered = lower(make(), gg.target("llvm"))
    added = [name for name in kernels(lowered) if "shape_func" in name or "overlap_check" in name]
    assert added
    assert sorted(promising(lowered)) == sorted(kernels(lowered))
