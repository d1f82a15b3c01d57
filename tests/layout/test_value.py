import numpy as np
import pytest
import tvm
from tvm import relax

from graphgrad.ir.tensor import type_shape
from graphgrad.layout import orders
from graphgrad.layout.value import Bindings, Value

NHWC = orders.channels_last(4)


@pytest.fixture
def bindings():
    return Bindings(["x", "x.permuted"])


def value(bindings, *shape, order=None):
    stored = orders.extents(shape, order or orders.own(len(shape)))
    return Value(bindings, "x", shape, relax.Var("x", relax.TensorType(stored, "float32")), order)


def ops(bindings):
    return [bound.op.name for _, bound in bindings.bound]


def test_a_conversion_is_bound_once(bindings):
    bindings.take("x")
    x = value(bindings, 2, 3, 4, 5)
    assert type_shape(x.in_order(NHWC).ty) == [2, 4, 5, 3]
    assert x.in_order(NHWC).same_as(x.in_order(NHWC))
    [(var, call)] = bindings.bound
    assert var.name == "x.permuted2" and tuple(call.attrs.axes) == (0, 2, 3, 1)


@pytest.mark.parametrize("shape", [(2, 3, 1, 1), (2, 1, 4, 5)])
def test_where_no_element_moves_a_reshape_will_do(bindings, shape):
    x = value(bindings, *shape)
    assert x.movement(NHWC) == 0
    assert type_shape(x.in_order(NHWC).ty) == orders.extents(shape, NHWC)
    assert ops(bindings) == ["relax.reshape"]


def test_reshapes_of_reshapes_are_one(bindings):
    x = value(bindings, 3)
    wide = x.unsqueezed(4)
    assert type_shape(wide.in_order(NHWC).ty) == [1, 1, 3, 1]
    wide = x.unsqueezed(3).unsqueezed(4)
    assert all(call.args[0].same_as(x.plain) for _, call in bindings.bound)
    assert type_shape(wide.plain.ty) == [1, 1, 1, 3]


def test_constants_are_converted_here(bindings):
    array = np.arange(12.0).reshape(3, 2, 2)
    x = Value(bindings, "constant", array.shape, relax.const(array))
    stored = x.unsqueezed(4).in_order(NHWC)
    np.testing.assert_array_equal(stored.value.numpy(), array[None].transpose(NHWC))
    assert x.movement((1, 2, 0)) == 0 and not bindings.bound


def test_movement_counts_what_is_known(bindings):
    assert value(bindings, 2, 3, 4, 5).movement(NHWC) == 120
    assert value(bindings, 2, 3, 4, 5, order=NHWC).movement(NHWC) == 0
    assert value(bindings, tvm.tirx.Var("n", "int64"), 3, 4, 5).movement(NHWC) == 60
    assert value(bindings, 4, 5).unsqueezed_movement((0, 3, 2, 1)) == 20
    assert value(bindings, 5).unsqueezed_movement((0, 3, 2, 1)) == 0


@pytest.mark.parametrize("order, axes, preferred", [
    (None, (0, 3, 1, 2), (0, 2, 3, 1)),  # what a convolution wants is free
    (None, (0, 2, 1, 3), (0, 1, 2, 3)),  # an attention's heads stay the model's business
    (NHWC, (0, 2, 3, 1), (0, 1, 2, 3)),
    (NHWC, (0, 2, 1, 3), (0, 1, 3, 2)),
])  # fmt: skip
def test_relabeled(bindings, order, axes, preferred):
    x = value(bindings, 2, 3, 4, 5, order=order)
    y = x.relabeled("y", axes)
    assert y.shape == [x.shape[axis] for axis in axes] and y.preferred == preferred
    assert not bindings.bound
    stored = y.in_order(y.preferred)
    assert stored.same_as(x.in_order(x.preferred)) == (preferred != (0, 1, 2, 3) or order == NHWC)
    assert type_shape(y.plain.ty) == y.shape
