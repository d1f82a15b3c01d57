"""Col2Im from ONNX; onnxruntime has none for float64."""

from itertools import product

import numpy as np
import pytest
from onnx import TensorProto

from tests.frontend.converters.movement import assert_moves, moving_node, values
from tests.frontend.converters.nodes import forward

CASES = [
    ((2, 12, 12), [4, 5], [2, 2], {}),
    ((1, 4, 4), [5, 5], [2, 2], {"strides": [2, 2]}),
    ((1, 6, 30), [5, 5], [1, 3], {"pads": [1, 0, 0, 2]}),
    ((1, 4, 15), [6, 6], [2, 2], {"dilations": [1, 3]}),
    ((1, 9, 6), [8], [3], {}),
    ((1, 8, 8), [3, 3, 3], [2, 2, 2], {}),
]


def folded(columns, image, block, strides=None, dilations=None, pads=None):
    """Return the image, by the definition: one element of one block at a time."""
    rank = len(image)
    strides, dilations = strides or [1] * rank, dilations or [1] * rank
    pads = pads or [0] * (2 * rank)
    extents = [n + pads[k] + pads[k + rank] for k, n in enumerate(image)]
    counts = [
        (n - dilations[k] * (block[k] - 1) - 1) // strides[k] + 1 for k, n in enumerate(extents)
    ]
    batch, channels = len(columns), columns.shape[1] // np.prod(block)
    x = columns.reshape(batch, channels, *block, *counts)
    y = np.zeros((batch, channels, *extents))
    for tap in product(*map(range, block)):
        for at in product(*map(range, counts)):
            place = (tap[k] * dilations[k] + at[k] * strides[k] for k in range(rank))
            y[(..., *place)] += x[(..., *tap, *at)]
    return y[(..., *(slice(pads[k], pads[k] + n) for k, n in enumerate(image)))]


@pytest.mark.parametrize(("shape", "image", "block", "attributes"), CASES, ids=str)
def test_values_and_gradients(shape, image, block, attributes):
    proto, x = moving_node("Col2Im", shape, image, block, **attributes), values(*shape)
    assert_moves(proto, x, [folded(x, image, block, **attributes)])


def test_symbolic_batch():
    x = values(2, 4, 9)
    proto = moving_node("Col2Im", ("n", 4, 9), [4, 4], [2, 2])
    assert_moves(proto, x, [folded(x, [4, 4], [2, 2])])


def test_booleans_that_meet():
    """One of them is enough."""
    columns = np.array([[[1, 1, 0], [1, 0, 1]]], bool)
    proto = moving_node("Col2Im", columns.shape, [4], [2])
    for value in (proto.graph.input[0], proto.graph.output[0]):
        value.type.tensor_type.elem_type = TensorProto.BOOL
    np.testing.assert_array_equal(forward(proto, {"x": columns})[0], [[[1, 1, 0, 1]]])
