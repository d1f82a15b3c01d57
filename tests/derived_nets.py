"""Classifiers whose gradients are derived from kernels, as ONNX files with their custom operators.

Nobody has written a gradient for the tensor expression and the loops in them.
"""

import numpy as np
from onnx import TensorProto, helper, numpy_helper
from tvm import relax, te, tirx

import graphgrad as gg

DOMAIN = "tests.derived"
CLASSES = 10
FEATURES = 12
TIMES = 7
STATES = 6
CELLS = 8


def table_of_windows(x, table):
    """Map each element to a row of a table by its own value, times the mean of its neighbors.

    Elementwise, windowed, and with an index that depends on data: the table's gradient is a
    scatter.
    """
    n, width = x.shape
    k = te.reduce_axis((0, 3), "k")
    zero = tirx.const(0, x.dtype)

    def neighbor(i, j):
        inside = tirx.all(j + k >= 1, j + k < width + 1)
        return te.sum(tirx.if_then_else(inside, x[i, j + k - 1], zero), axis=k)

    window = te.compute((n, width), neighbor, name="window")

    def chosen(i, j):
        cell = tirx.Cast("int32", tirx.floor(x[i, j] * tirx.const(2, x.dtype))) + CELLS // 2
        row = tirx.max(tirx.min(cell, CELLS - 1), 0)
        return table[row, j] * te.tanh(window[i, j]) + x[i, j]

    return te.compute((n, width), chosen, name="chosen")


def recurrence(tensors, _):
    """A recurrent layer by `gg.scan`, over the second axis; returns its last state."""
    x, weights, shift = tensors

    def step(state, row):
        return relax.op.tanh(row + relax.op.matmul(state, weights)), None

    start = shift + relax.op.mean(x, 1)
    last, _ = gg.scan(step, start, relax.op.permute_dims(x, [1, 0, 2]))
    return last


CUSTOM_OPS = {
    (DOMAIN, "TableOfWindows"): lambda xs, _: gg.call_te(table_of_windows, *xs),
    (DOMAIN, "Recurrence"): recurrence,
}


def te_op():
    """A perceptron whose activation is `table_of_windows`."""
    nodes = [
        helper.make_node("MatMul", ["input", "encode"], ["code"]),
        helper.make_node("TableOfWindows", ["code", "table"], ["mixed"], domain=DOMAIN),
        helper.make_node("Gemm", ["mixed", "decode", "bias"], ["logits"]),
    ]
    weights = {
        "encode": (FEATURES, FEATURES),
        "table": (CELLS, FEATURES),
        "decode": (FEATURES, CLASSES),
        "bias": (CLASSES,),
    }
    return _file(nodes, (FEATURES,), weights)


def scan():
    """A recurrent classifier made with `gg.scan`."""
    nodes = [
        helper.make_node("MatMul", ["input", "encode"], ["code"]),
        helper.make_node("Recurrence", ["code", "recur", "shift"], ["last"], domain=DOMAIN),
        helper.make_node("Gemm", ["last", "decode", "bias"], ["logits"]),
    ]
    weights = {
        "encode": (FEATURES, STATES),
        "recur": (STATES, STATES),
        "shift": (STATES,),
        "decode": (STATES, CLASSES),
        "bias": (CLASSES,),
    }
    return _file(nodes, (TIMES, FEATURES), weights)


def lstm():
    """A classifier by ONNX's LSTM."""
    return _recurrent("LSTM", gates=4, direction="forward")


def gru():
    """A classifier by ONNX's GRU, in both directions."""
    return _recurrent("GRU", gates=3, direction="bidirectional")


def _recurrent(kind, gates, direction):
    directions = 2 if direction == "bidirectional" else 1
    nodes = [
        helper.make_node("Transpose", ["input"], ["rows"], perm=[1, 0, 2]),
        helper.make_node(
            kind, ["rows", "W", "R", "B"], ["", "last"], hidden_size=STATES, direction=direction
        ),
        helper.make_node("Transpose", ["last"], ["by_sequence"], perm=[1, 0, 2]),
        helper.make_node("Flatten", ["by_sequence"], ["flat"]),
        helper.make_node("Gemm", ["flat", "decode", "bias"], ["logits"]),
    ]
    weights = {
        "W": (directions, gates * STATES, FEATURES),
        "R": (directions, gates * STATES, STATES),
        "B": (directions, 2 * gates * STATES),
        "decode": (directions * STATES, CLASSES),
        "bias": (CLASSES,),
    }
    return _file(nodes, (TIMES, FEATURES), weights)


def _file(nodes, shape, weights):
    generator = np.random.default_rng(0)
    arrays = {n: generator.normal(0, 0.4, s).astype("float32") for n, s in weights.items()}
    graph = helper.make_graph(
        nodes,
        "derived",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["N", *shape])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", CLASSES])],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)
