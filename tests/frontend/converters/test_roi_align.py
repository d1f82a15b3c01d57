"""Pooling of regions from ONNX: outputs as in onnxruntime, gradients by differences."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import graphgrad as gg
from graphgrad.errors import ModelError
from tests.frontend.converters.nodes import drawn, node_model
from tests.frontend.converters.sampling import assert_samples
from tests.running import F64

IMAGES = np.array([1, 0, 1], "int64")
REGIONS = np.array([[0.3, 0.2, 4.1, 3.3], [1.9, 0.7, 2.2, 2.6], [-2.3, -1.1, 7.9, 6.2]])


def regions_model(shape=(2, 2, 5, 6), opset=16, **attributes):
    arrays = {"x": drawn(shape, dtype=F64), "rois": REGIONS, "images": IMAGES}
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


def test_a_number_of_points_that_depends_on_the_regions_is_refused():
    with pytest.raises(ModelError, match="number of points depends on the regions"):
        gg.from_onnx(regions_model(mode="max")[0])


def test_a_symbolic_extent_is_refused():
    proto, _ = regions_model(mode="max", sampling_ratio=1)
    value = helper.make_tensor_value_info("x", TensorProto.DOUBLE, (2, 2, "h", 6))
    proto.graph.input[0].CopyFrom(value)
    with pytest.raises(ModelError, match="spatial extents that are numbers"):
        gg.from_onnx(proto)
