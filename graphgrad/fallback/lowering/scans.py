"""Recurrences as loops over time.

The graph of one step becomes a function of its own, whose body is then the body of a loop. So each
stage of a step stays a block, in a scope that holds the buffers of the step: a schedule can find
and transform it there. Each state is kept for all times if somebody reads them, in a circular
buffer of a few rows (see `circular_buffers`) if not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, te, tirx

from ...ir.kernel_rewrite import replace_block
from ...ir.loops import over_axes, sequence
from ...tvm_fixes.hooks import extern_stage
from ..graph import DETECT_ACCESS, Key, Operation, operations, outputs_of, replace_inputs, sources
from ..indices.index_system import Axis
from ..scans.circular_buffers import (
    circular_row,
    circular_rows,
    read_circular_buffers,
    reads_recent_rows,
    states_read_at_end,
)
from ..scans.scan import step, step_time
from ..walk import Expr, identity, tensor_key
from .explicit_bindings import bind_shared_values
from .hidden_bindings import reveal_bindings

Lowerable = Callable[[Sequence[te.Tensor]], Sequence[te.Tensor]]


def lower_scans(tensors: Sequence[te.Tensor], lowerable: Lowerable) -> list[te.Tensor]:
    """Tensors that depend on extern stages, which loop over time, instead of scans.

    Parameters
    ----------
    tensors : sequence of Tensor
    lowerable : callable
        Takes what a step computes to the same by stages that TVM lowers, each tensor once.

    Raises
    ------
    ArgumentError
        A stage inside a scan cannot be computed one time at a time; the error names it.
    """
    table: dict[Key, te.Tensor] = {}
    circulars: dict[Key, te.Tensor] = {}
    order = operations(*tensors)
    at_the_end = states_read_at_end(order, tensors)
    for op in order:
        if isinstance(op, te.ScanOp):
            lowered, circular = _lowered(op, lowerable, at_the_end)
        else:
            lowered, circular = read_circular_buffers(op, circulars), set()
        stage = replace_inputs(lowered, table)
        for tensor, result in zip(outputs_of(op), outputs_of(stage), strict=True):
            # Its rows are at other places: readers are rewritten.
            if tensor_key(tensor) in circular:
                circulars[tensor_key(tensor)] = result
            elif stage is not op:
                table[tensor_key(tensor)] = result
    return [table.get(tensor_key(tensor), tensor) for tensor in tensors]


def _lowered(op: Any, lowerable: Lowerable, at_the_end: set[Key]) -> tuple[Operation, set[Key]]:
    """An extern stage that computes the states of a scan, and which of them are circular buffers.

    Parameters
    ----------
    op : ScanOp
    lowerable : callable
    at_the_end : set of Key
        The states of which nobody but the steps reads more than the last rows.
    """
    time = step_time(op)
    inputs = sources(op)
    placeholders = [te.placeholder(t.shape, str(t.dtype), name=t.op.name) for t in inputs]
    stand_ins = {
        tensor_key(tensor): placeholder
        for tensor, placeholder in zip(inputs, placeholders, strict=True)
    }
    rows, stages = step(op, time, stand_ins)
    function = te.create_prim_func(
        [*placeholders, *op.state_placeholder, time.var, *lowerable(rows)]
    )
    function = reveal_bindings(function)
    function = bind_shared_values(function, small_stay=False)
    # Parameters are the inputs, the states, the time, and the rows that the step computes.
    buffers = dict(zip(map(tensor_key, inputs), function.params, strict=False))
    parameters = list(function.params[len(inputs) : len(inputs) + len(rows)])
    states = [_State(parameter, parameter, None) for parameter in parameters]
    circular = set()
    for i, (state, result) in enumerate(zip(op.state_placeholder, outputs_of(op), strict=True)):
        if tensor_key(result) in at_the_end and reads_recent_rows(stages, state, op, time):
            states[i] = _circular_state(parameters[i], circular_rows(op))
            circular.add(tensor_key(result))
    first = [
        _copy_rows(buffers[tensor_key(init)], state, init.shape)
        for init, state in zip(op.init, states, strict=True)
    ]
    written = dict(zip(map(identity, function.params[-len(rows) :]), states, strict=True))
    loop = _loop(op.name, function.body.block, time, written)
    result = extern_stage(
        op.name, "", DETECT_ACCESS, inputs, list(function.params[: len(inputs)]),
        [state.buffer for state in states], sequence(*first, loop),
    )  # fmt: skip
    return result, circular


@dataclass(frozen=True)
class _State:
    """Where a state is kept.

    Attributes
    ----------
    parameter : Buffer
        What the function of a step reads as the state.
    buffer : Buffer
    rows : Expr or None
        How many rows the buffer has if it is a circular buffer.
    """

    parameter: Any
    buffer: Any
    rows: Expr | None

    def at(self, indices: Sequence[Expr]) -> list[Expr]:
        """The place of an element in the buffer."""
        row, *others = indices
        return [row if self.rows is None else circular_row(row, self.rows), *others]


def _circular_state(parameter: Any, rows: Expr) -> _State:
    shape = [rows, *parameter.ty.shape[1:]]
    return _State(parameter, tirx.decl_buffer(shape, parameter.ty.dtype, parameter.name), rows)


def _copy_rows(source: Any, state: _State, shape: Sequence[Expr]) -> Any:
    """Loops that copy the first rows of a state from its initial values."""
    axes = [
        tirx.IterVar((0, extent), tirx.Var(f"i{i}", str(extent.ty)), tirx.IterVar.DataPar)
        for i, extent in enumerate(shape)
    ]
    at = [axis.var for axis in axes]
    store = tirx.BufferStore(state.buffer, tirx.BufferLoad(source, at), state.at(at))
    return _block("init", axes, store)


def _loop(name: str, body: Any, time: Axis, written: Mapping[int, _State]) -> Any:
    """A loop over time.

    Parameters
    ----------
    name : str
    body : SBlock
        Of one step, in terms of the variable of `time`.
    time : Axis
    written : mapping
        For the buffers that a step writes, the states that have a row for each time instead.
    """
    read = {identity(state.parameter): state for state in written.values()}

    def change(node: Any) -> Any:
        if isinstance(node, s_tir.SBlock):
            # What it reads and writes is no longer so.
            return replace_block(
                node,
                reads=[],
                writes=[],
                name_hint=f"{name}_{node.name_hint}",
                annotations={**node.annotations, **DETECT_ACCESS},
            )
        is_store = isinstance(node, tirx.BufferStore)
        buffer = identity(node.buffer if is_store else node.source)
        if buffer in written:
            state, indices = written[buffer], [time.var, *node.indices]
        elif buffer in read:
            state, indices = read[buffer], list(node.indices)
        else:
            return node
        if is_store:
            return tirx.BufferStore(state.buffer, node.value, state.at(indices))
        return tirx.BufferLoad(state.buffer, state.at(indices))

    kinds = (s_tir.SBlock, tirx.BufferStore, tvm.ir.TensorLoad)
    statement = tvm_ffi.structural_map(body.body, (kinds, change))
    axis = tirx.IterVar(
        tvm.ir.Range.from_min_extent(time.low, time.extent), time.var, tirx.IterVar.Opaque
    )
    return _block(f"{name}_step", [axis], statement, body.alloc_buffers)


def _block(name: str, axes: Sequence[Any], body: Any, buffers: Sequence[Any] = ()) -> Any:
    """A block inside serial loops over its axes."""
    block = s_tir.SBlock(list(axes), [], [], name, body, None, list(buffers), [], DETECT_ACCESS)
    return over_axes(block)
