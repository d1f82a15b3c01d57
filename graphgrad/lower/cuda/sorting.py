"""Sorting on the device: kernels in the place of topi's sorts, which are functions of the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import te, tirx

from ...fallback.externs import ordering
from ...fallback.graph import operations, rewritten
from ...fallback.kernels.expressions import kept_expressions, kernel_of
from ...fallback.kinds import map_stage
from ...ir.passes import Phase, compiler_pass
from ...ir.rewrite import map_kernels
from ...ops.sorting import order


@compiler_pass(
    Phase.GRAPH,
    targets=("cuda",),
    before={"specialize_kernels": "tensor expressions are kept for kernels as they were made"},
)
def sort_on_device(mod: tvm.IRModule) -> tvm.IRModule:
    """Replace topi's sorts in kernels made from tensor expressions by sorts on the device.

    Elements come in the same order, equal ones included; NaN, of which TVM's order is undefined,
    counts as greater than every number.
    """

    def changed(_: Any, func: tirx.PrimFunc) -> tirx.PrimFunc:
        program = kept_expressions(func)
        if program is None or not any(map(_sorts, operations(*program.outputs))):
            return func
        outputs = rewritten(program.outputs, _on_device)
        # The last parameters of the program are its results.
        kernel = kernel_of(program.parameters[: -len(outputs)], outputs)
        symbol = func.attrs.get("global_symbol")
        return kernel.with_attr("global_symbol", symbol) if symbol else kernel

    return map_kernels(mod, changed)


def _sorts(op: Any) -> bool:
    return isinstance(op, te.ExternOp) and str(op.tag) in _SORTING


def _on_device(op: Any) -> list[te.Tensor] | None:
    """The stages in place of one of topi's sorts; None for any other stage."""
    if not _sorts(op) or len(op.inputs) != 1:
        return None
    recognized, sorted_on_device = _SORTING[str(op.tag)]
    return sorted_on_device(op) if recognized(op) is not None else None


def _sort(op: Any) -> list[te.Tensor]:
    *_, axis, is_ascend = ordering.arguments_of(op)
    return [ordering.taken(op.inputs[0], _order(op, axis, is_ascend), axis)]


def _argsort(op: Any) -> list[te.Tensor]:
    *_, axis, is_ascend = ordering.arguments_of(op)
    order_tensor, dtype = _order(op, axis, is_ascend), str(op.output(0).dtype)
    return [
        map_stage(order_tensor.shape, lambda *at: order_tensor(*at).astype(dtype), name="argsort")
    ]


def _topk(op: Any) -> list[te.Tensor]:
    *_, axis, ret_type, is_ascend = ordering.arguments_of(op)
    order_tensor, shape = _order(op, axis, is_ascend), op.output(0).shape
    leading = map_stage(shape, order_tensor, name="places")  # the first k along the axis
    # Indices are the last output, if they are asked for at all.
    dtype = str(op.output(op.num_outputs - 1).dtype)
    indices = map_stage(shape, lambda *at: leading(*at).astype(dtype), name="indices")
    values = ordering.taken(op.inputs[0], leading, axis)
    return {"values": [values], "indices": [indices], "both": [values, indices]}[ret_type]


def _order(op: Any, axis: int, is_ascend: bool) -> te.Tensor:
    (data,) = op.inputs
    return order(data, axis % len(data.shape), not is_ascend)


_SORTING: dict[str, tuple[Callable[[Any], Any], Callable[[Any], list[te.Tensor]]]] = {
    "argsort_cpu": (ordering.argsort, _argsort),
    "sort_cpu": (ordering.sort, _sort),
    "topk_cpu": (ordering.topk, _topk),
}
"""By the tag of topi's stage: the function that recognizes it, and the one that replaces it."""
