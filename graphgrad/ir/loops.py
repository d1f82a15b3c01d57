"""Building of loop nests, for kernels that are written directly and not made by a schedule.

Loops are built in two ways. Where the body refers to several loops at once, their variables are
made first, and `loop`, `loops` and `fused` put loops over them around a statement. Otherwise
`serial`, `parallel`, `unrolled` and `vectorized` pass the variable to a function that builds the
body.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tvm import tirx
from tvm.s_tir import SBlock, SBlockRealize
from tvm.tirx import ForKind

from .kernel_structure import static, substitute_values

MIN_HEAP_BYTES = 1024
"""The bytes from which on TVM allocates a kernel's inner buffer on the heap, not on the stack."""

Statement = Any
Index = Any
Indices = Sequence[Any]

Body = Callable[[Any], Statement]
"""From the variable of a loop to its body."""

Around = tuple[Any, Any]
"""A loop that is not built yet: its variable, and its number of trips."""


def variable(name: str, dtype: str = "int64") -> Any:
    """A new variable of a loop."""
    return tirx.Var(name, dtype)


def index(value: Any, dtype: str = "int64") -> Any:
    """A number or an expression as an index or extent of type `dtype`."""
    return tirx.const(value, dtype) if isinstance(value, int) else value.astype(dtype)


def ceil_div(extent: Any, step: int) -> Any:
    """The number of steps of a given length that cover an extent."""
    if isinstance(extent, int):
        return -(-extent // step)
    return extent if step == 1 else tirx.floordiv(extent + (step - 1), step)


def loop(
    var: Any, trips: Any, body: Statement, kind: ForKind = ForKind.SERIAL, start: Any = 0
) -> Statement:
    """A loop around a statement, over `trips` values of a variable from `start` on.

    Python's ints become constants of the variable's dtype.
    """
    dtype = str(var.ty.dtype)
    start, trips = (
        tirx.const(value, dtype) if isinstance(value, int) else value for value in (start, trips)
    )
    return tirx.For(var, start, trips, kind, body)


def own_loop(
    var: Any, trips: Any, body: Statement, kind: ForKind = ForKind.SERIAL, start: Any = 0
) -> Statement:
    """A loop as `loop` makes it, with a new variable in the place of one that others go over."""
    own = variable(var.name, str(var.ty))
    return loop(own, trips, substitute_values(body, {var: own}), kind, start)


def within(outer: Sequence[Any], body: Statement) -> Statement:
    """Loops like other ones (For), given from the outermost, around a statement."""
    for each in reversed(outer):
        body = loop(each.loop_var, each.extent, body, each.kind, each.min)
    return body


def loops(around: Iterable[Around], body: Statement, kind: ForKind = ForKind.SERIAL) -> Statement:
    """Loops from 0, given from the outermost, around a statement."""
    for var, trips in reversed(list(around)):
        body = loop(var, trips, body, kind)
    return body


def fused(around: Sequence[Around], body: Statement, kind: ForKind) -> Statement:
    """One loop over all points of several, given from the outermost, around a statement.

    Where a number of trips is symbolic, only the first loop is of the kind given.
    """
    if not around:
        return body
    variables, trips = zip(*around, strict=True)
    if len(around) == 1 or not all(isinstance(extent, int) for extent in trips):
        return loop(variables[0], trips[0], loops(around[1:], body), kind)
    point = variable("point", str(variables[0].ty.dtype))
    values = dict(zip(variables, unravel(point, trips), strict=True))
    return loop(point, math.prod(trips), substitute_values(body, values), kind)


def unravel(point: Index, extents: Sequence[Any]) -> list[Index]:
    """The indices of a point of a shape, given its number in row-major order.

    The number is divided once by the product of all extents behind an index, if these are ints;
    otherwise by one extent after the other. An empty shape has no points to be numbered, so that
    any divisor will do.
    """
    indices: list[Index] = []
    inner: Any = 1
    divisors = [1 if static(extent) == 0 else extent for extent in extents]
    for position, extent in reversed(list(enumerate(divisors))):
        value = tirx.floordiv(point, inner)
        # The number is less than that of all points: the first index needs no remainder.
        indices.insert(0, tirx.floormod(value, extent) if position else value)
        if isinstance(extent, int) and isinstance(inner, int):
            inner *= extent
        else:
            point, inner = value, extent
    return indices


def serial(trips: Any, body: Body) -> Statement:
    """A loop from 0; where the number of trips is the int 1, only its body."""
    return _each(trips, body, ForKind.SERIAL)


def parallel(trips: Any, body: Body) -> Statement:
    """A loop as `serial` makes it, whose trips are shared by threads."""
    return _each(trips, body, ForKind.PARALLEL)


def unrolled(trips: int, body: Body) -> Statement:
    """A loop as `serial` makes it, that becomes straight code."""
    return _each(trips, body, ForKind.UNROLLED)


def vectorized(lanes: int, body: Body) -> Statement:
    """A loop as `serial` makes it, whose trips are the lanes of vectors."""
    return _each(lanes, body, ForKind.VECTORIZED)


def nested(extents: Sequence[Any], body: Callable[[list[Any]], Statement]) -> Statement:
    """Serial loops over the points of a shape; `body` is given all their variables."""
    if not extents:
        return body([])
    return serial(extents[0], lambda i: nested(extents[1:], lambda rest: body([i, *rest])))


def bound(var: Any, extent: Any, tag: str, body: Statement) -> Statement:
    """A loop from 0 over threads or blocks of a GPU, such as those of ``"blockIdx.x"``."""
    axis = tirx.IterVar(None, var, tirx.IterVar.ThreadIndex, tag)
    return tirx.For(var, index(0), extent, ForKind.THREAD_BINDING, body, axis)


def sequence(*statements: Statement) -> Statement:
    """Statements one after the other; of none, one that does nothing."""
    if len(statements) > 1:
        return tirx.SeqStmt(list(statements))
    return statements[0] if statements else tirx.Evaluate(tirx.const(0, "int32"))


def block(name: str, *statements: Statement, buffers: Sequence[Any] = ()) -> Statement:
    """A block without loops: some statements, with buffers allocated for them."""
    inside = SBlock([], [], [], name, sequence(*statements), alloc_buffers=list(buffers))
    return SBlockRealize([], tirx.const(True, "bool"), inside)


def over_axes(inside: SBlock) -> Statement:
    """A block in serial loops over its axes."""
    axes = inside.iter_vars
    variables = [variable(axis.var.name, str(axis.var.ty)) for axis in axes]
    nest = SBlockRealize(variables, tirx.const(True, "bool"), inside)
    for var, axis in reversed(list(zip(variables, axes, strict=True))):
        nest = loop(var, axis.dom.extent, nest, start=axis.dom.min)
    return nest


def scratch(name: str, shape: Sequence[int], dtype: str = "float32") -> Any:
    """A buffer of a kernel's own, in ordinary memory."""
    return tirx.decl_buffer([index(n) for n in shape], dtype, name)


def registers(name: str, shape: Sequence[int], dtype: str = "float32") -> Any:
    """A few vectors that the code generator keeps in registers, or on the stack."""
    return tirx.decl_buffer([index(n) for n in shape], dtype, name, scope="local")


def store(buffer: Any, indices: Indices, value: Any) -> Statement:
    """The statement that stores one element."""
    return tirx.BufferStore(buffer, value, list(indices))


def load(buffer: Any, indices: Indices) -> Any:
    """The value of one element."""
    return tirx.BufferLoad(buffer, list(indices))


def _each(trips: Any, body: Body, kind: ForKind) -> Statement:
    if isinstance(trips, int) and trips == 1:
        return body(index(0))
    var = variable("i")
    return loop(var, trips, body(var), kind)
