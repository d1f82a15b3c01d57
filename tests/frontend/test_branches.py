import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import graphgrad as gg
from graphgrad.frontend.onnx_import import from_onnx

from .graphs import model_of, op_names, random, run_model

X = random(3)


def branch(*nodes, initializers=None):
    """A graph that captures x and returns the outputs of its last node."""
    outputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in nodes[-1].output
    ]
    tensors = [numpy_helper.from_array(a, n) for n, a in (initializers or {}).items()]
    return helper.make_graph(list(nodes), "branch", [], outputs, tensors)


def if_model(then_branch, else_branch, outputs=("y",), given=None):
    """The condition is the input c, or a constant if it is given."""
    node = helper.make_node(
        "If", ["c"], list(outputs), then_branch=then_branch, else_branch=else_branch
    )
    arrays = {} if given is None else {"c": np.bool_(given)}
    proto = model_of([node], {"x": [3]}, {name: [3] for name in outputs}, arrays)
    if given is None:
        proto.graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    return proto


def test_only_the_branch_taken_is_in_the_module_where_it_is_known():
    then_branch = branch(helper.make_node("Relu", ["x"], ["h"]), helper.make_node("Exp", "h", "t"))
    else_branch = branch(helper.make_node("Neg", ["x"], ["e"]))
    for given, ops in ((True, ["relax.nn.relu", "relax.exp"]), (False, ["relax.negative"])):
        model = from_onnx(if_model(then_branch, else_branch, given=given))
        assert op_names(model.mod) == ops
    f = gg.value_and_grad(from_onnx(if_model(then_branch, else_branch, given=False)), wrt=["x"])
    np.testing.assert_array_equal(f({"x": X}, np.ones(3, "float32"))[1]["x"], -np.ones(3))


def test_what_is_known_in_the_branch_taken_is_known_behind_it():
    taken = branch(helper.make_node("Shape", ["x"], ["t"]))
    proto = if_model(taken, taken, outputs=["s"], given=True)
    proto.graph.initializer.append(numpy_helper.from_array(np.array([2]), "two"))
    proto.graph.node.append(helper.make_node("Concat", ["two", "s"], ["shape"], axis=0))
    proto.graph.node.append(helper.make_node("Expand", ["x", "shape"], ["y"]))
    proto.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"]))
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, "n"]))
    assert op_names(from_onnx(proto).mod) == ["relax.broadcast_to"]


def test_a_condition_on_a_static_dimension_is_known():
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Equal", ["s", "three"], ["e"]),
        helper.make_node("Squeeze", ["e"], ["c"]),
    ]
    proto = if_model(
        branch(helper.make_node("Relu", ["x"], ["t"])),
        branch(helper.make_node("Neg", ["x"], ["e2"])),
    )
    proto.graph.input.pop()
    proto.graph.initializer.append(numpy_helper.from_array(np.array([3]), "three"))
    last = proto.graph.node.pop()
    proto.graph.node.extend([*nodes, last])
    assert op_names(from_onnx(proto).mod) == ["relax.nn.relu"]


@pytest.mark.parametrize("condition", [True, False])
def test_branches_of_several_nodes_with_constants_of_their_own(condition):
    """The converters are ours in a branch, too: TVM's Elu has the wrong slope at 0."""
    then_branch = branch(
        helper.make_node("Elu", ["x"], ["h"]),
        helper.make_node("Add", ["h", "k"], ["t"]),
        initializers={"k": np.float32(2)},
    )
    else_branch = branch(
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Cast", ["s"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["x", "f"], ["e"]),
    )
    model = from_onnx(if_model(then_branch, else_branch))
    expected = np.where(X > 0, X, np.expm1(X)) + 2 if condition else X * 3
    got = run_model(model, model.mod, X, np.bool_(condition))
    np.testing.assert_allclose(got, expected, rtol=1e-5)


@pytest.mark.parametrize("condition", [True, False])
def test_several_outputs_and_a_branch_in_a_branch(condition):
    inner = helper.make_node(
        "If",
        ["c"],
        ["t1"],
        then_branch=branch(helper.make_node("Abs", ["h"], ["a"])),
        else_branch=branch(helper.make_node("Exp", ["h"], ["b"])),
    )
    then_branch = branch(helper.make_node("Neg", ["x"], ["h"]), inner)
    then_branch.output.append(helper.make_tensor_value_info("h", TensorProto.FLOAT, [3]))
    else_branch = branch(helper.make_node("Relu", ["x"], ["r"]))
    else_branch.output.append(helper.make_tensor_value_info("r", TensorProto.FLOAT, [3]))
    model = from_onnx(if_model(then_branch, else_branch, ("y", "z")))
    y, z = run_model(model, model.mod, X, np.bool_(condition))
    np.testing.assert_allclose(y, np.abs(X) if condition else np.maximum(X, 0))
    np.testing.assert_allclose(z, -X if condition else np.maximum(X, 0))
