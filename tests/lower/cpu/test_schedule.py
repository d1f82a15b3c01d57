"""Scheduling whole modules: what is left alone, what is done once."""

import ml_dtypes
import numpy as np
import tvm
import tvm_ffi
from tvm import te, tirx, topi
from tvm.ir import prim
from tvm.s_tir import Schedule, ScheduleError
from tvm.script import tirx as T

from graphgrad.fallback import create_prim_func
from graphgrad.ir.kernel_structure import stages
from graphgrad.lower.cpu import schedule as cpu
from tests.lower.kernel_programs import HOST, UNIT, run, tensor


def add_function():
    x = tensor(64, 512)
    return te.create_prim_func([x, topi.add(x, x)])


@T.prim_func(private=True, s_tir=True)
def opaque(x: T.Buffer((64, 512), "float32"), out: T.Buffer((64, 512), "float32")):
    with T.sblock("all"):
        for i in range(64):
            out[i, 0] = x[i, 0]
            for j in range(511):
                out[i, j + 1] = out[i, j] + x[i, j + 1]


def test_unknown_structures_are_left_alone():
    assert cpu.schedule_loops(opaque, UNIT).same_as(opaque)


def test_functions_of_scalars_are_left_alone():
    x = tensor()
    func = te.create_prim_func([x, topi.exp(x)])
    assert cpu.schedule_loops(func, UNIT).same_as(func)


def test_scalars_do_not_keep_other_stages_from_schedules():
    x, y = tensor(), tensor(64, 512, name="y")
    result = run([x, y], [topi.multiply(topi.exp(x), y)])
    result.agree()
    assert "parallel" in result.text and "vectorized" in result.text


def test_scalars_between_a_product_and_its_epilogue():
    """A quotient of constants in a fused kernel once left the whole product to a naive loop."""
    x, w, c = tensor(32, 48), tensor(48, 64, name="w"), tensor(name="c")
    result = run([x, w, c], [topi.multiply(topi.matmul(x, w), topi.divide(c, tirx.const(2.0)))])
    result.agree()
    assert "contraction" in result.text


def test_values_of_any_dtype_that_are_bound():
    """A float32 that is bound may be one that is rounded to bfloat16; others are none."""
    x, number = tensor(64, 512, dtype="float64"), tirx.Var("number", "float64")
    runs = run([x], [te.compute(x.shape, lambda i, j: prim.Let(number, x[i, j], number * number))])
    runs.agree()
    assert runs.vectors


def test_scheduled_functions_are_left_alone():
    func = add_function().with_attr("tirx.is_scheduled", True)
    assert cpu.schedule_loops(func, UNIT).same_as(func)


def test_a_failing_schedule_leaves_the_function_alone(monkeypatch):
    def fail(*_):
        raise ScheduleError("no")

    func = add_function()
    monkeypatch.setattr(cpu, "schedule_map", fail)
    assert cpu.schedule_loops(func, UNIT).same_as(func)


def test_what_tvm_refuses_to_take_apart_is_scheduled_whole(monkeypatch):
    x = tensor(64, 48)
    k = te.reduce_axis((0, 48), "k")
    even = te.compute((32,), lambda i: te.sum(x[2 * i, k], axis=k), name="even")
    odd = te.compute((32,), lambda i: te.sum(x[2 * i + 1, k] * 2.0, axis=k), name="odd")
    merged = te.compute(
        (64,), lambda i: tirx.if_then_else(i % 2 == 0, even[i // 2], odd[i // 2]), name="merged"
    )
    asked = []

    def schedule(func):
        asked.append(func)
        if len(asked) > 1:
            raise tvm.error.InternalError("no")
        return Schedule(func)

    monkeypatch.setattr(cpu, "schedule_of", schedule)
    result = run([x], [merged])
    result.agree()
    assert len(asked) > 1
    assert result.changed


def test_attributes_are_kept():
    func = add_function().with_attr("op_pattern", 0)
    assert cpu.schedule_loops(func, UNIT).attrs["op_pattern"] == 0


def test_identical_functions_are_scheduled_once():
    scheduled = {}
    first, second = (
        cpu.schedule_loops(add_function(), UNIT, scheduled=scheduled) for _ in range(2)
    )
    assert first.same_as(second)


def test_the_kernel_given_is_not_changed():
    func = add_function()
    before = func.script()
    assert cpu.schedule_loops(func, UNIT).script() != before
    assert func.script() == before


def test_schedules_are_the_same_every_time():
    x, w = tensor(4, 16, 8, 8), tensor(32, 16, 3, 3, name="w")
    func = te.create_prim_func([x, w, topi.nn.conv2d_nchw(x, w, 1, 1, 1)])
    first, second = (cpu.schedule_loops(func, UNIT) for _ in range(2))
    assert tvm_ffi.structural_equal(first, second)


def test_a_broadcast_intermediate_is_computed_once_per_element():
    x, v = tensor(64, 512), tensor(512, name="v")
    scale = topi.rsqrt(topi.add(v, 2))
    result = run([x, v], [topi.multiply(x, scale)])
    result.agree()
    assert "sblock_alloc_buffer" in result.text


def test_what_inlining_binds_is_read_as_a_number():
    """TVM would take the bits of the bfloat16 for an integer."""
    x = te.placeholder((64,), "bfloat16", "x")
    wide = te.compute((64,), lambda i: x[i].astype("float32") * 1.7, name="wide")
    rounded = te.compute((64,), lambda i: wide[i].astype("bfloat16").astype("float32"), name="r")
    y = te.compute((64,), lambda i: rounded[i] + rounded[i], name="y")
    kernel = cpu.schedule_loops(create_prim_func([x, y]), UNIT)
    (stage,) = stages(kernel)
    assert stage.name == "y"  # the others are inside
    given = np.linspace(-3, 3, 64).astype(ml_dtypes.bfloat16)
    expected = (given.astype("float32") * np.float32(1.7)).astype(ml_dtypes.bfloat16)
    result = tvm.runtime.tensor(np.zeros(64, "float32"))
    tvm.compile(kernel, HOST)(tvm.runtime.tensor(given), result)
    np.testing.assert_array_equal(result.numpy(), 2 * expected.astype("float32"))
