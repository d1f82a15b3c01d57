"""Bindings as stores to local memory, where TVM's passes stumble over them.

Three of them do. The simplifier of LowerIntrin and of the code generator puts in for a variable
what it stands for, and for the variables in that: a chain of n bindings, each used twice, costs 2ⁿ.
CommonSubexprElim binds what statements have in common before the first of them, but overlooks uses
inside a `Let`. The code generator simplifies what a `Bind` statement binds more than once, and
aborts if it finds different bounds for a remainder in it. A load from local memory is left alone by
all, and LLVM and nvcc keep it in a register. Short indices are put in for their variables: their
bounds differ with the conditions around each use.

Small bindings of floats in the only statement of a block stay: schedules inline and vectorize such
blocks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import prim
from tvm.s_tir import SBlock

from ...ir.kernel_rewrite import replace_block
from ...ir.loops import sequence
from ...ir.visits import nodes_in
from ..backprop import is_float
from ..walk import Expr, Recursion, called, children, identity, postorder, rebuilt, unrolled
from .nested_guards import protect_nested_guards

_MAX_SIMPLIFIED_NODES = 1024
"""Nodes of a value that the simplifier is to see, with what stands for its variables put in."""

_DIVISIONS = (prim.FloorDiv, prim.FloorMod)
_PLAIN_NODES = (tvm.ir.Var, prim.IntImm, prim.Add, prim.Sub, prim.Mul, prim.Cast)
_MAX_PLAIN_INDEX_NODES = 16
"""Of what, and how many, are the nodes of an index that takes the place of its variable."""


def bind_shared_values(func: tirx.PrimFunc, small_stay: bool = True) -> tirx.PrimFunc:
    """The same function without bindings that TVM does not compile, or not in time.

    Parameters
    ----------
    func : PrimFunc
    small_stay : bool
        False if blocks of the function will share a loop.
    """
    values = {identity(let.var): let.value for let in nodes_in(func.body, prim.Let)}
    bodies = [block.body for block in nodes_in(func.body, SBlock)]
    alone = {identity(body) for body in bodies if isinstance(body, tirx.BufferStore)}
    # What statements have in common is bound before them, and uses of it in a `Let` are overlooked.
    lowering = _Lowering(alone if small_stay and not _is_symbolic(func) else set(), values)
    changes = [
        (tirx.BufferStore, lowering.store),
        (tirx.Bind, lowering.bind),
        (tirx.IfThenElse, lowering.branch),
        (SBlock, lambda block: lowering.block(drop_inner_regions(values, block))),
    ]
    return protect_nested_guards(func.with_body(tvm_ffi.structural_map(func.body, changes)))


def has_small_bindings(value: Expr) -> bool:
    """Whether TVM compiles what an expression binds, and in time."""
    nodes = postorder(value, parts=_parts)
    return _is_small(nodes, {identity(n.var): n.value for n in nodes if isinstance(n, prim.Let)})


def _is_symbolic(func: tirx.PrimFunc) -> bool:
    """Whether statements of different stages may have an expression in common.

    All may name the parameters, the extents of buffers, and where those of extern stages begin.
    """

    def sizes(buffer: Any) -> list[Expr]:
        return [*buffer.ty.shape, *buffer.ty.strides, buffer.ty.elem_offset]

    return any(
        not isinstance(param.ty, tirx.buffer.BufferType)
        or not all(isinstance(size, prim.IntImm) for size in sizes(param))
        for param in func.params
    )


def _is_small(nodes: Sequence[Expr], values: Mapping[int, Expr]) -> bool:
    """Whether the simplifier gets on with the bindings in some nodes, in postorder."""
    bound = [node.value for node in nodes if isinstance(node, prim.Let)]
    if not all(is_float(value.ty) or _is_plain(value) for value in bound):
        return False
    if any(_depends_on_conditions(node) for node in postorder(*bound, parts=_parts)):
        return False
    # With what stands for variables put in: a value that is used twice counts twice.
    sizes: dict[int, int] = {}
    for node in nodes:
        if isinstance(node, prim.Let):
            size = sizes[identity(node.body)]
        elif identity(node) in values:
            value = identity(values[identity(node)])
            if value not in sizes:  # the variable is bound elsewhere, or twice
                return False
            size = sizes[value]
        else:
            size = 1 + sum(sizes[identity(part)] for part in _parts(node))
        sizes[identity(node)] = size
    return max(sizes.values()) <= _MAX_SIMPLIFIED_NODES


def _depends_on_conditions(node: Expr) -> bool:
    """Whether a node may be simplified to something else under other conditions."""
    is_choice = isinstance(node, prim.Select) or called(node) == "prim.if_then_else"
    if not is_choice:
        return isinstance(node, _DIVISIONS)
    condition = node.condition if isinstance(node, prim.Select) else node.args[0]
    # What is known of loops at a place decides conditions on integers, not those on floats.
    parts = postorder(condition, parts=lambda n: [] if _is_load(n) else children(n))
    return not all(is_float(part.ty) or str(part.ty) == "bool" for part in parts)


def drop_inner_regions(bound: Collection[int], block: Any) -> Any:
    """A block that says what it accesses in terms that exist outside of it.

    TVM writes bound variables there, and its passes then take them for undefined.

    Parameters
    ----------
    bound : collection of int
        The identities of the variables that are bound inside of the block.
    block : SBlock
    """

    def whole(region: Any) -> Any:
        bounds = [e for r in region.region for e in (r.min, r.extent)]
        if not any(identity(node) in bound for node in postorder(*bounds, parts=_parts)):
            return region
        ranges = [tvm.ir.Range(0, extent) for extent in region.source.ty.shape]
        return tvm.ir.TensorRegion(region.source, ranges, region.ty)

    return replace_block(
        block, reads=[*map(whole, block.reads)], writes=[*map(whole, block.writes)]
    )


class _Lowering:
    """The bindings of expressions, as statements before those that evaluate them."""

    def __init__(self, alone: Collection[int], values: Mapping[int, Expr]) -> None:
        self.alone = alone
        self.values = values
        self.buffers: list[Any] = []
        self.variables: dict[int, Expr] = {}
        self.stay = False

    def store(self, store: Any) -> Any:
        """A store without bindings, or with small ones, behind what it needs."""
        parts = [store.value, *store.indices]
        nodes = postorder(*parts, parts=_parts)
        self.stay = identity(store) in self.alone and _is_small(nodes, self.values)
        before: list[Any] = []
        value, *indices = (unrolled(self.expression(part, before)) for part in parts)
        self.stay = False
        return sequence(*before, tirx.BufferStore(store.buffer, value, indices))

    def bind(self, bind: Any) -> Any:
        """A statement that binds a value without bindings, behind what it needs."""
        before: list[Any] = []
        value = unrolled(self.expression(bind.value, before))
        # A remainder that a `Bind` binds may abort the code generator, so that it goes to memory.
        if not before and not _divides(value):
            return tirx.Bind(bind.var, value)
        self.variables[identity(bind.var)] = self._kept(value, bind.var.name, before)
        return sequence(*before)

    def branch(self, branch: Any) -> Any:
        """A branch on a condition without bindings, behind what that needs."""
        before: list[Any] = []
        condition = unrolled(self.expression(branch.condition, before))
        return sequence(*before, tirx.IfThenElse(condition, branch.then_case, branch.else_case))

    def block(self, block: Any) -> Any:
        """A block that has the local memory that its statements use."""
        # TVM takes a store to memory that an inner block has allocated for one to an output.
        declared = [tirx.AllocBuffer(buffer) for buffer in self.buffers]
        self.buffers = []
        return replace_block(block, body=sequence(*declared, block.body)) if declared else block

    def expression(self, node: Expr, statements: list[Any]) -> Recursion:
        """An expression without bindings; what it needs is appended to the statements."""
        if identity(node) in self.variables:
            return self.variables[identity(node)]
        if isinstance(node, prim.Let):
            value = yield self.expression(node.value, statements)
            if self.stay and is_float(value.ty):
                # Another stage may bind the same variable, and keep it in local memory.
                self.variables.pop(identity(node.var), None)
                return prim.Let(node.var, value, (yield self.expression(node.body, statements)))
            is_plain = _is_plain(value)
            stand_in = value if is_plain else self._kept(value, node.var.name, statements)
            self.variables[identity(node.var)] = stand_in
            return (yield self.expression(node.body, statements))
        if called(node) == "prim.if_then_else":
            return (yield self._choice(node, statements))
        parts = []
        for part in _parts(node):
            parts.append((yield self.expression(part, statements)))
        if _is_load(node):
            return tirx.BufferLoad(node.source, parts)
        return rebuilt(node, parts)

    def _choice(self, node: Expr, statements: list[Any]) -> Recursion:
        """A choice whose arms' bindings are evaluated only where the arm is."""
        condition = yield self.expression(node.args[0], statements)
        arms: list[Expr] = []
        needed_by_arm: list[list[Any]] = [[], []]
        for arm, needed in zip(node.args[1:], needed_by_arm, strict=True):
            arms.append((yield self.expression(arm, needed)))
        if any(needed_by_arm):
            # Kept, since the branches and the choice all read it.
            condition = self._kept(condition, "taken", statements)
            for needed, holds in zip(needed_by_arm, (condition, tirx.Not(condition)), strict=True):
                if needed:
                    statements.append(tirx.IfThenElse(holds, sequence(*needed), None))
        return tvm.ir.Call(
            node.op, [condition, *arms], attrs=node.attrs, span=node.span, ret_ty=node.ty
        )

    def _kept(self, value: Expr, name: str, statements: list[Any]) -> Expr:
        buffer = tirx.decl_buffer((1,), str(value.ty), name, scope="local")
        self.buffers.append(buffer)
        statements.append(tirx.BufferStore(buffer, value, [0]))
        return tirx.BufferLoad(buffer, [0])


def _is_plain(value: Expr) -> bool:
    """Whether a value is an index to compute at each use: of loop variables, and short."""
    # The list grows while it is gone through.
    nodes = [value]
    for node in nodes:
        is_plain = isinstance(node, _PLAIN_NODES) or _divides_by_constant(node)
        if not is_plain or is_float(node.ty) or len(nodes) > _MAX_PLAIN_INDEX_NODES:
            return False
        nodes += children(node)
    return True


def _divides_by_constant(node: Expr) -> bool:
    return isinstance(node, _DIVISIONS) and isinstance(node.b, prim.IntImm)


def _divides(value: Expr) -> bool:
    """Whether a value has an integer quotient or remainder in it."""
    return any(isinstance(node, _DIVISIONS) for node in postorder(value, parts=_parts))


def _parts(node: Expr) -> Sequence[Expr]:
    return list(node.indices) if _is_load(node) else children(node)


def _is_load(node: Expr) -> bool:
    return isinstance(node, tvm.ir.TensorLoad)
