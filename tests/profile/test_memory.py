"""The memory timeline counts each memory once, from when it is written until it is last read."""

import tvm
from tvm import relax

import graphgrad as gg
from graphgrad.lower.pipeline import lower
from graphgrad.memory.donation import DONATED
from graphgrad.profile.memory import memory_timeline
from graphgrad.profile.origins import OriginRecorder

ELEMENTS = 64
SIZE = 4 * ELEMENTS * ELEMENTS


def timeline(body, count=1, donated=None, **options):
    params = [
        relax.Var(f"x{i}", relax.TensorType([ELEMENTS, ELEMENTS], "float32")) for i in range(count)
    ]
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            result = builder.emit_output(body(builder.emit, *params))
        builder.emit_func_output(result)
    mod = builder.get()
    if donated is not None:
        mod["main"] = mod["main"].with_attr(DONATED, donated)
    recorder = OriginRecorder("main")
    with tvm.transform.PassContext(opt_level=2, instruments=[recorder]):
        lower(mod, gg.target("llvm"))
    return memory_timeline(recorder.module, "main", recorder.calls, **options)


def chain(emit, x):
    for _ in range(4):
        x = emit(relax.op.matmul(x, x))
    return x


def test_a_value_is_in_use_until_it_is_last_read():
    found = timeline(chain)
    assert found.arguments == SIZE
    assert found.tensors == (2 * SIZE, 3 * SIZE, 3 * SIZE, 3 * SIZE)
    assert found.peak_bytes == found.tensors[found.peak] + found.scratch[found.peak]


def test_what_is_read_late_is_in_use_all_along():
    def body(emit, x):
        first = emit(relax.op.matmul(x, x))
        second = emit(relax.op.matmul(first, x))
        third = emit(relax.op.matmul(second, x))
        return emit(relax.op.matmul(third, first))

    found = timeline(body)
    assert found.tensors == (2 * SIZE, 3 * SIZE, 4 * SIZE, 4 * SIZE)
    kinds = {tensor.kind: tensor for tensor in found.at_peak}
    assert set(kinds) <= {"argument", "value", "result"}
    assert kinds["argument"].name == "x0" and kinds["argument"].call is None
    assert sum(tensor.bytes for tensor in found.at_peak) == found.tensors[found.peak]
    assert {tensor.call for tensor in found.at_peak} <= {None, 0, 1, 2, 3}


def test_views_are_counted_once():
    def body(emit, x):
        y = emit(relax.op.reshape(emit(relax.op.matmul(x, x)), [ELEMENTS * ELEMENTS]))
        y = emit(relax.op.reshape(y, [ELEMENTS, ELEMENTS]))
        return emit(relax.op.matmul(y, x))

    assert timeline(body).tensors == (2 * SIZE, 3 * SIZE)


def test_what_is_overwritten_takes_no_more_memory():
    def body(emit, x):
        return emit(relax.op.multiply(x, relax.const(2.0)))

    assert timeline(body).tensors == (2 * SIZE,)
    assert timeline(body, donated=[[0, 0]]).tensors == (SIZE,)


def test_scratch_of_kernels_is_counted_on_processors():
    found = timeline(chain, counts_scratch=False)
    assert found.scratch == (0,) * 4
    assert found.peak_bytes == 3 * SIZE


def test_a_function_without_kernels():
    found = memory_timeline(*_nothing())
    assert found.tensors == () and found.at_peak == ()
    assert found.peak_bytes == found.arguments == SIZE


def _nothing():
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([ELEMENTS, ELEMENTS], "float32"))
    with builder.function("main", [x]):
        builder.emit_func_output(x)
    return builder.get(), "main", []
