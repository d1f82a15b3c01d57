"""What a small file multiplies is refused before the work, above a limit that can be raised."""

import onnx
import pytest
from onnx import TensorProto, helper

from graphgrad.errors import ArgumentError, ModelError
from graphgrad.frontend import node_limit
from graphgrad.frontend.node_limit import VARIABLE, nodes_when_inlined
from graphgrad.frontend.onnx_import import from_onnx

from .graphs import model_of

OPSETS = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]


def node(operator, source, target):
    return helper.make_node(operator, [source], [target], domain="f" if operator[0] == "F" else "")


def function(name, *operators):
    """Return a function that calls operators one after the other."""
    names = ["a", *(f"v{i}" for i in range(len(operators) - 1)), "b"]
    body = [node(o, names[i], names[i + 1]) for i, o in enumerate(operators)]
    return helper.make_function("f", name, ["a"], ["b"], body, OPSETS)


def doubling(levels):
    """Return a model of one node that stands for two to the power of `levels`."""
    proto = model_of([node("F0", "x", "y")], {"x": [3]}, {"y": [3]})
    for level in range(levels):
        proto.functions.append(function(f"F{level}", f"F{level + 1}", f"F{level + 1}"))
    proto.functions.append(function(f"F{levels}", "Neg"))
    proto.opset_import.append(OPSETS[1])
    return proto


@pytest.mark.parametrize("levels", [0, 3, 24, 500])
def test_nodes_are_counted_without_inlining(levels):
    assert nodes_when_inlined(doubling(levels), ()) == 2**levels


def test_functions_of_the_user_stay_one_node():
    assert nodes_when_inlined(doubling(9), [("f", "F1")]) == 2


def test_nodes_in_branches_count():
    def branch(name):
        output = helper.make_tensor_value_info(name, TensorProto.FLOAT, [3])
        return helper.make_graph([node("F0", "x", name)], name, [], [output])

    choice = helper.make_node("If", ["c"], ["y"], then_branch=branch("t"), else_branch=branch("e"))
    proto = doubling(4)
    del proto.graph.node[:]
    proto.graph.node.append(choice)
    assert nodes_when_inlined(proto, ()) == 1 + 2 * 16


def refuse(*_, **__):
    raise AssertionError("the model was inlined")


def test_nested_functions_are_refused_before_they_are_inlined(monkeypatch):
    monkeypatch.setattr(onnx.inliner, "inline_selected_functions", refuse)
    with pytest.raises(ModelError, match=f"16,777,216 nodes.*at most.*{VARIABLE}"):
        from_onnx(doubling(24))
    with pytest.raises(ModelError, match="some 10\\^27 nodes"):
        from_onnx(doubling(90))


def test_the_limit_can_be_changed(monkeypatch):
    monkeypatch.setenv(VARIABLE, "15")
    with pytest.raises(ModelError, match="makes 16 nodes, and an import makes 15 at most"):
        from_onnx(doubling(4))
    monkeypatch.setenv(VARIABLE, "16")
    assert len(from_onnx(doubling(4)).proto.graph.node) == 16
    monkeypatch.setenv(VARIABLE, "many")
    with pytest.raises(ArgumentError, match=f"{VARIABLE}='many'"):
        from_onnx(doubling(4))


def test_nodes_that_are_listed_count_too(monkeypatch):
    nodes = [node("Neg", a, b) for a, b in (("x", "p"), ("p", "q"), ("q", "y"))]
    proto = model_of(nodes, {"x": [3]}, {"y": [3]})
    monkeypatch.setenv(VARIABLE, "2")
    with pytest.raises(ModelError, match=f"lists makes 3 nodes.*{VARIABLE}"):
        from_onnx(proto)
    monkeypatch.setenv(VARIABLE, "3")
    assert from_onnx(proto).inputs == ["x"]


@pytest.mark.parametrize("in_a_function", [False, True])
def test_each_part_of_a_split_counts(monkeypatch, in_a_function):
    parts = [f"p{i}" for i in range(9)]
    split = helper.make_node("Split", ["x"], parts, axis=0)
    proto = model_of([split, helper.make_node("Max", parts, ["y"])], {"x": [9]}, {"y": [1]})
    if in_a_function:
        body = list(proto.graph.node)
        proto.functions.append(helper.make_function("f", "F", ["x"], ["y"], body, OPSETS))
        del proto.graph.node[:]
        proto.graph.node.append(node("F", "x", "y"))
        proto.opset_import.append(OPSETS[1])
    monkeypatch.setenv(VARIABLE, "9")
    with pytest.raises(ModelError, match="makes 10 nodes"):
        from_onnx(proto)
    monkeypatch.setenv(VARIABLE, "10")
    assert from_onnx(proto).inputs == ["x"]


def test_functions_that_call_themselves_are_refused():
    proto = doubling(2)
    proto.functions[2].CopyFrom(function("F2", "Neg", "F1"))
    with pytest.raises(ModelError, match="calls itself"):
        nodes_when_inlined(proto, ())


def loop(depth):
    """Return the nodes of loops inside loops, of steps that grow their state."""
    info = helper.make_tensor_value_info
    inner = [node("Neg", "s", "n")] if depth == 0 else [loop(depth - 1)]
    source = "n" if depth == 0 else f"l{depth - 1}"
    body = helper.make_graph(
        [
            *inner,
            helper.make_node("Concat", [source, source], ["o"], axis=0),
            helper.make_node("Identity", ["go"], ["on"]),
        ],
        f"body{depth}",
        [
            info("i", TensorProto.INT64, []),
            info("go", TensorProto.BOOL, []),
            info("s", TensorProto.FLOAT, None),
        ],
        [info("on", TensorProto.BOOL, []), info("o", TensorProto.FLOAT, None)],
    )
    state = "x" if depth == 1 else "s"
    return helper.make_node("Loop", ["m", "", state], [f"l{depth}"], body=body)


@pytest.mark.parametrize("limit, message", [("11", "writing out"), ("12", "writing out loops")])
def test_loops_that_are_written_out(monkeypatch, limit, message):
    """Each loop alone is within the second limit: two steps of six nodes, and of three."""
    nodes = [helper.make_node("Identity", ["l1"], ["y"])]
    proto = model_of([loop(1), *nodes], {"x": [1]}, {"y": [None]}, {})
    proto.graph.initializer.append(helper.make_tensor("m", TensorProto.INT64, [], [2]))
    monkeypatch.setenv(VARIABLE, limit)
    with pytest.raises(ModelError, match=message):
        from_onnx(proto)
    monkeypatch.setattr(node_limit, "_MAX_NODES", 1000)
    monkeypatch.delenv(VARIABLE)
    assert from_onnx(proto).inputs == ["x"]
