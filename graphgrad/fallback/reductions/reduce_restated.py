"""Reductions as other stages that compute the same and whose gradients are known.

A combiner that is none of the known ones is applied to one element after another, in row-major
order of the loops, as the forward pass does: a recurrence, whose states are the combinations of all
prefixes. Its gradient carries cotangents back over the suffixes, in as many steps. No element is
divided out and none stands for an inverse, so nothing is asked of the combiner but its expressions:
it need be neither commutative nor associative, and what it starts from need not be neutral.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import te, tirx

from ..graph import listed, outputs_of, rebuild_reduction, replace_bodies
from ..indices.row_major import element_count, raveled, unraveled
from ..kinds import map_stage
from ..walk import Expr, loaded, substituted
from .combiner import Combination
from .recurrence import partial_results
from .reduce import OTHERS, Reduction


def restate_reduction(
    op: Any, cotangents: Sequence[te.Tensor | None]
) -> list[te.Tensor | None] | None:
    """The outputs of a reduction by other stages, if its own gradient is not known.

    Parameters
    ----------
    op : ComputeOp
    cotangents : sequence of Tensor or None
        One per output.

    Returns
    -------
    list of Tensor or None
        One per output: None for one that has no cotangent, or whose gradient
        `reduce.reduction_points` knows. None in all if there is no other.
    """
    if op.tag == OTHERS:
        return [_products_of_others(op)]
    if not isinstance(op.body[0], tirx.Reduce):
        return None
    reduction = Reduction(op, cotangents)
    components: dict[int, te.Tensor] = {}
    for group, combination in reduction.groups:
        if combination is Combination.OTHER:
            components.update(_fold_recurrence(reduction, group))
        elif reduction.has_init and combination is not Combination.SUM:
            components.update(_combine_with_init(reduction, group))
    restated = [
        components.get(int(body.value_index)) if cotangent is not None else None
        for body, cotangent in zip(op.body, cotangents, strict=True)
    ]
    return restated if components else None


def _fold_recurrence(reduction: Reduction, group: Sequence[int]) -> dict[int, te.Tensor]:
    """Components of a reduction as the last states of a recurrence."""
    extents = reduction.extents()
    name = str(reduction.op.name)
    sources = [reduction.sources[i] for i in group]
    otherwise = [reduction.combiner.identity[i] for i in group]
    if not reduction.counts_everywhere():
        # One more component tells which points count; at others the state stays as it is.
        sources.append(tirx.const(1, "int32"))
        otherwise.append(tirx.const(0, "int32"))

    def values(*position: Any) -> tuple[Expr, ...]:
        offsets, at = position[: len(extents)], position[len(extents) :]
        return tuple(reduction.elements(sources, otherwise, at, offsets))

    def start(*position: Any) -> list[Expr]:
        renamed = list(zip(reduction.spatial, position, strict=True))
        return [substituted(reduction.starts[i], renamed) for i in group]

    def combine(state: Sequence[Expr], element: Sequence[Expr]) -> list[Expr]:
        combined = reduction.combiner.combined(group, state, element[: len(group)])
        if reduction.counts_everywhere():
            return combined
        counts = element[-1] > 0
        return [tirx.if_then_else(counts, x, y) for x, y in zip(combined, state, strict=True)]

    elements = listed(map_stage((*extents, *reduction.shape), values, name=f"{name}_elements"))
    in_order = [_in_one_dimension(tensor, len(extents)) for tensor in elements]
    dtypes = [str(reduction.sources[i].ty) for i in group]
    states = partial_results(in_order, dtypes, start, combine, f"{name}_fold")
    return {
        i: _last_row(state, dtype, name)
        for i, state, dtype in zip(group, states, dtypes, strict=True)
    }


def _last_row(tensor: te.Tensor, dtype: str, name: str) -> te.Tensor:
    count, *shape = tensor.shape
    return map_stage(shape, lambda *at: tensor(count - 1, *at).astype(dtype), name=name)


def _in_one_dimension(tensor: te.Tensor, count: int) -> te.Tensor:
    """A tensor with its first dimensions as one."""
    if count == 1:
        return tensor
    folded, kept = tensor.shape[:count], tensor.shape[count:]
    return map_stage(
        (element_count(folded), *kept),
        lambda index, *at: tensor(*unraveled(index, folded), *at),
        name=f"{tensor.op.name}_in_order",
    )


def _combine_with_init(reduction: Reduction, group: Sequence[int]) -> dict[int, te.Tensor]:
    """Components of a reduction as combinations of its init with what it reduces."""
    op = reduction.op
    without_init = outputs_of(
        replace_bodies(op, rebuild_reduction(op.body[0], list(op.body[0].source), init=[]))
    )

    def component(number: int) -> te.Tensor:
        def body(*position: Any) -> Expr:
            renamed = list(zip(reduction.spatial, position, strict=True))
            # The init is the left operand, as in the forward pass (see `explicit_reductions`).
            left = [substituted(reduction.starts[i], renamed) for i in group]
            right = [without_init[i](*position) for i in group]
            return reduction.combiner.combined(group, left, right)[group.index(number)]

        return map_stage(reduction.shape, body, name=f"{op.name}_with_init")

    return {i: component(i) for i in group}


def _products_of_others(op: Any) -> te.Tensor:
    """For each factor, the product of those before and that of those after it."""
    body = op.body[0]
    # The parts of what `product_of_others` has built: such a stage must stay as it is written.
    zeros, factor = body.condition.a, body.true_value.b.false_value
    kept = len(loaded(zeros)[1])
    shape, factor_shape = op.output(0).shape[:kept], op.output(0).shape[kept:]
    axes = [axis.var for axis in op.axis]
    count, dtype = element_count(factor_shape), str(factor.ty)

    def factors(backwards: bool) -> te.Tensor:
        def element(index: Any, *at: Any) -> Expr:
            indices = unraveled(count - 1 - index if backwards else index, factor_shape)
            return substituted(factor, zip(axes, [*at, *indices], strict=True))

        return map_stage((count, *shape), element, name=f"{op.name}_factors")

    def products(backwards: bool) -> te.Tensor:
        (states,) = partial_results(
            [factors(backwards)],
            [dtype],
            lambda *_: [tirx.const(1.0, dtype)],
            lambda state, element: [state[0] * element[0]],
            f"{op.name}_products",
        )
        return states

    before, after = products(backwards=False), products(backwards=True)

    def others(*position: Any) -> Expr:
        at, index = position[:kept], raveled(position[kept:], factor_shape)
        # Row t of the products is that of the first t factors, or of the last t.
        return before(index, *at) * after(count - 1 - index, *at)

    return map_stage(op.output(0).shape, others, name=f"{op.name}_products")
