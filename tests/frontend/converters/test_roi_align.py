"""Pooling of regions from ONNX: outputs as in onnxruntime, gradients by differences."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import graphgrad as gg
from graphgrad.errors import ModelError
from tests.frontend.converters.nodes import assert_like_onnxruntime, drawn, forward, node_model
from tests.frontend.converters.sampling import assert_samples, in_float32
from tests.running import F64

IMAGES = np.array([1, 0, 1], "int64")
REGIONS = np.array([[0.3, 0.2, 4.1, 3.3], [1.9, 0.7, 2.2, 2.6], [-2.3, -1.1, 7.9, 6.2]])


DEGENERATE = np.array([[2.1, 1.3, 2.1, 4.2], [3.7, 2.9, 1.2, 0.4], [20.3, 30.1, 24.7, 31.9]])


def regions_model(shape=(2, 2, 5, 6), opset=16, regions=REGIONS, **attributes):
    arrays = {"x": drawn(shape, dtype=F64), "rois": regions, "images": IMAGES}
    proto = node_model("RoiAlign", arrays, opset=opset, ranks={"y": 4}, **attributes)
    del proto.graph.input[2]
    proto.graph.initializer.append(numpy_helper.from_array(IMAGES, "images"))
    return proto, [arrays["x"], arrays["rois"]]


@pytest.mark.parametrize(
    ("opset", "attributes"),
    [
        (10, {"spatial_scale": 0.5, "sampling_ratio": 1}),
        (16, {"coordinate_transformation_mode": "half_pixel"}),
    ],
)
def test_the_maximum_of_regions(opset, attributes):
    given = {"sampling_ratio": 2, "output_height": 2, "output_width": 3} | attributes
    proto, arrays = regions_model(opset=opset, mode="max", **given)
    assert_samples(proto, *arrays)


@pytest.mark.parametrize("regions", [REGIONS, DEGENERATE], ids=["ordinary", "degenerate"])
@pytest.mark.parametrize("sampling_ratio", [0, 2])
@pytest.mark.parametrize(
    ("opset", "attributes"),
    [(10, {}), (16, {}), (21, {"coordinate_transformation_mode": "output_half_pixel"})],
)
def test_the_mean_of_regions(opset, attributes, sampling_ratio, regions):
    """A corner is scaled before it is shifted; a region without points has a mean of zero."""
    given = {"spatial_scale": 0.6, "sampling_ratio": sampling_ratio, "output_height": 2}
    proto, (x, corners) = regions_model(opset=opset, regions=regions, **given | attributes)
    inputs = {"x": x.astype("float32"), "rois": corners.astype("float32")}
    assert_like_onnxruntime(in_float32(proto), inputs)


def test_the_gradient_of_the_mean_of_scaled_regions():
    proto, arrays = regions_model(spatial_scale=0.6, sampling_ratio=2)
    assert_samples(proto, *arrays)


@pytest.mark.parametrize("opset", [10, 16])
def test_means_in_half_precision_keep_the_numbers_of_images(opset):
    x = np.zeros((2052, 1, 2, 2), "float16")
    x[2049] = 1.0
    arrays = {
        "x": x,
        "rois": np.array([[0, 0, 2, 2]], "float16"),
        "images": np.array([2049], "int64"),
    }
    proto = node_model("RoiAlign", arrays, opset=opset, ranks={"y": 4}, sampling_ratio=1)
    (y,) = forward(proto, arrays)
    assert y.dtype == np.float16
    assert y.item() == 1.0


@pytest.mark.parametrize("mode", ["avg", "max"])
def test_an_unknown_coordinate_transformation_is_refused(mode):
    proto, _ = regions_model(
        mode=mode, sampling_ratio=1, coordinate_transformation_mode="asymmetric"
    )
    with pytest.raises(ModelError, match="neither 'half_pixel' nor 'output_half_pixel'"):
        gg.from_onnx(proto)


def test_a_number_of_points_that_depends_on_the_regions_is_refused():
    with pytest.raises(ModelError, match="number of points depends on the regions"):
        gg.from_onnx(regions_model(mode="max")[0])


def test_a_symbolic_extent_is_refused():
    proto, _ = regions_model(mode="max", sampling_ratio=1)
    value = helper.make_tensor_value_info("x", TensorProto.DOUBLE, (2, 2, "h", 6))
    proto.graph.input[0].CopyFrom(value)
    with pytest.raises(ModelError, match="spatial extents that are numbers"):
        gg.from_onnx(proto)
