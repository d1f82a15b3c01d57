"""The gradient of a graph of tensor expressions, as further tensor expressions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import te, tirx

from ..errors import ArgumentError, MissingGradientError
from .assemble import assembled
from .backprop import Guarded, is_float
from .contribution import Contribution, contributions
from .graph import Key, Operation, operations, outputs_of, sources
from .reduce import Point, reduction_points, stage_axes, widened
from .scatter import scatter_of
from .walk import tensor_key, without_lets

Part = tuple[te.Tensor, Contribution | te.Tensor]
"""A tensor, and something that is added to its cotangent."""


def te_gradient(
    output: te.Tensor | Sequence[te.Tensor],
    inputs: te.Tensor | Sequence[te.Tensor],
    head: te.Tensor | Sequence[te.Tensor | None] | None = None,
) -> list[te.Tensor]:
    """Return the vector-Jacobian product of tensor expressions by each of some inputs.

    Parameters
    ----------
    output : Tensor or sequence of Tensor
    inputs : Tensor or sequence of Tensor
        Placeholders or intermediate results, of floats.
    head : Tensor or sequence, optional
        The cotangent of each output, of its shape and dtype; None for an output that has none.
        Ones for every float output if left out.

    Returns
    -------
    list of Tensor
        One per input, of its shape and dtype; zeros where no output depends on it.

    Raises
    ------
    ArgumentError
        A head does not fit its output, or an input is not of floats.
    MissingGradientError
        A stage on the way has no known derivative; the error names it.
    """
    outputs = [output] if isinstance(output, te.Tensor) else list(output)
    inputs = [inputs] if isinstance(inputs, te.Tensor) else list(inputs)
    heads = _heads(outputs, head)
    for tensor in inputs:
        if not is_float(tensor.dtype):
            raise ArgumentError(
                f"the input {tensor.op.name} is {tensor.dtype}, not float: it has no gradient"
            )
    parts: dict[Key, list[Contribution | te.Tensor]] = {}
    for tensor, cotangent in zip(outputs, heads, strict=True):
        if cotangent is not None:
            parts.setdefault(tensor_key(tensor), []).append(cotangent)
    totals = _propagated(operations(*outputs), {tensor_key(tensor) for tensor in inputs}, parts)
    found = [totals.get(tensor_key(tensor)) for tensor in inputs]
    return [
        _full(tensor, 0.0) if total is None else total
        for tensor, total in zip(inputs, found, strict=True)
    ]


def _propagated(
    order: Sequence[Operation], wanted: set[Key], parts: dict[Key, list[Contribution | te.Tensor]]
) -> dict[Key, te.Tensor]:
    """Return the cotangents of all tensors on the way from the wanted ones, by their keys."""
    active = _active(order, wanted)
    totals: dict[Key, te.Tensor] = {}
    for op in reversed(order):
        cotangents: list[te.Tensor | None] = []
        for tensor in outputs_of(op):
            arrived = parts.pop(tensor_key(tensor), None)
            cotangents.append(assembled(tensor, arrived) if arrived else None)
            if cotangents[-1] is not None:
                totals[tensor_key(tensor)] = cotangents[-1]
        if any(c is not None for c in cotangents) and _reads_active(op, active):
            for tensor, part in _of_stage(op, cotangents, active):
                parts.setdefault(tensor_key(tensor), []).append(part)
    return totals


def _active(order: Sequence[Operation], wanted: set[Key]) -> set[Key]:
    """Return the float tensors that depend on a wanted one, or are one."""
    active = set(wanted)
    for op in order:
        if _reads_active(op, active):
            active |= {tensor_key(tensor) for tensor in outputs_of(op) if is_float(tensor.dtype)}
    return active


def _reads_active(op: Operation, active: set[Key]) -> bool:
    return any(tensor_key(tensor) in active for tensor in sources(op))


def _of_stage(
    op: Operation, cotangents: Sequence[te.Tensor | None], active: set[Key]
) -> list[Part]:
    """Return what one stage passes on: parts of the cotangents of the tensors that it reads."""
    return [
        (contribution.tensor, contribution)
        for point in _points(op, cotangents)
        for contribution in contributions(point, lambda tensor: tensor_key(tensor) in active)
    ]


def _points(op: Any, cotangents: Sequence[te.Tensor | None]) -> list[Point]:
    """Return what a stage evaluates, for each of its outputs that has a cotangent."""
    scatter = scatter_of(op)
    if scatter is not None:
        (cotangent,) = cotangents
        assert cotangent is not None
        guards = tuple((guard, True) for guard in scatter.guards)
        seed = Guarded(guards, widened(cotangent(*scatter.indices)))
        return [Point(scatter.axes, scatter.value, seed)]
    if not isinstance(op, te.ComputeOp):
        raise MissingGradientError(f"the stage {op.name} is a {type(op).__name__}: no gradient yet")
    if isinstance(op.body[0], tirx.Reduce):
        return reduction_points(op, cotangents)
    axes = stage_axes(op)
    at = [axis.var for axis in axes]
    return [
        Point(axes, without_lets(body), Guarded((), widened(c(*at))))
        for body, c in zip(op.body, cotangents, strict=True)
        if c is not None
    ]


def _heads(
    outputs: Sequence[te.Tensor], head: te.Tensor | Sequence[te.Tensor | None] | None
) -> list[te.Tensor | None]:
    """Return a cotangent for each output, checked; None for an output that has none."""
    if head is None:
        if not any(is_float(tensor.dtype) for tensor in outputs):
            names = ", ".join(tensor.op.name for tensor in outputs)
            raise ArgumentError(f"no output is of floats: {names} has no gradient")
        return [_full(tensor, 1.0) if is_float(tensor.dtype) else None for tensor in outputs]
    heads = [head] if isinstance(head, te.Tensor) else list(head)
    if len(heads) != len(outputs):
        raise ArgumentError(f"there are {len(outputs)} outputs, but {len(heads)} heads")
    for tensor, cotangent in zip(outputs, heads, strict=True):
        if cotangent is not None and not _same_type(cotangent, tensor):
            raise ArgumentError(
                f"the head is {cotangent.dtype} of shape {list(cotangent.shape)}; it must be as "
                f"the output {tensor.op.name}: {tensor.dtype} of shape {list(tensor.shape)}"
            )
    return heads


def _same_type(a: te.Tensor, b: te.Tensor) -> bool:
    """Return whether the dtypes are equal and the shapes may be."""
    analyzer = tvm.sym.Analyzer()
    return (
        str(a.dtype) == str(b.dtype)
        and len(a.shape) == len(b.shape)
        and not any(analyzer.can_prove(x != y) for x, y in zip(a.shape, b.shape, strict=True))
    )


def _full(tensor: te.Tensor, value: float) -> te.Tensor:
    constant = tirx.const(value, str(tensor.dtype))
    return te.compute(tensor.shape, lambda *_: constant, name=f"{tensor.op.name}_ct")
