"""Flat maps: kernels whose element i of each result depends on elements i of the inputs alone.

Elements are counted in the order of memory, so shapes do not matter. A flat map that runs behind
another and has as many elements can run in the same loop, even where it reads or overwrites what
the other one reads or writes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx
from tvm.s_tir import SBlockRealize

from ....ir.kernel_structure import (
    Load,
    is_among,
    is_conditional,
    is_pure,
    loop_nest,
    statements_of,
    static,
)
from ....ir.visits import nodes_in

_CHEAP = ("tirx.fabs", "tirx.isnan", "tirx.sqrt")
"""Functions that are single instructions. All others take many, or a call for each element, so that
the cost of a kernel that has them is not its memory traffic, which fusion here saves."""

DTYPES = ("float32", "float64", "int32", "int64")
"""Types of tensors' elements: those that TVM's code generators vectorize without reinterpreting
bits."""


@dataclass(frozen=True)
class FlatMap:
    """The stores by which a kernel computes one element of each result, in order.

    Attributes
    ----------
    params : list of Buffer
        The kernel's parameters: its inputs, then its results.
    length : int
        The number of elements of each tensor that is not a scalar: at least one.
    stores : list of (Buffer, Expr)
        The buffer that is stored to, a parameter or the kernel's own, and the value. All loads are
        of the element with the same number, or of scalars.
    """

    params: list[Any]
    length: int
    stores: list[tuple[Any, Any]]


def flat_map(kernel: tirx.PrimFunc, dtypes: Sequence[str] = DTYPES) -> FlatMap | None:
    """The flat map of a kernel, None if it is none.

    Parameters
    ----------
    kernel : PrimFunc
        It is not scheduled: each stage is a block in loops over its axes.
    dtypes : sequence of str
        Types of elements that a kernel of many tensors may have; of scalars also ``"bool"``.
    """
    root = kernel.body
    if not isinstance(root, SBlockRealize) or root.block.iter_vars or root.block.match_buffers:
        return None
    if not all(tirx.is_buffer_var(param) for param in kernel.params):
        return None
    buffers = [*kernel.params, *root.block.alloc_buffers]
    # Most kernels that are none have tensors of several lengths, which is seen at once.
    lengths = {_length(buffer) for buffer in buffers if buffer.shape}
    if len(lengths) != 1 or not all(_is_supported(buffer, dtypes) for buffer in buffers):
        return None
    (length,) = lengths
    statements = statements_of(root.block.body)
    stores = [store for store in map(_store, statements) if store is not None]
    if len(stores) < len(statements):
        return None
    written = [store.buffer for store in stores]
    inputs = [b for b in buffers if not is_among(b, written)]
    is_in_order = all(
        _reads_only(store, [*inputs, *written[:position]]) for position, store in enumerate(stores)
    )
    # Empty tensors have no element to compute, and a buffer written twice has two values.
    if not length or not is_in_order or len(set(written)) != len(written):
        return None
    if any(not param.shape and is_among(param, written) for param in kernel.params):
        return None  # A scalar result would be written in every iteration.
    return FlatMap(list(kernel.params), length, [(s.buffer, s.value) for s in stores])


def _store(statement: Any) -> Any | None:
    """The one store of a stage, if it writes each element of a buffer from the same elements.

    None if the stage is something else.
    """
    nest = loop_nest(statement)
    if nest is None:
        return None
    loops, realize = nest
    block = realize.block
    store = block.body
    if block.init is not None or block.match_buffers or block.alloc_buffers:
        return None
    if not isinstance(store, tirx.BufferStore) or not _walks(loops, realize):
        return None
    variables = [iterator.var for iterator in block.iter_vars]
    is_flat = _is_at(store.indices, variables, store.buffer.shape)
    return store if is_flat and _loads_alike(store, variables) else None


def _walks(loops: list[Any], realize: Any) -> bool:
    """Whether loops run over all points of a block's variables, in order, each once."""
    remaining = list(loops)
    for iterator, value in zip(realize.block.iter_vars, realize.iter_values, strict=True):
        extent = static(iterator.dom.extent)
        if extent is None or static(iterator.dom.min) != 0 or int(iterator.iter_type) != 0:
            return False
        if static(value) == 0 and extent == 1:
            continue  # An axis of extent one may have no loop.
        loop = remaining.pop(0) if remaining else None
        if loop is None or not value.same_as(loop.loop_var):
            return False
        if static(loop.min) != 0 or static(loop.extent) != extent:
            return False
    return not remaining


def _is_at(indices: Any, variables: list[Any], shape: Any) -> bool:
    """Whether indices are a block's variables in order.

    Without indices, the buffer must have a single element.
    """
    if not indices:
        return all(static(extent) == 1 for extent in shape)
    return len(indices) == len(variables) == len(shape) and all(
        index.same_as(variable) or (static(index) == 0 and static(extent) == 1)
        for index, variable, extent in zip(indices, variables, shape, strict=True)
    )


def _loads_alike(store: Any, variables: list[Any]) -> bool:
    """Whether a value is computed only from scalars and loads of the element that is stored."""
    calls = nodes_in(store.value, tvm.ir.Call)
    # A scalar is computed once, so any pure function will do.
    is_allowed = _is_cheap if store.buffer.shape else _is_unconditional
    return (
        all(map(is_allowed, calls))
        and all(
            not load.indices or _is_same_element(load, store, variables) for load in _loads(store)
        )
        and not _mentions(store, variables)
    )


def _is_same_element(load: Any, store: Any, variables: list[Any]) -> bool:
    """Whether a load is of the element that has the number of the one that is stored."""
    extents = [[static(extent) for extent in b.shape] for b in (load.source, store.buffer)]
    if extents[0] == extents[1] and _is_at(load.indices, variables, load.source.shape):
        return True
    read_extents, written_extents = (
        [extent for extent in each if extent is not None] for each in extents
    )
    if [len(read_extents), len(written_extents)] != [len(each) for each in extents]:
        return False  # one is symbolic
    if math.prod(read_extents) != math.prod(written_extents):
        return False
    if len(variables) != len(written_extents):  # loops around that the element has no axis of
        return False
    # The shapes differ, as those of what a reshape makes of the other.
    analyzer = tvm.sym.Analyzer()
    for variable, extent in zip(variables, written_extents, strict=True):
        analyzer.bind(variable, tvm.ir.Range(0, extent))
    read = _number(load.indices, read_extents)
    return bool(analyzer.can_prove_equal(read, _number(store.indices, written_extents)))


def _number(indices: Any, extents: Sequence[Any]) -> Any:
    """The number of an element in the order of memory."""
    number = tirx.const(0, "int64")
    for index, extent in zip(indices, extents, strict=True):
        number = number * extent + index
    return number


def _mentions(store: Any, variables: list[Any]) -> bool:
    """Whether a value uses the index of its element other than in loads."""
    indices = [index for load in _loads(store) for index in load.indices]
    return _uses(indices, variables) != _uses(store.value, variables)


def _uses(node: Any, variables: list[Any]) -> int:
    """The number of occurrences of some variables in an expression, or in several."""
    return sum(is_among(occurring, variables) for occurring in nodes_in(node, tvm.ir.Var))


def _is_cheap(call: Any) -> bool:
    """Whether a call is of a function that is a single instruction."""
    return str(getattr(call.op, "name", "")) in _CHEAP


def _is_unconditional(call: Any) -> bool:
    """Whether a call computes a value of all of its arguments and does nothing else."""
    return is_pure(call) and not is_conditional(call)


def _reads_only(store: Any, buffers: list[Any]) -> bool:
    """Whether a store's value loads from some buffers alone."""
    return all(is_among(load.source, buffers) for load in _loads(store))


def _loads(store: Any) -> list[Any]:
    return nodes_in(store.value, Load)


def _is_supported(buffer: Any, dtypes: Sequence[str]) -> bool:
    """Whether a buffer's type of elements is supported; booleans are as scalars alone."""
    dtype = str(buffer.dtype)
    return dtype in dtypes or (dtype == "bool" and not buffer.shape)


def _length(buffer: Any) -> int | None:
    """The number of elements of a buffer; None if it is not known statically."""
    extents = [static(extent) for extent in buffer.shape]
    return None if None in extents else math.prod(extents)  # type: ignore[arg-type]
