"""Random recurrent models of ONNX, with what they compute in PyTorch.

Layers are drawn as in `operator_cases`, but of real extents as well; nodes of Scan and Loop have
bodies of `tests.ops.random_loops`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import torch
from onnx import defs, helper, numpy_helper

import graphgrad as gg
from graphgrad.frontend.mode import specialize
from tests.fallback.choices import Choices
from tests.frontend.operator_cases import Case
from tests.frontend.operator_cases.draw import Draw, element_type
from tests.frontend.operator_cases.recurrent import ACTIVATIONS, FUNCTIONS, layer
from tests.ops.loop_judge import Function, compare, dtype_of, judge, results
from tests.ops.random_loops import OPERATIONS, WITHOUT_ROWS, Graph, Loop, random_loop

Tensor = torch.Tensor

OPSETS = {"RNN": (14, 22), "GRU": (14, 22), "LSTM": (14, 22)}
SCAN_OPSET = 17


@dataclass(frozen=True)
class Recurrent:
    """A model of one node.

    Attributes
    ----------
    model : ModelProto
    arrays : dict of arrays
        Its inputs.
    twin : callable
        What it computes in PyTorch, of the inputs in this order.
    text : str
        What it is, for messages.
    """

    model: onnx.ModelProto
    arrays: dict[str, np.ndarray]
    twin: Function
    text: str

    def judge(self, alone: bool = True) -> None:
        """Compare results with onnxruntime's, where it serves the model, and all with the twin."""
        arrays = list(self.arrays.values())
        theirs = self.by_onnxruntime()
        if theirs is not None:
            compare("result of onnxruntime", theirs, results(self.twin, arrays), dtype_of(arrays))
        model = gg.from_onnx(self.model)
        assert model.inputs == list(self.arrays)
        judge(specialize(model, None), arrays, self.twin, alone)

    def by_onnxruntime(self) -> list[np.ndarray] | None:
        """Return the results of onnxruntime; None where it does not serve the model."""
        from tests.frontend.operator_cases.forward import by_onnxruntime

        with contextlib.suppress(Exception):  # each kind of refusal has a type of its own
            return by_onnxruntime(self.model, self.arrays)
        return None


def random_layer(choices: Choices) -> Recurrent:
    """Return an RNN, GRU or LSTM."""
    operator = choices.pick(list(OPSETS))
    opset = choices.pick(OPSETS[operator])
    dtype = choices.pick(["float64", "float32"])
    is_tiny = choices.chance(0.3)
    batch, width, hidden = (
        [choices.integer(1, 3) for _ in range(3)]
        if is_tiny
        else [choices.integer(1, 17), choices.integer(1, 70), choices.integer(5, 130)]
    )
    steps = choices.integer(1, 9)
    seed = int(choices.number() * 2**31)
    generator = np.random.default_rng(seed)
    draw = Draw(operator, opset, defs.get_schema(operator, opset, ""), generator)
    drawn = layer(draw, steps, batch, width, hidden, dtype)
    for place in (1, 2):  # else wide layers are saturated
        drawn.inputs[place] *= min(1.0, 2 / np.sqrt(drawn.inputs[place].shape[-1]))
    case = Case("", operator, opset, 0, seed, drawn)
    twin = _layer_twin(case)
    outputs = results(twin, list(case.arrays.values()))
    model = case.typed_model([output.astype(dtype) for output in outputs])
    text = f"{operator} of opset {opset}, {dtype}, {case.attributes}, inputs " + ", ".join(
        "none" if array is None else str(list(array.shape)) for array in drawn.inputs
    )
    return Recurrent(model, case.arrays, twin, text)


def _layer_twin(case: Case) -> Function:
    """Return what a layer computes, by the standard's formulas."""
    attributes, names = case.attributes, list(case.arrays)
    direction = attributes.get("direction", "forward")
    backwards = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[direction]
    first = bool(attributes.get("layout", 0))
    activations = _activations(case, len(backwards))

    def run(*tensors: Tensor) -> list[Tensor]:
        named = dict(zip(names, tensors, strict=True))
        x, w, r, b, lengths, h, c, p = (named.get(f"x{number}") for number in range(8))
        x = x.transpose(0, 1) if first else x
        steps, batch, hidden = x.shape[0], x.shape[1], r.shape[-1]
        lengths = torch.full([batch], steps) if lengths is None else lengths
        ys, last = [], []
        for way, is_backwards in enumerate(backwards):

            def start(state: Tensor | None, way: int = way) -> Tensor:
                if state is None:
                    return x.new_zeros([batch, hidden])
                return state[:, way] if first else state[way]

            bias = x.new_zeros(2 * w.shape[1]) if b is None else b[way]
            peepholes = [0.0] * 3 if p is None else p[way].split(hidden)
            cell = _CELLS[case.operator](attributes, activations[way], r[way], bias, peepholes)
            state = [start(h), start(c)] if case.operator == "LSTM" else [start(h)]
            outputs: dict[int, Tensor] = {}
            for time in reversed(range(steps)) if is_backwards else range(steps):
                goes_on = (time < lengths).unsqueeze(1)
                new = cell(x[time] @ w[way].T, *state)
                pairs = zip(new, state, strict=True)
                state = [torch.where(goes_on, after, before) for after, before in pairs]
                outputs[time] = torch.where(goes_on, new[0], 0.0)
            ys.append(torch.stack([outputs[time] for time in range(steps)]))
            last.append(state)
        y = torch.stack(ys, 2 if first else 1)
        states = [torch.stack(each, 1 if first else 0) for each in zip(*last, strict=True)]
        return [y.transpose(0, 1) if first else y, *states]

    return run


def _activations(case: Case, ways: int) -> list[list[Callable[[Tensor], Tensor]]]:
    """The functions of each direction, which bound what they are given."""
    count = FUNCTIONS[case.operator]
    defaults = {"RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}
    names = case.attributes.get("activations", defaults[case.operator] * ways)
    functions = [_FUNCTIONS[name](**ACTIVATIONS[name]) for name in names]
    return [functions[way * count : (way + 1) * count] for way in range(ways)]


_FUNCTIONS: dict[str, Callable[..., Callable[[Tensor], Tensor]]] = {
    "Relu": lambda: torch.relu,
    "Tanh": lambda: torch.tanh,
    "Sigmoid": lambda: torch.sigmoid,
    "Affine": lambda alpha, beta: lambda x: alpha * x + beta,
    "LeakyRelu": lambda alpha: lambda x: torch.where(x >= 0, x, alpha * x),
    "ThresholdedRelu": lambda alpha: lambda x: torch.where(x > alpha, x, 0.0),
    "ScaledTanh": lambda alpha, beta: lambda x: alpha * torch.tanh(beta * x),
    "HardSigmoid": lambda alpha, beta: lambda x: torch.clamp(alpha * x + beta, 0, 1),
    "Elu": lambda alpha: lambda x: torch.nn.functional.elu(x, alpha),
    "Softsign": lambda: torch.nn.functional.softsign,
    "Softplus": lambda: torch.nn.functional.softplus,
}

Cell = Callable[..., list[Tensor]]


def _bounded(attributes: dict[str, Any]) -> Callable[[Tensor], Tensor]:
    clip = attributes.get("clip")
    return (lambda x: x) if clip is None else lambda x: torch.clamp(x, -clip, clip)


def _rnn(attributes: Any, functions: Any, r: Tensor, b: Tensor, peepholes: Any) -> Cell:
    (f,), bounded = functions, _bounded(attributes)
    before, after = b.chunk(2)
    return lambda x, h: [f(bounded(x + h @ r.T + before + after))]


def _gru(attributes: Any, functions: Any, r: Tensor, b: Tensor, peepholes: Any) -> Cell:
    (f, g), bounded = functions, _bounded(attributes)
    of_input, of_state = (part.chunk(3) for part in b.chunk(2))
    weights = r.chunk(3)

    def cell(x: Tensor, h: Tensor) -> list[Tensor]:
        parts = [part + bias for part, bias in zip(x.chunk(3, -1), of_input, strict=True)]
        z, reset = (
            f(bounded(parts[gate] + h @ weights[gate].T + of_state[gate])) for gate in range(2)
        )
        if attributes.get("linear_before_reset", 0):
            product = reset * (h @ weights[2].T + of_state[2])
        else:
            product = (reset * h) @ weights[2].T + of_state[2]
        return [(1 - z) * g(bounded(parts[2] + product)) + z * h]

    return cell


def _lstm(attributes: Any, functions: Any, r: Tensor, b: Tensor, peepholes: Any) -> Cell:
    (f, g, h_function), bounded = functions, _bounded(attributes)
    before, after = b.chunk(2)
    of_input, of_output, of_forget = peepholes

    def cell(x: Tensor, h: Tensor, c: Tensor) -> list[Tensor]:
        i, o, forget, new = (x + h @ r.T + before + after).chunk(4, -1)
        i = f(bounded(i + of_input * c))
        forget = 1 - i if attributes.get("input_forget", 0) else f(bounded(forget + of_forget * c))
        c = forget * c + i * g(bounded(new))
        return [f(bounded(o + of_output * c)) * h_function(c), c]

    return cell


_CELLS = {"RNN": _rnn, "GRU": _gru, "LSTM": _lstm}


def random_scan(choices: Choices) -> Recurrent:
    """Return a Scan over any axes and directions; a Loop where there is nothing to scan over."""
    loop = random_loop(choices, lambda name: OPERATIONS[name].onnx is not None)
    rows = [_Place(choices, row.ndim) for row in loop.rows]
    first = [*loop.start, *(row[0] for row in loop.rows), *loop.outer]
    values = loop.body.values([torch.from_numpy(np.asarray(array)) for array in first])
    stacked = [_Place(choices, values[number].ndim + 1) for number in loop.body.results]
    if not rows:
        stacked = [_Place(Choices(), 1) for _ in stacked]
    arrays = _named(loop, rows)

    def twin(*tensors: Tensor) -> list[Tensor]:
        start, scanned, outer = loop.grouped(tensors)
        scanned = [place.rows(each) for place, each in zip(rows, scanned, strict=True)]
        last, ys = loop.body.in_torch(start, scanned, outer)
        return [*last, *(place.stacked(y) for place, y in zip(stacked, ys, strict=True))]

    outputs = results(twin, list(arrays.values()))
    model = _model(loop, arrays, rows, stacked, values, outputs)
    places = ", ".join(f"{place.axis}{'←' * place.is_backwards}" for place in (*rows, *stacked))
    return Recurrent(model, arrays, twin, f"{loop}\naxes {places}")


class _Place:
    """Along which axis, and which way, a Scan reads rows or stacks results."""

    def __init__(self, choices: Choices, rank: int):
        self.axis = choices.integer(0, rank - 1)
        self.is_backwards = choices.chance(0.4)
        self.attribute = self.axis - rank if choices.chance(0.3) else self.axis

    def rows(self, x: Tensor) -> Tensor:
        """Return the rows of an input in the order of steps."""
        moved = x.movedim(self.axis, 0)
        return moved.flip(0) if self.is_backwards else moved

    def stacked(self, y: Tensor) -> Tensor:
        """Return an output of rows in the order of steps."""
        return (y.flip(0) if self.is_backwards else y).movedim(0, self.axis)


def _named(loop: Loop, rows: Sequence[_Place]) -> dict[str, np.ndarray]:
    """The arrays of a loop by the names of inputs, rows along their axes."""
    start, scanned, outer = loop.grouped(loop.arrays)
    scanned = [np.moveaxis(a, 0, place.axis).copy() for a, place in zip(scanned, rows, strict=True)]
    groups = {"s": start, "r": scanned, "o": outer}
    return {f"{n}{number}": a for n, group in groups.items() for number, a in enumerate(group)}


def _model(
    loop: Loop,
    arrays: dict[str, np.ndarray],
    rows: Sequence[_Place],
    stacked: Sequence[_Place],
    values: Sequence[Tensor],
    outputs: Sequence[np.ndarray],
) -> onnx.ModelProto:
    """The file of a Scan or Loop.

    Parameters
    ----------
    loop : Loop
    arrays : dict of arrays
        The inputs.
    rows, stacked : sequences of _Place
    values : sequence of Tensor
        Those of the first step.
    outputs : sequence of arrays
    """
    body = loop.body
    inner = body.carries + body.rows
    types = [loop.dtype if v.is_floating_point() else str(v.numpy().dtype) for v in values]
    names = [f"in{number}" for number in range(inner)]
    graph, known = Graph(loop.dtype), [*names, *list(arrays)[inner:]]
    for one in body.instructions:
        emit = OPERATIONS[one.operation].onnx
        assert emit is not None
        known.append(emit(graph, *(known[number] for number in one.operands), **one.settings))
    given = [*body.following, *body.results]
    results_of_step = [graph.node("Identity", known[number]) for number in given]

    def value(name: str, number: int) -> onnx.ValueInfoProto:
        return _typed(name, types[number], values[number].shape)

    inputs = [value(name, number) for number, name in enumerate(names)]
    ends = [value(name, number) for name, number in zip(results_of_step, given, strict=True)]
    out = [f"y{number}" for number in range(len(given))]
    constants = []
    if rows:
        attributes = {
            "num_scan_inputs": len(rows),
            "scan_input_axes": [place.attribute for place in rows],
            "scan_input_directions": [int(place.is_backwards) for place in rows],
            "scan_output_axes": [place.attribute for place in stacked],
            "scan_output_directions": [int(place.is_backwards) for place in stacked],
            "body": helper.make_graph(graph.nodes, "body", inputs, ends),
        }
        attributes = {name: v for name, v in attributes.items() if v != []}
        node = helper.make_node("Scan", list(arrays)[:inner], out, **attributes)
    else:
        inputs = [_typed("time", "int64", []), _typed("goes", "bool", []), *inputs]
        goes_on = graph.node("Identity", "goes")
        ends = [_typed(goes_on, "bool", []), *ends]
        step = helper.make_graph(graph.nodes, "body", inputs, ends)
        node = helper.make_node("Loop", ["count", "", *list(arrays)[:inner]], out, body=step)
        constants = [numpy_helper.from_array(np.array(WITHOUT_ROWS), "count")]
    whole = helper.make_graph(
        [node],
        "graph",
        [_typed(name, str(array.dtype), array.shape) for name, array in arrays.items()],
        [
            _typed(name, types[number], output.shape)
            for name, number, output in zip(out, given, outputs, strict=True)
        ],
        constants,
    )
    opsets = [helper.make_opsetid("", SCAN_OPSET)]
    return helper.make_model(whole, opset_imports=opsets, ir_version=8)


def _typed(name: str, dtype: str, shape: Any) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, element_type(dtype), list(shape))
