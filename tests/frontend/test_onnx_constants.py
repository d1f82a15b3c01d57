import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from graphgrad import errors
from graphgrad.frontend.onnx_constants import densify
from graphgrad.frontend.onnx_import import from_onnx

from .graphs import model_of, run_model

X = np.array([1, 2, 3], dtype="float32")
DENSE = np.array([0, 5, 7], dtype="float32")
DENSE_2D = np.array([[0, 5, 0], [7, 0, 0]], dtype="float32")


def sparse(dense, indices):
    values = dense[tuple(indices.T)] if indices.ndim == 2 else dense.reshape(-1)[indices]
    return helper.make_sparse_tensor(
        numpy_helper.from_array(values, "sparse"),
        numpy_helper.from_array(indices.astype("int64"), "sparse_indices"),
        dense.shape,
    )


FLAT = sparse(DENSE, np.array([1, 2]))
ROWS = sparse(DENSE_2D, np.array([[0, 1], [1, 0]]))

FORMS = {
    "value": (numpy_helper.from_array(DENSE), X + DENSE),
    "value_float": (2.5, X + 2.5),
    "value_floats": ([4.0, 5.0, 6.0], X + np.array([4, 5, 6])),
    "value_int": (3, X + 3),
    "value_ints": ([3, 4, 5], X + np.array([3, 4, 5])),
    "sparse_value": (FLAT, X + DENSE),
}


def constant_model(form, value):
    """y = x + the constant as float32."""
    nodes = [
        helper.make_node("Constant", [], ["c"], name="the_constant", **{form: value}),
        helper.make_node("Cast", ["c"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["x", "f"], ["y"]),
    ]
    return model_of(nodes, {"x": [3]}, {"y": [3]})


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_constant(form):
    value, expected = FORMS[form]
    model = from_onnx(constant_model(form, value))
    np.testing.assert_array_equal(run_model(model, model.mod, X), expected)
    onnx.checker.check_model(model.proto)


@pytest.mark.parametrize(
    "form, value",
    [
        ("value_string", "text"),
        ("value_strings", ["a", "b"]),
        ("value", helper.make_tensor("t", TensorProto.STRING, [1], [b"text"])),
    ],
)
def test_strings_are_refused_by_node_name(form, value):
    with pytest.raises(errors.ModelError, match=r"'the_constant'.*strings"):
        from_onnx(constant_model(form, value))


@pytest.mark.parametrize("tensor, dense", [(FLAT, DENSE), (ROWS, DENSE_2D)])
def test_sparse_initializers_become_dense(tensor, dense):
    graph = onnx.GraphProto(name="graph", sparse_initializer=[tensor])
    notes = densify(graph)
    assert notes == ["sparse initializers made dense: sparse"] and not graph.sparse_initializer
    np.testing.assert_array_equal(numpy_helper.to_array(graph.initializer[0]), dense)


def test_notes_name_what_was_changed():
    model = from_onnx(constant_model("value_int", 3))
    assert any("the_constant" in note for note in model.notes)
    assert from_onnx(constant_model("value", numpy_helper.from_array(X[0]))).notes == []
