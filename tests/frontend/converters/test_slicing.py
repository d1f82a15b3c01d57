"""Operators from ONNX that cut tensors."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import graphgrad as gg
from graphgrad.errors import ModelError
from tests.frontend.converters.movement import assert_moves, moving_node, values
from tests.frontend.converters.nodes import node_model

LARGEST, SMALLEST = 2**63 - 1, -(2**63)

SLICES = [
    ([1], [3], [0], [1]),
    ([0, -2], [LARGEST, LARGEST], [0, 1], None),
    ([-1], [SMALLEST], [-2], [-1]),
    ([-1, 5], [-100, 0], [0, 1], [-2, -3]),
    ([100], [-100], [0], [-1]),
    ([3], [1], [0], [1]),
    ([1, 1], [3, 5], None, None),
]


@pytest.mark.parametrize("bounds", SLICES, ids=str)
@pytest.mark.parametrize("shape", [(5, 6), ("n", "m")], ids=str)
def test_slice(bounds, shape):
    assert_moves(moving_node("Slice", shape, *bounds), values(5, 6))


@pytest.mark.parametrize(
    "bounds", [([5], [-1], [0]), ([-4], [-1], [0]), ([1], [LARGEST], [0]), ([0], [2], [0], [3])]
)
@pytest.mark.parametrize("extent", [1, 2, 3])
def test_slice_of_a_short_symbolic_axis(bounds, extent):
    assert_moves(moving_node("Slice", ("n", 2), *bounds), values(extent, 2))


def test_slice_with_attributes():
    proto = moving_node("Slice", (5, 6), starts=[1, -3], ends=[4, LARGEST], axes=[0, 1], opset=9)
    assert_moves(proto, values(5, 6))


def test_the_extent_of_a_symbolic_slice_is_simple():
    model = gg.from_onnx(moving_node("Slice", ("n", 2), [1], [LARGEST], [0]))
    assert str(model.mod["main"].ret_ty.shape[0]) == "n - T.int64(1)"


def test_bounds_that_are_inputs_are_refused():
    inputs = {
        "x": values(3),
        "starts": values(1).astype("int64"),
        "ends": values(1).astype("int64"),
    }
    with pytest.raises(ModelError, match=r"input 1 .*constant"):
        gg.from_onnx(node_model("Slice", inputs))


def test_a_step_of_zero_is_refused():
    with pytest.raises(ModelError, match="step 0"):
        gg.from_onnx(moving_node("Slice", (3,), [0], [2], [0], [0]))


@pytest.mark.parametrize(
    ("shape", "settings", "attributes"),
    [
        ((7, 2), (), {"outputs": 3, "num_outputs": 3}),
        ((7, 2), ([2, 0, 5],), {"outputs": 3}),
        ((2, 6), (), {"outputs": 2, "axis": -1, "opset": 13}),
        ((2, 6), (), {"outputs": 2, "axis": 1, "split": [1, 5], "opset": 11}),
        ((2, 6), (), {"outputs": 1, "num_outputs": 1}),
        (("n", 6), ([1, 5],), {"outputs": 2, "axis": 1}),
        (("n", 6), ([3, 4],), {"outputs": 2}),
        (("n", 6), (), {"outputs": 3, "num_outputs": 3}),
    ],
    ids=str,
)
def test_split(shape, settings, attributes):
    x = values(*(7 if extent == "n" else extent for extent in shape))
    assert_moves(moving_node("Split", shape, *settings, **attributes), x)


@pytest.mark.parametrize(
    ("wanted", "attributes"),
    [([3, 4], {}), ([6, 7], {}), ([7], {"axes": [-1]}), ([2, 8], {"axes": [1, 0]})],
    ids=str,
)
def test_center_crop_pad(wanted, attributes):
    assert_moves(moving_node("CenterCropPad", (4, 5), wanted, **attributes), values(4, 5))


@pytest.mark.parametrize(("start", "end"), [(0, -1), (-2, 0), (-7, -1)])
def test_bounds_may_depend_on_a_symbolic_extent(start, end):
    """x[extent + start : extent + end]"""
    shifts = {name: np.array([by], "int64") for name, by in [("a", start), ("b", end), ("zero", 0)]}
    nodes = [
        helper.make_node("Shape", ["x"], ["extent"], end=1),
        helper.make_node("Add" if start else "Mul", ["extent", "a"], ["start"]),
        helper.make_node("Add", ["extent", "b"], ["end"]),
        helper.make_node("Slice", ["x", "start", "end", "zero"], ["y"], "node"),
    ]
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.DOUBLE, ["n", 2])],
        [helper.make_tensor_value_info("y", TensorProto.DOUBLE, [None, 2])],
        [numpy_helper.from_array(by, name) for name, by in shifts.items()],
    )
    opsets = [helper.make_opsetid("", 21)]
    assert_moves(helper.make_model(graph, opset_imports=opsets, ir_version=10), values(5, 2))
