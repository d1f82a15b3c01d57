"""`scan`: a loop over the first axis of tensors, as one kernel.

The body is traced once, for one step. What does not depend on the step is computed before the loop;
the rest becomes the step of a `te.scan`, whose gradient is known (`graphgrad.fallback.scans`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any

import tvm
from tvm import relax, te, tirx

from ..errors import ArgumentError
from ..fallback.gradient import filled
from ..fallback.graph import listed, operations
from ..fallback.indices.linear_system import Axis
from ..fallback.kernels.expressions import kernel_of
from ..fallback.kernels.extents import rename_extent
from ..fallback.kinds import map_stage
from ..fallback.scans.checkpoints import as_single_row, row_of
from ..fallback.scans.stacks import Stacking
from ..ir.kernel_names import name_kernel
from ..ir.tensor import Dimension, Emitter, Tensor, dimension_text, same_dimension, type_shape
from . import functional as op
from .call_te import check_name
from .composed import Composition, variables_read_by
from .step import Step, Tree, leaves_of, like, trace_step

_EXTENTS = "int32"
"""The dtype of extents: what te.scan makes for its dimensions are variables of it."""


def scan(
    body: Callable[[Tree, Tree], tuple[Tree, Tree]],
    init: Tree,
    xs: Tree,
    length: int | None = None,
    name: str | None = None,
) -> tuple[Tree, Tree]:
    """The last carry and the stacked results of a loop.

    That is, ``for x in xs: carry, y = body(carry, x)``, as in `jax.lax.scan`: a loop of fixed
    length, which is one kernel, and whose gradient is a loop backwards. It does not unroll.

    Parameters
    ----------
    body : callable
        ``body(carry, x) -> (carry, y)``, made of Relax ops. It is called once, with symbolic
        tensors of one step, and may read tensors of the function around it.
    init : tensors
        The first carry: a `Tensor` or relax expression, or nested lists and tuples of those.
    xs : tensors or None
        Each step is given their slices along the first axis.
    length : int or symbolic extent, optional
        How many steps there are, from 0; needed if `xs` has no tensor.
    name : str, optional
        What a gradient rule of yours for the loop goes by, see `register_gradient`. Its inputs are
        the tensors of `init`, those of `xs`, and those that the body reads from around it, in the
        order in which it first reads them; its outputs each carry behind all steps, and each
        tensor of `y` that is no carry, stacked; and its cotangents are of these.

    Returns
    -------
    carry, ys : trees
        The carry behind the last step, like `init`; and what `body` returned as `y`, all of its
        tensors with a new first axis. They are `Tensor`s if one of `init` and `xs` is, else
        variables of the current BlockBuilder, into which the loop is written.

    Raises
    ------
    ArgumentError
        There is nothing to write into, `name` is no text, `length` is no number of steps or
        disagrees with `xs`, the body returns another carry than it was given, or it has an op that
        cannot be in a loop; the error names the op.

    Examples
    --------
    >>> with builder.function("main", [x, w, h]):
    ...     def step(h, x):
    ...         h = relax.op.tanh(relax.op.add(x, relax.op.matmul(h, w)))
    ...         return h, h
    ...     last, all_steps = gg.scan(step, h, x)
    """
    if not callable(body):
        raise ArgumentError(f"scan was given {body!r} for a body; it takes body(carry, x)")
    check_name(name, "a loop")
    given_length = None if length is None else _checked_length(length)
    target, as_tensors = _target([*leaves_of(init), *leaves_of(xs)])
    step = trace_step(target, body, init, xs, as_tensors)
    steps = _length(step.rows, given_length)
    if isinstance(steps, int) and steps == 0:
        last = [target.lift(first) for first in step.start]
        ys = [target.full(0.0, [0, *type_shape(r.ty)], str(r.ty.dtype)) for r in step.results]
    else:
        last, ys = _emitted(target, step, steps, name)
    carry, results = like(init, last), like(step.y, ys)
    return (carry, results) if as_tensors else (_expressions(carry), _expressions(results))


def _emitted(
    target: Emitter, step: Step, steps: Dimension, name: str | None
) -> tuple[list[Tensor], list[Tensor]]:
    """Emit a loop; return the last carry and the results of all steps."""
    # A result that is the new carry itself needs no memory of its own: the states have it.
    carry_indices = [_index_of(result, step.following) for result in step.results]
    separate = [result for result, i in zip(step.results, carry_indices, strict=True) if i is None]
    states = _states(target, step, steps, separate, name)
    count = len(step.start)
    last = [_part(state, steps, steps + 1) for state in states[:count]]
    last = [
        op.reshape(row, type_shape(first.ty)) for row, first in zip(last, step.start, strict=True)
    ]
    separate_states = iter(states[count:])
    ys = [states[i] if i is not None else next(separate_states) for i in carry_indices]
    # Row 0 is before the first step: the first carry, or zeros.
    return last, [_part(state, 1, steps + 1) for state in ys]


def _index_of(value: Any, values: Sequence[Any]) -> int | None:
    """The index of a Relax value in a sequence of them; None if it is not there."""
    return next((i for i, other in enumerate(values) if value.same_as(other)), None)


def _part(state: Tensor, begin: Dimension, end: Dimension) -> Tensor:
    """The rows of a state from `begin` to before `end`."""
    return op.strided_slice(state, [0], [begin], [end], assume_inbound=True)


def _states(
    target: Emitter, step: Step, steps: Dimension, separate: Sequence[Any], name: str | None
) -> list[Tensor]:
    """Emit the kernel of a loop: the states of its carry, and of the results that are no carry.

    All have a first row, the carry before the loop or zeros, and one for each step behind it.
    """
    if not step.start and not separate:
        return []
    local = {*step.carry, *step.x, *(var for var, _ in step.bindings)}
    operands = [
        *(operand for _, value in step.bindings for operand in variables_read_by(value)),
        *step.following,
    ]
    outside = dict.fromkeys(operand for operand in [*operands, *separate] if operand not in local)
    # A constant of one element is a number in the kernel.
    read = [value for value in outside if isinstance(value, relax.Var) or type_shape(value.ty)]
    composition = Composition(target.builder.get(), _EXTENTS)
    start, rows, _ = placeholders = [
        [composition.placeholder(value) for value in values]
        for values in (step.start, step.rows, read)
    ]

    def values(carry: Sequence[te.Tensor], x: Sequence[te.Tensor]) -> list[te.Tensor]:
        values_of_step = zip([*step.carry, *step.x], [*carry, *x], strict=True)
        composition.values.update(values_of_step)
        for var, value in step.bindings:
            composition.bind(var, value)
        return [composition.value(value) for value in [*step.following, *separate]]

    states = _recurrence(values, start, rows, composition.inside(steps))
    types = [
        relax.TensorType([composition.outside(e) for e in state.shape], str(state.dtype))
        for state in states
    ]
    kernel = kernel_of([placeholder for group in placeholders for placeholder in group], states)
    if name is not None:
        kernel = name_kernel(kernel, name, carries=len(step.start))
    variable = target.builder.add_func(kernel, name or "scan")
    arguments = relax.Tuple([*step.start, *step.rows, *read])
    result = target.emit(relax.call_tir(variable, arguments, types))
    return result if isinstance(result, list) else [result]


def _recurrence(
    step: Callable[[Sequence[te.Tensor], Sequence[te.Tensor]], Sequence[te.Tensor]],
    start: Sequence[te.Tensor],
    rows: Sequence[te.Tensor],
    count: Any,
) -> list[te.Tensor]:
    """The states of a scan at all times, from the first carry; of results, from a row of zeros.

    Parameters
    ----------
    step : callable
        Maps a carry and a row of each tensor to the next carry and results.
    start : sequence of Tensor
        The first carry.
    rows : sequence of Tensor
    count : Expr
        The number of steps.
    """
    # The step is traced for one time t, and stacked for the times 1 to `count`, which write the
    # rows of that number. The row of `xs` for time t is t − 1.
    time = Axis(te.var("t"), tirx.const(1), count)
    carries = [_state(first, count) for first in start]
    rows_of_step = [row_of(tensor, time.var - 1) for tensor in [*carries, *rows]]
    values = list(step(rows_of_step[: len(start)], rows_of_step[len(start) :]))
    stages = [s for s in operations(*values) if not isinstance(s, te.PlaceholderOp)]
    stacked = Stacking(time).tensors(values, stages)
    results = values[len(start) :]
    states = [*carries, *(_state(result, count) for result in results)]
    first = [*start, *(filled(result, 0.0, "before") for result in results)]
    inits = [as_single_row(tensor) for tensor in first]
    updates = [_later(tensor) for tensor in stacked]
    return listed(te.scan(inits, updates, states, name="scan"))


def _state(tensor: te.Tensor, count: Any) -> te.Tensor:
    """The placeholder that te.scan takes for a state, with a row before the first step."""
    return te.placeholder((count + 1, *_extents(tensor)), str(tensor.dtype), name="state")


def _extents(tensor: te.Tensor) -> list[Any]:
    """The extents of a tensor in the dtype of a loop's; those of some lowerings are int64."""
    return [rename_extent(extent, _EXTENTS, lambda var: var) for extent in tensor.shape]


def _later(tensor: te.Tensor) -> te.Tensor:
    """The rows of a tensor one row later, behind zeros.

    Nobody reads the zeros, but what depends on no state is computed at all rows, and is to read
    none in front of the first.
    """
    zero = tirx.const(0, str(tensor.dtype))

    def body(t: Any, *indices: Any) -> Any:
        return tirx.if_then_else(t > 0, tensor(t - 1, *indices), zero)

    steps, *extents = _extents(tensor)
    return map_stage((steps + 1, *extents), body, name="next")


def _expressions(tree: Tree) -> Tree:
    return like(tree, [leaf.expr for leaf in leaves_of(tree)])


def _target(leaves: Sequence[Any]) -> tuple[Emitter, bool]:
    """The builder of a loop, and whether its values are `Tensor`s."""
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            return leaf.emitter, True
    builder = relax.BlockBuilder.current()
    if builder is None:
        raise ArgumentError(
            "scan writes into a BlockBuilder: call it inside `with builder.function(...)`"
        )
    return Emitter(builder), False


def _checked_length(length: Any) -> Dimension:
    """A length of a loop, checked: an int where it is static."""
    number = int(length) if isinstance(length, tirx.IntImm) else length
    if isinstance(number, Integral) and not isinstance(number, bool) and int(number) >= 0:
        return int(number)
    if isinstance(number, Integral) or not _is_extent(length):
        raise ArgumentError(
            f"length={length!r} is no number of steps; give an integer from 0 on, or a symbolic "
            "extent of dtype int64"
        )
    return length


def _is_extent(value: Any) -> bool:
    return bool(tvm.ir.is_prim_expr(value)) and str(value.ty) == "int64"


def _length(rows: Sequence[Any], length: Dimension | None) -> Dimension:
    """The number of steps, on which all rows and a given length have to agree."""
    lengths = [type_shape(row.ty)[0] for row in rows] + ([] if length is None else [length])
    if not lengths:
        raise ArgumentError("scan needs a length where xs has no tensor")
    for length_of_row in lengths[1:]:
        if not same_dimension(lengths[0], length_of_row):
            texts = ", ".join(map(dimension_text, lengths))
            raise ArgumentError(f"xs and length disagree about how many steps there are: {texts}")
    return lengths[0]
