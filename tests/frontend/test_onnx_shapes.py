import numpy as np
import pytest
from onnx import TensorProto, helper

from graphgrad.errors import InputError, ModelError
from graphgrad.frontend.onnx_import import from_onnx

from .graphs import model_of, random, run_model


def add_model(x, y):
    inputs = {"x": x, "y": y}
    return model_of([helper.make_node("Add", ["x", "y"], ["z"])], inputs, {"z": [None, 3]})


def types(model):
    return {name: shape for name, (shape, _) in model.input_types().items()}


def test_named_dimensions_are_shared_and_stay_symbolic():
    model = from_onnx(add_model(["N", 3], ["N", 3]))
    assert types(model) == {"x": ("N", 3), "y": ("N", 3)}
    for batch in (2, 5):
        x = random(batch, 3)
        np.testing.assert_array_equal(run_model(model, model.mod, x, x), x + x)


def test_unnamed_dimensions_are_their_own():
    """The stock importer gives all unnamed dimensions one variable, which no 2×4 array fits."""
    proto = model_of(
        [helper.make_node("Relu", ["x"], ["y"])], {"x": [None, None]}, {"y": [None] * 2}
    )
    model = from_onnx(proto)
    assert types(model) == {"x": ("x_d0", "x_d1")}
    x = random(2, 4)
    np.testing.assert_array_equal(run_model(model, model.mod, x), np.maximum(x, 0))


@pytest.mark.parametrize("name", ["batch-size", "batch.size", "batch size", "ünïcode", "2N"])
def test_odd_names_of_dimensions(name):
    model = from_onnx(add_model([name, 3], [name, 3]))
    x = random(2, 3)
    np.testing.assert_array_equal(run_model(model, model.mod, x, x), x + x)


def test_expressions_of_known_dimensions():
    nodes = [helper.make_node("Relu", ["y"], ["z"])]
    proto = model_of(nodes, {"x": ["N"], "y": ["2*N"]}, {"z": [None]})
    assert types(from_onnx(proto)) == {"x": ("N",), "y": ("2 * N",)}
    assert types(from_onnx(proto, shapes={"x": [4]})) == {"x": (4,), "y": (8,)}


@pytest.mark.parametrize(
    "x, y, shapes, expected",
    [
        (["N", 3], ["N", 3], {"x": (8, 3)}, {"x": (8, 3), "y": (8, 3)}),
        (["N", 3], ["M", 3], {"x": (8, 3)}, {"x": (8, 3), "y": ("M", 3)}),
        ([None, 3], [None, 3], {"y": [8, None]}, {"x": ("x_d0", 3), "y": (8, 3)}),
        (["N", 3], ["N", 3], {"x": (None, 3)}, {"x": ("N", 3), "y": ("N", 3)}),
        (["N", 3], ["N", 3], {"x": (np.int64(8), 3)}, {"x": (8, 3), "y": (8, 3)}),
    ],
)
def test_pinned(x, y, shapes, expected):
    assert types(from_onnx(add_model(x, y), shapes=shapes)) == expected


@pytest.mark.parametrize(
    "shapes, message",
    [
        ({"z": (8, 3)}, r"no inputs \['z'\]; its inputs are \['x', 'y'\]"),
        ({"x": (8,)}, r"'x' has 2 dimensions \['N', 3\], given \(8,\)"),
        ({"x": (8, 4)}, r"'x' is \['N', 3\], given \(8, 4\).*3 and cannot be 4"),
        ({"x": (8, 3), "y": (9, 3)}, r"'y' is \['N', 3\].*N is 8 and cannot be 9"),
        ({"x": (-1, 3)}, "expected whole numbers"),
        ({"x": (2.5, 3)}, "expected whole numbers"),
        ({"x": "83"}, "expected whole numbers"),
        ([8, 3], "shapes: expected a dict, given a list"),
    ],
)
def test_shapes_that_do_not_fit(shapes, message):
    with pytest.raises(InputError, match=message):
        from_onnx(add_model(["N", 3], ["N", 3]), shapes=shapes)


def test_unknown_rank():
    proto = model_of([helper.make_node("Relu", ["x"], ["y"])], {}, {"y": [None]})
    proto.graph.input.append(helper.make_tensor_value_info("x", TensorProto.FLOAT, None))
    proto.graph.input[0].type.tensor_type.ClearField("shape")
    with pytest.raises(ModelError, match="shape"):
        from_onnx(proto)


def test_string_inputs():
    nodes = [helper.make_node("Identity", ["s"], ["y"])]
    proto = model_of(nodes, {}, {})
    proto.graph.input.append(helper.make_tensor_value_info("s", TensorProto.STRING, [1]))
    proto.graph.output.append(helper.make_tensor_value_info("y", TensorProto.STRING, [1]))
    with pytest.raises(ModelError, match="input 's' is not a tensor of numbers"):
        from_onnx(proto)
