"""Small maps in the launches of the sums that they read: of a batch norm and of its gradient."""

import pytest
import tvm
from tvm import relax, tirx

from graphgrad.ir.visits import nodes_in
from graphgrad.lower.cuda.column_tiles import arrives_last
from graphgrad.lower.cuda.compiler import arch_of, machine_code
from graphgrad.lower.pipeline import lower
from tests.cuda.device import norms
from tests.lower.cuda.sources import TARGET, needs_nvcc, whole_source

IMAGE = (8, 13, 17, 24)


def module(function, images, vectors, dtype):
    params = [
        relax.Var(f"p{i}", relax.TensorType(shape, kind))
        for i, (shape, kind) in enumerate(
            [(IMAGE, dtype)] * images + [(IMAGE[-1:], "float32")] * vectors
        )
    ]
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            result = builder.emit_output(function(*params))
        builder.emit_func_output(result)
    return builder.get()


CASES = {
    f"{function.__name__}-{dtype}": (function, images, vectors, dtype)
    for function, images, vectors in (
        (norms.batch_norm, 1, 4),
        (norms.gradient, 2, 1),
    )
    for dtype in ("float32", "bfloat16")
}


@pytest.mark.parametrize("case", CASES)
def test_sums_and_what_follows_from_them_are_one_launch(case):
    case = CASES[case]
    lowered = lower(module(*case), TARGET)
    called = [
        lowered[call.op]
        for call in nodes_in(lowered["main"], tvm.ir.Call)
        if isinstance(call.op, tvm.ir.GlobalVar)
    ]
    blocks = [
        loop
        for kernel in called
        for loop in nodes_in(kernel.body, tirx.For)
        if loop.thread_binding is not None and loop.thread_binding.thread_tag == "blockIdx.x"
    ]
    assert len(blocks) == 2
    assert sum(any(map(arrives_last, nodes_in(b, tvm.ir.Call))) for b in blocks) == 1


@needs_nvcc
def test_nvcc_takes_the_source():
    source = whole_source(module(*CASES["gradient-bfloat16"]))
    assert machine_code(source, arch_of(TARGET))
