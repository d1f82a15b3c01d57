"""Recurrent layers: RNN, GRU and LSTM, as loops over time.

The products of the input with its weights are one matmul for all times, before the loop; a step
adds those of the state. Sequences that end before the longest keep their state and give zeros
behind their end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...errors import ModelError
from ...ir.tensor import Tensor, accumulator_dtype
from ...ops import functional as op
from ...ops.scan import scan
from .cell_activations import Activation, activations_of
from .node import Node, converter

Cell = Callable[[list[Tensor], Tensor], list[Tensor]]
"""Maps the state and the products of the input at one time to the next state, output first."""


@dataclass(frozen=True)
class _Weights:
    """What one direction of a layer computes with, gates side by side.

    Attributes
    ----------
    recurrence : Tensor of shape (hidden, gates · hidden)
    bias : Tensor of shape (gates · hidden,) or None
        Of the products with the state, where it cannot be added to those of the input.
    peepholes : list of Tensor of shape (hidden,), or None
    activations : list of callable
    """

    recurrence: Tensor
    bias: Tensor | None
    peepholes: list[Tensor] | None
    activations: list[Activation]

    def products(self, state: Tensor) -> Tensor:
        """The part of all gates that the output before gives."""
        product = state @ self.recurrence
        return product if self.bias is None else product + self.bias


@converter("RNN")
def rnn(node: Node) -> tuple[Tensor, ...]:
    """H = f(W x + R H′ + b)."""

    def cell_of(weights: _Weights) -> Cell:
        (f,) = weights.activations
        return lambda state, x: [f(x + weights.products(state[0]))]

    return _Layer(node, ["Tanh"], gates=1, states=1).outputs(cell_of)


@converter("GRU")
def gru(node: Node) -> tuple[Tensor, ...]:
    """H = (1 − z) ⊙ h + z ⊙ H′, where h reads r ⊙ H′ or, as linear_before_reset, r ⊙ (R H′)."""
    resets_product = bool(node.attribute("linear_before_reset", 0))
    cell_of = _gru_resetting_product if resets_product else _gru_resetting_state
    layer = _Layer(node, ["Sigmoid", "Tanh"], gates=3, states=1, biases_apart=resets_product)
    return layer.outputs(cell_of)


def _gru_resetting_product(weights: _Weights) -> Cell:
    f, g = weights.activations

    def cell(state: list[Tensor], x: Tensor) -> list[Tensor]:
        (before,) = state
        xz, xr, xh = op.split(x, 3, -1)
        hz, hr, hh = op.split(weights.products(before), 3, -1)
        z, r = f(xz + hz), f(xr + hr)
        return [(1.0 - z) * g(xh + r * hh) + z * before]

    return cell


def _gru_resetting_state(weights: _Weights) -> Cell:
    f, g = weights.activations
    of_z, of_r, of_h = op.split(weights.recurrence, 3, -1)
    of_gates = op.concat([of_z, of_r], -1)

    def cell(state: list[Tensor], x: Tensor) -> list[Tensor]:
        (before,) = state
        xz, xr, xh = op.split(x, 3, -1)
        hz, hr = op.split(before @ of_gates, 2, -1)
        z, r = f(xz + hz), f(xr + hr)
        return [(1.0 - z) * g(xh + (r * before) @ of_h) + z * before]

    return cell


@converter("LSTM")
def lstm(node: Node) -> tuple[Tensor, ...]:
    """C = f ⊙ C′ + i ⊙ c,  H = o ⊙ h(C); peepholes show the cell state to the gates."""
    couples = bool(node.attribute("input_forget", 0))

    def cell_of(weights: _Weights) -> Cell:
        f, g, h = weights.activations
        peepholes = weights.peepholes

        def cell(state: list[Tensor], x: Tensor) -> list[Tensor]:
            before, memory = state
            i, o, forget, c = op.split(x + weights.products(before), 4, -1)
            if peepholes is not None:
                i, forget = i + peepholes[0] * memory, forget + peepholes[2] * memory
            i = f(i)
            memory = (1.0 - i if couples else f(forget)) * memory + i * g(c)
            if peepholes is not None:
                o = o + peepholes[1] * memory
            return [f(o) * h(memory), memory]

        return cell

    return _Layer(node, ["Sigmoid", "Tanh", "Tanh"], gates=4, states=2).outputs(cell_of)


class _Layer:
    """A recurrent node: its inputs in the form of loops over time.

    Parameters
    ----------
    node : Node
    activations : sequence of str
        The defaults of one direction.
    gates, states : int
        How many of them a cell has.
    biases_apart : bool
        The bias of the products with the state is not added to that of the input's.
    """

    def __init__(
        self,
        node: Node,
        activations: Sequence[str],
        *,
        gates: int,
        states: int,
        biases_apart: bool = False,
    ):
        self.node = node
        self.gates = gates
        self.states = states
        self.biases_apart = biases_apart
        self.batch_first = bool(node.attribute("layout", 0))
        self.backwards = _directions(node)
        self.activations = activations_of(node, activations, len(self.backwards))
        self.dtype = node.tensor(0).dtype
        x = self._input(0)
        self.x = op.permute_dims(x, [1, 0, 2]) if self.batch_first else x
        self.hidden = node.tensor(2).shape[-1]

    def outputs(self, cell_of: Callable[[_Weights], Cell]) -> tuple[Tensor, ...]:
        """The outputs at all times, and the last states.

        Parameters
        ----------
        cell_of : callable
            Makes the cell of a direction.
        """
        going_on = self._going_on()
        runs = [
            self._run(number, backwards, cell_of(self._weights(number)), going_on)
            for number, backwards in enumerate(self.backwards)
        ]
        steps, batch = self.x.shape[:2]
        ys = [op.reshape(ys, [steps, 1, batch, self.hidden]) for _, ys in runs]
        last = [
            _joined([op.reshape(states[i], [1, batch, self.hidden]) for states, _ in runs], 0)
            for i in range(self.states)
        ]
        y = _joined(ys, 1)
        if self.batch_first:
            y = op.permute_dims(y, [2, 0, 1, 3])
            last = [op.permute_dims(state, [1, 0, 2]) for state in last]
        return tuple(tensor.astype(self.dtype) for tensor in (y, *last))

    def _run(
        self, number: int, backwards: bool, cell: Cell, going_on: Tensor | None
    ) -> tuple[list[Tensor], Tensor]:
        """The last states of a direction, and its outputs at all times."""
        rows = [self._products(number), *([] if going_on is None else [going_on])]

        def step(state: list[Tensor], row: list[Tensor]) -> tuple[list[Tensor], Tensor]:
            after = cell(state, row[0])
            if going_on is not None:
                after = [op.where(row[1], *pair) for pair in zip(after, state, strict=True)]
            return after, after[0]

        if backwards:
            rows = [op.flip(row, 0) for row in rows]
        states, ys = scan(step, [self._start(i, number) for i in range(self.states)], rows)
        ys = op.flip(ys, 0) if backwards else ys
        return states, ys if going_on is None else op.where(going_on, ys, 0.0)

    def _products(self, number: int) -> Tensor:
        """The input's products with its weights at all times, biases added."""
        products = self.x @ op.transpose(self._part(1, number))
        if not self.node.has(3):
            return products
        of_input, of_state = op.split(self._part(3, number), 2, 0)
        return products + (of_input if self.biases_apart else of_input + of_state)

    def _weights(self, number: int) -> _Weights:
        bias = peepholes = None
        if self.biases_apart and self.node.has(3):
            _, bias = op.split(self._part(3, number), 2, 0)
        if self.node.has(7):
            peepholes = op.split(self._part(7, number), 3, 0)
        recurrence = op.transpose(self._part(2, number))
        return _Weights(recurrence, bias, peepholes, self.activations[number])

    def _start(self, state: int, number: int) -> Tensor:
        """The first value of a state, zeros where none is given."""
        index = 5 + state
        if not self.node.has(index):
            shape = [self.x.shape[1], self.hidden]
            return self.x.emitter.full(0.0, shape, self.x.dtype)
        return self._part(index, number, axis=1 if self.batch_first else 0)

    def _going_on(self) -> Tensor | None:
        """At which times sequences have not ended, of shape (time, batch, 1)."""
        if not self.node.has(4):
            return None
        steps, batch = self.x.shape[:2]
        times = op.reshape(op.indices(self.x.emitter, steps), [steps, 1])
        lengths = self.node.tensor(4).astype("int64")
        return op.reshape(op.less(times, lengths), [steps, batch, 1])

    def _part(self, index: int, number: int, axis: int = 0) -> Tensor:
        """One direction of an input."""
        x = self._input(index)
        part = op.strided_slice(x, [axis], [number], [number + 1], assume_inbound=True)
        return op.reshape(part, [extent for i, extent in enumerate(x.shape) if i != axis])

    def _input(self, index: int) -> Tensor:
        """A float input in the dtype in which the layer computes."""
        return self.node.tensor(index).astype(accumulator_dtype(self.dtype))


def _directions(node: Node) -> list[bool]:
    """For each direction whether it goes backwards in time."""
    direction = node.attribute("direction", b"forward").decode()
    known = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}
    if direction not in known:
        raise ModelError(f"its direction {direction!r} is unknown; there are {sorted(known)}")
    return known[direction]


def _joined(tensors: Sequence[Tensor], axis: int) -> Tensor:
    return tensors[0] if len(tensors) == 1 else op.concat(tensors, axis)
