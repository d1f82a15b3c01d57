"""Operators from ONNX that change a tensor's shape."""

import numpy as np
import pytest

import graphgrad as gg
from graphgrad.errors import ModelError
from tests.frontend.converters.movement import assert_moves, moving_node, values
from tests.frontend.converters.nodes import node_model

CASES = [
    ("Concat", (2, 3), (values(2, 1),), {"axis": -1, "opset": 7}),
    ("Concat", ("n", 3), (values(2, 3), values(1, 3)), {"axis": 0}),
    ("DepthToSpace", (2, 8, 2, 3), (), {"blocksize": 2, "opset": 7}),
    ("DepthToSpace", ("n", 8, 2, 3), (), {"blocksize": 2, "mode": "CRD"}),
    ("DepthToSpace", (2, 8, 2, 3), (), {"blocksize": 2, "mode": "DCR"}),
    ("DepthToSpace", (2, 0, 2, 3), (), {"blocksize": 1, "mode": "CRD"}),
    ("Expand", (3, 1), ([2, 1, 4],), {}),
    ("Expand", (3, 1), ([3, 4],), {"opset": 8}),
    ("Expand", ("n", 1), ([1, 5],), {}),
    ("Expand", (2, 3), ([1],), {}),
    ("Flatten", (0, 2, 3), (), {}),
    ("Flatten", (2, 3, 4), (), {}),
    ("Flatten", (2, 3, 4), (), {"axis": 0, "opset": 7}),
    ("Flatten", (2, 3, 4), (), {"axis": 3}),
    ("Flatten", (2, 3, 4), (), {"axis": -1}),
    ("Flatten", ("n", 3, 4), (), {"axis": 2}),
    ("Identity", ("n", 3), (), {}),
    ("Reshape", (2, 3, 4), ([0, -1],), {}),
    ("Reshape", (2, 3, 4), ([4, 0, 2],), {"opset": 7}),
    ("Reshape", ("n", 3, 4), ([0, 12],), {}),
    ("Reshape", ("n", 3, 4), ([-1, 2],), {}),
    ("Reshape", (0, 3), ([3, 0, 2],), {"allowzero": 1}),
    ("SpaceToDepth", (2, 3, 4, 6), (), {"blocksize": 2, "opset": 7}),
    ("SpaceToDepth", ("n", 3, 4, 6), (), {"blocksize": 2}),
    ("Squeeze", (1, 3, 1), ([-1],), {}),
    ("Squeeze", (1, 3, 1), (), {}),
    ("Squeeze", (1, "n", 1), ([0, 2],), {}),
    ("Squeeze", (1, 3, 1), (), {"axes": [0], "opset": 11}),
    ("Tile", (2, 3), ([2, 1],), {"opset": 7}),
    ("Tile", ("n", 3), ([1, 3],), {}),
    ("Tile", (2, 3), ([0, 2],), {}),
    ("Transpose", (2, 3, 4), (), {}),
    ("Transpose", ("n", 3, 4), (), {"perm": [2, 0, 1], "opset": 7}),
    ("Trilu", (2, 3, 4), (-1,), {"upper": 0}),
    ("Trilu", (2, 3, 4), (1,), {"upper": 1}),
    ("Trilu", (3, 3), (), {}),
    ("Trilu", (3, 3), (2**40,), {"upper": 0}),
    ("Trilu", (3, 3), (-(2**33),), {"upper": 0}),
    ("Trilu", ("n", 4), (-7,), {"upper": 1}),
    ("Unsqueeze", (2, 3), ([-1, 0],), {}),
    ("Unsqueeze", ("n", 3), ([1],), {}),
    ("Unsqueeze", (), ([0],), {}),
    ("Unsqueeze", (2, 3), (), {"axes": [0, 3], "opset": 11}),
]


@pytest.mark.parametrize(("op_type", "shape", "settings", "attributes"), CASES, ids=str)
def test_values_and_gradients(op_type, shape, settings, attributes):
    x = values(*(3 if extent == "n" else extent for extent in shape))
    assert_moves(moving_node(op_type, shape, *settings, **attributes), x)


def test_a_shape_that_is_an_input_is_refused():
    """Stock TVM takes the rank of x for that of the result, and returns x."""
    inputs = {"x": values(3, 1), "shape": values(3).astype("int64")}
    with pytest.raises(ModelError, match=r"input 1 .*constant"):
        gg.from_onnx(node_model("Expand", inputs))


@pytest.mark.parametrize(
    ("proto", "message"),
    [
        (moving_node("Expand", (3, 2), [3, 4]), "extent of 2 cannot be expanded to 4"),
        (moving_node("Squeeze", (1, 3), [1]), "axis 1 has an extent of 3"),
        (moving_node("Squeeze", (1, 3), [2]), r"\[2\] are not different axes of 2"),
        (moving_node("Unsqueeze", (3,), [0, -3]), "not different axes of 3"),
        (moving_node("Tile", (3,), [2, 2]), "2 repeats for a tensor of 1 axes"),
    ],
    ids=["expand", "squeeze", "squeeze_axis", "unsqueeze", "tile"],
)
def test_bad_settings_are_refused(proto, message):
    with pytest.raises(ModelError, match=message):
        gg.from_onnx(proto)


def test_an_axis_that_cannot_be_flattened_at_is_refused():
    with pytest.raises(gg.ModelError, match="axis 3 is none of a tensor of 2 axes"):
        gg.from_onnx(node_model("Flatten", {"x": np.zeros((2, 3))}, axis=3))
