"""What is removed from a graph for inference: losses, and nodes that nothing needs."""

from onnx import TensorProto, helper

from graphgrad.frontend.onnx_prune import drop_losses, remove_unneeded_nodes


def graph_of(nodes, outputs):
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    return helper.make_graph(nodes, "g", [], values)


def operators(graph):
    return [node.op_type for node in graph.node]


def test_an_output_that_a_loss_leaves_out_is_not_read_by_those_who_leave_out_an_input():
    graph = graph_of(
        [
            helper.make_node("SoftmaxCrossEntropyLoss", ["x", "labels"], ["loss", ""]),
            helper.make_node("Clip", ["x", "", "high"], ["scores"]),
        ],
        ["loss", "scores"],
    )
    drop_losses(graph)
    assert operators(graph) == ["Clip"]
    assert [output.name for output in graph.output] == ["scores"]


def test_outputs_that_are_left_out_keep_and_remove_nothing():
    graph = graph_of(
        [
            helper.make_node("LSTM", ["x", "w", "r"], ["", "state"]),
            helper.make_node("LSTM", ["x", "w", "r"], ["", "", "cell"]),
            helper.make_node("Clip", ["state", "", "high"], ["y"]),
        ],
        ["y"],
    )
    remove_unneeded_nodes(graph)
    assert operators(graph) == ["LSTM", "Clip"]
    assert graph.node[0].output[1] == "state"


def test_what_a_graph_in_a_graph_returns_is_needed():
    inner = graph_of([], ["value"])
    middle = graph_of([helper.make_node("If", ["b"], ["m"], then_branch=inner)], ["m"])
    graph = graph_of(
        [
            helper.make_node("Relu", ["x"], ["value"]),
            helper.make_node("If", ["a"], ["y"], then_branch=middle),
        ],
        ["y"],
    )
    remove_unneeded_nodes(graph)
    assert operators(graph) == ["Relu", "If"]
