"""ONNX models without the values of weights, and with them again."""

import numpy as np
import onnx
from onnx import helper, numpy_helper

import graphgrad as gg
from graphgrad.frontend.onnx_values import with_values, without_values
from graphgrad.models import resnet_digits


def test_a_model_without_values_takes_no_memory_and_gets_them_back():
    proto = resnet_digits(batch=2)
    proto.metadata_props.add(key="who", value="we")
    proto.functions.add(name="f", domain="d")
    before = proto.SerializeToString(deterministic=True)
    arrays = {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer}
    bare = without_values(proto, arrays)
    assert proto.SerializeToString(deterministic=True) == before
    weights = sum(array.nbytes for array in arrays.values())
    assert bare.ByteSize() < len(before) - weights
    assert [list(t.dims) for t in bare.graph.initializer] == [
        list(a.shape) for a in arrays.values()
    ]
    for tensor in proto.graph.initializer:  # in the form in which they are written back
        tensor.CopyFrom(numpy_helper.from_array(arrays[tensor.name], tensor.name))
    again = with_values(bare, arrays)
    assert again.SerializeToString(deterministic=True) == proto.SerializeToString(
        deterministic=True
    )
    assert bare.ByteSize() < len(before) - weights


def test_other_initializers_keep_their_values():
    names = ["w", "shape"]
    tensors = [numpy_helper.from_array(np.arange(3), name) for name in names]
    graph = helper.make_graph([], "g", [], [], initializer=tensors)
    bare = without_values(helper.make_model(graph), {"w"})
    kept = {t.name: t for t in bare.graph.initializer}
    np.testing.assert_array_equal(numpy_helper.to_array(kept["shape"]), np.arange(3))
    assert not kept["w"].raw_data and kept["w"].data_type == onnx.TensorProto.INT64


def test_the_proto_of_a_model_has_the_values_of_now():
    model = gg.from_onnx(resnet_digits(batch=2))
    name = next(iter(model.params))
    model.params[name] = model.params[name] + 1
    values = {t.name: numpy_helper.to_array(t) for t in model.proto.graph.initializer}
    np.testing.assert_array_equal(values[name], model.params[name])
    onnx.checker.check_model(model.proto)


def test_a_model_without_values_has_shapes_and_dtypes():
    model = gg.from_onnx(resnet_digits(batch=2))
    bare = model.without_values()
    for kind in ("params", "state"):
        for array, other in zip(
            getattr(model, kind).values(), getattr(bare, kind).values(), strict=True
        ):
            assert array.shape == other.shape and array.dtype == other.dtype
            assert set(other.strides) <= {0}
    assert repr(bare) == repr(model)
    name = next(iter(model.params))
    model.params[name] = "no array"
    assert model.without_values().params[name] == "no array"
