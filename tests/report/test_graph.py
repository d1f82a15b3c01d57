"""The graph of a report: nodes and edges as in the file, origins and reasons as in the program."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import graphgrad as gg
from graphgrad import models
from graphgrad.registry import unregister
from graphgrad.report.graph import Subject, model_graph, untrained
from tests.frontend.graphs import model_of
from tests.unknown_ops import take_away


def graph_of(model, rules="auto"):
    subject = Subject(model, tuple(model.trainable()), rules)
    return model_graph(subject, subject.coverage())


def edges_by_name(graph):
    return {(graph.nodes[a].name, graph.nodes[b].name) for a, b in graph.edges}


def test_nodes_and_edges_are_those_of_the_file():
    model = gg.from_onnx(models.mlp((4, 5, 3)))
    graph = graph_of(model)
    names = [node.name for node in model.proto.graph.node]
    assert [node.name for node in graph.nodes] == [*model.inputs, *names, *model.outputs]
    assert edges_by_name(graph) == set(
        zip([*model.inputs, *names], [*names, *model.outputs], strict=True)
    )
    first = graph.nodes[1]
    assert (first.op, first.kind, first.origin) == ("Gemm", "node", "hand")
    assert first.params == ("fc1.weight", "fc1.bias")
    assert first.types[0].endswith(": float32[N, 5]")
    assert {row.op for row in first.calls} >= {"relax.matmul"}
    assert graph.nodes[0].kind == "input" and graph.nodes[0].origin == ""
    assert graph.nodes[-1].kind == "output" and graph.nodes[-1].calls == ()


def test_every_node_of_a_residual_network_has_a_gradient():
    graph = graph_of(gg.from_onnx(models.resnet_digits()))
    assert {node.origin for node in graph.nodes if node.kind == "node"} == {"hand"}
    assert max(sum(b == n for _, b in graph.edges) for n in range(len(graph.nodes))) == 2
    assert all(a < b for a, b in graph.edges)


def test_origins(monkeypatch):
    model = gg.from_onnx(models.mlp((4, 5, 3)))
    relu = next(n.name for n in model.proto.graph.node if n.op_type == "Relu")

    def origin(rules="auto"):
        return {node.name: node.origin for node in graph_of(model, rules).nodes}[relu]

    assert origin() == "hand"
    assert origin("derived") == "derived"
    gg.register_gradient("relax.nn.relu")(lambda inputs, outputs, cotangents, attrs: cotangents)
    try:
        assert origin() == "user"
    finally:
        unregister("relax.nn.relu")
    take_away(monkeypatch, "relax.nn.relu")
    assert origin() == "missing"


def test_what_is_known_at_import_is_folded():
    nodes = [
        helper.make_node("Shape", ["x"], ["s"], name="shape"),
        helper.make_node("ConstantOfShape", ["s"], ["zeros"], name="zeros"),
        helper.make_node("Add", ["x", "zeros"], ["h"], name="sum"),
        helper.make_node("Floor", ["h"], ["f"], name="floor"),
        helper.make_node("Add", ["h", "f"], ["y"], name="end"),
    ]
    model = gg.from_onnx(model_of(nodes, {"x": [2, 3]}, {"y": [2, 3]}))
    origin = {node.name: node.origin for node in graph_of(model).nodes}
    assert origin["shape"] == "folded"
    assert origin["floor"] == "nondifferentiable" and origin["end"] == "hand"


def test_a_node_in_a_loop_has_the_gradient_of_the_loop():
    types = [("i", TensorProto.INT64), ("c", TensorProto.BOOL), ("s", TensorProto.FLOAT)]
    shapes = {"i": [], "c": [], "s": [3]}
    inputs = [helper.make_tensor_value_info(n, t, shapes[n]) for n, t in types]
    outputs = [
        helper.make_tensor_value_info("c2", TensorProto.BOOL, []),
        helper.make_tensor_value_info("s2", TensorProto.FLOAT, [3]),
    ]
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["c"], ["c2"], name="goes_on"),
            helper.make_node("Tanh", ["s"], ["s2"], name="inner"),
        ],
        "body",
        inputs,
        outputs,
    )
    nodes = [
        helper.make_node("Exp", ["x"], ["e"], name="before"),
        helper.make_node("Loop", ["m", "", "e"], ["y"], name="loop", body=body),
    ]
    arrays = {"m": np.array(4)}
    graph = graph_of(gg.from_onnx(model_of(nodes, {"x": [3]}, {"y": [3]}, arrays)))
    # The state of the body is what the loop is given, though an input of it is left out.
    assert edges_by_name(graph) >= {("before", "inner"), ("inner", "loop"), ("loop", "y")}
    origin = {node.name: node.origin for node in graph.nodes}
    assert origin["inner"] == origin["loop"] != "folded"


def test_nodes_in_branches_have_the_gradient_of_the_choice():
    def branch(op):
        nodes = [helper.make_node(op, ["x"], [f"{op}_result"], name=op)]
        result = helper.make_tensor_value_info(f"{op}_result", TensorProto.FLOAT, [3])
        return helper.make_graph(nodes, op, [], [result])

    branches = {"then_branch": branch("Exp"), "else_branch": branch("Tanh")}
    proto = model_of(
        [helper.make_node("If", ["c"], ["y"], name="choose", **branches)], {"x": [3]}, {"y": [3]}
    )
    proto.graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    model = gg.from_onnx(proto)
    graph = graph_of(model)
    assert edges_by_name(graph) >= {("x", "Exp"), ("Exp", "choose"), ("Tanh", "choose")}
    origin = {node.name: node.origin for node in graph.nodes}
    (choice,) = (row for row in gg.coverage(model).rows if row.op == "relax.If")
    assert origin["choose"] == origin["Exp"] == origin["Tanh"] == choice.provenance
    types = {node.name: node.types for node in graph.nodes}
    assert types["choose"] == ("y: float32[3]",)


def test_a_missing_gradient_is_at_its_node_even_if_the_importer_has_lost_it():
    # TVM's importer translates it to a tuple, of which the outputs are items.
    nodes = [helper.make_node("Unique", ["x"], ["y", "", "i"], name="unique", sorted=0)]
    proto = model_of(nodes, {"x": [3]}, {"y": ["n"], "i": ["m"]})
    proto.graph.output[1].type.tensor_type.elem_type = TensorProto.INT64
    model = gg.from_onnx(proto)
    assert not gg.coverage(model).complete
    assert {node.name: node.origin for node in graph_of(model).nodes}["unique"] == "missing"


def test_a_model_from_no_file_has_the_nodes_of_its_program():
    source = gg.from_onnx(models.mlp((4, 5, 3)))
    graph = graph_of(gg.Model(source.mod, source.params))
    assert {node.op for node in graph.nodes} >= {"input", "relax.matmul", "relax.nn.relu", "output"}
    assert {node.origin for node in graph.nodes if node.op == "relax.matmul"} == {"hand"}
    reached = {0}
    for source_number, target in graph.edges:
        if source_number in reached:
            reached.add(target)
    assert len(graph.nodes) - 1 in reached


@pytest.mark.parametrize(
    "change, name, reason",
    [
        (lambda model: (model, ["w"]), "b", "not among the weights that wrt= names"),
        (lambda model: (model.freeze("b"), ["w"]), "b", "frozen"),
        (lambda model: (model, ["w", "b"]), "mask", "masks (0 and numbers that forbid)"),
    ],
    ids=["wrt", "frozen", "constants"],
)
def test_what_does_not_train_has_its_reason(change, name, reason):
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Add", ["h", "b"], ["i"]),
        helper.make_node("Add", ["i", "mask"], ["y"]),
    ]
    mask = np.where(np.tri(3), 0, -1e9).astype(np.float32)
    arrays = {"w": np.ones((4, 3), np.float32), "b": np.ones(3, np.float32), "mask": mask}
    model, wrt = change(gg.from_onnx(model_of(nodes, {"x": [3, 4]}, {"y": [3, 3]}, arrays)))
    found = {entry.name: entry for entry in untrained(Subject(model, tuple(wrt)))}
    assert found[name].reason == reason
    assert found[name].type.startswith("float32[3")
    assert "w" not in found


def test_integers_and_statistics_do_not_train():
    source = gg.from_onnx(models.resnet_digits())
    reasons = {e.name: e.reason for e in untrained(Subject(source, tuple(source.trainable())))}
    assert reasons.keys() == source.state.keys()
    assert set(reasons.values()) == {"a running statistic, which batch norms update"}
    nodes = [helper.make_node("Gather", ["table", "i"], ["y"])]
    arrays = {"table": np.ones((4, 3), np.float32)}
    proto = model_of(nodes, {}, {"y": [2, 3]}, arrays)
    proto.graph.initializer.append(numpy_helper.from_array(np.array([1, 2]), "i"))
    model = gg.from_onnx(proto)
    named = gg.Model(model.mod, model.params)
    assert untrained(Subject(named, ("table",))) == []
