"""Resize, Upsample, GridSample and AffineGrid from ONNX: outputs and gradients."""

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import graphgrad as gg
from graphgrad.errors import ModelError
from tests.frontend.converters.movement import moving_node
from tests.frontend.converters.nodes import assert_like_onnxruntime, drawn, forward, node_model
from tests.frontend.converters.sampling import assert_samples
from tests.peers import peer
from tests.running import F64

NCHW = (1, 2, 4, 5)


def scales(*values):
    return np.array(values, "float32")


def resize(shape, by, *, sizes=None, roi=None, **attributes):
    return moving_node("Resize", shape, roi, by, sizes, **attributes)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize(
    "coordinates",
    ["half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners", "half_pixel_symmetric"],
)
def test_resize_to_sizes(mode, coordinates):
    proto = resize(
        NCHW, None, sizes=[1, 2, 7, 3], mode=mode, coordinate_transformation_mode=coordinates
    )
    assert_samples(proto, drawn(NCHW, dtype=F64))


@pytest.mark.parametrize(
    ("coordinates", "rounding"),
    [
        ("half_pixel", "round_prefer_floor"),
        ("half_pixel", "round_prefer_ceil"),
        ("asymmetric", "floor"),
        ("asymmetric", "ceil"),
        ("align_corners", "round_prefer_floor"),
        ("align_corners", "round_prefer_ceil"),
    ],
)
def test_resize_by_the_nearest(coordinates, rounding):
    proto = resize(
        NCHW,
        None,
        sizes=[1, 2, 7, 3],
        mode="nearest",
        nearest_mode=rounding,
        coordinate_transformation_mode=coordinates,
    )
    assert_samples(proto, drawn(NCHW, dtype=F64))


@pytest.mark.parametrize("by", [scales(1, 1, 2, 0.6), scales(1, 1, 1 / 3, 2.3)], ids=str)
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_resize_by_scales(mode, by):
    shape = (1, 1, 6, 5)
    assert_samples(resize(shape, by, mode=mode), drawn(shape, dtype=F64))


def test_cubic_without_what_is_outside():
    proto = resize(
        NCHW, scales(1, 1, 1.5, 0.6), mode="cubic", exclude_outside=1, cubic_coeff_a=-0.5
    )
    assert_samples(proto, drawn(NCHW, dtype=F64))


@pytest.mark.parametrize(
    ("shape", "sizes"), [((5,), [3]), ((4, 3), [6, 3]), ((2, 3, 2, 4, 3), [2, 3, 3, 2, 6])], ids=str
)
def test_resize_of_other_ranks(shape, sizes):
    x, proto = drawn(shape, dtype=F64), resize(shape, None, sizes=sizes, mode="linear")
    assert_samples(proto, x, expected=ReferenceEvaluator(proto).run(None, {"x": x}))


@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
def test_resize_that_keeps_the_aspect_ratio(policy):
    proto = resize(
        NCHW, None, sizes=[7, 7], axes=[2, 3], keep_aspect_ratio_policy=policy, mode="linear"
    )
    assert_samples(proto, drawn(NCHW, dtype=F64))


def test_resize_of_an_axis_counted_from_the_end():
    x = drawn(NCHW, dtype=F64)
    expected = forward(resize(NCHW, None, sizes=[3], axes=[3], mode="linear"), {"x": x})
    given = forward(resize(NCHW, None, sizes=[3], axes=[-1], mode="linear"), {"x": x})
    np.testing.assert_array_equal(given, expected)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("by", [scales(1, 1, 0.6, 0.4), scales(1, 1, 1.5, 0.5)], ids=str)
def test_antialiased_resize_is_that_of_the_standard(mode, by):
    """onnxruntime and torch cut the widened kernel off at the border; the standard repeats it."""
    x = drawn((1, 1, 5, 6), dtype=F64)
    proto = resize(x.shape, by, mode=mode, antialias=1)
    assert_samples(proto, x, expected=ReferenceEvaluator(proto).run(None, {"x": x}))


@pytest.mark.parametrize("axes", [None, [3, 2]], ids=["all", "some"])
def test_crop_and_resize(axes):
    roi = [0, 0, 0.2, -0.1, 1, 1, 0.9, 1.3] if axes is None else [-0.1, 0.2, 1.3, 0.9]
    attributes = {} if axes is None else {"axes": axes}
    proto = resize(
        NCHW,
        None,
        sizes=[1, 2, 3, 6] if axes is None else [6, 3],
        roi=scales(*roi),
        mode="linear",
        coordinate_transformation_mode="tf_crop_and_resize",
        extrapolation_value=7.0,
        **attributes,
    )
    assert_samples(proto, drawn(NCHW, dtype=F64))


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize(("operator", "opset"), [("Upsample", 7), ("Upsample", 9), ("Resize", 10)])
def test_resizing_in_old_opsets(operator, opset, mode):
    by = scales(1, 1, 2, 3)
    if opset == 7:
        proto = moving_node(operator, NCHW, opset=opset, mode=mode, scales=by.tolist())
    else:
        proto = moving_node(operator, NCHW, by, opset=opset, mode=mode)
    assert_samples(proto, drawn(NCHW, dtype=F64))


def test_opset_10_picks_upwards_where_it_shrinks():
    proto = moving_node("Resize", (1, 1, 5, 5), scales(1, 1, 0.6, 0.5), opset=10, mode="nearest")
    assert_samples(proto, drawn((1, 1, 5, 5), dtype=F64))


def test_resize_of_a_symbolic_batch():
    proto = resize(("n", 2, 4, 5), scales(1, 1, 2, 2), mode="linear")
    assert_samples(proto, drawn((3, 2, 4, 5), dtype=F64))


def test_nearest_of_integers():
    x = np.arange(8, dtype="int32").reshape(1, 1, 2, 4)
    proto = node_model("Resize", {"x": x, "roi": None, "s": scales(1, 1, 2, 0.5)}, opset=13)
    fixed = moving_node("Resize", x.shape, None, scales(1, 1, 2, 0.5))
    proto.graph.initializer.extend(fixed.graph.initializer)
    del proto.graph.input[1]
    proto.graph.node[0].input[2] = fixed.graph.initializer[0].name
    assert_like_onnxruntime(proto, {"x": x})


@pytest.mark.parametrize(("padding", "align"), [("zeros", 0), ("border", 1), ("reflection", 0)])
@pytest.mark.parametrize(("mode", "opset"), [("bilinear", 16), ("nearest", 16), ("cubic", 20)])
def test_grid_sample(mode, opset, padding, align):
    x, grid = drawn((1, 2, 3, 4), dtype=F64), drawn((1, 2, 3, 2), -1.6, 1.6, seed=1, dtype=F64)
    attributes = {"mode": mode, "padding_mode": padding, "align_corners": align}
    proto = node_model("GridSample", {"x": x, "grid": grid}, opset=opset, **attributes)
    assert_samples(proto, x, grid)


@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_grid_sample_in_space(mode):
    x, grid = drawn((2, 1, 3, 2, 4), dtype=F64), drawn((2, 2, 1, 3, 3), -1.4, 1.4, 1, dtype=F64)
    proto = node_model("GridSample", {"x": x, "grid": grid}, opset=20, mode=mode)
    assert_samples(proto, x, grid)


@pytest.mark.filterwarnings("ignore:Since version 1.3.0")
@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("size", [[2, 3, 4, 3], [2, 1, 2, 1, 3]], ids=str)
def test_affine_grid(size, align):
    rank = len(size) - 2
    theta = drawn((2, rank, rank + 1), dtype=F64)
    proto = moving_node("AffineGrid", theta.shape, size, opset=20, align_corners=align)
    torch = peer("torch")
    functional = torch.nn.functional
    expected = functional.affine_grid(torch.tensor(theta), size, bool(align)).numpy()
    assert_samples(proto, theta, expected=[expected])


def test_a_crop_without_a_region_is_refused():
    proto = resize(NCHW, scales(1, 1, 2, 2), coordinate_transformation_mode="tf_crop_and_resize")
    with pytest.raises(ModelError, match="start and an end for 4 axes"):
        gg.from_onnx(proto)


@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_grid_sample_of_integers(mode):
    """Points lie between integers, and the digits behind the point are cut off."""
    x, grid = np.arange(16, dtype="uint8").reshape(1, 1, 4, 4), drawn((1, 3, 3, 2), seed=5)
    integers = node_model("GridSample", {"x": x, "grid": grid}, mode=mode)
    inputs = {"x": x.astype("float32"), "grid": grid}
    floats = node_model("GridSample", inputs, mode=mode)
    (ours,), (theirs,) = forward(integers, {"x": x, "grid": grid}), forward(floats, inputs)
    np.testing.assert_array_equal(ours, theirs.astype("uint8"))
    assert len(np.unique(ours)) > 4


@pytest.mark.parametrize("opset", [10, 19])
def test_booleans_to_the_nearest(opset):
    x = np.array([[[[True, False, True]]]])
    scales = helper.make_tensor("scales", TensorProto.FLOAT, [4], [1, 1, 1, 2])
    names = ["x", "scales"] if opset == 10 else ["x", "", "scales"]
    values = [
        helper.make_tensor_value_info(name, TensorProto.BOOL, [1, 1, 1, extent])
        for name, extent in (("x", 3), ("y", 6))
    ]
    node = helper.make_node("Resize", names, ["y"], coordinate_transformation_mode="asymmetric")
    if opset == 10:
        del node.attribute[:]
    graph = helper.make_graph([node], "graph", values[:1], values[1:], [scales])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    np.testing.assert_array_equal(forward(proto, {"x": x})[0], x.repeat(2, axis=3))
