"""The gradient of a graph of tensor expressions, as further tensor expressions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce as fold
from typing import Any

from tvm import te, tirx

from ..errors import ArgumentError, MissingGradientError
from .backprop import Guarded, Read, backpropagate, is_float, joined
from .index_system import Axis, Inversion, NotAffineError, invert
from .reduce import Point, reduction_points, stage_axes, widened
from .scatter import scatter_add, scatter_of
from .share import shared
from .walk import Expr, postorder, substituted, tensor_key, without_lets

Key = tuple[int, int]


def te_gradient(
    output: te.Tensor, inputs: Sequence[te.Tensor], head: te.Tensor | None = None
) -> list[te.Tensor]:
    """Return the vector-Jacobian product of a tensor expression by each of some inputs.

    Parameters
    ----------
    output : Tensor
    inputs : sequence of Tensor
        Placeholders or intermediate results, of floats.
    head : Tensor, optional
        The cotangent of `output`, of its shape and dtype; ones if left out.

    Returns
    -------
    list of Tensor
        One per input, of its shape and dtype; zeros where the output does not depend on it.

    Raises
    ------
    ArgumentError
        The head does not fit, or an input is not of floats.
    MissingGradientError
        A stage on the way has no known derivative; the error names it.
    """
    for tensor in inputs:
        if not is_float(tensor.dtype):
            raise ArgumentError(
                f"the input {tensor.op.name} is {tensor.dtype}, not float: it has no gradient"
            )
    head = _ones(output) if head is None else head
    if not _same_type(head, output):
        raise ArgumentError(
            f"the head is {head.dtype} of shape {list(head.shape)}; it must be as the output "
            f"{output.op.name}: {output.dtype} of shape {list(output.shape)}"
        )
    order = _operations(output)
    wanted = {tensor_key(tensor) for tensor in inputs}
    active = _active(order, wanted)
    parts: dict[Key, list[te.Tensor]] = {tensor_key(output): [head]}
    totals: dict[Key, te.Tensor] = {}
    for op in reversed(order):
        cotangents = []
        for number in range(op.num_outputs):
            tensor = op.output(number)
            total = _total(tensor, parts.pop(tensor_key(tensor), []))
            cotangents.append(total)
            if total is not None:
                totals[tensor_key(tensor)] = total
        if any(c is not None for c in cotangents) and _reads_active(op, active):
            for tensor, part in _of_stage(op, cotangents, active):
                parts.setdefault(tensor_key(tensor), []).append(part)
    found = [totals.get(tensor_key(tensor)) for tensor in inputs]
    return [
        _zeros(tensor) if total is None else total
        for tensor, total in zip(inputs, found, strict=True)
    ]


def _operations(output: te.Tensor) -> list[Any]:
    """Return the operations that a tensor depends on, each after those it reads."""
    return postorder(output.op, parts=lambda op: [tensor.op for tensor in op.input_tensors])


def _active(order: Sequence[Any], wanted: set[Key]) -> set[Key]:
    """Return the float tensors that depend on a wanted one, or are one."""
    active = set(wanted)
    for op in order:
        if _reads_active(op, active):
            outputs = (op.output(number) for number in range(op.num_outputs))
            active |= {tensor_key(tensor) for tensor in outputs if is_float(tensor.dtype)}
    return active


def _reads_active(op: Any, active: set[Key]) -> bool:
    return any(tensor_key(tensor) in active for tensor in op.input_tensors)


def _of_stage(
    op: Any, cotangents: Sequence[te.Tensor | None], active: set[Key]
) -> list[tuple[te.Tensor, te.Tensor]]:
    """Return what one stage passes on: parts of the cotangents of the tensors that it reads."""
    parts = []
    for point in _points(op, cotangents):
        reads = backpropagate(point.root, point.seed, lambda t: tensor_key(t) in active)
        parts += [(read.tensor, _part(read, point.axes)) for read in reads]
    return parts


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


def _part(read: Read, axes: Sequence[Axis]) -> te.Tensor:
    """Return the part of a tensor's cotangent that comes from one read of it."""
    tensor = read.tensor
    name = f"{tensor.op.name}_ct"
    element = [
        Axis(te.var(f"x{i}", str(extent.ty)), tirx.const(0, str(extent.ty)), extent)
        for i, extent in enumerate(tensor.shape)
    ]
    try:
        inversion = invert(read.indices, axes, element)
    except NotAffineError:
        term = joined(read.terms) if len(read.terms) > 1 else read.terms[0]
        dtype = str(term.value.ty)
        return scatter_add(tensor.shape, dtype, axes, read.indices, term, name)
    loops = [
        te.reduce_axis((axis.low, axis.extent), name=axis.var.name) for axis in inversion.loops
    ]

    def gathered(*position: Any) -> Expr:
        renamed = [
            *zip([axis.var for axis in element], position, strict=True),
            *zip([axis.var for axis in inversion.loops], [r.var for r in loops], strict=True),
        ]
        value = shared(substituted(_value_at(read.terms, axes, inversion), renamed))
        return te.sum(value, axis=loops) if loops else value

    return te.compute(tensor.shape, gathered, name=name)


def _value_at(terms: Sequence[Guarded], axes: Sequence[Axis], inversion: Inversion) -> Expr:
    """Return the terms of a read at the point of a solution, 0 where there is none."""
    total = fold(lambda a, b: a + b, (term.applied() for term in terms))
    total = substituted(total, zip([axis.var for axis in axes], inversion.values, strict=True))
    return Guarded(tuple((guard, True) for guard in inversion.guards), total).applied()


def _total(tensor: te.Tensor, parts: Sequence[te.Tensor]) -> te.Tensor | None:
    """Return the sum of the parts of a tensor's cotangent, in its dtype."""
    if not parts:
        return None
    if len(parts) == 1 and str(parts[0].dtype) == str(tensor.dtype):
        return parts[0]

    def total(*position: Any) -> Expr:
        value = fold(lambda a, b: a + b, (part(*position) for part in parts))
        return value.astype(str(tensor.dtype))

    return te.compute(tensor.shape, total, name=f"{tensor.op.name}_ct")


def _same_type(a: te.Tensor, b: te.Tensor) -> bool:
    return str(a.dtype) == str(b.dtype) and len(a.shape) == len(b.shape)


def _ones(tensor: te.Tensor) -> te.Tensor:
    return _full(tensor, 1.0)


def _zeros(tensor: te.Tensor) -> te.Tensor:
    return _full(tensor, 0.0)


def _full(tensor: te.Tensor, value: float) -> te.Tensor:
    constant = tirx.const(value, str(tensor.dtype))
    return te.compute(tensor.shape, lambda *_: constant, name=f"{tensor.op.name}_ct")
