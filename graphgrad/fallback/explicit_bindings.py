"""Bindings of floats as stores to local memory: TVM's passes stumble over `Let`.

LowerIntrin tells its simplifier what each variable stands for, unless the value reads memory. The
simplifier puts that in for the variable, and for the variables in it: a chain of n bindings, each
used twice, costs 2ⁿ. CommonSubexprElim moves what it finds out of the scope of its variables. A
load from local memory is left alone by both, and LLVM and nvcc keep it in a register.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import prim
from tvm.s_tir import SBlock

from .backprop import is_float
from .walk import Expr, called, children, identity, postorder, rebuilt, unrolled

Building = Generator[Any, Any, Any]
"""A recursion without Python's stack (see `walk.unrolled`)."""


def with_explicit_bindings(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return the same function without bindings of floats."""

    def change(block: Any) -> Any:
        bound: list[Any] = []
        tvm_ffi.structural_walk(block.body, (prim.Let, lambda let: bound.append(let.var)))
        body, buffers = block.body, []
        if any(is_float(var.ty) for var in bound):
            lowering = _Lowering()
            changes = [(tirx.BufferStore, lowering.store), (tirx.IfThenElse, lowering.branch)]
            body, buffers = tvm_ffi.structural_map(body, changes), lowering.buffers
        known = {identity(var) for var in bound}
        return SBlock(
            block.iter_vars, _outside(block.reads, known), _outside(block.writes, known),
            block.name_hint, body, block.init, [*block.alloc_buffers, *buffers],
            block.match_buffers, block.annotations,
        ) if bound else block  # fmt: skip

    return func.with_body(tvm_ffi.structural_map(func.body, (SBlock, change)))


def _outside(regions: Sequence[Any], bound: set[int]) -> list[Any]:
    """Return what a block accesses, in terms that exist outside of it.

    TVM writes bound variables there, and its passes then take them for undefined.
    """

    def whole(region: Any) -> Any:
        bounds = [e for r in region.region for e in (r.min, r.extent)]
        if not any(identity(node) in bound for node in postorder(*bounds, parts=_parts)):
            return region
        ranges = [tvm.ir.Range(0, extent) for extent in region.source.ty.shape]
        return tvm.ir.TensorRegion(region.source, ranges, region.ty)

    return [whole(region) for region in regions]


class _Lowering:
    """The bindings of expressions, as statements before those that evaluate them.

    Attributes
    ----------
    buffers : list of Var
        What holds the values.
    """

    def __init__(self) -> None:
        self.buffers: list[Any] = []
        self.variables: dict[int, Expr] = {}

    def store(self, store: Any) -> Any:
        """Return a store without bindings, behind what it needs."""
        before: list[Any] = []
        value, *indices = (
            unrolled(self.expression(part, before)) for part in (store.value, *store.indices)
        )
        return _sequence([*before, tirx.BufferStore(store.buffer, value, indices)])

    def branch(self, branch: Any) -> Any:
        """Return a branch on a condition without bindings, behind what that needs."""
        before: list[Any] = []
        condition = unrolled(self.expression(branch.condition, before))
        return _sequence([*before, tirx.IfThenElse(condition, branch.then_case, branch.else_case)])

    def expression(self, node: Expr, statements: list[Any]) -> Building:
        """Return an expression without bindings; what it needs is appended to the statements."""
        if identity(node) in self.variables:
            return self.variables[identity(node)]
        if isinstance(node, prim.Let):
            value = yield self.expression(node.value, statements)
            self.variables[identity(node.var)] = self._kept(value, node.var.name, statements)
            return (yield self.expression(node.body, statements))
        if called(node) == "prim.if_then_else":
            return (yield self._choice(node, statements))
        parts = []
        for part in _parts(node):
            parts.append((yield self.expression(part, statements)))
        if isinstance(node, tvm.ir.TensorLoad):
            return tirx.BufferLoad(node.source, parts)
        return rebuilt(node, parts)

    def _choice(self, node: Expr, statements: list[Any]) -> Building:
        """Return a choice whose arms' bindings are evaluated only where the arm is."""
        condition = yield self.expression(node.args[0], statements)
        arms: list[Expr] = []
        before: list[list[Any]] = [[], []]
        for arm, needed in zip(node.args[1:], before, strict=True):
            arms.append((yield self.expression(arm, needed)))
        if any(before):
            condition = self._kept(condition, "taken", statements)
            for needed, holds in zip(before, (condition, tirx.Not(condition)), strict=True):
                if needed:
                    statements.append(tirx.IfThenElse(holds, _sequence(needed), None))
        return tvm.ir.Call(
            node.op, [condition, *arms], attrs=node.attrs, span=node.span, ret_ty=node.ty
        )

    def _kept(self, value: Expr, name: str, statements: list[Any]) -> Expr:
        buffer = tirx.decl_buffer((1,), str(value.ty), name, scope="local")
        self.buffers.append(buffer)
        statements.append(tirx.BufferStore(buffer, value, [0]))
        return tirx.BufferLoad(buffer, [0])


def _sequence(statements: list[Any]) -> Any:
    return statements[0] if len(statements) == 1 else tirx.SeqStmt(statements)


def _parts(node: Expr) -> list[Expr]:
    return list(node.indices) if isinstance(node, tvm.ir.TensorLoad) else children(node)
