"""Graphs of stages: in which order they depend on one another, and how to rewrite them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import te, tirx
from tvm.te import _ffi_api

from ..errors import MissingGradientError
from .walk import Expr, is_load, loaded, postorder, tensor_key, transformed

Key = tuple[int, int]
"""What identifies a tensor (see `walk.tensor_key`)."""

Operation = Any
"""A stage: what computes one tensor or several."""


def outputs_of(op: Operation) -> list[te.Tensor]:
    """Return the tensors that a stage computes."""
    return [op.output(number) for number in range(op.num_outputs)]


def operations(*tensors: te.Tensor) -> list[Operation]:
    """Return the stages that some tensors depend on, each once, after those it reads.

    The inside of a scan is not among them: a scan is one stage (see `sources`).
    """
    return postorder(
        *(tensor.op for tensor in tensors),
        parts=lambda op: [tensor.op for tensor in sources(op)],
    )


def sources(op: Operation) -> list[te.Tensor]:
    """Return the tensors that a stage reads, each once.

    Those of a scan are its initial states and what its update reads from outside: tensors that do
    not depend on its states.
    """
    if not isinstance(op, te.ScanOp):
        return _once(op.input_tensors)
    outside = [t for stage in scan_body(op) for t in stage.input_tensors]
    inside = {
        tensor_key(tensor)
        for stage in [*scan_body(op), *(state.op for state in op.state_placeholder)]
        for tensor in outputs_of(stage)
    }
    return _once([*op.init, *(t for t in outside if tensor_key(t) not in inside)])


def scan_body(op: Any) -> list[Operation]:
    """Return the stages of a scan's update, each after those it reads.

    Only these are computed anew at every step: the stages that depend on the scan's states, and
    the updates themselves.
    """
    states = {tensor_key(state) for state in op.state_placeholder}
    body: list[Operation] = []
    depends = set(states)
    updates = {tensor_key(update) for update in op.update}
    order = postorder(
        *(update.op for update in op.update),
        parts=lambda stage: [tensor.op for tensor in sources(stage)],
    )
    for stage in order:
        reads_state = any(tensor_key(tensor) in depends for tensor in sources(stage))
        if reads_state or any(tensor_key(t) in updates for t in outputs_of(stage)):
            body.append(stage)
            depends |= {tensor_key(tensor) for tensor in outputs_of(stage)}
    return body


def rewritten(
    tensors: Sequence[te.Tensor],
    change: Callable[[Operation], Sequence[te.Tensor] | None],
    known: Mapping[Key, te.Tensor] | None = None,
) -> list[te.Tensor]:
    """Return tensors with the stages that they depend on changed, those read first.

    Parameters
    ----------
    tensors : sequence of Tensor
    change : callable
        Given a stage that reads already changed tensors, returns what its outputs become; None
        leaves it as it is. Stages inside a scan are changed too.
    known : mapping, optional
        What some tensors become; stages above them are not visited for their sake.
    """
    table: dict[Key, te.Tensor] = dict(known or {})

    def visit(root: Operation) -> None:
        order = postorder(
            root,
            parts=lambda op: [
                tensor.op for tensor in op.input_tensors if tensor_key(tensor) not in table
            ],
        )
        for op in order:
            if all(tensor_key(tensor) in table for tensor in outputs_of(op)):
                continue
            moved = with_inputs(op, table)
            results = change(moved)
            results = outputs_of(moved) if results is None else results
            for tensor, result in zip(outputs_of(op), results, strict=True):
                table[tensor_key(tensor)] = result

    for tensor in tensors:
        if tensor_key(tensor) not in table:
            visit(tensor.op)
    return [table[tensor_key(tensor)] for tensor in tensors]


def with_inputs(op: Operation, table: Mapping[Key, te.Tensor]) -> Operation:
    """Return a stage that reads other tensors; the stage itself if they are the same.

    Its loop variables stay the same objects.
    """

    def replaced(tensor: te.Tensor) -> te.Tensor:
        return table.get(tensor_key(tensor), tensor)

    before = list(op.input_tensors)
    if all(tensor_key(replaced(tensor)) == tensor_key(tensor) for tensor in before):
        return op
    if isinstance(op, te.ComputeOp):
        return with_bodies(op, _changed_bodies(op.body, lambda e: _reading(e, replaced)))
    if isinstance(op, te.ExternOp):
        return _with_extern_inputs(op, replaced)
    if isinstance(op, te.ScanOp):
        return _ffi_api.ScanOp(
            op.name, op.tag, op.attrs, op.scan_axis,
            [replaced(tensor) for tensor in op.init],
            [replaced(tensor) for tensor in op.update],
            op.state_placeholder,
            [replaced(tensor) for tensor in op.inputs],
        )  # fmt: skip
    raise MissingGradientError(f"the stage {op.name} is a {type(op).__name__}, which is not known")


def with_bodies(op: Any, bodies: Sequence[Expr]) -> Any:
    """Return a compute stage with other bodies over the same axes."""
    return _ffi_api.ComputeOp(op.name, op.tag, op.attrs, op.axis, bodies)


def reduce_with(
    body: Any, sources: Sequence[Expr], condition: Expr | None = None, init: Any = None
) -> list[Expr]:
    """Return all components of a reduction over the axes of `body`, with other sources.

    Parameters
    ----------
    body : Reduce
    sources : sequence of Expr
    condition : Expr, optional
        That of `body` if left out.
    init : sequence of Expr, optional
        That of `body` if left out.
    """
    # TVM asks that the components share these very arrays.
    first = tirx.Reduce(
        body.combiner, list(sources), list(body.axis),
        body.condition if condition is None else condition,
        0, list(body.init) if init is None else list(init),
    )  # fmt: skip
    return [
        first,
        *(
            tirx.Reduce(first.combiner, first.source, first.axis, first.condition, i, first.init)
            for i in range(1, len(sources))
        ),
    ]


def _with_extern_inputs(op: Any, replaced: Callable[[te.Tensor], te.Tensor]) -> Any:
    """Return an extern stage that reads other tensors, in its buffers and by loads in its body."""
    inputs = [
        _of_shape(replaced(tensor), buffer.shape)
        for tensor, buffer in zip(op.inputs, op.input_placeholders, strict=True)
    ]
    table = {tensor_key(old): new for old, new in zip(op.inputs, inputs, strict=True)}

    def change(call: Any) -> Any:
        if is_load(call) and tensor_key(loaded(call)[0]) in table:
            return table[tensor_key(loaded(call)[0])](*loaded(call)[1])
        return call

    body = tvm_ffi.structural_map(op.body, (tvm.ir.Call, change))
    return _ffi_api.ExternOp(
        op.name, op.tag, op.attrs, inputs, op.input_placeholders, op.output_placeholders, body
    )


def _of_shape(tensor: te.Tensor, shape: Sequence[Expr]) -> te.Tensor:
    """Return a tensor with these very extents as its shape: externs ask for the same objects."""
    if all(a.same_as(b) for a, b in zip(tensor.shape, shape, strict=True)):
        return tensor
    return te.compute(tuple(shape), lambda *at: tensor[at], name=tensor.op.name)


def _changed_bodies(bodies: Sequence[Expr], change: Callable[[Expr], Expr]) -> list[Expr]:
    """Return the bodies of a stage with each of their expressions changed."""
    first = bodies[0]
    if not isinstance(first, tirx.Reduce):
        return [change(body) for body in bodies]
    components = reduce_with(
        first,
        [change(source) for source in first.source],
        change(first.condition),
        [change(value) for value in first.init],
    )
    return [components[int(body.value_index)] for body in bodies]


def _reading(expr: Expr, replaced: Callable[[te.Tensor], te.Tensor]) -> Expr:
    """Return an expression that loads from other tensors."""

    def change(node: Expr) -> Expr:
        if not is_load(node):
            return node
        tensor, indices = loaded(node)
        other = replaced(tensor)
        return node if tensor_key(other) == tensor_key(tensor) else other(*indices)

    return transformed(expr, change)


def _once(tensors: Sequence[te.Tensor]) -> list[te.Tensor]:
    return list({tensor_key(tensor): tensor for tensor in tensors}.values())
