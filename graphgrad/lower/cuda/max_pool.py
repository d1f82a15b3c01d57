"""Max poolings that tell where their maxima are, which their gradients ask for.

The gradient of a max pooling compares the input with the maxima to find where each of them is, and
reads both once more for that. Where the pooling tells it, the gradient reads neither. If nothing
else reads the input, what computes it, such as a batch norm with its ReLU, becomes a part of the
pooling's kernel, and the input is in no memory.

The gradient of such a ReLU does read it: it passes what the pooling hands on where the input x is
positive. An element that gets a cotangent is equal to the maximum y of a window. So the mask may as
well be that of the maxima: where(x ≤ 0, 0, scatter(ȳ)) = scatter(where(y ≤ 0, 0, ȳ)).

What it scatters is a map then: an element adds up the cotangents of the few windows over it whose
maximum it is. That reads fewer bytes than the element has, so its readers compute it
(`lower/fusion/recompute.py`), and it need be in no memory either.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import tvm
from tvm import relax

from ...ir.calls import calls_op
from ...ir.kernel_calls import BROADCAST_PATTERN, RECOMPUTABLE, REDUCTION_PATTERN, uses_in
from ...ir.passes import Phase, compiler_pass
from ...ir.rewrite import map_functions, replace_bindings, replace_body
from ...ir.tensor import is_float, type_shape
from ...memory.effect_order import may_write
from ...ops.pool import max_with_index, scattered_maxima
from ...ops.pool_windows import LAYOUTS, Pool
from ..graph.permuted_products import drop_unread

_POOLINGS = tuple(f"relax.nn.max_pool{rank}d" for rank in LAYOUTS)
_INDEX, _SCATTER = "graphgrad.max_pool_index", "graphgrad.max_pool_scatter"
_IS_AT_MOST, _CHOICE = "relax.less_equal", "relax.where"

_Bound = Mapping[Any, Any]
"""What variables are bound to."""

_MAX_OVERLAP = 4
"""Windows over an element: a map in front of a pooling is computed for each, and its cotangent is
their sum wherever that is read."""


@compiler_pass(
    Phase.GRAPH,
    targets=("cuda",),
    before={"call_libraries": "a mask of maxima may belong to the call that computes cotangents"},
)
def find_maxima(mod: tvm.IRModule) -> tvm.IRModule:
    """Have max poolings tell where their maxima are, and mask cotangents by maxima.

    A function that may overwrite memory stays as it is: what a gradient compares may change before.
    """
    builder = relax.BlockBuilder(mod)

    def changed(_: Any, func: relax.Function) -> relax.Function:
        values = [each.value for block in func.body.blocks for each in block.bindings]
        if may_write(func.body) or not any(calls_op(value, _INDEX) for value in values):
            return func
        blocks = list(func.body.blocks)
        for change in (partial(_mask_maxima, uses=uses_in(func)), _find_indices):
            blocks = [
                replace_bindings(block, list(change(builder, block.bindings)))
                if isinstance(block, relax.DataflowBlock)
                else block
                for block in blocks
            ]
            # Masks leave a scatter unread, which must not become a map as well.
            blocks = drop_unread(blocks, func, {_SCATTER, _IS_AT_MOST})
        return replace_body(func, relax.SeqExpr(blocks, func.body.body, func.body.span))

    return map_functions(mod, changed, builder)


def _mask_maxima(
    builder: relax.BlockBuilder, bindings: Sequence[Any], uses: Counter[Any]
) -> Iterator[Any]:
    """Yield bindings with what a pooling's gradient scatters masked before, not behind."""
    bound = {binding.var: binding.value for binding in bindings}

    def new(name: str, value: Any, at: Any) -> Any:
        value = builder.normalize(
            relax.Call(value.op, value.args, value.attrs, value.ty_args, at.value.span)
        )
        return relax.VarBinding(relax.DataflowVar(name, value.ty), value, at.span)

    for binding in bindings:
        is_plain = isinstance(binding, relax.VarBinding)
        scatter = _masked_scatter(binding.value, bound, uses) if is_plain else None
        if scatter is None:
            yield binding
            continue
        condition, zero, _ = binding.value.args
        cotangent, index, shape = scatter.args
        maxima, bound_of_mask = bound[index].args[1], bound[condition].args[1]
        name = binding.var.name
        mask = new(f"{name}_mask", relax.op.less_equal(maxima, bound_of_mask), binding)
        masked = new(f"{name}_masked", relax.op.where(mask.var, zero, cotangent), binding)
        yield from (mask, masked)
        value = relax.Call(
            scatter.op, [masked.var, index, shape], scatter.attrs, scatter.ty_args, scatter.span
        )
        yield relax.VarBinding(binding.var, builder.normalize(value), binding.span)


def _masked_scatter(value: Any, bound: _Bound, uses: Counter[Any]) -> Any | None:
    """The scatter of a pooling's gradient that a value masks by the pooling's input; or None.

    Its index names elements of that input which are equal to the maxima it was made with, or NaN
    where these are.
    """
    if not calls_op(value, _CHOICE):
        return None
    condition, zero, scattered = value.args
    mask: Any = bound.get(condition)
    scatter: Any = bound.get(scattered)
    if (
        not calls_op(mask, _IS_AT_MOST)
        or not calls_op(scatter, _SCATTER)
        or uses[scattered] != 1
        or not isinstance(scattered, relax.DataflowVar)
        or not (_is_number(zero) and not zero.value.numpy().any())
        or not _is_number(mask.args[1])
        or str(zero.ty.dtype) != str(scattered.ty.dtype)
    ):
        return None
    index: Any = bound.get(scatter.args[1])
    return scatter if calls_op(index, _INDEX) and index.args[0].same_as(mask.args[0]) else None


def _is_number(value: Any) -> bool:
    return isinstance(value, tvm.ir.GenericConst) and not type_shape(value.ty)


def _find_indices(builder: relax.BlockBuilder, bindings: Sequence[Any]) -> Iterator[Any]:
    """Yield bindings in which poolings find the indices of their maxima."""
    bound = {binding.var: binding.value for binding in bindings}
    index_of = {
        each.value.args[1]: each
        for each in reversed(bindings)
        if calls_op(each.value, _INDEX) and _are_one_pooling(bound, each.value)
    }
    moved = {each.var for each in index_of.values()}
    for binding in bindings:
        if binding.var in moved:
            continue
        if calls_op(binding.value, _SCATTER) and binding.value.args[1] in moved:
            yield relax.VarBinding(
                binding.var, _scatter_as_map(builder, binding.value), binding.span
            )
            continue
        index = index_of.get(binding.var)
        if index is None:
            yield binding
            continue
        call = binding.value
        both = builder.normalize(
            builder.call_te(
                partial(max_with_index, call.attrs, type_shape(call.ty)),
                call.args[0],
                primfunc_name_hint="max_pool_with_index",
                primfunc_attrs={"op_pattern": REDUCTION_PATTERN},
            )
        )
        pair = relax.DataflowVar(f"{binding.var.name}_and_index", both.ty)
        yield relax.VarBinding(pair, both, binding.span)
        for number, result in enumerate((binding, index)):
            item = builder.normalize(relax.TupleGetItem(pair, number))
            yield relax.VarBinding(result.var, item, result.span)


def _scatter_as_map(builder: relax.BlockBuilder, scatter: Any) -> Any:
    """What a pooling's gradient scatters, as a map, which is computed where it is read."""
    return builder.normalize(
        builder.call_te(
            partial(scattered_maxima, scatter.attrs, type_shape(scatter.ty)),
            *scatter.args[:2],
            primfunc_name_hint="scattered_maxima",
            # Stock fusion puts no map of the kind "injective" in front of a reduction.
            primfunc_attrs={"op_pattern": BROADCAST_PATTERN, RECOMPUTABLE: True},
        )
    )


def _are_one_pooling(bound: _Bound, index: Any) -> bool:
    """Whether the maxima of an index are those of a pooling that may as well compute it."""
    x, maxima = index.args
    pooling: Any = bound.get(maxima)
    if not any(calls_op(pooling, name) for name in _POOLINGS):
        return False
    pool, attrs = Pool.of(index.attrs), pooling.attrs
    most_windows = [
        int(a.dom.extent) for a in pool.windows_over_element(pool.spatial(type_shape(index.ty)))
    ]
    return (
        pooling.args[0].same_as(x)
        and str(attrs.layout) == str(attrs.out_layout)
        and Pool.of(attrs) == pool
        and pool.layout[-1] == "C"
        and pool.index_dtype == "int8"  # few enough terms for a thread
        and math.prod(most_windows) <= _MAX_OVERLAP
        and is_float(str(x.ty.dtype))
        and all(isinstance(extent, int) for extent in type_shape(x.ty))
    )
