"""Max poolings that tell where their maxima are: which do, and what is in no memory then."""

import pytest
import tvm
from tvm import relax

import graphgrad as gg
from graphgrad.ir.kernel_calls import arguments_of, is_kernel_call
from graphgrad.ir.tensor import Emitter
from graphgrad.ir.visits import nodes_in
from graphgrad.lower.cuda.max_pool import find_maxima
from graphgrad.lower.pipeline import lower
from graphgrad.ops.pool import max_pool, max_pool_index, max_pool_scatter
from graphgrad.ops.pool_windows import Pool
from tests.lower.cuda.sources import TARGET, cuda_source
from tests.lower.programs import tensor_type

op, const = relax.op, relax.const

SHAPE = (2, 56, 56, 32)


def pooled(x, size=3, strides=2, padding=1, layout="NHWC"):
    return op.nn.max_pool2d(x, (size,) * 2, (strides,) * 2, (padding,) * 2, layout=layout)


def kernels(function, shape=SHAPE):
    """Return the names of the kernels of a function with its gradient, in order."""
    x = relax.Var("x", tensor_type(*shape))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(function(x))
        builder.emit_func_output(result)
    lowered = lower(gg.vjp(builder.get(), "main"), TARGET)
    calls = nodes_in(lowered["main_vjp"], tvm.ir.Call)
    return [str(call.op.name_hint) for call in calls if isinstance(call.op, tvm.ir.GlobalVar)]


def test_what_only_a_pooling_reads_is_in_no_memory():
    pooling, gradient = kernels(lambda x: pooled(op.nn.relu(op.multiply(x, x))))
    assert pooling == "fused_multiply_relu_max_pool_with_index"
    # The mask is that of the maxima, and in the kernel that multiplies by x.
    assert gradient.startswith("fused_less_equal_where_scattered_maxima_multiply")


def test_what_a_pooling_scatters_is_in_no_memory():
    def centered(x):
        return op.subtract(op.multiply(x, x), op.mean(x, [0, 1, 2], keepdims=True))

    names = kernels(lambda x: pooled(op.nn.relu(centered(x))))
    # A sum and a map read it, and each computes it.
    assert sum("scattered_maxima" in name for name in names) == 2
    assert "scattered_maxima" not in names


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (lambda x: pooled(op.nn.relu(x), layout="NCHW"), SHAPE),
        (lambda x: pooled(op.nn.relu(x), strides=1), SHAPE),  # nine windows over an element
        (lambda x: pooled(op.nn.relu(x), size=16, strides=16, padding=0), (2, 64, 64, 32)),
    ],
    ids=["channels-first", "overlapping", "many-terms"],
)
def test_other_poolings_are_as_they_were(function, shape):
    names = kernels(function, shape)
    assert any("max_pool_index" in name for name in names)
    assert not any("with_index" in name for name in names)


def is_masked_before(choice):
    """Return whether a choice behind a pooling's gradient is one in front of it afterwards."""
    pool = Pool((3, 3), (2, 2), (1,) * 4, (1, 1), layout="NHWC")
    x = relax.Var("x", tensor_type(*SHAPE))
    ct = relax.Var("ct", tensor_type(2, 28, 28, 32))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, ct]):
        with builder.dataflow():
            emitter = Emitter(builder)
            tensor, cotangent = emitter.lift(x), emitter.lift(ct)
            maxima = max_pool(tensor, pool)
            index = max_pool_index(tensor, maxima, pool)
            scattered = max_pool_scatter(cotangent, index, SHAPE, pool)
            chosen = choice(x, scattered.expr)
            outputs = [builder.emit_output(each) for each in (maxima.expr, chosen)]
        builder.emit_func_output(relax.Tuple(outputs))
    bindings = find_maxima(builder.get())["main"].body.blocks[0].bindings
    calls = [each.value for each in bindings if is_kernel_call(each.value)]
    (scatter,) = [call for call in calls if call.args[0].name_hint == "scattered_maxima"]
    return not arguments_of(scatter)[0].same_as(ct)


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (lambda x, y: op.where(op.less_equal(x, const(0.0)), const(0.0), y), True),
        (lambda x, y: op.where(op.less_equal(x, const(0.5)), const(0.0), y), True),
        (lambda x, y: op.where(op.less_equal(x, const(0.0)), const(1.0), y), False),
        (lambda x, y: op.where(op.less_equal(y, const(0.0)), const(0.0), y), False),
        (lambda x, y: op.where(op.less_equal(x, x), const(0.0), y), False),
        (lambda x, y: op.where(op.less_equal(x, const(0.0)), y, const(0.0)), False),
        (lambda x, y: op.add(y, op.where(op.less_equal(x, const(0.0)), const(0.0), y)), False),
    ],
    ids=["relu", "of-a-half", "else-one", "itself", "of-a-tensor", "negative", "read-twice"],
)
def test_masks_in_front_of_the_scatter(choice, expected):
    assert is_masked_before(choice) == expected


@pytest.mark.parametrize(
    ("size", "strides", "shape"),
    [(9, 7, (2, 30, 30, 16)), (11, 5, (2, 16, 16, 32)), (11, 10, (2, 56, 56, 32))],
)
def test_numbers_of_taps_fit_their_dtype(size, strides, shape):
    """The numbers of taps of windows that do not reach an element would be above 127."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", tensor_type(*shape))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit_output(pooled(op.nn.relu(op.multiply(x, x)), size, strides, 0))
        builder.emit_func_output(y)
    assert "scattered_maxima" in cuda_source(gg.vjp(builder.get(), "main"))
