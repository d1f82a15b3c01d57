"""Choice of boxes from ONNX, against onnxruntime."""

import numpy as np
import pytest
from onnx import TensorProto, numpy_helper

import graphgrad as gg
from tests.frontend.converters.nodes import assert_like_onnxruntime, drawn, node_model


def suppression(scores, *limits, constant=True, **attributes):
    ends = drawn((2, 6, 4), 0, 4, seed=1)
    arrays = {"boxes": ends + np.array([0, 0, 1, 1], "float32"), "scores": scores}
    dtypes = ("int64", "float32", "float32")
    constants = {
        name: np.array(limit, dtype)
        for name, limit, dtype in zip(("most", "iou", "score"), limits, dtypes, strict=False)
        if limit is not None
    }
    named = {n: constants.get(n) for n in ("most", "iou", "score")[: len(limits)]}
    proto = node_model(
        "NonMaxSuppression",
        arrays | named,
        types={"y": TensorProto.INT64},
        ranks={"y": 2},
        **attributes,
    )
    if constant:
        kept = [value for value in proto.graph.input if value.name not in constants]
        del proto.graph.input[:]
        proto.graph.input.extend(kept)
        tensors = [numpy_helper.from_array(a, n) for n, a in constants.items()]
        proto.graph.initializer.extend(tensors)
    return proto, arrays


SCORES = drawn((2, 2, 6), -3, 3, seed=2)


@pytest.mark.parametrize(
    "limits",
    [(), (0,), (3,), (2**40, 0.0), (4, 0.4, 0.1), (4, 0.4, -1.5), (4, None, -2.0)],
    ids=str,
)
def test_limits_are_those_of_the_standard(limits):
    assert_like_onnxruntime(*suppression(SCORES, *limits))


@pytest.mark.parametrize("centered", [0, 1])
def test_equal_scores_and_centered_boxes(centered):
    scores = np.round(SCORES)
    assert_like_onnxruntime(*suppression(scores, 5, 0.3, center_point_box=centered))


def test_a_limit_that_is_no_constant_is_refused():
    proto, _ = suppression(SCORES, 5, 0.3, constant=False)
    with pytest.raises(gg.ModelError, match="make it a constant"):
        gg.from_onnx(proto)
