"""Small maps in the launches of the sums that they read: of a batch norm and of its gradient."""

import pytest
import tvm
from tvm import relax, te, tirx

from graphgrad.ir.visits import nodes_in
from graphgrad.lower.cuda.column_tiles import arrives_last
from graphgrad.lower.cuda.compiler import arch_of, machine_code
from graphgrad.lower.cuda.small_maps import _split
from graphgrad.lower.pipeline import lower
from tests.cuda.device import norms
from tests.lower.cuda.sources import TARGET, needs_nvcc, whole_source
from tests.lower.kernel_programs import tensor

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


def slopes(value):
    """Of a sum, in more operations than are repeated for every reader."""
    for _ in range(6):
        value = te.exp(value * 0.5) + value * 0.25
    return value


@pytest.mark.parametrize("outputs", ["large", "sum and large", "slope and large"])
def test_what_reads_a_result_of_its_kernel_stays_behind_it(outputs):
    x, y = tensor(3000, 40), tensor(40, name="y")
    k = te.reduce_axis((0, 3000), "k")
    total = te.compute((40,), lambda c: te.sum(x[k, c], axis=k), name="total")
    slope = te.compute((40,), lambda c: slopes(total[c]), name="slope")
    from_argument = te.compute((40,), lambda c: slopes(y[c]), name="from_argument")
    large = te.compute((3000, 40), lambda n, c: x[n, c] * slope[c] + from_argument[c], name="l")
    results = [{"sum": total, "slope": slope, "large": large}[n] for n in outputs.split(" and ")]
    kernel = te.create_prim_func([x, y, *results])
    split = _split(kernel, 2)
    assert split is not None
    assert split.small_inputs == [1] and split.large_inputs == [0]
    assert len(split.small.params) == 2


def test_kernels_of_one_size_are_not_split():
    x = tensor(64, 40)
    first = te.compute((64, 40), lambda n, c: slopes(x[n, c]), name="first")
    second = te.compute((64, 40), lambda n, c: first[n, c] + first[n, 39 - c], name="second")
    assert _split(te.create_prim_func([x, second]), 1) is None


@needs_nvcc
def test_nvcc_takes_the_source():
    source = whole_source(module(*CASES["gradient-bfloat16"]))
    assert machine_code(source, arch_of(TARGET))
