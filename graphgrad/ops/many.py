"""Reductions of all elements of many tensors to one number: finiteness, and the squared norm.

A kernel for each tensor, and an expression that joins their results, would take longer to compile
than the rest of a training step's end. On processors one kernel reduces up to `_MAX_TENSORS`
tensors, and reads each of them once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from typing import Any

from tvm import relax, te, tirx

from ..ir.kernel_structure import is_among
from ..ir.loops import load, loop, sequence, store, variable
from ..ir.tensor import Tensor
from .define import OPAQUE, define_lowered
from .legalize import fields_of
from .opaque_kernel import for_gpu
from .tensor_table import Rows, kernel, loop_over_rows

_MAX_TENSORS = 64
"""Tensors of one kernel at most: LLVM takes more time for each the more there are."""

_LANES = 32
"""Partial results side by side: enough registers to hide the latency of an addition."""

_SUPPORTED_DTYPES = ("float32", "float64")
"""Dtypes of tensors that share a kernel; others have one each, in which they are widened."""


@dataclass(frozen=True)
class _Reduction:
    """A reduction: the map of each element, and the combination of two results.

    Attributes
    ----------
    name : str
        Of the op, without prefix.
    partial, result : str
        Dtypes of partial results and of the result.
    identity : Expr
        The result of no elements.
    map, combine, finish : callable
        From an element to a partial result; of two, one; from the last one to the result.
    """

    name: str
    partial: str
    result: str
    identity: Any
    map: Callable[[Any], Any]
    combine: Callable[[Any, Any], Any]
    finish: Callable[[Any], Any]


def _is_finite(x: Any) -> Any:
    # False of NaN too: no comparison with NaN holds.
    return (tirx.abs(x) < tirx.infinity(str(x.ty.dtype))).astype("int32")


def _squared(x: Any) -> Any:
    # Squares of large float32 would overflow, and a sum of many elements lose digits.
    wide = x.astype("float64")
    return wide * wide


_FINITE = _Reduction(
    "all_finite",
    partial="int32",
    result="bool",
    identity=tirx.const(1, "int32"),
    map=_is_finite,
    combine=lambda a, b: tirx.min(a, b),  # noqa: PLW0108 (TVM counts its parameters)
    finish=lambda total: total > 0,
)
_SQUARES = _Reduction(
    "sum_of_squares",
    partial="float64",
    result="float64",
    identity=tirx.const(0.0, "float64"),
    map=_squared,
    combine=lambda a, b: a + b,
    finish=lambda total: total,
)


def all_finite(values: Sequence[Tensor]) -> Tensor:
    """Emit whether every element of every tensor is finite, a boolean scalar.

    Parameters
    ----------
    values : sequence of Tensor
        At least one, of floats, of any shapes.
    """
    flags = _reduced(_FINITE, values)
    return reduce(lambda a, b: a.emitter.emit(relax.op.logical_and(a.expr, b.expr)), flags)


def sum_of_squares(values: Sequence[Tensor]) -> Tensor:
    """Emit the sum of the squares of all elements of all tensors, a float64 scalar.

    It is added up in float64, in an order that depends on the shapes alone.

    Parameters
    ----------
    values : sequence of Tensor
        At least one, of floats, of any shapes.
    """
    return reduce(lambda a, b: a + b, _reduced(_SQUARES, values))


def _reduced(reduction: _Reduction, values: Sequence[Tensor]) -> list[Tensor]:
    """Emit one result for each batch of tensors."""
    emitter = values[0].emitter
    batches = -(-len(values) // _MAX_TENSORS)
    bounds = [i * len(values) // batches for i in range(batches + 1)]
    calls = [
        relax.Call(_OPS[reduction.name], [relax.Tuple([v.expr for v in values[start:stop]])])
        for start, stop in pairwise(bounds)
    ]
    return [emitter.emit(call) for call in calls]


def _define(reduction: _Reduction) -> Any:
    """Register the op that makes one number of a tuple of tensors."""
    return define_lowered(
        reduction.name,
        ["tensors"],
        lambda _: relax.TensorType([], reduction.result),
        lambda builder, call: _lowered(builder, reduction, fields_of(builder, call.args[0])),
        reduction.name,
    )


def _lowered(builder: relax.BlockBuilder, reduction: _Reduction, tensors: list[Any]) -> Any:
    """The call that joins the results of a shared kernel and of a kernel for each other tensor."""
    tensors = [tensor for tensor in tensors if not _is_empty(tensor.ty)]
    if for_gpu():
        # A GPU reduces all of them in a few launches, and parts of each at the same time.
        return _joined(builder, reduction, tensors, lambda x: _reduced_expression(reduction, x))
    shared = [t for t in tensors if _may_share(t.ty)]
    alone = [t for t in tensors if not is_among(t, shared)]
    partials = [
        builder.emit_te(
            lambda x: _reduced_expression(reduction, x), t, primfunc_name_hint=reduction.name
        )
        for t in alone
    ]
    if shared:
        name = builder.add_func(_kernel(reduction, [t.ty for t in shared]), reduction.name)
        result = relax.TensorType([], reduction.partial)
        partials.append(builder.emit(relax.call_tir(name, relax.Tuple(shared), result)))
    return _joined(builder, reduction, partials, lambda x: x)


def _joined(
    builder: relax.BlockBuilder,
    reduction: _Reduction,
    tensors: list[Any],
    partial: Callable[[te.Tensor], te.Tensor],
) -> Any:
    """The call that combines a partial result of each of some tensors."""

    def joined(*given: te.Tensor) -> te.Tensor:
        terms = [partial(x) for x in given]
        total = reduce(reduction.combine, (term() for term in terms), reduction.identity)
        return te.compute((), lambda: reduction.finish(total), name=reduction.name)

    return builder.call_te(joined, *tensors, primfunc_name_hint=f"{reduction.name}_of_parts")


def _reduced_expression(reduction: _Reduction, x: te.Tensor) -> te.Tensor:
    """The partial result of one tensor."""
    is_half = str(x.dtype) in ("float16", "bfloat16")

    def element(*indices: Any) -> Any:
        value = x(*indices)
        return reduction.map(value.astype("float32") if is_half else value)

    if not x.shape:
        return te.compute((), element, name=reduction.name)
    axes = [te.reduce_axis((0, extent)) for extent in x.shape]
    combiner = te.comm_reducer(reduction.combine, lambda _: reduction.identity)
    return te.compute((), lambda: combiner(element(*axes), axes), name=reduction.name)


def _kernel(reduction: _Reduction, types: list[relax.TensorType]) -> tirx.PrimFunc:
    """The kernel that reduces several tensors to one partial result.

    Elements are cut into parts, whose length does not depend on the number of cores. A part has a
    partial result in each lane. These are combined in order, first those of a part, then all parts,
    so that the result is the same in every run.
    """
    tensors = [tirx.decl_buffer(list(ty.shape), str(ty.dtype), "tensor") for ty in types]
    result = tirx.decl_buffer((), reduction.partial, "result")
    statements: list[Any] = [store(result, [], reduction.identity)]
    for dtype in dict.fromkeys(str(ty.dtype) for ty in types):
        # A column of rows has one dtype.
        rows = Rows([[tensor] for tensor in tensors if str(tensor.dtype) == dtype])
        statements += _over(reduction, rows, result)
    return kernel([*tensors, result], statements, OPAQUE)


def _over(reduction: _Reduction, rows: Rows, result: Any) -> list[Any]:
    """The statements that reduce rows of one dtype, and combine that with `result`."""
    lanes = tirx.decl_buffer((_LANES,), reduction.partial, "lanes", scope="local")
    parts = tirx.decl_buffer((rows.parts,), reduction.partial, "parts")

    def combined(buffer: Any, indices: list[Any], term: Any) -> Any:
        total = reduction.combine(load(buffer, indices), term)
        return store(buffer, indices, total)

    def element(buffers: list[Any], index: Any, lane: Any) -> Any:
        return combined(lanes, [lane], reduction.map(load(buffers[0], [index])))

    def around(part: Any, inside: Any) -> Any:
        cleared_lane, lane = variable("lane"), variable("lane")
        clear = store(lanes, [cleared_lane], reduction.identity)
        return sequence(
            tirx.AllocBuffer(lanes),
            loop(cleared_lane, _LANES, clear, tirx.ForKind.VECTORIZED),
            inside,
            store(parts, [part], reduction.identity),
            loop(lane, _LANES, combined(parts, [part], load(lanes, [lane]))),
        )

    part = variable("part")
    return [
        tirx.AllocBuffer(parts),
        *loop_over_rows(rows, _LANES, element, around),
        loop(part, rows.parts, combined(result, [], load(parts, [part]))),
    ]


def _may_share(ty: Any) -> bool:
    """Whether tensors of a type may share a kernel with others."""
    is_static = all(isinstance(extent, tirx.IntImm) for extent in ty.shape)
    return is_static and str(ty.dtype) in _SUPPORTED_DTYPES


def _is_empty(ty: Any) -> bool:
    return any(isinstance(extent, tirx.IntImm) and int(extent) == 0 for extent in ty.shape)


_OPS = {reduction.name: _define(reduction) for reduction in (_FINITE, _SQUARES)}
