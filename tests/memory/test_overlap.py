"""What a function overwrites may share no memory with its other arguments."""

import numpy as np
import pytest
import tvm
from tvm import relax

import graphgrad as gg
from graphgrad.ir.arrays import to_tensor
from graphgrad.lower.pipeline import lower
from graphgrad.lower.target import target
from tests.running import F64, function

op = relax.op


def accumulating(*shape):
    """`f(x, y, ct, accumulator of x)` returns x·y and the sum."""
    mod = gg.vjp(
        function(lambda b, x, y: b.emit(op.multiply(x, y)), (shape, F64), (shape, F64)),
        wrt="x0",
        grad_req="add",
    )
    del mod["main"]
    return mod


def accumulating_tuple():
    """`f(x, (a, y), ct, accumulator of x)` returns x·y and the sum; all have 3 elements."""
    pair = relax.TupleType([relax.TensorType((3,), F64)] * 2)
    builder = relax.BlockBuilder()
    x, p = relax.Var("x", relax.TensorType((3,), F64)), relax.Var("p", pair)
    with builder.function("main", [x, p]):
        with builder.dataflow():
            result = builder.emit_output(op.multiply(x, p[1]))
        builder.emit_func_output(result)
    return gg.vjp(builder.get(), wrt="x", grad_req="add")


def reading_last(ty):
    """`main(x, y)` returns x + 1, in the memory of x, and y in order, which it reads last.

    What it knows of y is the type; it has 3 elements.
    """
    three = relax.TensorType((3,), F64)
    x, y = relax.Var("x", three), relax.Var("y", ty)
    builder = relax.BlockBuilder()
    with builder.function("main", [x, y], attrs={"graphgrad.donated": [[0, 0]]}):
        total = builder.emit(op.add(x, relax.const(1.0, F64)))
        ordered = builder.emit(op.sort(builder.match_cast(y, three)))
        builder.emit_func_output(relax.Tuple([total, ordered]))
    return builder.get()


def machine(mod):
    return relax.VirtualMachine(gg.compile(mod), tvm.cpu())["main_vjp"]


def tensors(*shapes):
    return [to_tensor(np.arange(1.0, 1 + int(np.prod(shape))).reshape(shape)) for shape in shapes]


def test_the_same_tensor_twice_is_refused_before_anything_changes():
    f = machine(accumulating(3, 4))
    x, y, ct = tensors(*[(3, 4)] * 3)
    before = x.numpy().copy()
    with pytest.raises(gg.AliasError, match=r"'accumulator.x0' of 'main_vjp' .* memory with 'x0'"):
        f(x, y, ct, x)
    np.testing.assert_array_equal(x.numpy(), before)
    with pytest.raises(gg.AliasError, match=r"with 'ct'; pass a copy"):
        f(x, y, ct, ct)
    accumulator = gg.copy(ct)
    np.testing.assert_allclose(f(x, y, ct, accumulator)[1][0].numpy(), before + before**2)


def test_arguments_that_are_only_read_may_be_one_tensor():
    f = machine(accumulating(3, 4))
    x, old = tensors(*[(3, 4)] * 2)
    expected = old.numpy() + x.numpy() ** 2
    np.testing.assert_allclose(f(x, x, x, old)[1][0].numpy(), expected)


@pytest.mark.parametrize(("offset", "refused"), [(64, True), (8 * 64, False)])
def test_views_of_one_buffer(offset, refused):
    f = machine(accumulating(8, 8))
    [whole] = tensors((3, 8, 8))
    y, ct = tensors((8, 8), (8, 8))
    x = whole._create_view((8, 8), F64)
    accumulator = whole._create_view((8, 8), F64, relative_byte_offset=offset)
    # The runtime takes tensors that begin where their memory does.
    accumulator = tvm.runtime.from_dlpack(np.from_dlpack(accumulator)) if offset else accumulator
    if refused:
        with pytest.raises(gg.AliasError):
            f(x, y, ct, accumulator)
    else:
        f(x, y, ct, accumulator)


def test_symbolic_and_empty_tensors():
    n = tvm.tirx.Var("n", "int64")
    f = machine(accumulating(n, 4))
    x, y, ct = tensors(*[(5, 4)] * 3)
    with pytest.raises(gg.AliasError):
        f(x, y, ct, ct)
    [nothing] = tensors((0, 4))
    assert f(nothing, nothing, nothing, nothing)[1][0].numpy().shape == (0, 4)


def test_many_accumulators_are_checked_among_themselves():
    def chain(builder, *weights):
        total = weights[0]
        for weight in weights[1:]:
            total = builder.emit(op.multiply(total, weight))
        return total

    mod = gg.vjp(function(chain, *[((2,), F64)] * 20), grad_req="add")
    f = machine(mod)
    arrays = tensors(*[(2,)] * 41)
    f(*arrays)
    arrays[40] = arrays[25]
    with pytest.raises(gg.AliasError, match=r"'accumulator.x4' .* with 'accumulator.x19'"):
        f(*arrays)


def test_tensors_of_a_tuple_are_checked():
    f = machine(accumulating_tuple())
    x, a, b, ct, old = tensors(*[(3,)] * 5)
    f(x, (a, b), ct, old)
    with pytest.raises(gg.AliasError, match=r"'accumulator.x' .* with 'p\[1\]'"):
        f(x, (a, old), ct, old)


def test_tensors_of_unknown_shape():
    mod = reading_last(relax.TensorType(ndim=1, dtype=F64))
    f = relax.VirtualMachine(gg.compile(mod), tvm.cpu())["main"]
    x, y = tensors((3,), (3,))
    with pytest.raises(gg.AliasError, match=r"'x' of 'main' .* with 'y'"):
        f(x, x)
    assert f(x, y)[0].data_ptr() == x.data_ptr()


def test_functions_that_overwrite_nothing_are_not_checked():
    mod = function(lambda b, x, y: b.emit(op.multiply(x, y)), ((2,), F64), ((2,), F64))
    names = [variable.name_hint for variable in lower(mod, target("llvm")).functions]
    assert not any("overlap" in name for name in names)
