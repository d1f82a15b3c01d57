"""Conversion of kernels to indices of 64 bits, as TVM's own kernels have them.

Kernels that users write have 32-bit indices by default. TVM's fusion aborts where a tensor is
written with extents of 64 bits and read with extents of 32: it takes it for two different ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import prim
from tvm.s_tir import SBlock, SBlockRealize

from ...ir.visits import nodes_in
from ...tvm_fixes.hooks import identity

_SHORT, _LONG = "int32", "int64"

_ARITHMETIC = (
    prim.Add, prim.Sub, prim.Mul, prim.Div, prim.Mod, prim.FloorDiv, prim.FloorMod,
    prim.Min, prim.Max,
)  # fmt: skip
_COMPARISONS = (prim.EQ, prim.NE, prim.LT, prim.LE, prim.GT, prim.GE)


def lengthen_indices(kernel: tirx.PrimFunc) -> tirx.PrimFunc:
    """A kernel of the same signature whose extents, loops and indices have 64 bits.

    Values that are computed from loop variables keep their 32 bits.

    Parameters
    ----------
    kernel : PrimFunc
        A kernel whose body is a block. If its tensors have no extents of 32 bits it is returned as
        it is.
    """
    if not any(_is_int32(size) for param in kernel.params for size in _sizes(param)):
        return kernel
    long = {identity(var): tirx.Var(var.name, _LONG) for var in _int32_variables(kernel)}
    rewriting = _Rewriting(long)
    return tvm_ffi.structural_map(
        kernel, rewriting.nodes(), with_def_region_kind=(tvm.ir.Var, rewriting.variable)
    )


def _sizes(tensor: Any) -> list[Any]:
    """The extents, strides and offset of a tensor; none of a scalar."""
    ty = tensor.ty
    return [*ty.shape, *ty.strides, ty.elem_offset] if isinstance(ty, tirx.BufferType) else []


def _int32_variables(kernel: tirx.PrimFunc) -> Iterator[Any]:
    """Yield the variables of 32 bits that loops, blocks and tensors define."""
    variables: list[Any] = []
    tensors = list(kernel.params)
    for node in nodes_in(kernel.body, (tirx.For, SBlock)):
        if isinstance(node, tirx.For):
            variables.append(node.loop_var)
        else:
            variables.extend(axis.var for axis in node.iter_vars)
            tensors.extend(match.buffer for match in node.match_buffers)
    for tensor in tensors:
        variables += nodes_in(_sizes(tensor), tvm.ir.Var)
    # The signature must stay, so a scalar parameter keeps its dtype.
    param_ids = {identity(param) for param in kernel.params}
    return (var for var in variables if _is_int32(var) and identity(var) not in param_ids)


class _Rewriting:
    """Replaces variables of 32 bits by variables of 64.

    Each use becomes a cast back to 32 bits, so that any expression keeps its dtype. Indices,
    extents and comparisons are then rebuilt in 64 bits without these casts.
    """

    def __init__(self, counters: dict[int, Any]):
        self.counters = counters
        self.long = {identity(var) for var in counters.values()}

    def variable(self, var: Any, kind: tvm_ffi.DefRegionKind) -> Any:
        """The variable that takes another's place where it is defined, or used."""
        long = self.counters.get(identity(var))
        if long is None:
            return var
        return prim.Cast(tvm.ir.PrimType(_SHORT), long) if kind == kind.NONE else long

    def nodes(self) -> list[Any]:
        """The replacement of each kind of node; parts of a node are replaced before it."""
        return [
            (tirx.BufferType, self._tensor),
            (tvm.ir.TensorLoad, self._load),
            (tirx.BufferStore, self._store),
            (tvm.ir.TensorRegion, self._region),
            (tirx.IterVar, self._axis),
            (tirx.For, self._loop),
            (SBlockRealize, self._realize),
            (_COMPARISONS, self._comparison),
        ]

    def _tensor(self, ty: Any) -> Any:
        return tirx.BufferType(
            ty.dtype, ty.storage_scope, self._all(ty.shape), self._all(ty.strides),
            self._index(ty.elem_offset), ty.data_alignment, ty.offset_factor, ty.layout,
            ty.allocated_addr,
        )  # fmt: skip

    def _load(self, node: Any) -> Any:
        return tirx.BufferLoad(node.source, self._all(node.indices))

    def _store(self, node: Any) -> Any:
        return tirx.BufferStore(node.buffer, node.value, self._all(node.indices))

    def _region(self, node: Any) -> Any:
        return tirx.BufferRegion(node.source, [self._range(part) for part in node.region])

    def _axis(self, axis: Any) -> Any:
        if identity(axis.var) not in self.long:
            return axis
        return tirx.IterVar(self._range(axis.dom), axis.var, axis.iter_type, axis.thread_tag)

    def _loop(self, loop: Any) -> Any:
        if identity(loop.loop_var) not in self.long:
            return loop
        step = None if loop.step is None else self._index(loop.step)
        return tirx.For(
            loop.loop_var, self._index(loop.min), self._index(loop.extent), loop.kind, loop.body,
            loop.thread_binding, loop.annotations, step,
        )  # fmt: skip

    def _realize(self, node: Any) -> Any:
        return SBlockRealize(self._all(node.iter_values), node.predicate, node.block)

    def _comparison(self, node: Any) -> Any:
        """A comparison of loop variables in 64 bits: TVM does not analyze one with casts."""
        if not _is_int32(node.a) or not self._has_long(node):
            return node
        return type(node)(self._index(node.a), self._index(node.b))

    def _has_long(self, node: Any) -> bool:
        variables = nodes_in(node, tvm.ir.Var)
        return any(identity(var) in self.long for var in variables)

    def _range(self, part: Any) -> Any:
        return tvm.ir.Range.from_min_extent(self._index(part.min), self._index(part.extent))

    def _all(self, indices: Sequence[Any]) -> list[Any]:
        return [self._index(index) for index in indices]

    def _index(self, node: Any) -> Any:
        """A 32-bit expression in 64 bits, without casts of loop variables."""
        if not _is_int32(node):
            return node
        if isinstance(node, prim.IntImm):
            return tirx.IntImm(_LONG, int(node.value))
        if isinstance(node, prim.Cast) and identity(node.value) in self.long:
            return node.value
        if isinstance(node, _ARITHMETIC):
            return type(node)(self._index(node.a), self._index(node.b))
        return prim.Cast(tvm.ir.PrimType(_LONG), node)


def _is_int32(node: Any) -> bool:
    return str(node.ty) == _SHORT
