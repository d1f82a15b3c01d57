"""Recurrent layers: RNN, GRU and LSTM, as loops over time.

The products of the input with its weights are one matmul for all times, before the loop; a step
adds those of the state. Sequences that end before the longest keep their state and give zeros
behind their end. Names in formulas are those of the ONNX standard; H′ and C′ are the states before.
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
        The bias of the products with the state; None where it is added to those of the input.
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

    return _Layer(node, ["Tanh"], states=1).outputs(cell_of)


@converter("GRU")
def gru(node: Node) -> tuple[Tensor, ...]:
    """H = (1 − z) ⊙ h + z ⊙ H′, where h reads r ⊙ H′ or, as linear_before_reset, r ⊙ (R H′)."""
    resets_product = bool(node.attribute("linear_before_reset", 0))
    cell_of = _gru_resetting_product if resets_product else _gru_resetting_state
    layer = _Layer(node, ["Sigmoid", "Tanh"], states=1, biases_apart=resets_product)
    return layer.outputs(cell_of)


def _gru_resetting_product(weights: _Weights) -> Cell:
    """The cell whose reset gate scales the product of the state with its weights."""
    f, g = weights.activations

    def cell(state: list[Tensor], x: Tensor) -> list[Tensor]:
        (previous,) = state
        xz, xr, xh = op.split(x, 3, -1)
        hz, hr, hh = op.split(weights.products(previous), 3, -1)
        z, r = f(xz + hz), f(xr + hr)
        return [(1.0 - z) * g(xh + r * hh) + z * previous]

    return cell


def _gru_resetting_state(weights: _Weights) -> Cell:
    """The cell whose reset gate scales the state, before it is multiplied by its weights."""
    f, g = weights.activations
    of_z, of_r, of_h = op.split(weights.recurrence, 3, -1)
    of_gates = op.concat([of_z, of_r], -1)

    def cell(state: list[Tensor], x: Tensor) -> list[Tensor]:
        (previous,) = state
        xz, xr, xh = op.split(x, 3, -1)
        hz, hr = op.split(previous @ of_gates, 2, -1)
        z, r = f(xz + hz), f(xr + hr)
        return [(1.0 - z) * g(xh + (r * previous) @ of_h) + z * previous]

    return cell


@converter("LSTM")
def lstm(node: Node) -> tuple[Tensor, ...]:
    """C = f ⊙ C′ + i ⊙ c,  H = o ⊙ h(C); peepholes show the cell state to the gates."""
    couples = bool(node.attribute("input_forget", 0))

    def cell_of(weights: _Weights) -> Cell:
        f, g, h = weights.activations
        peepholes = weights.peepholes

        def cell(state: list[Tensor], x: Tensor) -> list[Tensor]:
            previous, cell_state = state
            i, o, forget, c = op.split(x + weights.products(previous), 4, -1)
            # Gates are in the order i, o, f, c; peepholes in the order i, o, f. The output gate
            # alone sees the new cell state.
            if peepholes is not None:
                i, forget = i + peepholes[0] * cell_state, forget + peepholes[2] * cell_state
            i = f(i)
            cell_state = (1.0 - i if couples else f(forget)) * cell_state + i * g(c)
            if peepholes is not None:
                o = o + peepholes[1] * cell_state
            return [f(o) * h(cell_state), cell_state]

        return cell

    return _Layer(node, ["Sigmoid", "Tanh", "Tanh"], states=2).outputs(cell_of)


class _Layer:
    """A recurrent node, as one loop over time for each direction.

    Its inputs are, by index: 0 the data, 1 and 2 the weights of the data and of the state, 3 the
    biases of both, 4 the lengths of the sequences, 5 and 6 the first states, 7 the peepholes.

    Parameters
    ----------
    node : Node
    activations : sequence of str
        The names of the default activations of one direction.
    states : int
        How many a cell has.
    biases_apart : bool
        Whether the bias of the products with the state stays apart from that of the input's,
        because the cell does something to these products alone.
    """

    def __init__(
        self,
        node: Node,
        activations: Sequence[str],
        *,
        states: int,
        biases_apart: bool = False,
    ):
        self.node = node
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
        is_active = self._going_on()
        runs = [
            self._run(direction, backwards, cell_of(self._weights(direction)), is_active)
            for direction, backwards in enumerate(self.backwards)
        ]
        steps, batch = self.x.shape[:2]
        ys = [op.reshape(ys, [steps, 1, batch, self.hidden]) for _, ys in runs]
        last = [
            _joined([op.reshape(states[index], [1, batch, self.hidden]) for states, _ in runs], 0)
            for index in range(self.states)
        ]
        y = _joined(ys, 1)
        if self.batch_first:
            y = op.permute_dims(y, [2, 0, 1, 3])
            last = [op.permute_dims(state, [1, 0, 2]) for state in last]
        return tuple(tensor.astype(self.dtype) for tensor in (y, *last))

    def _run(
        self, direction: int, backwards: bool, cell: Cell, is_active: Tensor | None
    ) -> tuple[list[Tensor], Tensor]:
        """The last states of a direction, and its outputs at all times."""
        rows = [self._products(direction), *([] if is_active is None else [is_active])]

        def step(state: list[Tensor], row: list[Tensor]) -> tuple[list[Tensor], Tensor]:
            new_state = cell(state, row[0])
            if is_active is not None:
                new_state = [op.where(row[1], *pair) for pair in zip(new_state, state, strict=True)]
            return new_state, new_state[0]

        # Flipped as a whole: a shorter sequence then begins with its padding, where it is not
        # active and keeps the first state.
        if backwards:
            rows = [op.flip(row, 0) for row in rows]
        states, ys = scan(step, [self._start(i, direction) for i in range(self.states)], rows)
        ys = op.flip(ys, 0) if backwards else ys
        return states, ys if is_active is None else op.where(is_active, ys, 0.0)

    def _products(self, direction: int) -> Tensor:
        """The input's products with its weights at all times, biases added."""
        products = self.x @ op.transpose(self._part(1, direction))
        if not self.node.has(3):
            return products
        of_input, of_state = op.split(self._part(3, direction), 2, 0)
        return products + (of_input if self.biases_apart else of_input + of_state)

    def _weights(self, direction: int) -> _Weights:
        """What the steps of one direction compute with."""
        bias = peepholes = None
        if self.biases_apart and self.node.has(3):
            _, bias = op.split(self._part(3, direction), 2, 0)
        if self.node.has(7):
            peepholes = op.split(self._part(7, direction), 3, 0)
        recurrence = op.transpose(self._part(2, direction))
        return _Weights(recurrence, bias, peepholes, self.activations[direction])

    def _start(self, state: int, direction: int) -> Tensor:
        """The first value of a state, zeros where none is given."""
        index = 5 + state
        if not self.node.has(index):
            shape = [self.x.shape[1], self.hidden]
            return self.x.emitter.full(0.0, shape, self.x.dtype)
        return self._part(index, direction, axis=1 if self.batch_first else 0)

    def _going_on(self) -> Tensor | None:
        """Whether each sequence goes on at each time: (time, batch, 1); None if all are as long."""
        if not self.node.has(4):
            return None
        steps, batch = self.x.shape[:2]
        times = op.reshape(op.indices(self.x.emitter, steps), [steps, 1])
        lengths = self.node.tensor(4).astype("int64")
        return op.reshape(op.less(times, lengths), [steps, batch, 1])

    def _part(self, index: int, direction: int, axis: int = 0) -> Tensor:
        """The part of an input that belongs to one direction, without the axis of directions."""
        x = self._input(index)
        shape = [extent for number, extent in enumerate(x.shape) if number != axis]
        if len(self.backwards) > 1:
            x = op.strided_slice(x, [axis], [direction], [direction + 1], assume_inbound=True)
        return op.reshape(x, shape)

    def _input(self, index: int) -> Tensor:
        """A float input in the dtype in which the layer computes."""
        return self.node.tensor(index).astype(accumulator_dtype(self.dtype))


def _directions(node: Node) -> list[bool]:
    """For each direction whether it goes backwards in time."""
    direction = node.attribute("direction", b"forward").decode()
    backwards_by_name = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}
    if direction not in backwards_by_name:
        raise ModelError(
            f"its direction {direction!r} is unknown; there are {sorted(backwards_by_name)}"
        )
    return backwards_by_name[direction]


def _joined(tensors: Sequence[Tensor], axis: int) -> Tensor:
    return tensors[0] if len(tensors) == 1 else op.concat(tensors, axis)
