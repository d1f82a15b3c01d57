"""Cases of recurrent layers, loops, branches and sequences."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, helper

from .draw import Constant, Draw, Drawn, drawer, element_type

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
FUNCTIONS = {"RNN": 1, "GRU": 2, "LSTM": 3}

ACTIVATIONS = {
    "Relu": {},
    "Tanh": {},
    "Sigmoid": {},
    "Affine": {"alpha": 0.6875, "beta": 0.125},
    "LeakyRelu": {"alpha": 0.125},
    "ThresholdedRelu": {"alpha": 0.3125},
    "ScaledTanh": {"alpha": 0.8125, "beta": 0.625},
    "HardSigmoid": {"alpha": 0.3125, "beta": 0.375},
    "Elu": {"alpha": 0.6875},
    "Softsign": {},
    "Softplus": {},
}
"""With parameters that float32 holds, in which files keep them: graphgrad reads 0.7 where a file
has the float32 nearest to it, and the oracles read that."""


@drawer("RNN", "GRU", "LSTM")
def recurrent(draw: Draw) -> Drawn:
    return layer(draw, *draw.integers(4, 1, 4))


def layer(
    draw: Draw, steps: int, batch: int, width: int, hidden: int, dtype: str | None = None
) -> Drawn:
    """A recurrent layer of some extents, by default of any dtype."""
    gates = GATES[draw.operator]
    direction = draw.choice(["forward", "reverse", "bidirectional"])
    ways = 2 if direction == "bidirectional" else 1
    layout = draw.integer(0, 1) if draw.has("layout") and draw.chance(0.3) else 0
    dtype = dtype or draw.dtype()

    def state() -> np.ndarray | None:
        shape = [batch, ways, hidden] if layout else [ways, batch, hidden]
        return draw.values(shape, dtype, -1, 1) if draw.chance() else None

    x = draw.values([batch, steps, width] if layout else [steps, batch, width], dtype, -1, 1)
    inputs: list[Any] = [
        x,
        draw.values([ways, gates * hidden, width], dtype, -1, 1),
        draw.values([ways, gates * hidden, hidden], dtype, -1, 1),
        draw.values([ways, 2 * gates * hidden], dtype, -1, 1) if draw.chance(0.7) else None,
        draw.generator.integers(1, steps + 1, batch).astype("int32") if draw.chance(0.3) else None,
        state(),
    ]
    attributes: dict[str, Any] = {"hidden_size": hidden}
    if draw.operator == "LSTM":
        peepholes = draw.values([ways, 3 * hidden], dtype, -1, 1) if draw.chance(0.3) else None
        inputs += [state(), peepholes]
    if direction != "forward" or draw.chance():
        attributes["direction"] = direction
    if layout:
        attributes["layout"] = 1
    if draw.chance(0.3):
        attributes["clip"] = draw.real(0.3, 1)
    if draw.operator == "GRU":
        attributes |= draw.some(linear_before_reset=draw.integer(0, 1))
    if draw.operator == "LSTM" and draw.chance(0.1):
        attributes["input_forget"] = 1
    if draw.chance(0.4):
        count = ways * FUNCTIONS[draw.operator]
        names = [draw.choice(list(ACTIVATIONS)) for _ in range(count)]
        attributes["activations"] = names
        for name in ("alpha", "beta"):
            values = [ACTIVATIONS[n][name] for n in names if name in ACTIVATIONS[n]]
            if values:
                attributes[f"activation_{name}"] = values
    return Drawn(inputs, attributes, 3 if draw.operator == "LSTM" else 2)


def _value(name: str, dtype: Any, shape: Any = None) -> Any:
    return helper.make_tensor_value_info(name, dtype, shape)


@drawer("If")
def branch(draw: Draw) -> Drawn:
    x = draw.values([2, 3])
    graphs = {
        f"{side}_branch": helper.make_graph(
            [helper.make_node(op, ["outer"], [f"{side}_y"])],
            side,
            [],
            [_value(f"{side}_y", TensorProto.FLOAT)],
        )
        for side, op in zip(
            ("then", "else"), draw.choice([("Neg", "Relu"), ("Abs", "Sin")]), strict=False
        )
    }
    condition = np.array(draw.chance())
    return Drawn([draw.fixed(condition)], graphs, extra={"outer": x})


@drawer("Loop")
def loop(draw: Draw) -> Drawn:
    x = draw.values([3], low=-1, high=1)
    trips = draw.integer(0, 4)
    limit = draw.integer(0, 5)
    nodes = [
        helper.make_node("Mul", ["state", "outer"], ["scaled"]),
        helper.make_node("Add", ["scaled", "state"], ["next"]),
        helper.make_node("Constant", [], ["limit"], value_int=limit)
        if draw.opset >= 12
        else helper.make_node(
            "Constant", [], ["limit"], value=helper.make_tensor("l", TensorProto.INT64, [], [limit])
        ),
        helper.make_node("Less", ["trip", "limit"], ["go"])
        if draw.opset >= 9
        else helper.make_node("Identity", ["condition"], ["go"]),
    ]
    body = helper.make_graph(
        nodes,
        "body",
        [
            _value("trip", TensorProto.INT64, []),
            _value("condition", TensorProto.BOOL, []),
            _value("state", TensorProto.FLOAT, [3]),
        ],
        [
            _value("go", TensorProto.BOOL, []),
            _value("next", TensorProto.FLOAT, [3]),
            _value("scaled", TensorProto.FLOAT, [3]),
        ],
    )
    condition = draw.ints(draw.chance(0.9), "bool") if draw.chance(0.7) else None
    inputs = [draw.ints(trips), condition, x]
    outer = draw.values([3], low=-1, high=1)
    return Drawn(inputs, {"body": body}, 2, extra={"outer": outer})


@drawer("Scan")
def scan(draw: Draw) -> Drawn:
    steps, width = draw.integer(1, 4), draw.integer(1, 3)
    body = helper.make_graph(
        [
            helper.make_node("Add", ["state", "x"], ["next"]),
            helper.make_node("Mul", ["next", "next"], ["square"]),
        ],
        "body",
        [_value("state", TensorProto.FLOAT, [width]), _value("x", TensorProto.FLOAT, [width])],
        [_value("next", TensorProto.FLOAT, [width]), _value("square", TensorProto.FLOAT, [width])],
    )
    attributes: dict[str, Any] = {"body": body, "num_scan_inputs": 1}
    if not draw.has("scan_input_axes"):
        attributes |= draw.some(directions=[draw.integer(0, 1)])
        inputs = [None, draw.values([2, width]), draw.values([2, steps, width])]
        return Drawn(inputs, attributes, 2)
    axis = draw.integer(0, 1)
    shape = [width, steps] if axis else [steps, width]
    negative = draw.opset >= 11 and draw.chance()
    attributes |= draw.some(
        scan_input_directions=[draw.integer(0, 1)],
        scan_output_directions=[draw.integer(0, 1)],
        scan_output_axes=[draw.integer(0, 1) - 2 * (draw.opset >= 11 and draw.chance())],
    )
    if axis:
        attributes["scan_input_axes"] = [axis - 2 if negative else axis]
    return Drawn([draw.values([width]), draw.values(shape)], attributes, 2)


def _sequence(draw: Draw, shapes: list[list[int]], dtype: str) -> tuple[dict[str, Any], Any]:
    """Inputs of a model, and the node that makes a sequence named s of them."""
    arrays = {f"e{i}": draw.values(shape, dtype) for i, shape in enumerate(shapes)}
    return arrays, helper.make_node("SequenceConstruct", list(arrays), ["s"])


def _shapes(draw: Draw) -> list[list[int]]:
    shape = draw.shape(1, 3, empty=0)
    return [list(shape) for _ in range(draw.integer(1, 3))]


@drawer("SequenceAt", "SequenceErase", "SequenceInsert", "SequenceLength", "ConcatFromSequence")
def sequences(draw: Draw) -> Drawn:
    shapes = _shapes(draw)
    count, dtype = len(shapes), draw.choice(["float32", "int64", "float64"])
    extra, before = _sequence(draw, shapes, dtype)
    joined = helper.make_node("ConcatFromSequence", ["y0"], ["joined"], axis=0, new_axis=1)
    position = draw.indices([], count, draw.choice(["int64", "int32"]))
    has_position = draw.chance(0.7)
    name = draw.operator
    if name == "SequenceAt":
        return Drawn(["s", Constant(position)], before=[before], extra=extra)
    if name == "SequenceLength":
        return Drawn(["s"], before=[before], extra=extra)
    if name == "ConcatFromSequence":
        rank = len(shapes[0])
        new = draw.integer(0, 1)
        attributes = {"axis": draw.axis(rank + new), **({"new_axis": new} if new else {})}
        return Drawn(["s"], attributes, before=[before], extra=extra)
    if name == "SequenceErase":
        if count == 1:
            extra["e1"] = draw.values(shapes[0], dtype)
            before = helper.make_node("SequenceConstruct", ["e0", "e1"], ["s"])
        inputs = ["s", Constant(position)] if has_position else ["s"]
    else:
        position = draw.generator.integers(-count, count + 1, []).astype("int64")
        element = draw.values(shapes[0], dtype)
        inputs = ["s", element, *([Constant(position)] if has_position else [])]
    return Drawn(inputs, before=[before], after=[joined], results=["joined"], extra=extra)


@drawer("SplitToSequence")
def split_to_sequence(draw: Draw) -> Drawn:
    shape = draw.shape(1, 3, empty=0)
    axis = draw.axis(len(shape))
    x = draw.values(shape, draw.choice(["float32", "int64", "float64"]))
    attributes = {"axis": axis}
    kind = draw.choice(["one", "number", "sizes"])
    inputs: list[Any] = [x]
    if kind == "one":
        attributes |= draw.some(keepdims=draw.integer(0, 1))
    elif kind == "number":
        inputs.append(draw.ints(draw.integer(1, shape[axis])))
    else:
        first = draw.integer(1, shape[axis])
        sizes = [first, *([shape[axis] - first] if shape[axis] > first else [])]
        inputs.append(draw.ints(sizes))
    length = helper.make_node("SequenceLength", ["y0"], ["length"])
    zero = helper.make_node(
        "Constant", [], ["at"], value=helper.make_tensor("v", TensorProto.INT64, [], [-1])
    )
    last = helper.make_node("SequenceAt", ["y0", "at"], ["last"])
    return Drawn(inputs, attributes, after=[length, zero, last], results=["length", "last"])


@drawer("SequenceConstruct", "SequenceEmpty")
def made_sequences(draw: Draw) -> Drawn:
    shapes = _shapes(draw)
    dtype = draw.choice(["float32", "int64"])
    arrays = [draw.values(shape, dtype) for shape in shapes]
    joined = helper.make_node("ConcatFromSequence", ["s"], ["joined"], axis=0)
    if draw.operator == "SequenceConstruct":
        after = helper.make_node("ConcatFromSequence", ["y0"], ["joined"], axis=0)
        return Drawn(list(arrays), after=[after], results=["joined"])
    insert = helper.make_node("SequenceInsert", ["y0", "e0"], ["s"])
    attributes = {"dtype": element_type(dtype)}
    return Drawn(
        [], attributes, after=[insert, joined], results=["joined"], extra={"e0": arrays[0]}
    )


@drawer("Optional", "OptionalGetElement", "OptionalHasElement")
def optionals(draw: Draw) -> Drawn:
    x = draw.values(draw.shape(empty=0), draw.choice(["float32", "int64"]))
    if draw.operator == "Optional":
        after = helper.make_node("OptionalGetElement", ["y0"], ["element"])
        return Drawn([x], after=[after], results=["element"])
    before = helper.make_node("Optional", ["e0"], ["s"])
    return Drawn(["s"], before=[before], extra={"e0": x})


@drawer("Adagrad", "Adam", "Momentum", domain="ai.onnx.preview.training")
def optimizers(draw: Draw) -> Drawn:
    groups = draw.integer(1, 2)
    shapes = [draw.shape(0, 2, empty=0) for _ in range(groups)]
    dtype = draw.choice(["float32", "float64"])
    slots = {"Adagrad": 1, "Adam": 2, "Momentum": 1}[draw.operator]
    tensors = []
    for kind in range(2 + slots):
        low = 0 if kind >= 2 else -1
        tensors += [draw.values(shape, dtype, low, 1) for shape in shapes]
    inputs = [np.array(draw.real(0.01, 0.3), "float32"), draw.ints(draw.integer(0, 4)), *tensors]
    attributes = draw.some(norm_coefficient=draw.real(0, 0.1), epsilon=draw.real(0.02, 0.1))
    if draw.operator == "Adagrad":
        attributes |= draw.some(decay_factor=draw.real(0, 0.3))
    if draw.operator == "Adam":
        attributes |= draw.some(
            alpha=draw.real(0.5, 0.95),
            beta=draw.real(0.5, 0.95),
            norm_coefficient_post=draw.real(0, 0.1),
        )
    if draw.operator == "Momentum":
        attributes = {
            "alpha": draw.real(0.1, 0.9),
            "beta": draw.real(0.1, 1),
            "norm_coefficient": draw.real(0, 0.1),
            "mode": draw.choice(["standard", "nesterov"]),
        }
    return Drawn(inputs, attributes, groups * (1 + slots))
