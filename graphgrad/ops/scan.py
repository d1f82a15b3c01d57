"""`scan`: a loop over the first axis of tensors, as one kernel.

The body is traced once, for one step. What does not depend on the step is computed before the loop;
the rest becomes the step of a `te.scan`, whose gradient is known (`graphgrad.fallback.scans`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax, te, tirx

from ..errors import ArgumentError
from ..fallback.graph import operations
from ..fallback.indices.linear_system import Axis
from ..fallback.kinds import map_stage
from ..fallback.scans.stacks import Stacking
from ..fallback.walk import tensor_key
from . import functional as op
from .call_te import kernel_call
from .composed import Composition
from .tensor import Emitter, Tensor, dimension_text, same_dimension, same_shape

Tree = Any
"""A tensor, or None, or a list or tuple of trees."""


def scan(
    body: Callable[[Tree, Tree], tuple[Tree, Tree]],
    init: Tree,
    xs: Tree,
    length: int | None = None,
) -> tuple[Tree, Tree]:
    """Return the last carry and the stacked results of a loop.

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
    length : int, optional
        How many steps there are; needed if `xs` has no tensor.

    Returns
    -------
    carry, ys : trees
        The carry behind the last step, like `init`; and what `body` returned as `y`, all of its
        tensors with a new first axis. They are `Tensor`s if one of `init` and `xs` is, else
        variables of the current BlockBuilder, into which the loop is written.

    Raises
    ------
    ArgumentError
        There is nothing to write into, lengths disagree, the body returns another carry than it was
        given, or it has an op that cannot be in a loop; the error names the op.

    Examples
    --------
    >>> with builder.function("main", [x, w, h]):
    ...     def step(h, x):
    ...         h = relax.op.tanh(relax.op.add(x, relax.op.matmul(h, w)))
    ...         return h, h
    ...     last, all_steps = gg.scan(step, h, x)
    """
    target, is_tensor = _target([*_leaves(init), *_leaves(xs)])
    step = _traced(target, body, (init, xs), is_tensor)
    steps = _length(step.rows, length)
    states = _states(target, step, steps)
    last, ys = _results(target, step, states, steps)
    given = (lambda tensor: tensor) if is_tensor else (lambda tensor: tensor.expr)
    return _like(init, map(given, last)), _like(step.y, map(given, ys))


@dataclass(frozen=True)
class _Step:
    """One step of a loop, and what the loop starts from.

    Attributes
    ----------
    start, rows : list
        Relax values: the first carry, and what has a row for each step.
    carry, x : list of relax.Var
        The carry before the step, and its rows.
    bindings : list of (Var, expression)
        What it computes from these.
    following, results : list
        Relax values: the carry behind the step, and what it adds to the results.
    y : tree
        The form of the results.
    """

    start: list[Any]
    rows: list[Any]
    carry: list[Any]
    x: list[Any]
    bindings: list[tuple[Any, Any]]
    following: list[Any]
    results: list[Any]
    y: Tree


def _target(leaves: Sequence[Any]) -> tuple[Emitter, bool]:
    """Return what a loop is written into, and whether its values are `Tensor`s."""
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            return leaf.emitter, True
    builder = relax.BlockBuilder.current()
    if builder is None:
        raise ArgumentError(
            "scan writes into a BlockBuilder: call it inside `with builder.function(...)`"
        )
    return Emitter(builder), False


def _traced(target: Emitter, body: Callable[..., Any], given: Sequence[Tree], wrap: bool) -> _Step:
    """Return a body as bindings; those that no step changes are written before the loop."""
    builder = target.builder
    start, rows = ([_bound(target, leaf) for leaf in _leaves(tree)] for tree in given)
    carry = [relax.Var(f"carry{i}", leaf.ty) for i, leaf in enumerate(start)]
    x = [relax.Var(f"x{i}", _row_type(leaf.ty)) for i, leaf in enumerate(rows)]
    inside = [
        _like(tree, map(target.lift, leaves) if wrap else iter(leaves))
        for tree, leaves in zip(given, (carry, x), strict=True)
    ]
    in_dataflow = builder.current_block_is_dataflow()
    begin = builder._begin_dataflow_block if in_dataflow else builder._begin_binding_block
    begin()
    try:
        following, y = _checked(body(*inside), given[0])
        after, results = ([_bound(target, leaf) for leaf in _leaves(t)] for t in (following, y))
    finally:
        block = builder._end_block()
    _check_carry(carry, after)
    changing = {*carry, *x}
    bindings = []
    for binding in block.bindings:
        if any(part in changing for part in read_by(binding.value)):
            changing.add(binding.var)
            bindings.append((binding.var, _value(binding)))
        else:
            builder.emit_normalized(binding)
    return _Step(start, rows, carry, x, bindings, after, results, y)


def _value(binding: Any) -> Any:
    if isinstance(binding, relax.MatchCast):
        raise ArgumentError(
            "the body of a loop casts to a shape that is checked at run time (match_cast); do so "
            "before the loop"
        )
    return binding.value


def _row_type(ty: relax.TensorType) -> relax.TensorType:
    shape = type_shape(ty)
    if not shape:
        raise ArgumentError("xs has a tensor of rank 0; each has a row for each step")
    return relax.TensorType(shape[1:], str(ty.dtype))


def _length(rows: Sequence[Any], length: int | None) -> Dimension:
    """Return the number of steps."""
    found = [type_shape(leaf.ty)[0] for leaf in rows] + ([] if length is None else [length])
    if not found:
        raise ArgumentError("scan needs a length where xs has no tensor")
    for other in found[1:]:
        if not same_dimension(found[0], other):
            texts = ", ".join(map(dimension_text, found))
            raise ArgumentError(f"xs and length disagree about how many steps there are: {texts}")
    return found[0]


def _checked(result: Any, init: Tree) -> tuple[Tree, Tree]:
    """Return what a body returned, if it is a carry like the first one, and results."""
    if not isinstance(result, tuple) or len(result) != 2:
        raise ArgumentError(f"the body of scan returned {result!r}; it returns (carry, y)")
    if _form(result[0]) != _form(init):
        raise ArgumentError(
            f"the body of scan returned a carry of the form {_form(result[0])}, and was given one "
            f"of the form {_form(init)}"
        )
    return result


def _check_carry(before: Sequence[Any], after: Sequence[Any]) -> None:
    """Raise unless a step leaves the types of the carry as they are."""
    for number, (old, new) in enumerate(zip(before, after, strict=True)):
        same = same_shape(type_shape(old.ty), type_shape(new.ty))
        if not same or str(old.ty.dtype) != str(new.ty.dtype):
            raise ArgumentError(
                f"the body of scan changes the type of tensor {number} of the carry from {old.ty} "
                f"to {new.ty}; it must stay the same"
            )


def _states(target: Emitter, step: _Step, steps: Dimension) -> list[Tensor]:
    """Emit the loop; return the carry at all times and the new results, each behind a first row.

    Results that are the carry behind the step have no state of their own.
    """
    own = [result for result in step.results if _place(result, step.following) is None]
    if isinstance(steps, int) and steps == 0 or not (step.start or own):
        return []
    local = {*step.carry, *step.x, *(var for var, _ in step.bindings)}
    parts = [part for _, value in step.bindings for part in read_by(value)]
    outside = {part: None for part in [*parts, *step.following, *own] if part not in local}
    read = [part for part in outside if isinstance(part, relax.Var) or type_shape(part.ty)]
    sizes = _sizes([*step.start, *step.rows, *local, *read])

    def expressions(start: Any, rows: Any, captured: Any, inside: Any) -> list[te.Tensor]:
        count = rows[0].shape[0] if rows else tirx.const(steps, "int64")
        time = Axis(te.var("t", "int64"), tirx.const(1, "int64"), count)
        states = [_state(time, shape_of_te(first), first.dtype, "carry") for first in start]
        composition = Composition(
            {
                **dict(zip(step.carry, (_row(time, state) for state in states), strict=True)),
                **dict(zip(step.x, (_row(time, row) for row in rows), strict=True)),
                **dict(zip(read, captured, strict=True)),
            },
            dict(zip(sizes, inside, strict=True)),
            target.builder.get(),
        )
        for var, value in step.bindings:
            composition.bind(var, value)
        return _loop(time, states, start, [composition.value(v) for v in [*step.following, *own]])

    call = kernel_call(
        target.builder, expressions, (step.start, step.rows, read, sizes), {}, "scan"
    )
    result = target.emit(call)
    return result if isinstance(result, list) else [result]
