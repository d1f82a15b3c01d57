"""What compilation grows with: kernels, their stages and their expressions, never times."""

from itertools import cycle, islice

import pytest
import tvm
from tvm import relax, tirx

import graphgrad as gg
from graphgrad.ir.kernel_structure import stages
from graphgrad.ir.visits import nodes_in
from graphgrad.lower.kernels.inline_maps import MAX_CONDITION_DEPTH, condition_depth
from graphgrad.lower.pipeline import lower
from graphgrad.lower.stock import MAX_FUSED_CALLS
from graphgrad.lower.target import target
from tests.lower.programs import module, tensor_type

op = relax.op
CHAIN = [
    op.tanh,
    op.sigmoid,
    op.negative,
    op.abs,
    lambda x: op.multiply(x, relax.const(1.25)),
    op.exp,
    lambda x: op.add(x, x),
]


@tvm.ir.instrument.pass_instrument
class _Fused:
    """The module as fusion has left it."""

    def run_after_pass(self, mod, info):
        if info.name == "FuseTIR":
            self.module = mod


def fused_chain(ops):
    """Return the fused module of the gradient of a chain of so many ops."""

    def body(builder, x):
        for step in islice(cycle(CHAIN), ops):
            x = builder.emit(step(x))
        return x

    watch = _Fused()
    gradient = gg.vjp(module(body, tensor_type(2, 3)))
    with tvm.transform.PassContext(instruments=[watch]):
        lower(gradient, target("llvm"))
    return watch.module


def kernels_of(mod):
    return [func for func in mod.functions.values() if isinstance(func, tirx.PrimFunc)]


def calls_of(mod):
    functions = [func for func in mod.functions.values() if isinstance(func, relax.Function)]
    return sum(len(block.bindings) for func in functions for block in func.body.blocks)


def test_a_chain_is_cut_into_kernels_that_repeat():
    short, long = fused_chain(210), fused_chain(420)
    # The chain's ends have kernels of their own; what is between them repeats.
    assert len(kernels_of(long)) <= len(kernels_of(short)) + 2
    assert calls_of(long) <= 2.1 * calls_of(short)
    assert max(len(stages(kernel)) for kernel in kernels_of(long)) <= MAX_FUSED_CALLS


def test_an_own_configuration_of_fusion_goes_first():
    with tvm.transform.PassContext(config={"relax.FuseOps.max_depth": 1}):
        kernels = kernels_of(
            lower(
                module(lambda b, x: b.emit(op.exp(b.emit(op.tanh(x)))), tensor_type(2, 3)),
                target("llvm"),
            )
        )
    assert sum("tanh" in str(kernel) and "exp" in str(kernel) for kernel in kernels) == 0


def clamped(builder, x, low, high):
    return builder.emit(op.clip(x, low, high))


def nearest(builder, grid, size):
    """Emit an index that rounds, clamps and reflects, as grid samples are written out."""
    scaled = builder.emit(op.round(builder.emit(op.multiply(grid, relax.const(1.5)))))
    low = builder.emit(op.less(scaled, relax.const(0.0)))
    high = builder.emit(op.greater(scaled, relax.const(float(size - 1))))
    outside = builder.emit(op.logical_or(low, high))
    inside = clamped(builder, scaled, 0, size - 1)
    chosen = clamped(builder, builder.emit(op.where(outside, inside, scaled)), 0, size - 1)
    again = builder.emit(op.less(chosen, relax.const(1.0)))
    return builder.emit(op.where(again, clamped(builder, chosen, 0, size - 2), chosen))


@pytest.mark.parametrize("size", [4, 7])
def test_written_out_indices_nest_no_deeper(size):
    """The simplifier of TVM takes time exponential in the conditions inside conditions."""

    def body(builder, grid):
        rows, columns = nearest(builder, grid, size), nearest(builder, grid, size + 1)
        return builder.emit(op.add(builder.emit(op.multiply(rows, columns)), rows))

    lowered = lower(module(body, tensor_type(8)), target("llvm"))
    stores = [s for kernel in kernels_of(lowered) for s in nodes_in(kernel.body, tirx.BufferStore)]
    assert max(condition_depth([store.value]) for store in stores) <= MAX_CONDITION_DEPTH
