"""The gradient of a graph of tensor expressions, as further tensor expressions."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

from tvm import te, tirx

from ..errors import ArgumentError, MissingGradientError, NotDifferentiableError
from . import externs
from .arguments import check_floats, tensors_like, tensors_of
from .backprop import is_float, widened
from .contribution import Contribution, contributions
from .cut import cut
from .forms.assemble import assembled
from .graph import (
    STEPWISE,
    Key,
    Operation,
    active_stages,
    inside_scans,
    operations,
    outputs_of,
    rewritten,
    sources,
    stops_gradient,
)
from .guarded import Guarded
from .keyed import keyed_of, transposed
from .kinds import map_stage
from .reductions.reduce import OTHERS, Point, reduction_points, stage_axes
from .reductions.reduce_restated import restate_reduction
from .scans.scan import StackedStep, Sweep, scan_parts
from .scans.step_sums import read_states
from .scans.stepwise import stepwise_parts
from .scatter import Scatter, scatters_of
from .views import read_through
from .walk import UnknownNodeError, identity, inline_lets, items, tensor_key

Part = tuple[te.Tensor, Contribution | te.Tensor]
"""A tensor, and something that is added to its cotangent."""


def te_gradient(
    output: te.Tensor | Sequence[te.Tensor],
    inputs: te.Tensor | Sequence[te.Tensor],
    head: te.Tensor | Sequence[te.Tensor | None] | None = None,
    *,
    pads: bool = True,
) -> list[te.Tensor]:
    """The vector-Jacobian product of tensor expressions by each of some inputs.

    Parameters
    ----------
    output : Tensor or sequence of Tensor
    inputs : Tensor or sequence of Tensor
        Placeholders or intermediate results, of floats.
    head : Tensor or sequence, optional
        The cotangent of each output, of its shape and dtype; None for an output that has none.
        Ones for every float output if left out.
    pads : bool
        Whether sums of products may read tensors with a border of zeros where they would need
        conditions. That is the form that schedules make fast; with operands that are not finite
        it may give NaN where the exact form, ``pads=False``, leaves 0 · ∞ out.

    Returns
    -------
    list of Tensor
        One per input, of its shape and dtype; zeros where no output depends on it.

    Raises
    ------
    ArgumentError
        An argument is no tensor, or a head does not fit its output.
    NotDifferentiableError
        An input is not of floats, or no output is; or floats on the way have less than 16 bits.
    MissingGradientError
        A stage on the way has no known derivative; the error names it.
    """
    return gradient_expressions(output, inputs, head, pads=pads)


def gradient_expressions(
    output: te.Tensor | Sequence[te.Tensor],
    inputs: te.Tensor | Sequence[te.Tensor],
    head: te.Tensor | Sequence[te.Tensor | None] | None = None,
    *,
    pads: bool = True,
    read_outputs: bool = False,
    steps: list[StackedStep] | None = None,
) -> list[te.Tensor]:
    """As `te_gradient`; with `read_outputs` the outputs are at hand, and may be read.

    So the derivative of an exponential that is an output takes no exponential. The steps of the
    scans that are met are noted in `steps`.
    """
    steps = [] if steps is None else steps
    outputs, inputs = tensors_of("output", output), tensors_of("input", inputs)
    heads = _heads(outputs, head)
    check_floats("input", inputs)
    parts: dict[Key, list[Contribution | te.Tensor]] = {}
    for tensor, cotangent in zip(outputs, heads, strict=True):
        if cotangent is not None:
            parts.setdefault(tensor_key(tensor), []).append(cotangent)
    input_keys = {tensor_key(tensor) for tensor in inputs}
    order = operations(*outputs)
    _check_outside_scans(order, inputs)
    returned = {tensor_key(tensor) for tensor in outputs} if read_outputs else set()
    totals = _propagate(order, input_keys, parts, pads, returned, steps)
    cotangents = [totals.get(tensor_key(tensor)) for tensor in inputs]
    gradients = [
        filled(tensor, 0.0) if total is None else total
        for tensor, total in zip(inputs, cotangents, strict=True)
    ]
    gradients = read_states(gradients, steps)
    # The forward pass stays as it is: only what is derived here is cut.
    untouched = [tensor for op in order for tensor in outputs_of(op)]
    untouched += [cotangent for cotangent in heads if cotangent is not None]
    return cut(gradients, {tensor_key(tensor): tensor for tensor in untouched})


def _check_outside_scans(order: Sequence[Operation], inputs: Sequence[te.Tensor]) -> None:
    """Raise if the cotangent of an input is one that scans compute step by step and do not keep."""
    inside = inside_scans(order)
    for tensor in inputs:
        scan = inside.get(tensor_key(tensor))
        if scan is not None:
            raise ArgumentError(
                f"the input {tensor.op.name} is inside the scan {scan.name}, which computes it at "
                "each step; differentiate by what the scan starts from or reads from outside. What "
                "does not depend on its states can be kept outside: see the inputs of checkpointed"
            )


def _propagate(
    order: Sequence[Operation],
    wanted: set[Key],
    parts: dict[Key, list[Contribution | te.Tensor]],
    pads: bool = True,
    returned: Collection[Key] = (),
    steps: list[StackedStep] | None = None,
) -> dict[Key, te.Tensor]:
    """The cotangents of all tensors on the way from the wanted ones, by their keys.

    It takes what arrives out of `parts` and adds to it what stages pass on. What is left there
    belongs to tensors whose stages are not in `order`. Those that are `returned` may be read.
    The steps of scans in `order` are noted in `steps`.
    """
    outputs_of_each = [{tensor_key(tensor): tensor for tensor in outputs_of(op)} for op in order]
    active, reading = active_stages(order, wanted, is_float)
    active |= wanted
    kept = wanted | set(parts)
    # Tensors whose cotangents nobody gives or asks for: views among them are read through. One that
    # stops them must be seen.
    stopping = {tensor_key(t) for op in order if stops_gradient(op) for t in outputs_of(op)}
    inside = {key for outputs in outputs_of_each for key in outputs} - kept - stopping
    totals: dict[Key, te.Tensor] = {}
    # What reads a tensor comes before it here: all parts of its cotangent have arrived.
    for op, outputs in zip(reversed(order), reversed(outputs_of_each), strict=True):
        cotangents: list[te.Tensor | None] = []
        for key, tensor in outputs.items():
            arrived = parts.pop(key, None)
            cotangents.append(assembled(tensor, arrived, pads) if arrived else None)
            if cotangents[-1] is not None:
                totals[key] = cotangents[-1]
        if identity(op) in reading and any(c is not None for c in cotangents):
            seen_through = read_through(op, lambda tensor: tensor_key(tensor) in inside)
            values = [tensor if key in returned else None for key, tensor in outputs.items()]
            found = _stage_parts(seen_through, cotangents, active, pads, values, steps)
            for tensor, part in found:
                parts.setdefault(tensor_key(tensor), []).append(part)
    return totals


def _stage_parts(
    op: Operation,
    cotangents: Sequence[te.Tensor | None],
    active: set[Key],
    pads: bool,
    values: Sequence[te.Tensor | None],
    steps: list[StackedStep] | None,
) -> list[Part]:
    """The parts that one stage passes on: parts of the cotangents of the tensors that it reads.

    `values` are those of its outputs that may be read.
    """
    if isinstance(op, te.ScanOp):
        parts_of = stepwise_parts if op.tag == STEPWISE else scan_parts
        return parts_of(op, cotangents, Sweep(active, partial(_propagate, pads=pads), pads, steps))
    if keyed_of(op):
        found_ct, left_ct = cotangents
        return [part for part in transposed(op, found_ct, left_ct) if tensor_key(part[0]) in active]
    try:
        points = _points(op, cotangents, values)
    except UnknownNodeError as error:
        raise MissingGradientError(f"in the stage {op.name}: {error}") from error
    except NotDifferentiableError as error:
        raise NotDifferentiableError(f"in the stage {op.name}: {error}") from error
    parts = [
        (contribution.tensor, contribution)
        for point in points
        for contribution in contributions(
            point, lambda tensor: tensor_key(tensor) in active, str(op.name)
        )
    ]
    restated = _restate_stage(op, cotangents)
    if restated is None:
        return parts
    restated_parts = _restated_parts(op, restated, cotangents, active, pads)
    return parts + _reading_outputs(restated_parts, op, restated)


def _restate_stage(
    op: Operation, cotangents: Sequence[te.Tensor | None]
) -> Sequence[te.Tensor | None] | None:
    """Outputs of a stage by other stages, for those whose gradient is known only so, or None."""
    if isinstance(op, te.ComputeOp):
        return restate_reduction(op, cotangents)
    if isinstance(op, te.ExternOp) and not scatters_of(op):
        return externs.restated(op)
    return None


def _restated_parts(
    op: Operation,
    restated: Sequence[te.Tensor | None],
    cotangents: Sequence[te.Tensor | None],
    active: set[Key],
    pads: bool,
) -> list[Part]:
    """The parts that those stages pass on which compute outputs of one stage from what it reads."""
    parts: dict[Key, list[Contribution | te.Tensor]] = {}
    outputs = []
    for tensor, cotangent in zip(restated, cotangents, strict=True):
        if tensor is not None and cotangent is not None:
            outputs.append(tensor)
            parts.setdefault(tensor_key(tensor), []).append(cotangent)
    read = [tensor for tensor in sources(op) if tensor_key(tensor) in active]
    # Above all that the stage reads: an integer may be of the same stage as a float.
    order = operations(*outputs, above=sources(op))
    _propagate(order, {tensor_key(tensor) for tensor in read}, parts, pads)
    # What is left are the parts of the tensors whose stages were left out.
    return [(tensor, part) for tensor in read for part in parts.get(tensor_key(tensor), [])]


def _reading_outputs(
    parts: Sequence[Part], op: Operation, restated: Sequence[te.Tensor | None]
) -> list[Part]:
    """Parts that read the outputs of a stage, which may be at hand, and not those restated."""
    table = {
        tensor_key(other): own
        for other, own in zip(restated, outputs_of(op), strict=True)
        if other is not None and str(other.dtype) == str(own.dtype)
    }
    return [
        (
            tensor,
            rewritten([part], lambda _: None, table)[0] if isinstance(part, te.Tensor) else part,
        )
        for tensor, part in parts
    ]


def _points(
    op: Any, cotangents: Sequence[te.Tensor | None], values: Sequence[te.Tensor | None]
) -> list[Point]:
    """The expressions of a stage, one for each of its outputs that has a cotangent."""
    scatters = scatters_of(op)
    if scatters:
        (cotangent,) = cotangents
        assert cotangent is not None
        return [_scatter_point(scatter, cotangent) for scatter in scatters]
    if isinstance(op, te.ExternOp) or op.tag == OTHERS:
        return []
    if not isinstance(op, te.ComputeOp):
        raise MissingGradientError(
            f"the stage {op.name} is a {type(op).__name__}, whose gradient is not known; write it "
            "as te.compute, te.scan or te.extern"
        )
    bodies = items(op.body)
    if isinstance(bodies[0], tirx.Reduce):
        return reduction_points(op, cotangents, values)
    axes = stage_axes(op)
    at = [axis.var for axis in axes]
    return [
        Point(
            axes,
            inline_lets(body),
            Guarded((), widened(c(*at))),
            None if value is None else value(*at),
        )
        for body, c, value in zip(bodies, cotangents, values, strict=True)
        if c is not None
    ]


def _scatter_point(scatter: Scatter, cotangent: te.Tensor) -> Point:
    """The expressions of a scatter, whose cotangent is gathered where it was added."""
    guards = tuple((guard, True) for guard in scatter.guards)
    seed = Guarded(guards, widened(cotangent(*scatter.indices)))
    return Point(scatter.axes, scatter.value, seed)


def _heads(
    outputs: Sequence[te.Tensor], head: te.Tensor | Sequence[te.Tensor | None] | None
) -> list[te.Tensor | None]:
    """A cotangent for each output, checked; None for an output that has none."""
    if head is None:
        if not any(is_float(tensor.dtype) for tensor in outputs):
            names = ", ".join(tensor.op.name for tensor in outputs)
            raise NotDifferentiableError(
                f"no output is of floats: {names} has no gradient; differentiate what is computed "
                "before it is made an integer or a truth value"
            )
        return [filled(tensor, 1.0) if is_float(tensor.dtype) else None for tensor in outputs]
    return tensors_like("head", head, "output", outputs)


def filled(tensor: te.Tensor, value: float, suffix: str = "ct") -> te.Tensor:
    """A tensor like another one, with one value everywhere."""
    constant = tirx.const(value, str(tensor.dtype))
    return map_stage(tensor.shape, lambda *_: constant, name=f"{tensor.op.name}_{suffix}")
